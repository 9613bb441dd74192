//! The kept statuses, shared, with what their changes count as.

use std::sync::Arc;

use k8s_openapi::api::core::v1::PodStatus;
use parking_lot::Mutex;
use podwright_metrics::{ContainerType, Metrics};
use tokio::sync::watch;

use crate::ids::PodUid;
use crate::pod::{ContainerKind, Phase, PodObject};
use crate::ports::Clock;
use crate::probes::{ProbeChange, ProbeKind, ProbeResult};
use crate::status::{Change, SetOutcome, StatusCache};

/// The statuses that the node stands for. Every method is one step and waits for nothing.
pub struct Statuses {
    cache: Mutex<StatusCache>,
    changes: watch::Sender<u64>,
    clock: Arc<dyn Clock>,
    metrics: Metrics,
}

impl Statuses {
    /// None yet.
    pub fn new(clock: Arc<dyn Clock>, metrics: Metrics) -> Self {
        Statuses { cache: Mutex::default(), changes: watch::Sender::new(0), clock, metrics }
    }

    /// The status of a pod. For a static pod, ask by its own UID.
    pub fn get(&self, uid: &PodUid) -> Option<Arc<PodStatus>> {
        self.cache.lock().get(uid)
    }

    /// Its phase.
    pub fn phase(&self, uid: &PodUid) -> Option<Phase> {
        self.get(uid).map(|status| Phase::parse(status.phase.as_deref()))
    }

    /// Counts up with every accepted change of any pod.
    pub fn subscribe(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Keeps a computed status. False if it was refused, because it would bring back a container that ended for good.
    pub fn set(&self, pod: &PodObject, mirror: Option<&PodObject>, status: PodStatus, force: bool) -> bool {
        let mirror = mirror.and_then(PodObject::status);
        let outcome = self.cache.lock().set(pod, mirror, status, force, self.clock.now());
        self.told(pod, outcome)
    }

    /// What [`set`](Statuses::set) would keep now; `None` if it would refuse the status.
    pub fn completed(&self, pod: &PodObject, mirror: Option<&PodObject>, status: PodStatus) -> Option<PodStatus> {
        let mirror = mirror.and_then(PodObject::status);
        self.cache.lock().completed(pod, mirror, status, self.clock.now()).ok()
    }

    /// What [`terminate`](Statuses::terminate) would keep now.
    pub fn ended(&self, pod: &PodObject) -> Option<PodStatus> {
        self.cache.lock().ended(pod, None, self.clock.now()).ok()
    }

    /// Keeps a status that an earlier agent kept.
    pub fn restore(&self, uid: PodUid, status: PodStatus) {
        self.cache.lock().restore(uid, status, self.clock.now());
    }

    /// The pod's cleanup is done.
    pub fn terminate(&self, pod: &PodObject) {
        let outcome = self.cache.lock().terminate(pod, None, self.clock.now());
        self.told(pod, outcome);
    }

    /// A sandbox was made for the pod.
    pub fn sandbox_ready(&self, pod: &PodObject) {
        let outcome = self.cache.lock().set_sandbox_ready(pod, true, self.clock.now());
        self.told(pod, outcome);
    }

    /// A probe changed its mind.
    pub fn probed(&self, pod: &PodObject, change: &ProbeChange) {
        let now = self.clock.now();
        let good = change.result == ProbeResult::Success;
        let outcome = match change.kind {
            ProbeKind::Readiness => self.cache.lock().set_ready(pod, &change.id, good, now),
            ProbeKind::Startup => self.cache.lock().set_started(pod, &change.id, good, now),
            ProbeKind::Liveness => return,
        };
        self.told(pod, outcome);
    }

    /// Forgets the pods of which `keep` says no.
    pub fn retain(&self, keep: impl FnMut(&PodUid) -> bool) {
        self.cache.lock().retain(keep);
    }

    /// Whether the pod's cleanup is done.
    pub fn is_finished(&self, uid: &PodUid) -> bool {
        self.cache.lock().is_finished(uid)
    }

    fn told(&self, pod: &PodObject, outcome: SetOutcome) -> bool {
        match outcome {
            SetOutcome::Accepted(change) => {
                self.count(pod, &change);
                self.changes.send_modify(|version| *version += 1);
                true
            }
            SetOutcome::Unchanged => true,
            SetOutcome::Refused(error) => {
                tracing::error!(pod = %pod.full_name(), %error, "status refused");
                false
            }
        }
    }

    fn count(&self, pod: &PodObject, change: &Change) {
        if change.became_running
            && let Some(seen) = pod.first_seen()
        {
            self.metrics.start.running(self.clock.now().since(seen));
        }
        for ended in &change.terminated {
            self.metrics.status.container_terminated(container_type(ended.kind), ended.exit_code, &ended.reason);
        }
    }
}

/// The label value for a container's place in its pod.
pub(crate) fn container_type(kind: ContainerKind) -> ContainerType {
    match kind {
        ContainerKind::Init => ContainerType::InitContainer,
        ContainerKind::Regular => ContainerType::Container,
        ContainerKind::Ephemeral => ContainerType::EphemeralContainer,
    }
}
