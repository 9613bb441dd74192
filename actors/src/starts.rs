//! Measures how long the pods of an API server take to start (upstream `PodStartupLatencyTracker`, kubelet 1.36).
//!
//! ```text
//!   first delivered, not started yet -> measured: pulls, init containers -> delivered with all containers running -> recorded
//!                    `-> PodScheduled was False -> excluded                 `-> delivered with a terminal phase, or removed -> dropped
//! ```
//!
//! - A pod that an earlier agent started has a start time in its first delivery, so it is not measured.
//! - The duration of the service level indicator contains neither pulls nor the runs of regular init containers. Pulls that overlap
//!   count once. It is not recorded for a pod with a volume that keeps data.
//! - Static pods and mirror pods are not measured.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use foldhash::fast::RandomState;
use k8s_openapi::api::core::v1::Volume;
use parking_lot::Mutex;
use podwright_metrics::StartMetrics;

use crate::ids::PodUid;
use crate::pod::{PodObject, is_sidecar};
use crate::ports::{Clock, PodRuntimeStatus};
use crate::time::Time;

/// The starts of pods that are not running yet.
pub(crate) struct PodStarts {
    state: Mutex<Starts>,
    clock: Arc<dyn Clock>,
    metrics: StartMetrics,
}

#[derive(Debug, Default)]
struct Starts {
    pods: HashMap<PodUid, PodStart, RandomState>,
    /// Whether the start of a pod with a pod network was recorded.
    has_network_pod: bool,
}

/// The start of one pod.
#[derive(Clone, Debug, PartialEq, Eq)]
enum PodStart {
    /// The start is measured.
    Measured {
        pulls: Pulls,
        /// How long the regular init containers have run.
        init: Duration,
    },
    /// The pod could not be scheduled at once.
    Excluded,
}

/// The time in which at least one image of a pod was pulled.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Pulls {
    active: u32,
    /// When the first of the active pulls began.
    since: Option<Time>,
    total: Duration,
}

/// The effect of a delivery of a pod on the measurement of its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Delivery {
    Begins,
    Excludes,
    Completes,
    Drops,
    ChangesNothing,
}

impl PodStarts {
    pub(crate) fn new(clock: Arc<dyn Clock>, metrics: StartMetrics) -> Self {
        PodStarts { state: Mutex::default(), clock, metrics }
    }

    /// Observes a pod as the API source delivers it. Records its start if all its containers run.
    pub(crate) fn delivered(&self, pod: &PodObject) {
        if pod.is_static() || pod.is_mirror() {
            return;
        }
        let mut state = self.state.lock();
        match delivery(state.pods.get(pod.uid()), pod) {
            Delivery::Begins => {
                let start = PodStart::Measured { pulls: Pulls::default(), init: Duration::ZERO };
                state.pods.insert(pod.uid().clone(), start);
            }
            Delivery::Excludes => {
                state.pods.insert(pod.uid().clone(), PodStart::Excluded);
            }
            Delivery::Completes => {
                if let Some(PodStart::Measured { pulls, init }) = state.pods.remove(pod.uid()) {
                    self.record(pod, pulls.total + init, &mut state.has_network_pod);
                }
            }
            Delivery::Drops => {
                state.pods.remove(pod.uid());
            }
            Delivery::ChangesNothing => {}
        }
    }

    /// Drops a pod that its source removed.
    pub(crate) fn removed(&self, uid: &PodUid) {
        self.state.lock().pods.remove(uid);
    }

    /// Measures a pull for the pod until the returned guard is dropped. The lookup of an image that is present counts too: it takes
    /// about a millisecond.
    #[must_use]
    pub(crate) fn pull(&self, uid: &PodUid) -> PullGuard<'_> {
        self.change_pulls(uid, |pulls, now| pulls.begin(now));
        PullGuard { starts: self, uid: uid.clone() }
    }

    fn change_pulls(&self, uid: &PodUid, change: impl FnOnce(&mut Pulls, Time)) {
        if let Some(PodStart::Measured { pulls, .. }) = self.state.lock().pods.get_mut(uid) {
            change(pulls, self.clock.now());
        }
    }

    /// Measures the regular init containers that have ended.
    pub(crate) fn read(&self, pod: &PodObject, runtime: &PodRuntimeStatus) {
        if pod.init_containers().is_empty() {
            return;
        }
        if let Some(PodStart::Measured { init, .. }) = self.state.lock().pods.get_mut(pod.uid()) {
            // Old runs of a container are removed from the runtime after a while.
            *init = init_runs(pod, runtime).max(*init);
        }
    }

    fn record(&self, pod: &PodObject, excluded: Duration, has_network_pod: &mut bool) {
        let Some(created) = &pod.metadata().creation_timestamp else { return };
        let total = self.clock.now().since(Time::from_timestamp(created.0));
        self.metrics.total(total);
        if pod.spec().volumes.iter().flatten().any(keeps_data) {
            return;
        }
        let indicator = total.saturating_sub(excluded);
        self.metrics.sli(indicator);
        if !pod.is_host_network() && !std::mem::replace(has_network_pod, true) {
            self.metrics.first_network_pod(indicator);
        }
    }
}

/// Ends the measurement of a pull when it is dropped.
pub(crate) struct PullGuard<'a> {
    starts: &'a PodStarts,
    uid: PodUid,
}

impl Drop for PullGuard<'_> {
    fn drop(&mut self) {
        self.starts.change_pulls(&self.uid, |pulls, now| pulls.end(now));
    }
}

impl Pulls {
    fn begin(&mut self, now: Time) {
        self.active += 1;
        self.since.get_or_insert(now);
    }

    fn end(&mut self, now: Time) {
        self.active = self.active.saturating_sub(1);
        if self.active == 0
            && let Some(since) = self.since.take()
        {
            self.total += now.since(since);
        }
    }
}

fn delivery(known: Option<&PodStart>, pod: &PodObject) -> Delivery {
    let has_started = pod.status().is_some_and(|status| status.start_time.is_some());
    match known {
        None if has_started || pod.phase().is_terminal() => Delivery::ChangesNothing,
        None if is_unscheduled(pod) => Delivery::Excludes,
        None => Delivery::Begins,
        Some(_) if pod.phase().is_terminal() => Delivery::Drops,
        // A pod with a start time is never measured again, so the exclusion need not be remembered.
        Some(PodStart::Excluded) if has_started => Delivery::Drops,
        Some(PodStart::Excluded) => Delivery::ChangesNothing,
        Some(PodStart::Measured { .. }) if is_unscheduled(pod) => {
            if has_started {
                Delivery::Drops
            } else {
                Delivery::Excludes
            }
        }
        Some(PodStart::Measured { .. }) if is_running(pod) => Delivery::Completes,
        Some(PodStart::Measured { .. }) => Delivery::ChangesNothing,
    }
}

/// Whether each regular container runs.
fn is_running(pod: &PodObject) -> bool {
    let statuses = pod.status().and_then(|status| status.container_statuses.as_deref()).unwrap_or_default();
    let runs = |name: &str| {
        let status = statuses.iter().find(|status| status.name == name);
        let running = status.and_then(|status| status.state.as_ref()?.running.as_ref());
        running.is_some_and(|running| running.started_at.is_some())
    };
    pod.containers().iter().all(|container| runs(&container.name))
}

/// Whether the scheduler found no node for the pod at first.
fn is_unscheduled(pod: &PodObject) -> bool {
    let conditions = pod.status().and_then(|status| status.conditions.as_deref()).unwrap_or_default();
    conditions.iter().any(|condition| condition.type_ == "PodScheduled" && condition.status == "False")
}

/// Whether a pod with this volume is stateful.
fn keeps_data(volume: &Volume) -> bool {
    volume.secret.is_none()
        && volume.config_map.is_none()
        && volume.downward_api.is_none()
        && volume.empty_dir.is_none()
        && volume.projected.is_none()
}

/// How long the regular init containers of a pod have run, over all their runs that have ended.
fn init_runs(pod: &PodObject, runtime: &PodRuntimeStatus) -> Duration {
    let regular = pod.init_containers().iter().filter(|container| !is_sidecar(container));
    let runs = regular.flat_map(|container| runtime.runs(&container.name));
    runs.filter_map(|run| Some(run.finished_at?.since(run.started_at?))).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Time {
        Time::from_secs(seconds)
    }

    fn measured() -> PodStart {
        PodStart::Measured { pulls: Pulls::default(), init: Duration::ZERO }
    }

    fn pod(status: serde_json::Value) -> Arc<PodObject> {
        let pod = serde_json::json!({
            "metadata": {"name": "web", "namespace": "test", "uid": "u"},
            "spec": {"containers": [{"name": "a"}, {"name": "b"}]}, "status": status});
        PodObject::new(serde_json::from_value(pod).unwrap()).unwrap()
    }

    fn running(names: &[&str]) -> Arc<PodObject> {
        let started = "2027-01-15T08:00:00Z";
        let status = |name: &&str| {
            serde_json::json!({"name": name, "ready": true, "restartCount": 0, "image": "", "imageID": "",
                "state": {"running": {"startedAt": started}}})
        };
        let statuses: Vec<_> = names.iter().map(status).collect();
        pod(serde_json::json!({"phase": "Running", "startTime": started, "containerStatuses": statuses}))
    }

    #[test]
    fn start_is_complete_when_each_container_runs() {
        assert_eq!(delivery(Some(&measured()), &running(&["a"])), Delivery::ChangesNothing);
        assert_eq!(delivery(Some(&measured()), &running(&["b", "a"])), Delivery::Completes);
        assert_eq!(delivery(None, &running(&["a", "b"])), Delivery::ChangesNothing, "an earlier agent started it");
        let new = pod(serde_json::json!({}));
        assert_eq!(delivery(None, &new), Delivery::Begins);
        assert_eq!(delivery(Some(&measured()), &new), Delivery::ChangesNothing);
        let failed = pod(serde_json::json!({"phase": "Failed"}));
        assert_eq!(delivery(Some(&measured()), &failed), Delivery::Drops);
        assert_eq!(delivery(None, &failed), Delivery::ChangesNothing);
    }

    #[test]
    fn pod_that_could_not_be_scheduled_at_once_stays_excluded() {
        let unscheduled = |start: Option<&str>| {
            let condition = serde_json::json!({"type": "PodScheduled", "status": "False"});
            pod(serde_json::json!({"conditions": [condition], "startTime": start}))
        };
        assert_eq!(delivery(None, &unscheduled(None)), Delivery::Excludes);
        assert_eq!(delivery(Some(&measured()), &unscheduled(None)), Delivery::Excludes);
        assert_eq!(delivery(Some(&PodStart::Excluded), &pod(serde_json::json!({}))), Delivery::ChangesNothing);
        assert_eq!(delivery(Some(&measured()), &unscheduled(Some("2027-01-15T08:00:00Z"))), Delivery::Drops);
        assert_eq!(delivery(Some(&PodStart::Excluded), &running(&["a", "b"])), Delivery::Drops);
        assert_eq!(delivery(None, &running(&["a", "b"])), Delivery::ChangesNothing);
    }

    #[test]
    fn overlapping_pulls_count_once() {
        let mut pulls = Pulls::default();
        pulls.begin(at(10));
        pulls.begin(at(12));
        pulls.end(at(20));
        assert_eq!(pulls.total, Duration::ZERO, "one still runs");
        pulls.end(at(30));
        assert_eq!(pulls.total.as_secs(), 20);
        pulls.begin(at(40));
        pulls.end(at(45));
        assert_eq!(pulls.total.as_secs(), 25);
        pulls.end(at(50));
        assert_eq!(
            pulls,
            Pulls { active: 0, since: None, total: Duration::from_secs(25) },
            "its begin was not measured"
        );
    }
}
