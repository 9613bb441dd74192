//! What a pass does about the differences between the desired pods, the records and the runtime's pods.

use std::sync::Arc;

use podwright_core::housekeeping::{self as plan, PodAction};
use podwright_metrics::BySource;

use super::{Coverage, Housekeeping, gauges};
use crate::desired::DesiredState;
use crate::final_statuses::runs_again_after_shutdown;
use crate::ids::PodUid;
use crate::pod::PodObject;
use crate::pod_worker::{KillOptions, KnownPod, Lifecycle, Update};
use crate::ports::{ContainerState, RuntimePod};
use crate::status::deadline;
use crate::time::Grace;

impl Housekeeping {
    /// Brings the engine in line with the desired and the listed pods (POD-K9 to POD-K12). `known` holds the records from
    /// before the list. Pods that this step adds to the engine are added to `known`.
    pub(super) fn apply_plan(&self, coverage: Coverage, listed: &[RuntimePod], known: &mut Vec<KnownPod>) {
        let desired = self.desired.lock();
        let missing = self.count_pods(&desired, known);
        let before = known.iter().map(|pod| &pod.uid);
        let actions = plan::actions(&desired.pods, missing, listed, before, |uid| self.engine.is_pod_known(uid));
        // Before the API server has delivered, a runtime-only pod may be one of its pods, unless the pod is static.
        let is_static = |uid: &PodUid| listed.iter().any(|pod| pod.uid == *uid && pod.is_static);
        let is_covered = |action: &PodAction| match action {
            PodAction::StopRuntimeOnly(running) => coverage == Coverage::All || is_static(&running.uid),
            PodAction::Restart(_) | PodAction::Finish(_) | PodAction::Stop(_) => true,
        };
        // A pod that was created again while it stopped does not run again before the node goes down.
        let may_start = !self.gate.is_closed();
        let is_possible = |action: &PodAction| match action {
            PodAction::Restart(pod) => may_start && !self.has_earlier_containers(pod.uid(), listed),
            PodAction::Finish(_) | PodAction::Stop(_) | PodAction::StopRuntimeOnly(_) => true,
        };
        let actions = actions.into_iter().filter(|action| is_covered(action) && is_possible(action));
        actions.for_each(|action| self.apply(&desired, action, listed, known));
        desired.pods.unmatched_mirrors().for_each(|name| self.mirrors.add(name));
        self.mirrors.add_undelivered();
        self.run_again_after_shutdown(&desired);
        self.request_overdue_syncs(&desired);
    }

    /// Whether the runtime still lists dead containers of an earlier life that would end a pod at its start. The sweep removes them.
    fn has_earlier_containers(&self, uid: &PodUid, listed: &[RuntimePod]) -> bool {
        let has_dead = |pod: &RuntimePod| pod.containers.iter().any(|run| run.state != ContainerState::Running);
        self.active.leaves_earlier_life(uid) && listed.iter().any(|pod| pod.uid == *uid && has_dead(pod))
    }

    /// Sets the gauges of desired and active pods (POD-K9). Returns the active pods that have no record.
    fn count_pods(&self, desired: &DesiredState, known: &[KnownPod]) -> Vec<Arc<PodObject>> {
        let (mut active, mut active_statics, mut counted, mut missing) = (0, 0, 0, Vec::new());
        for pod in desired.pods.pods() {
            let lifecycle = self.engine.lifecycle(pod.uid());
            counted += usize::from(self.active.counts(pod, lifecycle));
            if self.active.is_active(pod, lifecycle) {
                active += 1;
                active_statics += usize::from(pod.is_static());
                missing.extend(lifecycle.is_none().then(|| pod.clone()));
            }
        }
        let metrics = &self.metrics.housekeeping;
        let count = |statics: usize, all: usize| BySource { static_pods: statics, api_pods: all - statics };
        metrics.desired_pods(count(desired.pods.statics(), desired.pods.len()));
        metrics.active_pods(count(active_statics, active));
        metrics.mirror_pods(desired.pods.mirrors().count());
        metrics.admission_pods(counted + gauges::occupying_orphans(known));
        self.metrics.containers.ephemeral_containers(desired.pods.ephemeral_containers());
        missing
    }

    /// Runs the static pods again that a shutdown stopped which was cancelled since, once they have finished. The next pass
    /// drops the record of such a pod, and starts it.
    fn run_again_after_shutdown(&self, desired: &DesiredState) {
        self.gate.run_again(|uid| {
            let Some(pod) = desired.pods.pod(uid) else { return true };
            match self.engine.lifecycle(uid) {
                Some(Lifecycle::Finished) => {}
                // It was created again while it stopped, so its record is gone. The pass starts it, unless its status says that it ended.
                None if self.active.is_active(pod, None) => return true,
                None => {}
                Some(_) => return false,
            }
            // A pod that was stopped before it started has no status.
            if self.statuses.get(uid).is_none_or(|status| runs_again_after_shutdown(pod, &status)) {
                tracing::info!(pod = %pod.full_name(), "the shutdown was cancelled: the pod runs again");
                self.statuses.forget(uid);
                let mirror = desired.pods.mirror_of(pod).cloned();
                self.engine.update_pod(Update::create(pod.clone()).with_mirror(mirror));
            }
            true
        });
    }

    fn apply(&self, desired: &DesiredState, action: PodAction, listed: &[RuntimePod], known: &mut Vec<KnownPod>) {
        let metrics = &self.metrics.housekeeping;
        match action {
            PodAction::Restart(pod) => {
                let mirror = desired.pods.mirror_of(&pod).cloned();
                if self.active.leaves_earlier_life(pod.uid()) {
                    self.statuses.forget(pod.uid());
                }
                self.final_statuses.end_stays(pod.uid());
                metrics.restarted(pod.is_static());
                known.push(plan::restarted(&pod, self.clock.now()));
                self.engine.update_pod(Update::create(pod).with_mirror(mirror));
            }
            PodAction::Finish(pod) => self.engine.update_pod(Update::kill(pod)),
            PodAction::Stop(pod) => {
                metrics.orphaned_runtime_pod();
                known.push(plan::stopped(&pod, self.clock.now()));
                self.engine.update_pod(Update::kill(pod));
            }
            PodAction::StopRuntimeOnly(running) => {
                let now = self.clock.now();
                let of = listed.iter().find(|pod| pod.uid == running.uid);
                let grace = of.map_or(Grace::MIN, |pod| self.run_facts.grace_of(pod, now));
                tracing::warn!(
                    pod = %running.full_name,
                    pod.uid = %running.uid,
                    grace.seconds = grace.seconds(),
                    "stopping a pod that only the runtime knows"
                );
                metrics.orphaned_runtime_pod();
                known.push(plan::runtime_only(&running, now));
                let options = KillOptions { grace: Some(grace), ..KillOptions::default() };
                self.engine.update_pod(Update::kill_runtime(running).with_options(options));
            }
        }
    }

    /// Requests a sync of each pod whose active deadline has passed. A worker does this by itself, except while a crash backoff of a
    /// container outlasts the deadline.
    fn request_overdue_syncs(&self, desired: &DesiredState) {
        let now = self.clock.now();
        for pod in desired.pods.with_deadline() {
            let status = self.statuses.get(pod.uid());
            let is_overdue = deadline(pod, status.as_deref()).is_some_and(|at| at <= now);
            if is_overdue && self.engine.lifecycle(pod.uid()) == Some(Lifecycle::Sync) {
                self.engine.update_pod(Update::sync(pod.clone()));
            }
        }
    }
}
