//! Events for pods that have waited for long.

use std::collections::HashSet;
use std::time::Duration;

use super::Housekeeping;
use crate::ids::PodUid;
use crate::pod::Phase;
use crate::pod_worker::Lifecycle;
use crate::ports::PodEvent;
use crate::status::is_ready;

/// The reason of the event.
const REASON: &str = "LongWait";

impl Housekeeping {
    /// Records an event for each pod whose nearest wait has become long, once for each wait. Most pods are healthy and cost
    /// one query; only the others are explained.
    pub(super) fn report_long_waits(&self) {
        let mut reports = self.state.long_waits.lock();
        let Some(limit) = reports.limit() else { return };
        let node = self.explainer.inspect();
        let now = node.at();
        let (desired, _) = self.desired.pods_and_held();
        let known = self.engine.unfinished_pods();
        let mut uids: HashSet<PodUid> = HashSet::with_capacity(desired.len());
        for pod in desired.iter().chain(&known) {
            if !uids.insert(pod.uid().clone()) {
                continue;
            }
            if self.cannot_wait_long(pod.uid(), limit) {
                reports.rest(pod.uid(), now);
                continue;
            }
            if !reports.is_inspection_due(pod.uid(), now) {
                continue;
            }
            let Some((wait, heading, failing)) = node.nearest_wait(pod.uid()) else { continue };
            if reports.should_report(pod.uid(), &wait, failing, now) {
                let message = format!("{heading} ({})", wait.detail);
                self.events.record(pod, PodEvent::warning(REASON, message));
            }
        }
        reports.retain(|uid| uids.contains(uid));
    }

    /// Whether a pod needs no explanation: it runs and is ready, or it has finished and holds no resources, or it has been in its
    /// phase for less than the limit.
    fn cannot_wait_long(&self, uid: &PodUid, limit: Duration) -> bool {
        // A pod without a record was rejected, or its first update is yet to come.
        let Some(record) = self.engine.summary(uid) else {
            return self.statuses.phase(uid).is_some_and(Phase::is_terminal);
        };
        let is_ready = || self.statuses.get(uid).is_some_and(|status| is_ready(&status));
        let holds_resources = || self.explainer.resources.as_ref().is_some_and(|resources| resources.holds(uid));
        (record.lifecycle == Lifecycle::Finished && !holds_resources())
            || self.clock.now().since(record.since) < limit
            || (record.lifecycle == Lifecycle::Sync && record.waits_for_resync && is_ready())
    }
}
