//! The thresholds at which a node that lacks a resource evicts pods. Pure.

use std::time::Duration;

use super::signals::Signal;
use super::thresholds::{EvictionGracePeriods, EvictionThresholds, MinimumReclaim, ThresholdValue};

/// The thresholds at which a node that lacks a resource evicts pods. The default is the kubelet's (1.36): the default
/// [`EvictionThresholds`] as hard thresholds, and no soft ones.
#[derive(Clone, Debug, PartialEq)]
#[must_use]
pub struct EvictionPolicy {
    pub(super) thresholds: Vec<Threshold>,
    /// The longest grace period of a pod that is evicted because of a soft threshold.
    pub(super) max_pod_grace: Duration,
    /// How long a condition of the node lasts after its threshold was last met.
    pub(super) transition: Duration,
    unobserved: Vec<String>,
}

/// One threshold.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Threshold {
    pub(super) signal: Signal,
    pub(super) value: ThresholdValue,
    /// How long the threshold must be met until a pod is evicted. Zero for a hard threshold.
    pub(super) grace: Duration,
    /// How far above the threshold the signal must rise until no more pods are evicted.
    pub(super) reclaim: Option<ThresholdValue>,
}

/// A soft threshold has no grace period.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the soft eviction threshold of {signal} has no grace period: add {signal}=TIME to --eviction-soft-grace-period"
)]
#[non_exhaustive]
pub struct MissingGracePeriod {
    /// The signal.
    pub signal: &'static str,
}

impl EvictionPolicy {
    /// A policy with these hard thresholds: a pod is evicted as soon as one of them is met.
    pub fn new(hard: EvictionThresholds) -> Self {
        let EvictionThresholds { values, unobserved } = hard;
        let hard = |(signal, value)| Threshold { signal, value, grace: Duration::ZERO, reclaim: None };
        EvictionPolicy {
            thresholds: values.into_iter().map(hard).collect(),
            max_pod_grace: Duration::ZERO,
            transition: Duration::from_secs(300),
            unobserved,
        }
    }

    /// Adds soft thresholds: a pod is evicted when one of them has been met for its grace period. A soft threshold with a grace
    /// period of zero is a hard one, as upstream (`isHardEvictionThreshold`, kubelet 1.36).
    ///
    /// # Errors
    /// [`MissingGracePeriod`] if a soft threshold has no grace period.
    pub fn soft(
        mut self,
        soft: EvictionThresholds,
        periods: &EvictionGracePeriods,
    ) -> Result<Self, MissingGracePeriod> {
        for (signal, value) in soft.values {
            let of_signal = periods.0.iter().find(|(name, _)| *name == signal);
            let (_, grace) = *of_signal.ok_or(MissingGracePeriod { signal: signal.as_str() })?;
            self.thresholds.push(Threshold { signal, value, grace, reclaim: None });
        }
        self.unobserved.extend(soft.unobserved);
        Ok(self)
    }

    /// How far above its threshold each signal must rise until no more pods are evicted.
    pub fn minimum_reclaim(mut self, reclaim: MinimumReclaim) -> Self {
        for threshold in &mut self.thresholds {
            threshold.reclaim =
                reclaim.0.iter().find(|(signal, _)| *signal == threshold.signal).map(|(_, value)| value.clone());
        }
        self
    }

    /// The longest grace period of a pod that is evicted because of a soft threshold. By default zero, which means one second.
    pub fn max_pod_grace(mut self, grace: Duration) -> Self {
        self.max_pod_grace = grace;
        self
    }

    /// How long a condition of the node lasts after its threshold was last met (upstream `evictionPressureTransitionPeriod`). By
    /// default 300 s.
    pub fn pressure_transition(mut self, period: Duration) -> Self {
        self.transition = period;
        self
    }

    /// The signals of the thresholds that a node does not observe, such as `containerfs.available`. Their thresholds have no
    /// effect.
    pub fn unobserved(&self) -> &[String] {
        &self.unobserved
    }

    /// The bytes of memory that the hard thresholds keep free on a node with this capacity, and that pods cannot request
    /// (upstream `hardEvictionReservation`, kubelet 1.36).
    pub fn free_memory(&self, capacity: u64) -> i64 {
        self.free(Signal::MemoryAvailable, capacity)
    }

    /// The bytes of disk space that the hard thresholds keep free on a disk of this size, and that pods cannot request.
    pub fn free_storage(&self, capacity: u64) -> i64 {
        self.free(Signal::NodeFsAvailable, capacity)
    }

    fn free(&self, signal: Signal, capacity: u64) -> i64 {
        let hard = self.thresholds.iter().find(|it| it.signal == signal && it.grace.is_zero());
        hard.map_or(0, |threshold| threshold.value.of_capacity(capacity).units())
    }
}

impl Default for EvictionPolicy {
    fn default() -> Self {
        EvictionPolicy::new(EvictionThresholds::default())
    }
}

impl From<EvictionThresholds> for EvictionPolicy {
    fn from(hard: EvictionThresholds) -> Self {
        EvictionPolicy::new(hard)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_soft_threshold_needs_a_grace_period() {
        let soft: EvictionThresholds = "memory.available<1Gi,nodefs.available<20%".parse().unwrap();
        let with = |periods: &str| EvictionPolicy::default().soft(soft.clone(), &periods.parse().unwrap());
        let error = with("memory.available=1m").unwrap_err();
        assert!(error.to_string().contains("nodefs.available=TIME"), "{error}");
        let policy = with("memory.available=1m,nodefs.available=2m,pid.available=1m").unwrap();
        assert_eq!(policy.thresholds.len(), 7);
    }

    #[test]
    fn hard_thresholds_reserve_memory_and_disk_space() {
        let policy = EvictionPolicy::default();
        assert_eq!(policy.free_memory(8 << 30), 100 << 20);
        assert_eq!(policy.free_storage(1000), 100);
        let soft = EvictionPolicy::new(EvictionThresholds::none());
        let soft = soft.soft("memory.available<1Gi".parse().unwrap(), &"memory.available=1m".parse().unwrap()).unwrap();
        assert_eq!((soft.free_memory(8 << 30), soft.free_storage(1000)), (0, 0));
    }
}
