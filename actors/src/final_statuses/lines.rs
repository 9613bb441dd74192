//! The lines of the file of final statuses. Pure.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::Ending;
use crate::ids::PodUid;
use crate::journal::{Lines, Write};

/// A line of the file. `S` is a status, or a reference to one.
#[derive(Serialize, Deserialize)]
#[serde(tag = "ending")]
pub(super) enum Line<S> {
    Rejected(FinalStatus<S>),
    Ended(FinalStatus<S>),
    Forgotten { uid: String },
}

/// The final status of one pod.
#[derive(Serialize, Deserialize)]
pub(super) struct FinalStatus<S> {
    pub(super) uid: String,
    /// The full name, for readers of the file.
    #[serde(default)]
    pub(super) pod: String,
    pub(super) status: S,
}

impl<S: Serialize> Line<S> {
    pub(super) fn to_record(&self) -> serde_json::Result<Arc<str>> {
        Ok(serde_json::to_string(self)?.into())
    }
}

#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) entries: BTreeMap<PodUid, Entry>,
    pub(super) lines: Lines,
}

#[derive(Debug)]
pub(super) struct Entry {
    pub(super) ending: Ending,
    pub(super) record: Arc<str>,
    /// The version of the state that has this entry first.
    pub(super) version: u64,
}

impl State {
    /// Queues a line to be written. Returns the version of the state with this line.
    pub(super) fn push(&mut self, record: Arc<str>) -> u64 {
        self.lines.push(Some(record), self.entries.len())
    }

    /// Takes the next write. The state assumes that it succeeds.
    pub(super) fn take(&mut self) -> Write {
        let all = || self.entries.values().map(|entry| entry.record.clone()).collect();
        self.lines.take(self.entries.len(), all)
    }
}
