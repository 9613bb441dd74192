//! What happened to a pod or to the node, told to people.

use std::borrow::Cow;
use std::sync::Arc;

use crate::pod::PodObject;

/// Takes events. Never waits; may drop.
pub trait EventRecorder: Send + Sync + 'static {
    /// Records one event of a pod.
    fn record(&self, pod: &Arc<PodObject>, event: PodEvent);

    /// Records one event of the node itself; unless somebody takes them, they are dropped.
    fn record_of_node(&self, event: PodEvent) {
        let _ = event;
    }
}

/// Whether an event tells of trouble.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EventType {
    /// It does not.
    Normal,
    /// It does.
    Warning,
}

/// One event, in the terms of `core/v1` events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodEvent {
    /// Trouble or not.
    pub kind: EventType,
    /// The reason, in upstream's spelling where the meaning is upstream's (`Killing`, `BackOff`, `Unhealthy`).
    pub reason: Cow<'static, str>,
    /// What happened, in one sentence.
    pub message: String,
}

impl PodEvent {
    /// An event that tells of no trouble.
    pub fn normal(reason: impl Into<Cow<'static, str>>, message: impl Into<String>) -> Self {
        PodEvent { kind: EventType::Normal, reason: reason.into(), message: message.into() }
    }

    /// An event that tells of trouble.
    pub fn warning(reason: impl Into<Cow<'static, str>>, message: impl Into<String>) -> Self {
        PodEvent { kind: EventType::Warning, reason: reason.into(), message: message.into() }
    }
}
