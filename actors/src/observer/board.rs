//! What was last seen of each pod, and what of it somebody was told.

#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use dashmap::DashMap;
use dashmap::mapref::entry::Entry as Place;
use parking_lot::Mutex;

use super::diff::{RuntimeChange, Seen, changes};
use crate::ids::PodUid;
use crate::ports::{Observed, PodRuntimeStatus, RuntimePod, SandboxState};

/// The last statuses of all pods. Reads may overlap; each has a number, later ones larger ones.
#[derive(Default)]
pub(super) struct Board {
    pods: DashMap<PodUid, Entry, foldhash::fast::RandomState>,
    /// Whether a relist ended well at least once: only then does an unknown pod run nowhere.
    listed: AtomicBool,
    /// The latest read that found a pod gone: an earlier one does not bring a pod back.
    gone: AtomicU64,
    /// Pods of which the last read failed.
    unread: Mutex<HashSet<PodUid>>,
}

#[derive(Default)]
struct Entry {
    status: Arc<PodRuntimeStatus>,
    /// What the status shows.
    seen: Seen,
    /// What somebody was told of, or saw and acts on. Where it differs from `seen`, somebody has yet to be told.
    told: Seen,
    read: u64,
    /// Whether a sync of the pod is through, and read it after all that it did.
    settled: bool,
}

/// Which changes a read passes on to who asked for it; the others are left to be told by the next look.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum PassOn {
    All,
    /// All but deaths: whoever has just started something does not expect that it died.
    NoDeaths,
}

impl Board {
    pub(super) fn last(&self, uid: &PodUid) -> Option<Arc<PodRuntimeStatus>> {
        self.pods.get(uid).map(|entry| entry.status.clone())
    }

    /// What was last seen of a pod whose last sync is through. From now on it may be acted on.
    pub(super) fn take_settled(&self, uid: &PodUid) -> Option<Arc<PodRuntimeStatus>> {
        let status = {
            let mut entry = self.pods.get_mut(uid)?;
            std::mem::take(&mut entry.settled).then(|| entry.status.clone())
        };
        status.filter(|_| self.was_listed() && !self.unread.lock().contains(uid))
    }

    /// A sync of a pod is through, and has read it after all that it did.
    pub(super) fn settle(&self, uid: &PodUid) {
        if let Some(mut entry) = self.pods.get_mut(uid) {
            entry.settled = true;
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

    /// A relist ended.
    pub(super) fn list_ended(&self) {
        self.listed.store(true, Ordering::Release);
    }

    pub(super) fn was_listed(&self) -> bool {
        self.listed.load(Ordering::Acquire)
    }

    /// A read of a pod failed.
    pub(super) fn failed(&self, uid: &PodUid) {
        self.unread.lock().insert(uid.clone());
    }

    /// The pods of which the last read failed.
    pub(super) fn unread(&self) -> Vec<PodUid> {
        self.unread.lock().iter().cloned().collect()
    }

    /// The pods that the list shows otherwise than somebody was told.
    pub(super) fn compare(&self, pods: &[RuntimePod]) -> BTreeSet<PodUid> {
        let listed: HashSet<&PodUid, foldhash::fast::RandomState> = pods.iter().map(|pod| &pod.uid).collect();
        let mut differ: BTreeSet<PodUid> = pods
            .iter()
            .filter(|pod| self.pods.get(&pod.uid).is_none_or(|entry| !entry.told.is_shown_by(pod)))
            .map(|pod| pod.uid.clone())
            .collect();
        differ.extend(self.pods.iter().filter(|entry| !listed.contains(entry.key())).map(|entry| entry.key().clone()));
        self.unread.lock().retain(|uid| listed.contains(uid));
        differ
    }

    /// Keeps what a read found. Answers with the newest that is known, and with what changed since somebody was told.
    pub(super) fn keep(
        &self,
        uid: &PodUid,
        read: u64,
        mut status: PodRuntimeStatus,
        pass_on: PassOn,
    ) -> (Arc<PodRuntimeStatus>, Vec<RuntimeChange>) {
        self.unread.lock().remove(uid);
        let seen = Seen::of_status(&status);
        let mut place = match self.pods.entry(uid.clone()) {
            Place::Occupied(place) => place,
            Place::Vacant(_) if seen.is_empty() => {
                self.gone.fetch_max(read, Ordering::AcqRel);
                return (Arc::new(status), Vec::new());
            }
            // Another read that began later may have found the pod gone. If not, the next relist looks again.
            Place::Vacant(_) if read < self.gone.load(Ordering::Acquire) => {
                return (Arc::new(status), changes(&Seen::default(), &seen));
            }
            Place::Vacant(place) => place.insert_entry(Entry::default()),
        };
        let entry = place.get_mut();
        // If a later read was quicker, what it found is newer.
        if read > entry.read {
            keep_addresses(&entry.status, &mut status);
            entry.status = Arc::new(status);
            entry.seen = seen;
            entry.read = read;
        }
        let found = changes(&entry.told, &entry.seen);
        if pass_on == PassOn::All || !found.contains(&RuntimeChange::Died) {
            entry.told = entry.seen.clone();
        }
        let status = entry.status.clone();
        if entry.seen.is_empty() && entry.told.is_empty() {
            self.gone.fetch_max(entry.read, Ordering::AcqRel);
            place.remove();
        }
        (status, found)
    }
}

/// A sandbox that ended has no address any more; its pod keeps the ones it had.
fn keep_addresses(old: &PodRuntimeStatus, new: &mut PodRuntimeStatus) {
    for sandbox in new.sandboxes.iter_mut().filter(|sandbox| sandbox.ips.is_empty()) {
        if sandbox.state == SandboxState::NotReady
            && let Some(before) = old.sandboxes.iter().find(|before| before.id == sandbox.id)
        {
            sandbox.ips.clone_from(&before.ips);
        }
    }
}
