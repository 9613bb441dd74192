//! Parses the command line of a bench.
//!
//! Cargo starts a bench with `--bench` for `cargo bench` and without it for `cargo test --benches`; nextest passes
//! `--list`, and then runs each name with `--exact`.

use std::env;
use std::fmt::Display;
use std::process::ExitCode;

/// The workloads of a bench and their default sizes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Offer<'a> {
    /// The names of the workloads.
    pub(crate) names: &'a [&'static str],
    /// The numbers of pods with which each workload is measured.
    pub(crate) sizes: &'a [usize],
    /// The number of runs of each workload and size. If it is one, the bench has no flag `--runs`.
    pub(crate) runs: usize,
}

/// The task of the command line.
#[derive(Debug)]
pub(crate) enum Task {
    /// Measure each workload and size in processes of their own.
    Measure(Plan),
    /// One run of one workload in this process, its figures as JSON on the last line of standard output.
    RunOne { name: &'static str, n: usize },
    /// Run every workload once at the smallest scale, to show that it runs.
    Try { names: Vec<&'static str> },
    /// Print the names as a test harness would.
    List { names: Vec<&'static str> },
}

/// What to measure.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) names: Vec<&'static str>,
    pub(crate) sizes: Vec<usize>,
    pub(crate) runs: usize,
}

/// The most pods of a quick measurement.
const QUICK: usize = 10_000;

/// Performs the task of this process's command line. Prints an error to standard error, and `usage` too if the command line is wrong.
pub(crate) fn run<E: Display>(offer: Offer<'_>, usage: &str, perform: impl FnOnce(Task) -> Result<(), E>) -> ExitCode {
    let done = match parse(env::args().skip(1), offer) {
        Ok(task) => perform(task).map_err(|error| error.to_string()),
        Err(error) => Err(format!("{error}\n{usage}")),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// Parses the arguments without the program's name.
///
/// # Errors
/// The error text for an invalid argument.
fn parse(args: impl Iterator<Item = String>, offer: Offer<'_>) -> Result<Task, String> {
    let mut args = args;
    let mut filters = Vec::new();
    let mut sizes = Vec::new();
    let (mut runs, mut run_one) = (None, None);
    let (mut bench, mut quick, mut list, mut exact, mut ignored) = (false, false, false, false, false);
    while let Some(arg) = args.next() {
        let mut value = || args.next().ok_or_else(|| format!("{arg} needs a value"));
        match arg.as_str() {
            "--bench" => bench = true,
            "--quick" => quick = true,
            "--list" => list = true,
            "--exact" => exact = true,
            "--ignored" => ignored = true,
            "--n" => sizes.push(number(&value()?)?),
            "--runs" if offer.runs > 1 => runs = Some(number(&value()?)?),
            "--run" => run_one = Some(value()?),
            "--format" | "--color" | "--test-threads" => drop(value()?),
            // Flags of the test harness that have no meaning here.
            "--test" | "--nocapture" | "--include-ignored" | "--quiet" | "-q" => {}
            flag if flag.starts_with('-') => return Err(format!("unknown argument {flag}")),
            filter => filters.push(filter.to_owned()),
        }
    }
    if let Some(workload) = run_one {
        let name =
            offer.names.iter().find(|name| **name == workload).ok_or_else(|| format!("no workload {workload}"))?;
        let n = sizes.first().copied().ok_or("--run needs --n")?;
        return Ok(Task::RunOne { name, n });
    }
    let chosen = |name: &str| {
        let fits = |filter: &String| if exact { name == filter } else { name.contains(filter.as_str()) };
        filters.is_empty() || filters.iter().any(fits)
    };
    let names: Vec<&'static str> = offer.names.iter().copied().filter(|name| chosen(name)).collect();
    if ignored {
        return Ok(Task::List { names: Vec::new() });
    }
    if list {
        return Ok(Task::List { names });
    }
    if !bench {
        return Ok(Task::Try { names });
    }
    if sizes.is_empty() {
        sizes = offer.sizes.iter().copied().filter(|n| !quick || *n <= QUICK).collect();
    }
    Ok(Task::Measure(Plan { names, sizes, runs: runs.unwrap_or(if quick { 1 } else { offer.runs }) }))
}

fn number(text: &str) -> Result<usize, String> {
    match text.replace('_', "").parse() {
        Ok(0) | Err(_) => Err(format!("{text:?} is not a positive number")),
        Ok(number) => Ok(number),
    }
}
