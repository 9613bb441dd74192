//! The time at which each pod reached the mark that its phase waits for.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;

use podwright_model::ids::PodUid;

/// The state of a pod that a phase waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Mark {
    Nothing,
    /// The observer read that the container runs, in its first run. The status follows at once.
    Running,
    /// The observer read that the container runs, in a later run.
    RunningAgain,
    /// The pod was synced.
    Synced,
    /// The volumes of the pod were unmounted, which is the last step of its cleanup.
    Gone,
}

/// Stands for the time of a pod that has not reached the mark.
const AWAITED: u64 = u64::MAX;

/// One time in nanoseconds for each pod. It is zero for pods that the phase does not wait for.
pub(crate) struct Marks {
    begin: Instant,
    numbers: HashMap<PodUid, usize>,
    waits_for: AtomicU8,
    left: AtomicUsize,
    at: Vec<AtomicU64>,
}

impl Marks {
    pub(crate) fn new(uids: impl Iterator<Item = PodUid>) -> Self {
        let numbers: HashMap<_, _> = uids.zip(0..).collect();
        let at = numbers.iter().map(|_| AtomicU64::new(0)).collect();
        let (waits_for, left) = (AtomicU8::new(Mark::Nothing as u8), AtomicUsize::new(0));
        Marks { begin: Instant::now(), numbers, waits_for, left, at }
    }

    /// Starts to wait until these pods reach a mark.
    pub(crate) fn wait_for(&self, mark: Mark, pods: &[PodUid]) {
        // Late marks of the previous phase are not recorded.
        self.waits_for.store(Mark::Nothing as u8, Ordering::Release);
        self.at.iter().for_each(|at| at.store(0, Ordering::Relaxed));
        for number in pods.iter().filter_map(|uid| self.numbers.get(uid)) {
            self.at[*number].store(AWAITED, Ordering::Relaxed);
        }
        self.left.store(pods.len(), Ordering::Release);
        self.waits_for.store(mark as u8, Ordering::Release);
    }

    pub(crate) fn waits_for(&self, mark: Mark) -> bool {
        self.waits_for.load(Ordering::Acquire) == mark as u8
    }

    /// How many pods have not reached the mark yet.
    pub(crate) fn left(&self) -> usize {
        self.left.load(Ordering::Acquire)
    }

    /// Records that a pod reached a mark. Only the first time counts, and only for pods that the phase waits for.
    pub(crate) fn note(&self, uid: &PodUid, mark: Mark) {
        if !self.waits_for(mark) {
            return;
        }
        let Some(at) = self.numbers.get(uid).map(|number| &self.at[*number]) else { return };
        if at.compare_exchange(AWAITED, self.now(), Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            self.left.fetch_sub(1, Ordering::AcqRel);
        }
    }

    /// Nanoseconds since this value was created.
    pub(crate) fn now(&self) -> u64 {
        u64::try_from(self.begin.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// The times from `start` until the pods reached the mark, in milliseconds, sorted.
    pub(crate) fn millis_since(&self, start: u64) -> Vec<f64> {
        let times = self.at.iter().map(|at| at.load(Ordering::Acquire)).filter(|at| !matches!(*at, 0 | AWAITED));
        let mut millis: Vec<f64> = times.map(|at| at.saturating_sub(start) as f64 / 1e6).collect();
        millis.sort_by(f64::total_cmp);
        millis
    }
}
