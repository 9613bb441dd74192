//! Decides on the resizes that pods desire.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use podwright_metrics::RetryTrigger;

use super::Dispatcher;
use crate::admission::Admitted;
use crate::desired::DesiredState;
use crate::pod::PodObject;
use crate::pod_worker::Update;
use crate::resize::{PendingResize, Verdict, decide, order};
use crate::time::Time;

impl Dispatcher {
    /// A pod as its source delivers it, with its allocated resources.
    pub(super) fn allocated(&self, desired: &DesiredState, pod: Arc<PodObject>) -> Arc<PodObject> {
        // A rejected pod that is judged again has no allocation.
        let known = desired.pods.pod(pod.uid()).filter(|known| !desired.queue.is_rejected(known.uid()));
        self.resizes.take(known, pod)
    }

    /// Whether resizes wait to be decided.
    pub(super) fn has_resizes(&self) -> bool {
        self.resizes.has_queued()
    }

    /// Decides again on the resizes that wait.
    pub(super) fn retry_resizes(&self, trigger: RetryTrigger) {
        self.decide_resizes(&mut self.desired.lock(), trigger);
    }

    /// Decides on the resizes that wait. No resize is decided before every source has delivered, because the
    /// pods of the other sources may need the room.
    pub(super) fn decide_resizes(&self, desired: &mut DesiredState, trigger: RetryTrigger) {
        if !desired.is_ready() {
            return;
        }
        let mut queue: Vec<_> = self
            .resizes
            .queued()
            .into_iter()
            .filter_map(|(pod, since)| {
                let allocated = desired.pods.pod(pod.uid()).cloned();
                if allocated.is_none() {
                    self.resizes.withdraw(pod.uid());
                }
                Some((order(&pod, allocated.as_ref()?, since), pod, allocated?, since))
            })
            .collect();
        queue.sort_by(|(one, ..), (other, ..)| one.cmp(other));
        let start = self.clock.now();
        for (_, pod, allocated, since) in queue {
            self.decide_resize(desired, pod, &allocated, since, trigger, start);
        }
    }

    fn decide_resize(
        &self,
        desired: &mut DesiredState,
        pod: Arc<PodObject>,
        allocated: &Arc<PodObject>,
        since: Option<Time>,
        trigger: RetryTrigger,
        start: Time,
    ) {
        let uid = pod.uid();
        if pod.is_deleting() || !self.active.is_active(allocated, self.engine.lifecycle(uid)) {
            self.resizes.withdraw(uid);
            return;
        }
        let others = self.active.admitted_beside(desired, Some(uid));
        let check = |pod: &PodObject, others: &Admitted| self.check(pod, others);
        let verdict =
            catch_unwind(AssertUnwindSafe(|| decide(&pod, allocated, || check(&pod, &others.counted_once(&check)))));
        let Ok(verdict) = verdict else {
            // The resize stays in the queue.
            self.metrics.actors.hook_panicked();
            tracing::error!(pod.uid = %uid, pod = %pod.full_name(), "admission handler panicked");
            return;
        };
        let mirror = desired.pods.mirror_of(&pod).cloned();
        match verdict {
            Verdict::Fits => {
                tracing::info!(pod = %pod.full_name(), pod.uid = %uid, "resources of a resize are allocated");
                if since.is_some() {
                    self.metrics.resize.deferred_accepted(trigger);
                }
                desired.pods.put(pod.clone());
                self.resizes.allocate(allocated, &pod);
                self.engine.update_pod(Update::changed(pod).with_mirror(mirror).with_start_time(start));
            }
            Verdict::Deferred { reason, message } => self.refuse_resize(&pod, allocated, mirror, &reason, &message),
            Verdict::Infeasible { message, detail } => {
                self.metrics.resize.infeasible(detail);
                self.refuse_resize(&pod, allocated, mirror, PendingResize::INFEASIBLE, message);
            }
        }
    }

    /// Records the reason why a resize is not allocated, and publishes the reason in the status of the pod.
    fn refuse_resize(
        &self,
        pod: &Arc<PodObject>,
        allocated: &Arc<PodObject>,
        mirror: Option<Arc<PodObject>>,
        reason: &str,
        message: &str,
    ) {
        if self.resizes.refuse(pod, reason, message) && self.engine.is_pod_known(pod.uid()) {
            tracing::info!(pod = %pod.full_name(), pod.uid = %pod.uid(), reason, message, "resources of a resize are not allocated");
            self.engine.update_pod(Update::sync(allocated.clone()).with_mirror(mirror));
        }
    }
}
