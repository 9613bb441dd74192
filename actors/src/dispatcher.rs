//! Turns what the sources, the runtime and the probes say into updates of the engine.
//!
//! Nothing here waits: a set is handled under the lock of the desired pods, in one go, and the engine takes updates
//! without waiting.

mod actor;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use k8s_openapi::api::core::v1::PodStatus;
use podwright_metrics::Metrics;

use crate::admission::{AdmissionHandler, Admitted, Rejection, Standing, is_active};
use crate::config::mux::Change;
use crate::desired::{Desired, DesiredState};
use crate::engine::Engine;
use crate::final_statuses::{Ending, FinalStatusStore, is_final};
use crate::ids::PodUid;
use crate::pod::{Phase, PodObject};
use crate::pod_worker::{Lifecycle, Update};
use crate::ports::{Clock, EventRecorder, Observed, PodEvent, RuntimeView, SourceKind, SourceUpdate};
use crate::probes::ProbeChange;
use crate::recorder::{Note, SourceChange};
use crate::status::rejected;
use crate::statuses::Statuses;
use crate::time::Time;

pub use actor::DispatcherActor;

/// What the dispatcher works with.
pub struct Dispatcher {
    /// Who is told.
    pub engine: Engine,
    /// What is wanted.
    pub desired: Arc<Desired>,
    /// The pods' statuses; a rejection is written there.
    pub statuses: Arc<Statuses>,
    /// Which pods are over for good.
    pub final_statuses: Arc<FinalStatusStore>,
    /// What runs: a pod that is found running is not judged again.
    pub view: Arc<dyn RuntimeView>,
    /// Asked in order; the first refusal wins.
    pub admission: Vec<Arc<dyn AdmissionHandler>>,
    /// Takes events.
    pub events: Arc<dyn EventRecorder>,
    /// Tells the time.
    pub clock: Arc<dyn Clock>,
    /// Counts rejections.
    pub metrics: Metrics,
}

/// What became of the new pods of a set.
#[derive(Debug)]
#[must_use]
pub struct Verdicts {
    /// Whether there is one for each.
    pub judged: Judged,
    /// Who was refused. Nobody knows yet: [`Dispatcher::tell`] tells.
    pub refused: Vec<Refused>,
}

/// A pod that was refused, which is noted in the journal.
#[derive(Debug)]
pub struct Refused {
    pod: Arc<PodObject>,
    rejection: Rejection,
    status: PodStatus,
}

/// Whether every new pod was judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Judged {
    /// Each was admitted or refused.
    All,
    /// An admission handler panicked. Who was to be judged is neither started nor refused, and is to be judged again, by
    /// [`Dispatcher::judge_again`] or with its next change.
    Some,
}

impl Dispatcher {
    /// Handles what a source says.
    pub fn deliver(&self, news: SourceUpdate) -> Verdicts {
        let start = self.clock.now();
        let mut desired = self.desired.lock();
        let (source, changes, problems) = desired.apply(news);
        for problem in problems {
            tracing::warn!(source = %source, what = problem.what, "{}", problem.message);
        }
        for refused in changes.refused {
            self.events.record(&refused.pod, PodEvent::warning("FailedValidation", refused.message));
        }
        let mut verdicts = Verdicts { judged: Judged::All, refused: Vec::new() };
        for change in changes.changes {
            self.note(start, source, &change);
            let new = match change {
                Change::Remove(pods) => {
                    pods.iter().for_each(|pod| self.remove(&mut desired, pod, start));
                    continue;
                }
                Change::Add(pods) => pods,
                Change::Update(pods) | Change::Delete(pods) => {
                    let (taken_up, new) = pods.into_iter().partition(|pod| desired.is_taken_up(pod));
                    Vec::into_iter(taken_up).for_each(|pod| self.update(&mut desired, pod, start));
                    new
                }
                Change::Reconcile(pods) => {
                    let (taken_up, new) = pods.into_iter().partition(|pod| desired.is_taken_up(pod));
                    Vec::into_iter(taken_up).for_each(|pod| self.reconcile(&mut desired, pod, start));
                    new
                }
            };
            self.add(&mut desired, new, start, &mut verdicts);
        }
        verdicts
    }

    /// Judges the pods that a panic kept from being judged, as far as their sources still want them.
    pub fn judge_again(&self) -> Verdicts {
        let start = self.clock.now();
        let mut desired = self.desired.lock();
        let left = desired.left_out();
        let mut verdicts = Verdicts { judged: Judged::All, refused: Vec::new() };
        self.add(&mut desired, left, start, &mut verdicts);
        verdicts
    }

    /// Tells who was refused, once it is on disk: whoever learnt of it can rely on it (W13).
    pub async fn tell(&self, refused: Vec<Refused>) {
        if refused.is_empty() {
            return;
        }
        self.final_statuses.settled().await;
        for Refused { pod, rejection, status } in refused {
            self.statuses.set(&pod, None, status, true);
            self.events.record(&pod, PodEvent::warning(rejection.reason, rejection.message));
        }
    }

    /// Leaves a trace of what a source said.
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

    /// Something about a pod changed in the runtime or in what its probes say. A pod without a record is left alone: it
    /// was rejected, or it is over, or housekeeping starts it.
    pub fn look_again(&self, uid: &PodUid) {
        let desired = self.desired.lock();
        if let Some(pod) = desired.pods.pod(uid).filter(|_| self.engine.is_pod_known(uid)) {
            let mirror = desired.pods.mirror_of(pod).cloned();
            self.engine.update_pod(Update::sync(pod.clone()).with_mirror(mirror));
        }
    }

    /// A probe changed its mind: the status shows it, and the pod is looked at again.
    pub fn probed(&self, change: &ProbeChange) {
        if let Some(recorder) = self.engine.recorder() {
            let ProbeChange { uid, name, kind, result, .. } = change;
            let (uid, container) = (uid.clone(), name.as_str().to_owned());
            recorder.note(self.clock.now(), &Note::Probe { uid, container, kind: *kind, result: *result });
        }
        if let Some(pod) = self.desired.pod(&change.uid) {
            self.statuses.probed(&pod, change);
            self.look_again(&change.uid);
        }
    }

    /// The desired pods that count for admission.
    pub fn active_pods(&self, desired: &DesiredState) -> Vec<Arc<PodObject>> {
        let active = |pod: &&Arc<PodObject>| self.is_active(pod, self.engine.lifecycle(pod.uid()));
        desired.pods.pods().filter(active).cloned().collect()
    }

    /// Whether a desired pod that stands there counts for admission.
    pub fn is_active(&self, pod: &PodObject, lifecycle: Option<Lifecycle>) -> bool {
        let standing = Standing {
            known_terminated: lifecycle.is_some_and(|lifecycle| lifecycle >= Lifecycle::Terminated),
            termination_requested: lifecycle.is_some_and(|lifecycle| lifecycle >= Lifecycle::Terminating),
            // One that was refused may not be told of yet.
            cached_phase: self
                .final_statuses
                .ending(pod.uid())
                .map(|_| Phase::Failed)
                .or_else(|| self.statuses.phase(pod.uid())),
        };
        is_active(pod, standing)
    }

    /// Pods that nobody wants any more and that still occupy the node (W1).
    pub fn occupying_orphans(&self, desired: &DesiredState) -> Vec<Arc<PodObject>> {
        self.engine.unterminated_pods().into_iter().filter(|pod| desired.pods.pod(pod.uid()).is_none()).collect()
    }

    /// What a new pod is judged against: the active pods and the orphans that still occupy the node.
    pub fn admitted(&self, desired: &DesiredState) -> Admitted {
        self.active_pods(desired).into_iter().chain(self.occupying_orphans(desired)).collect()
    }

    fn add(&self, desired: &mut DesiredState, pods: Vec<Arc<PodObject>>, start: Time, verdicts: &mut Verdicts) {
        let mut pods: Vec<_> = pods.into_iter().map(|pod| (self.has_place(&pod), pod)).collect();
        // What runs has its place before anything new is given one.
        pods.sort_by_key(|(placed, pod)| (!placed, pod.metadata().creation_timestamp.as_ref().map(|time| time.0)));
        let mut others = None;
        for (placed, pod) in pods {
            if pod.is_mirror() {
                desired.pods.put(pod.clone());
                self.update_static_pod_of(desired, &pod, start);
                continue;
            }
            // A pod that stops, or ended before the agent came up, is not judged: it starts nothing.
            let starts = !pod.phase().is_terminal() && !self.engine.is_pod_termination_requested(pod.uid());
            let ending = self.final_statuses.ending(pod.uid());
            if starts && ending == Some(Ending::Rejected) && !pod.is_deleting() {
                // Nothing of it is to be cleaned up, and what was told of it still holds.
                desired.pods.put(pod);
                continue;
            }
            if starts && !placed && ending.is_none() {
                let others = others.get_or_insert_with(|| self.admitted(desired));
                let Ok(verdict) = catch_unwind(AssertUnwindSafe(|| self.judge(&pod, others))) else {
                    self.metrics.actors.hook_panicked();
                    tracing::error!(pod.uid = %pod.uid(), pod = %pod.full_name(), "admission handler panicked");
                    verdicts.judged = Judged::Some;
                    continue;
                };
                if let Err(rejection) = verdict {
                    desired.pods.put(pod.clone());
                    verdicts.refused.extend(self.refuse(pod, rejection));
                    continue;
                }
                others.push(pod.clone());
            }
            desired.pods.put(pod.clone());
            let mirror = desired.pods.mirror_of(&pod).cloned();
            // To the engine it is what its source will say of it in the end: over, with something left to do perhaps.
            let end = ending.filter(|_| starts).and_then(|_| self.statuses.get(pod.uid()));
            let pod = end.map(|end| pod.with_status(PodStatus::clone(&end))).unwrap_or(pod);
            self.engine.update_pod(Update::create(pod).with_mirror(mirror).with_start_time(start));
        }
    }

    /// Notes that a pod was refused.
    fn refuse(&self, pod: Arc<PodObject>, rejection: Rejection) -> Option<Refused> {
        self.metrics.admission.rejected(&rejection.reason);
        // Reason and prefix as programs know them (upstream `rejectPod`, kubelet 1.36).
        let message = format!("Pod was rejected: {}", rejection.message);
        let status = self.statuses.completed(&pod, None, rejected(&pod, &rejection.reason, &message))?;
        if is_final(&pod, &status) {
            self.final_statuses.note(&pod, Ending::Rejected, &status);
            return Some(Refused { pod, rejection, status });
        }
        // Nothing is kept of this one, so there is nothing to wait for.
        self.statuses.set(&pod, None, status, true);
        self.events.record(&pod, PodEvent::warning(rejection.reason, rejection.message));
        None
    }

    fn judge(&self, pod: &PodObject, others: &Admitted) -> Result<(), Rejection> {
        self.admission.iter().try_for_each(|handler| handler.admit(pod, others))
    }

    /// Whether the pod was admitted before. Either by this agent: one that left its source before every source delivered
    /// was not stopped, and came back. Or by an earlier one: it runs, and this agent has not heard of it. A pod that the
    /// runtime lists and that cannot be read may run, and what may run is not judged; of any other pod it is known that it
    /// does not.
    fn has_place(&self, pod: &PodObject) -> bool {
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
            // Before every source delivered, another one may still want it; housekeeping comes back to it then.
            self.engine.update_pod(Update::kill(pod.clone()).with_start_time(start));
        }
    }

    fn reconcile(&self, desired: &mut DesiredState, pod: Arc<PodObject>, start: Time) {
        desired.pods.put(pod.clone());
        let gated = pod.spec().readiness_gates.as_ref().is_some_and(|gates| !gates.is_empty());
        if gated && !pod.is_mirror() && self.engine.is_pod_known(pod.uid()) {
            self.engine.update_pod(Update::sync(pod).with_start_time(start));
        }
    }

    /// A mirror changed: its static pod is looked at again. One that shows none is left to housekeeping.
    fn update_static_pod_of(&self, desired: &DesiredState, mirror: &PodObject, start: Time) {
        if let Some(pod) = desired.pods.pod_of(mirror) {
            let mirror = desired.pods.mirror_of(pod).cloned();
            self.engine.update_pod(Update::changed(pod.clone()).with_mirror(mirror).with_start_time(start));
        }
    }
}
