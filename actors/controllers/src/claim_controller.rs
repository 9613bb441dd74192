//! Runs the ResourceClaim controller: takes the events of the watches, and performs the passes.
//!
//! ```text
//!  watches --pod_event, claim_event, ...--> ClaimController --keys--> WorkQueue
//!                                            Core, locked               | at most `workers` keys at once
//!                                              ^                        v
//!                                              `--- Pass::step <---- pass ---> ResourceClaimApi (a port)
//! ```
//!
//! - One [`ClaimController`] lives for one term as the leader. It begins with an empty [`Core`], because another leader may have changed
//!   any object since the previous term.
//! - No pass begins before all watches have completed their first lists. Then all claims, and all pods and groups that need work, are
//!   queued.
//! - The core is locked for one event or one step, and never during a call.
//! - A pass that fails is repeated with a backoff until it succeeds. An event of its object ends the backoff.
//! - A panic in a pass, in the handling of an event or in a handler of an embedder is counted and logged, and the controller continues. After
//!   any other panic, the passes begin again.
//! - What a pass reports is counted, recorded and logged before its next call, so that a stop loses nothing.
//! - Passes that need the claims of a namespace at the same time share a list, and the list counts for the other passes too.
//! - A stop waits for the creates that are in flight, because a create that is dropped may still be performed. The creates whose results
//!   are not known are handed to the next term.

mod handlers;
mod run_pass;
mod shared_lists;
mod write_log;

use std::num::NonZeroUsize;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::resource::v1::{ResourceClaim, ResourceClaimTemplate};
use k8s_openapi::api::scheduling::v1alpha2::PodGroup;
use parking_lot::Mutex;
use podwright_metrics::{ClaimSeries, ControllersMetrics};
use podwright_model::time::Time;
use podwright_parts::{Parts, StoppedPart};
use podwright_ports::Clock;
use podwright_work_loop::{Work, for_metrics, work};
use podwright_work_queue::WorkQueue;
use tokio::sync::Notify;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use self::handlers::AllHandlers;
pub use self::handlers::{WatchHandler, WatchedKind};
use self::shared_lists::SharedLists;
use super::leader_election::LeaseGuard;
use super::passes::Passes;
use super::resource_claim::{
    CONTROLLER_NAME, ClaimCounts, ClaimExplanation, Core, Features, Key, ObjectKey, QUEUE_NAME, UnansweredCreates,
    WatchEvent,
};
use crate::ports::resource_claims::ResourceClaimApi;

/// The number of workers, as in upstream.
const WORKERS: NonZeroUsize = NonZeroUsize::new(50).unwrap();
/// How long the end of a term waits for creates in flight. Short enough that a term ends within a second.
const CREATES_TIMEOUT: Duration = Duration::from_millis(800);

/// The settings of the controller.
#[derive(Clone, Copy, Debug)]
pub struct ClaimControllerConfig {
    /// The feature gates.
    pub features: Features,
    /// The largest number of passes at one time (`concurrent-resourceclaim-syncs`). The default is 50.
    pub workers: NonZeroUsize,
    /// How long the end of a term waits for creates in flight. The default is 0.8 s.
    pub creates_timeout: Duration,
}

impl Default for ClaimControllerConfig {
    fn default() -> Self {
        ClaimControllerConfig { features: Features::default(), workers: WORKERS, creates_timeout: CREATES_TIMEOUT }
    }
}

/// What the controller needs from outside.
#[derive(Clone)]
pub struct ClaimControllerPorts {
    /// Performs the calls.
    pub api: Arc<dyn ResourceClaimApi>,
    /// Measures the delays.
    pub clock: Arc<dyn Clock>,
    /// The metrics of the controller.
    pub metrics: ControllersMetrics,
    /// Says whether this replica holds the lease. Each call waits until it does.
    pub lease: LeaseGuard,
}

/// The ResourceClaim controller of one term as the leader. The methods may be called from any thread, and do not wait for a pass.
/// Dropping the controller stops it.
pub struct ClaimController {
    shared: Arc<Shared>,
    /// The passes, as one part.
    parts: Parts,
}

/// How a term ends: no further call begins, and creates in flight are awaited.
#[derive(Default)]
struct TermEnd {
    /// Cancelled when the term ends. No call begins after that.
    ends: CancellationToken,
    /// The creates that are in flight.
    creates: TaskTracker,
}

/// What the handle and the task share.
struct Shared {
    config: ClaimControllerConfig,
    ports: ClaimControllerPorts,
    core: Mutex<Core>,
    /// Whether all watches have completed their first lists, and all keys were queued.
    is_synced: AtomicBool,
    passes: Passes<Key>,
    /// Notified when keys were added to the queue.
    added: Notify,
    handlers: AllHandlers,
    lists: SharedLists,
    end: TermEnd,
}

impl ClaimController {
    /// Starts the controller as the leader, with an empty cache. `unanswered` is what [`stop`](Self::stop) of the last term in this
    /// process returned, so that no create of that term is repeated. Each watch must begin after the lease was acquired, with a list that
    /// is a consistent read. Otherwise the cache could lack a claim that the previous leader has generated.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn start(config: ClaimControllerConfig, ports: ClaimControllerPorts, unanswered: UnansweredCreates) -> Self {
        let shared = Arc::new(Shared {
            core: Mutex::new(Core::new(config.features).with_unanswered(unanswered)),
            is_synced: AtomicBool::new(false),
            passes: Passes::new(CONTROLLER_NAME, ports.metrics.panics.clone()),
            added: Notify::new(),
            handlers: AllHandlers::default(),
            lists: SharedLists::default(),
            end: TermEnd::default(),
            config,
            ports,
        });
        let weak = Arc::downgrade(&shared);
        shared.ports.metrics.resource_claims.count_claims(move || {
            let counts = weak.upgrade().map_or_else(|| Core::default().claim_counts(), |shared| shared.claim_counts());
            counts.iter().map(|(labels, claims)| (labels.series(), *claims)).collect::<Vec<(ClaimSeries, u64)>>()
        });
        let weak = Arc::downgrade(&shared);
        shared.ports.metrics.work_queues.observe(QUEUE_NAME, move || {
            weak.upgrade()
                .map(|shared| for_metrics(shared.passes.queue.lock().numbers(shared.ports.clock.now())))
                .unwrap_or_default()
        });
        let parts = Parts::new(shared.ports.metrics.panics.clone(), CancellationToken::new());
        let (running, stop) = (shared.clone(), parts.stop().clone());
        parts.spawn(CONTROLLER_NAME, move || run(running.clone(), stop.clone()));
        ClaimController { shared, parts }
    }

    /// Takes an event of the watch of pods, of all namespaces.
    pub fn pod_event(&self, event: WatchEvent<Pod>) {
        self.shared.event(event);
    }

    /// Takes an event of the watch of claims, of all namespaces.
    ///
    /// [`WatchEvent::Init`] must come before the request of its list is sent. The controller takes the time of this event as that of the
    /// request, and concludes from the list which creates were not performed. So the watch may not use streaming lists, whose `Init`
    /// comes after the answer of the server.
    pub fn claim_event(&self, event: WatchEvent<ResourceClaim>) {
        self.shared.event(event);
    }

    /// Takes an event of the watch of templates, of all namespaces.
    pub fn template_event(&self, event: WatchEvent<ResourceClaimTemplate>) {
        self.shared.event(event);
    }

    /// Takes an event of the watch of pod groups, of all namespaces. This watch is needed only with the feature
    /// [`pod_groups`](Features::pod_groups).
    pub fn pod_group_event(&self, event: WatchEvent<PodGroup>) {
        self.shared.event(event);
    }

    /// Waits while 1,000 or more events of one watch are queued. Events queue while a thread delivers the present objects to a slow new
    /// handler. The watch awaits this before each event, so that the memory stays bounded. Cancel safe.
    pub async fn until_room<K: WatchedKind>(&self) {
        K::handlers(&self.shared.handlers).until_room().await;
    }

    /// Adds a handler of the events of one watch. It first receives the present objects as a list: [`WatchEvent::Init`],
    /// [`WatchEvent::InitApply`] for each object, and [`WatchEvent::InitDone`] if the list of the watch is complete; then each later
    /// event, in the order of the watch. When a handler is called for an event, the controller knows the event too.
    ///
    /// The handler is called on the thread that brings the event to the controller, or on the one that adds the handler, and never by
    /// two threads at once. It must return soon, because the events of this watch wait meanwhile. It may call the controller, and add
    /// and remove handlers. A panic is counted and logged with the object, and the handler receives the next event.
    ///
    /// Dropping the returned value removes the handler. [`stop`](Self::stop) removes all handlers. Each term as the leader has a
    /// controller of its own, so an embedder must add its handlers again in each term.
    pub fn add_handler<K: WatchedKind>(&self, handler: impl FnMut(&WatchEvent<K>) + Send + 'static) -> WatchHandler {
        let list = || K::list(&self.shared.core.lock());
        K::handlers(&self.shared.handlers).add(Box::new(handler), list, &self.shared.ports.metrics.panics)
    }

    /// Whether all watches have completed their first lists.
    pub fn is_synced(&self) -> bool {
        self.shared.is_synced.load(Ordering::Acquire)
    }

    /// Whether no pass can run any more: the controller was stopped.
    pub fn has_ended(&self) -> bool {
        self.parts.running() == 0
    }

    /// The part that performs the passes, for the seconds after a panic of it.
    pub fn stopped_parts(&self) -> Vec<StoppedPart> {
        self.parts.stopped()
    }

    /// The number of keys in the queue, with those whose passes run or wait for a backoff.
    pub fn queued(&self) -> usize {
        self.shared.passes.queue.lock().len()
    }

    /// The number of known claims by their labels.
    pub fn claim_counts(&self) -> ClaimCounts {
        self.shared.claim_counts()
    }

    /// Explains the state of a claim. If the claim does not exist, its name may be incomplete: `POD`, or `POD-CLAIM` without the characters
    /// that the server appends.
    pub fn explain(&self, claim: &ObjectKey) -> ClaimExplanation {
        let mut explanation = self.shared.core.lock().explain(claim, self.shared.ports.clock.now());
        explanation.failures = explanation.keys.iter().filter_map(|key| self.shared.passes.failures(key)).collect();
        explanation
    }

    /// Stops all passes, and waits until they have ended. No further call begins. Creates that are in flight have
    /// [`ClaimControllerConfig::creates_timeout`] to end; other calls are dropped, and the API server may still perform them.
    /// Events that come later have no effect, and no handler is called for them.
    ///
    /// Returns the creates whose results are not known, for the next term. Cancel safe.
    pub async fn stop(&self) -> UnansweredCreates {
        let TermEnd { ends, creates } = &self.shared.end;
        ends.cancel();
        creates.close();
        self.shared.handlers.close();
        let _all_answered = timeout(self.shared.config.creates_timeout, creates.wait()).await;
        self.parts.stop().cancel();
        self.parts.ended().await;
        let unanswered = self.shared.core.lock().unanswered_creates(self.shared.ports.clock.now());
        for (kind, owner, entry) in unanswered.entries() {
            tracing::warn!(
                controller = CONTROLLER_NAME,
                kind = kind.as_str(),
                object = %owner,
                claim = entry,
                "term ended before the result of a create was known"
            );
        }
        unanswered
    }
}

impl Drop for ClaimController {
    fn drop(&mut self) {
        self.parts.stop().cancel();
        self.shared.handlers.close();
    }
}

/// Performs passes until `stop` is cancelled. Passes that run at that time are dropped.
async fn run(shared: Arc<Shared>, stop: CancellationToken) {
    let passes = Work {
        queue: &shared.passes.queue,
        limit: shared.config.workers.get(),
        fill: |_: &mut WorkQueue<Key>| {},
        added: || shared.added.notified(),
        perform: |key: Key| shared.perform(key),
        clock: &*shared.ports.clock,
        panics: &shared.ports.metrics.panics,
        durations: Some(&shared.ports.metrics.work_queues.durations(QUEUE_NAME)),
    };
    work(passes, stop).await;
}

impl Shared {
    /// Updates the core, queues the keys that the event announces, and delivers the event to the handlers.
    fn event<K: WatchedKind>(&self, event: WatchEvent<K>) {
        let panics = &self.ports.metrics.panics;
        K::handlers(&self.handlers).event(event, |event| self.apply(event, K::apply), panics);
    }

    fn apply<K: WatchedKind>(
        &self,
        event: WatchEvent<K>,
        handle: impl FnOnce(&mut Core, WatchEvent<K>, Time) -> Vec<Key>,
    ) {
        let object = event.object().cloned();
        let Ok(keys) = catch_unwind(AssertUnwindSafe(|| self.keys(event, handle))) else {
            self.ports.metrics.panics.caught();
            handlers::log_panic(object.as_deref(), "the handling of an event panicked");
            return;
        };
        if keys.is_empty() {
            return;
        }
        let now = self.ports.clock.now();
        let mut queue = self.passes.queue.lock();
        // `add_at` ends a backoff, because the pass may wait for what this event announces.
        keys.iter().for_each(|key| queue.add_at(key, now));
        drop(queue);
        self.added.notify_one();
    }

    fn keys<K>(
        &self,
        event: WatchEvent<K>,
        handle: impl FnOnce(&mut Core, WatchEvent<K>, Time) -> Vec<Key>,
    ) -> Vec<Key> {
        let mut core = self.core.lock();
        let keys = handle(&mut core, event, self.ports.clock.now());
        if self.is_synced.load(Ordering::Acquire) {
            return keys;
        }
        if !core.is_synced() {
            // The first lists end with all keys, which include these.
            return Vec::new();
        }
        let keys = core.all_keys();
        self.is_synced.store(true, Ordering::Release);
        keys
    }

    fn claim_counts(&self) -> ClaimCounts {
        self.core.lock().claim_counts()
    }
}

#[cfg(test)]
mod tests;
