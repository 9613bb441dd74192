//! The resources that a pod requests.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{PodSpec, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use crate::pod::{PodObject, is_sidecar};
use crate::quantity::Amount;

pub(super) const CPU: &str = "cpu";
pub(super) const MEMORY: &str = "memory";
pub(super) const EPHEMERAL_STORAGE: &str = "ephemeral-storage";
pub(super) const PODS: &str = "pods";
const HUGE_PAGES: &str = "hugepages-";

/// The resources that pods request: the largest requests of one pod at any time of its life, or the sum for many pods.
///
/// Extended resources do not count, because the node has none. Upstream skips the extended resources that a node does not have
/// (`lifecycle/predicate.go`, `removeMissingExtendedResources`, kubelet 1.36).
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Requests {
    cpu_millis: i64,
    memory_bytes: i64,
    ephemeral_bytes: i64,
    pods: i64,
    /// Bytes, by resource name.
    huge_pages: BTreeMap<String, i64>,
}

impl Requests {
    /// The requests of a pod: those of all regular containers and sidecars together or, if more, those of an init container with
    /// the sidecars that start before it (KEP-753). Pod-level requests replace them (KEP-2837). The overhead is added.
    pub fn of(pod: &PodObject) -> Requests {
        let spec = pod.spec();
        let mut total = Amounts::of_containers(pod);
        total.replace_with_pod_level(spec);
        total.add(&Amounts::of_list(spec.overhead.as_ref()));
        Requests {
            cpu_millis: total.cpu.millis(),
            memory_bytes: total.memory.units(),
            ephemeral_bytes: total.ephemeral_storage.units(),
            pods: 1,
            huge_pages: total.huge_pages.into_iter().map(|(name, amount)| (name, amount.units())).collect(),
        }
    }

    /// The request of a resource: CPU in thousandths of a core, pods as a number, everything else in bytes.
    pub fn get(&self, resource: &str) -> i64 {
        match resource {
            CPU => self.cpu_millis,
            MEMORY => self.memory_bytes,
            EPHEMERAL_STORAGE => self.ephemeral_bytes,
            PODS => self.pods,
            other => self.huge_pages.get(other).copied().unwrap_or(0),
        }
    }

    /// The names of the sizes of huge pages that are requested.
    pub(crate) fn huge_pages(&self) -> impl Iterator<Item = &str> {
        self.huge_pages.keys().map(String::as_str)
    }

    /// Adds requests.
    pub fn add(&mut self, more: &Requests) {
        self.combine(more, i64::saturating_add);
    }

    /// Takes the larger of both requests, for each resource.
    pub fn raise(&mut self, other: &Requests) {
        self.combine(other, i64::max);
    }

    /// These requests minus the others, at least 0 for each resource.
    pub(super) fn without(&self, others: &Requests) -> Requests {
        let mut rest = self.clone();
        rest.combine(others, |own, other| own.saturating_sub(other).max(0));
        rest
    }

    fn combine(&mut self, other: &Requests, by: fn(i64, i64) -> i64) {
        for (own, other) in [
            (&mut self.cpu_millis, other.cpu_millis),
            (&mut self.memory_bytes, other.memory_bytes),
            (&mut self.ephemeral_bytes, other.ephemeral_bytes),
            (&mut self.pods, other.pods),
        ] {
            *own = by(*own, other);
        }
        for (name, other) in &other.huge_pages {
            let own = self.huge_pages.entry(name.clone()).or_default();
            *own = by(*own, *other);
        }
    }
}

/// Requests as exact amounts, so that fractions are rounded up once for each pod.
#[derive(Clone, Debug, Default)]
struct Amounts {
    cpu: Amount,
    memory: Amount,
    ephemeral_storage: Amount,
    huge_pages: BTreeMap<String, Amount>,
}

impl Amounts {
    fn of_containers(pod: &PodObject) -> Amounts {
        let of = |resources: &Option<ResourceRequirements>| {
            Amounts::of_list(resources.as_ref().and_then(|resources| resources.requests.as_ref()))
        };
        let mut sidecars = Amounts::default();
        let mut peak = Amounts::default();
        for container in pod.init_containers() {
            let requested = of(&container.resources);
            if is_sidecar(container) {
                sidecars.add(&requested);
                peak.raise(&sidecars);
            } else {
                let mut initializing = sidecars.clone();
                initializing.add(&requested);
                peak.raise(&initializing);
            }
        }
        let mut total = sidecars;
        for container in pod.containers() {
            total.add(&of(&container.resources));
        }
        total.raise(&peak);
        total
    }

    /// The amounts in a list. Other resources, and quantities that are not valid, do not count.
    fn of_list(list: Option<&BTreeMap<String, Quantity>>) -> Amounts {
        let mut amounts = Amounts::default();
        for (name, quantity) in list.into_iter().flatten() {
            if let (Some(own), Ok(amount)) = (amounts.slot(name), Amount::of(quantity)) {
                *own = amount;
            }
        }
        amounts
    }

    /// Replaces amounts with the pod-level ones. A pod-level limit without a request is the request of a resource that no container
    /// requests (upstream `defaultPodRequests`, `pkg/apis/core/v1/defaults.go`, 1.36). Storage has no pod-level amount.
    fn replace_with_pod_level(&mut self, spec: &PodSpec) {
        let Some(level) = &spec.resources else { return };
        let requests = level.requests.iter().flatten();
        let limits = level
            .limits
            .iter()
            .flatten()
            .filter(|(name, _)| !level.requests.as_ref().is_some_and(|requests| requests.contains_key(*name)));
        for ((name, quantity), is_limit) in requests.map(|it| (it, false)).chain(limits.map(|it| (it, true))) {
            if name == EPHEMERAL_STORAGE {
                continue;
            }
            let (Some(own), Ok(amount)) = (self.slot(name), Amount::of(quantity)) else { continue };
            if !is_limit || *own == Amount::ZERO || name.starts_with(HUGE_PAGES) {
                *own = amount;
            }
        }
    }

    fn slot(&mut self, name: &str) -> Option<&mut Amount> {
        match name {
            CPU => Some(&mut self.cpu),
            MEMORY => Some(&mut self.memory),
            EPHEMERAL_STORAGE => Some(&mut self.ephemeral_storage),
            other if other.starts_with(HUGE_PAGES) => Some(self.huge_pages.entry(other.to_owned()).or_default()),
            _ => None,
        }
    }

    fn add(&mut self, more: &Amounts) {
        self.combine(more, Amount::plus);
    }

    fn raise(&mut self, other: &Amounts) {
        self.combine(other, Amount::max);
    }

    fn combine(&mut self, other: &Amounts, by: fn(Amount, Amount) -> Amount) {
        for (own, other) in [
            (&mut self.cpu, other.cpu),
            (&mut self.memory, other.memory),
            (&mut self.ephemeral_storage, other.ephemeral_storage),
        ] {
            *own = by(*own, other);
        }
        for (name, other) in &other.huge_pages {
            let own = self.huge_pages.entry(name.clone()).or_default();
            *own = by(*own, *other);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::{Value, json};

    use super::*;
    use crate::testing::pod;

    fn of(spec: Value) -> Requests {
        let pod: Arc<PodObject> = pod("p").spec(|own| *own = serde_json::from_value(spec).unwrap()).build();
        Requests::of(&pod)
    }

    fn container(requests: Value) -> Value {
        json!({"name": "a", "resources": {"requests": requests}})
    }

    #[test]
    fn requests_of_an_init_container_include_only_earlier_sidecars() {
        let sidecar =
            |cpu: &str| json!({"name": "s", "restartPolicy": "Always", "resources": {"requests": {"cpu": cpu}}});
        let requests = of(json!({
            "initContainers": [sidecar("100m"), container(json!({"cpu": "500m"})), sidecar("50m")],
            "containers": [container(json!({"cpu": "200m"}))],
        }));
        assert_eq!(requests.get(CPU), 600);
    }

    #[test]
    fn pod_level_requests_replace_those_of_containers_and_overhead_is_added() {
        let containers = json!([
            container(json!({"cpu": "100m", "memory": "1Mi", "ephemeral-storage": "1Gi", "hugepages-2Mi": "4Mi"})),
            container(json!({"cpu": "0.5m", "example.com/gpu": "1"})),
        ]);
        // Rows: pod-level resources; cpu, memory, ephemeral storage, huge pages of 2 MiB.
        let (mi, gi) = (1 << 20, 1 << 30);
        for (level, expected) in [
            (json!({}), [111, mi, gi, 4 * mi]),
            (json!({"requests": {"cpu": "1"}}), [1010, mi, gi, 4 * mi]),
            (json!({"requests": {"hugepages-2Mi": "2Mi"}}), [111, mi, gi, 2 * mi]),
            // A container requests CPU, so that the limit does not count. The limit of huge pages is their request.
            (json!({"limits": {"cpu": "4", "hugepages-2Mi": "8Mi"}}), [111, mi, gi, 8 * mi]),
            (json!({"requests": {"ephemeral-storage": "9Gi"}}), [111, mi, gi, 4 * mi]),
        ] {
            let requests = of(json!({"containers": containers, "resources": level, "overhead": {"cpu": "10m"}}));
            let amounts = [CPU, MEMORY, EPHEMERAL_STORAGE, "hugepages-2Mi"].map(|name| requests.get(name));
            assert_eq!(amounts, expected, "{level}");
        }
        let only_limits =
            json!({"containers": [{"name": "a"}], "resources": {"limits": {"cpu": "2", "hugepages-1Gi": "1Gi"}}});
        assert_eq!((of(only_limits.clone()).get(CPU), of(only_limits).get("hugepages-1Gi")), (2000, gi));
    }

    #[test]
    fn requests_of_pods_add_up_and_do_not_overflow() {
        let mut all = of(json!({"containers": [container(json!({"cpu": "1", "hugepages-2Mi": "2Mi"}))]}));
        all.add(&of(json!({"containers": [container(json!({"cpu": "9E", "hugepages-1Gi": "1Gi"}))]})));
        assert_eq!((all.get(CPU), all.get(PODS)), (i64::MAX, 2));
        assert_eq!(all.huge_pages().collect::<Vec<_>>(), ["hugepages-1Gi", "hugepages-2Mi"]);
    }
}
