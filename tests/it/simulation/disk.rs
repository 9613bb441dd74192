//! Pods' directories: they outlive the agent.

use std::collections::BTreeSet;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use podwright_actors::ids::PodUid;
use podwright_actors::pod::PodObject;
use podwright_actors::ports::{Checkpoint, CheckpointError, PodStorage, StorageError, Unused, VolumeMounts};

use super::faulty::{Failed, NODE};
use super::scenario::{Fault, Op};
use super::world::{About, World};
use crate::support::fake_ports::has_end_of;

/// How long it takes until something is on disk.
const SAVE: Duration = Duration::from_millis(20);

pub(super) struct Disk {
    world: Arc<World>,
    directories: Mutex<BTreeSet<PodUid>>,
    final_statuses: Mutex<Vec<String>>,
    /// Nobody was cut short since the journal was saved as a whole.
    whole: AtomicBool,
}

impl Failed for StorageError {
    fn failed(_: bool) -> Self {
        StorageError::Volume { volume: "data".into(), reason: "simulated".into() }
    }
}

impl Disk {
    pub(super) fn new(world: Arc<World>) -> Self {
        Disk { world, directories: Mutex::default(), final_statuses: Mutex::default(), whole: AtomicBool::new(false) }
    }

    /// Whether it is written down that a pod is over.
    pub(super) fn has_end_of(&self, uid: &PodUid) -> bool {
        has_end_of(&self.final_statuses.lock(), &uid.to_string())
    }

    pub(super) fn directories(&self) -> Vec<PodUid> {
        self.directories.lock().iter().cloned().collect()
    }
}

impl Checkpoint for Disk {
    fn load(&self) -> Result<Vec<String>, CheckpointError> {
        self.whole.store(false, Ordering::Relaxed);
        Ok(self.final_statuses.lock().clone())
    }

    /// All at once, after a while in which an agent may go down.
    fn save(&self, records: Vec<Arc<str>>) -> BoxFuture<'_, Result<(), CheckpointError>> {
        async move {
            tokio::time::sleep(SAVE).await;
            *self.final_statuses.lock() = records.iter().map(|record| record.to_string()).collect();
            self.whole.store(true, Ordering::Relaxed);
            Ok(())
        }
        .boxed()
    }

    /// An agent that goes down in the middle leaves some of them, and so does what goes wrong.
    fn append(&self, records: Vec<Arc<str>>) -> BoxFuture<'_, Result<(), CheckpointError>> {
        async move {
            let fault = self.world.fate(Op::Append, &NODE);
            self.world.note(format!("{} lines are appended to the journal {fault:?}", records.len()));
            if !self.whole.swap(false, Ordering::Relaxed) {
                self.world.violated("what is appended to may have a torn end".to_owned());
            }
            let (first, rest) = records.split_at(records.len() / 2);
            for half in [first, rest] {
                tokio::time::sleep(SAVE / 2).await;
                match fault {
                    Some(Fault::Error) => {
                        return Err(CheckpointError { path: "/journal".into(), error: "simulated".into() });
                    }
                    Some(Fault::Panic) => resume_unwind(Box::new("simulated")),
                    _ => self.final_statuses.lock().extend(half.iter().map(|record| record.to_string())),
                }
            }
            match fault {
                Some(Fault::ErrorAfter) => Err(CheckpointError { path: "/journal".into(), error: "simulated".into() }),
                Some(Fault::PanicAfter) => resume_unwind(Box::new("simulated")),
                // One that is too slow is given up for some time, as the journal's own tests say.
                _ => {
                    self.whole.store(true, Ordering::Relaxed);
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
        self.world.call(Op::SetUp, pod.uid(), About::Nothing, work).boxed()
    }

    fn tear_down<'a>(&'a self, uid: &'a PodUid) -> BoxFuture<'a, Result<(), StorageError>> {
        self.world.call(Op::TearDown, uid, About::Nothing, async { Ok(()) }).boxed()
    }

    fn remove_pod<'a>(&'a self, uid: &'a PodUid, unused: Unused) -> BoxFuture<'a, Result<(), StorageError>> {
        let work = async move {
            if unused() {
                self.directories.lock().remove(uid);
            }
            Ok(())
        };
        self.world.call(Op::RemoveDirectory, uid, About::Nothing, work).boxed()
    }

    fn pods(&self) -> BoxFuture<'_, Result<Vec<PodUid>, StorageError>> {
        self.world.call(Op::ListDirectories, &NODE, About::Nothing, async { Ok(self.directories()) }).boxed()
    }

    /// The logs of a container are numbered by its restarts, and are there as long as the pod's directory is.
    fn restarts_by_log<'a>(&'a self, pod: &'a PodObject, container: &'a str) -> BoxFuture<'a, Option<u32>> {
        async move {
            if !self.directories.lock().contains(pod.uid()) {
                return None;
            }
            self.world.with_runs(|runs| {
                let of = runs.of(pod.uid()).iter().filter(|run| run.name.as_str() == container);
                of.map(|run| run.restart_count + 1).max()
            })
        }
        .boxed()
    }
}
