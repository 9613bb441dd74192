//! Stopping a pod and waiting until it has stopped.

use std::sync::Arc;
use std::time::Duration;

use super::Engine;
use crate::ids::FullName;
use crate::pod::PodObject;
use crate::pod_worker::{KillOptions, Notifier, Update};
use crate::ports::{PodEvent, StatusFn};
use crate::texts::pods::GRACE_PERIOD_EXCEEDED;
use crate::time::Grace;

/// The shortest time that [`Engine::kill_pod_now`] waits (upstream `minTimeout`).
const SHORTEST_WAIT: Duration = Duration::from_secs(10);

/// How [`Engine::kill_pod_now`] stops a pod.
#[derive(Clone, Default)]
pub struct KillNow {
    /// Marks the pod as evicted.
    pub evict: bool,
    /// The grace period in seconds, in place of the one of the pod's spec. Zero or less becomes one second.
    pub grace_seconds: Option<i64>,
    /// Edits the pod's status.
    pub status_fn: Option<StatusFn>,
}

/// The pod did not stop in time. Its termination continues.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("pod {pod} did not stop within {waited:?}")]
#[non_exhaustive]
pub struct KillPodError {
    /// The pod.
    pub pod: FullName,
    /// How long the call waited.
    pub waited: Duration,
}

impl Engine {
    /// Stops a pod and waits until none of its containers can run. Waits for 10 s or one and a half times the grace period,
    /// whichever is longer. Needs a tokio runtime with time; blocks no thread (POD-W36).
    ///
    /// Cancel safe: if the future is dropped, the request to stop the pod stays in force.
    ///
    /// # Errors
    /// [`KillPodError`] if the pod did not stop in that time. The pod then has a warning event `ExceededGracePeriod`.
    pub async fn kill_pod_now(&self, pod: &Arc<PodObject>, how: KillNow) -> Result<(), KillPodError> {
        let (notifier, completed) = Notifier::new();
        let grace = how.grace_seconds.or(pod.spec_grace()).map_or(0, |s| u64::try_from(s).unwrap_or(0));
        let waited = SHORTEST_WAIT.max(Duration::from_secs(grace).mul_f64(1.5));
        let options = KillOptions {
            completed: Some(notifier),
            evict: how.evict,
            status_fn: how.status_fn,
            grace: how.grace_seconds.map(Grace::from_seconds),
        };
        self.update_pod(Update::kill(pod.clone()).with_options(options));
        match tokio::time::timeout(waited, completed).await {
            Ok(true) => Ok(()),
            // A record keeps its notifier until the pod has stopped or the engine is dropped, and this call holds the engine. So
            // `Ok(false)` does not occur.
            Ok(false) | Err(_) => {
                if let Some(events) = &self.inner().events {
                    events.record(pod, PodEvent::warning("ExceededGracePeriod", GRACE_PERIOD_EXCEEDED));
                }
                Err(KillPodError { pod: pod.full_name().clone(), waited })
            }
        }
    }
}
