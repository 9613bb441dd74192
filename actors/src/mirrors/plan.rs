//! Decides what to do about one mirror pod. Pure.

use std::sync::Arc;

use crate::pod::{HASH_ANNOTATION, MIRROR_ANNOTATION, PodObject};

/// What the node knows about one full name.
#[derive(Clone, Debug, Default)]
pub(super) struct Facts {
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

/// What has to be done. After [`Delete`](Action::Delete), the plan is made again without the mirror pod.
#[derive(Clone, Debug)]
pub(super) enum Action {
    /// The mirror pod is as it should be.
    Nothing,
    /// Delete this mirror pod.
    Delete(Arc<PodObject>),
    /// Create the mirror pod of this static pod.
    Create(Arc<PodObject>),
}

/// Decides what has to be done about a mirror pod.
pub(super) fn plan(facts: &Facts) -> Action {
    // The mirror pod shows the pod that stops. The next static pod of this name starts after that.
    if facts.is_terminating {
        return Action::Nothing;
    }
    match (&facts.static_pod, &facts.mirror) {
        (Some(pod), Some(mirror)) if mirror.is_deleting() || !is_mirror_of(mirror, pod) => {
            Action::Delete(mirror.clone())
        }
        (Some(pod), None) if facts.are_mirrors_known => Action::Create(pod.clone()),
        (None, Some(mirror)) if facts.are_sources_ready => Action::Delete(mirror.clone()),
        (Some(_), Some(_)) | (Some(_), None) | (None, Some(_)) | (None, None) => Action::Nothing,
    }
}

/// Whether a mirror pod was made from this version of the static pod.
pub(crate) fn is_mirror_of(mirror: &PodObject, pod: &PodObject) -> bool {
    mirror.annotation(MIRROR_ANNOTATION) == Some(&*hash(pod))
}

/// The hash of a static pod's manifest.
pub(super) fn hash(pod: &PodObject) -> String {
    pod.annotation(HASH_ANNOTATION).map_or_else(|| pod.uid().to_string(), str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{PodBuilder, pod};

    fn mirror(hash: &str) -> PodBuilder {
        pod("web").uid("mirror").mirror().annotation(MIRROR_ANNOTATION, hash)
    }

    #[derive(Debug, PartialEq)]
    enum Is {
        Nothing,
        Deleted,
        Created,
    }

    fn planned(static_hash: Option<&str>, mirror: Option<PodBuilder>, edit: impl FnOnce(&mut Facts)) -> Is {
        let static_pod = static_hash.map(|hash| pod("web").static_pod().annotation(HASH_ANNOTATION, hash).build());
        let mut facts = Facts {
            static_pod,
            mirror: mirror.map(PodBuilder::build),
            is_terminating: false,
            are_sources_ready: true,
            are_mirrors_known: true,
        };
        edit(&mut facts);
        match plan(&facts) {
            Action::Nothing => Is::Nothing,
            Action::Delete(pod) => {
                assert_eq!(pod.uid().to_string(), "mirror");
                Is::Deleted
            }
            Action::Create(pod) => {
                assert!(pod.is_static());
                Is::Created
            }
        }
    }

    #[test]
    fn a_static_pod_has_one_mirror_pod_with_its_hash() {
        let as_it_is = |_: &mut Facts| {};
        assert_eq!(planned(Some("1"), None, as_it_is), Is::Created);
        assert_eq!(planned(Some("1"), Some(mirror("1")), as_it_is), Is::Nothing);
        assert_eq!(planned(Some("1"), Some(mirror("2")), as_it_is), Is::Deleted, "the manifest has changed");
        assert_eq!(planned(Some("1"), Some(mirror("1").deleting(30)), as_it_is), Is::Deleted, "a user deleted it");
        assert_eq!(planned(None, Some(mirror("1")), as_it_is), Is::Deleted, "its manifest is gone");
        assert_eq!(planned(None, None, as_it_is), Is::Nothing);
    }

    // POD-K8, POD-S50
    #[test]
    fn a_mirror_pod_stays_while_its_static_pod_stops() {
        let stops = |facts: &mut Facts| facts.is_terminating = true;
        assert_eq!(planned(None, Some(mirror("1")), stops), Is::Nothing);
        assert_eq!(planned(Some("2"), Some(mirror("1")), stops), Is::Nothing);
        assert_eq!(planned(Some("2"), None, stops), Is::Nothing);
    }

    #[test]
    fn nothing_is_concluded_from_a_source_that_has_not_delivered() {
        assert_eq!(planned(None, Some(mirror("1")), |facts| facts.are_sources_ready = false), Is::Nothing);
        assert_eq!(planned(Some("1"), None, |facts| facts.are_mirrors_known = false), Is::Nothing);
        let one_missing = |facts: &mut Facts| facts.are_sources_ready = false;
        assert_eq!(planned(Some("1"), None, one_missing), Is::Created, "another source does not matter");
        assert_eq!(planned(Some("1"), Some(mirror("2")), one_missing), Is::Deleted);
    }
}
