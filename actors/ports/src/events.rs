//! Events of pods and of the node, for people.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;

use podwright_model::pod::{ContainerKind, PodObject};

/// Receives events. Never waits; may drop events.
pub trait EventRecorder: Send + Sync + 'static {
    /// Records an event of a pod.
    fn record(&self, pod: &Arc<PodObject>, event: PodEvent);

    /// Records an event of the node. The default drops it.
    fn record_of_node(&self, event: PodEvent) {
        let _ = event;
    }

    /// Writes the events that were recorded, at the end of an agent. Later events may be dropped. Returns how many events were not
    /// written within `limit`. The default has nothing to write.
    ///
    /// Cancel safe.
    fn close(&self, limit: Duration) -> BoxFuture<'_, usize> {
        let _ = limit;
        async { 0 }.boxed()
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
    /// The annotations of the event. They are boxed, because only the event of an eviction from a node that lacks a resource has
    /// annotations.
    pub annotations: Option<Box<EventAnnotations>>,
}

/// The annotations of an event, by key.
pub type EventAnnotations = BTreeMap<Cow<'static, str>, String>;

impl PodEvent {
    /// A normal event.
    pub fn normal(reason: impl Into<Cow<'static, str>>, message: impl Into<String>) -> Self {
        PodEvent::new(EventType::Normal, reason.into(), message.into())
    }

    /// A warning event.
    pub fn warning(reason: impl Into<Cow<'static, str>>, message: impl Into<String>) -> Self {
        PodEvent::new(EventType::Warning, reason.into(), message.into())
    }

    const fn new(kind: EventType, reason: Cow<'static, str>, message: String) -> Self {
        PodEvent { kind, reason, message, field_path: None, annotations: None }
    }

    /// The same event with these annotations.
    #[must_use]
    pub fn with_annotations(mut self, annotations: EventAnnotations) -> Self {
        self.annotations = (!annotations.is_empty()).then(|| Box::new(annotations));
        self
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
