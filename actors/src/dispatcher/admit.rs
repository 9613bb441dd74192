//! Admits new pods, and judges again the pods of the queue.

use std::borrow::Cow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use k8s_openapi::api::core::v1::PodStatus;

use super::Dispatcher;
use super::preemption::PreemptedPod;
use crate::admission::{AdmissionHandler, Admitted, Decision, EarlierDecision, Rejection, judge};
use crate::desired::DesiredState;
use crate::final_statuses::{Ending, is_final};
use crate::pod::PodObject;
use crate::pod_worker::Update;
use crate::ports::{Observed, PodEvent};
use crate::recorder::{AdmissionNote, Note};
use crate::status::rejected;
use crate::texts::pods;
use crate::time::Time;

/// The decisions of admission on pods.
#[derive(Debug, Default)]
#[must_use]
pub(crate) struct Admission {
    /// The number of pods for which an admission handler panicked. Such a pod is neither started nor rejected until
    /// [`Dispatcher::retry_admission`], or the next change of the pod, admits it again.
    pub(super) panics: usize,
    /// The rejected pods, to be published by [`Dispatcher::publish_rejections`].
    pub(super) rejected: Vec<RejectedPod>,
    /// The pods that are being stopped for critical pods, to be awaited by [`Dispatcher::await_preempted`].
    pub(super) preempted: Vec<PreemptedPod>,
    /// Whether a pod got room that may have been reserved for pods behind it. The queue is judged again in the same step.
    pub(super) overtakes: bool,
}

/// A pod that was rejected. The store of final statuses has the rejection, and its status and event are not published yet.
#[derive(Debug)]
pub(crate) struct RejectedPod {
    pod: Arc<PodObject>,
    rejection: Rejection,
    status: PodStatus,
}

impl Dispatcher {
    /// Admits the desired pods without a decision, because an admission handler panicked.
    pub(super) fn retry_admission(&self) -> Admission {
        let start = self.clock.now();
        let mut desired = self.desired.lock();
        let unadmitted = desired.unadmitted();
        let mut admission = Admission::default();
        self.add(&mut desired, unadmitted, start, &mut admission);
        if admission.overtakes {
            self.judge_queue(&mut desired, start, &mut admission);
        }
        admission
    }

    /// Whether pods wait for others to end, or were rejected and may start when others end.
    pub(super) fn has_queue(&self) -> bool {
        !self.desired.lock().queue.is_empty()
    }

    /// Judges the pods of the queue again, because a pod has ended or was resized to less.
    pub(super) fn readmit(&self) -> Admission {
        let start = self.clock.now();
        let mut admission = Admission::default();
        self.judge_queue(&mut self.desired.lock(), start, &mut admission);
        admission
    }

    /// Judges the pods of the queue again.
    pub(super) fn judge_queue(&self, desired: &mut DesiredState, start: Time, admission: &mut Admission) {
        if desired.queue.is_empty() {
            return;
        }
        let mut others = Some(self.active.admitted(desired));
        if others.as_ref().is_some_and(|others| desired.queue.is_judged_beside(others)) {
            return;
        }
        for pod in desired.queue.pods() {
            self.decide(desired, pod, start, &mut others, admission);
        }
        let others = others.unwrap_or_else(|| self.active.admitted(desired));
        desired.queue.set_judged_beside(&others);
    }

    /// Publishes the status and the event of each rejected pod, once the rejections are on disk: an agent that restarts must
    /// not run a pod that was reported as failed (POD-W13). Publishes nothing if another node has opened the file of final
    /// statuses.
    pub(super) async fn publish_rejections(&self, rejected: Vec<RejectedPod>) {
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

    /// Adds new pods to the desired ones, and starts those that are admitted.
    pub(super) fn add(
        &self,
        desired: &mut DesiredState,
        pods: Vec<Arc<PodObject>>,
        start: Time,
        admission: &mut Admission,
    ) {
        // A pod that an earlier agent admitted keeps what that agent allocated to it.
        let allocated = pods.into_iter().map(|pod| self.allocated(desired, pod));
        // A rejected pod may have a record, because a late sandbox of it was stopped. It was not admitted all the same.
        let was_admitted = |pod: &PodObject| !desired.queue.is_rejected(pod.uid()) && self.was_admitted(pod);
        let mut pods: Vec<_> = allocated.map(|pod| (was_admitted(&pod), pod)).collect();
        // A pod that was admitted before keeps its resources, so it counts before any other pod is admitted.
        pods.sort_by_key(|(admitted, pod)| (!admitted, pod.metadata().creation_timestamp.as_ref().map(|time| time.0)));
        let mut others = None;
        for (was_admitted, pod) in pods {
            if pod.is_mirror() {
                desired.pods.put(pod.clone());
                self.compare_with_api(desired, &pod);
                self.update_static_pod_of(desired, &pod, start);
                continue;
            }
            self.compare_with_api(desired, &pod);
            if pod.is_deleting() && matches!(desired.queue.take(pod.uid()), EarlierDecision::Waited { .. }) {
                // The pod was deleted while it waited. The engine ends it without starting anything.
                self.start(desired, pod, None, start);
                others = None;
                continue;
            }
            // A pod that is stopping, or that ended before the agent started, needs no admission: it starts nothing.
            let is_ending = self.engine.is_pod_termination_requested(pod.uid()) && !self.starts_anew(&pod);
            let may_start = !pod.phase().is_terminal() && (desired.queue.is_rejected(pod.uid()) || !is_ending);
            let ending = self.ending(&pod);
            if may_start && ending == Some(Ending::Rejected) && !pod.is_deleting() {
                // Its status still says that it was rejected, and there is nothing to clean up.
                desired.pods.put(pod);
                continue;
            }
            if may_start && !was_admitted && ending.is_none() && !pod.is_deleting() {
                self.decide(desired, pod, start, &mut others, admission);
                continue;
            }
            // A pod that ended under an earlier agent comes from its source as if it still ran. The engine gets the pod with
            // its final status, so that it only cleans up.
            let final_status = ending.filter(|_| may_start).and_then(|_| self.statuses.get(pod.uid()));
            if pod.is_deleting() {
                others = None;
            }
            self.start(desired, pod, final_status.as_deref(), start);
        }
    }

    /// Decides on a pod beside the others, and acts on the decision. Gathers the others if they are not known yet. Drops them if a pod is
    /// stopped, because they are out of date then, and otherwise updates them.
    fn decide(
        &self,
        desired: &mut DesiredState,
        pod: Arc<PodObject>,
        start: Time,
        others: &mut Option<Admitted>,
        admission: &mut Admission,
    ) {
        let earlier = desired.queue.take(pod.uid());
        let beside = others.get_or_insert_with(|| self.active.admitted(desired));
        // What was reserved for the pod is not used by another one.
        beside.remove_waiting(&pod);
        let ahead = beside.ahead_of(&pod, earlier.place());
        // A static pod that was created again starts after its own stop.
        let judged_beside = ahead.without_stopping(pod.uid());
        let takes_over = matches!(judged_beside, Cow::Owned(_));
        let has_victims = earlier.has_victims();
        let verdict = catch_unwind(AssertUnwindSafe(|| {
            judge(&pod, &judged_beside, has_victims, &|pod, others| self.check(pod, others))
        }));
        let Ok(verdict) = verdict else {
            self.metrics.actors.hook_panicked();
            tracing::error!(pod.uid = %pod.uid(), pod = %pod.full_name(), "admission handler panicked");
            admission.panics += 1;
            if matches!(earlier, EarlierDecision::Rejected { .. }) {
                desired.queue.reject(pod, &earlier);
            }
            return;
        };
        let decision = desired.queue.settle(&pod, &earlier, verdict, &judged_beside, start);
        drop(judged_beside);
        let gets_room = matches!(decision, Decision::Start | Decision::Wait { .. });
        admission.overtakes |= gets_room && matches!(ahead, Cow::Owned(_));
        drop(ahead);
        match decision {
            Decision::Start => {
                if !matches!(earlier, EarlierDecision::None) {
                    self.note_admission(start, &pod, AdmissionNote::Admitted);
                }
                beside.push(pod.clone());
                if takes_over {
                    *others = None;
                }
                self.withdraw_rejection(desired, &earlier, &pod);
                if self.starts_anew(&pod) {
                    self.final_statuses.start_anew(pod.uid());
                }
                self.start(desired, pod, None, start);
            }
            Decision::Wait { victims, lack, resource } => {
                beside.insert_waiting(earlier.place(), pod.clone(), has_victims || !victims.is_empty());
                if !victims.is_empty() {
                    *others = None;
                }
                self.withdraw_rejection(desired, &earlier, &pod);
                // A pod that is judged again and still waits gets no second note.
                if !victims.is_empty() || !matches!(earlier, EarlierDecision::Waited { .. }) {
                    let victims = u32::try_from(victims.len()).unwrap_or(u32::MAX);
                    self.note_admission(start, &pod, AdmissionNote::Waits { lack, victims });
                }
                for victim in victims {
                    self.note_admission(start, &victim, AdmissionNote::Preempted { by: pod.full_name().clone() });
                    admission.preempted.push(self.preempt(victim, &resource));
                }
            }
            Decision::Reject(rejection) => {
                let Rejection { reason, message, .. } = &rejection;
                let decision = AdmissionNote::Rejected { reason: reason.clone(), message: message.clone() };
                self.note_admission(start, &pod, decision);
                desired.pods.put(pod.clone());
                admission.rejected.extend(self.reject(pod, rejection));
            }
            Decision::StaysRejected => desired.pods.put(pod),
        }
    }

    /// Writes a decision into the recording. A pod that is admitted at once needs no note, because the recording has the notes of
    /// its source and its worker.
    fn note_admission(&self, at: Time, pod: &PodObject, decision: AdmissionNote) {
        let Some(recorder) = self.engine.recorder() else { return };
        let (uid, pod) = (pod.uid().clone(), pod.full_name().clone());
        recorder.note(at, &Note::Admission { uid, pod, decision });
    }

    /// Runs the admission handlers. The first rejection counts, except for a critical pod, which may get the resources that it lacks by
    /// preemption. For a critical pod, a lasting rejection counts first, and then a rejection that no preemption ends, also if a later
    /// handler gives it.
    pub(super) fn check(&self, pod: &PodObject, others: &Admitted) -> Result<(), Rejection> {
        self.gate.admit(pod, others)?;
        let mut lacks: Option<Rejection> = None;
        for handler in &self.admission {
            let Err(rejection) = handler.admit(pod, others) else { continue };
            if !pod.is_critical() || !rejection.may_end() {
                return Err(rejection);
            }
            lacks = match lacks {
                Some(first) if first.shortages().is_empty() || !rejection.shortages().is_empty() => Some(first),
                Some(_) | None => Some(rejection),
            };
        }
        lacks.map_or(Ok(()), Err)
    }

    /// Sends a pod to the engine.
    fn start(&self, desired: &mut DesiredState, pod: Arc<PodObject>, status: Option<&PodStatus>, start: Time) {
        desired.pods.put(pod.clone());
        self.resizes.admitted(&pod);
        let mirror = desired.pods.mirror_of(&pod).cloned();
        let pod = status.map(|status| pod.with_status(status.clone())).unwrap_or(pod);
        self.engine.update_pod(Update::create(pod).with_mirror(mirror).with_start_time(start));
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

    /// Removes the failed status of a pod that was rejected and is admitted now or waits. A waiting pod is not among the desired
    /// pods, so that no part of the node starts it.
    fn withdraw_rejection(&self, desired: &mut DesiredState, earlier: &EarlierDecision, pod: &Arc<PodObject>) {
        if matches!(earlier, EarlierDecision::Rejected { .. }) {
            desired.pods.remove(pod);
            self.statuses.forget(pod.uid());
        }
    }

    /// Why the status of a pod is final. An earlier version of the agent stored rejections that are judged again now.
    fn ending(&self, pod: &PodObject) -> Option<Ending> {
        let ending = self.final_statuses.ending(pod.uid())?;
        let status = self.statuses.get(pod.uid());
        if ending == Ending::Rejected && status.is_some_and(|status| !is_final(pod, &status)) {
            self.final_statuses.retain(|uid| uid != pod.uid());
            self.statuses.forget(pod.uid());
            return None;
        }
        Some(ending)
    }

    /// Whether the pod was admitted before and may still run. There are two cases. This agent admitted the pod, and the pod left
    /// its source and came back before every source had delivered, so it was not stopped in between. Or an earlier agent
    /// admitted it: containers of the pod run, or the runtime lists the pod and its status cannot be read.
    fn was_admitted(&self, pod: &PodObject) -> bool {
        let is_known = self.engine.is_pod_known(pod.uid()) || self.view.observed(pod.uid()) != Observed::Stopped;
        is_known && !self.starts_anew(pod)
    }

    /// Whether the pod left its source, was or is being stopped for that, came back with the same UID, and starts anew. What it had may
    /// have been given to other pods.
    fn starts_anew(&self, pod: &PodObject) -> bool {
        self.engine.is_pod_termination_requested(pod.uid()) && self.active.may_start_anew(pod)
    }
}
