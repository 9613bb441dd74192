//! The dispatcher turns changes of the sources, of the runtime and of the probes into updates of the engine.
//!
//! ```text
//!   sources ---- AcceptUpdate ----------+
//!   probes ----- ProbeChange -----------+--> DispatcherActor --> Dispatcher --> Engine::update_pod
//!   observer --- RuntimePodChanged -----+                            |
//!            `-- RuntimeHealthChanged --+                            +--> statuses and events of rejected pods
//!   shutdown --- RefuseNewPods ---------+
//!   hooks ------ a pod has ended -------'
//! ```
//!
//! Nothing here waits: a source update is applied in one step, under the lock of the desired pods, and the engine accepts
//! updates without waiting. Only the status and the event of a rejected pod wait, until the rejection is on disk.
//!
//! [`Turns`](turns::Turns) decides when an update is applied, when the queue is judged, and when admission is retried. The actor performs
//! one such turn at a time.
//!
//! A pod that waits for what other pods give back is in the queue of the desired pods ([`AdmissionQueue`]). Other pods are admitted
//! meanwhile. What is freed is reserved for the waiting pod.
//!
//! [`AdmissionQueue`]: crate::admission::AdmissionQueue

mod actor;
mod admit;
mod inbox;
mod messages;
mod preemption;
mod resize;
mod turns;

use std::sync::Arc;

use podwright_metrics::{Metrics, RetryTrigger};

use crate::active_pods::ActivePods;
use crate::admission::{AdmissionHandler, EarlierDecision};
use crate::config::mux::Change;
use crate::desired::{DesiredPods, DesiredState};
use crate::engine::Engine;
use crate::final_statuses::FinalStatusStore;
use crate::ids::PodUid;
use crate::mirrors::checks::MirrorChecks;
use crate::pod::PodObject;
use crate::pod_worker::Update;
use crate::ports::{Clock, EventRecorder, PodEvent, RuntimeView, SourceKind, SourceUpdate};
use crate::probe_manager::ProbeChange;
use crate::recorder::{Note, SourceChange};
use crate::resizes::Resizes;
use crate::shutdown::ShutdownGate;
use crate::starts::PodStarts;
use crate::status::reasons::NODE_SHUTDOWN;
use crate::statuses::Statuses;
use crate::time::Time;

pub(crate) use actor::{DispatcherActor, MAILBOX};
use admit::Admission;
pub(crate) use inbox::inbox;
pub(crate) use messages::{PodObjectsChanged, RefuseNewPods, RuntimeHealthChanged, RuntimePodChanged};

/// The dispatcher's decisions. Every method that is not async is one step.
pub(crate) struct Dispatcher {
    pub(crate) engine: Engine,
    pub(crate) desired: Arc<DesiredPods>,
    /// The pods' statuses. The dispatcher writes those of rejected pods.
    pub(crate) statuses: Arc<Statuses>,
    pub(crate) final_statuses: Arc<FinalStatusStore>,
    pub(crate) active: ActivePods,
    /// The mirror pods that have to be compared with their static pods.
    pub(crate) mirrors: Arc<MirrorChecks>,
    pub(crate) starts: Arc<PodStarts>,
    /// What is allocated to pods that are being resized.
    pub(crate) resizes: Arc<Resizes>,
    /// The runtime's pods. A pod that already runs is not admitted again.
    pub(crate) view: Arc<dyn RuntimeView>,
    /// Refuses every new pod while the node shuts down. Comes before the handlers of `admission`.
    pub(crate) gate: Arc<ShutdownGate>,
    /// The admission handlers, in their order.
    pub(crate) admission: Vec<Arc<dyn AdmissionHandler>>,
    pub(crate) events: Arc<dyn EventRecorder>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) metrics: Metrics,
}

impl Dispatcher {
    /// Applies a source update: adds, updates and removes desired pods, and admits the new ones.
    pub(crate) fn deliver(&self, update: SourceUpdate) -> Admission {
        let start = self.clock.now();
        let mut desired = self.desired.lock();
        let are_mirrors_known = desired.has_delivered(SourceKind::Api);
        let (source, changes, problems) = desired.apply(update);
        for problem in &problems {
            tracing::warn!(source = %source, what = problem.what, "{}", problem.message);
        }
        // A warning is an event of each pod that it is about: when it is new, and when the pod is.
        for (warning, pods) in desired.warnings(source) {
            let is_new = problems.contains(warning);
            for pod in pods.into_iter().filter(|pod| is_new || !desired.is_admitted_or_rejected(pod)) {
                self.events.record(pod, PodEvent::warning("UnknownField", warning.message.clone()));
            }
        }
        for refused in changes.refused {
            self.events.record(&refused.pod, PodEvent::warning("FailedValidation", refused.message));
        }
        let mut admission = Admission::default();
        let mut may_have_freed = false;
        let mut retry_resizes = RetryTrigger::PodUpdated;
        let mut new = Vec::new();
        for change in changes.changes {
            self.note(start, source, &change);
            if source == SourceKind::Api {
                self.measure_starts(&change);
            }
            match change {
                Change::Remove(pods) => {
                    pods.iter().for_each(|pod| self.remove(&mut desired, pod, start));
                    may_have_freed = true;
                    retry_resizes = RetryTrigger::PodsRemoved;
                }
                Change::Add(pods) => {
                    retry_resizes = RetryTrigger::PodsAdded;
                    new.extend(pods);
                }
                Change::Update(pods) | Change::Delete(pods) => {
                    // A changed pod that was rejected because the node lacked something is judged again.
                    let is_known = |pod: &Arc<PodObject>| {
                        desired.is_admitted_or_rejected(pod) && !desired.queue.is_rejected(pod.uid())
                    };
                    let (known, others): (Vec<_>, Vec<_>) = pods.into_iter().partition(is_known);
                    known.into_iter().for_each(|pod| self.update(&mut desired, pod, start));
                    new.extend(others);
                }
                Change::Reconcile(pods) => {
                    let (known, others): (Vec<_>, Vec<_>) =
                        pods.into_iter().partition(|pod| desired.is_admitted_or_rejected(pod));
                    known.into_iter().for_each(|pod| self.reconcile(&mut desired, pod, start));
                    new.extend(others);
                }
            }
        }
        // A set may have a new pod and the deletion of the pod that it replaces. The new pod then waits for the room of the other.
        self.add(&mut desired, new, start, &mut admission);
        if may_have_freed || admission.overtakes {
            self.judge_queue(&mut desired, start, &mut admission);
        }
        if !are_mirrors_known && desired.has_delivered(SourceKind::Api) {
            desired.pods.pods().for_each(|pod| self.mirrors.changed(pod));
        }
        if self.has_resizes() {
            self.decide_resizes(&mut desired, retry_resizes);
        }
        admission
    }

    /// Rejects new pods from now on, or admits them again after a shutdown that was cancelled. The static pods that the shutdown
    /// rejected then lose their decision, and [`retry_admission`](Dispatcher::retry_admission) decides again. Returns whether
    /// there are any.
    pub(crate) fn refuse_new_pods(&self, refuse: bool) -> bool {
        self.gate.set_closed(refuse);
        if refuse {
            return false;
        }
        let mut desired = self.desired.lock();
        let is_refused = |pod: &&Arc<PodObject>| {
            let status = self.statuses.get(pod.uid());
            pod.is_static() && status.is_some_and(|status| status.reason.as_deref() == Some(NODE_SHUTDOWN))
        };
        let refused: Vec<_> = desired.pods.pods().filter(is_refused).cloned().collect();
        for pod in &refused {
            desired.pods.remove(pod);
            self.statuses.forget(pod.uid());
        }
        !refused.is_empty()
    }

    /// Writes a change of a source into the recording.
    fn note(&self, at: Time, source: SourceKind, change: &Change) {
        let Some(recorder) = self.engine.recorder() else { return };
        let (pods, change) = match change {
            Change::Remove(pods) => (pods, SourceChange::Removed),
            Change::Add(pods) => (pods, SourceChange::Added),
            Change::Update(pods) => (pods, SourceChange::Updated),
            Change::Delete(pods) => (pods, SourceChange::Deleted),
            Change::Reconcile(pods) => (pods, SourceChange::Reconciled),
        };
        for pod in pods {
            let (uid, pod) = (pod.uid().clone(), pod.full_name().clone());
            recorder.note(at, &Note::Source { uid, pod, source: source.to_string(), change });
        }
    }

    /// Measures the starts of the pods that the API server delivered.
    fn measure_starts(&self, change: &Change) {
        match change {
            Change::Remove(pods) => pods.iter().for_each(|pod| self.starts.removed(pod.uid())),
            Change::Add(pods) | Change::Update(pods) | Change::Delete(pods) | Change::Reconcile(pods) => {
                pods.iter().for_each(|pod| self.starts.delivered(pod));
            }
        }
    }

    /// Makes the pod's worker sync the pod, because its containers or its probes changed. A pod without a record is
    /// skipped: it was rejected, or it has finished, or housekeeping will start it.
    pub(crate) fn request_sync(&self, uid: &PodUid) {
        let desired = self.desired.lock();
        if let Some(pod) = desired.pods.pod(uid).filter(|_| self.engine.is_pod_known(uid)) {
            let mirror = desired.pods.mirror_of(pod).cloned();
            self.engine.update_pod(Update::sync(pod.clone()).with_mirror(mirror));
        }
    }

    /// Writes the new result of a probe into the pod's status, and makes the pod's worker sync the pod.
    pub(crate) fn probe_changed(&self, change: &ProbeChange) {
        if let Some(recorder) = self.engine.recorder() {
            let ProbeChange { uid, name, kind, result, .. } = change;
            let (uid, container) = (uid.clone(), name.as_str().to_owned());
            recorder.note(self.clock.now(), &Note::Probe { uid, container, kind: *kind, result: *result });
        }
        // A pod that no source desires may still run: a static pod from the removal of its manifest until its containers have ended.
        if let Some(pod) = self.desired.pod(&change.uid).or_else(|| self.engine.active_pod(&change.uid)) {
            self.statuses.probe_changed(&pod, change);
            self.request_sync(&change.uid);
        }
    }

    fn update(&self, desired: &mut DesiredState, pod: Arc<PodObject>, start: Time) {
        let pod = self.allocated(desired, pod);
        desired.pods.put(pod.clone());
        self.compare_with_api(desired, &pod);
        if pod.is_mirror() {
            self.update_static_pod_of(desired, &pod, start);
            return;
        }
        if self.final_statuses.starts_anew(pod.uid()) && !self.engine.is_pod_known(pod.uid()) {
            // Housekeeping starts the pod, once the containers of its earlier life are gone.
            return;
        }
        let mirror = desired.pods.mirror_of(&pod).cloned();
        self.engine.update_pod(Update::changed(pod).with_mirror(mirror).with_start_time(start));
    }

    fn remove(&self, desired: &mut DesiredState, pod: &Arc<PodObject>, start: Time) {
        match desired.queue.take(pod.uid()) {
            // Nothing of the pod has started.
            EarlierDecision::Waited { .. } => return,
            EarlierDecision::Rejected { .. } if !self.engine.is_pod_known(pod.uid()) => {
                // A record would make the pod look as if it had run, should it come back.
                desired.pods.remove(pod);
                self.statuses.forget(pod.uid());
                self.compare_with_api(desired, pod);
                return;
            }
            EarlierDecision::Rejected { .. } | EarlierDecision::None => {}
        }
        let pod = &self.allocated(desired, pod.clone());
        desired.pods.remove(pod);
        self.final_statuses.end_stays(pod.uid());
        self.resizes.removed(pod);
        self.compare_with_api(desired, pod);
        if pod.is_mirror() {
            self.update_static_pod_of(desired, pod, start);
        } else if desired.is_ready_for(pod) {
            // Until every source that may desire the pod has delivered, another source may still desire it. If none does,
            // housekeeping stops it once they all have.
            self.engine.update_pod(Update::kill(pod.clone()).with_start_time(start));
        }
    }

    fn reconcile(&self, desired: &mut DesiredState, pod: Arc<PodObject>, start: Time) {
        let pod = self.allocated(desired, pod);
        desired.pods.put(pod.clone());
        self.compare_with_api(desired, &pod);
        let has_gates = pod.spec().readiness_gates.as_ref().is_some_and(|gates| !gates.is_empty());
        if has_gates && !pod.is_mirror() && self.engine.is_pod_known(pod.uid()) {
            self.engine.update_pod(Update::sync(pod).with_start_time(start));
        }
    }

    /// Requests that the writers compare a pod with the API server's: its status, and the mirror pod of a static pod. A mirror pod
    /// stands for its static pod.
    pub(super) fn compare_with_api(&self, desired: &DesiredState, pod: &PodObject) {
        self.mirrors.changed(pod);
        let pod = if pod.is_mirror() { desired.pods.pod_of(pod).map(|pod| pod.uid()) } else { Some(pod.uid()) };
        pod.into_iter().for_each(|uid| self.statuses.compare_with_api(uid));
    }

    /// Updates the static pod of a changed mirror pod. Ignores a mirror pod without a static pod. Also ignores a mirror pod whose static
    /// pod has no record: that static pod was rejected or has finished, and its mirror pod must not give it a record.
    fn update_static_pod_of(&self, desired: &DesiredState, mirror: &PodObject, start: Time) {
        if let Some(pod) = desired.pods.pod_of(mirror).filter(|pod| self.engine.is_pod_known(pod.uid())) {
            let mirror = desired.pods.mirror_of(pod).cloned();
            self.engine.update_pod(Update::changed(pod.clone()).with_mirror(mirror).with_start_time(start));
        }
    }
}
