//! Explains a pod's state: what it waits for, why, and how it got there.
//!
//! Every wait is a value ([`Wait`]): what the pod waits for and on, since when, the number of tries, the next try, and
//! what ends the wait. A pod's waits form a chain of causes: a static pod waits for its full name; another pod holds
//! the name and waits for its containers to stop; one container does not stop. A chain that would run in a circle says
//! so and ends.
//!
//! ```text
//!   engine, statuses, runtime, housekeeping,     Explainer        chain        Explanation: text, JSON
//!   start governor, image pulls, shutdown    --------------> facts ------> waits ---> PodLine: one per pod
//!                                              (lookup.rs)                    `----> an event, once a wait is long
//! ```
//!
//! Everything except [`Explainer`], which gathers the facts, is pure. The serialized field names are stable. Times are
//! RFC 3339.

mod activities;
mod chain;
mod container_view;
mod containers;
pub(crate) mod facts;
mod health;
mod local_storage;
mod long_wait_reports;
mod lookup;
mod text;
mod wait;

#[cfg(test)]
mod tests;

use std::borrow::Cow;

use serde::Serialize;

use crate::pod::SOURCE_ANNOTATION;
use crate::ports::{EventAnnotations, EventType, PodEvent, Severity, SourceProblem};
use crate::time::Time;

use chain::ExplainContext;
use wait::time;

pub use crate::status_writer::FailedWrite;
pub use container_view::{ContainerRun, ContainerView};
pub use facts::{CountedEvent, NodeState, PodFacts};
pub use health::{Health, is_stuck};
pub use local_storage::{LocalStorage, StorageLimitView};
pub use long_wait_reports::LongWaitReports;
pub use lookup::{Explainer, Inspection};
pub use wait::{LifecycleHook, SubjectKind, Wait, WaitKind, WaitSubject};

/// The explanation of a pod's state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct Explanation {
    /// When the explanation was made.
    #[serde(serialize_with = "time")]
    pub at: Time,
    /// The pod's namespace.
    pub namespace: String,
    /// The pod's name.
    pub name: String,
    /// The pod's UID.
    pub uid: String,
    /// `file`, `http` or `api`; absent for a runtime-only pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// Whether a source desires the pod.
    pub desired: bool,
    /// The phase in the pod's status.
    pub phase: &'static str,
    /// The state in one word, as in tables.
    pub state: String,
    /// The state and the nearest wait in one line.
    pub summary: String,
    /// The reason in the pod's status.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The message in the pod's status.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// The lifecycle of the pod's record in the engine; absent without a record.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lifecycle: Option<LifecycleView>,
    /// The waits, each followed by its causes.
    pub chain: Vec<Wait>,
    /// The containers: init, regular, ephemeral.
    pub containers: Vec<ContainerView>,
    /// The local storage that the pod uses of its limits; absent for a pod without limits, and before the first measurement.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub local_storage: Option<LocalStorage>,
    /// The lifecycle transitions, oldest first.
    pub transitions: Vec<TransitionView>,
    /// The last events, oldest first.
    pub events: Vec<EventView>,
    /// The other known pods with the same full name.
    pub others: Vec<SameNamePod>,
    /// The problems of the file or URL that the pod came from.
    pub problems: Vec<String>,
    #[serde(skip)]
    ready: Option<(usize, usize, u32)>,
    #[serde(skip)]
    age: String,
}

/// The lifecycle state of a pod's record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct LifecycleView {
    /// The state's name.
    pub state: &'static str,
    /// When the state began.
    #[serde(serialize_with = "time")]
    pub since: Time,
    /// Whether the pod was deleted or is no longer desired.
    pub deleted: bool,
    /// Whether the pod was evicted.
    pub evicted: bool,
    /// Whether the pod was created again before it finished.
    pub restart_requested: bool,
}

/// A lifecycle transition.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct TransitionView {
    /// The time of the transition.
    #[serde(serialize_with = "time")]
    pub at: Time,
    /// The state before; absent for the first transition.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<&'static str>,
    /// The state after.
    pub to: &'static str,
    /// The cause.
    pub cause: &'static str,
}

/// An event, with its repetitions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct EventView {
    /// `Normal` or `Warning`.
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// The reason.
    pub reason: Cow<'static, str>,
    /// The message.
    pub message: String,
    /// The container, such as `spec.containers{main}`; absent for an event of the whole pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub field_path: Option<String>,
    /// The annotations; absent if the event has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub annotations: Option<Box<EventAnnotations>>,
    /// The number of occurrences.
    pub count: u32,
    /// The first occurrence.
    #[serde(serialize_with = "time")]
    pub first: Time,
    /// The last occurrence.
    #[serde(serialize_with = "time")]
    pub last: Time,
}

/// Another pod with the same full name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct SameNamePod {
    /// The pod's UID.
    pub uid: String,
    /// The lifecycle state of the pod's record.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lifecycle: Option<&'static str>,
}

/// A pod in the list of all pods.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct PodLine {
    /// The pod's UID.
    pub uid: String,
    /// The pod's namespace.
    pub namespace: String,
    /// The pod's name.
    pub name: String,
    /// The phase in the pod's status.
    pub phase: &'static str,
    /// The state in one word, as in tables.
    pub state: String,
    /// The lifecycle state of the pod's record; absent without a record.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lifecycle: Option<&'static str>,
    /// The kind of the nearest wait.
    pub what: WaitKind,
    /// The nearest wait in a few words; empty if the pod waits for nothing.
    pub wait: String,
    /// When the wait began.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "wait::optional_time")]
    pub since: Option<Time>,
    /// The number of container restarts.
    pub restarts: u32,
}

/// The state of a pod and its nearest wait in one line.
fn heading(state: &str, chain: &[Wait], now: Time) -> String {
    match chain.first().map(|wait| wait.what) {
        Some(WaitKind::Rejected) => format!("{state}: it may not start on this node"),
        None | Some(WaitKind::Nothing) => format!("{state}, waits for nothing"),
        Some(_) => format!("{state}, waits for {}", chain::short(chain, now)),
    }
}

fn state(pod: &PodFacts, now: Time) -> String {
    match pod.summary(now) {
        Some(summary) => pod.state(&summary),
        None => "Terminating".to_owned(),
    }
}

fn line(context: &ExplainContext<'_>, pod: &PodFacts) -> PodLine {
    let chain = chain::chain(context, pod);
    PodLine {
        uid: pod.uid.to_string(),
        namespace: pod.full_name.namespace().to_owned(),
        name: pod.full_name.name().to_owned(),
        phase: pod.phase().as_str(),
        state: state(pod, context.now),
        lifecycle: pod.lifecycle().map(|lifecycle| lifecycle.as_str()),
        what: chain[0].what,
        wait: chain::short(&chain, context.now),
        since: chain[0].since,
        restarts: pod.summary(context.now).map_or(0, |summary| summary.restarts),
    }
}

fn explain(
    context: &ExplainContext<'_>,
    pod: &PodFacts,
    others: &[PodFacts],
    events: &[CountedEvent],
    problems: &[SourceProblem],
) -> Explanation {
    let now = context.now;
    let summary = pod.summary(now);
    let status = pod.status.as_deref();
    let text = |text: Option<&String>| text.filter(|text| !text.is_empty()).cloned();
    let chain = chain::chain(context, pod);
    let state = state(pod, now);
    Explanation {
        at: now,
        namespace: pod.full_name.namespace().to_owned(),
        name: pod.full_name.name().to_owned(),
        uid: pod.uid.to_string(),
        source: pod.object.as_ref().map(|object| object.annotation(SOURCE_ANNOTATION).unwrap_or("api").to_owned()),
        desired: pod.desired,
        phase: pod.phase().as_str(),
        summary: heading(&state, &chain, now),
        state,
        reason: text(status.and_then(|status| status.reason.as_ref())),
        message: text(status.and_then(|status| status.message.as_ref())),
        lifecycle: pod.snapshot.as_ref().map(|snapshot| LifecycleView {
            state: snapshot.lifecycle.as_str(),
            since: snapshot.transitions.last().map_or(snapshot.synced_at, |last| last.at),
            deleted: snapshot.deleted,
            evicted: snapshot.evicted,
            restart_requested: snapshot.restart_requested,
        }),
        containers: container_view::views(pod, &chain),
        chain,
        local_storage: pod.measured.as_ref().zip(pod.object.as_ref()).map(|(it, pod)| local_storage::view(pod, it)),
        transitions: transitions(pod),
        events: events.iter().map(event).collect(),
        others: others.iter().map(other).collect(),
        problems: problems
            .iter()
            // The warnings about a pod are its events.
            .filter(|problem| problem.severity == Severity::Fault)
            .filter(|problem| pod.desired && problem.pods.contains(&pod.full_name))
            .map(ToString::to_string)
            .collect(),
        ready: summary.as_ref().map(|summary| (summary.ready, summary.containers, summary.restarts)),
        age: summary.map(|summary| summary.age_column()).unwrap_or_default(),
    }
}

fn transitions(pod: &PodFacts) -> Vec<TransitionView> {
    let transitions = pod.snapshot.as_ref().map(|snapshot| &snapshot.transitions[..]).unwrap_or_default();
    let before = std::iter::once(None).chain(transitions.iter().map(|step| Some(step.to.as_str())));
    let transitions = transitions.iter().zip(before);
    transitions
        .map(|(step, from)| TransitionView { at: step.at, from, to: step.to.as_str(), cause: step.cause.as_str() })
        .collect()
}

fn event(seen: &CountedEvent) -> EventView {
    let kind = match seen.event.kind {
        EventType::Normal => "Normal",
        EventType::Warning => "Warning",
    };
    let PodEvent { reason, message, field_path, annotations, .. } = seen.event.clone();
    EventView { kind, reason, message, field_path, annotations, count: seen.count, first: seen.first, last: seen.last }
}

fn other(pod: &PodFacts) -> SameNamePod {
    SameNamePod { uid: pod.uid.to_string(), lifecycle: pod.lifecycle().map(|lifecycle| lifecycle.as_str()) }
}
