//! Notes: the events outside of pod workers that a recording keeps, because they lead to events of pod workers. Pure.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::codec;
use crate::ids::{FullName, PodUid};
use crate::probes::{ProbeKind, ProbeResult};

/// An event of the agent, of housekeeping, of a source or of a probe.
// A recording has the index of the variant: another order of variants is another format.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Note {
    /// The agent started.
    AgentStarted {
        /// The version of the agent.
        #[serde(with = "codec::text")]
        build: String,
        /// The node's name.
        #[serde(with = "codec::text")]
        node: String,
    },
    /// A stop of the agent was requested.
    AgentStops {
        /// The cause, such as a signal.
        #[serde(with = "codec::text")]
        why: String,
    },
    /// A housekeeping pass failed, or is the first that succeeded after a failed one.
    Pass {
        /// The number of desired pods.
        desired: u32,
        /// The number of pods with a record.
        known: u32,
        /// The number of pods that the runtime listed.
        listed: u32,
        /// The duration of the pass.
        took: Duration,
        /// The error that ended the pass early.
        #[serde(with = "codec::some_text")]
        error: Option<String>,
    },
    /// A source reported a change of a pod.
    Source {
        /// The pod's UID.
        #[serde(with = "codec::uid")]
        uid: PodUid,
        /// The pod's full name.
        #[serde(with = "codec::full_name")]
        pod: FullName,
        /// `file`, `http` or `api`.
        #[serde(with = "codec::text")]
        source: String,
        /// The change.
        change: SourceChange,
    },
    /// The result of a probe changed.
    Probe {
        /// The pod's UID.
        #[serde(with = "codec::uid")]
        uid: PodUid,
        /// The container's name.
        #[serde(with = "codec::text")]
        container: String,
        /// The kind of the probe.
        kind: ProbeKind,
        /// The new result.
        result: ProbeResult,
    },
    /// Admission decided that a pod waits or may not start, or that it is stopped for a critical pod. Older recordings have no such
    /// notes.
    Admission {
        /// The pod's UID.
        #[serde(with = "codec::uid")]
        uid: PodUid,
        /// The pod's full name.
        #[serde(with = "codec::full_name")]
        pod: FullName,
        /// The decision.
        decision: AdmissionNote,
    },
}

/// A decision of admission on a pod.
// A recording contains the index of the variant, so a change of the order changes the format.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AdmissionNote {
    /// The pod may start, after it had waited or had been rejected.
    Admitted,
    /// The pod waits for what other pods give back.
    Waits {
        /// What the node lacks, as text for users.
        #[serde(with = "codec::text")]
        lack: String,
        /// The number of pods that are stopped for this pod. 0 if other pods give enough back anyway.
        victims: u32,
    },
    /// The pod is stopped, so that a critical pod can start.
    Preempted {
        /// The critical pod.
        #[serde(with = "codec::full_name")]
        by: FullName,
    },
    /// The pod may not start.
    Rejected {
        /// The reason of its status.
        #[serde(with = "codec::text")]
        reason: String,
        /// The message of its event.
        #[serde(with = "codec::text")]
        message: String,
    },
}

/// A change of a pod in its source.
// A recording has the index of the variant: another order of variants is another format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SourceChange {
    /// The pod is new.
    Added,
    /// The spec or the metadata changed.
    Updated,
    /// The pod has a deletion timestamp now.
    Deleted,
    /// Only the status changed.
    Reconciled,
    /// The source no longer has the pod.
    Removed,
}

impl Note {
    /// The pod that the note is about, if it is about one.
    pub(crate) fn uid(&self) -> Option<&PodUid> {
        match self {
            Note::Source { uid, .. } | Note::Probe { uid, .. } | Note::Admission { uid, .. } => Some(uid),
            Note::AgentStarted { .. } | Note::AgentStops { .. } | Note::Pass { .. } => None,
        }
    }

    /// A phrase for people.
    pub(crate) fn describe(&self) -> String {
        match self {
            Note::AgentStarted { build, node } => format!("agent {build} started on {node}"),
            Note::AgentStops { why } => format!("stop of the agent was requested: {why}"),
            Note::Pass { desired, known, listed, took, error } => {
                let ended = error.as_ref().map_or(String::new(), |error| format!(", failed: {error}"));
                format!(
                    "housekeeping: {desired} desired, {known} known, {listed} in the runtime, took {} ms{ended}",
                    took.as_millis()
                )
            }
            Note::Source { source, change, .. } => {
                let change = match change {
                    SourceChange::Added => "pod added",
                    SourceChange::Updated => "pod changed",
                    SourceChange::Deleted => "pod has a deletion timestamp",
                    SourceChange::Reconciled => "pod has another status",
                    SourceChange::Removed => "pod removed",
                };
                format!("source {source}: {change}")
            }
            Note::Probe { container, kind, result, .. } => {
                let result = match result {
                    ProbeResult::Unknown => "has no result",
                    ProbeResult::Success => "succeeds",
                    ProbeResult::Failure => "fails",
                };
                format!("{} probe of {container} {result}", kind.to_string().to_lowercase())
            }
            Note::Admission { decision, .. } => match decision {
                AdmissionNote::Admitted => "admission: the pod may start now".to_owned(),
                AdmissionNote::Waits { lack, victims: 0 } => {
                    format!("admission: the pod waits for what other pods give back anyway: {lack}")
                }
                AdmissionNote::Waits { lack, victims: 1 } => {
                    format!("admission: the pod waits, and 1 other pod is stopped for it: {lack}")
                }
                AdmissionNote::Waits { lack, victims } => {
                    format!("admission: the pod waits, and {victims} other pods are stopped for it: {lack}")
                }
                AdmissionNote::Preempted { by } => format!("admission: the pod is stopped for the critical pod {by}"),
                AdmissionNote::Rejected { reason, message } => format!("admission: rejected with {reason}: {message}"),
            },
        }
    }
}
