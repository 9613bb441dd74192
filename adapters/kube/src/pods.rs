//! The source of the pods that the API server binds to this node.
//!
//! The source sends a full set after the first list, and whenever a pod changes. Changes that arrive together become one set. A watch
//! that ends is started again at its last version. If the server no longer has that version, the source lists the pods again, and
//! removes the pods from the set that the list does not contain. While the server cannot be reached, the last set stays valid.

use std::collections::{BTreeMap, VecDeque};
use std::pin::pin;
use std::sync::Arc;

use futures_util::StreamExt;
use k8s_openapi::api::core::v1::Pod;
use kube::runtime::watcher::Event;
use kube::{Api, Client};
use podwright_kube_api::KubeError;
use podwright_model::ids::PodUid;
use podwright_model::pod::{InvalidPod, PodObject, SEEN_ANNOTATION, SOURCE_ANNOTATION};
use podwright_ports::{Clock, Severity, SourceInbox, SourceKind, SourceProblem, SourceSet, SourceUpdate};
use tokio_util::sync::CancellationToken;

use super::listing;

/// The largest number of changes that are sent as one set.
const BATCH: usize = 1000;
/// How many deleted pods are remembered.
const DELETED: usize = 1000;

/// Sends the pods of one node.
pub struct PodSource {
    client: Client,
    node: String,
    clock: Arc<dyn Clock>,
}

impl PodSource {
    /// The pods that are bound to `node`.
    pub fn new(client: Client, node: impl Into<String>, clock: Arc<dyn Clock>) -> Self {
        PodSource { client, node: node.into(), clock }
    }

    /// Sends sets until `stop` is cancelled or the node has stopped.
    pub async fn run(self, updates: Arc<dyn SourceInbox>, stop: CancellationToken) {
        let on_node = format!("spec.nodeName={}", self.node);
        let events = listing::watch(Api::<Pod>::all(self.client.clone()), Some(&on_node));
        let mut batches = pin!(events.ready_chunks(BATCH));
        let mut pods = PodSet::default();
        loop {
            let batch = tokio::select! {
                () = stop.cancelled() => return,
                batch = batches.next() => batch,
            };
            let Some(batch) = batch else { return };
            let now = self.clock.now().to_timestamp().to_string();
            let mut has_changed = false;
            let mut failure = None;
            for event in batch {
                match event {
                    Ok(event) => has_changed |= pods.apply(event, &now),
                    Err(error) => failure = Some(error),
                }
            }
            if let Some(error) = &failure {
                tracing::warn!(%error, "cannot watch the pods of the API server");
            }
            let update = match failure {
                _ if has_changed => SourceUpdate::from(pods.to_set()),
                Some(error) if !pods.is_listed => not_listed(&error),
                _ => continue,
            };
            if updates.send(update).await.is_err() {
                return;
            }
        }
    }
}

/// The update of a source that could not list its pods yet.
fn not_listed(error: &KubeError) -> SourceUpdate {
    let problem = SourceProblem {
        what: "API server".to_owned(),
        message: format!("cannot list the pods of this node: {error}"),
        pods: Vec::new(),
        severity: Severity::Fault,
    };
    SourceUpdate::NotYet { source: SourceKind::Api, problems: vec![problem] }
}

/// The pods of the API server. The events of a watch change this set.
#[derive(Default)]
struct PodSet {
    pods: BTreeMap<PodUid, Arc<PodObject>>,
    /// The pods of a list that is not complete yet.
    listing: BTreeMap<PodUid, Arc<PodObject>>,
    /// The pods whose deletion the server reported last. A UID is never used again, so an answer with such a pod is an old one, and the
    /// pod must not run again. A list without a pod proves less: that list may be the old one.
    deleted: VecDeque<PodUid>,
    is_listed: bool,
}

impl PodSet {
    /// Applies an event. Returns whether the set has changed. `now` is the time at which a new pod of the event is first seen.
    fn apply(&mut self, event: Event<Pod>, now: &str) -> bool {
        match event {
            Event::Init => self.listing.clear(),
            Event::InitApply(pod) => {
                if let Some(pod) = self.convert(pod, now) {
                    self.listing.insert(pod.uid().clone(), pod);
                }
            }
            // The server does not report deletions that happened before the list, so the list replaces the set.
            Event::InitDone => {
                self.pods = std::mem::take(&mut self.listing);
                self.is_listed = true;
                return true;
            }
            Event::Apply(pod) => {
                if let Some(pod) = self.convert(pod, now) {
                    self.pods.insert(pod.uid().clone(), pod);
                    return true;
                }
            }
            Event::Delete(pod) => {
                let Some(uid) = pod.metadata.uid.as_deref().map(PodUid::new) else { return false };
                let was_known = self.pods.remove(&uid).is_some();
                if !self.deleted.contains(&uid) {
                    self.deleted.truncate(DELETED - 1);
                    self.deleted.push_front(uid);
                }
                return was_known;
            }
        }
        false
    }

    fn to_set(&self) -> SourceSet {
        SourceSet { source: SourceKind::Api, pods: self.pods.values().cloned().collect(), problems: Vec::new() }
    }

    /// Converts a pod to the object that the engine uses. Returns the known object if the pod has not changed, and none if the pod was
    /// deleted.
    fn convert(&self, pod: Pod, now: &str) -> Option<Arc<PodObject>> {
        let uid = pod.metadata.uid.as_deref().map(PodUid::new);
        if uid.as_ref().is_some_and(|uid| self.deleted.contains(uid)) {
            tracing::warn!(pod.uid = ?uid, "the API server sent a pod again whose deletion it had reported");
            return None;
        }
        let known = uid.and_then(|uid| self.pods.get(&uid));
        if let Some(known) = known
            && known.metadata().resource_version == pod.metadata.resource_version
        {
            return Some(known.clone());
        }
        let first_seen = known.and_then(|known| known.annotation(SEEN_ANNOTATION)).unwrap_or(now).to_owned();
        let namespace = pod.metadata.namespace.clone();
        match object(pod) {
            Ok(pod) => Some(pod.with_first_seen(&first_seen)),
            Err(invalid) => {
                tracing::error!(pod.namespace = namespace, error = %invalid, "the API server sent a pod that cannot be run");
                None
            }
        }
    }
}

/// Converts a pod of the API server to the object that the engine uses. Drops the field managers, which take half of an object's
/// memory and which the node does not need.
///
/// # Errors
/// [`InvalidPod`] if the pod has no identity.
pub(super) fn object(mut pod: Pod) -> Result<Arc<PodObject>, InvalidPod> {
    pod.metadata.managed_fields = None;
    let annotations = pod.metadata.annotations.get_or_insert_default();
    annotations.insert(SOURCE_ANNOTATION.to_owned(), SourceKind::Api.as_str().to_owned());
    PodObject::new(pod)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(name: &str, version: &str) -> Pod {
        serde_json::from_value(json!({
            "metadata": {"name": name, "namespace": "default", "uid": name, "resourceVersion": version,
                "managedFields": [{"manager": "test"}]},
            "spec": {"containers": []},
        }))
        .unwrap()
    }

    fn names(pods: &PodSet) -> Vec<String> {
        pods.to_set().pods.iter().map(|pod| pod.full_name().name().to_owned()).collect()
    }

    #[test]
    fn a_second_list_replaces_the_set_and_keeps_unchanged_objects() {
        let mut pods = PodSet::default();
        assert!(!pods.apply(Event::Init, "2026-01-01T00:00:00Z"));
        assert!(!pods.apply(Event::InitApply(pod("a", "1")), "2026-01-01T00:00:00Z"));
        assert!(!pods.apply(Event::InitApply(pod("b", "2")), "2026-01-01T00:00:00Z"));
        assert!(!pods.is_listed, "the list is not complete");
        assert!(pods.apply(Event::InitDone, "2026-01-01T00:00:00Z"));
        let first = pods.to_set().pods;
        assert_eq!(names(&pods), ["a", "b"]);
        assert!(first[0].metadata().managed_fields.is_none());

        for event in [Event::Init, Event::InitApply(pod("b", "2")), Event::InitApply(pod("c", "3")), Event::InitDone] {
            pods.apply(event, "2026-01-01T01:00:00Z");
        }
        assert_eq!(names(&pods), ["b", "c"], "nobody reported the deletion of a");
        assert!(Arc::ptr_eq(&first[1], &pods.to_set().pods[0]));
    }

    #[test]
    fn pod_whose_deletion_was_reported_never_comes_back() {
        let (mut pods, seen) = (PodSet::default(), "2026-01-01T00:00:00Z");
        assert!(pods.apply(Event::Apply(pod("a", "1")), seen));
        assert!(pods.apply(Event::Delete(pod("a", "2")), seen));
        assert!(!pods.apply(Event::Apply(pod("a", "1")), seen), "a watch of a server that is behind");
        for event in [Event::Init, Event::InitApply(pod("a", "1")), Event::InitApply(pod("b", "1")), Event::InitDone] {
            pods.apply(event, seen);
        }
        assert_eq!(names(&pods), ["b"], "a list of a server that is behind");

        // A list without a pod may be the old one.
        for event in [Event::Init, Event::InitDone] {
            pods.apply(event, seen);
        }
        assert!(pods.apply(Event::Apply(pod("b", "1")), seen));
        for number in 0..DELETED + 100 {
            let name = format!("p{number}");
            pods.apply(Event::Apply(pod(&name, "1")), seen);
            pods.apply(Event::Delete(pod(&name, "2")), seen);
        }
        assert_eq!((names(&pods), pods.deleted.len()), (vec!["b".to_owned()], DELETED));
    }

    #[test]
    fn changes_keep_the_time_at_which_a_pod_was_first_seen() {
        let mut pods = PodSet::default();
        assert!(pods.apply(Event::Apply(pod("a", "1")), "2026-01-01T00:00:00Z"));
        assert!(pods.apply(Event::Apply(pod("a", "2")), "2026-01-01T00:01:00Z"));
        let first_seen = |pods: &PodSet| pods.to_set().pods[0].annotation(SEEN_ANNOTATION).map(str::to_owned);
        assert_eq!(first_seen(&pods).as_deref(), Some("2026-01-01T00:00:00Z"));
        assert!(pods.apply(Event::Delete(pod("a", "3")), "2026-01-01T00:02:00Z"));
        assert!(!pods.apply(Event::Delete(pod("a", "3")), "2026-01-01T00:02:00Z"));
        assert!(names(&pods).is_empty());
    }
}
