//! Why a pod is where it is.

use super::{Engine, Inner};
use crate::engine::cell::Cell;
use crate::ids::{FullName, PodUid};
use crate::pod_worker::{Failure, Lifecycle, Record, Transition, Wait, WaitFor};
use crate::time::{Grace, Time};

/// One pod as the engine sees it at one instant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodSnapshot {
    /// The UID.
    pub uid: PodUid,
    /// Name and namespace.
    pub full_name: Option<FullName>,
    /// Where it stands.
    pub lifecycle: Lifecycle,
    /// Whether it is a static pod.
    pub is_static: bool,
    /// When its first update came.
    pub synced_at: Time,
    /// What it waits for.
    pub wait: Wait,
    /// What its hooks fail with, if they do.
    pub failure: Option<Failure>,
    /// The decided grace of a pod that stops.
    pub grace: Option<Grace>,
    /// Deleted, an orphan, or known to the runtime only.
    pub deleted: bool,
    /// Stopped for want of resources.
    pub evicted: bool,
    /// Created again before this life ended.
    pub restart_requested: bool,
    /// The last moves, oldest first.
    pub transitions: Vec<Transition>,
}

/// The least that can be asked of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordSummary {
    /// Where it stands.
    pub lifecycle: Lifecycle,
    /// Since when.
    pub since: Time,
    /// Whether its worker has nothing to do but to look again.
    pub rests: bool,
}

impl Engine {
    /// One pod, by UID.
    pub fn snapshot(&self, uid: &PodUid) -> Option<PodSnapshot> {
        let cell = self.inner().find(uid)?;
        snapshot(self.inner(), &cell)
    }

    /// Where one pod stands, since when, and whether its worker has nothing to do but to look again.
    pub fn summary(&self, uid: &PodUid) -> Option<RecordSummary> {
        self.inner().find(uid)?.ask(|record| RecordSummary {
            lifecycle: record.lifecycle(),
            since: record.last_move(),
            rests: record.wait().what == WaitFor::Resync,
        })
    }

    /// Every pod, in no order. Looks at one after the other, so two pods may be seen at slightly different instants.
    pub fn snapshots(&self) -> Vec<PodSnapshot> {
        self.inner().cells.all().iter().filter_map(|cell| snapshot(self.inner(), cell)).collect()
    }

    /// Every pod of one full name, and those that have none yet, in no order. Of all others only the name is looked at.
    pub fn snapshots_named(&self, name: &FullName) -> Vec<PodSnapshot> {
        let mut named = Vec::new();
        self.inner().cells.for_each(|cell| {
            if cell.ask(|record| record.full_name().is_none_or(|other| other == name)) == Some(true) {
                named.push(cell.clone());
            }
        });
        named.iter().filter_map(|cell| snapshot(self.inner(), cell)).collect()
    }

    /// The full name of every pod that has one, in no order, some more than once.
    pub fn full_names(&self) -> Vec<FullName> {
        let mut names = Vec::new();
        self.inner().cells.for_each(|cell| names.extend(cell.ask(|record| record.full_name().cloned()).flatten()));
        names
    }
}

fn snapshot(inner: &Inner, cell: &Cell) -> Option<PodSnapshot> {
    let mut snapshot = cell.ask(|record| look(cell.uid(), record))?;
    if let (WaitFor::FullName { held_by }, Some(name)) = (&mut snapshot.wait.what, &snapshot.full_name) {
        *held_by = inner.names.started(name).or_else(|| inner.names.waiting(name).into_iter().next());
        // The name is free and the pod is next: its worker was woken and has not looked yet.
        if held_by.as_ref() == Some(&snapshot.uid) {
            snapshot.wait.what = WaitFor::Worker;
        }
    }
    Some(snapshot)
}

fn look(uid: &PodUid, record: &Record) -> PodSnapshot {
    let known = record.flags();
    PodSnapshot {
        uid: uid.clone(),
        full_name: record.full_name().cloned(),
        lifecycle: record.lifecycle(),
        is_static: record.is_static(),
        synced_at: record.synced_at(),
        wait: record.wait(),
        failure: record.failure().cloned(),
        grace: record.grace(),
        deleted: known.deleted,
        evicted: known.evicted,
        restart_requested: known.restart_requested,
        transitions: record.transitions().collect(),
    }
}
