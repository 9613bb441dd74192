//! How a pod or a container fares, in one of four words.

use k8s_openapi::api::core::v1::ContainerStatus;
use serde::Serialize;

/// How a pod or a container fares, the worst first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Standing {
    /// Something failed, and it may need somebody.
    Trouble,
    /// It waits for something that should come by itself.
    Waits,
    /// It runs as it should.
    Well,
    /// It is over, and ended well.
    Over,
}

impl Standing {
    /// Of a container. One for debugging has no probes, and is never ready (API field `ephemeralContainerStatuses`).
    pub fn of(have: &ContainerStatus, is_ephemeral: bool) -> Self {
        let Some(state) = &have.state else { return Standing::Waits };
        match (&state.running, &state.terminated) {
            (Some(_), _) if have.ready || is_ephemeral => Standing::Well,
            (None, Some(end)) if end.exit_code == 0 => Standing::Over,
            (None, Some(_)) => Standing::Trouble,
            (None, None) if is_stuck(have) => Standing::Trouble,
            (Some(_) | None, _) => Standing::Waits,
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
    fn a_container_stands_by_its_state() {
        use Standing::{Over, Trouble, Waits, Well};
        let waiting = |reason: &str| json!({"waiting": {"reason": reason}});
        let ended = |code: i32| json!({"terminated": {"exitCode": code}});
        let cases = [
            (json!({"running": {}}), true, false, Well),
            (json!({"running": {}}), false, false, Waits),
            (json!({"running": {}}), false, true, Well),
            (ended(0), false, false, Over),
            (ended(3), false, false, Trouble),
            (waiting("ContainerCreating"), false, false, Waits),
            (waiting("PodInitializing"), false, false, Waits),
            (waiting("CrashLoopBackOff"), false, false, Trouble),
            (json!({}), false, false, Waits),
        ];
        for (state, ready, is_ephemeral, standing) in cases {
            let have =
                json!({"name": "c", "image": "", "imageID": "", "restartCount": 0, "ready": ready, "state": state});
            let have: ContainerStatus = serde_json::from_value(have).unwrap();
            assert_eq!(Standing::of(&have, is_ephemeral), standing, "{have:?}");
        }
    }
}
