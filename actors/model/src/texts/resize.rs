//! Texts of in-place resizes: their events, and the messages of the conditions `PodResizePending` and `PodResizeInProgress`.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, ResourceClaim, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use serde::Serialize;

use super::format::{aggregate, quoted};
use crate::pod::PodObject;

/// A static pod cannot be resized (`allocation/features_linux.go`, `IsInPlacePodVerticalScalingAllowed`).
pub const STATIC_POD: &str = "In-place resize of static-pods is not supported";
/// The QoS class would change (`pkg/apis/core/validation`, `ValidatePodResize`). The API server refuses this, so no kubelet has the
/// text.
pub const QOS_CLASS: &str = "Pod QOS Class may not change as a result of resizing";

/// The event of a container that is stopped because its resize policy requires a restart (`kuberuntime/kuberuntime_manager.go`,
/// `computePodResizeAction`).
pub fn requires_restart(container: &str) -> String {
    format!("Container {container} resize requires restart")
}

/// The event `ResizeStarted` of a resize that was allocated (`events/resize.go`, `PodResizeStartedMsg`).
pub fn started(pod: &PodObject, generation: Option<i64>) -> String {
    with_resources("Pod resize started", pod, generation, "")
}

/// The event `ResizeCompleted` of a resize that was applied (`events/resize.go`, `PodResizeCompletedMsg`).
pub fn completed(pod: &PodObject, generation: Option<i64>) -> String {
    with_resources("Pod resize completed", pod, generation, "")
}

/// The event `ResizeDeferred` or `ResizeInfeasible` (`events/resize.go`, `PodResizePendingMsg`).
pub fn pending(pod: &PodObject, reason: &str, message: &str, generation: Option<i64>) -> String {
    with_resources(&format!("Pod resize {reason}"), pod, generation, message)
}

/// The event `ResizeError` of a resize that cannot be applied (`events/resize.go`, `PodResizeInProgressErrorMsg`).
pub fn failed(pod: &PodObject, error: &str, generation: Option<i64>) -> String {
    with_resources("Pod resize error", pod, generation, error)
}

/// The error of memory limits below what is used (`kuberuntime/kuberuntime_manager.go`, `validateMemoryResizeAction`).
pub fn memory_in_use(errors: &[String]) -> String {
    format!("cannot decrease memory limits: {}", aggregate(errors))
}

/// One error of [`memory_in_use`]: the limit of the pod.
pub fn pod_limit_in_use(limit: i64, usage: u64) -> String {
    format!("attempting to set pod memory limit ({limit}) below current usage ({usage})")
}

/// One error of [`memory_in_use`]: the limit of a container. `usage` is the usage of the pod.
pub fn container_limit_in_use(container: &str, limit: i64, usage: u64) -> String {
    format!("attempting to set container {} memory limit ({limit}) below current usage ({usage})", quoted(container))
}

/// One error of [`memory_in_use`]: the runtime does not report the usage of a container.
pub fn no_container_usage(container: &str) -> String {
    format!("missing container {} memory usage", quoted(container))
}

/// The error of a resize whose memory usage cannot be read (`kuberuntime/kuberuntime_manager.go`, `doPodResizeAction`).
pub fn no_usage(pod: &PodObject) -> String {
    format!("unable to read memory usage for pod {}", quoted(pod.full_name().name()))
}

/// The resources of a pod in an event (`events/resize.go`, `podResizeMessage`).
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Message<'a> {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    init_containers: Vec<ContainerResources<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    containers: Vec<ContainerResources<'a>>,
    generation: i64,
    #[serde(skip_serializing_if = "str::is_empty")]
    error: &'a str,
}

#[derive(Serialize)]
struct ContainerResources<'a> {
    name: &'a str,
    resources: Resources<'a>,
}

/// In the order of Go's `v1.ResourceRequirements`.
#[derive(Default, Serialize)]
struct Resources<'a> {
    #[serde(skip_serializing_if = "is_empty")]
    limits: Option<&'a BTreeMap<String, Quantity>>,
    #[serde(skip_serializing_if = "is_empty")]
    requests: Option<&'a BTreeMap<String, Quantity>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    claims: Option<&'a Vec<ResourceClaim>>,
}

fn is_empty(list: &Option<&BTreeMap<String, Quantity>>) -> bool {
    list.is_none_or(BTreeMap::is_empty)
}

fn with_resources(what: &str, pod: &PodObject, generation: Option<i64>, error: &str) -> String {
    fn resources(own: &ResourceRequirements) -> Resources<'_> {
        let claims = own.claims.as_ref().filter(|claims| !claims.is_empty());
        Resources { limits: own.limits.as_ref(), requests: own.requests.as_ref(), claims }
    }
    fn containers<'a>(list: &'a [Container]) -> Vec<ContainerResources<'a>> {
        let of = |one: &'a Container| one.resources.as_ref().map(resources).unwrap_or_default();
        list.iter().map(|one| ContainerResources { name: &one.name, resources: of(one) }).collect()
    }
    let message = Message {
        init_containers: containers(pod.init_containers()),
        containers: containers(pod.containers()),
        generation: generation.unwrap_or(0),
        error,
    };
    match serde_json::to_string(&message) {
        // Go writes these characters of a JSON text as escapes.
        Ok(json) => {
            let json = json.replace('&', "\\u0026").replace('<', "\\u003c").replace('>', "\\u003e");
            format!("{what}: {json}")
        }
        Err(_) => what.to_owned(),
    }
}
