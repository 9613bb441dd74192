//! Hooks that cost nothing, so that what is measured is the engine.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, Thread};
use std::time::Instant;

use podwright_model::pod::PodObject;
use podwright_model::time::Grace;
use podwright_ports::{HookContext, PodSyncer, RunningPod, SyncError, SyncOutcome, SyncPod, TerminatingPod};

use crate::refused::Refused;

/// A counter that wakes the waiting thread when a goal is reached, so that waiting costs no CPU time.
pub(crate) struct Counter {
    count: AtomicU64,
    goal: AtomicU64,
    waiter: Thread,
}

impl Counter {
    /// A counter at zero. Only the thread that creates it may wait.
    pub(crate) fn new() -> Self {
        Counter { count: AtomicU64::new(0), goal: AtomicU64::new(u64::MAX), waiter: thread::current() }
    }

    /// The present count.
    pub(crate) fn count(&self) -> u64 {
        self.count.load(Ordering::SeqCst)
    }

    fn add(&self) {
        let count = self.count.fetch_add(1, Ordering::SeqCst) + 1;
        if count == self.goal.load(Ordering::SeqCst) {
            self.waiter.unpark();
        }
    }

    /// Blocks until the count is at least `goal`.
    pub(crate) fn wait_for(&self, goal: u64) {
        // The goal is published before the count is read and counted before the goal is read: one side sees the other.
        self.goal.store(goal, Ordering::SeqCst);
        while self.count() < goal {
            thread::park();
        }
        self.goal.store(u64::MAX, Ordering::SeqCst);
    }
}

/// The hooks of most workloads: each adds one to its own counter.
pub(crate) struct Counting {
    pub(crate) syncs: Counter,
    pub(crate) stops: Counter,
    pub(crate) clean_ups: Counter,
}

impl Counting {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Counting { syncs: Counter::new(), stops: Counter::new(), clean_ups: Counter::new() })
    }
}

impl PodSyncer for Counting {
    async fn sync_pod(&self, _cx: &HookContext, _work: &SyncPod) -> Result<SyncOutcome, SyncError> {
        self.syncs.add();
        Ok(SyncOutcome::Continue { check_at: None })
    }

    async fn sync_terminating_pod(&self, _cx: &HookContext, _work: &TerminatingPod) -> Result<(), SyncError> {
        self.stops.add();
        Ok(())
    }

    async fn sync_terminating_runtime_pod(
        &self,
        _cx: &HookContext,
        _running: &RunningPod,
        _: Grace,
    ) -> Result<(), SyncError> {
        Ok(())
    }

    async fn sync_terminated_pod(&self, _cx: &HookContext, _pod: &Arc<PodObject>) -> Result<(), SyncError> {
        self.clean_ups.add();
        Ok(())
    }
}

/// The hooks of `update_to_sync_latency`: the first statement of a sync stores the time.
pub(crate) struct Timing {
    base: Instant,
    /// Nanoseconds since `base`, or zero before the sync has run.
    ran_at: AtomicU64,
    unpark: bool,
    submitter: Thread,
}

impl Timing {
    /// The thread that creates the hooks is the submitter. With `unpark`, each sync unparks it.
    pub(crate) fn new(unpark: bool) -> Arc<Self> {
        Arc::new(Timing { base: Instant::now(), ran_at: AtomicU64::new(0), unpark, submitter: thread::current() })
    }

    pub(crate) fn now(&self) -> u64 {
        u64::try_from(self.base.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    pub(crate) fn ran_at(&self) -> u64 {
        self.ran_at.load(Ordering::Acquire)
    }

    pub(crate) fn reset(&self) {
        self.ran_at.store(0, Ordering::Release);
    }
}

impl PodSyncer for Timing {
    async fn sync_pod(&self, _cx: &HookContext, _work: &SyncPod) -> Result<SyncOutcome, SyncError> {
        self.ran_at.store(self.now(), Ordering::Release);
        if self.unpark {
            self.submitter.unpark();
        }
        Ok(SyncOutcome::Continue { check_at: None })
    }

    async fn sync_terminating_pod(&self, _cx: &HookContext, _work: &TerminatingPod) -> Result<(), SyncError> {
        Ok(())
    }

    async fn sync_terminating_runtime_pod(
        &self,
        _cx: &HookContext,
        _running: &RunningPod,
        _: Grace,
    ) -> Result<(), SyncError> {
        Ok(())
    }

    async fn sync_terminated_pod(&self, _cx: &HookContext, _pod: &Arc<PodObject>) -> Result<(), SyncError> {
        Ok(())
    }
}

/// The hooks of `retry_storm`: every sync fails.
pub(crate) struct Failing {
    pub(crate) syncs: Counter,
}

impl Failing {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Failing { syncs: Counter::new() })
    }
}

impl PodSyncer for Failing {
    async fn sync_pod(&self, _cx: &HookContext, _work: &SyncPod) -> Result<SyncOutcome, SyncError> {
        self.syncs.add();
        Err(SyncError::failed(Refused))
    }

    async fn sync_terminating_pod(&self, _cx: &HookContext, _work: &TerminatingPod) -> Result<(), SyncError> {
        Ok(())
    }

    async fn sync_terminating_runtime_pod(
        &self,
        _cx: &HookContext,
        _running: &RunningPod,
        _: Grace,
    ) -> Result<(), SyncError> {
        Ok(())
    }

    async fn sync_terminated_pod(&self, _cx: &HookContext, _pod: &Arc<PodObject>) -> Result<(), SyncError> {
        Ok(())
    }
}
