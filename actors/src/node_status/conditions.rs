//! The conditions of the node. Pure.

use std::time::Duration;

use k8s_openapi::api::core::v1::NodeCondition;

use crate::ports::{PodEvent, Unready};
use crate::texts::evictions::{DISK_PRESSURE, MEMORY_PRESSURE};
use crate::texts::node as texts;
use crate::time::Time;

/// A runtime that was not listed for this long is down (upstream `maxWaitForContainerRuntime`, kubelet 1.36). A list that hangs counts like
/// a list that fails, because no pod can start in either case.
const DOWN_AFTER: Duration = Duration::from_secs(30);
/// The type of the condition (`core/v1`, `NodeReady`).
const READY: &str = "Ready";
/// The resources without which the scheduler cannot use a node (upstream `ReadyCondition`, kubelet 1.36).
const REQUIRED: [&str; 4] = ["cpu", "memory", "pods", "ephemeral-storage"];

/// The facts that decide the condition `Ready`.
#[derive(Clone, Debug, Default)]
pub(super) struct Health {
    /// How long ago the runtime was last listed.
    pub(super) list_age: Option<Duration>,
    /// Whether each pod of the first list has been read.
    pub(super) is_complete: bool,
    pub(super) unready: Unready,
    pub(super) is_shutting_down: bool,
}

impl Health {
    /// Why the node is not ready, in the order of the kubelet. Empty if the node is ready. `has_capacity` says whether the status has a
    /// resource.
    pub(super) fn problems(&self, has_capacity: impl Fn(&str) -> bool) -> Vec<String> {
        let mut problems = Vec::new();
        match self.list_age {
            None => problems.push(texts::RUNTIME_NOT_CHECKED.to_owned()),
            Some(age) if age >= DOWN_AFTER => problems.push(texts::RUNTIME_DOWN.to_owned()),
            Some(_) if !self.is_complete => problems.push(texts::RUNTIME_NOT_CHECKED.to_owned()),
            Some(_) => {}
        }
        problems.extend(self.unready.runtime.clone());
        problems.extend(self.unready.network.clone());
        let missing: Vec<&str> = REQUIRED.into_iter().filter(|resource| !has_capacity(resource)).collect();
        if !missing.is_empty() {
            problems.push(texts::missing_capacity(&missing));
        }
        if self.is_shutting_down {
            problems.push(texts::SHUTTING_DOWN.to_owned());
        }
        problems
    }
}

/// The condition `Ready`.
pub(super) fn ready(problems: &[String], now: Time) -> NodeCondition {
    let (status, reason, message) = if problems.is_empty() {
        ("True", texts::READY.0, texts::READY.1.to_owned())
    } else {
        ("False", texts::NOT_READY, texts::aggregate(problems))
    };
    NodeCondition {
        type_: READY.to_owned(),
        status: status.to_owned(),
        reason: Some(reason.to_owned()),
        message: Some(message),
        last_heartbeat_time: Some(now.to_api()),
        last_transition_time: Some(now.to_api()),
    }
}

/// Puts the node's own conditions into the list of the server. A condition whose status has not changed keeps its transition time.
/// Conditions of other programs stay. Returns the events of the changes.
pub(super) fn merge(list: &mut Vec<NodeCondition>, own: Vec<NodeCondition>, node: &str) -> Vec<PodEvent> {
    let mut events = Vec::new();
    for mut condition in own {
        let known = list.iter_mut().find(|known| known.type_ == condition.type_);
        let has_changed = known.as_ref().is_none_or(|known| known.status != condition.status);
        // As in the kubelet, a node that is new has no event about `Ready`.
        if has_changed && (known.is_some() || condition.type_ != READY) {
            events.push(event_about(node, event_of(&condition)));
        }
        match known {
            Some(known) => {
                if !has_changed {
                    condition.last_transition_time = known.last_transition_time.take();
                }
                *known = condition;
            }
            None => list.push(condition),
        }
    }
    events
}

/// An event about the status of the node.
pub(super) fn event_about(node: &str, event: &'static str) -> PodEvent {
    PodEvent::normal(event, texts::status_is_now(node, event))
}

/// The reason of the event when a condition gets its status.
fn event_of(condition: &NodeCondition) -> &'static str {
    let is_true = condition.status == "True";
    match (condition.type_.as_str(), is_true) {
        (READY, true) => texts::NODE_READY,
        (READY, false) => texts::NODE_NOT_READY,
        (MEMORY_PRESSURE, true) => "NodeHasInsufficientMemory",
        (MEMORY_PRESSURE, false) => "NodeHasSufficientMemory",
        (DISK_PRESSURE, true) => "NodeHasDiskPressure",
        (DISK_PRESSURE, false) => "NodeHasNoDiskPressure",
        (_, true) => "NodeHasInsufficientPID",
        (_, false) => "NodeHasSufficientPID",
    }
}

/// The event about a machine that has rebooted.
pub(super) fn rebooted(node: &str, boot_id: &str) -> PodEvent {
    PodEvent::warning(texts::REBOOTED, texts::rebooted(node, boot_id))
}
