//! The final statuses of pods that were rejected or have ended. A final status is on disk before it is published, so that an
//! agent that restarts never runs such a pod again (POD-W13).
//!
//! ```text
//!  dispatcher: a rejection ---+                         +-- written --> status, event
//!                             +-> note -> one writer ---+
//!  hooks: a final status -----+             |           +-- written --> status
//!  housekeeping: retain --------------------+  CheckpointWriter::append, sometimes CheckpointWriter::save
//! ```
//!
//! The store has an entry for as long as the pod's status is kept: until no source desires the pod and the pod is cleaned up.
//! Changes that arrive during a write go into the next write, so a thousand pods that end together cost two writes. The next
//! agent restores the statuses and starts none of these pods.
//!
//! A change appends one line to the file, and the last line of a pod is its final status. Once the file has more than twice as
//! many lines as entries, plus `OUTDATED_LINES`, all entries are saved again (see `actors/src/journal.rs`).
//!
//! A disk that cannot be written delays a status by at most `WRITE_TIMEOUT`. The failure is logged, the decision
//! remains in force, and the writer tries again.
//!
//! A static pod whose source has it again while it stops has not ended: it starts anew after its stop. The store knows these pods too, so
//! that nothing that is left of such a pod counts as its end. Only this agent remembers that.
//!
//! If another node of the process opens the file, this store writes nothing more, and its node publishes no more final statuses.

mod lines;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use k8s_openapi::api::core::v1::PodStatus;
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use self::lines::{Entry, FinalStatus, Line, State};
use crate::admission::is_lack;
use crate::ids::PodUid;
use crate::journal::{Journal, Journaled, NotStored, Patience, WRITE_TIMEOUT, Write};
use crate::pod::{Phase, PodObject};
use crate::ports::{Checkpoint, CheckpointError, OpenCheckpoint};
use crate::status::reasons::{NODE_SHUTDOWN, TERMINATED};
use crate::text::error_chain;

/// Why a status is final.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// Admission rejected the pod, so it has no containers.
    Rejected,
    /// The pod ended. It may have containers and volumes to clean up.
    Ended,
}

/// Whether a status is final: no later agent may run the pod.
///
/// The status of a static pod that [runs again after a shutdown](runs_again_after_shutdown) is not final. Neither is the status of a static
/// pod that was rejected because it lacked something which other pods used: the next agent judges it again.
pub fn is_final(pod: &PodObject, status: &PodStatus) -> bool {
    let lacked_something = pod.is_static() && status.reason.as_deref().is_some_and(is_lack);
    let runs_again = lacked_something || runs_again_after_shutdown(pod, status);
    Phase::parse(status.phase.as_deref()).is_terminal() && !runs_again
}

/// Whether a static pod failed only because its node shut down. No controller would replace the pod, so the next agent runs it,
/// unless its restart policy is `Never` and it had started.
pub fn runs_again_after_shutdown(pod: &PodObject, status: &PodStatus) -> bool {
    let runs_once = pod.spec().restart_policy.as_deref() == Some("Never");
    let restarts = match status.reason.as_deref() {
        Some(NODE_SHUTDOWN) => true,
        Some(TERMINATED) => !runs_once,
        _ => false,
    };
    pod.is_static() && Phase::parse(status.phase.as_deref()) == Phase::Failed && restarts
}

/// Another node of this process has opened the file of final statuses, so this store no longer writes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("another node of this process has opened the file of final statuses")]
pub struct Superseded;

/// The final statuses. The dispatcher and the hooks add them, and [`run`](FinalStatusStore::run) writes them.
pub struct FinalStatusStore {
    state: Mutex<State>,
    /// The static pods that start anew once their records are forgotten.
    anew: Mutex<BTreeSet<PodUid>>,
    journal: Journal,
}

impl FinalStatusStore {
    /// Reads the final statuses that an earlier agent wrote, and returns them beside the store. Blocks. Earlier stores of the
    /// same file are superseded.
    ///
    /// # Errors
    /// [`CheckpointError`] if the file exists and cannot be read.
    pub fn open(checkpoint: &dyn Checkpoint) -> Result<(Self, Vec<(PodUid, PodStatus)>), CheckpointError> {
        let OpenCheckpoint { records, writer } = checkpoint.open()?;
        let mut state = State::default();
        let mut statuses = BTreeMap::new();
        for record in records {
            let (ending, status) = match serde_json::from_str::<Line<PodStatus>>(&record) {
                Ok(Line::Rejected(status)) => (Ending::Rejected, status),
                Ok(Line::Ended(status)) => (Ending::Ended, status),
                Ok(Line::Forgotten { uid }) => {
                    let uid = PodUid::new(&uid);
                    state.entries.remove(&uid);
                    statuses.remove(&uid);
                    continue;
                }
                Err(error) => {
                    tracing::error!(%error, "cannot read a line of the final statuses: its pod may be started again");
                    continue;
                }
            };
            let uid = PodUid::new(&status.uid);
            state.entries.insert(uid.clone(), Entry { ending, record: record.into(), version: 0 });
            statuses.insert(uid, status.status);
        }
        let journal = Journal::new(writer, Patience::UntilFailure);
        let final_statuses = FinalStatusStore { state: Mutex::new(state), anew: Mutex::default(), journal };
        Ok((final_statuses, statuses.into_iter().collect()))
    }

    /// Why the status of a pod is final; `None` if it is not.
    pub fn ending(&self, uid: &PodUid) -> Option<Ending> {
        self.state.lock().entries.get(uid).map(|entry| entry.ending)
    }

    /// Records that a static pod starts anew once its record is forgotten: its source has it again, and it had not ended before its stop.
    pub(crate) fn start_anew(&self, uid: &PodUid) {
        self.anew.lock().insert(uid.clone());
    }

    /// Records that a pod does not start anew, or does so now.
    pub(crate) fn end_stays(&self, uid: &PodUid) {
        self.anew.lock().remove(uid);
    }

    /// Whether a static pod starts anew once its record is forgotten.
    pub(crate) fn starts_anew(&self, uid: &PodUid) -> bool {
        self.anew.lock().contains(uid)
    }

    /// Whether the newest final status of a pod is on disk, so that a later agent does not run the pod.
    pub fn is_stored(&self, uid: &PodUid) -> bool {
        let stored = self.journal.stored();
        self.state.lock().entries.get(uid).is_some_and(|entry| entry.version <= stored)
    }

    /// Adds a final status. Returns false if the store has the same one already, and still writes. The status is on disk once
    /// [`written`](FinalStatusStore::written) returns `Ok`.
    pub fn note(&self, pod: &PodObject, ending: Ending, status: &PodStatus) -> bool {
        let status = FinalStatus { uid: pod.uid().to_string(), pod: pod.full_name().to_string(), status };
        let line = match ending {
            Ending::Rejected => Line::Rejected(status),
            Ending::Ended => Line::Ended(status),
        };
        let record = match line.to_record() {
            Ok(record) => record,
            Err(error) => {
                tracing::error!(pod = %pod.full_name(), %error, "cannot encode the final status of a pod");
                return false;
            }
        };
        let mut state = self.state.lock();
        if state.entries.get(pod.uid()).is_some_and(|known| known.record == record) {
            // The status of a superseded store may not be on disk, so the caller has to wait for the answer of `written`.
            return self.journal.is_superseded();
        }
        let version = state.push(record.clone());
        state.entries.insert(pod.uid().clone(), Entry { ending, record, version });
        drop(state);
        self.journal.wake();
        true
    }

    /// Drops the final statuses of the pods for which `keep` returns false.
    pub fn retain(&self, mut keep: impl FnMut(&PodUid) -> bool) {
        self.anew.lock().retain(&mut keep);
        let mut state = self.state.lock();
        let dropped: Vec<PodUid> = state.entries.extract_if(.., |uid, _| !keep(uid)).map(|(uid, _)| uid).collect();
        for uid in &dropped {
            match (Line::<()>::Forgotten { uid: uid.to_string() }).to_record() {
                Ok(record) => {
                    state.push(record);
                }
                Err(error) => tracing::error!(%uid, %error, "cannot encode that a final status was dropped"),
            }
        }
        drop(state);
        if !dropped.is_empty() {
            self.journal.wake();
        }
    }

    /// Waits until every status added so far is on disk, or until a write fails or takes longer than `WRITE_TIMEOUT`.
    /// Cancel safe.
    ///
    /// # Errors
    /// [`Superseded`] if another node has opened the file and some of the statuses are not in it. They will never be
    /// written, so the caller must not publish them. The other node reports the end of these pods.
    pub async fn written(&self) -> Result<(), Superseded> {
        let version = self.state.lock().lines.version();
        match self.journal.written(version).await {
            Ok(()) | Err(NotStored::Failed) => Ok(()),
            Err(NotStored::TooLate) => {
                tracing::error!(
                    seconds = WRITE_TIMEOUT.as_secs(),
                    "the final statuses were not written in time: check the disk"
                );
                Ok(())
            }
            Err(NotStored::Superseded) => Err(Superseded),
        }
    }

    /// Writes each added status. Returns once `stop` is cancelled, or once another node has opened the file. No write begins
    /// after that.
    pub async fn run(&self, stop: &CancellationToken) {
        self.journal.run(self, stop).await;
    }
}

impl Journaled for FinalStatusStore {
    const RECORDS: &'static str = "the final statuses";
    const STORE: &'static str = "the store of final statuses";

    fn next_write(&self, stored: u64) -> Option<(u64, Write)> {
        let mut state = self.state.lock();
        let version = state.lines.version();
        (version > stored).then(|| (version, state.take()))
    }

    fn forget_file(&self) {
        self.state.lock().lines.forget_file();
    }

    fn log_failure(&self, error: &CheckpointError) {
        tracing::error!(
            error = %error_chain(error),
            "cannot write the final statuses: free or repair the disk; until then an agent that restarts \
             may run pods again that were rejected or have ended"
        );
    }

    fn log_superseded(&self, path: &Path) {
        tracing::error!(
            path = %path.display(),
            "another node of this process has opened the file of final statuses, so this node stores and \
             publishes no more of them: stop one of the nodes, or give each node its own file"
        );
    }
}

#[cfg(test)]
mod tests;
