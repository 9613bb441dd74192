//! The dispatcher turns changes of the sources, of the runtime and of the probes into updates of the engine.
//!
//! ```text
//!   sources ---- SourceUpdate ----------+
//!   probes ----- ProbeChange -----------+--> DispatcherActor --> Dispatcher --> Engine::update_pod
//!   observer --- RuntimePodChanged -----+                            |
//!            `-- RuntimeHealthChanged --+                            +--> statuses and events of rejected pods
//!   shutdown --- RefuseNewPods ---------+
//! ```
//!
//! Nothing here waits: a source update is applied in one step, under the lock of the desired pods, and the engine accepts
//! updates without waiting. Only the status and the event of a rejected pod wait, until the rejection is on disk.

mod actor;
mod messages;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use k8s_openapi::api::core::v1::PodStatus;
use podwright_metrics::Metrics;

use crate::active_pods::ActivePods;
use crate::admission::{AdmissionHandler, Admitted, Rejection};
use crate::config::mux::Change;
use crate::desired::{DesiredPods, DesiredState};
use crate::engine::Engine;
use crate::final_statuses::{Ending, FinalStatusStore, is_final};
use crate::ids::PodUid;
use crate::pod::PodObject;
use crate::pod_worker::Update;
use crate::ports::{Clock, EventRecorder, Observed, PodEvent, RuntimeView, SourceKind, SourceUpdate};
use crate::probes::ProbeChange;
use crate::recorder::{Note, SourceChange};
use crate::shutdown::ShutdownGate;
use crate::status::reasons::NODE_SHUTDOWN;
use crate::status::rejected;
use crate::statuses::Statuses;
use crate::texts::pods;
use crate::time::Time;

pub(crate) use actor::{DispatcherActor, MAILBOX};
pub(crate) use messages::{RefuseNewPods, RuntimeHealthChanged, RuntimePodChanged};

/// The dispatcher's decisions. Every method but [`publish_rejections`](Dispatcher::publish_rejections) is one step.
pub(crate) struct Dispatcher {
    pub(crate) engine: Engine,
    pub(crate) desired: Arc<DesiredPods>,
    /// The pods' statuses. The dispatcher writes those of rejected pods.
    pub(crate) statuses: Arc<Statuses>,
    pub(crate) final_statuses: Arc<FinalStatusStore>,
    pub(crate) active: ActivePods,
    /// The runtime's pods. A pod that already runs is not admitted again.
    pub(crate) view: Arc<dyn RuntimeView>,
    /// Refuses every new pod while the node shuts down. Comes before the handlers of `admission`.
    pub(crate) gate: Arc<ShutdownGate>,
    /// The admission handlers, in their order. The first rejection counts.
    pub(crate) admission: Vec<Arc<dyn AdmissionHandler>>,
    pub(crate) events: Arc<dyn EventRecorder>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) metrics: Metrics,
}

/// What admission decided on the new pods of a source update.
#[derive(Debug)]
#[must_use]
pub(crate) struct Admission {
    /// False if an admission handler panicked. The pod that it was called for is neither started nor rejected until
    /// [`Dispatcher::retry_admission`], or the next change of the pod, admits it again.
    pub(crate) is_complete: bool,
    /// The rejected pods, to be published by [`Dispatcher::publish_rejections`].
    pub(crate) rejected: Vec<RejectedPod>,
}

/// A pod that was rejected. The store of final statuses has the rejection, and its status and event are not published yet.
#[derive(Debug)]
pub(crate) struct RejectedPod {
    pod: Arc<PodObject>,
    rejection: Rejection,
    status: PodStatus,
}

impl Dispatcher {
    /// Applies a source update: adds, updates and removes desired pods, and admits the new ones.
    pub(crate) fn deliver(&self, update: SourceUpdate) -> Admission {
        let start = self.clock.now();
        let mut desired = self.desired.lock();
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
        let mut admission = Admission { is_complete: true, rejected: Vec::new() };
        for change in changes.changes {
            self.note(start, source, &change);
            let new = match change {
                Change::Remove(pods) => {
                    pods.iter().for_each(|pod| self.remove(&mut desired, pod, start));
                    continue;
                }
                Change::Add(pods) => pods,
                Change::Update(pods) | Change::Delete(pods) => {
                    let (known, new) = pods.into_iter().partition(|pod| desired.is_admitted_or_rejected(pod));
                    Vec::into_iter(known).for_each(|pod| self.update(&mut desired, pod, start));
                    new
                }
                Change::Reconcile(pods) => {
                    let (known, new) = pods.into_iter().partition(|pod| desired.is_admitted_or_rejected(pod));
                    Vec::into_iter(known).for_each(|pod| self.reconcile(&mut desired, pod, start));
                    new
                }
            };
            self.add(&mut desired, new, start, &mut admission);
        }
        admission
    }

    /// Admits the desired pods without a decision, because an admission handler panicked.
    pub(crate) fn retry_admission(&self) -> Admission {
        let start = self.clock.now();
        let mut desired = self.desired.lock();
        let unadmitted = desired.unadmitted();
        let mut admission = Admission { is_complete: true, rejected: Vec::new() };
        self.add(&mut desired, unadmitted, start, &mut admission);
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

    /// Publishes the status and the event of each rejected pod, once the rejections are on disk: an agent that restarts must
    /// not run a pod that was reported as failed (POD-W13). Publishes nothing if another node has opened the file of final
    /// statuses.
    pub(crate) async fn publish_rejections(&self, rejected: Vec<RejectedPod>) {
        if rejected.is_empty() {
            return;
        }
        if self.final_statuses.written().await.is_err() {
            return;
        }
        for RejectedPod { pod, rejection, status } in rejected {
            self.statuses.set(&pod, None, status, true);
            self.events.record(&pod, PodEvent::warning(rejection.reason, rejection.message));
        }
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
        if let Some(pod) = self.desired.pod(&change.uid) {
            self.statuses.probe_changed(&pod, change);
            self.request_sync(&change.uid);
        }
    }

    /// Adds new pods to the desired ones, and starts those that are admitted.
    fn add(&self, desired: &mut DesiredState, pods: Vec<Arc<PodObject>>, start: Time, admission: &mut Admission) {
        let mut pods: Vec<_> = pods.into_iter().map(|pod| (self.was_admitted(&pod), pod)).collect();
        // A pod that was admitted before keeps its resources, so it counts before any other pod is admitted.
        pods.sort_by_key(|(admitted, pod)| (!admitted, pod.metadata().creation_timestamp.as_ref().map(|time| time.0)));
        let mut others = None;
        for (was_admitted, pod) in pods {
            if pod.is_mirror() {
                desired.pods.put(pod.clone());
                self.update_static_pod_of(desired, &pod, start);
                continue;
            }
            // A pod that is stopping, or that ended before the agent started, needs no admission: it starts nothing.
            let may_start = !pod.phase().is_terminal() && !self.engine.is_pod_termination_requested(pod.uid());
            let ending = self.final_statuses.ending(pod.uid());
            if may_start && ending == Some(Ending::Rejected) && !pod.is_deleting() {
                // Its status still says that it was rejected, and there is nothing to clean up.
                desired.pods.put(pod);
                continue;
            }
            if may_start && !was_admitted && ending.is_none() {
                let others = others.get_or_insert_with(|| self.active.admitted(desired));
                let Ok(decision) = catch_unwind(AssertUnwindSafe(|| self.admit(&pod, others))) else {
                    self.metrics.actors.hook_panicked();
                    tracing::error!(pod.uid = %pod.uid(), pod = %pod.full_name(), "admission handler panicked");
                    admission.is_complete = false;
                    continue;
                };
                if let Err(rejection) = decision {
                    desired.pods.put(pod.clone());
                    admission.rejected.extend(self.reject(pod, rejection));
                    continue;
                }
                others.push(pod.clone());
            }
            desired.pods.put(pod.clone());
            let mirror = desired.pods.mirror_of(&pod).cloned();
            // A pod that ended under an earlier agent comes from its source as if it still ran. The engine gets the pod with
            // its final status, so that it only cleans up.
            let final_status = ending.filter(|_| may_start).and_then(|_| self.statuses.get(pod.uid()));
            let pod = final_status.map(|status| pod.with_status(PodStatus::clone(&status))).unwrap_or(pod);
            self.engine.update_pod(Update::create(pod).with_mirror(mirror).with_start_time(start));
        }
    }

    fn admit(&self, pod: &PodObject, others: &Admitted) -> Result<(), Rejection> {
        self.gate.admit(pod, others)?;
        self.admission.iter().try_for_each(|handler| handler.admit(pod, others))
    }

    /// Records a rejection. Returns the pod if the rejection has to be on disk before it is published.
    fn reject(&self, pod: Arc<PodObject>, rejection: Rejection) -> Option<RejectedPod> {
        self.metrics.admission.rejected(&rejection.reason);
        // Programs know the reason and this prefix (upstream `rejectPod`, kubelet 1.36).
        let message = pods::rejected(&rejection.message);
        let status = self.statuses.completed(&pod, None, rejected(&pod, &rejection.reason, &message))?;
        if is_final(&pod, &status) {
            self.final_statuses.note(&pod, Ending::Rejected, &status);
            return Some(RejectedPod { pod, rejection, status });
        }
        // The next agent admits or rejects such a pod again, so nothing has to be on disk first.
        self.statuses.set(&pod, None, status, true);
        self.events.record(&pod, PodEvent::warning(rejection.reason, rejection.message));
        None
    }

    /// Whether the pod was admitted before and may still run. There are two cases. This agent admitted the pod, and the pod left
    /// its source and came back before every source had delivered, so it was not stopped in between. Or an earlier agent
    /// admitted it: containers of the pod run, or the runtime lists the pod and its status cannot be read.
    fn was_admitted(&self, pod: &PodObject) -> bool {
        self.engine.is_pod_known(pod.uid()) || self.view.observed(pod.uid()) != Observed::Stopped
    }

    fn update(&self, desired: &mut DesiredState, pod: Arc<PodObject>, start: Time) {
        desired.pods.put(pod.clone());
        if pod.is_mirror() {
            self.update_static_pod_of(desired, &pod, start);
            return;
        }
        let mirror = desired.pods.mirror_of(&pod).cloned();
        self.engine.update_pod(Update::changed(pod).with_mirror(mirror).with_start_time(start));
    }

    fn remove(&self, desired: &mut DesiredState, pod: &Arc<PodObject>, start: Time) {
        desired.pods.remove(pod);
        if pod.is_mirror() {
            self.update_static_pod_of(desired, pod, start);
        } else if desired.is_ready() {
            // Until every source has delivered, another source may still desire the pod. If none does, housekeeping stops
            // it once they all have.
            self.engine.update_pod(Update::kill(pod.clone()).with_start_time(start));
        }
    }

    fn reconcile(&self, desired: &mut DesiredState, pod: Arc<PodObject>, start: Time) {
        desired.pods.put(pod.clone());
        let has_gates = pod.spec().readiness_gates.as_ref().is_some_and(|gates| !gates.is_empty());
        if has_gates && !pod.is_mirror() && self.engine.is_pod_known(pod.uid()) {
            self.engine.update_pod(Update::sync(pod).with_start_time(start));
        }
    }

    /// Updates the static pod of a changed mirror pod. A mirror pod without a static pod is ignored.
    fn update_static_pod_of(&self, desired: &DesiredState, mirror: &PodObject, start: Time) {
        if let Some(pod) = desired.pods.pod_of(mirror) {
            let mirror = desired.pods.mirror_of(pod).cloned();
            self.engine.update_pod(Update::changed(pod.clone()).with_mirror(mirror).with_start_time(start));
        }
    }
}
