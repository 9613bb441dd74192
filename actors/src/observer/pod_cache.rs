//! The pod cache: the last status of each pod, and which of its states have been acknowledged.

#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use dashmap::DashMap;
use dashmap::mapref::entry::Entry;
use parking_lot::Mutex;

use super::diff::{PodStates, RuntimeChange, changes};
use crate::ids::PodUid;
use crate::ports::{ContainerState, ContainerStatus, Observed, PodRuntimeStatus, RuntimePod, SandboxState};

/// The last statuses of all pods. Reads may overlap. Each has a number, and a read that began later has a larger one.
#[derive(Default)]
pub(super) struct PodCache {
    pods: DashMap<PodUid, CachedPod, foldhash::fast::RandomState>,
    /// Whether a relist has ended: before that, a pod that is not in the cache may run.
    listed: AtomicBool,
    /// The latest read that found a pod gone. An earlier read must not bring the pod back.
    gone: AtomicU64,
    /// The pods whose last read failed.
    unread: Mutex<HashSet<PodUid>>,
}

#[derive(Default)]
struct CachedPod {
    status: Arc<PodRuntimeStatus>,
    /// The states in `status`.
    states: PodStates,
    /// The states that were reported, or that a worker has read. Differences from `states` have not been reported yet.
    acknowledged: PodStates,
    /// The number of the read that found `status`.
    read: u64,
    /// Whether the pod's worker has read the pod after its last action.
    synced: bool,
}

/// Which changes a read acknowledges, because its caller acts on them or reports them. A later read reports the others.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Acknowledge {
    All,
    /// For a caller that has just started a container and does not expect that it died.
    AllButDeaths,
}

impl PodCache {
    pub(super) fn last(&self, uid: &PodUid) -> Option<Arc<PodRuntimeStatus>> {
        self.pods.get(uid).map(|entry| entry.status.clone())
    }

    /// The last status of a pod that is marked as synced. Removes the mark.
    pub(super) fn take_synced(&self, uid: &PodUid) -> Option<Arc<PodRuntimeStatus>> {
        let status = {
            let mut entry = self.pods.get_mut(uid)?;
            std::mem::take(&mut entry.synced).then(|| entry.status.clone())
        };
        status.filter(|_| self.was_listed() && !self.unread.lock().contains(uid))
    }

    /// Marks a pod as synced: its worker has read it after its last action.
    pub(super) fn mark_synced(&self, uid: &PodUid) {
        if let Some(mut entry) = self.pods.get_mut(uid) {
            entry.synced = true;
        }
    }

    pub(super) fn observed(&self, uid: &PodUid) -> Observed {
        if self.unread.lock().contains(uid) {
            return Observed::Never;
        }
        match self.pods.get(uid) {
            Some(entry) if entry.status.is_running() => Observed::Running,
            Some(_) => Observed::Stopped,
            None if self.was_listed() => Observed::Stopped,
            None => Observed::Never,
        }
    }

    /// Whether a container of a pod may run, or a sandbox is ready. A container in an unknown state may run.
    pub(super) fn may_run(&self, uid: &PodUid) -> bool {
        let is_unknown = |run: &ContainerStatus| run.state == ContainerState::Unknown;
        self.observed(uid) != Observed::Stopped
            || self.pods.get(uid).is_some_and(|entry| entry.status.containers.iter().any(is_unknown))
    }

    /// Records the end of a relist: every pod that it found changed has been read.
    pub(super) fn list_ended(&self) {
        self.listed.store(true, Ordering::Release);
    }

    pub(super) fn was_listed(&self) -> bool {
        self.listed.load(Ordering::Acquire)
    }

    /// Records that a read of a pod failed.
    pub(super) fn read_failed(&self, uid: &PodUid) {
        self.unread.lock().insert(uid.clone());
    }

    /// The pods whose last read failed.
    pub(super) fn unread(&self) -> Vec<PodUid> {
        self.unread.lock().iter().cloned().collect()
    }

    /// The pods whose listed states differ from the acknowledged ones.
    pub(super) fn compare(&self, pods: &[RuntimePod]) -> BTreeSet<PodUid> {
        let listed: HashSet<&PodUid, foldhash::fast::RandomState> = pods.iter().map(|pod| &pod.uid).collect();
        let mut differ: BTreeSet<PodUid> = pods
            .iter()
            .filter(|pod| self.pods.get(&pod.uid).is_none_or(|entry| !entry.acknowledged.matches(pod)))
            .map(|pod| pod.uid.clone())
            .collect();
        differ.extend(self.pods.iter().filter(|entry| !listed.contains(entry.key())).map(|entry| entry.key().clone()));
        self.unread.lock().retain(|uid| listed.contains(uid));
        differ
    }

    /// Stores the status that a read found. Returns the newest status, and the changes since the acknowledged states.
    pub(super) fn store(
        &self,
        uid: &PodUid,
        read: u64,
        mut status: PodRuntimeStatus,
        acknowledge: Acknowledge,
    ) -> (Arc<PodRuntimeStatus>, Vec<RuntimeChange>) {
        self.unread.lock().remove(uid);
        let states = PodStates::of(&status);
        let mut entry = match self.pods.entry(uid.clone()) {
            Entry::Occupied(entry) => entry,
            Entry::Vacant(_) if states.is_empty() => {
                self.gone.fetch_max(read, Ordering::AcqRel);
                return (Arc::new(status), Vec::new());
            }
            // A read that began later may have found the pod gone. If the pod does exist, the next relist finds it.
            Entry::Vacant(_) if read < self.gone.load(Ordering::Acquire) => {
                return (Arc::new(status), changes(&PodStates::default(), &states));
            }
            Entry::Vacant(entry) => entry.insert_entry(CachedPod::default()),
        };
        let pod = entry.get_mut();
        // A read that began later may have ended first. Its status is newer.
        if read > pod.read {
            keep_addresses(&pod.status, &mut status);
            pod.status = Arc::new(status);
            pod.states = states;
            pod.read = read;
        }
        let found = changes(&pod.acknowledged, &pod.states);
        if acknowledge == Acknowledge::All || !found.contains(&RuntimeChange::Died) {
            pod.acknowledged = pod.states.clone();
        }
        let status = pod.status.clone();
        if pod.states.is_empty() && pod.acknowledged.is_empty() {
            self.gone.fetch_max(pod.read, Ordering::AcqRel);
            entry.remove();
        }
        (status, found)
    }
}

/// Copies the addresses of ended sandboxes: the runtime no longer reports them, and the pod's status keeps them.
fn keep_addresses(old: &PodRuntimeStatus, new: &mut PodRuntimeStatus) {
    for sandbox in new.sandboxes.iter_mut().filter(|sandbox| sandbox.ips.is_empty()) {
        if sandbox.state == SandboxState::NotReady
            && let Some(before) = old.sandboxes.iter().find(|before| before.id == sandbox.id)
        {
            sandbox.ips.clone_from(&before.ips);
        }
    }
}
