//! The watches of the controllers.
//!
//! The first list of a watch is read in pages. kube-runtime loses a deletion that arrives before the end of a streaming list, so the deleted
//! object would stay known.
//!
//! An object that cannot be decoded does not end its watch: the controller keeps its previous state.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::pin::pin;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use futures_util::{FutureExt, StreamExt};
use k8s_openapi::api::core::v1::{Pod, PodSpec, PodStatus};
use k8s_openapi::api::resource::v1::{Device, ResourceClaim, ResourceClaimTemplate, ResourceSlice};
use k8s_openapi::api::resource::v1beta2::DeviceTaintRule;
use k8s_openapi::api::scheduling::v1alpha2::PodGroup;
use kube::core::DeserializeGuard;
use kube::core::error_boundary::InvalidObject;
use kube::runtime::watcher::Event;
use kube::{Api, Client, Resource};
use parking_lot::Mutex;
use podwright_actors::controllers::claim_controller::{ClaimController, WatchedKind};
use podwright_actors::controllers::device_taint_controller::DeviceTaintController;
use podwright_actors::controllers::device_taint_eviction::{CONTROLLER_NAME as TAINT_CONTROLLER_NAME, Settings};
use podwright_actors::controllers::resource_claim::{CONTROLLER_NAME, Features, ObjectKey, WatchEvent};
use serde::de::DeserializeOwned;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::KubeError;
use crate::adapters::kube::listing;

/// The errors of the watches that fail, by the plural of their resources. Clones share their state.
#[derive(Clone, Debug, Default)]
pub struct WatchProblems(Arc<Mutex<BTreeMap<String, String>>>);

impl WatchProblems {
    /// A line for each watch that fails now.
    pub fn lines(&self) -> Vec<String> {
        self.0.lock().iter().map(|(plural, problem)| format!("cannot watch {plural}: {problem}")).collect()
    }

    /// Records the error of a watch. Returns whether the error is new: the watch worked before, or failed for another reason.
    fn set(&self, plural: &str, problem: &str) -> bool {
        let before = self.0.lock().insert(plural.to_owned(), problem.to_owned());
        before.as_deref() != Some(problem)
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
    let watch = Watch { client, controller, name: CONTROLLER_NAME, problems, stop, tasks: &tasks };
    watch.start(keep_claims_of_pod, room::<Pod>, ClaimController::pod_event);
    watch.start(
        |claim: &mut ResourceClaim| claim.metadata.managed_fields = None,
        room::<ResourceClaim>,
        ClaimController::claim_event,
    );
    watch.start(
        |template: &mut ResourceClaimTemplate| template.metadata.managed_fields = None,
        room::<ResourceClaimTemplate>,
        ClaimController::template_event,
    );
    if features.pod_groups {
        watch.start(
            |group: &mut PodGroup| group.metadata.managed_fields = None,
            room::<PodGroup>,
            ClaimController::pod_group_event,
        );
    }
    tasks.close();
    tasks
}

fn room<K: WatchedKind>(controller: &ClaimController) -> BoxFuture<'_, ()> {
    controller.until_room::<K>().boxed()
}

/// Starts the watches of the device taint eviction controller. They end when `stop` is cancelled.
pub(super) fn start_taints(
    client: &Client,
    controller: &Arc<DeviceTaintController>,
    settings: Settings,
    problems: &WatchProblems,
    stop: &CancellationToken,
) -> TaskTracker {
    let tasks = TaskTracker::new();
    let watch = Watch { client, controller, name: TAINT_CONTROLLER_NAME, problems, stop, tasks: &tasks };
    // An event only marks pods, so no watch waits.
    let room = |_: &DeviceTaintController| std::future::ready(()).boxed();
    watch.start(keep_claims_of_pod, room, DeviceTaintController::pod_event);
    watch.start(
        |claim: &mut ResourceClaim| claim.metadata.managed_fields = None,
        room,
        DeviceTaintController::claim_event,
    );
    watch.start(keep_taints_of_slice, room, DeviceTaintController::slice_event);
    if settings.rules {
        watch.start(
            |rule: &mut DeviceTaintRule| rule.metadata.managed_fields = None,
            room,
            DeviceTaintController::rule_event,
        );
    }
    tasks.close();
    tasks
}

struct Watch<'a, C> {
    client: &'a Client,
    controller: &'a Arc<C>,
    /// The name of the controller.
    name: &'static str,
    problems: &'a WatchProblems,
    stop: &'a CancellationToken,
    tasks: &'a TaskTracker,
}

impl<C: Send + Sync + 'static> Watch<'_, C> {
    /// Starts the watch of one kind, of all namespaces.
    fn start<K>(
        &self,
        shrink: fn(&mut K),
        until_room: for<'c> fn(&'c C) -> BoxFuture<'c, ()>,
        deliver: fn(&C, WatchEvent<K>),
    ) where
        K: Resource<DynamicType = ()> + Clone + Debug + Default + DeserializeOwned + Send + Sync + 'static,
    {
        let api = Api::<DeserializeGuard<K>>::all(self.client.clone());
        let (controller, problems, name) = (self.controller.clone(), self.problems.clone(), self.name);
        let deliver = async move {
            let plural = K::plural(&());
            let mut events = pin!(listing::watch_in_pages(api));
            while let Some(event) = events.next().await {
                match event {
                    Ok(event) => {
                        // `Init` comes before the server has answered, so it does not show that the watch works.
                        if !matches!(event, Event::Init) {
                            problems.clear(&plural);
                        }
                        until_room(&controller).await;
                        deliver(&controller, convert(event, shrink, name));
                    }
                    Err(error) => {
                        let error = problem::<K>(&error, name);
                        if problems.set(&plural, &error) {
                            tracing::warn!(controller = name, resource = &*plural, error, "watch failed, retrying");
                        }
                    }
                }
            }
        };
        self.tasks.spawn(self.stop.clone().run_until_cancelled_owned(deliver));
    }
}

/// The text of an error of a watch, with the remedy if a permission is missing or the API server does not serve the kind.
fn problem<K: Resource<DynamicType = ()>>(error: &KubeError, controller: &str) -> String {
    match error.code() {
        Some(403) => format!("{error}: grant the permissions of {}", manifest(&K::kind(&()), controller)),
        Some(404) => format!(
            "the API server does not serve {} of {}: {}",
            K::plural(&()),
            K::api_version(&()),
            unserved(&K::kind(&()))
        ),
        _ => error.to_string(),
    }
}

/// The file with the permissions that a controller needs for a kind.
fn manifest(kind: &str, controller: &str) -> &'static str {
    match (kind, controller) {
        ("DeviceTaintRule", _) => "examples/deploy/device-taint-rules.yaml",
        (_, TAINT_CONTROLLER_NAME) => "examples/deploy/device-taint-eviction.yaml",
        _ => "examples/deploy/controllers.yaml",
    }
}

/// What to do if the API server does not serve a kind.
pub(super) fn unserved(kind: &str) -> &'static str {
    match kind {
        "DeviceTaintRule" => {
            "start kube-apiserver with --runtime-config=resource.k8s.io/v1beta2=true and \
             --feature-gates=DRADeviceTaintRules=true, or turn off the feature gate DRADeviceTaintRules of this controller"
        }
        "PodGroup" => {
            "enable the API group in kube-apiserver, or turn off the feature gate DRAWorkloadResourceClaims of this controller"
        }
        _ => "use Kubernetes 1.34 or later",
    }
}

/// Makes the event of a decoded object.
type WatchEventOf<K> = fn(Arc<K>) -> WatchEvent<K>;

fn convert<K>(event: Event<DeserializeGuard<K>>, shrink: fn(&mut K), controller: &str) -> WatchEvent<K>
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
            let mut object = metadata_only(invalid, controller);
            shrink(&mut object);
            WatchEvent::Undecodable { object: Arc::new(object), is_deleted }
        }
    }
}

/// An object that has nothing but its metadata. It has no finalizers, so that the controller does not finish its deletion.
fn metadata_only<K: Resource<DynamicType = ()> + Default>(invalid: InvalidObject, controller: &str) -> K {
    let metadata = &invalid.metadata;
    let name = |name: &Option<String>| name.clone().unwrap_or_default();
    let object = ObjectKey { namespace: name(&metadata.namespace), name: name(&metadata.name) };
    tracing::error!(
        controller,
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

/// Removes all fields from a pod that the controllers do not read. Most of the memory of the controller is for pods.
pub(super) fn keep_claims_of_pod(pod: &mut Pod) {
    pod.metadata.managed_fields = None;
    pod.metadata.annotations = None;
    pod.metadata.labels = None;
    if let Some(spec) = pod.spec.take() {
        pod.spec = Some(PodSpec {
            node_name: spec.node_name,
            priority: spec.priority,
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

/// Removes all fields from a slice that the device taint eviction controller does not read.
pub(super) fn keep_taints_of_slice(slice: &mut ResourceSlice) {
    slice.metadata.managed_fields = None;
    slice.spec.shared_counters = None;
    for device in slice.spec.devices.iter_mut().flatten() {
        let Device { name, taints, .. } = std::mem::take(device);
        *device = Device { name, taints, ..Device::default() };
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn answer(code: u16) -> KubeError {
        let status = serde_json::from_value(json!({"code": code, "message": "refused"})).unwrap();
        kube::Error::Api(Box::new(status)).into()
    }

    #[test]
    fn refused_lists_name_the_remedy() {
        for (code, text) in [
            (403, "refused: grant the permissions of examples/deploy/controllers.yaml"),
            (404, "the API server does not serve resourceclaims of resource.k8s.io/v1: use Kubernetes 1.34 or later"),
        ] {
            assert_eq!(problem::<ResourceClaim>(&answer(code), CONTROLLER_NAME), text);
        }
        let claims = problem::<ResourceClaim>(&answer(403), TAINT_CONTROLLER_NAME);
        assert_eq!(claims, "refused: grant the permissions of examples/deploy/device-taint-eviction.yaml");
        let rules = problem::<DeviceTaintRule>(&answer(403), TAINT_CONTROLLER_NAME);
        assert_eq!(rules, "refused: grant the permissions of examples/deploy/device-taint-rules.yaml");
    }

    #[test]
    fn undecodable_object_is_known_by_its_metadata() {
        let text = json!({"metadata": {"name": "c", "namespace": "n", "uid": "u", "finalizers": ["f"],
            "annotations": {"a": "b"}}, "spec": "wrong"});
        let guarded: DeserializeGuard<ResourceClaim> = serde_json::from_value(text).unwrap();
        let WatchEvent::Undecodable { object: claim, is_deleted: false } =
            convert(Event::InitApply(guarded), |_| {}, CONTROLLER_NAME)
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
            "spec": {"nodeName": "n1", "priority": 7, "containers": [{"name": "c"}], "resourceClaims": [{"name": "r"}],
                "schedulingGroup": {"podGroupName": "g"}},
            "status": {"phase": "Running", "podIP": "10.0.0.1", "resourceClaimStatuses": [{"name": "r"}],
                "extendedResourceClaimStatus": {"resourceClaimName": "e", "requestMappings": []}}});
        let mut pod: Pod = serde_json::from_value(text).unwrap();
        keep_claims_of_pod(&mut pod);
        let kept = serde_json::to_value(&pod).unwrap();
        let expected = json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "p", "namespace": "n", "uid": "u", "deletionTimestamp": "2026-01-01T00:00:00Z"},
            "spec": {"nodeName": "n1", "priority": 7, "containers": [], "resourceClaims": [{"name": "r"}],
                "schedulingGroup": {"podGroupName": "g"}},
            "status": {"phase": "Running", "resourceClaimStatuses": [{"name": "r"}],
                "extendedResourceClaimStatus": {"resourceClaimName": "e", "requestMappings": []}}});
        assert_eq!(kept, expected);
    }
}
