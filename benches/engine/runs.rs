//! Runs workloads in processes of their own and collects their figures.

use std::collections::BTreeMap;

use crate::apart::apart;
use crate::args::Plan;
use crate::measure::median;

/// Values of all runs, by workload, figure and number of pods.
#[derive(Default)]
pub(crate) struct Results(BTreeMap<(String, String, usize), Vec<f64>>);

impl Results {
    /// The median of one figure, if it was measured.
    pub(crate) fn median(&self, suite: &str, figure: &str, n: usize) -> Option<f64> {
        self.0.get(&(suite.to_owned(), figure.to_owned(), n)).map(|values| median(values.clone()))
    }

    /// All values: workload, figure, number of pods, values in the order of the runs.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, &str, usize, &[f64])> {
        self.0.iter().map(|((suite, figure, n), values)| (suite.as_str(), figure.as_str(), *n, values.as_slice()))
    }
}

/// Measures all workloads. The runs of one workload are spread over the whole time, so that a slow minute of the machine
/// affects all workloads and not only one.
///
/// # Errors
/// A run failed.
pub(crate) fn measure(plan: &Plan) -> Result<Results, String> {
    let mut results = Results::default();
    let total = plan.runs * plan.names.len() * plan.sizes.len();
    let mut done = 0;
    for _ in 0..plan.runs {
        for name in &plan.names {
            for n in &plan.sizes {
                done += 1;
                eprint!("\r[{done}/{total}] {name} n={n}\x1b[K");
                for (figure, value) in apart::<BTreeMap<String, f64>>(name, *n)? {
                    results.0.entry(((*name).to_owned(), figure, *n)).or_default().push(value);
                }
            }
        }
    }
    eprintln!("\r{done} runs\x1b[K");
    Ok(results)
}
