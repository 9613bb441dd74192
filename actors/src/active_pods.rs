//! Which desired pods count for admission, and which other pods still occupy the node.

use std::sync::Arc;

use crate::admission::{Admitted, PodActivity, is_active};
use crate::desired::DesiredState;
use crate::engine::Engine;
use crate::final_statuses::{Ending, FinalStatusStore};
use crate::ids::PodUid;
use crate::pod::{Phase, PodObject};
use crate::pod_worker::Lifecycle;
use crate::resizes::Resizes;
use crate::statuses::Statuses;

/// Decides from the engine's records and the stored statuses which pods count for admission. Shared by the dispatcher, which
/// admits pods, and by housekeeping, which counts and restarts them.
#[derive(Clone)]
pub(crate) struct ActivePods {
    pub(crate) engine: Engine,
    pub(crate) statuses: Arc<Statuses>,
    pub(crate) final_statuses: Arc<FinalStatusStore>,
    pub(crate) resizes: Arc<Resizes>,
}

impl ActivePods {
    /// Whether a desired pod whose record has this lifecycle counts for admission.
    pub(crate) fn is_active(&self, pod: &PodObject, lifecycle: Option<Lifecycle>) -> bool {
        // The record of a pod that starts again is about to be forgotten. The pod counts as if it were forgotten already, so that its
        // resources count before its start.
        let lifecycle = lifecycle.filter(|known| *known < Lifecycle::Terminated || !self.starts_again(pod, *known));
        // A pod that was just rejected counts as failed even before its status is published.
        let rejected_or_ended = self.final_statuses.ending(pod.uid()).map(|_| Phase::Failed);
        let cached_phase = || self.statuses.phase(pod.uid()).filter(|_| !self.final_statuses.starts_anew(pod.uid()));
        let activity = PodActivity {
            known_terminated: lifecycle.is_some_and(|lifecycle| lifecycle >= Lifecycle::Terminated),
            termination_requested: lifecycle.is_some_and(|lifecycle| lifecycle >= Lifecycle::Terminating),
            cached_phase: rejected_or_ended.or_else(cached_phase),
        };
        is_active(pod, activity)
    }

    /// Whether a desired pod counts for the admission of others: it is active, or it has ended and is about to stop.
    pub(crate) fn counts(&self, pod: &PodObject, lifecycle: Option<Lifecycle>) -> bool {
        self.stops_next(pod, lifecycle) || self.is_active(pod, lifecycle)
    }

    /// Whether a pod that came back starts again once its record is forgotten. A pod of the API server that comes back while it stops
    /// does not: its phase is terminal at the end of the stop. The status of another finished pod decides.
    fn starts_again(&self, pod: &PodObject, lifecycle: Lifecycle) -> bool {
        let is_finished = lifecycle == Lifecycle::Finished;
        self.final_statuses.starts_anew(pod.uid()) || (is_finished && self.engine.is_restart_requested(pod.uid()))
    }

    /// Whether a pod that is being stopped or has stopped starts anew if its source has it again, as a static pod does under every restart
    /// policy. A pod that had ended by itself or was evicted keeps its end.
    pub(crate) fn may_start_anew(&self, pod: &PodObject) -> bool {
        pod.is_static() && self.final_statuses.ending(pod.uid()).is_none()
    }

    /// Whether a pod starts anew although its last life left it in a terminal phase, as its restart policy may do. Its dead containers are
    /// removed before its start, and its status is dropped: both would end it at once.
    pub(crate) fn leaves_earlier_life(&self, uid: &PodUid) -> bool {
        self.final_statuses.starts_anew(uid) && self.statuses.phase(uid).is_some_and(Phase::is_terminal)
    }

    /// The pods that a new pod is admitted beside: the active desired pods, those that have ended and are about to stop, the orphans whose
    /// containers still run and use the node's resources (POD-W1), and the pods that wait for admission.
    pub(crate) fn admitted(&self, desired: &DesiredState) -> Admitted {
        self.admitted_beside(desired, None)
    }

    /// The same pods without `one`, which is resized beside them.
    pub(crate) fn admitted_beside(&self, desired: &DesiredState, one: Option<&PodUid>) -> Admitted {
        let mut admitted = Admitted::default();
        for pod in desired.pods.pods().filter(|pod| Some(pod.uid()) != one) {
            let lifecycle = self.engine.lifecycle(pod.uid());
            if self.counts(pod, lifecycle) {
                // A pod that starts again after its stop gives nothing back.
                let gives_back = |known: Lifecycle| known == Lifecycle::Terminating && !self.starts_again(pod, known);
                let stops_next = self.stops_next(pod, lifecycle);
                let stops = stops_next || lifecycle.is_some_and(gives_back);
                match (stops, self.resizes.in_use(pod)) {
                    // The stop begins only after a sync, and the runtime may never answer.
                    (true, in_use) if stops_next && self.engine.is_sync_overdue(pod.uid()) => {
                        admitted.push_stuck(pod.clone(), in_use.as_deref());
                    }
                    (true, in_use) => self.push_stopping(&mut admitted, pod.clone(), in_use),
                    (false, None) => admitted.push(pod.clone()),
                    (false, Some(in_use)) if self.resizes.is_stuck(pod.uid()) => {
                        admitted.push_stuck_resizing(pod.clone(), &in_use);
                    }
                    (false, Some(in_use)) => admitted.push_resizing(pod.clone(), &in_use),
                }
            }
        }
        let orphans = self.engine.unterminated_pods().into_iter().filter(|pod| desired.pods.pod(pod.uid()).is_none());
        for pod in orphans {
            // No orphan is stopped before every source that may desire it has delivered, and a source may never answer.
            let stops = self.engine.lifecycle(pod.uid()) >= Some(Lifecycle::Terminating) || desired.is_ready_for(&pod);
            let in_use = self.resizes.in_use(&pod);
            if stops {
                self.push_stopping(&mut admitted, pod, in_use);
            } else {
                admitted.push_stuck(pod, in_use.as_deref());
            }
        }
        let waiting = desired.queue.waiting().iter();
        waiting.for_each(|waiting| admitted.push_waiting(waiting.pod.clone(), waiting.has_victims));
        admitted
    }

    /// Whether the pod has ended and its worker has not begun to stop it. Its final status may have to be stored first, and its containers
    /// may run until then, as after its active deadline.
    fn stops_next(&self, pod: &PodObject, lifecycle: Option<Lifecycle>) -> bool {
        lifecycle == Some(Lifecycle::Sync) && self.final_statuses.ending(pod.uid()) == Some(Ending::Ended)
    }

    fn push_stopping(&self, admitted: &mut Admitted, pod: Arc<PodObject>, in_use: Option<Arc<PodObject>>) {
        if self.engine.is_stop_overdue(pod.uid()) {
            admitted.push_stuck(pod, in_use.as_deref());
        } else {
            admitted.push_stopping(pod, in_use.as_deref());
        }
    }
}
