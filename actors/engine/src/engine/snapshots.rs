//! Snapshots of records: the state of a pod, what it waits for, and why.

use super::{Engine, EngineInner};
use crate::engine::cell::Cell;
use crate::ids::{FullName, PodUid};
use crate::pod_worker::state::Record;
use crate::pod_worker::{Failure, Lifecycle, Transition, Wait, WaitFor};
use crate::time::{Grace, Time};

/// The state of one pod's record at one instant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodSnapshot {
    /// The UID.
    pub uid: PodUid,
    /// The name and namespace; absent while the record has neither a pod object nor a runtime pod.
    pub full_name: Option<FullName>,
    /// The lifecycle state.
    pub lifecycle: Lifecycle,
    /// Whether the pod is a static pod.
    pub is_static: bool,
    /// When the pod's first update arrived.
    pub synced_at: Time,
    /// What the pod waits for.
    pub wait: Wait,
    /// The failure of the pod's hook; absent if the last hook call succeeded.
    pub failure: Option<Failure>,
    /// The grace period that was decided when the pod was requested to stop.
    pub grace: Option<Grace>,
    /// Whether the pod was deleted, is an orphan, or is a runtime-only pod.
    pub deleted: bool,
    /// Whether the pod was evicted.
    pub evicted: bool,
    /// Whether a source created the UID again before the pod was finished.
    pub restart_requested: bool,
    /// The last transitions, oldest first.
    pub transitions: Vec<Transition>,
}

/// The most important fields of a record, which are cheap to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RecordSummary {
    /// The lifecycle state.
    pub lifecycle: Lifecycle,
    /// When the record entered that state.
    pub since: Time,
    /// Whether the worker only waits for the next resync.
    pub waits_for_resync: bool,
}

impl Engine {
    /// A snapshot of one pod; `None` if it has no record.
    pub fn snapshot(&self, uid: &PodUid) -> Option<PodSnapshot> {
        let cell = self.inner().find(uid)?;
        snapshot(self.inner(), &cell)
    }

    /// A summary of one pod's record; `None` if it has none.
    pub fn summary(&self, uid: &PodUid) -> Option<RecordSummary> {
        self.inner().find(uid)?.read(|record| RecordSummary {
            lifecycle: record.lifecycle(),
            since: record.last_move(),
            waits_for_resync: record.wait().what == WaitFor::Resync,
        })
    }

    /// Snapshots of all pods, in no order. The snapshots are taken one after another, so two pods may be seen at slightly different
    /// instants.
    pub fn snapshots(&self) -> Vec<PodSnapshot> {
        self.inner().cells.all().iter().filter_map(|cell| snapshot(self.inner(), cell)).collect()
    }

    /// Snapshots of all pods of one full name, and of pods whose full name is not known yet, in no order.
    pub fn snapshots_named(&self, name: &FullName) -> Vec<PodSnapshot> {
        let mut named = Vec::new();
        self.inner().cells.for_each(|cell| {
            if cell.read(|record| record.full_name().is_none_or(|other| other == name)) == Some(true) {
                named.push(cell.clone());
            }
        });
        named.iter().filter_map(|cell| snapshot(self.inner(), cell)).collect()
    }

    /// The full names of all pods that have one, in no order. A name that several pods have is repeated.
    pub fn full_names(&self) -> Vec<FullName> {
        let mut names = Vec::new();
        self.inner().cells.for_each(|cell| names.extend(cell.read(|record| record.full_name().cloned()).flatten()));
        names
    }
}

fn snapshot(inner: &EngineInner, cell: &Cell) -> Option<PodSnapshot> {
    let mut snapshot = cell.read(|record| snapshot_record(cell.uid(), record))?;
    if let (WaitFor::FullName { held_by }, Some(name)) = (&mut snapshot.wait.what, &snapshot.full_name) {
        *held_by = inner.names.started(name).or_else(|| inner.names.waiting(name).into_iter().next());
        // The name is free for this pod. Its worker was woken and has not taken its turn yet.
        if held_by.as_ref() == Some(&snapshot.uid) {
            snapshot.wait.what = WaitFor::Worker;
        }
    }
    Some(snapshot)
}

fn snapshot_record(uid: &PodUid, record: &Record) -> PodSnapshot {
    let flags = record.flags();
    PodSnapshot {
        uid: uid.clone(),
        full_name: record.full_name().cloned(),
        lifecycle: record.lifecycle(),
        is_static: record.is_static(),
        synced_at: record.synced_at(),
        wait: record.wait(),
        failure: record.failure().cloned(),
        grace: record.grace(),
        deleted: flags.deleted,
        evicted: flags.evicted,
        restart_requested: flags.restart_requested,
        transitions: record.transitions().collect(),
    }
}
