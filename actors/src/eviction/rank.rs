//! The order in which pods are evicted from a node whose disk is full, and their message. Pure.

use std::cmp::Reverse;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Container;

use super::limits::PodUsage;
use super::thresholds::{DiskSignal, MetThreshold};
use crate::config::pod_resources;
use crate::config::quantity::Amount;
use crate::config::resource_amount::{binary, canonical};
use crate::pod::PodObject;
use crate::ports::{EventAnnotations, UsedSpace};
use crate::texts::evictions::{
    self, EPHEMERAL_STORAGE, OFFENDING_CONTAINERS, OFFENDING_CONTAINERS_USAGE, STARVED_RESOURCE,
};

/// A pod that may be evicted. `usage` is `None` if the pod could not be measured.
#[derive(Clone, Debug)]
pub(crate) struct Candidate {
    pub(crate) pod: Arc<PodObject>,
    pub(crate) usage: Option<Arc<PodUsage>>,
}

/// Sorts the pods, the first one to evict at the front (upstream `rankDiskPressureFunc`, kubelet 1.36): pods that could not be
/// measured, then pods that use more than they request; then by priority, the lowest first; then by how much they use above
/// their request.
pub(crate) fn rank(candidates: &mut [Candidate], signal: DiskSignal, dedicated_image_disk: bool) {
    candidates.sort_by_cached_key(|candidate| {
        let priority = candidate.pod.spec().priority.unwrap_or(0);
        let request = request(&candidate.pod);
        let Some(usage) = &candidate.usage else { return (false, false, priority, Reverse(0)) };
        let used = relevant(&candidate.pod, usage, signal, dedicated_image_disk);
        // Nothing can request inodes, so every file is above the request.
        let (used, in_request) =
            if signal.is_of_inodes() { (i128::from(used.inodes), 0) } else { (i128::from(used.bytes), request) };
        // Upstream subtracts the bytes that a pod requests from its inodes too.
        (true, used <= in_request, priority, Reverse(used - request))
    });
}

/// What of a pod's files is on the disk that is full.
fn relevant(pod: &PodObject, usage: &PodUsage, signal: DiskSignal, dedicated_image_disk: bool) -> UsedSpace {
    match (dedicated_image_disk, signal.is_of_images()) {
        (false, _) => usage.total(pod),
        (true, true) => usage.layers(),
        (true, false) => usage.logs() + usage.volumes(pod),
    }
}

/// The bytes of ephemeral storage that a pod requests.
fn request(pod: &PodObject) -> i128 {
    let requests = pod_resources::of_pod(pod.spec()).requests;
    let quantity = requests.as_ref().and_then(|requests| requests.get(EPHEMERAL_STORAGE));
    quantity.and_then(|quantity| Amount::of(quantity).ok()).map_or(0, |amount| i128::from(amount.units()))
}

/// Why a pod is evicted because of a threshold: what the node lacks, and each container that uses more than it requests. The
/// annotations of the event name these containers (upstream `evictionMessage`, kubelet 1.36). A pod that was not measured has
/// none.
pub(crate) fn cause(pod: &PodObject, usage: Option<&PodUsage>, met: &MetThreshold) -> (String, EventAnnotations) {
    let resource = met.signal.resource();
    let mut message = evictions::node_low(resource, &met.threshold, &met.available);
    let Some(usage) = usage else { return (message, EventAnnotations::new()) };
    let (mut names, mut amounts) = (Vec::new(), Vec::new());
    let containers = pod.init_containers().iter().chain(pod.containers()).filter(|_| !met.signal.is_of_inodes());
    // A container without a known writable layer has not started, or its runtime does not measure it.
    for container in containers.filter(|container| usage.layers.contains_key(&container.name)) {
        let used = usage.of_container(&container.name, true).bytes;
        let (request, name) = (container_request(container), &container.name);
        if Amount::from_units(i64::try_from(used).unwrap_or(i64::MAX)) > request.0 {
            let used = binary(used);
            message += &evictions::larger_consumption(name, &used, &request.1, resource);
            names.push(name.as_str());
            amounts.push(used);
        }
    }
    let annotations = [
        (OFFENDING_CONTAINERS, names.join(",")),
        (OFFENDING_CONTAINERS_USAGE, amounts.join(",")),
        (STARVED_RESOURCE, resource.to_owned()),
    ];
    (message, annotations.map(|(key, value)| (key.into(), value)).into())
}

/// The container's request and its text.
fn container_request(container: &Container) -> (Amount, String) {
    let resources = container.resources.as_ref();
    let requests = resources.and_then(|resources| resources.requests.as_ref()?.get(EPHEMERAL_STORAGE));
    // The API server sets a missing request to the limit.
    let request =
        requests.or_else(|| resources.and_then(|resources| resources.limits.as_ref()?.get(EPHEMERAL_STORAGE)));
    let amount = request.and_then(|quantity| Some((Amount::of(quantity).ok()?, canonical(quantity))));
    amount.unwrap_or_else(|| (Amount::ZERO, "0".to_owned()))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::json;

    use super::*;
    use crate::ports::PodDiskUsage;

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
            Arc::new(PodUsage { disk, layers: of("a", layer) })
        });
        Candidate { pod: PodObject::new(serde_json::from_value(pod).unwrap()).unwrap(), usage }
    }

    fn order(candidates: &[Candidate], signal: DiskSignal, dedicated: bool) -> String {
        let mut candidates = candidates.to_vec();
        rank(&mut candidates, signal, dedicated);
        candidates.iter().map(|it| it.pod.full_name().name()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn pods_above_their_request_go_first_then_by_priority_then_by_usage() {
        use DiskSignal::{ImageFsAvailable, NodeFsAvailable, NodeFsInodesFree};
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
        let met = |signal| MetThreshold { signal, threshold: "100Mi".into(), available: "1Mi".into() };
        let low = "The node was low on resource: ephemeral-storage. Threshold quantity: 100Mi, available: 1Mi. ";
        let above = candidate("p", 0, "1024Ki", Some([50, 1, 2]));
        let usage = above.usage.as_deref();
        let (message, annotations) = cause(&above.pod, usage, &met(DiskSignal::NodeFsAvailable));
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
        let (message, annotations) = cause(&above.pod, usage, &met(DiskSignal::NodeFsInodesFree));
        assert_eq!(message, "The node was low on resource: inodes. Threshold quantity: 100Mi, available: 1Mi. ");
        assert_eq!(
            texts(&annotations),
            ["offending_containers=", "offending_containers_usage=", "starved_resource=inodes"]
        );
        let unmeasured = cause(&above.pod, None, &met(DiskSignal::NodeFsAvailable));
        assert_eq!(unmeasured, (low.to_owned(), EventAnnotations::new()));
        let within = candidate("p", 0, "3Mi", Some([50, 1, 2]));
        assert_eq!(cause(&within.pod, within.usage.as_deref(), &met(DiskSignal::NodeFsAvailable)).0, low);
    }
}
