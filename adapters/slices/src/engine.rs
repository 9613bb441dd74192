//! The engine: what the driver offers, and the handle of the task that publishes it.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use kube::Client;
use parking_lot::Mutex;
use podwright_model::time::Time;
use podwright_work_queue::{Backoff, Pace, QueueNumbers, WorkQueue};
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::api::{KubeSlices, SliceApi};
use super::error::{SliceError, Write, WrongPool};
use super::resources::{DriverResources, Owner, Pool};
use super::worker::Worker;

/// The delay between a change in the API server and the comparison with it, so that many changes are compared together.
const CHANGE_DELAY: Duration = Duration::from_secs(30);
/// How long the result of an own write is assumed although the watch has not reported it, and the delay after which a pool with
/// created slices is compared again.
const OWN_WRITES: Duration = Duration::from_secs(60);
/// The delays of a pool whose sync failed (client-go `DefaultTypedControllerRateLimiter`).
const BACKOFF: Backoff = Backoff { first: Duration::from_millis(5), longest: Duration::from_secs(1000) };
/// The rate of the failures of all pools (as above).
const PACE: Pace = Pace { every: Duration::from_millis(100), burst: 100 };

/// Receives the errors of background work. It must not block.
pub type OnError = Arc<dyn Fn(SliceError) + Send + Sync>;

/// Is called after each write that succeeded. It must not wait.
pub(super) type OnWrite = Arc<dyn Fn(Write) + Send + Sync>;

/// Receives for each sync of a pool how long the pool has waited for it, and how long it took. It must not wait.
pub(super) type OnSync = Arc<dyn Fn(Duration, Duration) + Send + Sync>;

/// The settings of an engine.
#[derive(Clone)]
#[must_use]
pub struct SliceOptions {
    pub(super) driver: String,
    pub(super) owner: Option<Owner>,
    pub(super) only: Option<String>,
    pub(super) change_delay: Duration,
    pub(super) own_writes: Duration,
    pub(super) on_error: OnError,
    pub(super) on_write: OnWrite,
    pub(super) on_sync: OnSync,
    pub(super) reads_owner_again: bool,
    pub(super) relist_every: Option<Duration>,
}

impl SliceOptions {
    /// The slices of a driver. `on_error` receives the errors of background work, and must not block. If it panics, the engine
    /// continues to publish.
    pub fn new(driver: impl Into<String>, on_error: impl Fn(SliceError) + Send + Sync + 'static) -> Self {
        SliceOptions {
            driver: driver.into(),
            owner: None,
            only: None,
            change_delay: CHANGE_DELAY,
            own_writes: OWN_WRITES,
            on_error: Arc::new(on_error),
            on_write: Arc::new(|_| {}),
            on_sync: Arc::new(|_, _| {}),
            reads_owner_again: false,
            relist_every: None,
        }
    }

    /// The owner of the slices. The slices of a node are offered to that node.
    pub fn owner(mut self, owner: Owner) -> Self {
        self.owner = Some(owner);
        self
    }

    /// Reads and writes only the slices of this pool. They are not bound to a node, even if a node owns them.
    pub fn single_pool(mut self, pool: impl Into<String>) -> Self {
        self.only = Some(pool.into());
        self
    }

    /// The delay before the engine restores a slice that another client changed. The default is 30 s.
    pub fn change_delay(mut self, delay: Duration) -> Self {
        self.change_delay = delay;
        self
    }

    /// Calls this after each write that succeeded. It must not wait.
    pub fn on_write(mut self, on_write: impl Fn(Write) + Send + Sync + 'static) -> Self {
        self.on_write = Arc::new(on_write);
        self
    }

    /// Calls this after each sync of a pool, with the durations of its wait and of its work. It must not wait.
    pub fn on_sync(mut self, on_sync: impl Fn(Duration, Duration) + Send + Sync + 'static) -> Self {
        self.on_sync = Arc::new(on_sync);
        self
    }

    /// Reads the node that owns the slices again before each create, because it may have been created anew with another UID. By default,
    /// its UID is read once.
    pub fn reads_owner_again(mut self) -> Self {
        self.reads_owner_again = true;
        self
    }

    /// Lists all slices again at this interval, in case the watch missed a change. By default, the engine trusts the watch.
    pub fn relist_every(mut self, period: Duration) -> Self {
        self.relist_every = Some(period);
        self
    }

    /// The node in the slices.
    pub(super) fn node(&self) -> Option<&str> {
        self.owner.as_ref().filter(|owner| owner.is_node() && self.only.is_none()).map(|owner| owner.name.as_str())
    }
}

impl fmt::Debug for SliceOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SliceOptions").field("driver", &self.driver).field("owner", &self.owner).finish_non_exhaustive()
    }
}

/// The writes that succeeded so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WriteCounts {
    /// Created slices.
    pub creates: u64,
    /// Updated slices.
    pub updates: u64,
    /// Deleted slices.
    pub deletes: u64,
}

/// Keeps the slices of a driver equal to what the driver offers. Dropping the engine ends it; the slices stay.
pub struct SliceEngine {
    shared: Arc<Shared>,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

/// What the handle and the task share.
pub(super) struct Shared {
    pub(super) options: SliceOptions,
    pub(super) desired: Mutex<BTreeMap<String, Desired>>,
    pub(super) queue: Mutex<WorkQueue<String>>,
    pub(super) queued: Notify,
    /// The beginning of the time of the queue.
    pub(super) started: Instant,
    /// Whether nothing may be written now.
    is_held: AtomicBool,
    /// Whether the driver has said what it offers.
    is_updated: AtomicBool,
    versions: AtomicU64,
    pub(super) creates: AtomicU64,
    pub(super) updates: AtomicU64,
    pub(super) deletes: AtomicU64,
}

/// A pool that the driver offers.
#[derive(Clone)]
pub(super) struct Desired {
    /// The number of the driver's update.
    pub(super) version: u64,
    pub(super) pool: Arc<Pool>,
    /// Whether the pool is not valid, and this was reported.
    pub(super) is_refused: bool,
}

impl Shared {
    /// The time of the queue.
    pub(super) fn now(&self) -> Time {
        Time::ZERO + self.started.elapsed()
    }

    pub(super) fn is_held(&self) -> bool {
        self.is_held.load(Ordering::Relaxed)
    }

    /// Whether it is known what the driver offers. Before that, each published slice would seem to be superfluous.
    pub(super) fn is_updated(&self) -> bool {
        self.is_updated.load(Ordering::Acquire)
    }

    /// Counts a write that succeeded.
    pub(super) fn wrote(&self, write: Write) {
        let count = match write {
            Write::Update => &self.updates,
            Write::Create => &self.creates,
            Write::Delete => &self.deletes,
        };
        count.fetch_add(1, Ordering::Relaxed);
        (self.options.on_write)(write);
    }
}

impl SliceEngine {
    /// Starts to publish. Writes and deletes nothing until the first [`update`](Self::update).
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn start(client: Client, options: SliceOptions) -> Self {
        let api = KubeSlices::new(client, &options.driver, options.node());
        Self::with_api(api, options)
    }

    pub(super) fn with_api(api: Arc<dyn SliceApi>, options: SliceOptions) -> Self {
        let shared = Arc::new(Shared {
            options,
            desired: Mutex::default(),
            queue: Mutex::new(WorkQueue::new(BACKOFF).paced(PACE)),
            started: Instant::now(),
            is_held: AtomicBool::new(false),
            is_updated: AtomicBool::new(false),
            queued: Notify::new(),
            versions: AtomicU64::new(0),
            creates: AtomicU64::new(0),
            updates: AtomicU64::new(0),
            deletes: AtomicU64::new(0),
        });
        let stop = CancellationToken::new();
        let task = tokio::spawn(Worker::new(api, shared.clone()).run(stop.clone()));
        SliceEngine { shared, stop, task }
    }

    /// Replaces the devices that the driver offers. Does not wait for the API server. They are written at once. After ten updates of a pool
    /// in a short time, the pool is written once a second, with the newest devices, also while the writes fail.
    ///
    /// # Errors
    /// [`WrongPool`] if the engine is for a [single pool](SliceOptions::single_pool), and another one is offered.
    pub fn update(&self, resources: DriverResources) -> Result<(), WrongPool> {
        if let Some(only) = &self.shared.options.only
            && resources.pools.keys().any(|pool| pool != only)
        {
            return Err(WrongPool { only: only.clone(), offered: resources.pools.into_keys().collect() });
        }
        let version = self.shared.versions.fetch_add(1, Ordering::Relaxed);
        let new = resources.pools.into_iter().map(|(name, mut pool)| {
            pool.round_taint_times();
            (name, Desired { version, pool: Arc::new(pool), is_refused: false })
        });
        let now = self.shared.now();
        let mut desired = self.shared.desired.lock();
        let old = std::mem::replace(&mut *desired, new.collect());
        self.shared.is_updated.store(true, Ordering::Release);
        let mut queue = self.shared.queue.lock();
        old.keys().chain(desired.keys()).for_each(|pool| queue.add_at(pool, now));
        drop((desired, queue));
        self.shared.queued.notify_one();
        Ok(())
    }

    /// Writes nothing from now on until [`resume`](Self::resume). A write that runs may still be performed.
    pub fn hold(&self) {
        self.shared.is_held.store(true, Ordering::Relaxed);
    }

    /// Writes again, and compares all pools at once.
    pub fn resume(&self) {
        if self.shared.is_held.swap(false, Ordering::Relaxed) {
            let now = self.shared.now();
            let desired = self.shared.desired.lock();
            let mut queue = self.shared.queue.lock();
            desired.keys().for_each(|pool| queue.add_at(pool, now));
            drop((desired, queue));
            self.shared.queued.notify_one();
        }
    }

    /// Reads the numbers of the queue, also after the end of the engine.
    pub fn queue_numbers(&self) -> impl Fn() -> QueueNumbers + Send + Sync + 'static {
        let shared = self.shared.clone();
        move || shared.queue.lock().numbers(shared.now())
    }

    /// The writes so far.
    pub fn counts(&self) -> WriteCounts {
        WriteCounts {
            creates: self.shared.creates.load(Ordering::Relaxed),
            updates: self.shared.updates.load(Ordering::Relaxed),
            deletes: self.shared.deletes.load(Ordering::Relaxed),
        }
    }

    /// Ends the engine, and waits until it has ended. The slices stay. The API server may still perform a write that is in
    /// progress.
    pub async fn stop(mut self) {
        self.stop.cancel();
        // The task ends by itself, and does not panic.
        let _ = (&mut self.task).await;
    }
}

impl Drop for SliceEngine {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}
