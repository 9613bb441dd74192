//! A pod's total requests and limits, and its quality of service class.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, PodSpec, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use super::resource_amount::ResourceAmount;
use crate::pod::{PodObject, is_sidecar};
use crate::quantity::Amount;

type ResourceQuantities = BTreeMap<String, Quantity>;
type ResourceAmounts = BTreeMap<String, ResourceAmount>;

/// `Guaranteed`, `Burstable` or `BestEffort`: the API server's decision, else computed from the spec (the kubelet's
/// `qos.GetPodQOS`).
pub fn qos_class(pod: &PodObject) -> String {
    if let Some(class) = pod.status().and_then(|status| status.qos_class.as_deref()).filter(|class| !class.is_empty()) {
        return class.to_owned();
    }
    class_of(pod.spec()).to_owned()
}

/// The QoS class that follows from the resources of a spec.
pub(crate) fn class_of(spec: &PodSpec) -> &'static str {
    let containers = || spec.containers.iter().chain(spec.init_containers.iter().flatten());
    let all: Vec<&ResourceRequirements> = match &spec.resources {
        Some(pod) if pod.requests.is_some() || pod.limits.is_some() => vec![pod],
        _ => containers().filter_map(|container| container.resources.as_ref()).collect(),
    };
    let none = ResourceRequirements::default();
    let bounded = |resources: &ResourceRequirements| {
        ["cpu", "memory"].iter().all(|name| {
            let limit = positive(resources.limits.as_ref(), name);
            let request = positive(resources.requests.as_ref(), name).or(limit);
            matches!((limit, request), (Some(limit), Some(request)) if limit.same(request))
        })
    };
    let asks = |resources: &ResourceRequirements| {
        ["cpu", "memory"].iter().any(|name| {
            positive(resources.limits.as_ref(), name).or(positive(resources.requests.as_ref(), name)).is_some()
        })
    };
    let whole_pod = spec.resources.as_ref().is_some_and(|pod| pod.requests.is_some() || pod.limits.is_some());
    if !all.iter().any(|resources| asks(resources)) {
        "BestEffort"
    } else if (whole_pod && all.iter().all(|resources| bounded(resources)))
        || (!whole_pod && containers().all(|container| bounded(container.resources.as_ref().unwrap_or(&none))))
    {
        "Guaranteed"
    } else {
        "Burstable"
    }
}

fn positive(quantities: Option<&ResourceQuantities>, name: &str) -> Option<ResourceAmount> {
    ResourceAmount::parse(quantities?.get(name)?).filter(|amount| !amount.is_zero())
}

/// The requests and limits of the whole pod: those of its containers plus its overhead.
pub fn of_pod(spec: &PodSpec) -> ResourceRequirements {
    let [mut requests, mut limits] = whole(spec);
    // The overhead is added to every request, but only to limits that exist.
    let mut overhead = amounts(spec.overhead.as_ref());
    add(&mut requests, overhead.clone());
    overhead.retain(|name, _| limits.get(name).is_some_and(|limit| !limit.is_zero()));
    add(&mut limits, overhead);
    requirements([requests, limits])
}

/// The requests and limits of the pod without its overhead. Pod-level values in the spec replace those of the
/// containers (KEP-2837).
pub fn resources_without_overhead(spec: &PodSpec) -> ResourceRequirements {
    requirements(whole(spec))
}

/// The requests and limits of the pod's containers: the sum of the containers that run together or, if larger, the
/// demand during initialization.
pub(crate) fn resources_of_containers(spec: &PodSpec) -> ResourceRequirements {
    requirements([total(spec, requested), total(spec, limited)])
}

/// The requests and limits of a whole pod, including its overhead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PodBounds {
    /// The CPU request, in cores.
    pub cpu_request: Amount,
    /// The CPU limit, in cores.
    pub cpu_limit: Option<Amount>,
    /// The memory limit, in bytes.
    pub memory_limit: Option<Amount>,
}

/// The values for the pod's cgroup. A resource has a limit if every container has one, or if the spec has a pod-level
/// limit (the kubelet's `cm.ResourceConfigForPod`, 1.36; KEP-2837).
pub fn pod_bounds(spec: &PodSpec) -> PodBounds {
    let of_pod = of_pod(spec);
    let every_container = |name: &str| {
        let mut all = spec.containers.iter().chain(spec.init_containers.iter().flatten());
        all.all(|one| one.resources.as_ref().is_some_and(|own| positive(own.limits.as_ref(), name).is_some()))
    };
    let whole = spec.resources.as_ref().and_then(|whole| whole.limits.as_ref());
    let limit = |name: &str| {
        let bound = positive(whole, name).is_some() || every_container(name);
        positive(of_pod.limits.as_ref(), name).filter(|_| bound).map(ResourceAmount::amount)
    };
    PodBounds {
        cpu_request: positive(of_pod.requests.as_ref(), "cpu").map_or(Amount::ZERO, ResourceAmount::amount),
        cpu_limit: limit("cpu"),
        memory_limit: limit("memory"),
    }
}

fn whole(spec: &PodSpec) -> [ResourceAmounts; 2] {
    [requested, limited].map(|of| {
        let mut totals = total(spec, of);
        totals.extend(spec.resources.as_ref().map(of).unwrap_or_default());
        totals
    })
}

fn requirements([requests, limits]: [ResourceAmounts; 2]) -> ResourceRequirements {
    ResourceRequirements { claims: None, limits: quantities(limits), requests: quantities(requests) }
}

/// The request of a resource; the limit, if there is only a limit.
fn requested(resources: &ResourceRequirements) -> ResourceAmounts {
    let mut requests = amounts(resources.requests.as_ref());
    for (name, limit) in limited(resources) {
        requests.entry(name).or_insert(limit);
    }
    requests
}

fn limited(resources: &ResourceRequirements) -> ResourceAmounts {
    amounts(resources.limits.as_ref())
}

fn total(spec: &PodSpec, of: fn(&ResourceRequirements) -> ResourceAmounts) -> ResourceAmounts {
    let of_container = |container: &Container| container.resources.as_ref().map(of).unwrap_or_default();
    let mut side_by_side = ResourceAmounts::new();
    for container in &spec.containers {
        add(&mut side_by_side, of_container(container));
    }
    let mut sidecars = ResourceAmounts::new();
    let mut initialising = ResourceAmounts::new();
    for container in spec.init_containers.iter().flatten() {
        let own = of_container(container);
        let peak = if is_sidecar(container) {
            add(&mut side_by_side, own.clone());
            add(&mut sidecars, own);
            sidecars.clone()
        } else {
            let mut peak = sidecars.clone();
            add(&mut peak, own);
            peak
        };
        raise(&mut initialising, peak);
    }
    raise(&mut side_by_side, initialising);
    side_by_side
}

fn amounts(quantities: Option<&ResourceQuantities>) -> ResourceAmounts {
    quantities.into_iter().flatten().filter_map(|(name, q)| Some((name.clone(), ResourceAmount::parse(q)?))).collect()
}

fn quantities(amounts: ResourceAmounts) -> Option<ResourceQuantities> {
    let all: ResourceQuantities = amounts.into_iter().map(|(name, amount)| (name, amount.to_quantity())).collect();
    (!all.is_empty()).then_some(all)
}

fn add(to: &mut ResourceAmounts, more: ResourceAmounts) {
    for (name, amount) in more {
        to.entry(name).and_modify(|have| *have = have.plus(amount)).or_insert(amount);
    }
}

fn raise(to: &mut ResourceAmounts, other: ResourceAmounts) {
    for (name, amount) in other {
        to.entry(name).and_modify(|have| *have = have.max(amount)).or_insert(amount);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(json: serde_json::Value) -> PodSpec {
        serde_json::from_value(json).unwrap()
    }

    fn container(requests: serde_json::Value, limits: serde_json::Value) -> serde_json::Value {
        serde_json::json!({"name": "a", "resources": {"requests": requests, "limits": limits}})
    }

    #[test]
    fn the_class_follows_from_requests_and_limits() {
        use serde_json::json;
        let full = container(json!({"cpu": "1", "memory": "1Gi"}), json!({"cpu": "1000m", "memory": "1024Mi"}));
        let limits_only = container(json!({}), json!({"cpu": "1", "memory": "1Gi"}));
        let cpu = container(json!({"cpu": "1"}), json!({}));
        let gpu = container(json!({"example.com/gpu": "1"}), json!({"example.com/gpu": "1"}));
        let bare = json!({"name": "b"});
        for (containers, class) in [
            (json!([full]), "Guaranteed"),
            (json!([limits_only]), "Guaranteed"),
            (json!([full, bare]), "Burstable"),
            (json!([cpu]), "Burstable"),
            (json!([gpu]), "BestEffort"),
            (json!([bare]), "BestEffort"),
        ] {
            assert_eq!(class_of(&spec(json!({"containers": containers}))), class, "{containers}");
        }
    }

    #[test]
    fn a_pods_requests_are_the_sum_or_the_peak_of_its_start() {
        let spec = spec(serde_json::json!({
            "overhead": {"cpu": "10m"},
            "containers": [container(serde_json::json!({"cpu": "100m", "memory": "64Mi"}), serde_json::json!({}))],
            "initContainers": [
                {"name": "s", "restartPolicy": "Always", "resources": {"requests": {"cpu": "100m"}}},
                {"name": "i", "resources": {"requests": {"cpu": "1", "memory": "1Mi"}}},
            ],
        }));
        let total = of_pod(&spec);
        let requests = total.requests.unwrap();
        assert_eq!(
            requests["cpu"].0, "1110m",
            "the init container and the sidecar request more than the regular containers"
        );
        assert_eq!(requests["memory"].0, "64Mi");
        assert_eq!(total.limits, None);
    }
}
