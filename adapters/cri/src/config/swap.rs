//! How much swap space a container may use (KEP-2400).

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::ResourceRequirements;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use podwright_core::containers::definition::Definition;
use podwright_model::pod::PodObject;
use podwright_model::quantity::Amount;
use podwright_ports::RuntimeError;

use super::cgroup::{CgroupVersion, QosClass};
use super::inputs::NodeFacts;
use crate::settings::SwapBehavior;

/// Pods cannot have limits of swap space on this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "--swap-behavior LimitedSwap needs cgroup version 2 with memory.swap.max, which this machine does not have: start it with cgroup \
     version 2 and swap accounting, or use --swap-behavior NoSwap"
)]
pub(crate) struct NoSwapLimits;

impl From<NoSwapLimits> for RuntimeError {
    fn from(error: NoSwapLimits) -> Self {
        RuntimeError::config(error)
    }
}

/// The swap space in bytes that all pods share, if pods may use any. `total` is that of the machine.
///
/// # Errors
/// [`NoSwapLimits`] if the kernel cannot limit it.
pub(crate) fn shared_swap(
    behavior: SwapBehavior,
    version: CgroupVersion,
    total: i64,
) -> Result<Option<i64>, NoSwapLimits> {
    match (behavior, version) {
        (SwapBehavior::NoSwap, _) => Ok(None),
        (SwapBehavior::LimitedSwap, CgroupVersion::V2 { swap: true }) => Ok(Some(total)),
        (SwapBehavior::LimitedSwap, _) => Err(NoSwapLimits),
    }
}

/// The swap space in bytes that a container may use: of the space of all pods, the part that its memory request is of the memory of the
/// machine. Only containers of burstable pods get any, and not those of critical pods, those without a memory request, and those whose
/// request is their limit (upstream `GetContainerSwapBehavior` and `calcSwapForBurstablePods`, kubelet 1.36).
pub(super) fn swap_limit(facts: &NodeFacts, pod: &PodObject, container: Definition<'_>) -> i64 {
    let Some(shared) = facts.shared_swap else { return 0 };
    let resources = container.resources();
    let limit = memory(resources, |it| it.limits.as_ref());
    // The API server gives a container with a limit alone a request of the same amount.
    let request = memory(resources, |it| it.requests.as_ref()).or(limit).unwrap_or(0);
    let has_swap = !pod.is_critical() && QosClass::of(pod) == QosClass::Burstable && limit != Some(request);
    if !has_swap || request > facts.memory {
        return 0;
    }
    // The product of two numbers of bytes may need 128 bits.
    let part = (i128::from(request) * i128::from(shared)).checked_div(i128::from(facts.memory));
    part.and_then(|part| i64::try_from(part).ok()).unwrap_or(0)
}

/// The memory of a list in bytes, if it has any.
fn memory(
    resources: Option<&ResourceRequirements>,
    list: impl FnOnce(&ResourceRequirements) -> Option<&BTreeMap<String, Quantity>>,
) -> Option<i64> {
    let amount = Amount::of(resources.and_then(list)?.get("memory")?).ok()?;
    Some(amount.units()).filter(|bytes| *bytes > 0)
}
