//! The watches of the controllers.
//!
//! The first list of a watch is read in pages. kube-runtime loses a deletion that arrives before the end of a streaming list, so the deleted
//! object would stay known.
//!
//! An object that cannot be decoded does not end its watch: the controller keeps its previous state.

use std::fmt::Debug;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::{FutureExt, Stream, StreamExt};
use k8s_openapi::api::core::v1::{Pod, PodSpec, PodStatus};
use k8s_openapi::api::resource::v1::{Device, ResourceClaim, ResourceClaimSpec, ResourceClaimTemplate, ResourceSlice};
use k8s_openapi::api::resource::v1beta2::DeviceTaintRule;
use k8s_openapi::api::scheduling::v1alpha2::PodGroup;
use kube::core::DeserializeGuard;
use kube::core::error_boundary::InvalidObject;
use kube::runtime::watcher::Event;
use kube::{Api, Client, Resource};
use podwright_controllers::claim_controller::{ClaimController, WatchedKind};
use podwright_controllers::device_taint_controller::DeviceTaintController;
use podwright_controllers::device_taint_eviction::{CONTROLLER_NAME as TAINT_CONTROLLER_NAME, Settings};
use podwright_controllers::resource_claim::{CONTROLLER_NAME, Features, ObjectKey, WatchEvent};
use podwright_kube_api::KubeError;
use podwright_parts::Parts;
use serde::de::DeserializeOwned;
use tokio::time::sleep;

use super::watch_problems::WatchProblems;
use podwright_kube::watch_in_pages;

/// The delay before a watch that has ended starts again.
const AFTER_END: Duration = Duration::from_secs(1);

/// Starts the watches of a controller, each as a part.
pub(super) fn start(
    client: &Client,
    controller: &Arc<ClaimController>,
    features: Features,
    problems: &WatchProblems,
    parts: &Parts,
) {
    let watch = Watch { client, controller, name: CONTROLLER_NAME, problems, parts };
    watch.start("watch_pods", keep_claims_of_pod, room::<Pod>, ClaimController::pod_event);
    watch.start(
        "watch_claims",
        |claim: &mut ResourceClaim| claim.metadata.managed_fields = None,
        room::<ResourceClaim>,
        ClaimController::claim_event,
    );
    watch.start(
        "watch_templates",
        |template: &mut ResourceClaimTemplate| template.metadata.managed_fields = None,
        room::<ResourceClaimTemplate>,
        ClaimController::template_event,
    );
    if features.pod_groups {
        watch.start(
            "watch_pod_groups",
            |group: &mut PodGroup| group.metadata.managed_fields = None,
            room::<PodGroup>,
            ClaimController::pod_group_event,
        );
    }
}

fn room<K: WatchedKind>(controller: &ClaimController) -> BoxFuture<'_, ()> {
    controller.until_room::<K>().boxed()
}

/// Starts the watches of the device taint eviction controller, each as a part.
pub(super) fn start_taints(
    client: &Client,
    controller: &Arc<DeviceTaintController>,
    settings: Settings,
    problems: &WatchProblems,
    parts: &Parts,
) {
    let watch = Watch { client, controller, name: TAINT_CONTROLLER_NAME, problems, parts };
    // An event only marks pods, so no watch waits.
    let room = |_: &DeviceTaintController| std::future::ready(()).boxed();
    watch.start("watch_pods", keep_claims_of_pod, room, DeviceTaintController::pod_event);
    watch.start("watch_claims", keep_results_of_claim, room, DeviceTaintController::claim_event);
    watch.start("watch_slices", keep_taints_of_slice, room, DeviceTaintController::slice_event);
    if settings.rules {
        watch.start(
            "watch_rules",
            |rule: &mut DeviceTaintRule| rule.metadata.managed_fields = None,
            room,
            DeviceTaintController::rule_event,
        );
    }
}

struct Watch<'a, C> {
    client: &'a Client,
    controller: &'a Arc<C>,
    /// The name of the controller.
    name: &'static str,
    problems: &'a WatchProblems,
    parts: &'a Parts,
}

impl<C: Send + Sync + 'static> Watch<'_, C> {
    /// Starts the watch of one kind, of all namespaces. A watch that panics is started again.
    fn start<K>(
        &self,
        part: &'static str,
        shrink: fn(&mut K),
        until_room: for<'c> fn(&'c C) -> BoxFuture<'c, ()>,
        deliver: fn(&C, WatchEvent<K>),
    ) where
        K: Resource<DynamicType = ()> + Clone + Debug + Default + DeserializeOwned + Send + Sync + 'static,
    {
        let plural = K::plural(&());
        self.problems.clear(&plural);
        let (client, name) = (self.problems.client_of_watch(self.client, &plural), self.name);
        let (controller, problems) = (self.controller.clone(), self.problems.clone());
        let watch = move || {
            let (client, controller, problems) = (client.clone(), controller.clone(), problems.clone());
            async move {
                loop {
                    // A watch begins with a list, so the controller misses nothing that happened since the last one ended or panicked.
                    let events = watch_in_pages(Api::<DeserializeGuard<K>>::all(client.clone()));
                    let events = pin!(events.map(|event| event.map(|event| convert(event, shrink, name))));
                    deliver_all(events, &problems, name, &*controller, until_room, deliver).await;
                    sleep(AFTER_END).await;
                }
            }
        };
        let problems = self.problems.clone();
        let on_panic = move |panic: &str| {
            problems.set(&plural, &format!("the watch panicked: {panic}"));
        };
        self.parts.spawn_reporting(part, watch, on_panic);
    }
}

/// Delivers the events of a watch to its controller.
async fn deliver_all<K: Resource<DynamicType = ()>, C>(
    mut events: Pin<&mut (impl Stream<Item = Result<WatchEvent<K>, KubeError>> + Send)>,
    problems: &WatchProblems,
    name: &'static str,
    controller: &C,
    until_room: for<'c> fn(&'c C) -> BoxFuture<'c, ()>,
    deliver: fn(&C, WatchEvent<K>),
) {
    while let Some(event) = events.next().await {
        match event {
            Ok(event) => {
                // The other events may be of a list that does not end.
                let works = matches!(event, WatchEvent::InitDone | WatchEvent::Apply(_) | WatchEvent::Delete(_));
                until_room(controller).await;
                deliver(controller, event);
                if works {
                    problems.clear(&K::plural(&()));
                }
            }
            Err(error) => {
                let (plural, error) = (K::plural(&()), problem::<K>(&error));
                if problems.set(&plural, &error) {
                    tracing::warn!(controller = name, resource = &*plural, error, "watch failed, retrying");
                }
            }
        }
    }
}

/// The text of an error of a watch, with the remedy if a permission is missing or the API server does not serve the kind.
fn problem<K: Resource<DynamicType = ()>>(error: &KubeError) -> String {
    match error.code() {
        Some(403) => format!("{error}: grant the permissions of {}", manifest(&K::kind(&()))),
        Some(404) => format!(
            "the API server does not serve {} of {}: {}",
            K::plural(&()),
            K::api_version(&()),
            unserved(&K::kind(&()))
        ),
        _ => error.to_string(),
    }
}

/// The file with the permissions that the controllers need for a kind.
fn manifest(kind: &str) -> &'static str {
    match kind {
        "DeviceTaintRule" => "examples/deploy/device-taint-rules.yaml",
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

/// Removes the largest fields of a claim that the device taint eviction controller does not read.
pub(super) fn keep_results_of_claim(claim: &mut ResourceClaim) {
    claim.metadata.managed_fields = None;
    claim.metadata.annotations = None;
    claim.metadata.labels = None;
    claim.spec = ResourceClaimSpec::default();
    let Some(status) = &mut claim.status else { return };
    status.devices = None;
    if let Some(devices) = status.allocation.as_mut().and_then(|allocation| allocation.devices.as_mut()) {
        devices.config = None;
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
mod tests;
