//! Grace periods and the stop order of containers. Pure.

#[cfg(test)]
mod tests;

use std::time::Duration;

use k8s_openapi::api::core::v1::Probe;

use crate::pod::{PodObject, is_sidecar};

use super::definition::Definition;
use super::plan::KillReason;

/// The shortest grace period of a container (the kubelet's `minimumGracePeriodInSeconds`, 1.36).
pub const SHORTEST_STOP: Duration = Duration::from_secs(2);

/// The grace period of one stop. It covers the pre-stop hook, the wait for other containers and the container's own
/// end.
///
/// `forced` replaces all other values. Otherwise the pod's deletion grace period counts. Otherwise, for a pod with a
/// `terminationGracePeriodSeconds`, the grace period of the probe that failed counts (it may be longer), or the pod's.
pub fn grace(
    pod: Option<&PodObject>,
    container: Option<&Definition<'_>>,
    reason: KillReason,
    forced: Option<Duration>,
) -> Duration {
    if let Some(forced) = forced {
        return forced;
    }
    let Some(pod) = pod else { return SHORTEST_STOP };
    if let Some(seconds) = pod.deletion_grace() {
        return from_seconds(seconds);
    }
    let Some(spec) = pod.spec_grace() else { return SHORTEST_STOP };
    let failed = match reason {
        KillReason::LivenessFailed => container.and_then(|container| container.liveness()),
        KillReason::StartupFailed => container.and_then(|container| container.startup()),
        KillReason::PodStops
        | KillReason::HashChanged
        | KillReason::StateUnknown
        | KillReason::PostStartFailed
        | KillReason::Superseded
        | KillReason::Resize
        | KillReason::RestartAll => None,
    };
    from_seconds(failed.and_then(probe_grace).unwrap_or(spec))
}

/// The names of the containers that must stop before the container `name` when the whole pod stops. A sidecar waits for
/// every regular container and for the sidecars after it, so sidecars stop last and in reverse order. Containers that
/// do not run are not waited for.
pub fn waits_for<'a>(pod: &'a PodObject, name: &str) -> Vec<&'a str> {
    let Some(index) = pod.init_containers().iter().position(|c| c.name == name && is_sidecar(c)) else {
        return Vec::new();
    };
    let later = pod.init_containers()[index + 1..].iter().filter(|c| is_sidecar(c));
    let regular = pod.containers().iter().map(|c| c.name.as_str());
    regular.chain(later.map(|c| c.name.as_str())).collect()
}

fn probe_grace(probe: &Probe) -> Option<i64> {
    probe.termination_grace_period_seconds
}

fn from_seconds(seconds: i64) -> Duration {
    Duration::from_secs(u64::try_from(seconds).unwrap_or(0))
}
