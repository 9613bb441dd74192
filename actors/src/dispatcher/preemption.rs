//! Stops pods so that a critical pod can start.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::PodStatus;
use tokio::time::timeout;

use super::Dispatcher;
use crate::pod::{Phase, PodObject};
use crate::pod_worker::{Completed, KillOptions, Notifier, Update};
use crate::ports::{PodEvent, StatusFn};
use crate::status::set_disruption_target;
use crate::texts::admission::{PREEMPTED, PREEMPTED_CONDITION, PREEMPTING};
use crate::texts::pods::GRACE_PERIOD_EXCEEDED;
use crate::time::Time;

/// The shortest time after which a victim that has not stopped gets an event (upstream `minTimeout`, kubelet 1.36).
const SHORTEST_WAIT: Duration = Duration::from_secs(10);

/// A pod that is being stopped for a critical pod.
#[derive(Debug)]
#[must_use]
pub(crate) struct PreemptedPod {
    pod: Arc<PodObject>,
    stopped: Completed,
}

impl Dispatcher {
    /// Requests the end of a pod, with the grace period of its spec. `resource` is the resource that the critical pod lacks.
    pub(super) fn preempt(&self, pod: Arc<PodObject>, resource: &str) -> PreemptedPod {
        tracing::warn!(pod = %pod.full_name(), pod.uid = %pod.uid(), resource, "stopping a pod for a critical pod");
        self.events.record(&pod, PodEvent::warning(PREEMPTING, PREEMPTED));
        self.metrics.admission.preempted(resource);
        // A static pod that stops already, and came back meanwhile, does not start anew.
        self.final_statuses.end_stays(pod.uid());
        let (notifier, stopped) = Notifier::new();
        let options = KillOptions {
            completed: Some(notifier),
            evict: true,
            status_fn: Some(preempted(self.clock.now())),
            grace: None,
        };
        self.engine.update_pod(Update::kill(pod.clone()).with_options(options));
        PreemptedPod { pod, stopped }
    }

    /// Waits until a preempted pod has stopped, and records an event if that takes longer than 10 s or one and a half times its
    /// grace period, whichever is longer (upstream `killPodNow`, kubelet 1.36). The stop goes on. Cancel safe.
    pub(super) async fn await_preempted(&self, PreemptedPod { pod, stopped }: PreemptedPod) {
        let grace = u64::try_from(pod.spec_grace().unwrap_or(0)).unwrap_or(0);
        let wait = SHORTEST_WAIT.max(Duration::from_secs(grace).mul_f64(1.5));
        if timeout(wait, stopped).await.is_err() {
            self.events.record(&pod, PodEvent::warning("ExceededGracePeriod", GRACE_PERIOD_EXCEEDED));
        }
    }
}

/// Edits the status of a preempted pod: it has failed, and the condition says why (upstream `evictPodsToFreeRequests`, kubelet
/// 1.36).
fn preempted(now: Time) -> StatusFn {
    Arc::new(move |status: &mut PodStatus| {
        status.phase = Some(Phase::Failed.as_str().to_owned());
        status.reason = Some(PREEMPTING.to_owned());
        status.message = Some(PREEMPTED.to_owned());
        set_disruption_target(status, PREEMPTED_CONDITION, now);
    })
}
