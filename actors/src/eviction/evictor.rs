//! Measures pods and disks, and evicts pods.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream;
use k8s_openapi::api::core::v1::PodStatus;
use podwright_metrics::{EvictionSignal, Metrics};
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep};

use super::disk_state::DiskState;
use super::limits::{Exceeded, PodUsage, StorageLimits};
use super::rank::{self, Candidate};
use super::thresholds::{DiskSignal, EvictionThresholds, MetThreshold, NodeDisks};
use crate::active_pods::ActivePods;
use crate::desired::DesiredPods;
use crate::engine::{Engine, KillNow};
use crate::image_gc::ImageCollector;
use crate::metered::guarded;
use crate::pod::{Phase, PodObject};
use crate::ports::{Clock, ContainerRuntime, DiskMeter, EventRecorder, ImageStore, PodEvent, StatusFn};
use crate::status::set_disruption_target;
use crate::text::error_chain;
use crate::texts::evictions::{EVICTED, reclaims};

/// The number of pods that are measured at once. Each measurement takes at most a quarter of a CPU.
const PARALLEL: usize = 4;
/// The grace period of an evicted pod in seconds (upstream `immediateEvictionGracePeriodSeconds`, kubelet 1.36).
const GRACE: i64 = 1;
/// How long a check waits until the evicted pod is cleaned up (upstream `podCleanupTimeout`, kubelet 1.36).
const CLEANUP: Duration = Duration::from_secs(30);
/// How often it looks (upstream `podCleanupPollFreq`, kubelet 1.36).
const CLEANUP_POLL: Duration = Duration::from_secs(1);

/// The parts of the node that evictions need.
pub(crate) struct EvictorParts {
    pub(crate) engine: Engine,
    pub(crate) desired: Arc<DesiredPods>,
    pub(crate) active: ActivePods,
    pub(crate) runtime: Arc<dyn ContainerRuntime>,
    pub(crate) meter: Arc<dyn DiskMeter>,
    /// The images and their collector, if the runtime has images.
    pub(crate) images: Option<(Arc<dyn ImageStore>, Arc<ImageCollector>)>,
    pub(crate) events: Arc<dyn EventRecorder>,
    pub(crate) state: Arc<DiskState>,
}

/// Decides on evictions and performs them. See the module.
pub(crate) struct Evictor {
    parts: EvictorParts,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) metrics: Metrics,
    thresholds: EvictionThresholds,
    transition: Duration,
    seats: Semaphore,
    /// The number of pods that are being evicted because of a limit.
    evicting: AtomicUsize,
}

impl Evictor {
    /// Evicts pods at these thresholds. The node counts as short of disk space for `transition` after the last met threshold.
    pub(crate) fn new(
        parts: EvictorParts,
        clock: Arc<dyn Clock>,
        metrics: Metrics,
        thresholds: EvictionThresholds,
        transition: Duration,
    ) -> Self {
        let seats = Semaphore::new(PARALLEL);
        Evictor { parts, clock, metrics, thresholds, transition, seats, evicting: AtomicUsize::new(0) }
    }

    /// The running pods that have a limit on their local storage. Forgets the measurements of all others.
    pub(super) fn limited_pods(&self) -> Vec<Arc<PodObject>> {
        let mut pods = self.running_pods();
        pods.retain(|pod| StorageLimits::may_be_set(pod));
        let uids: HashSet<_> = pods.iter().map(|pod| pod.uid()).collect();
        self.parts.state.retain(|uid| uids.contains(uid));
        pods
    }

    /// The desired pods that count for admission and do not stop yet.
    fn running_pods(&self) -> Vec<Arc<PodObject>> {
        let mut pods = self.parts.desired.pods();
        pods.retain(|pod| {
            let lifecycle = self.parts.engine.lifecycle(pod.uid());
            lifecycle.is_some() && self.may_be_evicted(pod) && self.parts.active.is_active(pod, lifecycle)
        });
        pods
    }

    fn may_be_evicted(&self, pod: &PodObject) -> bool {
        self.parts.engine.is_pod_known(pod.uid()) && !self.parts.engine.is_pod_termination_requested(pod.uid())
    }

    /// Measures a pod, and evicts it if it exceeds one of its limits.
    pub(super) async fn check_limits(&self, pod: &Arc<PodObject>) {
        let Some(limits) = StorageLimits::of(pod) else { return };
        let Some(usage) = self.measure(pod, true).await else { return };
        let dedicated = self.parts.state.has_dedicated_image_disk();
        let Some(exceeded) = limits.exceeded(pod, &usage, dedicated) else { return };
        let signal = match exceeded {
            Exceeded::Volume(..) => EvictionSignal::EmptyDirFsLimit,
            Exceeded::Pod(_) => EvictionSignal::EphemeralPodFsLimit,
            Exceeded::Container(..) => EvictionSignal::EphemeralContainerFsLimit,
        };
        let _counted = Counted::new(&self.evicting);
        self.evict(pod, signal, PodEvent::warning(EVICTED, exceeded.message()), false).await;
    }

    /// Measures a pod. `None` if its files cannot be measured. The space of writable layers that the runtime does not report counts
    /// as unknown. `keep` stores the result for `explain`.
    async fn measure(&self, pod: &Arc<PodObject>, keep: bool) -> Option<Arc<PodUsage>> {
        let _seat = self.seats.acquire().await;
        let layers = guarded(&self.metrics, || self.parts.runtime.writable_layers(pod.uid())).await;
        let disk = self.parts.meter.pod_usage(pod).await;
        let now = self.clock.now();
        let mut errors = Vec::new();
        let layers = layers.map_err(|error| errors.push(error_chain(&error).to_string())).unwrap_or_default();
        let disk = disk.map_err(|error| errors.push(error_chain(&error).to_string())).ok();
        let layers = layers.into_iter().map(|layer| (layer.container, layer.used)).collect();
        let usage = disk.map(|disk| Arc::new(PodUsage { disk, layers }));
        let error = (!errors.is_empty()).then(|| errors.join("; "));
        if keep && self.parts.state.note_pod(pod.uid(), now, usage.clone(), error.clone()) {
            let error = error.unwrap_or_default();
            tracing::warn!(pod = %pod.full_name(), pod.uid = %pod.uid(), error, "cannot measure the local storage of a pod");
        }
        usage
    }

    /// Compares the disks with the thresholds. If one is met, reclaims what no pod needs, and evicts one pod if that is not enough.
    /// Returns whether a pod was evicted.
    pub(super) async fn relieve(&self) -> bool {
        let Some(disks) = self.disks().await else { return false };
        self.parts.state.set_dedicated_image_disk(disks.has_dedicated_image_disk());
        let met = self.thresholds.met(&disks);
        self.note(met.first());
        let Some(first) = met.first() else { return false };
        // A pod that exceeds its limit frees space without the eviction of another one.
        if self.evicting.load(Ordering::Relaxed) > 0 {
            return false;
        }
        let event = PodEvent::warning("EvictionThresholdMet", reclaims(first.signal.resource()));
        self.parts.events.record_of_node(event);
        if self.reclaim(first.signal, &disks).await
            && let Some(disks) = self.disks().await
            && self.thresholds.met(&disks).is_empty()
        {
            tracing::info!(signal = first.signal.as_str(), "unused images were enough, no pod is evicted");
            return false;
        }
        self.evict_one(first, &met, disks.has_dedicated_image_disk()).await
    }

    /// The disks. `None` if the node's disk cannot be measured.
    async fn disks(&self) -> Option<NodeDisks> {
        let node = match self.parts.meter.node_file_system().await {
            Ok(node) => node,
            Err(error) => {
                tracing::debug!(error = %error_chain(&error), "cannot measure the node's disk");
                return None;
            }
        };
        let images = match &self.parts.images {
            Some((store, _)) => guarded(&self.metrics, || store.file_system()).await.unwrap_or_else(|error| {
                tracing::debug!(error = %error_chain(&error), "cannot measure the disk of images");
                None
            }),
            None => None,
        };
        Some(NodeDisks { node, images })
    }

    /// Logs when the node becomes short of disk space, and when it no longer is.
    fn note(&self, met: Option<&MetThreshold>) {
        if !self.parts.state.note_disks(met, self.clock.now(), self.transition) {
            return;
        }
        match met {
            Some(MetThreshold { signal, threshold, available }) => {
                let signal = signal.as_str();
                tracing::warn!(signal, threshold, available, "the node is short of disk space: new pods are rejected");
            }
            None => tracing::info!("the node is no longer short of disk space: new pods are admitted again"),
        }
    }

    /// Removes all unused images if the signal is about their disk. Returns whether anything was tried.
    async fn reclaim(&self, signal: DiskSignal, disks: &NodeDisks) -> bool {
        let Some((_, collector)) = &self.parts.images else { return false };
        if disks.has_dedicated_image_disk() && !signal.is_of_images() {
            return false;
        }
        if let Err(error) = collector.remove_unused().await {
            tracing::warn!(error = %error_chain(&error), "cannot remove all unused images");
        }
        true
    }

    /// Evicts the first pod of the ranking, and waits until it is cleaned up.
    async fn evict_one(&self, met: &MetThreshold, all: &[MetThreshold], dedicated: bool) -> bool {
        let mut pods = self.running_pods();
        pods.retain(|pod| !pod.is_critical());
        let start = self.clock.now();
        let measured = stream::iter(pods).map(|pod| async {
            let usage = self.measure(&pod, false).await;
            Candidate { pod, usage }
        });
        let mut candidates: Vec<Candidate> = measured.buffer_unordered(PARALLEL).collect().await;
        rank::rank(&mut candidates, met.signal, dedicated);
        let age = self.clock.now().since(start);
        all.iter().for_each(|met| self.metrics.admission.eviction_stats_age(metric(met.signal), age));
        for Candidate { pod, usage } in candidates {
            let (message, annotations) = rank::cause(&pod, usage.as_deref(), met);
            let event = PodEvent::warning(EVICTED, message).with_annotations(annotations);
            if self.evict(&pod, metric(met.signal), event, true).await {
                self.cleaned_up(&pod).await;
                return true;
            }
        }
        tracing::debug!(signal = met.signal.as_str(), "the node is short of disk space, and no pod may be evicted");
        false
    }

    /// Stops a pod, and waits until it has stopped. A pressure of the node also sets the condition `DisruptionTarget`. Returns
    /// false for a pod that may not be evicted.
    async fn evict(&self, pod: &Arc<PodObject>, signal: EvictionSignal, event: PodEvent, is_pressure: bool) -> bool {
        // The pod may have been removed or stopped since it was measured.
        if pod.is_critical() || !self.may_be_evicted(pod) {
            return false;
        }
        let message = event.message.clone();
        tracing::warn!(pod = %pod.full_name(), pod.uid = %pod.uid(), message, "pod is evicted");
        self.parts.events.record(pod, event);
        self.metrics.admission.evicted(signal);
        let status_fn = Some(self.failed(message, is_pressure));
        let how = KillNow { evict: true, grace_seconds: Some(GRACE), status_fn };
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

fn metric(signal: DiskSignal) -> EvictionSignal {
    match signal {
        DiskSignal::NodeFsAvailable => EvictionSignal::NodeFsAvailable,
        DiskSignal::NodeFsInodesFree => EvictionSignal::NodeFsInodesFree,
        DiskSignal::ImageFsAvailable => EvictionSignal::ImageFsAvailable,
        DiskSignal::ImageFsInodesFree => EvictionSignal::ImageFsInodesFree,
    }
}

/// Subtracts one from the counter when it is dropped.
struct Counted<'a>(&'a AtomicUsize);

impl<'a> Counted<'a> {
    fn new(counter: &'a AtomicUsize) -> Self {
        counter.fetch_add(1, Ordering::Relaxed);
        Counted(counter)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
