//! Whether a pod may start on this node, and which pods count against it.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Container, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use crate::config::quantity::Amount;
use crate::pod::{Phase, PodObject, is_sidecar};
use crate::texts::pods;

/// Why a pod may not start. It becomes the pod's reason and message.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Rejection {
    /// The reason in upstream's spelling (`OutOfcpu`, `NodeShutdown`).
    pub reason: String,
    /// The missing resource or condition, for people.
    pub message: String,
}

impl Rejection {
    /// A rejection with its reason in upstream's spelling, such as `OutOfcpu`, and a message for people.
    pub fn new(reason: impl Into<String>, message: impl Into<String>) -> Self {
        Rejection { reason: reason.into(), message: message.into() }
    }
}

/// A check that every new pod has to pass. It must return at once, without I/O.
pub trait AdmissionHandler: Send + Sync + 'static {
    /// Admits a pod beside the pods that already use the node.
    ///
    /// # Errors
    /// [`Rejection`] if the pod may not start.
    fn admit(&self, pod: &PodObject, others: &Admitted) -> Result<(), Rejection>;
}

/// The pods that already use the node, with the sum of their requests.
#[derive(Clone, Debug, Default)]
pub struct Admitted {
    pods: Vec<Arc<PodObject>>,
    requests: Requests,
}

impl Admitted {
    /// Adds a pod.
    pub fn push(&mut self, pod: Arc<PodObject>) {
        self.requests = self.requests.plus(requests(&pod));
        self.pods.push(pod);
    }

    /// The pods.
    pub fn pods(&self) -> &[Arc<PodObject>] {
        &self.pods
    }
}

impl FromIterator<Arc<PodObject>> for Admitted {
    fn from_iter<I: IntoIterator<Item = Arc<PodObject>>>(pods: I) -> Self {
        let mut admitted = Admitted::default();
        pods.into_iter().for_each(|pod| admitted.push(pod));
        admitted
    }
}

/// The facts about a desired pod, besides its object, that decide whether it [is active](is_active).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PodActivity {
    /// Whether the engine has a record of the pod and no container of it runs.
    pub known_terminated: bool,
    /// Whether the pod's termination was requested.
    pub termination_requested: bool,
    /// The phase of its cached status.
    pub cached_phase: Option<Phase>,
}

/// Whether a desired pod counts for admission. A pod that is known to have terminated does not count. A pod in a terminal
/// phase counts only while it is still stopping. A pod without a record counts.
pub fn is_active(pod: &PodObject, activity: PodActivity) -> bool {
    if activity.known_terminated {
        return false;
    }
    let terminal = pod.phase().is_terminal() || activity.cached_phase.is_some_and(Phase::is_terminal);
    !terminal || activity.termination_requested
}

/// The resources that a node offers to pods. As an admission handler, it rejects a pod whose requests exceed what is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeCapacity {
    /// CPU in thousandths of a core.
    pub cpu_millis: i64,
    /// Memory in bytes.
    pub memory_bytes: i64,
    /// The maximum number of pods.
    pub pods: usize,
}

impl AdmissionHandler for NodeCapacity {
    fn admit(&self, pod: &PodObject, others: &Admitted) -> Result<(), Rejection> {
        let used = others.requests;
        let count = others.pods.len();
        let requested = requests(pod);
        let out_of = |resource: &str, requested: i64, used: i64, capacity: i64| Rejection {
            reason: format!("OutOf{resource}"),
            message: pods::out_of(resource, requested, used, capacity),
        };
        if count >= self.pods {
            let signed = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
            return Err(out_of("pods", 1, signed(count), signed(self.pods)));
        }
        if requested.cpu_millis > 0 && used.cpu_millis.saturating_add(requested.cpu_millis) > self.cpu_millis {
            return Err(out_of("cpu", requested.cpu_millis, used.cpu_millis, self.cpu_millis));
        }
        if requested.memory_bytes > 0 && used.memory_bytes.saturating_add(requested.memory_bytes) > self.memory_bytes {
            return Err(out_of("memory", requested.memory_bytes, used.memory_bytes, self.memory_bytes));
        }
        Ok(())
    }
}

/// The largest requests of a pod at any time of its life.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Requests {
    cpu_millis: i64,
    memory_bytes: i64,
}

impl Requests {
    fn plus(self, other: Requests) -> Requests {
        Requests {
            cpu_millis: self.cpu_millis.saturating_add(other.cpu_millis),
            memory_bytes: self.memory_bytes.saturating_add(other.memory_bytes),
        }
    }

    fn max(self, other: Requests) -> Requests {
        Requests {
            cpu_millis: self.cpu_millis.max(other.cpu_millis),
            memory_bytes: self.memory_bytes.max(other.memory_bytes),
        }
    }
}

/// The requests of a pod: those of all regular containers and sidecars together or, if more, those of an init container with
/// the sidecars that start before it (KEP-753). Pod-level requests replace them. The overhead is added.
fn requests(pod: &PodObject) -> Requests {
    let spec = pod.spec();
    let overhead = of_list(spec.overhead.as_ref());
    let mut sidecars = Requests::default();
    let mut peak = Requests::default();
    for container in pod.init_containers() {
        let requested = of_container(container);
        if is_sidecar(container) {
            sidecars = sidecars.plus(requested);
            peak = peak.max(sidecars);
        } else {
            peak = peak.max(sidecars.plus(requested));
        }
    }
    let running = pod.containers().iter().map(of_container).fold(sidecars, Requests::plus);
    let mut total = running.max(peak);
    if let Some(level) = spec.resources.as_ref().and_then(|r| r.requests.as_ref()) {
        let level_requests = of_list(Some(level));
        if level.contains_key("cpu") {
            total.cpu_millis = level_requests.cpu_millis;
        }
        if level.contains_key("memory") {
            total.memory_bytes = level_requests.memory_bytes;
        }
    }
    total.plus(overhead)
}

fn of_container(container: &Container) -> Requests {
    of_list(container.resources.as_ref().and_then(|r: &ResourceRequirements| r.requests.as_ref()))
}

fn of_list(list: Option<&BTreeMap<String, Quantity>>) -> Requests {
    let amount = |name: &str| list.and_then(|list| list.get(name)).and_then(|quantity| Amount::of(quantity).ok());
    Requests {
        cpu_millis: amount("cpu").map_or(0, Amount::millis),
        memory_bytes: amount("memory").map_or(0, Amount::units),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::pod;

    // POD-S53
    #[test]
    fn pods_that_run_may_run_or_still_stop_are_active() {
        let none = PodActivity::default();
        let rows = [
            ("Failed", none, false),
            ("Succeeded", none, false),
            ("Running", PodActivity { termination_requested: true, ..none }, true),
            ("Pending", none, true),
            ("Running", none, true),
            ("Running", PodActivity { cached_phase: Some(Phase::Failed), ..none }, false),
            ("Running", PodActivity { known_terminated: true, termination_requested: true, ..none }, false),
            ("Failed", PodActivity { termination_requested: true, ..none }, true),
        ];
        for (i, (phase, activity, active)) in rows.into_iter().enumerate() {
            assert_eq!(is_active(&pod("p").phase(phase).build(), activity), active, "row {i}");
        }
    }

    fn requesting(name: &str, cpu: &str) -> Arc<PodObject> {
        pod(name)
            .spec(|spec| {
                let requests = BTreeMap::from([("cpu".to_owned(), Quantity(cpu.to_owned()))]);
                spec.containers[0].resources =
                    Some(ResourceRequirements { requests: Some(requests), ..ResourceRequirements::default() });
            })
            .build()
    }

    #[test]
    fn a_pod_that_requests_more_than_is_left_is_rejected_with_a_reason() {
        let node = NodeCapacity { cpu_millis: 2000, memory_bytes: 1 << 30, pods: 3 };
        let running = Admitted::from_iter([requesting("a", "1500m")]);
        assert_eq!(node.admit(&requesting("b", "600m"), &running).unwrap_err().reason, "OutOfcpu");
        assert_eq!(node.admit(&requesting("b", "500m"), &running), Ok(()));
        // A pod without requests fits on a full node.
        assert_eq!(node.admit(&pod("c").build(), &Admitted::from_iter([requesting("a", "2")])), Ok(()));
        let three = Admitted::from_iter([pod("a").build(), pod("b").build(), pod("c").build()]);
        assert_eq!(node.admit(&pod("d").build(), &three).unwrap_err().reason, "OutOfpods");
    }

    #[test]
    fn requests_of_an_init_container_include_only_earlier_sidecars() {
        let container = |name: &str, cpu: &str, policy: Option<&str>| Container {
            name: name.to_owned(),
            restart_policy: policy.map(str::to_owned),
            resources: Some(ResourceRequirements {
                requests: Some(BTreeMap::from([("cpu".to_owned(), Quantity(cpu.to_owned()))])),
                ..ResourceRequirements::default()
            }),
            ..Container::default()
        };
        let pod = pod("p")
            .spec(|spec| {
                spec.init_containers = Some(vec![
                    container("s", "100m", Some("Always")),
                    container("i", "500m", None),
                    container("t", "50m", Some("Always")),
                ]);
                spec.containers = vec![container("m", "200m", None)];
            })
            .build();
        assert_eq!(requests(&pod).cpu_millis, 600);
    }
}
