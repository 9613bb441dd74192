//! Why a pod is where it is: what it is, what it waits for, and how it came there.
//!
//! [`explain`] turns facts into an [`Explanation`]; `text` writes one for people, serde for programs, by field names that
//! stay. All of it is pure: the facts come from a [`View`](super::view::View) or from a test.

mod containers;
mod runs;
mod short;
mod text;
mod waits;

#[cfg(test)]
mod tests;

use std::borrow::Cow;

use podwright::actors::ids::{FullName, PodUid};
use podwright::actors::ports::{EventType, SourceProblem};
use podwright::actors::time::Time;
use serde::Serialize;

use super::events::Seen;
use super::view::PodFacts;
use runs::ContainerView;

pub(crate) use short::short;
pub(crate) use waits::waits;

/// All that an explanation is made of.
pub(crate) struct Facts<'a> {
    pub(crate) now: Time,
    /// The pod.
    pub(crate) pod: &'a PodFacts,
    /// Earlier lives of the same full name that are still known.
    pub(crate) others: &'a [PodFacts],
    /// Finds the pods that it waits for.
    pub(crate) find: &'a dyn Fn(&PodUid) -> Option<PodFacts>,
    /// Its last events, the newest last.
    pub(crate) events: &'a [Seen],
    /// What its source cannot use at present.
    pub(crate) problems: &'a [SourceProblem],
}

/// The answer. Times are RFC 3339.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Explanation {
    /// When it was true.
    pub(crate) at: String,
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) uid: String,
    /// `file`, `http` or `api`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) source: Option<String>,
    /// Whether a source wants it.
    pub(crate) desired: bool,
    pub(crate) phase: &'static str,
    /// One word, as tables show it.
    pub(crate) state: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reason: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) message: Option<String>,
    /// How many containers are ready, and how often they were started again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) tally: Option<Tally>,
    /// Its containers, init containers first.
    pub(crate) containers: Vec<ContainerView>,
    /// Where its record in the engine stands; absent if it has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) lifecycle: Option<Stands>,
    /// What it waits for, the nearest first.
    pub(crate) waits: Vec<Wait>,
    /// The moves of its life, oldest first.
    pub(crate) transitions: Vec<Move>,
    /// Its last events, oldest first.
    pub(crate) events: Vec<Event>,
    /// UIDs of the same full name that are still known.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) others: Vec<Other>,
    /// What its source cannot use, and says this pod's name.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) problems: Vec<String>,
    #[serde(skip)]
    now: Time,
    #[serde(skip)]
    age: String,
}

/// How many containers are ready, and how often they were started again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Tally {
    pub(crate) ready: usize,
    pub(crate) all: usize,
    pub(crate) restarts: u32,
}

/// A lifecycle and since when.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Stands {
    pub(crate) state: &'static str,
    #[serde(serialize_with = "time")]
    pub(crate) since: Time,
    /// Deleted, or wanted by nobody any more.
    pub(crate) deleted: bool,
    /// Stopped for want of resources.
    pub(crate) evicted: bool,
    /// Created again before this life ended.
    pub(crate) restart_requested: bool,
}

/// One thing that is waited for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Wait {
    /// Which kind of wait; the words stay.
    pub(crate) kind: Kind,
    /// What, for people.
    pub(crate) what: String,
    /// The container that waits, if it is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) container: Option<String>,
    /// The UID of the pod that is waited for, if it is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) pod: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "optional_time")]
    pub(crate) since: Option<Time>,
    /// How often it was tried in a row.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) tries: Option<u32>,
    /// When it is tried next, or ends.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "optional_time")]
    pub(crate) until: Option<Time>,
    /// What would end it.
    pub(crate) released_by: String,
    /// What that in turn waits for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) because: Vec<Wait>,
}

/// Kinds of waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Kind {
    /// The engine has not heard of the pod.
    Delivery,
    /// The pod may not start here.
    Rejected,
    /// The worker has not taken the last update.
    Worker,
    /// Another pod has the full name.
    FullName,
    /// A hook call is under way.
    HookCall,
    /// Containers have time to stop.
    Grace,
    /// A hook failed and is tried again.
    Retry,
    /// A container waits out its crash backoff.
    CrashBackoff,
    /// An image is not there.
    Image,
    /// A container cannot be started.
    ContainerStart,
    /// An init container runs.
    InitContainer,
    /// A startup or readiness probe has not passed.
    Probe,
    /// A readiness gate is not met.
    ReadinessGate,
    /// Nothing but the next re-check.
    Resync,
    /// Over, and still wanted or not yet dropped.
    Removal,
}

/// One move.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Move {
    #[serde(serialize_with = "time")]
    pub(crate) at: Time,
    pub(crate) to: &'static str,
    pub(crate) cause: &'static str,
}

/// One event, however often it came.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Event {
    #[serde(rename = "type")]
    pub(crate) kind: &'static str,
    pub(crate) reason: Cow<'static, str>,
    pub(crate) message: String,
    pub(crate) count: u32,
    #[serde(serialize_with = "time")]
    pub(crate) first: Time,
    #[serde(serialize_with = "time")]
    pub(crate) last: Time,
}

/// Another UID of the same full name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Other {
    pub(crate) uid: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) lifecycle: Option<&'static str>,
}

fn time<S: serde::Serializer>(time: &Time, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(time)
}

fn optional_time<S: serde::Serializer>(at: &Option<Time>, to: S) -> Result<S::Ok, S::Error> {
    match at {
        Some(at) => time(at, to),
        None => to.serialize_none(),
    }
}

/// Explains a pod.
pub(crate) fn explain(facts: &Facts<'_>) -> Explanation {
    let &Facts { now, pod, others, find, events, problems } = facts;
    let summary = pod.summary(now);
    let status = pod.status.as_deref();
    let text = |text: Option<&String>| text.filter(|text| !text.is_empty()).cloned();
    let stands = pod.snapshot.as_ref().map(|snapshot| Stands {
        state: snapshot.lifecycle.as_str(),
        since: snapshot.transitions.last().map_or(snapshot.synced_at, |last| last.at),
        deleted: snapshot.deleted,
        evicted: snapshot.evicted,
        restart_requested: snapshot.restart_requested,
    });
    Explanation {
        at: now.to_string(),
        namespace: pod.full_name.namespace().to_owned(),
        name: pod.full_name.name().to_owned(),
        uid: pod.uid.to_string(),
        source: pod.object.as_ref().map(|object| {
            let annotation = object.annotation(podwright::actors::pod::SOURCE_ANNOTATION);
            annotation.unwrap_or("api").to_owned()
        }),
        desired: pod.desired,
        phase: pod.phase().as_str(),
        state: summary.as_ref().map_or_else(|| pod.phase().as_str().to_owned(), |summary| pod.state(summary)),
        reason: text(status.and_then(|status| status.reason.as_ref())),
        message: text(status.and_then(|status| status.message.as_ref())),
        tally: summary.as_ref().map(|summary| Tally {
            ready: summary.ready,
            all: summary.containers,
            restarts: summary.restarts,
        }),
        containers: runs::containers(pod),
        lifecycle: stands,
        waits: waits(pod, find),
        transitions: pod
            .snapshot
            .iter()
            .flat_map(|snapshot| &snapshot.transitions)
            .map(|step| Move { at: step.at, to: step.to.as_str(), cause: step.cause.as_str() })
            .collect(),
        events: events.iter().map(event).collect(),
        others: others
            .iter()
            .map(|other| Other { uid: other.uid.to_string(), lifecycle: other.lifecycle().map(|l| l.as_str()) })
            .collect(),
        problems: mentions(problems, pod.full_name.name()).map(ToString::to_string).collect(),
        now,
        age: summary.map(|summary| summary.age_column()).unwrap_or_default(),
    }
}

/// The problems that are about a pod of this name, as written or as completed with the node's name.
pub(crate) fn mentions<'a>(problems: &'a [SourceProblem], name: &'a str) -> impl Iterator<Item = &'a SourceProblem> {
    problems.iter().filter(move |problem| {
        let written = problem.message.split_once("pod \"").and_then(|(_, rest)| rest.split_once('"'));
        written.is_some_and(|(written, _)| {
            !written.is_empty() && (name == written || name.strip_prefix(written).is_some_and(|n| n.starts_with('-')))
        })
    })
}

/// The names nearest to one that is not there, the nearest first: at most three, and none that has little in common.
pub(crate) fn nearest(wanted: &FullName, known: impl IntoIterator<Item = FullName>) -> Vec<FullName> {
    let mut near: Vec<(f64, FullName)> = known
        .into_iter()
        .map(|other| {
            // What people leave out is the node's name at the end.
            let likeness = match other.name().starts_with(wanted.name()) {
                true => 1.0,
                false => strsim::jaro_winkler(wanted.name(), other.name()),
            };
            let away = if other.namespace() == wanted.namespace() { 0.0 } else { 0.05 };
            (likeness - away, other)
        })
        .filter(|(likeness, _)| *likeness > 0.8)
        .collect();
    near.sort_by(|a, b| b.0.total_cmp(&a.0).then_with(|| a.1.cmp(&b.1)));
    near.dedup();
    near.into_iter().take(3).map(|(_, name)| name).collect()
}

fn event(seen: &Seen) -> Event {
    let kind = match seen.event.kind {
        EventType::Normal => "Normal",
        EventType::Warning => "Warning",
    };
    Event {
        kind,
        reason: seen.event.reason.clone(),
        message: seen.event.message.clone(),
        count: seen.count,
        first: seen.first,
        last: seen.last,
    }
}
