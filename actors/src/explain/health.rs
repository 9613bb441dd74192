//! The health of a pod or a container, in one of four words. Pure.

use k8s_openapi::api::core::v1::ContainerStatus;
use serde::Serialize;

use crate::containers::restart::Exit;

/// The health of a pod or a container, the worst first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub enum Health {
    /// Something failed. An operator may have to act.
    Failing,
    /// It waits for something that needs no operator.
    Waiting,
    /// It runs, and it is ready if it has to be.
    Healthy,
    /// It has ended, and it succeeded.
    Finished,
}

impl Health {
    /// The health of a container. An ephemeral container has no probes and is never ready (API field
    /// `ephemeralContainerStatuses`).
    pub fn of(have: &ContainerStatus, is_ephemeral: bool) -> Self {
        let Some(state) = &have.state else { return Health::Waiting };
        match (&state.running, &state.terminated) {
            (Some(_), _) if have.ready || is_ephemeral => Health::Healthy,
            (None, Some(end)) if Exit::from(end).is_success() => Health::Finished,
            (None, Some(end)) if Exit::from(end).is_for_resize() => Health::Waiting,
            (None, Some(_)) => Health::Failing,
            (None, None) if is_stuck(have) => Health::Failing,
            (Some(_) | None, _) => Health::Waiting,
        }
    }
}

/// Whether a container waits because something went wrong.
pub fn is_stuck(have: &ContainerStatus) -> bool {
    let waiting = have.state.as_ref().and_then(|state| state.waiting.as_ref());
    let reason = waiting.and_then(|waiting| waiting.reason.as_deref());
    !matches!(reason, None | Some("" | "ContainerCreating" | "PodInitializing"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn container_health_follows_from_its_state() {
        use Health::{Failing, Finished, Healthy, Waiting};
        let waiting = |reason: &str| json!({"waiting": {"reason": reason}});
        let ended = |code: i32| json!({"terminated": {"exitCode": code}});
        let cases = [
            (json!({"running": {}}), true, false, Healthy),
            (json!({"running": {}}), false, false, Waiting),
            (json!({"running": {}}), false, true, Healthy),
            (ended(0), false, false, Finished),
            (ended(3), false, false, Failing),
            (json!({"terminated": {"exitCode": 0, "reason": "StoppedForResize"}}), false, false, Waiting),
            (waiting("ContainerCreating"), false, false, Waiting),
            (waiting("PodInitializing"), false, false, Waiting),
            (waiting("CrashLoopBackOff"), false, false, Failing),
            (json!({}), false, false, Waiting),
        ];
        for (state, ready, is_ephemeral, health) in cases {
            let have =
                json!({"name": "c", "image": "", "imageID": "", "restartCount": 0, "ready": ready, "state": state});
            let have: ContainerStatus = serde_json::from_value(have).unwrap();
            assert_eq!(Health::of(&have, is_ephemeral), health, "{have:?}");
        }
    }
}
