//! The statuses of all pods, shared by the parts of a node, and the metrics of their changes.

mod unwritten;

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use k8s_openapi::api::core::v1::PodStatus;
use parking_lot::Mutex;
use podwright_metrics::{ContainerType, Metrics};
use podwright_work_queue::Urgency;
use tokio::sync::watch;

use crate::ids::PodUid;
use crate::pod::{ContainerKind, Phase, PodObject};
use crate::ports::Clock;
use crate::probe_manager::ProbeChange;
use crate::probes::{ProbeKind, ProbeResult};
use crate::status::{SetOutcome, StatusCache, StatusChange, StatusToWrite};

pub(crate) use unwritten::Unwritten;

/// The statuses that the node reports for its pods. Every method is atomic and returns at once.
pub struct Statuses {
    cache: Mutex<StatusCache>,
    changes: watch::Sender<u64>,
    /// The pods whose statuses may have to be written. Unset without a status writer.
    unwritten: OnceLock<Arc<Unwritten>>,
    clock: Arc<dyn Clock>,
    metrics: Metrics,
}

impl Statuses {
    /// An empty store.
    pub fn new(clock: Arc<dyn Clock>, metrics: Metrics) -> Self {
        Statuses { cache: Mutex::default(), changes: watch::Sender::new(0), unwritten: OnceLock::new(), clock, metrics }
    }

    /// The status of a pod. A static pod is found by its own UID, not by its mirror's.
    pub fn get(&self, uid: &PodUid) -> Option<Arc<PodStatus>> {
        self.cache.lock().get(uid)
    }

    /// The phase in the status of a pod.
    pub fn phase(&self, uid: &PodUid) -> Option<Phase> {
        self.get(uid).map(|status| Phase::parse(status.phase.as_deref()))
    }

    /// A number that grows with every accepted change of any status.
    pub fn subscribe(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Stores a computed status. Returns false if the status is refused: it shows a running container that had ended for
    /// good.
    pub fn set(&self, pod: &PodObject, mirror: Option<&PodObject>, status: PodStatus, force: bool) -> bool {
        let mirror = mirror.and_then(PodObject::status);
        let outcome = self.cache.lock().set(pod, mirror, status, force, self.clock.now());
        self.accepted(pod, outcome)
    }

    /// The status that [`set`](Statuses::set) would store now; `None` if it would refuse the status.
    pub fn completed(&self, pod: &PodObject, mirror: Option<&PodObject>, status: PodStatus) -> Option<PodStatus> {
        let mirror = mirror.and_then(PodObject::status);
        self.cache.lock().completed(pod, mirror, status, self.clock.now()).ok()
    }

    /// The status that [`terminate`](Statuses::terminate) would store now.
    pub fn ended(&self, pod: &PodObject) -> Option<PodStatus> {
        self.cache.lock().ended(pod, None, self.clock.now()).ok()
    }

    /// Restores the final status of a pod that ended under an earlier agent.
    pub fn restore(&self, uid: PodUid, status: PodStatus) {
        self.cache.lock().restore(uid, status, self.clock.now());
    }

    /// Completes the status of a pod whose cleanup has finished.
    pub fn terminate(&self, pod: &PodObject) {
        let outcome = self.cache.lock().terminate(pod, None, self.clock.now());
        self.accepted(pod, outcome);
    }

    /// Sets the condition that says that the pod's sandbox is ready.
    pub fn sandbox_ready(&self, pod: &PodObject) {
        let outcome = self.cache.lock().set_sandbox_ready(pod, true, self.clock.now());
        self.accepted(pod, outcome);
    }

    /// Writes the new result of a readiness or startup probe into the status.
    pub fn probe_changed(&self, pod: &PodObject, change: &ProbeChange) {
        let now = self.clock.now();
        let passed = change.result == ProbeResult::Success;
        let outcome = match change.kind {
            ProbeKind::Readiness => self.cache.lock().set_ready(pod, &change.id, passed, now),
            ProbeKind::Startup => self.cache.lock().set_started(pod, &change.id, passed, now),
            ProbeKind::Liveness => return,
        };
        self.accepted(pod, outcome);
    }

    /// Drops the statuses of the pods for which `keep` returns false.
    pub fn retain(&self, keep: impl FnMut(&PodUid) -> bool) {
        self.cache.lock().retain(keep);
    }

    /// Drops the status of a pod that runs again.
    pub fn forget(&self, uid: &PodUid) {
        self.cache.lock().forget(uid);
    }

    /// Whether the pod's cleanup has finished.
    pub fn is_finished(&self, uid: &PodUid) -> bool {
        self.cache.lock().is_finished(uid)
    }

    /// Starts to collect the pods whose statuses may have to be written. The collection begins with the pods of restored statuses.
    pub(crate) fn collect_unwritten(&self) -> Arc<Unwritten> {
        let unwritten = self.unwritten.get_or_init(Arc::default).clone();
        self.cache.lock().unwritten().for_each(|(uid, _)| unwritten.add(uid, Urgency::High));
        unwritten
    }

    /// Requests that the writer compares a pod's status with the API server's pod: that pod has changed, or a terminal phase may
    /// be written now.
    pub(crate) fn compare_with_api(&self, uid: &PodUid) {
        self.request_write(uid, Urgency::Normal);
    }

    /// The kept status of a pod, for its writer.
    pub(crate) fn begin_write(&self, uid: &PodUid) -> Option<StatusToWrite> {
        self.cache.lock().begin_write(uid)
    }

    /// Records that the API server has a version of a status. If it is the newest one, returns the time since the first change that
    /// was not written.
    pub(crate) fn written(&self, uid: &PodUid, version: u64) -> Option<Duration> {
        self.cache.lock().written(uid, version, self.clock.now())
    }

    fn request_write(&self, uid: &PodUid, urgency: Urgency) {
        if let Some(unwritten) = self.unwritten.get() {
            unwritten.add(uid, urgency);
        }
    }

    fn accepted(&self, pod: &PodObject, outcome: SetOutcome) -> bool {
        match outcome {
            SetOutcome::Accepted(change) => {
                self.count(pod, &change);
                self.request_write(pod.uid(), if change.is_urgent { Urgency::High } else { Urgency::Normal });
                self.changes.send_modify(|version| *version += 1);
                true
            }
            SetOutcome::Unchanged => true,
            SetOutcome::Refused(error) => {
                // A warning only: the pod may start anew after its stop. Then it has no earlier status, and its first sync is accepted.
                tracing::warn!(
                    pod = %pod.full_name(),
                    reason = %error,
                    "the pod keeps its last status, and its next sync computes a new one"
                );
                false
            }
        }
    }

    fn count(&self, pod: &PodObject, change: &StatusChange) {
        if change.became_running
            && let Some(first_seen) = pod.first_seen()
        {
            self.metrics.start.running(self.clock.now().since(first_seen));
        }
        for exit in &change.terminated {
            self.metrics.status.container_terminated(container_type(exit.kind), exit.exit_code, &exit.reason);
        }
    }
}

/// The metric label of a container's kind.
pub(crate) fn container_type(kind: ContainerKind) -> ContainerType {
    match kind {
        ContainerKind::Init => ContainerType::InitContainer,
        ContainerKind::Regular => ContainerType::Container,
        ContainerKind::Ephemeral => ContainerType::EphemeralContainer,
    }
}
