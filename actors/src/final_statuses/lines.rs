//! The lines of the file of final statuses, and those that have to be written. Pure.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::Ending;
use crate::ids::PodUid;

/// How many outdated lines the file may have, besides one for each entry.
pub(super) const OUTDATED_LINES: usize = 256;

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
    /// Grows with every change.
    pub(super) version: u64,
    /// The last version that is on disk.
    pub(super) stored: u64,
    /// The number of lines in the file.
    lines: usize,
    pub(super) unwritten: Unwritten,
}

/// The changes that are not in the file.
#[derive(Debug, Default)]
pub(super) enum Unwritten {
    /// The content of the file is not known, so all entries have to be saved.
    #[default]
    All,
    /// These lines have to be appended.
    Lines(Vec<Arc<str>>),
}

#[derive(Debug)]
pub(super) struct Entry {
    pub(super) ending: Ending,
    pub(super) record: Arc<str>,
    /// The version of the state that has this entry first.
    pub(super) version: u64,
}

/// The next write.
pub(super) enum Write {
    Append(Vec<Arc<str>>),
    Save(Vec<Arc<str>>),
}

impl State {
    /// The largest number of lines in the file before all entries are saved again.
    fn limit(&self) -> usize {
        2 * self.entries.len() + OUTDATED_LINES
    }

    /// Queues a line to be written. Returns the version of the state with this line.
    pub(super) fn push(&mut self, record: Arc<str>) -> u64 {
        self.version += 1;
        let limit = self.limit();
        match &mut self.unwritten {
            Unwritten::Lines(lines) if lines.len() < limit => lines.push(record),
            // If the disk cannot be written for hours, the queue must not fill the memory.
            unwritten => *unwritten = Unwritten::All,
        }
        self.version
    }

    /// Takes the next write. The state assumes that it succeeds.
    pub(super) fn take(&mut self) -> Write {
        match std::mem::replace(&mut self.unwritten, Unwritten::Lines(Vec::new())) {
            Unwritten::Lines(lines) if self.lines + lines.len() <= self.limit() => {
                self.lines += lines.len();
                Write::Append(lines)
            }
            Unwritten::Lines(_) | Unwritten::All => {
                self.lines = self.entries.len();
                Write::Save(self.entries.values().map(|entry| entry.record.clone()).collect())
            }
        }
    }
}
