//! How long a shutdown gives the pods of each priority. Pure.

use std::collections::BTreeMap;
use std::time::Duration;

use super::step::SLACK;
use super::times::WRITE_WITHIN;
use crate::pod::SYSTEM_CRITICAL_PRIORITY;

/// How long a graceful shutdown of the node gives its pods (upstream `shutdownGracePeriodByPodPriority`, kubelet 1.36).
///
/// Pods stop in groups, from the lowest priority to the highest. A pod belongs to the group with the highest priority that is
/// not above its own, or to the lowest group. A group without pods takes no time.
///
/// The default has no groups. Then graceful shutdown is disabled, and pods are left running.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct ShutdownConfig {
    /// The time of each group, by its priority.
    periods: BTreeMap<i32, Duration>,
}

impl ShutdownConfig {
    /// Two groups: normal pods stop within `total - critical`, and then critical pods (priority 2000000000 and above) stop
    /// within `critical`. If `total` is zero or less than `critical`, graceful shutdown is disabled (upstream
    /// `shutdownGracePeriod` and `shutdownGracePeriodCriticalPods`, kubelet 1.36).
    pub fn new(total: Duration, critical: Duration) -> Self {
        match total.checked_sub(critical) {
            Some(normal) if !total.is_zero() => {
                ShutdownConfig { periods: BTreeMap::from([(0, normal), (SYSTEM_CRITICAL_PRIORITY, critical)]) }
            }
            _ => ShutdownConfig::default(),
        }
    }

    /// One group for each priority, with the time of the group.
    pub fn by_priority(periods: BTreeMap<i32, Duration>) -> Self {
        ShutdownConfig { periods }
    }

    /// The time of each group, by its priority.
    pub fn periods(&self) -> &BTreeMap<i32, Duration> {
        &self.periods
    }

    /// The time of all groups together.
    pub fn total(&self) -> Duration {
        self.periods.values().fold(Duration::ZERO, |sum, time| sum.saturating_add(*time))
    }

    /// The longest time that a shutdown takes: the time of all groups, half a second in each group for the exits of killed
    /// containers, and two seconds to write the start and the end of the shutdown. A shutdown of the machine must be delayed for
    /// this long. A kubelet requests only the time of its groups, so the machine may shut down before the last group has stopped.
    pub fn longest(&self) -> Duration {
        let groups = u32::try_from(self.periods.len()).unwrap_or(u32::MAX);
        self.total().saturating_add(SLACK.saturating_mul(groups)).saturating_add(WRITE_WITHIN * 2)
    }

    /// Whether graceful shutdown is disabled, so that pods are left running.
    pub fn is_disabled(&self) -> bool {
        self.periods.is_empty()
    }
}

impl From<Duration> for ShutdownConfig {
    /// All pods stop together within this time. Zero disables graceful shutdown.
    fn from(total: Duration) -> Self {
        if total.is_zero() {
            ShutdownConfig::default()
        } else {
            ShutdownConfig { periods: BTreeMap::from([(0, total)]) }
        }
    }
}
