//! The journal of a store: one writer, which brings each change of the store into a file that outlives the agent.
//!
//! ```text
//!  store: a change --> wake --> run --> next_write --> CheckpointWriter::append, sometimes CheckpointWriter::save
//!                                ^                        |
//!                                |                        +-- success --> on_stored -+
//!                                +-- 5 s, or at once  <---+-- failure ---------------+--> the callers of `written`
//!                                    after an append      +-- another opening -------+
//! ```
//!
//! A store numbers its changes with versions. Changes that arrive during a write go into the next write together, and a write has the
//! newest state. An append that fails may have left a part of its lines in the file, so all records are saved at once. A save that fails
//! is tried again after `RETRY`, for as long as the node runs. The first failure is reported, and the first success after it.
//!
//! A caller may wait until the file has its change. What it does about a disk that is full or hangs depends on the store, which chooses a
//! [`Patience`].
//!
//! The writer belongs to one opening of the file. If another node of the process opens the file, this journal writes nothing more, so
//! that it cannot erase records of the other node.

mod lines;
#[cfg(test)]
mod tests;

use std::panic::AssertUnwindSafe;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::ports::{CheckpointError, CheckpointWriter};
use crate::text::error_chain;

pub(crate) use lines::Lines;
#[cfg(test)]
pub(crate) use lines::OUTDATED_LINES;

/// How long a caller waits for the disk.
pub(crate) const WRITE_TIMEOUT: Duration = Duration::from_secs(10);
/// The time between a failed save and the next one.
const RETRY: Duration = Duration::from_secs(5);

/// One write of the file.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Write {
    /// The records are appended to the file.
    Append(Vec<Arc<str>>),
    /// The records replace the file.
    Save(Vec<Arc<str>>),
}

/// A store with a journal.
pub(crate) trait Journaled: Sync {
    /// What the journal has, with an article and in the plural.
    const RECORDS: &'static str;
    /// The store, in place of the path of the file.
    const STORE: &'static str;

    /// The write that brings the file from the version `stored` to the newest one, and that version. `None` if the file has the newest one.
    /// The store may assume that the write succeeds.
    fn next_write(&self, stored: u64) -> Option<(u64, Write)>;

    /// The last write failed, so the content of the file is not known. The next write is a save.
    fn forget_file(&self);

    /// The file has every change up to this version. The callers that wait for it have not been woken.
    fn on_stored(&self, _version: u64) {}

    /// Logs that the file cannot be written, and what follows.
    fn log_failure(&self, error: &CheckpointError);

    /// Logs that another node of this process has opened the file.
    fn log_superseded(&self, path: &Path);
}

/// How long a caller waits for a file that cannot be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Patience {
    /// For `WRITE_TIMEOUT`, also while writes fail: the caller may do nothing before the file has its change.
    Full,
    /// For `WRITE_TIMEOUT`, but only until a save fails, and not at all before the next try. Only changes that follow the begin of that try
    /// wait for it.
    UntilFailure,
    /// For `WRITE_TIMEOUT`, but only until a save fails. After a failure or a wait that was too long, nobody waits until a write has
    /// succeeded.
    WhileWritable,
}

/// Why a wait ended before the file had the change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotStored {
    /// A write failed, and the journal tries again. Nobody has to report that.
    Failed,
    /// The disk takes longer than `WRITE_TIMEOUT`.
    TooLate,
    /// Another node of this process has opened the file, so the journal never writes the change.
    Superseded,
}

/// What the last writes say about the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Disk {
    /// The last save or append succeeded, or there was none.
    Writable,
    /// No write has succeeded since a save failed, or since one took too long for a journal of `Patience::WhileWritable`. Nobody waits for
    /// a version up to `given_up`, which is `u64::MAX` if nobody waits at all.
    Doubtful { given_up: u64 },
    /// Another node of this process has opened the file.
    Superseded,
}

#[derive(Debug)]
struct Progress {
    /// The version that is in the file.
    stored: u64,
    disk: Disk,
}

impl Progress {
    /// How the wait for a version ends; `None` if it goes on.
    fn end_of_wait(&self, version: u64) -> Option<Result<(), NotStored>> {
        match self.disk {
            _ if self.stored >= version => Some(Ok(())),
            Disk::Superseded => Some(Err(NotStored::Superseded)),
            Disk::Doubtful { given_up } if version <= given_up => Some(Err(NotStored::Failed)),
            Disk::Writable | Disk::Doubtful { .. } => None,
        }
    }
}

/// Writes the changes of one store.
pub(crate) struct Journal {
    writer: Box<dyn CheckpointWriter>,
    patience: Patience,
    changed: Notify,
    progress: Mutex<Progress>,
    /// Wakes the callers of `written`, in the order in which they called. The order of a watch channel is random.
    write_ended: Notify,
}

impl Journal {
    /// A journal of a store that has read the file, whose content is the version 0. Nothing is written until it [runs](Journal::run).
    pub(crate) fn new(writer: Box<dyn CheckpointWriter>, patience: Patience) -> Self {
        Journal {
            writer,
            patience,
            changed: Notify::new(),
            progress: Mutex::new(Progress { stored: 0, disk: Disk::Writable }),
            write_ended: Notify::new(),
        }
    }

    /// Takes each version for written, for tests whose journal does not run.
    #[cfg(test)]
    pub(crate) fn without_waits(self) -> Self {
        self.progress.lock().stored = u64::MAX;
        self
    }

    /// Requests a write. To be called after each change of the store.
    pub(crate) fn wake(&self) {
        self.changed.notify_one();
    }

    /// The last version that is in the file.
    pub(crate) fn stored(&self) -> u64 {
        self.progress.lock().stored
    }

    /// Whether another node of this process has opened the file. Then nothing is written any more.
    pub(crate) fn is_superseded(&self) -> bool {
        self.progress.lock().disk == Disk::Superseded
    }

    /// Waits until the file has a version of the store, for as long as the [`Patience`] allows. Callers are woken in the order of their
    /// calls. Cancel safe.
    ///
    /// # Errors
    /// [`NotStored`] if the wait ended earlier.
    pub(crate) async fn written(&self, version: u64) -> Result<(), NotStored> {
        let written = async {
            loop {
                let write_ended = self.write_ended.notified();
                let end = self.progress.lock().end_of_wait(version);
                if let Some(end) = end {
                    return end;
                }
                write_ended.await;
            }
        };
        if let Ok(end) = timeout(WRITE_TIMEOUT, written).await {
            return end;
        }
        let mut progress = self.progress.lock();
        if let Some(end) = progress.end_of_wait(version) {
            return end;
        }
        if self.patience == Patience::WhileWritable {
            progress.disk = Disk::Doubtful { given_up: u64::MAX };
            self.write_ended.notify_waiters();
        }
        Err(NotStored::TooLate)
    }

    /// Writes each change of the store. Returns once `stop` is cancelled, or once another node has opened the file. No write begins
    /// after that. If it is stopped in the pause after a failed save, the pause lasts for the callers of `written`: later ones do not wait
    /// either, unless they have [`Patience::Full`].
    pub(crate) async fn run<S: Journaled>(&self, store: &S, stop: &CancellationToken) {
        stop.run_until_cancelled(self.write_changes(store, stop)).await;
    }

    async fn write_changes<S: Journaled>(&self, store: &S, stop: &CancellationToken) {
        // `run_until_cancelled` polls this future once more after the cancellation.
        while !stop.is_cancelled() {
            let Some((version, write)) = store.next_write(self.stored()) else {
                self.changed.notified().await;
                continue;
            };
            self.begin_try(version);
            let appended = matches!(write, Write::Append(_));
            match self.write::<S>(write).await {
                Ok(()) => {
                    let before = self.set(|progress| {
                        progress.stored = version;
                        Disk::Writable
                    });
                    if before != Disk::Writable {
                        tracing::info!("{} are written again", S::RECORDS);
                    }
                    store.on_stored(version);
                    self.write_ended.notify_waiters();
                }
                Err(CheckpointError::Superseded { path }) => {
                    if !stop.is_cancelled() {
                        store.log_superseded(&path);
                    }
                    self.set(|_| Disk::Superseded);
                    self.write_ended.notify_waiters();
                    return;
                }
                Err(error) => {
                    // Part of the write may be in the file.
                    store.forget_file();
                    if appended {
                        tracing::debug!(error = %error_chain(&error), "cannot append to {}, saving all of them", S::RECORDS);
                        continue;
                    }
                    let before = self.set(|_| Disk::Doubtful { given_up: self.given_up_after_failure() });
                    if before == Disk::Writable {
                        store.log_failure(&error);
                    }
                    self.write_ended.notify_waiters();
                    sleep(RETRY).await;
                }
            }
        }
    }

    /// Up to which version nobody waits after a failed save, until the next try begins.
    fn given_up_after_failure(&self) -> u64 {
        match self.patience {
            Patience::Full => 0,
            Patience::UntilFailure | Patience::WhileWritable => u64::MAX,
        }
    }

    /// A try begins that leads to this version. After a failed save, nobody waits for changes of before the try, also if it hangs.
    fn begin_try(&self, version: u64) {
        if let (Patience::UntilFailure, Disk::Doubtful { given_up }) = (self.patience, &mut self.progress.lock().disk) {
            *given_up = version;
        }
    }

    /// Sets what is known of the disk. Returns what was known before.
    fn set(&self, set: impl FnOnce(&mut Progress) -> Disk) -> Disk {
        let mut progress = self.progress.lock();
        let disk = set(&mut progress);
        std::mem::replace(&mut progress.disk, disk)
    }

    /// Performs one write. A panic of the writer is an error.
    async fn write<S: Journaled>(&self, write: Write) -> Result<(), CheckpointError> {
        let done = async {
            match write {
                Write::Append(records) => self.writer.append(records).await,
                Write::Save(records) => self.writer.save(records).await,
            }
        };
        AssertUnwindSafe(done)
            .catch_unwind()
            .await
            .unwrap_or_else(|_| Err(CheckpointError::new(S::STORE, "it panicked")))
    }
}
