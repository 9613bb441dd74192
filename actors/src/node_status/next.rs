//! The next status of the node. Pure.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::core::v1::{
    ContainerImage, DaemonEndpoint, Node, NodeCondition, NodeDaemonEndpoints, NodeFeatures, NodeRuntimeHandler,
    NodeRuntimeHandlerFeatures, NodeStatus, NodeSwapStatus, NodeSystemInfo,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use serde_json::{Map, Value, json};

use super::conditions::{self, Health};
use super::object::NodeIdentity;
use super::registration::NodeRegistration;
use crate::ports::{NamedImage, PodEvent, RuntimeCapabilities};
use crate::quantity::Amount;
use crate::status_writer::patch::{condition_patches, object_patch};
use crate::texts::node as texts;
use crate::time::Time;

/// How often an unchanged status is written, so that its heartbeats stay young (upstream `nodeStatusReportFrequency`, kubelet 1.36).
const REPORT_PERIOD: Duration = Duration::from_secs(300);
/// The largest number of images in a status (upstream `nodeStatusMaxImages`, kubelet 1.36).
const MAX_IMAGES: usize = 50;
/// The largest number of names of an image in a status (upstream `MaxNamesPerImageInNodeStatus`, kubelet 1.36).
const MAX_NAMES: usize = 5;

/// The state of the node that its status reports.
#[derive(Clone, Debug, Default)]
pub(super) struct ObservedNode {
    pub(super) health: Health,
    /// The conditions about the resources of the machine.
    pub(super) pressures: Vec<NodeCondition>,
    pub(super) runtime_name: String,
    pub(super) capabilities: RuntimeCapabilities,
    pub(super) images: Vec<NamedImage>,
}

/// The facts that the last writes have reported.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct LastReport {
    /// When the status was written last.
    pub(super) at: Option<Time>,
    /// Whether the last known node is unschedulable.
    pub(super) unschedulable: bool,
    /// Whether a reboot was reported.
    pub(super) has_rebooted: bool,
}

/// The next write of the status.
#[derive(Debug, Default)]
pub(super) struct NextStatus {
    /// A strategic merge patch of the status, if it has changed or its report is due.
    pub(super) patch: Option<Value>,
    /// The events to record once the patch is written.
    pub(super) events: Vec<PodEvent>,
    /// The facts that this write reports.
    pub(super) reported: LastReport,
}

/// Decides on the next write to the node that the server has (upstream `tryUpdateNodeStatus`, kubelet 1.36).
///
/// # Errors
/// An error if the status cannot be written as JSON. No such status is known.
pub(super) fn next_status(
    identity: &NodeIdentity,
    settings: &NodeRegistration,
    observed: &ObservedNode,
    server: &Node,
    reported: &LastReport,
    now: Time,
) -> serde_json::Result<NextStatus> {
    let old = server.status.clone().unwrap_or_default();
    let (new, mut events) = desired_status(identity, settings, observed, old.clone(), now);
    let mut next = LastReport { unschedulable: is_unschedulable(server), ..reported.clone() };
    if next.unschedulable != reported.unschedulable {
        let event = if next.unschedulable { texts::NODE_NOT_SCHEDULABLE } else { texts::NODE_SCHEDULABLE };
        events.push(conditions::event_about(&identity.name, event));
    }
    let boot_id = |status: &NodeStatus| status.node_info.as_ref().map(|info| info.boot_id.clone()).unwrap_or_default();
    let (before, after) = (boot_id(&old), boot_id(&new));
    if !reported.has_rebooted && !before.is_empty() && before != after {
        events.push(conditions::rebooted(&identity.name, &after));
        next.has_rebooted = true;
    }
    let is_due = reported.at.is_none_or(|at| now.since(at) >= REPORT_PERIOD);
    let patch = if is_due || without_heartbeats(&old) != without_heartbeats(&new) {
        next.at = Some(now);
        Some(json!({"status": status_patch(&old, &new)?}))
    } else {
        None
    };
    Ok(NextStatus { patch, events, reported: next })
}

/// The status that the node has to have, and the events of the changes. Fields of other programs stay as in `status`.
pub(super) fn desired_status(
    identity: &NodeIdentity,
    settings: &NodeRegistration,
    observed: &ObservedNode,
    mut status: NodeStatus,
    now: Time,
) -> (NodeStatus, Vec<PodEvent>) {
    resources(settings, &mut status);
    status.addresses = Some(identity.addresses(settings, status.addresses.take()));
    status.node_info = Some(system_info(settings, observed));
    status.daemon_endpoints =
        Some(NodeDaemonEndpoints { kubelet_endpoint: Some(DaemonEndpoint { port: settings.kubelet_port }) });
    status.images = images(&observed.images);
    status.runtime_handlers = handlers(&observed.capabilities);
    let supported = observed.capabilities.supplemental_groups_policy;
    status.features = supported.map(|it| NodeFeatures { supplemental_groups_policy: Some(it) });
    status.declared_features = Some(settings.declared_features.clone()).filter(|features| !features.is_empty());
    status.volumes_in_use = None;

    let capacity = status.capacity.clone().unwrap_or_default();
    let problems = observed.health.problems(|resource| capacity.contains_key(resource));
    // The kubelet puts `Ready` last.
    let own = observed.pressures.iter().cloned().chain([conditions::ready(&problems, now)]).collect();
    let events = conditions::merge(status.conditions.get_or_insert_default(), own, &identity.name);
    (status, events)
}

/// Sets the node's own resources. Resources that others added stay; all of them can be allocated.
fn resources(settings: &NodeRegistration, status: &mut NodeStatus) {
    let is_gone = |name: &str| name.starts_with("hugepages-") && !settings.capacity.contains_key(name);
    let capacity = status.capacity.get_or_insert_default();
    capacity.retain(|name, _| !is_gone(name));
    set_all(capacity, &settings.capacity);
    let mut desired = capacity.clone();
    desired.extend(settings.allocatable.clone());
    let allocatable = status.allocatable.get_or_insert_default();
    allocatable.retain(|name, _| desired.contains_key(name));
    set_all(allocatable, &desired);
}

/// Sets quantities. An equal quantity keeps its spelling, because the server may spell it in another way.
fn set_all(quantities: &mut BTreeMap<String, Quantity>, desired: &BTreeMap<String, Quantity>) {
    let amount = |quantity: &Quantity| Amount::of(quantity).ok();
    for (name, quantity) in desired {
        match quantities.get_mut(name) {
            Some(have) if amount(have).is_some() && amount(have) == amount(quantity) => {}
            Some(have) => *have = quantity.clone(),
            None => {
                quantities.insert(name.clone(), quantity.clone());
            }
        }
    }
}

fn system_info(settings: &NodeRegistration, observed: &ObservedNode) -> NodeSystemInfo {
    let version = observed.capabilities.version.as_deref().unwrap_or("Unknown");
    let swap: Option<NodeSwapStatus> = settings.system_info.swap.clone();
    NodeSystemInfo {
        container_runtime_version: format!("{}://{version}", observed.runtime_name),
        swap,
        ..settings.system_info.clone()
    }
}

/// The largest images first.
fn images(images: &[NamedImage]) -> Option<Vec<ContainerImage>> {
    let mut images: Vec<&NamedImage> = images.iter().collect();
    images.sort_by(|a, b| b.size.cmp(&a.size).then_with(|| a.names.cmp(&b.names)));
    let image = |image: &NamedImage| ContainerImage {
        names: Some(image.names.iter().take(MAX_NAMES).cloned().collect()),
        size_bytes: Some(i64::try_from(image.size).unwrap_or(i64::MAX)).filter(|size| *size > 0),
    };
    let images: Vec<_> = images.into_iter().take(MAX_IMAGES).map(image).collect();
    Some(images).filter(|images| !images.is_empty())
}

fn handlers(capabilities: &RuntimeCapabilities) -> Option<Vec<NodeRuntimeHandler>> {
    let mut handlers = capabilities.handlers.clone();
    handlers.sort_by(|a, b| a.name.cmp(&b.name));
    let handlers: Vec<_> = handlers
        .into_iter()
        .map(|handler| NodeRuntimeHandler {
            name: Some(handler.name),
            features: Some(NodeRuntimeHandlerFeatures {
                recursive_read_only_mounts: Some(handler.recursive_read_only_mounts),
                user_namespaces: Some(handler.user_namespaces),
            }),
        })
        .collect();
    Some(handlers).filter(|handlers| !handlers.is_empty())
}

pub(super) fn is_unschedulable(node: &Node) -> bool {
    node.spec.as_ref().and_then(|spec| spec.unschedulable).unwrap_or(false)
}

/// The status for a comparison. The heartbeats do not count, nor does the order of the conditions.
fn without_heartbeats(status: &NodeStatus) -> NodeStatus {
    let mut status = status.clone();
    if let Some(conditions) = &mut status.conditions {
        conditions.iter_mut().for_each(|condition| condition.last_heartbeat_time = None);
        conditions.sort_by(|a, b| a.type_.cmp(&b.type_));
    }
    status
}

/// The strategic merge patch from `old` to `new`. Addresses are replaced as a whole, because several have the same type.
fn status_patch(old: &NodeStatus, new: &NodeStatus) -> serde_json::Result<Map<String, Value>> {
    let (old, new) = (fields(old)?, fields(new)?);
    let mut patch = object_patch(&old, &new);
    if let Some(conditions) = patch.get_mut("conditions") {
        *conditions = Value::Array(condition_patches(old.get("conditions"), new.get("conditions")));
    }
    if let Some(Value::Array(addresses)) = patch.get_mut("addresses") {
        addresses.insert(0, json!({"$patch": "replace"}));
    }
    Ok(patch)
}

fn fields(status: &NodeStatus) -> serde_json::Result<Map<String, Value>> {
    match serde_json::to_value(status)? {
        Value::Object(fields) => Ok(fields),
        _ => Ok(Map::new()),
    }
}

#[cfg(test)]
mod tests;
