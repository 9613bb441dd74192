//! How long a container may take to stop, and for whom it waits first.

#[cfg(test)]
mod tests;

use std::time::Duration;

use k8s_openapi::api::core::v1::Probe;

use crate::pod::{ContainerKind, PodObject, is_sidecar};

use super::definition::Definition;
use super::plan::KillReason;

/// The shortest time between asking a container to stop and killing it (upstream `minimumGracePeriodInSeconds`, kubelet
/// 1.36).
pub const SHORTEST_STOP: Duration = Duration::from_secs(2);

/// The grace of one stop: pre-stop hook, waiting for others, and the container's own end together.
///
/// `over` replaces all else. Then the deletion grace of the pod counts; then, for a pod whose spec has a termination
/// grace, the one of the probe that failed (which may be longer) or the spec's.
pub fn grace(
    pod: Option<&PodObject>,
    container: Option<&Definition<'_>>,
    reason: KillReason,
    over: Option<Duration>,
) -> Duration {
    if let Some(over) = over {
        return over;
    }
    let Some(pod) = pod else { return SHORTEST_STOP };
    if let Some(seconds) = pod.deletion_grace() {
        return from_seconds(seconds);
    }
    let Some(spec) = pod.spec_grace() else { return SHORTEST_STOP };
    let failed = match reason {
        KillReason::LivenessFailed => container.and_then(|container| container.liveness),
        KillReason::StartupFailed => container.and_then(|container| container.startup),
        KillReason::PodStops
        | KillReason::HashChanged
        | KillReason::StateUnknown
        | KillReason::PostStartFailed
        | KillReason::Outlived
        | KillReason::RestartAll => None,
    };
    from_seconds(failed.and_then(probe_grace).unwrap_or(spec))
}

/// Whose end a container waits for when its whole pod stops, by name: a sidecar for every regular container and for the
/// sidecars after it, so that sidecars end last and in reverse order. Who is not among the stopping is not waited for.
pub fn waits_for<'a>(pod: &'a PodObject, name: &str) -> Vec<&'a str> {
    let Some(place) = pod.init_containers().iter().position(|c| c.name == name && is_sidecar(c)) else {
        return Vec::new();
    };
    let later = pod.init_containers()[place + 1..].iter().filter(|c| is_sidecar(c));
    let regular = Definition::all(pod).filter(|c| c.kind == ContainerKind::Regular).map(|c| c.name);
    regular.chain(later.map(|c| c.name.as_str())).collect()
}

fn probe_grace(probe: &Probe) -> Option<i64> {
    probe.termination_grace_period_seconds
}

fn from_seconds(seconds: i64) -> Duration {
    Duration::from_secs(u64::try_from(seconds).unwrap_or(0))
}
