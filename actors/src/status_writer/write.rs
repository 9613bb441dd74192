//! Decides what to write for a pod. Pure.

use k8s_openapi::api::core::v1::PodStatus;
use serde_json::{Value, json};

use super::patch::status_patch;
use crate::pod::{Phase, PodObject};
use crate::status::{merge_for_api, normalize, same_for_node};
use crate::time::Time;

/// The facts about a pod that decide on the writes of its status.
pub(super) struct WriteFacts<'a> {
    /// The pod that the node runs.
    pub(super) pod: &'a PodObject,
    /// The newest known version of the API server's pod: the pod itself, or the mirror pod of a static pod.
    pub(super) api: &'a PodObject,
    /// The status that the node keeps.
    pub(super) status: &'a PodStatus,
    /// Whether the cleanup of the pod is complete.
    pub(super) is_finished: bool,
    /// Whether containers may still run or claims are still prepared.
    pub(super) is_held_back: bool,
}

/// The writes that a pod needs.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Writes {
    /// A strategic merge patch of the pod, if the API server does not have the status.
    pub(super) patch: Option<Value>,
    /// Whether to delete the pod once it has no patch, because it has ended and its deletion was requested.
    pub(super) delete: bool,
}

/// Decides on the writes that a pod needs.
///
/// # Errors
/// A status that cannot be serialized as JSON. No such status is known.
pub(super) fn next_writes(facts: &WriteFacts<'_>, now: Time) -> serde_json::Result<Writes> {
    let WriteFacts { pod, api, status, is_finished, is_held_back } = facts;
    let nothing = PodStatus::default();
    let api_status = api.status().unwrap_or(&nothing);
    let merged = merge_for_api(pod, api_status, PodStatus::clone(status), *is_held_back, now);
    let mut comparable = api_status.clone();
    normalize(pod, &mut comparable);
    let patch = if same_for_node(&comparable, &merged) {
        None
    } else {
        let status = status_patch(api_status, &merged)?;
        Some(json!({"metadata": {"uid": api.uid().to_string()}, "status": status}))
    };
    let has_ended = Phase::parse(api_status.phase.as_deref()).is_terminal();
    let delete = *is_finished && !is_held_back && has_ended && api.is_deleting() && !api.is_mirror();
    Ok(Writes { patch, delete })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{PodBuilder, pod};

    const NOW: Time = Time::from_secs(100);

    struct Case {
        api: PodBuilder,
        phase: &'static str,
        is_finished: bool,
        is_held_back: bool,
    }

    impl Case {
        fn next(self) -> Writes {
            let api = self.api.build();
            let status = PodStatus { phase: Some(self.phase.to_owned()), ..PodStatus::default() };
            let Case { is_finished, is_held_back, .. } = self;
            next_writes(&WriteFacts { pod: &api, api: &api, status: &status, is_finished, is_held_back }, NOW).unwrap()
        }
    }

    #[test]
    fn a_change_is_a_patch_with_the_uid_of_the_pod() {
        let case = Case { api: pod("web").phase("Pending"), phase: "Running", is_finished: false, is_held_back: true };
        let patch = Some(json!({"metadata": {"uid": "web"}, "status": {"phase": "Running"}}));
        assert_eq!(case.next(), Writes { patch, delete: false });
    }

    #[test]
    fn an_equal_status_is_not_written() {
        let case = Case { api: pod("web").phase("Running"), phase: "Running", is_finished: false, is_held_back: true };
        assert_eq!(case.next(), Writes::default());
    }

    // POD-S78
    #[test]
    fn a_terminal_phase_is_not_written_while_containers_may_run() {
        let case =
            |is_held_back| Case { api: pod("web").phase("Running"), phase: "Failed", is_finished: false, is_held_back };
        assert_eq!(case(true).next(), Writes::default());
        assert_eq!(case(false).next().patch.unwrap()["status"]["phase"], "Failed");
    }

    #[test]
    fn only_an_ended_and_cleaned_up_pod_whose_deletion_was_requested_is_deleted() {
        let is_deleted = |api: PodBuilder, phase, is_finished, is_held_back| {
            Case { api: api.phase(phase), phase: "Failed", is_finished, is_held_back }.next().delete
        };
        assert!(is_deleted(pod("web").deleting(30), "Failed", true, false));
        assert!(!is_deleted(pod("web").deleting(30), "Failed", false, false), "its cleanup is not complete");
        assert!(!is_deleted(pod("web").deleting(30), "Failed", true, true), "its containers may run");
        assert!(!is_deleted(pod("web"), "Failed", true, false), "nobody requested its deletion");
        assert!(!is_deleted(pod("web").mirror().deleting(30), "Failed", true, false), "it is a mirror pod");
        assert!(!is_deleted(pod("web").deleting(30), "Running", true, false), "its terminal phase is not written");
    }
}
