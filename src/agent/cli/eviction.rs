//! The flags for evictions.

use std::collections::BTreeMap;
use std::time::Duration;

use clap::Args;

use super::time::time_span;
use podwright_actors::eviction::{
    EvictionGracePeriods, EvictionPolicy, EvictionThresholds, MinimumReclaim, MissingGracePeriod,
};

/// When pods are evicted because the node lacks a resource. The signals are memory.available, nodefs.available and
/// nodefs.inodesFree (the disk of volumes and logs), imagefs.available and imagefs.inodesFree (the disk of images), and
/// pid.available.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Options for evictions")]
pub(crate) struct EvictionArgs {
    /// Evict a pod when less than this is left. nodefs is the disk of volumes and logs, imagefs that of images. "" for never.
    /// Static and critical pods are never evicted.
    #[arg(long, value_name = "SIGNAL<QUANTITY,...", default_value_t)]
    eviction_hard: EvictionThresholds,
    /// Evict a pod when less than this has been left for the time in --eviction-soft-grace-period.
    #[arg(long, value_name = "SIGNAL<QUANTITY,...", default_value = "", hide_default_value = true)]
    eviction_soft: EvictionThresholds,
    /// The time for each signal of --eviction-soft, such as memory.available=1m30s.
    #[arg(long, value_name = "SIGNAL=TIME,...", default_value = "", hide_default_value = true)]
    eviction_soft_grace_period: EvictionGracePeriods,
    /// The longest grace period in seconds of a pod that is evicted because of --eviction-soft. Other evicted pods have one
    /// second.
    #[arg(long, value_name = "SECONDS", default_value_t = 0, allow_negative_numbers = true, value_parser = longest_grace)]
    eviction_max_pod_grace_period: u32,
    /// Evict more pods until this much more than the threshold is left, such as imagefs.available=2Gi.
    #[arg(long, value_name = "SIGNAL=QUANTITY,...", default_value = "", hide_default_value = true)]
    eviction_minimum_reclaim: MinimumReclaim,
    /// Reject new pods for this long after a threshold was last met, such as 5m or 90s.
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = time_span)]
    eviction_pressure_transition_period: Duration,
}

fn longest_grace(text: &str) -> Result<u32, String> {
    text.parse().map_err(|_| match text.parse::<i64>() {
        Ok(..0) => format!(
            "{text} is negative, with which a kubelet leaves each pod its own grace period: write a large number of seconds such as 86400"
        ),
        _ => format!("{text:?} is not a number of seconds: write a whole number such as 30"),
    })
}

impl EvictionArgs {
    /// The policy of the flags.
    ///
    /// # Errors
    /// [`MissingGracePeriod`] if a soft threshold has no grace period.
    pub(crate) fn policy(&self) -> Result<EvictionPolicy, MissingGracePeriod> {
        let policy = EvictionPolicy::new(self.eviction_hard.clone())
            .soft(self.eviction_soft.clone(), &self.eviction_soft_grace_period)?
            .minimum_reclaim(self.eviction_minimum_reclaim.clone())
            .max_pod_grace(Duration::from_secs(self.eviction_max_pod_grace_period.into()))
            .pressure_transition(self.eviction_pressure_transition_period);
        Ok(policy)
    }

    /// The fields of `KubeletConfiguration`.
    pub(crate) fn configuration(&self) -> serde_json::Value {
        use podwright_model::texts::format::duration;
        let periods = self.eviction_soft_grace_period.iter().map(|(signal, time)| (signal, duration(time)));
        serde_json::json!({
            "evictionHard": self.eviction_hard.iter().collect::<BTreeMap<_, _>>(),
            "evictionSoft": self.eviction_soft.iter().collect::<BTreeMap<_, _>>(),
            "evictionSoftGracePeriod": periods.collect::<BTreeMap<_, _>>(),
            "evictionMinimumReclaim": self.eviction_minimum_reclaim.iter().collect::<BTreeMap<_, _>>(),
            "evictionMaxPodGracePeriod": self.eviction_max_pod_grace_period,
            "evictionPressureTransitionPeriod": duration(self.eviction_pressure_transition_period),
            "mergeDefaultEvictionSettings": false,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn negative_grace_period_is_refused_with_a_remedy() {
        assert_eq!(longest_grace("30"), Ok(30));
        for (text, says) in [("-1", "86400"), ("5m", "such as 30"), ("99999999999", "such as 30")] {
            assert!(longest_grace(text).unwrap_err().contains(says), "{text}");
        }
    }
}
