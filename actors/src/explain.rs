//! Why a pod is where it is: what it is, what it waits for, and how it came there.
//!
//! Every wait has a name and is a value ([`Wait`]): what, on whom, since when, tried how often, next when, released by
//! what. A pod's waits make a chain that follows references: a static pod waits for its name, which a pod holds that
//! waits for its containers to stop, one of which does not end. A chain never runs in a circle; where it would, it says so
//! and ends.
//!
//! ```text
//!   engine, statuses, runtime, housekeeping,     Explainer        chain        Explanation: text, JSON
//!   start governor, image pulls, shutdown    --------------> facts ------> waits ---> PodLine: one per pod
//!                                              (lookup.rs)                    `----> an event, once a wait is long
//! ```
//!
//! All but [`Explainer`], which gathers the facts, is pure. The field names of what is serialized stay; times are
//! RFC 3339.

mod activities;
mod chain;
mod containers;
pub(crate) mod facts;
mod health;
mod lookup;
mod patience;
mod runs;
mod text;
mod wait;

#[cfg(test)]
mod tests;

use std::borrow::Cow;

use k8s_openapi::api::core::v1::Container;
use serde::Serialize;

use crate::pod::SOURCE_ANNOTATION;
use crate::ports::{EventType, PodEvent, SourceProblem};
use crate::time::Time;

use chain::Cx;
use wait::time;

pub use facts::{Failing, NodeState, PodFacts, SeenEvent};
pub use health::{Health, is_stuck};
pub use lookup::{Explainer, Look};
pub use patience::Patience;
pub use runs::Run;
pub use wait::{LifecycleHook, On, Subject, Wait, What};

/// Why one pod is where it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Explanation {
    /// When it was true.
    #[serde(serialize_with = "time")]
    pub at: Time,
    /// The pod's namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: String,
    /// `file`, `http` or `api`; absent if only the runtime knows the pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// Whether a source wants it.
    pub desired: bool,
    /// The phase that its status shows.
    pub phase: &'static str,
    /// One word, as tables show it.
    pub state: String,
    /// The state and the nearest wait, in one line.
    pub summary: String,
    /// The reason in its status.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The message in its status.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Where its record in the engine stands; absent if it has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lifecycle: Option<Stands>,
    /// What it waits for, in the order in which people read it.
    pub chain: Vec<Wait>,
    /// Its containers: init, regular, ephemeral.
    pub containers: Vec<ContainerView>,
    /// The moves of its life, oldest first.
    pub transitions: Vec<Move>,
    /// Its last events, oldest first.
    pub events: Vec<EventView>,
    /// UIDs of the same full name that are still known.
    pub others: Vec<Other>,
    /// What cannot be used of the file or URL that it came from.
    pub problems: Vec<String>,
    #[serde(skip)]
    ready: Option<(usize, usize, u32)>,
    #[serde(skip)]
    age: String,
}

/// A lifecycle and since when.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Stands {
    /// Its word.
    pub state: &'static str,
    /// Since when.
    #[serde(serialize_with = "time")]
    pub since: Time,
    /// Deleted, or wanted by nobody any more.
    pub deleted: bool,
    /// Stopped for want of resources.
    pub evicted: bool,
    /// Created again before this life ended.
    pub restart_requested: bool,
}

/// One container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ContainerView {
    /// Its name.
    pub name: String,
    /// `init`, `regular` or `ephemeral`.
    pub kind: &'static str,
    /// `waiting`, `running`, `terminated`, or `unknown` before anything is known of it.
    pub state: &'static str,
    /// The container's health; `standing` in JSON.
    #[serde(rename = "standing")]
    pub health: Health,
    /// Why it waits or ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Whether it is ready.
    pub ready: bool,
    /// How often it was started again.
    pub restarts: i32,
    /// The run that goes on, or that was the last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run: Option<Run>,
    /// The run before that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last: Option<Run>,
    /// What it waits for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub waits: Vec<Wait>,
}

/// One move.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Move {
    /// When.
    #[serde(serialize_with = "time")]
    pub at: Time,
    /// From where; absent for the first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<&'static str>,
    /// Where to.
    pub to: &'static str,
    /// Why.
    pub cause: &'static str,
}

/// One event, however often it came.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct EventView {
    /// `Normal` or `Warning`.
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// Its reason.
    pub reason: Cow<'static, str>,
    /// What happened.
    pub message: String,
    /// How often.
    pub count: u32,
    /// When first.
    #[serde(serialize_with = "time")]
    pub first: Time,
    /// When last.
    #[serde(serialize_with = "time")]
    pub last: Time,
}

/// Another UID of the same full name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Other {
    /// The UID.
    pub uid: String,
    /// Where its record stands.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lifecycle: Option<&'static str>,
}

/// One pod in a list of all.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PodLine {
    /// Its UID.
    pub uid: String,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// The phase that its status shows.
    pub phase: &'static str,
    /// One word, as tables show it.
    pub state: String,
    /// Where its record stands; absent if it has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lifecycle: Option<&'static str>,
    /// Which kind of wait is the nearest.
    pub what: What,
    /// The nearest wait in a few words; empty if nothing is waited for.
    pub wait: String,
    /// Since when it waits.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "wait::optional_time")]
    pub since: Option<Time>,
    /// How often its containers were started again.
    pub restarts: u32,
}

/// The state of a pod and its nearest wait, in one line.
fn heading(state: &str, chain: &[Wait], now: Time) -> String {
    match chain.first().map(|wait| wait.what) {
        Some(What::Rejected) => format!("{state}: it may not start on this node"),
        None | Some(What::Nothing) => format!("{state}, waits for nothing"),
        Some(_) => format!("{state}, waits for {}", chain::short(chain, now)),
    }
}

fn state(pod: &PodFacts, now: Time) -> String {
    match pod.summary(now) {
        Some(summary) => pod.state(&summary),
        None => "Terminating".to_owned(),
    }
}

fn line(cx: &Cx<'_>, pod: &PodFacts) -> PodLine {
    let chain = chain::chain(cx, pod);
    PodLine {
        uid: pod.uid.to_string(),
        namespace: pod.full_name.namespace().to_owned(),
        name: pod.full_name.name().to_owned(),
        phase: pod.phase().as_str(),
        state: state(pod, cx.now),
        lifecycle: pod.lifecycle().map(|lifecycle| lifecycle.as_str()),
        what: chain[0].what,
        wait: chain::short(&chain, cx.now),
        since: chain[0].since,
        restarts: pod.summary(cx.now).map_or(0, |summary| summary.restarts),
    }
}

fn explain(
    cx: &Cx<'_>,
    pod: &PodFacts,
    others: &[PodFacts],
    events: &[SeenEvent],
    problems: &[SourceProblem],
) -> Explanation {
    let now = cx.now;
    let summary = pod.summary(now);
    let status = pod.status.as_deref();
    let text = |text: Option<&String>| text.filter(|text| !text.is_empty()).cloned();
    let chain = chain::chain(cx, pod);
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
        lifecycle: pod.snapshot.as_ref().map(|snapshot| Stands {
            state: snapshot.lifecycle.as_str(),
            since: snapshot.transitions.last().map_or(snapshot.synced_at, |last| last.at),
            deleted: snapshot.deleted,
            evicted: snapshot.evicted,
            restart_requested: snapshot.restart_requested,
        }),
        containers: views(pod, &chain),
        chain,
        transitions: moves(pod),
        events: events.iter().map(event).collect(),
        others: others.iter().map(other).collect(),
        problems: problems
            .iter()
            .filter(|problem| pod.desired && problem.pods.contains(&pod.full_name))
            .map(ToString::to_string)
            .collect(),
        ready: summary.as_ref().map(|summary| (summary.ready, summary.containers, summary.restarts)),
        age: summary.map(|summary| summary.age_column()).unwrap_or_default(),
    }
}

fn moves(pod: &PodFacts) -> Vec<Move> {
    let transitions = pod.snapshot.as_ref().map(|snapshot| &snapshot.transitions[..]).unwrap_or_default();
    let before = std::iter::once(None).chain(transitions.iter().map(|step| Some(step.to.as_str())));
    let moves = transitions.iter().zip(before);
    moves.map(|(step, from)| Move { at: step.at, from, to: step.to.as_str(), cause: step.cause.as_str() }).collect()
}

fn views(pod: &PodFacts, chain: &[Wait]) -> Vec<ContainerView> {
    let Some(object) = &pod.object else { return vec![] };
    let status = pod.status.as_deref();
    let init = status.and_then(|status| status.init_container_statuses.as_deref()).unwrap_or_default();
    let regular = status.and_then(|status| status.container_statuses.as_deref()).unwrap_or_default();
    let ephemeral = status.and_then(|status| status.ephemeral_container_statuses.as_deref()).unwrap_or_default();
    let names =
        |containers: &[Container]| containers.iter().map(|container| container.name.clone()).collect::<Vec<_>>();
    let debugging = object.ephemeral_containers().iter().map(|container| container.name.clone()).collect();
    let lists = [
        (names(object.init_containers()), init, "init"),
        (names(object.containers()), regular, "regular"),
        (debugging, ephemeral, "ephemeral"),
    ];
    let mut views = Vec::new();
    for (names, statuses, kind) in lists {
        for name in names {
            let have = statuses.iter().find(|have| have.name == name);
            let state = have.and_then(|have| have.state.as_ref());
            let waiting = state.and_then(|state| state.waiting.as_ref());
            let ended = state.and_then(|state| state.terminated.as_ref());
            let running = state.and_then(|state| state.running.as_ref());
            views.push(ContainerView {
                kind,
                state: match (waiting, running, ended) {
                    (Some(_), ..) => "waiting",
                    (_, Some(_), _) => "running",
                    (.., Some(_)) => "terminated",
                    (None, None, None) => "unknown",
                },
                health: have.map_or(Health::Waiting, |have| Health::of(have, kind == "ephemeral")),
                reason: waiting.and_then(|w| w.reason.clone()).or_else(|| ended.and_then(|end| end.reason.clone())),
                ready: have.is_some_and(|have| have.ready),
                restarts: have.map_or(0, |have| have.restart_count),
                run: state.and_then(runs::run),
                last: have.and_then(|have| have.last_state.as_ref()).and_then(runs::run),
                // What other pods in the chain wait for is theirs.
                waits: own(chain).filter(|wait| wait.container.as_ref() == Some(&name)).cloned().collect(),
                name,
            });
        }
    }
    views
}

/// The part of a chain that is about the pod itself.
fn own(chain: &[Wait]) -> impl Iterator<Item = &Wait> {
    chain.iter().take_while(|wait| wait.what != What::FullName)
}

fn event(seen: &SeenEvent) -> EventView {
    let kind = match seen.event.kind {
        EventType::Normal => "Normal",
        EventType::Warning => "Warning",
    };
    let PodEvent { reason, message, .. } = &seen.event;
    let (first, last) = (seen.first, seen.last);
    EventView { kind, reason: reason.clone(), message: message.clone(), count: seen.count, first, last }
}

fn other(pod: &PodFacts) -> Other {
    Other { uid: pod.uid.to_string(), lifecycle: pod.lifecycle().map(|lifecycle| lifecycle.as_str()) }
}
