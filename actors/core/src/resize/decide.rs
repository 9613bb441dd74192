//! Decides whether the node can allocate what a pod desires.

use std::cmp::Reverse;

use k8s_openapi::api::core::v1::ResourceRequirements;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use super::allocation::{RESIZABLE, resizable, resources_of};
use crate::admission::{Rejection, Requests};
use crate::config::pod_resources::class_of;
use crate::pod::PodObject;
use crate::quantity::Amount;
use crate::texts::resize as texts;
use crate::time::Time;

/// The decision on a desired resize.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The node allocates the desired resources.
    Fits,
    /// The resize waits until the node has room.
    Deferred {
        /// The reason of the admission.
        reason: String,
        /// The message of the admission.
        message: String,
    },
    /// The node never resizes the pod in this way.
    Infeasible {
        /// Why, for the condition of the pod.
        message: &'static str,
        /// Why, as the label of the metric.
        detail: &'static str,
    },
}

/// Decides on the resize of a pod from its allocated to its desired resources. `admit` runs the admission of the node for the pod
/// with its desired resources, beside the other pods (upstream `handlePodResourcesResize`, kubelet 1.36).
///
/// As upstream, a request that exceeds the allocatable resources of the node is deferred: these resources may grow.
pub fn decide(desired: &PodObject, allocated: &PodObject, admit: impl FnOnce() -> Result<(), Rejection>) -> Verdict {
    if desired.is_static() {
        return Verdict::Infeasible { message: texts::STATIC_POD, detail: "static_pod" };
    }
    // The API server refuses such a resize. The cgroup of the pod is in the cgroup of its class, and a cgroup cannot move.
    if class_of(desired.spec()) != class_of(allocated.spec()) {
        return Verdict::Infeasible { message: texts::QOS_CLASS, detail: "qos_class" };
    }
    match admit() {
        Ok(()) => Verdict::Fits,
        Err(Rejection { reason, message, .. }) => Verdict::Deferred { reason, message },
    }
}

/// The order in which waiting resizes are decided, smallest first: resizes that request no more than before, then pods of higher
/// priority, then guaranteed pods, then those that have waited longest (upstream `sortPendingResizes`, kubelet 1.36). `since` is the
/// start of the wait, `None` before the first decision.
pub fn order(desired: &PodObject, allocated: &PodObject, since: Option<Time>) -> impl Ord + use<> {
    let priority = desired.spec().priority.unwrap_or(0);
    let is_guaranteed = class_of(desired.spec()) == "Guaranteed";
    (is_increase(desired, allocated), Reverse(priority), !is_guaranteed, since.is_none(), since, desired.uid().clone())
}

/// Whether the pod desires more CPU or memory than is allocated to it.
pub(crate) fn is_increase(desired: &PodObject, allocated: &PodObject) -> bool {
    let (new, old) = (Requests::of(desired), Requests::of(allocated));
    RESIZABLE.iter().any(|name| new.get(name) > old.get(name))
}

/// A change that an update requests, with the labels of the metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestedChange {
    /// The resource, such as `cpu`.
    pub resource: &'static str,
    /// `requests` or `limits`.
    pub requirement: &'static str,
    /// `add`, `remove`, `increase` or `decrease`.
    pub operation: &'static str,
}

/// The changes of containers between the desired resources of two versions of a pod (upstream `recordContainerResizeOperations`,
/// kubelet 1.36).
pub fn requested(old: &PodObject, new: &PodObject) -> Vec<RequestedChange> {
    let mut all = Vec::new();
    for it in resizable(new) {
        let Some(before) = resources_of(old, &it.container.name) else { continue };
        let now = it.container.resources.as_ref();
        for resource in RESIZABLE {
            for requirement in ["limits", "requests"] {
                let (old, new) = (amount(before, requirement, resource), amount(now, requirement, resource));
                let operation = match (old, new) {
                    (None, Some(_)) => "add",
                    (Some(_), None) => "remove",
                    (Some(old), Some(new)) if new > old => "increase",
                    (Some(old), Some(new)) if new < old => "decrease",
                    _ => continue,
                };
                all.push(RequestedChange { resource, requirement, operation });
            }
        }
    }
    all
}

/// One amount of a container. `requirement` is `limits` or `requests`. Zero counts as none.
pub(super) fn amount(resources: Option<&ResourceRequirements>, requirement: &str, name: &str) -> Option<Amount> {
    let resources = resources?;
    let list = if requirement == "limits" { &resources.limits } else { &resources.requests };
    let quantity: &Quantity = list.as_ref()?.get(name)?;
    Amount::of(quantity).ok().filter(|amount| *amount != Amount::ZERO)
}
