//! The resources that a node offers to pods.

use std::collections::BTreeMap;

use super::requests::{CPU, EPHEMERAL_STORAGE, MEMORY, PODS, Requests};
use super::{AdmissionHandler, Admitted, Rejection};
use crate::pod::PodObject;

/// The resources that a node offers to pods (upstream `node.status.allocatable`). As an admission handler, it rejects a pod whose
/// requests exceed what is left.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NodeCapacity {
    /// CPU in thousandths of a core.
    pub cpu_millis: i64,
    /// Memory in bytes.
    pub memory_bytes: i64,
    /// Disk space for writable layers, logs and disk volumes, in bytes.
    pub ephemeral_storage_bytes: i64,
    /// Huge pages in bytes, by resource name, such as `hugepages-2Mi`. The node has none of the sizes that are not listed.
    pub huge_pages: BTreeMap<String, i64>,
    /// The maximum number of pods.
    pub pods: usize,
}

/// A resource that a node lacks for a pod. CPU is in thousandths of a core, pods are a number, and everything else
/// is in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Shortage {
    /// The resource, such as `memory`.
    pub resource: String,
    /// The pod's request.
    pub requested: i64,
    /// The requests of the pods that use the node.
    pub used: i64,
    /// The amount that the node offers to pods.
    pub capacity: i64,
}

impl Shortage {
    /// The amount that other pods would have to free.
    pub fn missing(&self) -> i64 {
        self.requested.saturating_sub(self.capacity.saturating_sub(self.used))
    }
}

impl NodeCapacity {
    /// CPU in thousandths of a core, memory in bytes, and the maximum number of pods. Disk space is unlimited, and there are no
    /// huge pages.
    pub fn new(cpu_millis: i64, memory_bytes: i64, pods: usize) -> Self {
        let huge_pages = BTreeMap::new();
        NodeCapacity { cpu_millis, memory_bytes, ephemeral_storage_bytes: i64::MAX, huge_pages, pods }
    }

    /// Limits the disk space, in bytes.
    #[must_use]
    pub fn ephemeral_storage(mut self, bytes: i64) -> Self {
        self.ephemeral_storage_bytes = bytes;
        self
    }

    /// Adds huge pages of one size. `resource` is a name such as `hugepages-2Mi`.
    #[must_use]
    pub fn huge_pages(mut self, resource: impl Into<String>, bytes: i64) -> Self {
        self.huge_pages.insert(resource.into(), bytes);
        self
    }

    /// The resources that the node has too little of, in the order in which upstream checks them: pods, CPU, memory, ephemeral
    /// storage, then huge pages by name. A resource that the pod does not request is not short.
    pub(super) fn shortages(&self, requested: &Requests, used: &Requests) -> Vec<Shortage> {
        let fixed = [
            (PODS, i64::try_from(self.pods).unwrap_or(i64::MAX)),
            (CPU, self.cpu_millis),
            (MEMORY, self.memory_bytes),
            (EPHEMERAL_STORAGE, self.ephemeral_storage_bytes),
        ];
        let huge_pages = requested.huge_pages().map(|name| (name, self.huge_pages.get(name).copied().unwrap_or(0)));
        let short = |(resource, capacity): (&str, i64)| {
            let (requested, used) = (requested.get(resource), used.get(resource));
            let is_short = requested > 0 && used.saturating_add(requested) > capacity;
            is_short.then(|| Shortage { resource: resource.to_owned(), requested, used, capacity })
        };
        fixed.into_iter().chain(huge_pages).filter_map(short).collect()
    }
}

impl AdmissionHandler for NodeCapacity {
    fn admit(&self, pod: &PodObject, others: &Admitted) -> Result<(), Rejection> {
        let shortages = self.shortages(&Requests::of(pod), &others.used());
        Rejection::short_of(shortages).map_or(Ok(()), Err)
    }
}
