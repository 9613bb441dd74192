//! The settings of a probe, with defaults. Pure.

use std::time::Duration;

use k8s_openapi::api::core::v1::Probe;

use super::ProbeKind;
use crate::time::Time;

/// The settings of one probe with defaults applied (core/v1 `Probe`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProbeSettings {
    /// The kind of the probe.
    pub kind: ProbeKind,
    /// The delay between the container's start and the first probe.
    pub initial_delay: Duration,
    /// The time between the starts of two probes, at least one second.
    pub period: Duration,
    /// The time limit of one probe, at least one second.
    pub timeout: Duration,
    /// The number of consecutive successes for a success.
    pub success_threshold: u32,
    /// The number of consecutive failures for a failure.
    pub failure_threshold: u32,
    /// Liveness and startup probes of a new run start at a whole number of periods after this time.
    pub anchor: Time,
}

impl ProbeSettings {
    /// The settings of a probe that is added at `now`. Zero and missing values get the API's defaults.
    pub fn new(kind: ProbeKind, probe: &Probe, now: Time) -> Self {
        let positive = |value: Option<i32>, default: u32| {
            value.and_then(|value| u32::try_from(value).ok()).filter(|value| *value > 0).unwrap_or(default)
        };
        let seconds = |value: Option<i32>, default: u32| Duration::from_secs(positive(value, default).into());
        ProbeSettings {
            kind,
            initial_delay: seconds(probe.initial_delay_seconds, 0),
            period: seconds(probe.period_seconds, 10),
            timeout: seconds(probe.timeout_seconds, 1),
            success_threshold: positive(probe.success_threshold, 1),
            failure_threshold: positive(probe.failure_threshold, 3),
            anchor: now,
        }
    }

    /// When to probe a run for the first time, at `earliest` or later.
    ///
    /// Readiness is probed at once: the container is not ready before a probe passes, so an early result can only help.
    /// Liveness and startup probes follow a schedule that began when the pod was set up, right before its containers
    /// started. The first probe therefore comes nearly one period after the start, as with the kubelet's ticker (1.36).
    /// A probe right after the start would shorten the time that the container has to start (`failureThreshold` x
    /// `periodSeconds`), and would kill a container with a threshold of 1 at once.
    pub(super) fn first(&self, earliest: Time) -> Time {
        match self.kind {
            ProbeKind::Readiness => earliest,
            ProbeKind::Startup | ProbeKind::Liveness => {
                let period = self.period.as_nanos();
                let ticks = earliest.since(self.anchor).as_nanos().div_ceil(period);
                let after = u64::try_from(ticks.saturating_mul(period)).unwrap_or(u64::MAX);
                self.anchor + Duration::from_nanos(after)
            }
        }
    }
}
