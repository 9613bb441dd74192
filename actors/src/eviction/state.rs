//! The last measurements: the disk usage of pods, and the resources that the node lacks.

use std::collections::HashMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{NodeCondition, Taint};
use parking_lot::Mutex;
use tokio::sync::watch;

use super::limits::PodUsage;
use super::policy::EvictionPolicy;
use super::pressure::{MetThreshold, NodePressure, Observations, PressureTracker};
use super::signals::Pressure;
use crate::admission::{AdmissionHandler, Admitted, Rejection, tolerates_taint};
use crate::config::pod_resources::qos_class;
use crate::ids::PodUid;
use crate::pod::PodObject;
use crate::texts::evictions::{EVICTED, node_had_condition};
use crate::time::Time;

/// The taint of a node that lacks memory (`core/v1`, `TaintNodeMemoryPressure`).
const MEMORY_PRESSURE_TAINT: &str = "node.kubernetes.io/memory-pressure";

/// The last measurements. The evictor writes them; `explain`, admission and the node's handle read them.
#[derive(Debug)]
pub struct EvictionState {
    measurements: Mutex<Measurements>,
    /// The conditions that the node has, in the order of [`Pressure::ALL`].
    pressures: watch::Sender<Vec<Pressure>>,
}

#[derive(Debug)]
struct Measurements {
    /// The pods with a limit.
    pods: HashMap<PodUid, MeasuredPod>,
    tracker: PressureTracker,
    dedicated_image_disk: bool,
}

/// The last measurement of a pod.
#[derive(Clone, Debug)]
pub struct MeasuredPod {
    /// When the measurement ended.
    pub at: Time,
    /// The used space. If the last measurement failed, this is the result of an earlier one.
    pub usage: Arc<PodUsage>,
    /// Why the last measurement failed or is incomplete.
    pub error: Option<String>,
    /// Whether writable layers have a disk of their own.
    pub dedicated_image_disk: bool,
}

impl EvictionState {
    pub(crate) fn new(policy: EvictionPolicy, now: Time) -> Self {
        let tracker = PressureTracker::new(policy, now);
        let measurements = Measurements { pods: HashMap::new(), tracker, dedicated_image_disk: false };
        EvictionState { measurements: Mutex::new(measurements), pressures: watch::Sender::default() }
    }

    /// The last measurement of a pod. `None` for a pod without limits, and before the first measurement.
    pub fn pod(&self, uid: &PodUid) -> Option<MeasuredPod> {
        self.measurements.lock().pods.get(uid).cloned()
    }

    /// The conditions that the node has, and why.
    pub fn pressures(&self) -> Vec<NodePressure> {
        self.measurements.lock().tracker.pressures().cloned().collect()
    }

    /// The conditions that the node has, and a signal for each change.
    pub(crate) fn pressure_changes(&self) -> watch::Receiver<Vec<Pressure>> {
        self.pressures.subscribe()
    }

    /// All three conditions in the form of the API.
    pub(crate) fn node_conditions(&self, now: Time) -> Vec<NodeCondition> {
        let condition = |(kind, changed, is_present): (Pressure, Time, bool)| {
            let (reason, message) = kind.texts(is_present);
            NodeCondition {
                type_: kind.as_str().to_owned(),
                status: if is_present { "True" } else { "False" }.to_owned(),
                reason: Some(reason.to_owned()),
                message: Some(message.to_owned()),
                last_heartbeat_time: Some(now.to_api()),
                last_transition_time: Some(changed.to_api()),
            }
        };
        self.measurements.lock().tracker.conditions().map(condition).collect()
    }

    pub(super) fn has_dedicated_image_disk(&self) -> bool {
        self.measurements.lock().dedicated_image_disk
    }

    /// Stores a measurement. Returns whether the error is the first one in a row.
    pub(super) fn note_pod(&self, uid: &PodUid, at: Time, usage: Option<Arc<PodUsage>>, error: Option<String>) -> bool {
        let mut state = self.measurements.lock();
        let dedicated_image_disk = state.dedicated_image_disk;
        let last = state.pods.get(uid);
        let is_first = error.is_some() && last.is_none_or(|last| last.error.is_none());
        let usage = usage.or_else(|| last.map(|last| last.usage.clone())).unwrap_or_default();
        state.pods.insert(uid.clone(), MeasuredPod { at, usage, error, dedicated_image_disk });
        is_first
    }

    /// Forgets the pods that `is_kept` does not name.
    pub(super) fn retain(&self, is_kept: impl Fn(&PodUid) -> bool) {
        self.measurements.lock().pods.retain(|uid, _| is_kept(uid));
    }

    /// Stores the available resources of the node. Returns the thresholds that require an eviction.
    pub(super) fn observe(&self, observed: &Observations, now: Time) -> Vec<MetThreshold> {
        let mut state = self.measurements.lock();
        if observed.node.is_some() {
            state.dedicated_image_disk = observed.has_dedicated_image_disk();
        }
        let met = state.tracker.observe(observed, now);
        let pressures: Vec<Pressure> = state.tracker.pressures().map(|pressure| pressure.condition).collect();
        drop(state);
        self.pressures.send_if_modified(|last| {
            let has_changed = *last != pressures;
            *last = pressures;
            has_changed
        });
        met
    }

    /// Whether enough is left of every resource, so that no pod needs to be evicted.
    pub(super) fn is_relieved(&self, observed: &Observations) -> bool {
        self.measurements.lock().tracker.is_relieved(observed)
    }

    /// The grace period in seconds of a pod that is evicted because of a soft threshold.
    pub(super) fn soft_grace(&self, pod: &PodObject) -> i64 {
        let most = i64::try_from(self.measurements.lock().tracker.max_pod_grace().as_secs()).unwrap_or(i64::MAX);
        pod.spec_grace().map_or(most, |grace| grace.min(most))
    }
}

/// Rejects new pods while the node lacks a resource, except critical ones. A node that lacks only memory rejects only pods of the
/// class `BestEffort` (upstream `managerImpl.Admit`, kubelet 1.36).
#[derive(Debug)]
pub(crate) struct PressureGate(pub(crate) Arc<EvictionState>);

impl AdmissionHandler for PressureGate {
    fn admit(&self, pod: &PodObject, _: &Admitted) -> Result<(), Rejection> {
        let pressures = self.0.pressures.borrow().clone();
        if pressures.is_empty() || pod.is_critical() || pressures == [Pressure::Memory] && fits_in_memory(pod) {
            return Ok(());
        }
        let names: Vec<&str> = pressures.iter().map(|pressure| pressure.as_str()).collect();
        Err(Rejection::new(EVICTED, node_had_condition(&names)))
    }
}

/// Whether a node that lacks memory admits the pod: it requests memory or CPU, or tolerates the condition.
fn fits_in_memory(pod: &PodObject) -> bool {
    let taint = Taint { key: MEMORY_PRESSURE_TAINT.to_owned(), effect: "NoSchedule".to_owned(), ..Taint::default() };
    qos_class(pod) != "BestEffort" || tolerates_taint(pod.spec(), &taint)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::ports::{FileSystemSpace, ResourceSpace};
    use crate::testing::pod;

    fn pod_with(spec: serde_json::Value) -> Arc<PodObject> {
        let pod = json!({"metadata": {"name": "p", "namespace": "n", "uid": "p"}, "spec": spec});
        PodObject::new(serde_json::from_value(pod).unwrap()).unwrap()
    }

    #[test]
    fn a_node_under_pressure_rejects_pods_as_the_kubelet_does() {
        let state = Arc::new(EvictionState::new(EvictionPolicy::default(), Time::ZERO));
        let gate = PressureGate(state.clone());
        let best_effort = pod_with(json!({"containers": [{"name": "a"}]}));
        let tolerant = pod_with(json!({
            "containers": [{"name": "a"}],
            "tolerations": [{"key": MEMORY_PRESSURE_TAINT, "operator": "Exists"}],
        }));
        let burstable = pod_with(json!({"containers": [{"name": "a", "resources": {"requests": {"memory": "1Mi"}}}]}));
        let critical = pod("a").static_pod().build();
        let rejected = |pod: &PodObject| {
            gate.admit(pod, &Admitted::default()).err().map(|it| format!("{}: {}", it.reason, it.message))
        };
        let all = || [&best_effort, &tolerant, &burstable, &critical].map(|pod| rejected(pod));
        assert_eq!(all(), [None, None, None, None]);
        let memory = Some(ResourceSpace::new(1 << 30, 1));
        state.observe(&Observations { memory, ..Observations::default() }, Time::from_secs(1));
        let reason = |conditions: &str| Some(format!("Evicted: The node had condition: [{conditions}]. "));
        assert_eq!(all(), [reason("MemoryPressure"), None, None, None]);
        let full = FileSystemSpace { device: 1, capacity: 100, available: 1, inodes: 100, inodes_free: 100 };
        let observed = Observations { memory, node: Some(full), ..Observations::default() };
        state.observe(&observed, Time::from_secs(2));
        let both = || reason("MemoryPressure DiskPressure");
        assert_eq!(all(), [both(), both(), both(), None]);
        let conditions = state.node_conditions(Time::from_secs(3));
        let texts: Vec<_> = conditions
            .iter()
            .map(|it| format!("{} {} {}", it.type_, it.status, it.reason.as_deref().unwrap_or_default()))
            .collect();
        assert_eq!(
            texts,
            [
                "MemoryPressure True KubeletHasInsufficientMemory",
                "DiskPressure True KubeletHasDiskPressure",
                "PIDPressure False KubeletHasSufficientPID"
            ]
        );
        assert_eq!(conditions[0].last_transition_time, Some(Time::from_secs(1).to_api()));
    }
}
