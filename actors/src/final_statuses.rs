//! Which pods are over for good: those that were refused, and those that ended. It is on disk before anybody is told (W13).
//!
//! ```text
//!  dispatcher: refused ──┐                        ┌── settled ──> status, event
//!                        ├─> note ─> one writer ──┤
//!  hooks: a final status ┘              │         └── settled ──> status
//!  housekeeping: not needed ─> retain ──┘  Checkpoint::append; ::save now and then
//! ```
//!
//! There is an entry for as long as the pod's status is kept: until no source wants the pod and nothing of it is left.
//! While one write is under way others gather for the next, so that a thousand pods that end together cost two. The next
//! agent takes the statuses up where this one left them, and starts none of these pods.
//!
//! What changed is appended, and of a pod the last line counts. Once there are more than twice as many lines as entries, and
//! a few, all entries are saved anew: what a change costs does not grow with their number, and the file not with time.
//!
//! A disk that takes nothing holds up nobody for long: it is told of, what is decided stands, and the writer goes on trying.

use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use k8s_openapi::api::core::v1::PodStatus;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};

use crate::ids::PodUid;
use crate::pod::{Phase, PodObject};
use crate::ports::{Checkpoint, CheckpointError};
use crate::shutdown::{REFUSED, STOPPED};

/// How long whoever tells of an end waits for it to be on disk.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long until the disk is tried again that took nothing.
const RETRY: Duration = Duration::from_secs(5);

/// How a pod came to be over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// It was refused, and nothing of it was ever made.
    Rejected,
    /// It ran, or could have: what is left of it is to be stopped and cleaned up.
    Ended,
}

/// Whether a status is the last word on a pod, for whatever agent comes later.
///
/// A static pod that only its node's going down stopped or kept out is no such pod: nobody would make another one in its
/// place, so the next agent runs it, unless it was to run once and was cut short.
pub fn is_final(pod: &PodObject, status: &PodStatus) -> bool {
    let phase = Phase::parse(status.phase.as_deref());
    let runs_once = pod.spec().restart_policy.as_deref() == Some("Never");
    let comes_back = match status.reason.as_deref() {
        Some(REFUSED) => true,
        Some(STOPPED) => !runs_once,
        _ => false,
    };
    phase.is_terminal() && !(pod.is_static() && phase == Phase::Failed && comes_back)
}

/// How many lines may say what no longer counts, besides one for each entry.
const SPARE: usize = 256;

/// A line of the journal; `S` is a status.
#[derive(Serialize, Deserialize)]
#[serde(tag = "ending")]
enum Line<S> {
    Rejected(Over<S>),
    Ended(Over<S>),
    Forgotten { uid: String },
}

/// That a pod is over.
#[derive(Serialize, Deserialize)]
struct Over<S> {
    uid: String,
    /// For people.
    #[serde(default)]
    pod: String,
    status: S,
}

impl<S: Serialize> Line<S> {
    fn to_record(&self) -> serde_json::Result<Arc<str>> {
        Ok(serde_json::to_string(self)?.into())
    }
}

#[derive(Debug, Default)]
struct State {
    entries: BTreeMap<PodUid, Entry>,
    /// Grows with every change.
    version: u64,
    /// How many lines the store has.
    lines: usize,
    unwritten: Unwritten,
}

/// What the store does not have.
#[derive(Debug, Default)]
enum Unwritten {
    /// Nobody knows: all entries are to be saved.
    #[default]
    All,
    /// These lines.
    Lines(Vec<Arc<str>>),
}

#[derive(Debug)]
struct Entry {
    ending: Ending,
    record: Arc<str>,
}

/// What the store is to do.
enum Write {
    Append(Vec<Arc<str>>),
    Save(Vec<Arc<str>>),
}

impl State {
    /// How many lines there may be at most.
    fn limit(&self) -> usize {
        2 * self.entries.len() + SPARE
    }

    /// Takes note of a line that is to be written.
    fn push(&mut self, record: Arc<str>) {
        self.version += 1;
        let limit = self.limit();
        match &mut self.unwritten {
            Unwritten::Lines(lines) if lines.len() < limit => lines.push(record),
            // A disk that is stuck for hours does not fill the memory.
            unwritten => *unwritten = Unwritten::All,
        }
    }

    /// What to write, which is taken to be written then.
    fn take(&mut self) -> Write {
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

/// The pods that are over for good. Shared by who decides so, and written by [`run`](FinalStatusStore::run).
pub struct FinalStatusStore {
    store: Arc<dyn Checkpoint>,
    state: Mutex<State>,
    changed: Notify,
    /// Which version is on disk, or was given up for now.
    settled: AtomicU64,
    /// Tells that it is. Those who wait go on in the order in which they came, which a watch channel leaves to chance.
    told: Notify,
}

impl FinalStatusStore {
    /// What an earlier agent left, with the statuses that it kept. Blocks.
    ///
    /// # Errors
    /// [`CheckpointError`] if that cannot be read now.
    pub fn open(store: Arc<dyn Checkpoint>) -> Result<(Self, Vec<(PodUid, PodStatus)>), CheckpointError> {
        // What an agent that went down left of a line is not to be appended to: the first write is of all.
        let mut state = State::default();
        let mut statuses = BTreeMap::new();
        for record in store.load()? {
            let (ending, over) = match serde_json::from_str::<Line<PodStatus>>(&record) {
                Ok(Line::Rejected(over)) => (Ending::Rejected, over),
                Ok(Line::Ended(over)) => (Ending::Ended, over),
                Ok(Line::Forgotten { uid }) => {
                    let uid = PodUid::new(&uid);
                    state.entries.remove(&uid);
                    statuses.remove(&uid);
                    continue;
                }
                Err(error) => {
                    tracing::error!(%error, "journal entry forgotten: the pod that it is about may be started again");
                    continue;
                }
            };
            let uid = PodUid::new(&over.uid);
            state.entries.insert(uid.clone(), Entry { ending, record: record.into() });
            statuses.insert(uid, over.status);
        }
        let final_statuses = FinalStatusStore {
            store,
            state: Mutex::new(state),
            changed: Notify::new(),
            settled: AtomicU64::new(0),
            told: Notify::new(),
        };
        Ok((final_statuses, statuses.into_iter().collect()))
    }

    /// How a pod came to be over, if it is.
    pub fn ending(&self, uid: &PodUid) -> Option<Ending> {
        self.state.lock().entries.get(uid).map(|entry| entry.ending)
    }

    /// Takes note of the end of a pod. False if that is known, word for word. It is on disk once
    /// [`settled`](FinalStatusStore::settled) says so.
    pub fn note(&self, pod: &PodObject, ending: Ending, status: &PodStatus) -> bool {
        let over = Over { uid: pod.uid().to_string(), pod: pod.full_name().to_string(), status };
        let line = match ending {
            Ending::Rejected => Line::Rejected(over),
            Ending::Ended => Line::Ended(over),
        };
        let record = match line.to_record() {
            Ok(record) => record,
            Err(error) => {
                tracing::error!(pod = %pod.full_name(), %error, "the end of a pod cannot be written down");
                return false;
            }
        };
        let mut state = self.state.lock();
        if state.entries.get(pod.uid()).is_some_and(|known| known.record == record) {
            return false;
        }
        state.entries.insert(pod.uid().clone(), Entry { ending, record: record.clone() });
        state.push(record);
        drop(state);
        self.changed.notify_one();
        true
    }

    /// Forgets the pods of which `keep` says no.
    pub fn retain(&self, mut keep: impl FnMut(&PodUid) -> bool) {
        let mut state = self.state.lock();
        let gone: Vec<PodUid> = state.entries.extract_if(.., |uid, _| !keep(uid)).map(|(uid, _)| uid).collect();
        for uid in &gone {
            match (Line::<()>::Forgotten { uid: uid.to_string() }).to_record() {
                Ok(record) => state.push(record),
                Err(error) => tracing::error!(%uid, %error, "that a pod is forgotten cannot be written down"),
            }
        }
        drop(state);
        if !gone.is_empty() {
            self.changed.notify_one();
        }
    }

    /// Waits until all that was noted so far is on disk, or cannot be for now. Cancel safe.
    pub async fn settled(&self) {
        let wanted = self.state.lock().version;
        let settled = async {
            loop {
                let told = self.told.notified();
                if self.settled.load(Ordering::Acquire) >= wanted {
                    return;
                }
                told.await;
            }
        };
        if timeout(PATIENCE, settled).await.is_err() {
            tracing::error!(seconds = PATIENCE.as_secs(), "the journal is not written: its disk does not answer");
        }
    }

    /// Writes what is noted, for ever.
    pub async fn run(&self) {
        let mut written = 0;
        let mut failing = false;
        loop {
            let Some((version, write)) = self.take_after(written) else {
                self.changed.notified().await;
                continue;
            };
            let appended = matches!(write, Write::Append(_));
            match self.write(write).await {
                Ok(()) => {
                    if failing {
                        tracing::info!("the journal is written again");
                    }
                    (written, failing) = (version, false);
                    self.settle(version);
                }
                Err(error) => {
                    // Nobody knows what of it is there.
                    self.state.lock().unwritten = Unwritten::All;
                    if appended {
                        tracing::debug!(%error, "the journal is written anew");
                        continue;
                    }
                    if !failing {
                        tracing::error!(
                            %error,
                            "the journal of final statuses cannot be written: free or mend its disk; until then an agent that starts anew \
                             may run pods again that were refused or have ended"
                        );
                    }
                    failing = true;
                    // Whoever waits goes on; what comes meanwhile is not kept waiting either.
                    self.give_up_for(RETRY).await;
                }
            }
        }
    }

    /// A store that panics has failed.
    async fn write(&self, write: Write) -> Result<(), CheckpointError> {
        let done = async {
            match write {
                Write::Append(records) => self.store.append(records).await,
                Write::Save(records) => self.store.save(records).await,
            }
        };
        AssertUnwindSafe(done).catch_unwind().await.unwrap_or_else(|_| {
            Err(CheckpointError { path: "the journal's store".into(), error: "it panicked".to_owned() })
        })
    }

    async fn give_up_for(&self, time: Duration) {
        let pause = sleep(time);
        tokio::pin!(pause);
        loop {
            let version = self.state.lock().version;
            self.settle(version);
            tokio::select! {
                () = &mut pause => return,
                () = self.changed.notified() => {}
            }
        }
    }

    fn settle(&self, version: u64) {
        self.settled.store(version, Ordering::Release);
        self.told.notify_waiters();
    }

    /// What changed after a version, and which one that makes.
    fn take_after(&self, written: u64) -> Option<(u64, Write)> {
        let mut state = self.state.lock();
        (state.version > written).then(|| (state.version, state.take()))
    }
}

#[cfg(test)]
mod tests;
