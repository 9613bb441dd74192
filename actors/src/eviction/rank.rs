//! The order in which pods are evicted from a node that lacks a resource, and the messages of the evictions. Pure.

use std::cmp::Reverse;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Container, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use super::limits::PodUsage;
use super::pressure::MetThreshold;
use super::signals::{Pressure, Signal};
use crate::config::pod_resources;
use crate::config::resource_amount::{binary, canonical};
use crate::pod::PodObject;
use crate::ports::{EventAnnotations, ProcessUsage, UsedSpace};
use crate::quantity::Amount;
use crate::texts::evictions::{
    self, MEMORY, OFFENDING_CONTAINERS, OFFENDING_CONTAINERS_USAGE, OFFENDING_POD, OFFENDING_POD_USAGE,
    STARVED_RESOURCE,
};

/// A pod that may be evicted. `usage` is `None` if the runtime does not have the pod, or if the pod cannot be measured.
#[derive(Clone, Debug)]
pub(crate) struct Candidate {
    pub(crate) pod: Arc<PodObject>,
    pub(crate) usage: Option<Usage>,
}

/// A pod's usage of the resource that the node lacks.
#[derive(Clone, Debug)]
pub(crate) enum Usage {
    Disk(Arc<PodUsage>),
    Processes(ProcessUsage),
}

impl Usage {
    /// The pod's usage in the unit of the signal. Only files on the full disk count.
    fn of_pod(&self, pod: &PodObject, signal: Signal, dedicated_image_disk: bool) -> u64 {
        match self {
            Usage::Processes(usage) if signal.pressure() == Pressure::Memory => memory(usage),
            Usage::Processes(usage) => usage.values().map(|container| container.processes).fold(0, u64::saturating_add),
            Usage::Disk(usage) => {
                let used = on_disk(pod, usage, signal, dedicated_image_disk);
                if signal.is_of_inodes() { used.inodes } else { used.bytes }
            }
        }
    }

    /// The usage of one container in bytes. `None` if the usage is unknown, or if the signal does not count bytes.
    fn of_container(&self, name: &str, signal: Signal) -> Option<u64> {
        match self {
            _ if !signal.is_in_bytes() => None,
            Usage::Processes(usage) => usage.get(name).map(|container| container.memory),
            // A container without a known writable layer has not started, or its runtime does not measure it.
            Usage::Disk(usage) => usage.layers.contains_key(name).then(|| usage.of_container(name, true).bytes),
        }
    }
}

/// Sorts the pods, the first one to evict at the front (upstream `rankMemoryPressure`, `rankDiskPressureFunc` and
/// `rankPIDPressure`, kubelet 1.36): pods without a measurement, then pods that use more than they request; then by
/// priority, the lowest first; then by how much they use above their request. If process ids are short, only the priority and
/// the number of processes count, because pods cannot request process ids.
pub(crate) fn rank(candidates: &mut [Candidate], signal: Signal, dedicated_image_disk: bool) {
    candidates.sort_by_cached_key(|candidate| {
        let priority = candidate.pod.spec().priority.unwrap_or(0);
        let used =
            candidate.usage.as_ref().map(|it| i128::from(it.of_pod(&candidate.pod, signal, dedicated_image_disk)));
        if signal.pressure() == Pressure::Pid {
            return (true, true, priority, Reverse(used.unwrap_or(i128::MAX)));
        }
        let Some(used) = used else { return (false, false, priority, Reverse(0)) };
        // A pod cannot request inodes, so each pod is above its request. Upstream nevertheless subtracts the bytes that the pod
        // requests from its number of inodes.
        let request = request(&candidate.pod, if signal.is_in_bytes() { signal } else { Signal::NodeFsAvailable });
        let in_request = if signal.is_in_bytes() { request } else { 0 };
        (true, used <= in_request, priority, Reverse(used - request))
    });
}

/// The pod's files on the full disk.
fn on_disk(pod: &PodObject, usage: &PodUsage, signal: Signal, dedicated_image_disk: bool) -> UsedSpace {
    match (dedicated_image_disk, signal.is_of_images()) {
        (false, _) => usage.total(pod),
        (true, true) => usage.layers(),
        (true, false) => usage.logs() + usage.volumes(pod),
    }
}

/// The working set of all containers.
fn memory(usage: &ProcessUsage) -> u64 {
    usage.values().map(|container| container.memory).fold(0, u64::saturating_add)
}

/// The bytes that a pod requests.
fn request(pod: &PodObject, signal: Signal) -> i128 {
    let requests = pod_resources::of_pod(pod.spec()).requests;
    let quantity = requests.as_ref().and_then(|requests| requests.get(signal.resource()));
    quantity.and_then(|quantity| Amount::of(quantity).ok()).map_or(0, |amount| i128::from(amount.units()))
}

/// The message and the annotations of the event of an eviction because of a threshold. They name the resource that the node
/// lacks, and each container that uses more than it requests (upstream `evictionMessage`, kubelet 1.36). The event of a pod that
/// was not measured has no annotations.
pub(crate) fn cause(pod: &PodObject, usage: Option<&Usage>, met: &MetThreshold) -> (String, EventAnnotations) {
    let (signal, resource) = (met.signal, met.signal.resource());
    let mut message = evictions::node_low(resource, &met.threshold, &met.available);
    let mut annotations = EventAnnotations::new();
    let Some(usage) = usage else { return (message, annotations) };
    if let (Usage::Processes(used), MEMORY) = (usage, resource)
        && let Some(request) = requested(pod.spec().resources.as_ref(), resource)
    {
        let (name, used) = (pod.full_name().name(), binary(memory(used)));
        message += &evictions::larger_pod_consumption(name, &used, &canonical(request), resource);
        annotations.insert(OFFENDING_POD.into(), name.to_owned());
        annotations.insert(OFFENDING_POD_USAGE.into(), used);
    }
    let (mut names, mut amounts) = (Vec::new(), Vec::new());
    for container in pod.init_containers().iter().chain(pod.containers()) {
        let Some(used) = usage.of_container(&container.name, signal) else { continue };
        let (request, text) = container_request(container, resource);
        if Amount::from_units(i64::try_from(used).unwrap_or(i64::MAX)) > request {
            let used = binary(used);
            message += &evictions::larger_consumption(&container.name, &used, &text, resource);
            names.push(container.name.as_str());
            amounts.push(used);
        }
    }
    annotations.insert(OFFENDING_CONTAINERS.into(), names.join(","));
    annotations.insert(OFFENDING_CONTAINERS_USAGE.into(), amounts.join(","));
    annotations.insert(STARVED_RESOURCE.into(), resource.to_owned());
    (message, annotations)
}

/// The container's request and its text.
fn container_request(container: &Container, resource: &str) -> (Amount, String) {
    let resources = container.resources.as_ref();
    // The API server sets a missing request to the limit.
    let request = requested(resources, resource).or_else(|| resources?.limits.as_ref()?.get(resource));
    let amount = request.and_then(|quantity| Some((Amount::of(quantity).ok()?, canonical(quantity))));
    amount.unwrap_or_else(|| (Amount::ZERO, "0".to_owned()))
}

fn requested<'a>(resources: Option<&'a ResourceRequirements>, resource: &str) -> Option<&'a Quantity> {
    resources?.requests.as_ref()?.get(resource)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::json;

    use super::*;
    use crate::ports::{ContainerProcesses, PodDiskUsage};

    const MI: u64 = 1 << 20;

    /// A pod with a volume, a log and a writable layer of these sizes in mebibytes.
    fn candidate(name: &str, priority: i32, request: &str, sizes: Option<[u64; 3]>) -> Candidate {
        let pod = json!({
            "metadata": {"name": name, "namespace": "n", "uid": name},
            "spec": {
                "priority": priority,
                "containers": [{"name": "a", "resources": {"requests": {"ephemeral-storage": request}}}],
                "volumes": [{"name": "v", "emptyDir": {}}],
            },
        });
        let usage = sizes.map(|[volume, log, layer]| {
            let of = |name: &str, size| BTreeMap::from([(name.to_owned(), UsedSpace::new(size * MI, size))]);
            let disk = PodDiskUsage { volumes: of("v", volume), logs: of("a", log) };
            Usage::Disk(Arc::new(PodUsage { disk, layers: of("a", layer) }))
        });
        Candidate { pod: PodObject::new(serde_json::from_value(pod).unwrap()).unwrap(), usage }
    }

    fn order(candidates: &[Candidate], signal: Signal, dedicated: bool) -> String {
        let mut candidates = candidates.to_vec();
        rank(&mut candidates, signal, dedicated);
        candidates.iter().map(|it| it.pod.full_name().name()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn pods_above_their_request_go_first_then_by_priority_then_by_usage() {
        use Signal::{ImageFsAvailable, NodeFsAvailable, NodeFsInodesFree};
        let pods = [
            candidate("within", 0, "100Mi", Some([50, 10, 10])),
            candidate("important", 100, "0", Some([900, 0, 0])),
            candidate("little", 0, "0", Some([1, 0, 0])),
            candidate("much", 0, "10Mi", Some([15, 5, 5])),
            candidate("layer", 0, "0", Some([0, 0, 14])),
            candidate("unmeasured", 1000, "1Gi", None),
        ];
        assert_eq!(order(&pods, NodeFsAvailable, false), "unmeasured much layer little important within");
        assert_eq!(order(&pods, ImageFsAvailable, false), "unmeasured much layer little important within");
        // Only volumes and logs are on the disk of the node.
        assert_eq!(order(&pods, NodeFsAvailable, true), "unmeasured much little important layer within");
        // Only writable layers are on the disk of images.
        assert_eq!(order(&pods, ImageFsAvailable, true), "unmeasured layer little much within important");
        let files = [candidate("few", 0, "0", Some([1, 0, 0])), candidate("many", 0, "0", Some([5, 0, 0]))];
        assert_eq!(order(&files, NodeFsInodesFree, false), "many few");
    }

    #[test]
    fn message_names_the_containers_above_their_request() {
        let met = |signal| MetThreshold { signal, threshold: "100Mi".into(), available: "1Mi".into(), is_soft: false };
        let low = "The node was low on resource: ephemeral-storage. Threshold quantity: 100Mi, available: 1Mi. ";
        let above = candidate("p", 0, "1024Ki", Some([50, 1, 2]));
        let usage = above.usage.as_ref();
        let (message, annotations) = cause(&above.pod, usage, &met(Signal::NodeFsAvailable));
        assert_eq!(
            message,
            format!("{low}Container a was using 3Mi, request is 1Mi, has larger consumption of ephemeral-storage. ")
        );
        let texts = |annotations: &EventAnnotations| {
            annotations.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>()
        };
        assert_eq!(
            texts(&annotations),
            ["offending_containers=a", "offending_containers_usage=3Mi", "starved_resource=ephemeral-storage"]
        );
        let (message, annotations) = cause(&above.pod, usage, &met(Signal::NodeFsInodesFree));
        assert_eq!(message, "The node was low on resource: inodes. Threshold quantity: 100Mi, available: 1Mi. ");
        assert_eq!(
            texts(&annotations),
            ["offending_containers=", "offending_containers_usage=", "starved_resource=inodes"]
        );
        let unmeasured = cause(&above.pod, None, &met(Signal::NodeFsAvailable));
        assert_eq!(unmeasured, (low.to_owned(), EventAnnotations::new()));
        let within = candidate("p", 0, "3Mi", Some([50, 1, 2]));
        assert_eq!(cause(&within.pod, within.usage.as_ref(), &met(Signal::NodeFsAvailable)).0, low);
    }

    /// A candidate with this memory request. `usage` is its working set in mebibytes and its number of processes.
    fn runs(name: &str, priority: i32, request: &str, usage: Option<(u64, u64)>) -> Candidate {
        let pod = json!({
            "metadata": {"name": name, "namespace": "n", "uid": name},
            "spec": {
                "priority": priority,
                "containers": [{"name": "a", "resources": {"requests": {"memory": request}}}],
            },
        });
        let usage = usage.map(|(memory, processes)| {
            let container = ContainerProcesses { memory: memory * MI, processes };
            Usage::Processes([("a".to_owned(), container)].into())
        });
        Candidate { pod: PodObject::new(serde_json::from_value(pod).unwrap()).unwrap(), usage }
    }

    #[test]
    fn short_memory_evicts_the_pod_that_is_most_above_its_request_and_short_pids_the_least_important() {
        let pods = [
            runs("within", 0, "100Mi", Some((90, 500))),
            runs("important", 100, "0", Some((900, 9))),
            runs("above", 0, "100Mi", Some((120, 2))),
            runs("most", 0, "0", Some((30, 1))),
            runs("unmeasured", 1000, "1Gi", None),
        ];
        assert_eq!(order(&pods, Signal::MemoryAvailable, false), "unmeasured most above important within");
        assert_eq!(order(&pods, Signal::PidAvailable, false), "within above most important unmeasured");
    }

    #[test]
    fn message_about_memory_names_the_containers_and_a_pod_with_a_request_of_its_own() {
        let met = |signal| MetThreshold { signal, threshold: "1Gi".into(), available: "9Mi".into(), is_soft: false };
        let low = "The node was low on resource: memory. Threshold quantity: 1Gi, available: 9Mi. ";
        let container = "Container a was using 3Mi, request is 1Mi, has larger consumption of memory. ";
        let above = runs("p", 0, "1Mi", Some((3, 2)));
        let (message, annotations) = cause(&above.pod, above.usage.as_ref(), &met(Signal::MemoryAvailable));
        assert_eq!(message, format!("{low}{container}"));
        assert_eq!(annotations["offending_containers_usage"], "3Mi");
        assert!(!annotations.contains_key("offending_pod"));
        let mut pod = above.pod.pod().clone();
        let requests = json!({"requests": {"memory": "2Mi"}});
        pod.spec.as_mut().unwrap().resources = Some(serde_json::from_value(requests).unwrap());
        let pod = PodObject::new(pod).unwrap();
        let (message, annotations) = cause(&pod, above.usage.as_ref(), &met(Signal::MemoryAvailable));
        let whole = "Pod p was using 3Mi, request is 2Mi, has larger consumption of memory. ";
        assert_eq!(message, format!("{low}{whole}{container}"));
        assert_eq!((&*annotations["offending_pod"], &*annotations["offending_pod_usage"]), ("p", "3Mi"));
        let (message, annotations) = cause(&above.pod, above.usage.as_ref(), &met(Signal::PidAvailable));
        assert_eq!(message, "The node was low on resource: pids. Threshold quantity: 1Gi, available: 9Mi. ");
        assert_eq!(annotations["starved_resource"], "pids");
    }
}
