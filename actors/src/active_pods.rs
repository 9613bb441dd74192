//! Which desired pods count for admission, and which other pods still occupy the node.

use std::sync::Arc;

use crate::admission::{Admitted, PodActivity, is_active};
use crate::desired::DesiredState;
use crate::engine::Engine;
use crate::final_statuses::FinalStatusStore;
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
        // A pod that was just rejected counts as failed even before its status is published.
        let rejected_or_ended = self.final_statuses.ending(pod.uid()).map(|_| Phase::Failed);
        let has_terminated = lifecycle.is_some_and(|lifecycle| lifecycle >= Lifecycle::Terminated);
        let activity = PodActivity {
            // A pod that was admitted again starts as soon as its earlier record is forgotten, so its resources count already.
            known_terminated: has_terminated && !self.engine.is_restart_requested(pod.uid()),
            termination_requested: lifecycle.is_some_and(|lifecycle| lifecycle >= Lifecycle::Terminating),
            cached_phase: rejected_or_ended.or_else(|| self.statuses.phase(pod.uid())),
        };
        is_active(pod, activity)
    }

    /// The pods that a new pod is admitted beside: the active desired pods, the orphans whose containers still run and use the
    /// node's resources (POD-W1), and the pods that wait for admission.
    pub(crate) fn admitted(&self, desired: &DesiredState) -> Admitted {
        self.admitted_beside(desired, None)
    }

    /// The same pods without `one`, which is resized beside them.
    pub(crate) fn admitted_beside(&self, desired: &DesiredState, one: Option<&PodUid>) -> Admitted {
        let mut admitted = Admitted::default();
        for pod in desired.pods.pods().filter(|pod| Some(pod.uid()) != one) {
            let lifecycle = self.engine.lifecycle(pod.uid());
            if self.is_active(pod, lifecycle) {
                // A pod that starts again after its stop gives nothing back.
                let stops = lifecycle == Some(Lifecycle::Terminating) && !self.engine.is_restart_requested(pod.uid());
                match (stops, self.resizes.in_use(pod)) {
                    (true, _) => self.push_stopping(&mut admitted, pod.clone()),
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
            if stops { self.push_stopping(&mut admitted, pod) } else { admitted.push_stuck(pod) }
        }
        let waiting = desired.queue.waiting().iter();
        waiting.for_each(|waiting| admitted.push_waiting(waiting.pod.clone(), waiting.has_victims));
        admitted
    }

    fn push_stopping(&self, admitted: &mut Admitted, pod: Arc<PodObject>) {
        if self.engine.is_stop_overdue(pod.uid()) { admitted.push_stuck(pod) } else { admitted.push_stopping(pod) }
    }
}
