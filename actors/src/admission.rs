//! Whether a pod may start on this node, and which pods count against it.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Container, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use crate::config::quantity::Amount;
use crate::pod::{Phase, PodObject, is_sidecar};

/// Why a pod may not start. It becomes the pod's reason and message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejection {
    /// In upstream's spelling (`OutOfcpu`, `NodeShutdown`).
    pub reason: String,
    /// What is missing, for people.
    pub message: String,
}

/// One test that a pod has to pass. Answers at once, from memory.
pub trait AdmissionHandler: Send + Sync + 'static {
    /// Judges a pod against the others that count.
    ///
    /// # Errors
    /// The [`Rejection`].
    fn admit(&self, pod: &PodObject, others: &Admitted) -> Result<(), Rejection>;
}

/// The pods that a new one is judged against, with what they ask for together.
#[derive(Clone, Debug, Default)]
pub struct Admitted {
    pods: Vec<Arc<PodObject>>,
    requests: Requests,
}

impl Admitted {
    /// Counts one more pod.
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

/// What is known of a desired pod besides its object, for [`is_active`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PodActivity {
    /// The engine has a record of it and nothing of it runs.
    pub known_terminated: bool,
    /// It was asked to stop.
    pub termination_requested: bool,
    /// The phase of its cached status.
    pub cached_phase: Option<Phase>,
}

/// Whether a desired pod counts for admission: not once it is known to be over, and not in a terminal phase, unless it is
/// still stopping. A pod that the engine never saw counts.
pub fn is_active(pod: &PodObject, activity: PodActivity) -> bool {
    if activity.known_terminated {
        return false;
    }
    let terminal = pod.phase().is_terminal() || activity.cached_phase.is_some_and(Phase::is_terminal);
    !terminal || activity.termination_requested
}

/// What the node has to give, and the handler that compares requests with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeCapacity {
    /// CPU in thousandths of a core.
    pub cpu_millis: i64,
    /// Memory in bytes.
    pub memory_bytes: i64,
    /// How many pods it takes.
    pub pods: usize,
}

impl AdmissionHandler for NodeCapacity {
    fn admit(&self, pod: &PodObject, others: &Admitted) -> Result<(), Rejection> {
        let used = others.requests;
        let count = others.pods.len();
        let wants = requests(pod);
        let out_of = |resource: &str, wants: i64, used: i64, has: i64| Rejection {
            reason: format!("OutOf{resource}"),
            message: format!("the node is short of {resource}: requested {wants}, in use {used}, capacity {has}"),
        };
        if count >= self.pods {
            let whole = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
            return Err(out_of("pods", 1, whole(count), whole(self.pods)));
        }
        if wants.cpu_millis > 0 && used.cpu_millis.saturating_add(wants.cpu_millis) > self.cpu_millis {
            return Err(out_of("cpu", wants.cpu_millis, used.cpu_millis, self.cpu_millis));
        }
        if wants.memory_bytes > 0 && used.memory_bytes.saturating_add(wants.memory_bytes) > self.memory_bytes {
            return Err(out_of("memory", wants.memory_bytes, used.memory_bytes, self.memory_bytes));
        }
        Ok(())
    }
}

/// What a pod asks for at its greediest moment.
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

/// All regular containers and sidecars together; or, if more, an init container with the sidecars started before it
/// (KEP-753); or what the pod level says; plus the overhead.
fn requests(pod: &PodObject) -> Requests {
    let spec = pod.spec();
    let overhead = of_list(spec.overhead.as_ref());
    let mut sidecars = Requests::default();
    let mut peak = Requests::default();
    for container in pod.init_containers() {
        let wants = of_container(container);
        if is_sidecar(container) {
            sidecars = sidecars.plus(wants);
            peak = peak.max(sidecars);
        } else {
            peak = peak.max(sidecars.plus(wants));
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
    fn active_are_pods_that_run_or_may_run_or_still_stop() {
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
        for (i, (phase, standing, active)) in rows.into_iter().enumerate() {
            assert_eq!(is_active(&pod("p").phase(phase).build(), standing), active, "row {i}");
        }
        // What the list is about: the third, fourth, fifth and eighth.
        let active = rows.iter().enumerate().filter(|(_, row)| row.2).map(|(i, _)| i + 1).collect::<Vec<_>>();
        assert_eq!(active, [3, 4, 5, 8]);
    }

    fn asking(name: &str, cpu: &str) -> Arc<PodObject> {
        pod(name)
            .spec(|spec| {
                let requests = BTreeMap::from([("cpu".to_owned(), Quantity(cpu.to_owned()))]);
                spec.containers[0].resources =
                    Some(ResourceRequirements { requests: Some(requests), ..ResourceRequirements::default() });
            })
            .build()
    }

    #[test]
    fn a_pod_that_asks_for_more_than_is_left_is_refused_by_the_resources_name() {
        let node = NodeCapacity { cpu_millis: 2000, memory_bytes: 1 << 30, pods: 3 };
        let running = Admitted::from_iter([asking("a", "1500m")]);
        assert_eq!(node.admit(&asking("b", "600m"), &running).unwrap_err().reason, "OutOfcpu");
        assert_eq!(node.admit(&asking("b", "500m"), &running), Ok(()));
        // A pod that asks for nothing fits on a full node.
        assert_eq!(node.admit(&pod("c").build(), &Admitted::from_iter([asking("a", "2")])), Ok(()));
        let three = Admitted::from_iter([pod("a").build(), pod("b").build(), pod("c").build()]);
        assert_eq!(node.admit(&pod("d").build(), &three).unwrap_err().reason, "OutOfpods");
    }

    #[test]
    fn an_init_container_counts_with_the_sidecars_before_it_only() {
        let with = |name: &str, cpu: &str, policy: Option<&str>| Container {
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
                    with("s", "100m", Some("Always")),
                    with("i", "500m", None),
                    with("t", "50m", Some("Always")),
                ]);
                spec.containers = vec![with("m", "200m", None)];
            })
            .build();
        assert_eq!(requests(&pod).cpu_millis, 600);
    }
}
