//! The average number of cores that the node, its pods and their containers use, from two measurements of their CPU time.

use std::collections::HashMap;
use std::time::Duration;

use parking_lot::Mutex;

use podwright_host::stats::{RuntimeUsage, Usage};
use podwright_model::ids::{ContainerId, PodUid};
use podwright_model::time::Time;

/// The shortest time between two measurements. A shorter time says more about the kernel's clock ticks than about the processes.
pub(super) const SHORTEST: Duration = Duration::from_millis(500);
/// The longest time between two measurements. A longer time says little about the present.
const LONGEST: Duration = Duration::from_secs(120);

/// Whose CPU time is measured.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Consumer {
    Node,
    Agent,
    AllPods,
    Pod(PodUid),
    Container(ContainerId),
}

/// The last measurement of each consumer.
#[derive(Debug, Default)]
pub(crate) struct CpuRates(Mutex<HashMap<Consumer, Sample>>);

/// The CPU time of a consumer at one time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Sample {
    at: Time,
    cpu: u64,
    /// The cores in use before that time, in billionths; `None` for the first measurement.
    rate: Option<u64>,
}

impl CpuRates {
    /// Sets the cores in use since the last measurement of a consumer. Returns whether they are known. If they are not, the usage has
    /// what the runtime reports, or 0, as that of a kubelet.
    pub(super) fn set(&self, of: Consumer, usage: &mut Usage) -> bool {
        let Some(cpu) = usage.cpu else { return false };
        let mut last = self.0.lock();
        let sample = next(last.get(&of).copied(), usage.at, cpu);
        last.insert(of, sample);
        usage.nano_cores = Some(sample.rate.or(usage.nano_cores).unwrap_or(0));
        sample.rate.is_some()
    }

    /// Sets the cores in use of containers and pods.
    pub(super) fn set_all(&self, usage: &mut RuntimeUsage) {
        for container in &mut usage.containers {
            self.set(Consumer::Container(container.id.clone()), &mut container.usage);
        }
        for (uid, pod) in &mut usage.pods {
            self.set(Consumer::Pod(uid.clone()), pod);
        }
        if let Some(all) = &mut usage.all_pods {
            self.set(Consumer::AllPods, all);
        }
    }

    /// Forgets the consumers whose last measurement is too old for a rate.
    pub(super) fn forget_old(&self, now: Time) {
        self.0.lock().retain(|_, sample| now.since(sample.at) < LONGEST);
    }
}

/// The sample after a measurement.
fn next(last: Option<Sample>, at: Time, cpu: u64) -> Sample {
    match last {
        // The CPU time of a consumer that starts again begins with 0, and a clock may be set back.
        Some(last) if cpu >= last.cpu && at >= last.at && at.since(last.at) < LONGEST => {
            let time = at.since(last.at);
            if time < SHORTEST {
                return last;
            }
            let rate = u128::from(cpu - last.cpu) * 1_000_000_000 / time.as_nanos();
            Sample { at, cpu, rate: Some(u64::try_from(rate).unwrap_or(u64::MAX)) }
        }
        _ => Sample { at, cpu, rate: None },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn usage(millis: u64, cpu: u64) -> Usage {
        Usage { at: Time::from_nanos(millis * 1_000_000), cpu: Some(cpu), ..Usage::default() }
    }

    #[test]
    fn two_measurements_give_the_cores_in_use() {
        let rates = CpuRates::default();
        // When each measurement is made in milliseconds, the CPU time in nanoseconds, and the expected rate.
        for (millis, cpu, expected) in [
            (1_000, 5 * SECOND, None),
            (3_000, 6 * SECOND, Some(SECOND / 2)),
            // Too early for another rate.
            (3_400, 7 * SECOND, Some(SECOND / 2)),
            (4_000, 8 * SECOND, Some(2 * SECOND)),
            // The container has started again.
            (9_000, SECOND, None),
            (10_000, SECOND, Some(0)),
            // The last measurement is old.
            (131_000, 2 * SECOND, None),
            // The clock was set back.
            (100_000, 3 * SECOND, None),
            (102_000, 3 * SECOND, Some(0)),
        ] {
            let mut measured = usage(millis, cpu);
            let is_known = rates.set(Consumer::Node, &mut measured);
            assert_eq!((is_known, measured.nano_cores), (expected.is_some(), Some(expected.unwrap_or(0))), "{millis}");
        }
    }

    #[test]
    fn each_consumer_has_a_rate_of_its_own() {
        let rates = CpuRates::default();
        let consumers = || [Consumer::Agent, Consumer::Pod(PodUid::new("a")), Consumer::Container("a".into())];
        for (consumer, cpu) in consumers().into_iter().zip(1..) {
            assert!(!rates.set(consumer, &mut usage(1_000, cpu * SECOND)));
        }
        for (consumer, cpu) in consumers().into_iter().zip(1..) {
            let mut measured = usage(2_000, 2 * cpu * SECOND);
            assert!(rates.set(consumer, &mut measured));
            assert_eq!(measured.nano_cores, Some(cpu * SECOND));
        }
        rates.forget_old(Time::from_secs(300));
        assert!(rates.0.lock().is_empty());
    }

    #[test]
    fn rate_of_the_runtime_counts_until_there_are_two_measurements() {
        let rates = CpuRates::default();
        let mut reported = Usage { nano_cores: Some(7), ..usage(1_000, 0) };
        assert!(!rates.set(Consumer::AllPods, &mut reported));
        assert_eq!(reported.nano_cores, Some(7));
        let mut reported = Usage { nano_cores: Some(7), ..usage(2_000, SECOND) };
        assert!(rates.set(Consumer::AllPods, &mut reported));
        assert_eq!(reported.nano_cores, Some(SECOND));
        let mut unknown = Usage { cpu: None, ..usage(3_000, 0) };
        assert!(!rates.set(Consumer::AllPods, &mut unknown));
        assert_eq!(unknown.nano_cores, None);
    }
}
