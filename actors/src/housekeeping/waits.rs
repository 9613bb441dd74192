//! Telling of pods that have waited for long.

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
    /// Records an event for each pod whose nearest wait has become long, once per wait. One cheap look per pod; only what
    /// does not rest is explained.
    pub(super) fn tell_long_waits(&self) {
        let mut patience = self.state.patience.lock();
        let Some(limit) = patience.limit() else { return };
        let look = self.explainer.look();
        let now = look.now();
        let desired = self.dispatcher.desired.pods();
        let known = self.dispatcher.engine.unfinished_pods();
        let mut there: HashSet<PodUid> = HashSet::with_capacity(desired.len());
        for pod in desired.iter().chain(&known) {
            if !there.insert(pod.uid().clone()) {
                continue;
            }
            if self.rests(pod.uid(), limit) {
                patience.rest(pod.uid(), now);
                continue;
            }
            if !patience.wants_look(pod.uid(), now) {
                continue;
            }
            let Some((wait, heading, failing)) = look.nearest_wait(pod.uid()) else { continue };
            if patience.is_over(pod.uid(), &wait, failing, now) {
                let message = format!("{heading} ({})", wait.detail);
                self.dispatcher.events.record(pod, PodEvent::warning(REASON, message));
            }
        }
        patience.retain(|uid| there.contains(uid));
    }

    /// Whether nothing has to be asked: the pod runs and is ready, or it is over, or it came to where it stands not long
    /// ago, and so waits for nothing that long.
    fn rests(&self, uid: &PodUid, limit: Duration) -> bool {
        let phase = || self.dispatcher.statuses.phase(uid);
        // Without a record a pod was refused, or it waits to be heard of.
        let Some(glance) = self.dispatcher.engine.summary(uid) else { return phase().is_some_and(Phase::is_terminal) };
        let ready = || self.dispatcher.statuses.get(uid).is_some_and(|status| is_ready(&status));
        glance.lifecycle == Lifecycle::Finished
            || self.clock.now().since(glance.since) < limit
            || (glance.lifecycle == Lifecycle::Sync && glance.rests && ready())
    }
}
