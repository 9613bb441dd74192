//! The numbers of a probe, defaulted.

use std::time::Duration;

use k8s_openapi::api::core::v1::Probe;

use super::ProbeKind;
use crate::time::Time;

/// The numbers of one probe, defaults filled in (core/v1 `Probe`), and where its clock starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProbeSettings {
    /// What the probe is for.
    pub kind: ProbeKind,
    /// No probe earlier than this after the container's start.
    pub initial_delay: Duration,
    /// From the start of one probe to that of the next, at least one second.
    pub period: Duration,
    /// How long one probe may take, at least one second.
    pub timeout: Duration,
    /// Successes in a row that make a success.
    pub success_threshold: u32,
    /// Failures in a row that make a failure.
    pub failure_threshold: u32,
    /// Liveness and startup probes of a new run begin at a whole number of periods after this instant.
    pub anchor: Time,
}

impl ProbeSettings {
    /// The settings of a probe that is first heard of at `now`. Zero and missing numbers become the API's defaults.
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
    /// Readiness is asked at once: it stands at failure anyway, so an early answer can only help. Liveness and startup
    /// keep to a beat that began when the pod was first set up, a moment before its containers started, so that the
    /// first probe comes nearly one period after the start (upstream's ticker does the same, kubelet 1.36). Asking at
    /// once would take that period away from what a container may need to start (`failureThreshold` x `periodSeconds`),
    /// and kill one with a threshold of 1 in its first millisecond.
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
