//! What is kept beside the events of pod workers: what led to them, and the plans.

use std::time::Duration;

use crate::ids::{FullName, PodUid};
use crate::probes::{ProbeKind, ProbeResult};

use crate::codec::{Put, Read, Reader, coded};

/// Kinds of frames of notes.
const AGENT_STARTED: u8 = 32;
const AGENT_STOPS: u8 = 33;
const PASS: u8 = 34;
const SOURCE: u8 = 35;
const PROBE: u8 = 36;
/// A plan and what it was made from.
pub(crate) const PLAN: u8 = 40;

coded!(SourceChange: Added, Updated, Deleted, Reconciled, Removed);
coded!(ProbeKind: Startup, Liveness, Readiness);
coded!(ProbeResult: Unknown, Success, Failure);

/// Something that happened beside the pods' workers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Note {
    /// The agent began.
    AgentStarted {
        /// Its version.
        build: String,
        /// The node's name.
        node: String,
    },
    /// The agent was asked to end.
    AgentStops {
        /// By what.
        why: String,
    },
    /// A housekeeping pass ended early, or is the first that did not after one that did.
    Pass {
        /// How many pods the sources want.
        desired: u32,
        /// How many have a record.
        known: u32,
        /// How many the runtime listed.
        listed: u32,
        /// How long it took.
        took: Duration,
        /// Why it ended early, if it did.
        error: Option<String>,
    },
    /// A source said something new of a pod.
    Source {
        /// The pod.
        uid: PodUid,
        /// Its name.
        pod: FullName,
        /// `file`, `http` or `api`.
        source: String,
        /// What.
        change: SourceChange,
    },
    /// A probe changed its mind.
    Probe {
        /// The pod.
        uid: PodUid,
        /// The container.
        container: String,
        /// Which probe.
        kind: ProbeKind,
        /// What it says now.
        result: ProbeResult,
    },
}

/// What a source said of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SourceChange {
    /// It is new.
    Added,
    /// Its object changed.
    Updated,
    /// It is being deleted.
    Deleted,
    /// Its status changed.
    Reconciled,
    /// It is no longer wanted.
    Removed,
}

impl Note {
    /// The kind of its frame.
    pub(crate) fn kind(&self) -> u8 {
        match self {
            Note::AgentStarted { .. } => AGENT_STARTED,
            Note::AgentStops { .. } => AGENT_STOPS,
            Note::Pass { .. } => PASS,
            Note::Source { .. } => SOURCE,
            Note::Probe { .. } => PROBE,
        }
    }

    pub(crate) fn put(&self, bytes: &mut Vec<u8>) {
        match self {
            Note::AgentStarted { build, node } => {
                bytes.text(build);
                bytes.text(node);
            }
            Note::AgentStops { why } => bytes.text(why),
            Note::Pass { desired, known, listed, took, error } => {
                [desired, known, listed].into_iter().for_each(|count| bytes.number((*count).into()));
                bytes.duration(*took);
                bytes.flag(error.is_some());
                error.iter().for_each(|error| bytes.text(error));
            }
            Note::Source { uid, pod, source, change } => {
                bytes.uid(uid);
                bytes.full_name(pod);
                bytes.text(source);
                bytes.coded(*change);
            }
            Note::Probe { uid, container, kind, result } => {
                bytes.uid(uid);
                bytes.text(container);
                bytes.coded(*kind);
                bytes.coded(*result);
            }
        }
    }

    /// Reads a note; `None` if the kind is not one of a note.
    pub(crate) fn read(kind: u8, reader: &mut Reader<'_>) -> Read<Option<Self>> {
        let owned = |text: &str| text.to_owned();
        Ok(Some(match kind {
            AGENT_STARTED => Note::AgentStarted {
                build: reader.text("a version").map(owned)?,
                node: reader.text("a node's name").map(owned)?,
            },
            AGENT_STOPS => Note::AgentStops { why: reader.text("why the agent stops").map(owned)? },
            PASS => Note::Pass {
                desired: reader.small("a count of desired pods")?,
                known: reader.small("a count of known pods")?,
                listed: reader.small("a count of listed pods")?,
                took: reader.duration("how long a pass took")?,
                error: match reader.flag("whether a pass ended early")? {
                    true => Some(reader.text("an error").map(owned)?),
                    false => None,
                },
            },
            SOURCE => Note::Source {
                uid: reader.uid("a UID")?,
                pod: reader.full_name("a name")?,
                source: reader.text("a source").map(owned)?,
                change: reader.coded("what a source said")?,
            },
            PROBE => Note::Probe {
                uid: reader.uid("a UID")?,
                container: reader.text("a container's name").map(owned)?,
                kind: reader.coded("the kind of a probe")?,
                result: reader.coded("the result of a probe")?,
            },
            _ => return Ok(None),
        }))
    }

    /// The pod it is about, if it is about one.
    pub(crate) fn uid(&self) -> Option<&PodUid> {
        match self {
            Note::Source { uid, .. } | Note::Probe { uid, .. } => Some(uid),
            Note::AgentStarted { .. } | Note::AgentStops { .. } | Note::Pass { .. } => None,
        }
    }

    /// For people.
    pub(crate) fn describe(&self) -> String {
        match self {
            Note::AgentStarted { build, node } => format!("agent {build} starts on {node}"),
            Note::AgentStops { why } => format!("agent is asked to stop: {why}"),
            Note::Pass { desired, known, listed, took, error } => {
                let ended = error.as_ref().map_or(String::new(), |error| format!(", ended early: {error}"));
                format!(
                    "housekeeping: {desired} desired, {known} known, {listed} in the runtime, took {} ms{ended}",
                    took.as_millis()
                )
            }
            Note::Source { source, change, .. } => {
                let change = match change {
                    SourceChange::Added => "is new",
                    SourceChange::Updated => "changed",
                    SourceChange::Deleted => "is being deleted",
                    SourceChange::Reconciled => "has another status",
                    SourceChange::Removed => "is no longer wanted",
                };
                format!("source {source}: the pod {change}")
            }
            Note::Probe { container, kind, result, .. } => {
                let result = match result {
                    ProbeResult::Unknown => "is open again",
                    ProbeResult::Success => "passes",
                    ProbeResult::Failure => "fails",
                };
                format!("{} probe of {container} {result}", kind.to_string().to_lowercase())
            }
        }
    }
}
