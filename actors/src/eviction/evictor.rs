//! Measures pods and the node, and evicts pods.

use std::collections::HashSet;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use actix::Recipient;
use futures_util::stream;
use futures_util::{FutureExt, StreamExt};
use k8s_openapi::api::core::v1::PodStatus;
use podwright_metrics::{EvictionSignal, Metrics};
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::limits::{Exceeded, PodUsage, StorageLimits};
use super::messages::RemoveDeadContainers;
use super::pressure::{MetThreshold, NodePressure, Observations};
use super::rank::{self, Candidate, Usage};
use super::signals::{Pressure, Signal};
use super::state::EvictionState;
use crate::active_pods::ActivePods;
use crate::desired::DesiredPods;
use crate::engine::{Engine, KillNow};
use crate::image_gc::ImageCollector;
use crate::metered::guarded;
use crate::pod::{Phase, PodObject};
use crate::pod_worker::Lifecycle;
use crate::ports::{
    Clock, ContainerRuntime, DiskMeter, EventRecorder, ImageStore, NodeMeter, PodEvent, RuntimeError, StatusFn,
};
use crate::status::set_disruption_target;
use crate::text::error_chain;
use crate::texts::evictions::{EVICTED, reclaims};

/// The number of pods that are measured at once, because of their limits and to rank them. Slow measurements of limits do not delay those
/// that rank pods. Each measurement takes at most a quarter of a CPU.
const PARALLEL: usize = 4;
/// How long the measurements that rank the pods may take together (upstream `runtimeRequestTimeout`, kubelet 1.36).
const MEASURED_WITHIN: Duration = Duration::from_secs(120);
/// How long the measurement of one pod may take that ranks it, so that a slow pod leaves time to measure the others.
const POD_MEASURED_WITHIN: Duration = Duration::from_secs(30);
/// How long a check waits for the removal of dead containers. A runtime that hangs must not keep the node from evicting pods.
const REMOVED_WITHIN: Duration = Duration::from_secs(120);
/// The grace period of an evicted pod in seconds (upstream `immediateEvictionGracePeriodSeconds`, kubelet 1.36).
const GRACE: i64 = 1;
/// How long a check waits until the evicted pod is cleaned up (upstream `podCleanupTimeout`, kubelet 1.36).
const CLEANUP: Duration = Duration::from_secs(30);
/// How often the check reads whether the evicted pod is cleaned up (upstream `podCleanupPollFreq`, kubelet 1.36).
const CLEANUP_POLL: Duration = Duration::from_secs(1);

/// The measured files of a pod, and the error if some of them could not be measured.
#[derive(Default)]
struct Measurement {
    usage: Option<Arc<PodUsage>>,
    error: Option<String>,
}

/// The parts of the node that evictions need.
pub(crate) struct EvictorParts {
    pub(crate) engine: Engine,
    pub(crate) desired: Arc<DesiredPods>,
    pub(crate) active: ActivePods,
    pub(crate) runtime: Arc<dyn ContainerRuntime>,
    /// The meter of disks, if there is one.
    pub(crate) disks: Option<Arc<dyn DiskMeter>>,
    /// The meter of memory and process ids, if there is one.
    pub(crate) meter: Option<Arc<dyn NodeMeter>>,
    /// The images and their collector, if the runtime has images.
    pub(crate) images: Option<(Arc<dyn ImageStore>, Arc<ImageCollector>)>,
    /// Housekeeping, which removes dead containers.
    pub(crate) housekeeping: Recipient<RemoveDeadContainers>,
    pub(crate) events: Arc<dyn EventRecorder>,
    pub(crate) state: Arc<EvictionState>,
}

/// Decides on evictions and performs them. See the module.
pub(crate) struct Evictor {
    parts: EvictorParts,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) metrics: Metrics,
    seats: Semaphore,
    /// The number of pods that are being evicted because of a limit.
    evicting: AtomicUsize,
}

impl Evictor {
    pub(crate) fn new(parts: EvictorParts, clock: Arc<dyn Clock>, metrics: Metrics) -> Self {
        Evictor { parts, clock, metrics, seats: Semaphore::new(PARALLEL), evicting: AtomicUsize::new(0) }
    }

    /// The running pods that have a limit on their local storage. Forgets the measurements of all others.
    pub(super) fn limited_pods(&self) -> Vec<Arc<PodObject>> {
        let mut pods = self.running_pods();
        pods.retain(|pod| self.parts.disks.is_some() && StorageLimits::may_be_set(pod));
        let uids: HashSet<_> = pods.iter().map(|pod| pod.uid()).collect();
        self.parts.state.retain(|uid| uids.contains(uid));
        pods
    }

    /// The desired pods that count for admission and do not stop yet.
    fn running_pods(&self) -> Vec<Arc<PodObject>> {
        let mut pods = self.parts.desired.pods();
        pods.retain(|pod| {
            let lifecycle = self.parts.engine.lifecycle(pod.uid());
            let is_started = lifecycle.is_some_and(|lifecycle| lifecycle < Lifecycle::Terminated);
            is_started && self.may_be_evicted(pod) && self.parts.active.is_active(pod, lifecycle)
        });
        pods
    }

    fn may_be_evicted(&self, pod: &PodObject) -> bool {
        self.parts.engine.is_pod_known(pod.uid()) && !self.parts.engine.is_pod_termination_requested(pod.uid())
    }

    /// Measures a pod, and evicts it if it exceeds one of its limits.
    pub(super) async fn check_limits(&self, pod: &Arc<PodObject>) {
        let Some(limits) = StorageLimits::of(pod) else { return };
        let Some(usage) = self.measure_and_keep(pod).await else { return };
        let dedicated = self.parts.state.has_dedicated_image_disk();
        let Some(exceeded) = limits.exceeded(pod, &usage, dedicated) else { return };
        let signal = match exceeded {
            Exceeded::Volume(..) => EvictionSignal::EmptyDirFsLimit,
            Exceeded::Pod(_) => EvictionSignal::EphemeralPodFsLimit,
            Exceeded::Container(..) => EvictionSignal::EphemeralContainerFsLimit,
        };
        let _counted = EvictionGuard::new(&self.evicting);
        self.evict(pod, signal, PodEvent::warning(EVICTED, exceeded.message()), None).await;
    }

    /// Measures a pod, and stores the result for `explain`.
    async fn measure_and_keep(&self, pod: &Arc<PodObject>) -> Option<Arc<PodUsage>> {
        let seat = self.seats.acquire().await;
        let Measurement { usage, error } = self.measure(pod).await?;
        drop(seat);
        if self.parts.state.note_pod(pod.uid(), self.clock.now(), usage.clone(), error.clone()) {
            let error = error.unwrap_or_default();
            tracing::warn!(pod = %pod.full_name(), pod.uid = %pod.uid(), error, "cannot measure the local storage of a pod");
        }
        usage
    }

    /// Measures the files of a pod. The space of writable layers that the runtime does not report counts as unknown. `None` without
    /// a meter of disks.
    async fn measure(&self, pod: &Arc<PodObject>) -> Option<Measurement> {
        let meter = self.parts.disks.as_ref()?;
        let layers = guarded(&self.metrics, || self.parts.runtime.writable_layers(pod.uid())).await;
        let disk = meter.pod_usage(pod).await;
        let mut errors = Vec::new();
        let layers = layers.map_err(|error| errors.push(error_chain(&error).to_string())).unwrap_or_default();
        let disk = disk.map_err(|error| errors.push(error_chain(&error).to_string())).ok();
        let layers = layers.into_iter().map(|layer| (layer.container, layer.used)).collect();
        let usage = disk.map(|disk| Arc::new(PodUsage { disk, layers }));
        Some(Measurement { usage, error: (!errors.is_empty()).then(|| errors.join("; ")) })
    }

    /// The usage of the resource that the signal is about. `None` if the runtime does not have the pod.
    ///
    /// # Errors
    /// Why the pod cannot be measured.
    async fn usage(&self, pod: &Arc<PodObject>, signal: Signal) -> Result<Option<Usage>, String> {
        if signal.pressure() == Pressure::Disk {
            let measured = self.measure(pod).await.unwrap_or_default();
            return measured.error.map_or(Ok(measured.usage.map(Usage::Disk)), Err);
        }
        match guarded(&self.metrics, || self.parts.runtime.process_usage(pod.uid())).await {
            Ok(usage) => Ok(Some(Usage::Processes(usage))),
            Err(RuntimeError::NotFound(_)) => Ok(None),
            Err(error) => Err(error_chain(&error).to_string()),
        }
    }

    /// Measures pods. A pod that cannot be measured is a candidate without a usage. A pod for whose measurement no time is left is no
    /// candidate.
    ///
    /// # Errors
    /// The error of one pod if several pods have to be ranked and each measurement failed: then the runtime or the disk is at fault, and
    /// not a pod.
    async fn candidates(&self, pods: Vec<Arc<PodObject>>, signal: Signal) -> Result<Vec<Candidate>, String> {
        let end = Instant::now() + MEASURED_WITHIN;
        let measured = stream::iter(pods).map(|pod| async move {
            let own_end = Instant::now() + POD_MEASURED_WITHIN;
            let usage = timeout_at(end.min(own_end), self.usage(&pod, signal));
            let error = match AssertUnwindSafe(usage).catch_unwind().await {
                Ok(Ok(Ok(usage))) => return (Some(Candidate { pod, usage }), None),
                Ok(Ok(Err(error))) => error,
                Ok(Err(_)) if end < own_end => return (None, None),
                Ok(Err(_)) => "the measurement took too long".to_owned(),
                Err(_) => "the measurement panicked".to_owned(),
            };
            let error = format!("pod {}: {error}", pod.full_name());
            (Some(Candidate { pod, usage: None }), Some(error))
        });
        let (candidates, errors): (Vec<_>, Vec<_>) = measured.buffer_unordered(PARALLEL).unzip().await;
        let candidates: Vec<_> = candidates.into_iter().flatten().collect();
        let errors: Vec<_> = errors.into_iter().flatten().collect();
        if candidates.len() > 1 && errors.len() == candidates.len() {
            return Err(errors.into_iter().next().unwrap_or_default());
        }
        for error in errors {
            tracing::warn!(signal = signal.as_str(), error, "a pod without a measurement is the first to be evicted");
        }
        Ok(candidates)
    }

    /// Compares the available resources of the node with the thresholds. If one is met, removes what no pod needs, and evicts
    /// one pod if that is not enough. Returns whether a pod was evicted.
    pub(super) async fn relieve(&self) -> bool {
        let observed = self.observe().await;
        let before = self.parts.state.pressures();
        let met = self.parts.state.observe(&observed, self.clock.now());
        log_changes(&before, &self.parts.state.pressures());
        let Some(first) = met.first() else { return false };
        // A pod that exceeds its limit frees space without the eviction of another one.
        if self.evicting.load(Ordering::Relaxed) > 0 {
            return false;
        }
        let event = PodEvent::warning("EvictionThresholdMet", reclaims(first.signal.resource()));
        self.parts.events.record_of_node(event);
        if self.reclaim(first.signal, &observed).await && self.parts.state.is_relieved(&self.observe().await) {
            tracing::info!(
                signal = first.signal.as_str(),
                "the removal of dead containers and unused images was enough, no pod is evicted"
            );
            return false;
        }
        self.evict_one(first, &met, observed.has_dedicated_image_disk()).await
    }

    /// Measures the available resources of the node.
    async fn observe(&self) -> Observations {
        let mut observed = Observations::default();
        if let Some(meter) = &self.parts.disks {
            observed.node = note_error("the node's disk", meter.node_file_system().await);
        }
        // The disk of images is measured only if the node's disk was, because both may be one disk.
        if let Some((store, _)) = self.parts.images.as_ref().filter(|_| observed.node.is_some()) {
            observed.images =
                note_error("the disk of images", guarded(&self.metrics, || store.file_system()).await).flatten();
        }
        if let Some(meter) = &self.parts.meter {
            observed.memory = note_error("the node's memory", meter.memory());
            observed.pids = note_error("the node's process ids", meter.pids());
        }
        observed
    }

    /// Removes the dead containers of ended pods and all unused images if the signal is about their disk (upstream
    /// `buildSignalToNodeReclaimFuncs`, kubelet 1.36). Returns whether it tried to remove them.
    async fn reclaim(&self, signal: Signal, observed: &Observations) -> bool {
        let is_of_other_disk = observed.has_dedicated_image_disk() && !signal.is_of_images();
        if signal.pressure() != Pressure::Disk || is_of_other_disk {
            return false;
        }
        // The containers are removed first, because a dead container uses its image.
        if timeout(REMOVED_WITHIN, self.parts.housekeeping.send(RemoveDeadContainers)).await.is_err() {
            tracing::warn!("the removal of dead containers takes long and is not awaited");
        }
        if let Some((_, collector)) = &self.parts.images
            && let Err(error) = collector.remove_unused().await
        {
            tracing::warn!(error = %error_chain(&error), "cannot remove all unused images");
        }
        true
    }

    /// Evicts the first pod of the ranking, and waits until it is cleaned up.
    async fn evict_one(&self, met: &MetThreshold, all: &[MetThreshold], dedicated: bool) -> bool {
        let mut pods = self.running_pods();
        pods.retain(|pod| !pod.is_critical());
        let start = self.clock.now();
        let mut candidates = match self.candidates(pods, met.signal).await {
            Ok(candidates) => candidates,
            Err(error) => {
                let signal = met.signal.as_str();
                tracing::warn!(
                    signal,
                    error,
                    "no pod can be measured, so no pod is evicted; the next check tries again"
                );
                return false;
            }
        };
        rank::rank(&mut candidates, met.signal, dedicated);
        let age = self.clock.now().since(start);
        all.iter().for_each(|met| self.metrics.admission.eviction_stats_age(met.signal.metric(), age));
        for Candidate { pod, usage } in candidates {
            let (message, annotations) = rank::cause(&pod, usage.as_ref(), met);
            let event = PodEvent::warning(EVICTED, message).with_annotations(annotations);
            if self.evict(&pod, met.signal.metric(), event, Some(met)).await {
                self.cleaned_up(&pod).await;
                return true;
            }
        }
        tracing::debug!(signal = met.signal.as_str(), "the node lacks a resource, and no pod may be evicted");
        false
    }

    /// Stops a pod, and waits until it has stopped. `met` is the threshold that requires the eviction. It is `None` if the pod
    /// exceeded a limit of its own. With a threshold, the pod also gets the condition `DisruptionTarget`. Returns false for a pod
    /// that may not be evicted.
    async fn evict(
        &self,
        pod: &Arc<PodObject>,
        signal: EvictionSignal,
        event: PodEvent,
        met: Option<&MetThreshold>,
    ) -> bool {
        // The pod may have been removed or stopped since it was measured.
        if pod.is_critical() || !self.may_be_evicted(pod) {
            return false;
        }
        let message = event.message.clone();
        tracing::warn!(pod = %pod.full_name(), pod.uid = %pod.uid(), message, "pod is evicted");
        self.parts.events.record(pod, event);
        self.metrics.admission.evicted(signal);
        let grace = if met.is_some_and(|met| met.is_soft) { self.parts.state.soft_grace(pod) } else { GRACE };
        let status_fn = Some(self.failed(message, met.is_some()));
        let how = KillNow { evict: true, grace_seconds: Some(grace), status_fn };
        if let Err(error) = self.parts.engine.kill_pod_now(pod, how).await {
            tracing::warn!(%error, "an evicted pod did not stop in time; its stop continues");
        }
        true
    }

    fn failed(&self, message: String, is_pressure: bool) -> StatusFn {
        let now = self.clock.now();
        Arc::new(move |status: &mut PodStatus| {
            status.phase = Some(Phase::Failed.as_str().to_owned());
            status.reason = Some(EVICTED.to_owned());
            status.message = Some(message.clone());
            if is_pressure {
                set_disruption_target(status, &message, now);
            }
        })
    }

    async fn cleaned_up(&self, pod: &PodObject) {
        let end = Instant::now() + CLEANUP;
        while !self.parts.engine.should_pod_be_finished(pod.uid()) {
            if Instant::now() >= end {
                tracing::warn!(pod = %pod.full_name(), "an evicted pod is not cleaned up yet");
                return;
            }
            sleep(CLEANUP_POLL).await;
        }
    }
}

/// The result of a measurement. Logs its error.
fn note_error<T>(what: &str, result: Result<T, impl std::error::Error>) -> Option<T> {
    result.map_err(|error| tracing::debug!(error = %error_chain(&error), "cannot measure {what}")).ok()
}

/// Logs the conditions of the node that begin or end.
fn log_changes(before: &[NodePressure], now: &[NodePressure]) {
    let has = |all: &[NodePressure], one: &NodePressure| all.iter().any(|other| other.condition == one.condition);
    for NodePressure { condition, signal, threshold, available, .. } in now.iter().filter(|it| !has(before, it)) {
        let condition = condition.as_str();
        tracing::warn!(condition, signal, threshold, available, "the node lacks a resource: new pods are rejected");
    }
    for ended in before.iter().filter(|it| !has(now, it)) {
        tracing::info!(condition = ended.condition.as_str(), "the node no longer lacks a resource");
    }
}

/// Subtracts one from the counter when it is dropped.
struct EvictionGuard<'a>(&'a AtomicUsize);

impl<'a> EvictionGuard<'a> {
    fn new(counter: &'a AtomicUsize) -> Self {
        counter.fetch_add(1, Ordering::Relaxed);
        EvictionGuard(counter)
    }
}

impl Drop for EvictionGuard<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
