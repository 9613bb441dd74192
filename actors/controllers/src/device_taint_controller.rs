//! Runs the device taint eviction controller: takes the events of the watches, evaluates pods, and performs the passes.
//!
//! ```text
//!  watches --pod_event, ...--> Core, locked <--- evaluates marked pods --- fill --items--> WorkQueue
//!                                ^                                                            | at most `workers` items at once
//!                                `----------- Pass::step <---- pass ---> DeviceTaintApi       v (a port)
//! ```
//!
//! - One [`DeviceTaintController`] lives for one term as the leader, and begins with an empty [`Core`].
//! - No pass begins before all watches have completed their first lists, and all pods that these lists have marked are evaluated.
//!   Otherwise the controller could delete a pod whose toleration it does not know yet.
//! - An event only changes the core and marks pods. The task of the controller evaluates them in small batches, so that events do not
//!   wait for them.
//! - The core is locked for one event, one batch or one step, and never during a call.
//! - The number of calls in flight does not grow with the number of pods that a taint affects at once. A waiting pod is one item of the
//!   queue.
//! - A pass that fails is repeated with a backoff until it succeeds.
//! - No call begins while this replica does not hold the lease. A deletion that was sent may still be performed after the end of the
//!   term; its precondition makes it harmless.
//! - The wall clock may jump in either direction. After a jump, each item of the queue is worked on at once, and those that are not due are
//!   delayed again.
//! - A panic in a pass or in the handling of an event is counted and logged, and the controller continues. After any other panic, the
//!   passes begin again.

mod clock_jumps;

use std::num::NonZeroUsize;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use k8s_openapi::Metadata;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::resource::v1::{ResourceClaim, ResourceSlice};
use k8s_openapi::api::resource::v1beta2::DeviceTaintRule;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use parking_lot::Mutex;
use podwright_metrics::ControllersMetrics;
use podwright_model::time::Time;
use podwright_parts::{Parts, StoppedPart};
use podwright_ports::Clock;
use podwright_work_loop::{Work, for_metrics, work};
use podwright_work_queue::{Outcome, WorkQueue};
use tokio::sync::Notify;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tracing::field::display;

use self::clock_jumps::ClockJumps;
use super::device_taint_eviction::{
    CONTROLLER_NAME, Core, Effects, EvictionEventKind, FailedPass, IN_PROGRESS_CONDITION, Item, ObjectKey,
    Outcome as PassOutcome, PodCondition, PodTaintExplanation, QUEUE_NAME, Report, Request, RuleExplanation, Settings,
    Step,
};
use super::leader_election::LeaseGuard;
use super::owners::object_key;
use super::passes::{PassEnd, Passes};
use super::resource_claim::WatchEvent;
use crate::ports::device_taints::DeviceTaintApi;

/// The number of workers, as in upstream.
const WORKERS: NonZeroUsize = NonZeroUsize::new(8).unwrap();
/// The number of pods in one batch of evaluations. Events are handled between the batches.
const BATCH: usize = 64;
/// How often the wall clock is checked for a jump.
const CLOCK_CHECK: Duration = Duration::from_secs(10);

/// The settings of the controller.
#[derive(Clone, Copy, Debug)]
pub struct DeviceTaintControllerConfig {
    /// The feature gates, and the limit of evictions for a rule.
    pub settings: Settings,
    /// The largest number of passes at one time (`concurrent-device-taint-eviction-syncs`). The default is 8.
    pub workers: NonZeroUsize,
}

impl Default for DeviceTaintControllerConfig {
    fn default() -> Self {
        DeviceTaintControllerConfig { settings: Settings::default(), workers: WORKERS }
    }
}

/// What the controller needs from outside.
#[derive(Clone)]
pub struct DeviceTaintControllerPorts {
    /// Performs the calls.
    pub api: Arc<dyn DeviceTaintApi>,
    /// The wall clock, because taints have times of the wall clock of the API server. It may be set back.
    pub clock: Arc<dyn Clock>,
    /// The metrics of the controller.
    pub metrics: ControllersMetrics,
    /// Says whether this replica holds the lease. Each call waits until it does.
    pub lease: LeaseGuard,
}

/// The device taint eviction controller of one term as the leader. The methods may be called from any thread, and do not wait for a
/// pass. Dropping the controller stops it.
pub struct DeviceTaintController {
    shared: Arc<Shared>,
    /// The passes, as one part.
    parts: Parts,
}

/// What the handle and the task share. The queue is locked before the core.
struct Shared {
    config: DeviceTaintControllerConfig,
    ports: DeviceTaintControllerPorts,
    core: Mutex<Core>,
    /// Whether all watches have completed their first lists.
    is_synced: AtomicBool,
    passes: Passes<Item>,
    /// Notified when the core has effects, or pods to evaluate.
    changed: Notify,
    clock_jumps: ClockJumps,
}

impl DeviceTaintController {
    /// Starts the controller as the leader, with an empty cache. Each watch must begin after the lease was acquired.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn start(config: DeviceTaintControllerConfig, ports: DeviceTaintControllerPorts) -> Self {
        let shared = Arc::new(Shared {
            core: Mutex::new(Core::new(config.settings)),
            is_synced: AtomicBool::new(false),
            passes: Passes::new(CONTROLLER_NAME, ports.metrics.panics.clone()),
            changed: Notify::new(),
            clock_jumps: ClockJumps::new(ports.clock.now()),
            config,
            ports,
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
        DeviceTaintController { shared, parts }
    }

    /// Takes an event of the watch of pods, of all namespaces.
    pub fn pod_event(&self, event: WatchEvent<Pod>) {
        self.event(event, Core::pod_event);
    }

    /// Takes an event of the watch of claims, of all namespaces.
    pub fn claim_event(&self, event: WatchEvent<ResourceClaim>) {
        self.event(event, |core, event, _| core.claim_event(event));
    }

    /// Takes an event of the watch of slices.
    pub fn slice_event(&self, event: WatchEvent<ResourceSlice>) {
        self.event(event, Core::slice_event);
    }

    /// Takes an event of the watch of rules. This watch is needed only with the setting [`rules`](Settings::rules).
    pub fn rule_event(&self, event: WatchEvent<DeviceTaintRule>) {
        self.event(event, Core::rule_event);
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

    /// The number of items in the queue, with those whose passes run or wait.
    pub fn queued(&self) -> usize {
        self.shared.passes.queue.lock().len()
    }

    /// The number of pods that wait for their eviction.
    pub fn pending_pods(&self) -> usize {
        self.shared.core.lock().pending_pods()
    }

    /// Explains which taints evict a pod and when, and what would keep it.
    pub fn explain_pod(&self, pod: &ObjectKey) -> PodTaintExplanation {
        let mut explanation = self.shared.core.lock().explain_pod(pod, self.shared.ports.clock.now());
        explanation.failures = self.shared.failures(explanation.item.as_ref());
        explanation
    }

    /// Explains which pods a rule evicts and when, and what would keep them.
    pub fn explain_rule(&self, rule: &str) -> RuleExplanation {
        let mut explanation = self.shared.core.lock().explain_rule(rule, self.shared.ports.clock.now());
        explanation.failures = self.shared.failures(explanation.item.as_ref());
        explanation
    }

    /// Stops all passes, and waits until they have ended. The API server may still perform the calls that are in progress. Events that
    /// come later have no effect.
    ///
    /// Cancel safe.
    pub async fn stop(&self) {
        self.parts.stop().cancel();
        self.parts.ended().await;
    }

    fn event<K>(&self, event: WatchEvent<K>, handle: impl FnOnce(&mut Core, WatchEvent<K>, Time))
    where
        K: Metadata<Ty = ObjectMeta>,
    {
        if self.parts.stop().is_cancelled() {
            return;
        }
        let (object, now) = (event.object().cloned(), self.shared.ports.clock.now());
        let handled = catch_unwind(AssertUnwindSafe(|| {
            let mut core = self.shared.core.lock();
            handle(&mut core, event, now);
            core.is_synced()
        }));
        match handled {
            Ok(is_synced) => {
                if is_synced {
                    self.shared.is_synced.store(true, Ordering::Release);
                }
                self.shared.changed.notify_one();
            }
            Err(_) => {
                self.shared.ports.metrics.panics.caught();
                let key = object.as_ref().map(|object| object_key(object.metadata()));
                let object = key.as_ref().map(display);
                tracing::error!(
                    controller = CONTROLLER_NAME,
                    kind = K::KIND,
                    object,
                    "the handling of an event panicked"
                );
            }
        }
    }
}

impl Drop for DeviceTaintController {
    fn drop(&mut self) {
        self.parts.stop().cancel();
    }
}

/// Performs passes until `stop` is cancelled. Passes that run at that time are dropped.
async fn run(shared: Arc<Shared>, stop: CancellationToken) {
    let passes = Work {
        queue: &shared.passes.queue,
        limit: shared.config.workers.get(),
        fill: |queue: &mut WorkQueue<Item>| shared.fill(queue),
        added: || shared.until_changed(),
        perform: |item: Item| shared.perform(item),
        clock: &*shared.ports.clock,
        panics: &shared.ports.metrics.panics,
        durations: Some(&shared.ports.metrics.work_queues.durations(QUEUE_NAME)),
    };
    work(passes, stop).await;
}

impl Shared {
    /// The failed passes of an item of the queue.
    fn failures(&self, item: Option<&Item>) -> Vec<FailedPass> {
        item.and_then(|item| self.passes.failures(item)).into_iter().collect()
    }

    /// Waits until the core has effects, or pods to evaluate, or until the clock must be checked. Cancel safe.
    async fn until_changed(&self) {
        let _timed_out = timeout(CLOCK_CHECK, self.changed.notified()).await;
    }

    /// Evaluates all marked pods, adds the resulting items to the queue, and records the resulting events.
    fn fill(&self, queue: &mut WorkQueue<Item>) {
        if self.clock_jumps.has_jumped(self.ports.clock.now()) {
            tracing::warn!(controller = CONTROLLER_NAME, "the wall clock was set, so all items are checked again");
            queue.make_all_ready();
        }
        if !self.is_synced.load(Ordering::Acquire) {
            return;
        }
        let mut effects = Effects::default();
        loop {
            let evaluated = catch_unwind(AssertUnwindSafe(|| {
                let mut core = self.core.lock();
                let now = self.ports.clock.now();
                let has_more = (0..BATCH).all(|_| core.evaluate_next(now));
                if !has_more {
                    effects = core.take_effects();
                }
                has_more
            }));
            match evaluated {
                Ok(true) => {}
                Ok(false) => break,
                // The pod whose evaluation panicked is not marked any more, so the loop ends.
                Err(_) => {
                    self.ports.metrics.panics.caught();
                    tracing::error!(controller = CONTROLLER_NAME, "the evaluation of a pod panicked");
                }
            }
        }
        for event in effects.enqueue(queue, self.ports.clock.now()) {
            if event.kind == EvictionEventKind::Cancellation {
                tracing::info!(controller = CONTROLLER_NAME, object = %event.pod, "the eviction of the pod was cancelled");
            }
            if catch_unwind(AssertUnwindSafe(|| self.ports.api.record(event))).is_err() {
                self.ports.metrics.panics.caught();
                tracing::error!(controller = CONTROLLER_NAME, "the recorder of events panicked");
            }
        }
    }

    async fn perform(&self, item: Item) -> Outcome {
        let pass = async {
            match self.pass(&item).await {
                PassOutcome::Finished => PassEnd::Finished,
                PassOutcome::Again(at) => PassEnd::Again(at),
                PassOutcome::Failed(fault) => {
                    PassEnd::Failed { error: fault.to_string(), at_least: fault.delay_at_least() }
                }
            }
        };
        self.passes.perform(item.clone(), pass).await
    }

    /// One pass.
    async fn pass(&self, item: &Item) -> PassOutcome {
        let mut pass = self.core.lock().begin(item);
        let mut answer = None;
        let Report { outcome, evicted } = loop {
            // The step follows the wait, so that it decides with what is known when the call begins. An answer after which no call
            // follows does not wait, because the end of the term would drop it.
            if pass.may_call() {
                self.ports.lease.until_held().await;
            }
            let (step, has_work) = {
                let mut core = self.core.lock();
                let step = pass.step(&mut core, answer.take(), self.ports.clock.now());
                (step, core.has_work())
            };
            if has_work {
                // The task takes the effects while this pass waits for its call.
                self.changed.notify_one();
            }
            match step {
                Step::Call(request) => {
                    let write = written(&request);
                    let result = self.ports.api.call(request).await;
                    if let (Some(what), Ok(_)) = (write, &result) {
                        tracing::debug!(what, "wrote a status");
                    }
                    answer = Some(result);
                }
                Step::Done(report) => break report,
            }
        };
        if let Some(evicted) = evicted {
            self.ports.metrics.device_taint_evictions.deleted(evicted.late);
            tracing::info!(reasons = %evicted.reasons, "the pod was deleted because of device taints");
        }
        outcome
    }
}

/// What a call writes to a status.
fn written(request: &Request) -> Option<&'static str> {
    match request {
        Request::PatchPodStatus(_) => Some(PodCondition::TYPE),
        Request::ApplyRuleStatus(_) => Some(IN_PROGRESS_CONDITION),
        Request::GetPod(_) | Request::DeletePod(_) => None,
    }
}

#[cfg(test)]
mod tests;
