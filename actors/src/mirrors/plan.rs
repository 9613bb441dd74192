//! Decides whether to create or delete one mirror pod. Pure.

use std::sync::Arc;

use crate::pod::PodObject;

/// The facts about one full name that decide on its mirror pod.
#[derive(Clone, Debug, Default)]
pub(super) struct MirrorFacts {
    /// The static pod that a source desires.
    pub(super) static_pod: Option<Arc<PodObject>>,
    /// The newest known version of the mirror pod.
    pub(super) mirror: Option<Arc<PodObject>>,
    /// Whether containers of a static pod of this name are being stopped.
    pub(super) is_terminating: bool,
    /// Whether every source has delivered, so that a mirror pod without a static pod is an orphan.
    pub(super) are_sources_ready: bool,
    /// Whether the API source has delivered, so that a mirror pod that is not known does not exist.
    pub(super) are_mirrors_known: bool,
}

/// The next action for a mirror pod. After [`Delete`](MirrorAction::Delete), the plan is made again without the mirror pod.
#[derive(Clone, Debug)]
pub(super) enum MirrorAction {
    /// The mirror pod is up to date.
    Nothing,
    /// Delete this mirror pod.
    Delete(Arc<PodObject>),
    /// Create the mirror pod of this static pod.
    Create(Arc<PodObject>),
}

/// Decides on the next action for a mirror pod.
pub(super) fn plan(facts: &MirrorFacts) -> MirrorAction {
    // The mirror pod has the status of the pod that stops. The next static pod of this name starts after that pod has stopped.
    if facts.is_terminating {
        return MirrorAction::Nothing;
    }
    match (&facts.static_pod, &facts.mirror) {
        (Some(pod), Some(mirror)) if mirror.is_deleting() || !mirror.is_mirror_of(pod) => {
            MirrorAction::Delete(mirror.clone())
        }
        (Some(pod), None) if facts.are_mirrors_known => MirrorAction::Create(pod.clone()),
        (None, Some(mirror)) if facts.are_sources_ready => MirrorAction::Delete(mirror.clone()),
        (Some(_), Some(_)) | (Some(_), None) | (None, Some(_)) | (None, None) => MirrorAction::Nothing,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::{HASH_ANNOTATION, MIRROR_ANNOTATION};
    use crate::testing::{PodBuilder, pod};

    fn mirror(hash: &str) -> PodBuilder {
        pod("web").uid("mirror").mirror().annotation(MIRROR_ANNOTATION, hash)
    }

    #[derive(Debug, PartialEq)]
    enum PlannedAction {
        Nothing,
        Deleted,
        Created,
    }

    fn planned(
        static_hash: Option<&str>,
        mirror: Option<PodBuilder>,
        edit: impl FnOnce(&mut MirrorFacts),
    ) -> PlannedAction {
        let static_pod = static_hash.map(|hash| pod("web").static_pod().annotation(HASH_ANNOTATION, hash).build());
        let mut facts = MirrorFacts {
            static_pod,
            mirror: mirror.map(PodBuilder::build),
            is_terminating: false,
            are_sources_ready: true,
            are_mirrors_known: true,
        };
        edit(&mut facts);
        match plan(&facts) {
            MirrorAction::Nothing => PlannedAction::Nothing,
            MirrorAction::Delete(pod) => {
                assert_eq!(pod.uid().to_string(), "mirror");
                PlannedAction::Deleted
            }
            MirrorAction::Create(pod) => {
                assert!(pod.is_static());
                PlannedAction::Created
            }
        }
    }

    #[test]
    fn a_static_pod_has_one_mirror_pod_with_its_hash() {
        let as_it_is = |_: &mut MirrorFacts| {};
        assert_eq!(planned(Some("1"), None, as_it_is), PlannedAction::Created);
        assert_eq!(planned(Some("1"), Some(mirror("1")), as_it_is), PlannedAction::Nothing);
        assert_eq!(planned(Some("1"), Some(mirror("2")), as_it_is), PlannedAction::Deleted, "the manifest has changed");
        assert_eq!(
            planned(Some("1"), Some(mirror("1").deleting(30)), as_it_is),
            PlannedAction::Deleted,
            "a user deleted it"
        );
        assert_eq!(planned(None, Some(mirror("1")), as_it_is), PlannedAction::Deleted, "its manifest is gone");
        assert_eq!(planned(None, None, as_it_is), PlannedAction::Nothing);
    }

    // POD-K8, POD-S50
    #[test]
    fn a_mirror_pod_stays_while_its_static_pod_stops() {
        let stops = |facts: &mut MirrorFacts| facts.is_terminating = true;
        assert_eq!(planned(None, Some(mirror("1")), stops), PlannedAction::Nothing);
        assert_eq!(planned(Some("2"), Some(mirror("1")), stops), PlannedAction::Nothing);
        assert_eq!(planned(Some("2"), None, stops), PlannedAction::Nothing);
    }

    #[test]
    fn nothing_is_concluded_from_a_source_that_has_not_delivered() {
        assert_eq!(planned(None, Some(mirror("1")), |facts| facts.are_sources_ready = false), PlannedAction::Nothing);
        assert_eq!(planned(Some("1"), None, |facts| facts.are_mirrors_known = false), PlannedAction::Nothing);
        let one_missing = |facts: &mut MirrorFacts| facts.are_sources_ready = false;
        assert_eq!(planned(Some("1"), None, one_missing), PlannedAction::Created, "another source does not matter");
        assert_eq!(planned(Some("1"), Some(mirror("2")), one_missing), PlannedAction::Deleted);
    }
}
