//! The `oom_score_adj` of containers. If memory runs out, the kernel kills the process with the highest score first.

use k8s_openapi::api::core::v1::{Container, ResourceRequirements};

use super::pod_resources::{qos_class, resources_of_containers};
use crate::pod::{ContainerKind, PodObject, is_sidecar};
use crate::quantity::{Amount, ParseQuantityError};

/// The scores of guaranteed pods and of best-effort pods (upstream `pkg/kubelet/qos/policy.go`, kubelet 1.36).
const GUARANTEED: i64 = -997;
const BEST_EFFORT: i64 = 1000;
/// The priority class whose pods get the score of a guaranteed pod.
const NODE_CRITICAL: &str = "system-node-critical";

/// A memory request is not a quantity.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {source}")]
pub struct InvalidMemoryRequest {
    /// The container, or `spec`, and the field.
    pub field: String,
    /// What is wrong with the quantity.
    pub source: ParseQuantityError,
}

/// The `oom_score_adj` of the container `name` of a pod, on a machine with `memory` bytes. The more memory a container requests,
/// the lower its score. The score of a sidecar is at most the highest score of the regular containers (upstream
/// `GetContainerOOMScoreAdjust`, kubelet 1.36).
///
/// # Errors
/// [`InvalidMemoryRequest`] if a memory request of the pod is not a quantity.
pub fn oom_score_adj(
    pod: &PodObject,
    kind: ContainerKind,
    name: &str,
    memory: i64,
) -> Result<i64, InvalidMemoryRequest> {
    if pod.is_critical() && pod.spec().priority_class_name.as_deref() == Some(NODE_CRITICAL) {
        return Ok(GUARANTEED);
    }
    match qos_class(pod).as_str() {
        "Guaranteed" => return Ok(GUARANTEED),
        "BestEffort" => return Ok(BEST_EFFORT),
        _ => {}
    }
    let of_container = |container: &Container| request(&container.name, container.resources.as_ref());
    let container = match kind {
        ContainerKind::Init => pod.init_containers().iter().find(|container| container.name == name),
        ContainerKind::Regular => pod.containers().iter().find(|container| container.name == name),
        // An ephemeral container requests nothing.
        ContainerKind::Ephemeral => None,
    };
    let mut requested = container.map_or(Ok(0), of_container)?;
    if kind == ContainerKind::Init && container.is_some_and(is_sidecar) {
        let regular = pod.containers().iter().map(of_container).collect::<Result<Vec<_>, _>>()?;
        requested = requested.max(regular.into_iter().min().unwrap_or(0));
    }
    let requested = requested.saturating_add(extra_request(pod)?);
    let share = i128::from(requested) * i128::from(BEST_EFFORT) / i128::from(memory.max(1));
    let score = BEST_EFFORT.saturating_sub(i64::try_from(share).unwrap_or(i64::MAX));
    // The score is below the score of best-effort containers and above the score of guaranteed containers.
    Ok(score.clamp(BEST_EFFORT + GUARANTEED, BEST_EFFORT - 1))
}

/// If the pod as a whole requests more memory than its containers together, the difference divided by the number of containers
/// (KEP-2837).
fn extra_request(pod: &PodObject) -> Result<i64, InvalidMemoryRequest> {
    let spec = pod.spec();
    let whole = request("spec", spec.resources.as_ref())?;
    let containers = pod.containers().len() + pod.init_containers().len();
    let requested = request("spec", Some(&resources_of_containers(spec)))?;
    Ok((whole - requested).max(0) / i64::try_from(containers.max(1)).unwrap_or(i64::MAX))
}

/// The memory request in bytes of `owner`: the name of a container, or `spec`.
fn request(owner: &str, resources: Option<&ResourceRequirements>) -> Result<i64, InvalidMemoryRequest> {
    let requested = resources.and_then(|resources| resources.requests.as_ref()?.get("memory"));
    requested
        .map_or(Ok(Amount::ZERO), Amount::of)
        .map(Amount::units)
        .map_err(|source| InvalidMemoryRequest { field: format!("{owner}: resources.requests.memory"), source })
}

#[cfg(test)]
mod tests;
