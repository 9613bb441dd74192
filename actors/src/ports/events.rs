//! Events of pods and of the node, for people.

use std::borrow::Cow;
use std::sync::Arc;

use crate::pod::{ContainerKind, PodObject};

/// Receives events. Never waits; may drop events.
pub trait EventRecorder: Send + Sync + 'static {
    /// Records an event of a pod.
    fn record(&self, pod: &Arc<PodObject>, event: PodEvent);

    /// Records an event of the node. The default drops it.
    fn record_of_node(&self, event: PodEvent) {
        let _ = event;
    }
}

/// The type of an event, as in `core/v1`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EventType {
    /// The event reports normal operation.
    Normal,
    /// The event reports a problem.
    Warning,
}

/// An event, with the fields of a `core/v1` event.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PodEvent {
    /// Normal or warning.
    pub kind: EventType,
    /// The reason. Reasons that the kubelet also has are spelled as there (`Killing`, `BackOff`, `Unhealthy`).
    pub reason: Cow<'static, str>,
    /// What happened. A message that the kubelet also has is spelled as there (`texts`).
    pub message: String,
    /// The container in the form of `involvedObject.fieldPath`, such as `spec.containers{main}`. `None` for an event of the whole
    /// pod or of the node.
    pub field_path: Option<String>,
}

impl PodEvent {
    /// A normal event.
    pub fn normal(reason: impl Into<Cow<'static, str>>, message: impl Into<String>) -> Self {
        PodEvent { kind: EventType::Normal, reason: reason.into(), message: message.into(), field_path: None }
    }

    /// A warning event.
    pub fn warning(reason: impl Into<Cow<'static, str>>, message: impl Into<String>) -> Self {
        PodEvent { kind: EventType::Warning, reason: reason.into(), message: message.into(), field_path: None }
    }

    /// The same event of one container (the kubelet's `fieldPath` in `container/ref.go`, 1.36).
    #[must_use]
    pub fn of_container(mut self, kind: ContainerKind, name: &str) -> Self {
        let list = match kind {
            ContainerKind::Regular => "containers",
            ContainerKind::Init => "initContainers",
            ContainerKind::Ephemeral => "ephemeralContainers",
        };
        self.field_path = Some(format!("spec.{list}{{{name}}}"));
        self
    }
}
