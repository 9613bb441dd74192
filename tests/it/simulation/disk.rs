//! The pods' directories and the stored final statuses. They outlive the agent.

use std::collections::BTreeSet;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use podwright_actors::ids::PodUid;
use podwright_actors::pod::PodObject;
use podwright_actors::ports::{
    Checkpoint, CheckpointError, CheckpointWriter, OpenCheckpoint, PodStorage, StorageError, Unused, VolumeMounts,
};

use super::faulty_ports::{NODE, SimulatedError};
use super::machine::{CallDetail, Machine};
use super::scenario::{Fault, Op};
use crate::support::fake_ports::has_end_of;

/// How long a write takes.
const SAVE: Duration = Duration::from_millis(20);

pub(super) struct Disk {
    machine: Arc<Machine>,
    directories: Mutex<BTreeSet<PodUid>>,
    journal: Arc<Journal>,
}

/// The stored final statuses.
struct Journal {
    machine: Arc<Machine>,
    records: Mutex<Vec<String>>,
    /// Whether no append has failed or was cut short since the last full save.
    whole: AtomicBool,
    openings: AtomicUsize,
}

/// The writer of one opening of the journal.
struct JournalWriter {
    journal: Arc<Journal>,
    opening: usize,
}

impl SimulatedError for StorageError {
    fn failed(_: bool) -> Self {
        StorageError::volume("data", "simulated")
    }
}

impl Disk {
    pub(super) fn new(machine: Arc<Machine>) -> Self {
        let journal = Arc::new(Journal {
            machine: machine.clone(),
            records: Mutex::default(),
            whole: AtomicBool::new(false),
            openings: AtomicUsize::new(0),
        });
        Disk { machine, directories: Mutex::default(), journal }
    }

    /// Whether the final status of a pod is stored.
    pub(super) fn has_end_of(&self, uid: &PodUid) -> bool {
        has_end_of(&self.journal.records.lock(), &uid.to_string())
    }

    pub(super) fn directories(&self) -> Vec<PodUid> {
        self.directories.lock().iter().cloned().collect()
    }
}

impl Checkpoint for Disk {
    fn open(&self) -> Result<OpenCheckpoint, CheckpointError> {
        self.journal.whole.store(false, Ordering::Relaxed);
        let opening = self.journal.openings.fetch_add(1, Ordering::Relaxed) + 1;
        let writer = Box::new(JournalWriter { journal: self.journal.clone(), opening });
        Ok(OpenCheckpoint { records: self.journal.records.lock().clone(), writer })
    }
}

impl JournalWriter {
    /// The writer of an earlier agent writes nothing.
    fn check_opening(&self) -> Result<(), CheckpointError> {
        if self.journal.openings.load(Ordering::Relaxed) == self.opening {
            return Ok(());
        }
        Err(CheckpointError::Superseded { path: "/journal".into() })
    }
}

impl CheckpointWriter for JournalWriter {
    /// Saves all records at once, after a delay in which the agent may crash.
    fn save(&self, records: Vec<Arc<str>>) -> BoxFuture<'_, Result<(), CheckpointError>> {
        async move {
            tokio::time::sleep(SAVE).await;
            self.check_opening()?;
            *self.journal.records.lock() = records.iter().map(|record| record.to_string()).collect();
            self.journal.whole.store(true, Ordering::Relaxed);
            Ok(())
        }
        .boxed()
    }

    /// Appends in two halves. A crash between them, or a fault, leaves only the first half.
    fn append(&self, records: Vec<Arc<str>>) -> BoxFuture<'_, Result<(), CheckpointError>> {
        async move {
            let fault = self.journal.machine.draw_fault(Op::Append, &NODE);
            self.journal.machine.note(format!("{} final statuses are appended {fault:?}", records.len()));
            if !self.journal.whole.swap(false, Ordering::Relaxed) {
                self.journal.machine.violated("an append follows an append that failed or was cut short".to_owned());
            }
            let (first, rest) = records.split_at(records.len() / 2);
            for half in [first, rest] {
                tokio::time::sleep(SAVE / 2).await;
                self.check_opening()?;
                match fault {
                    Some(Fault::Error) => {
                        return Err(CheckpointError::new("/journal", "simulated"));
                    }
                    Some(Fault::Panic) => resume_unwind(Box::new("simulated")),
                    _ => self.journal.records.lock().extend(half.iter().map(|record| record.to_string())),
                }
            }
            match fault {
                Some(Fault::ErrorAfter) => Err(CheckpointError::new("/journal", "simulated")),
                Some(Fault::PanicAfter) => resume_unwind(Box::new("simulated")),
                // A slow append needs no simulation here: the unit tests of the final status store cover it.
                _ => {
                    self.journal.whole.store(true, Ordering::Relaxed);
                    Ok(())
                }
            }
        }
        .boxed()
    }
}

impl PodStorage for Disk {
    fn set_up<'a>(&'a self, pod: &'a Arc<PodObject>) -> BoxFuture<'a, Result<VolumeMounts, StorageError>> {
        let work = async {
            self.directories.lock().insert(pod.uid().clone());
            Ok(VolumeMounts::new())
        };
        self.machine.call(Op::SetUp, pod.uid(), CallDetail::Nothing, work).boxed()
    }

    fn tear_down<'a>(&'a self, uid: &'a PodUid) -> BoxFuture<'a, Result<(), StorageError>> {
        self.machine.call(Op::TearDown, uid, CallDetail::Nothing, async { Ok(()) }).boxed()
    }

    fn remove_pod<'a>(&'a self, uid: &'a PodUid, unused: Unused) -> BoxFuture<'a, Result<(), StorageError>> {
        let work = async move {
            if unused() {
                self.directories.lock().remove(uid);
            }
            Ok(())
        };
        self.machine.call(Op::RemoveDirectory, uid, CallDetail::Nothing, work).boxed()
    }

    fn pods(&self) -> BoxFuture<'_, Result<Vec<PodUid>, StorageError>> {
        self.machine.call(Op::ListDirectories, &NODE, CallDetail::Nothing, async { Ok(self.directories()) }).boxed()
    }

    /// The logs of a container are numbered by its restarts. They exist as long as the pod's directory.
    fn restarts_by_log<'a>(&'a self, pod: &'a PodObject, container: &'a str) -> BoxFuture<'a, Option<u32>> {
        async move {
            if !self.directories.lock().contains(pod.uid()) {
                return None;
            }
            self.machine.with_runs(|runs| {
                let of = runs.of(pod.uid()).iter().filter(|run| run.name.as_str() == container);
                of.map(|run| run.restart_count + 1).max()
            })
        }
        .boxed()
    }
}
