//! Requests a sync of the pods whose API objects or resources have changed.

use std::sync::Arc;

use tokio::sync::Notify;

use super::mailboxes::Mailboxes;
use super::shared::Shared;
use crate::dispatcher::PodObjectsChanged;
use crate::engine::Engine;
use crate::ids::PodUid;
use crate::mailbox::Outbox;
use crate::pod_worker::Lifecycle;
use crate::ports::ResourcePhase;
use crate::time::Time;

/// Follows the changes of objects and resources. The returned signal fires when a change needs a housekeeping pass.
pub(super) fn start(shared: &Shared, mailboxes: &Mailboxes, engine: &Engine) -> Arc<Notify> {
    if let Some(objects) = shared.objects.clone() {
        let pods: Outbox<PodObjectsChanged> = mailboxes.outbox();
        shared.parts.spawn_local("object_changes", async move || {
            loop {
                for uid in objects.changed().await {
                    pods.post(PodObjectsChanged { uid }).await;
                }
            }
        });
    }
    let pass_needed = Arc::new(Notify::new());
    if let Some(resources) = shared.resources.clone() {
        let pods: Outbox<PodObjectsChanged> = mailboxes.outbox();
        let (engine, pass_needed, clock) = (engine.clone(), pass_needed.clone(), shared.clock.clone());
        shared.parts.spawn_local("resource_changes", async move || {
            loop {
                for uid in resources.changed().await {
                    let has_worker = engine.lifecycle(&uid).is_some_and(|lifecycle| lifecycle < Lifecycle::Finished);
                    if !has_worker && needs_pass(&*resources, &uid, clock.now()) {
                        pass_needed.notify_one();
                    }
                    pods.post(PodObjectsChanged { uid }).await;
                }
            }
        });
    }
    pass_needed
}

/// Whether a pass has to release the resources of a pod without a worker now, or to report that they are released. The health of a device of
/// such a pod may change all the time.
fn needs_pass(resources: &dyn ResourcePhase, uid: &PodUid, now: Time) -> bool {
    let is_due = |(pod, next): &(PodUid, Option<Time>)| pod == uid && next.is_some_and(|next| next <= now);
    !resources.holds(uid) || resources.ended_pods().iter().any(is_due)
}

#[cfg(test)]
mod tests;
