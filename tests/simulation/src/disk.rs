//! The pods' directories, and the stored final statuses, claims, allocations and facts of containers. They outlive the agent.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use podwright_model::ids::PodUid;
use podwright_model::pod::PodObject;
use podwright_ports::{Checkpoint, CheckpointError, OpenCheckpoint, PodStorage, StorageError, Unused, VolumeMounts};
use serde_json::Value;

use super::faulty_ports::{NODE, SimulatedError};
use super::journal::Journal;
use super::machine::{CallDetail, Machine};
use super::scenario::Op;

pub(super) struct Disk {
    machine: Arc<Machine>,
    directories: Mutex<BTreeSet<PodUid>>,
    journal: Arc<Journal>,
    claims: Arc<Journal>,
    allocations: Arc<Journal>,
    run_facts: Arc<Journal>,
}

impl SimulatedError for StorageError {
    fn failed(_: bool) -> Self {
        StorageError::volume("data", "simulated")
    }
}

impl Disk {
    pub(super) fn new(machine: Arc<Machine>) -> Self {
        let journal = Journal::new(machine.clone(), Op::Append, "final statuses");
        let claims = Journal::new(machine.clone(), Op::AppendClaims, "claims");
        let allocations = Journal::new(machine.clone(), Op::SaveAllocations, "allocations");
        let run_facts = Journal::new(machine.clone(), Op::SaveRunFacts, "facts of containers");
        Disk { machine, directories: Mutex::default(), journal, claims, allocations, run_facts }
    }

    /// Whether the final status of a pod is stored.
    pub(super) fn has_end_of(&self, uid: &PodUid) -> bool {
        self.ending(uid).is_some_and(|ending| ending != "Forgotten")
    }

    /// Whether the file says that a pod has ended, and was not rejected. False while the file may lack something that the agent knows:
    /// during an append, and from a failed append until the next full save.
    pub(super) fn has_ended(&self, uid: &PodUid) -> bool {
        self.journal.is_whole() && self.ending(uid).is_some_and(|ending| ending == "Ended")
    }

    /// What the newest record of a pod is: a rejection, an end, or that the pod is forgotten.
    fn ending(&self, uid: &PodUid) -> Option<String> {
        let uid = format!("\"uid\":\"{uid}\"");
        let records = self.journal.records();
        let newest = records.iter().rfind(|record| record.contains(&uid))?;
        let record: Value = serde_json::from_str(newest).ok()?;
        Some(record["ending"].as_str()?.to_owned())
    }

    /// The file of claims.
    pub(super) fn claims(&self) -> &Arc<Journal> {
        &self.claims
    }

    /// The file of allocations.
    pub(super) fn allocations(&self) -> &Arc<Journal> {
        &self.allocations
    }

    /// The file of the facts of containers.
    pub(super) fn run_facts(&self) -> &Arc<Journal> {
        &self.run_facts
    }

    /// What the file of facts says last of each run.
    pub(super) fn facts(&self) -> BTreeMap<String, Value> {
        let records = self.run_facts.records();
        let facts = records.iter().filter_map(|record| serde_json::from_str::<Value>(record).ok());
        facts.filter_map(|facts| Some((facts["run"].as_str()?.to_owned(), facts))).collect()
    }

    pub(super) fn directories(&self) -> Vec<PodUid> {
        self.directories.lock().iter().cloned().collect()
    }
}

impl Checkpoint for Disk {
    fn open(&self) -> Result<OpenCheckpoint, CheckpointError> {
        self.journal.open()
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

    /// The logs of a container are numbered by its restarts. They exist as long as the pod's directory. The log of a run that never
    /// started is removed with the run.
    fn restarts_by_log<'a>(&'a self, pod: &'a PodObject, container: &'a str) -> BoxFuture<'a, Option<u32>> {
        async move {
            if !self.directories.lock().contains(pod.uid()) {
                return None;
            }
            self.machine.with_runs(|runs| {
                let of = runs.of(pod.uid()).iter().filter(|run| run.name.as_str() == container && !run.cancelled);
                of.map(|run| run.restart_count + 1).max()
            })
        }
        .boxed()
    }
}
