//! The watches of the ResourceClaim controller.
//!
//! An object that cannot be decoded does not end its watch: the controller keeps its previous state.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::pin::pin;
use std::sync::Arc;

use futures_util::StreamExt;
use k8s_openapi::api::core::v1::{Pod, PodSpec, PodStatus};
use k8s_openapi::api::resource::v1::{ResourceClaim, ResourceClaimTemplate};
use k8s_openapi::api::scheduling::v1alpha2::PodGroup;
use kube::core::DeserializeGuard;
use kube::core::error_boundary::InvalidObject;
use kube::runtime::watcher::{self, Event};
use kube::{Api, Client, Resource};
use parking_lot::Mutex;
use podwright_actors::controllers::claim_controller::ClaimController;
use podwright_actors::controllers::resource_claim::{CONTROLLER_NAME, Features, ObjectKey, WatchEvent};
use podwright_actors::text::error_chain;
use serde::de::DeserializeOwned;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::adapters::kube::listing;

/// Why watches do not deliver, by the plural of their resources. Clones share their state.
#[derive(Clone, Debug, Default)]
pub struct WatchProblems(Arc<Mutex<BTreeMap<String, String>>>);

impl WatchProblems {
    /// A line for each watch that fails now.
    pub fn lines(&self) -> Vec<String> {
        self.0.lock().iter().map(|(plural, problem)| format!("cannot watch {plural}: {problem}")).collect()
    }

    /// Records the error of a watch. Returns whether the watch did not fail before.
    fn set(&self, plural: &str, problem: String) -> bool {
        self.0.lock().insert(plural.to_owned(), problem).is_none()
    }

    /// Forgets the errors of the watches of an earlier term.
    pub(super) fn reset(&self) {
        self.0.lock().clear();
    }

    fn clear(&self, plural: &str) {
        self.0.lock().remove(plural);
    }
}

/// Starts the watches of a controller. They end when `stop` is cancelled.
pub(super) fn start(
    client: &Client,
    controller: &Arc<ClaimController>,
    features: Features,
    problems: &WatchProblems,
    stop: &CancellationToken,
) -> TaskTracker {
    let tasks = TaskTracker::new();
    let watch = Watch { client, controller, problems, stop, tasks: &tasks };
    watch.start(keep_claims_of_pod, ClaimController::pod_event);
    watch.start(|claim: &mut ResourceClaim| claim.metadata.managed_fields = None, ClaimController::claim_event);
    watch.start(
        |template: &mut ResourceClaimTemplate| template.metadata.managed_fields = None,
        ClaimController::template_event,
    );
    if features.pod_groups {
        watch.start(|group: &mut PodGroup| group.metadata.managed_fields = None, ClaimController::pod_group_event);
    }
    tasks.close();
    tasks
}

struct Watch<'a> {
    client: &'a Client,
    controller: &'a Arc<ClaimController>,
    problems: &'a WatchProblems,
    stop: &'a CancellationToken,
    tasks: &'a TaskTracker,
}

impl Watch<'_> {
    /// Starts the watch of one kind, of all namespaces.
    fn start<K>(&self, shrink: fn(&mut K), deliver: fn(&ClaimController, WatchEvent<K>))
    where
        K: Resource<DynamicType = ()> + Clone + Debug + Default + DeserializeOwned + Send + Sync + 'static,
    {
        let api = Api::<DeserializeGuard<K>>::all(self.client.clone());
        let (controller, problems) = (self.controller.clone(), self.problems.clone());
        let deliver = async move {
            let plural = K::plural(&());
            let mut events = pin!(listing::watch(api, None));
            while let Some(event) = events.next().await {
                match event {
                    Ok(event) => {
                        // This event comes before the server has answered.
                        if !matches!(event, Event::Init) {
                            problems.clear(&plural);
                        }
                        deliver(&controller, convert(event, shrink));
                    }
                    Err(error) => {
                        let error = problem(&error);
                        if problems.set(&plural, error.clone()) {
                            let resource = &*plural;
                            tracing::warn!(
                                controller = CONTROLLER_NAME,
                                resource,
                                error,
                                "the watch failed and is repeated"
                            );
                        }
                    }
                }
            }
        };
        self.tasks.spawn(self.stop.clone().run_until_cancelled_owned(deliver));
    }
}

/// The text of an error of a watch, with the remedy if a permission is missing.
fn problem(error: &watcher::Error) -> String {
    let text = error_chain(error).to_string();
    let cause = match error {
        watcher::Error::InitialListFailed(error) | watcher::Error::WatchStartFailed(error) => match error {
            kube::Error::Api(status) => Some(&**status),
            _ => None,
        },
        watcher::Error::WatchError(status) => Some(&**status),
        _ => None,
    };
    match cause {
        Some(status) if status.code == 403 => {
            format!("{text}: grant the permissions of examples/deploy/controllers.yaml")
        }
        _ => text,
    }
}

/// Makes the event of a decoded object.
type WatchEventOf<K> = fn(Arc<K>) -> WatchEvent<K>;

fn convert<K>(event: Event<DeserializeGuard<K>>, shrink: fn(&mut K)) -> WatchEvent<K>
where
    K: Resource<DynamicType = ()> + Default,
{
    let (guarded, is_deleted, decoded): (_, _, WatchEventOf<K>) = match event {
        Event::Init => return WatchEvent::Init,
        Event::InitDone => return WatchEvent::InitDone,
        Event::InitApply(guarded) => (guarded, false, WatchEvent::InitApply),
        Event::Apply(guarded) => (guarded, false, WatchEvent::Apply),
        Event::Delete(guarded) => (guarded, true, WatchEvent::Delete),
    };
    match guarded.0 {
        Ok(mut object) => {
            shrink(&mut object);
            decoded(Arc::new(object))
        }
        Err(invalid) => {
            let mut object = metadata_only(invalid);
            shrink(&mut object);
            WatchEvent::Undecodable { object: Arc::new(object), is_deleted }
        }
    }
}

/// An object that has nothing but its metadata. It has no finalizers, so that the controller does not finish its deletion.
fn metadata_only<K: Resource<DynamicType = ()> + Default>(invalid: InvalidObject) -> K {
    let metadata = &invalid.metadata;
    let name = |name: &Option<String>| name.clone().unwrap_or_default();
    let object = ObjectKey { namespace: name(&metadata.namespace), name: name(&metadata.name) };
    tracing::error!(
        controller = CONTROLLER_NAME,
        kind = &*K::kind(&()),
        %object,
        error = invalid.error,
        "cannot decode the object: the controller uses its previous state until the object changes"
    );
    let mut object = K::default();
    *object.meta_mut() = invalid.metadata;
    object.meta_mut().finalizers = None;
    object
}

/// Removes everything from a pod that the controller does not read. Most of the memory of the controller is for pods.
fn keep_claims_of_pod(pod: &mut Pod) {
    pod.metadata.managed_fields = None;
    pod.metadata.annotations = None;
    pod.metadata.labels = None;
    if let Some(spec) = pod.spec.take() {
        pod.spec = Some(PodSpec {
            node_name: spec.node_name,
            resource_claims: spec.resource_claims,
            scheduling_group: spec.scheduling_group,
            ..PodSpec::default()
        });
    }
    if let Some(status) = pod.status.take() {
        pod.status = Some(PodStatus {
            extended_resource_claim_status: status.extended_resource_claim_status,
            phase: status.phase,
            resource_claim_statuses: status.resource_claim_statuses,
            ..PodStatus::default()
        });
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn undecodable_object_is_known_by_its_metadata() {
        let text = json!({"metadata": {"name": "c", "namespace": "n", "uid": "u", "finalizers": ["f"],
            "annotations": {"a": "b"}}, "spec": "wrong"});
        let guarded: DeserializeGuard<ResourceClaim> = serde_json::from_value(text).unwrap();
        let WatchEvent::Undecodable { object: claim, is_deleted: false } = convert(Event::InitApply(guarded), |_| {})
        else {
            panic!()
        };
        assert_eq!((claim.metadata.uid.as_deref(), &claim.metadata.finalizers), (Some("u"), &None));
        assert!(claim.metadata.annotations.is_some());
        assert_eq!(claim.spec, Default::default());
    }

    #[test]
    fn pod_keeps_what_the_controller_reads() {
        let text = json!({"metadata": {"name": "p", "namespace": "n", "uid": "u", "deletionTimestamp": "2026-01-01T00:00:00Z",
            "labels": {"a": "b"}},
            "spec": {"nodeName": "n1", "containers": [{"name": "c"}], "resourceClaims": [{"name": "r"}],
                "schedulingGroup": {"podGroupName": "g"}},
            "status": {"phase": "Running", "podIP": "10.0.0.1", "resourceClaimStatuses": [{"name": "r"}],
                "extendedResourceClaimStatus": {"resourceClaimName": "e", "requestMappings": []}}});
        let mut pod: Pod = serde_json::from_value(text).unwrap();
        keep_claims_of_pod(&mut pod);
        let kept = serde_json::to_value(&pod).unwrap();
        let expected = json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "p", "namespace": "n", "uid": "u", "deletionTimestamp": "2026-01-01T00:00:00Z"},
            "spec": {"nodeName": "n1", "containers": [], "resourceClaims": [{"name": "r"}],
                "schedulingGroup": {"podGroupName": "g"}},
            "status": {"phase": "Running", "resourceClaimStatuses": [{"name": "r"}],
                "extendedResourceClaimStatus": {"resourceClaimName": "e", "requestMappings": []}}});
        assert_eq!(kept, expected);
    }
}
