//! The limits on a pod's local storage, and the first limit that the pod exceeds. Pure.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, Volume};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use crate::config::pod_resources;
use crate::config::resource_amount::canonical;
use crate::pod::{PodObject, is_sidecar};
use crate::ports::{PodDiskUsage, UsedSpace};
use crate::quantity::Amount;
use crate::texts::evictions::{self, EPHEMERAL_STORAGE};

/// The disk space that a pod uses, as it was measured last.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodUsage {
    /// The emptyDirs and the logs.
    pub disk: PodDiskUsage,
    /// The writable layers by container name. A container whose layer is not known is absent.
    pub layers: BTreeMap<String, UsedSpace>,
}

impl PodUsage {
    /// The disk space of a container's log and, if `layer` is set, of its writable layer.
    pub(crate) fn of_container(&self, name: &str, layer: bool) -> UsedSpace {
        let layer = self.layers.get(name).copied().filter(|_| layer).unwrap_or_default();
        layer + self.disk.logs.get(name).copied().unwrap_or_default()
    }

    /// The disk space of the emptyDirs that are on disk.
    pub(crate) fn volumes(&self, pod: &PodObject) -> UsedSpace {
        let on_disk = pod.spec().volumes.iter().flatten().filter(|volume| is_on_disk(volume));
        on_disk.filter_map(|volume| self.disk.volumes.get(&volume.name).copied()).sum()
    }

    /// The disk space of all logs.
    pub(crate) fn logs(&self) -> UsedSpace {
        self.disk.logs.values().copied().sum()
    }

    /// The disk space of all writable layers that are known.
    pub(crate) fn layers(&self) -> UsedSpace {
        self.layers.values().copied().sum()
    }

    /// The disk space that counts as the pod's ephemeral storage (upstream `calcEphemeralStorage`, kubelet 1.36).
    pub(crate) fn total(&self, pod: &PodObject) -> UsedSpace {
        self.volumes(pod) + self.logs() + self.layers()
    }
}

/// Whether a volume is an emptyDir that counts as ephemeral storage (upstream `IsLocalEphemeralVolume`, kubelet 1.36).
fn is_on_disk(volume: &Volume) -> bool {
    volume.empty_dir.as_ref().is_some_and(|source| source.medium.as_deref().unwrap_or_default().is_empty())
}

/// A limit with the text that the pod's message has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Limit {
    pub(crate) amount: Amount,
    pub(crate) text: String,
}

impl Limit {
    fn of(quantity: &Quantity) -> Option<Self> {
        Some(Limit { amount: Amount::of(quantity).ok()?, text: canonical(quantity) })
    }

    pub(crate) fn is_exceeded_by(&self, used: UsedSpace) -> bool {
        Amount::from_units(i64::try_from(used.bytes).unwrap_or(i64::MAX)) > self.amount
    }
}

/// The limits on a pod's local storage.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct StorageLimits {
    /// The emptyDirs with a `sizeLimit`, in spec order.
    pub(crate) volumes: Vec<(String, Limit)>,
    /// The sum of the containers' limits.
    pub(crate) pod: Option<Limit>,
    /// The regular containers and sidecars with a limit, in spec order.
    pub(crate) containers: Vec<(String, Limit)>,
}

/// A limit that a pod exceeds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exceeded<'a> {
    Volume(&'a str, &'a Limit),
    Pod(&'a Limit),
    Container(&'a str, &'a Limit),
}

impl StorageLimits {
    /// Whether a pod may have limits. The evictor calls this for every pod, so it only reads the spec.
    pub(crate) fn may_be_set(pod: &PodObject) -> bool {
        let has_size = |volume: &Volume| volume.empty_dir.as_ref().is_some_and(|source| source.size_limit.is_some());
        let has_limit = |container: &Container| {
            let limits = container.resources.as_ref().and_then(|resources| resources.limits.as_ref());
            limits.is_some_and(|limits| limits.contains_key(EPHEMERAL_STORAGE))
        };
        let spec = pod.spec();
        let of_pod = spec.resources.as_ref().and_then(|resources| resources.limits.as_ref());
        spec.volumes.iter().flatten().any(has_size)
            || pod.init_containers().iter().chain(pod.containers()).any(has_limit)
            || of_pod.is_some_and(|limits| limits.contains_key(EPHEMERAL_STORAGE))
    }

    /// The limits of a pod. `None` if it has none.
    pub(crate) fn of(pod: &PodObject) -> Option<Self> {
        if !StorageLimits::may_be_set(pod) {
            return None;
        }
        let volume = |volume: &Volume| {
            let limit = Limit::of(volume.empty_dir.as_ref()?.size_limit.as_ref()?)?;
            (limit.amount > Amount::ZERO).then(|| (volume.name.clone(), limit))
        };
        let container = |container: &Container| {
            let limit = Limit::of(container.resources.as_ref()?.limits.as_ref()?.get(EPHEMERAL_STORAGE)?)?;
            (limit.amount != Amount::ZERO).then(|| (container.name.clone(), limit))
        };
        let of_pod = pod_resources::of_pod(pod.spec()).limits;
        let sidecars = pod.init_containers().iter().filter(|container| is_sidecar(container));
        let limits = StorageLimits {
            volumes: pod.spec().volumes.iter().flatten().filter_map(volume).collect(),
            pod: of_pod.as_ref().and_then(|limits| Limit::of(limits.get(EPHEMERAL_STORAGE)?)),
            containers: sidecars.chain(pod.containers()).filter_map(container).collect(),
        };
        (limits != StorageLimits::default()).then_some(limits)
    }

    /// The first limit that the pod exceeds, in the order of upstream `localStorageEviction` (kubelet 1.36). On a node whose
    /// writable layers are on the disk of images, they do not count for the limit of their container, as upstream.
    pub(crate) fn exceeded(
        &self,
        pod: &PodObject,
        usage: &PodUsage,
        dedicated_image_disk: bool,
    ) -> Option<Exceeded<'_>> {
        let volume = self
            .volumes
            .iter()
            .find(|(name, limit)| usage.disk.volumes.get(name).is_some_and(|used| limit.is_exceeded_by(*used)));
        if let Some((name, limit)) = volume {
            return Some(Exceeded::Volume(name, limit));
        }
        if let Some(limit) = self.pod.as_ref().filter(|limit| limit.is_exceeded_by(usage.total(pod))) {
            return Some(Exceeded::Pod(limit));
        }
        let is_over =
            |(name, limit): &&(String, Limit)| limit.is_exceeded_by(usage.of_container(name, !dedicated_image_disk));
        self.containers.iter().find(is_over).map(|(name, limit)| Exceeded::Container(name, limit))
    }
}

impl Exceeded<'_> {
    /// The message in the status of the evicted pod.
    pub(crate) fn message(self) -> String {
        match self {
            Exceeded::Volume(name, limit) => evictions::empty_dir_limit(name, &limit.text),
            Exceeded::Pod(limit) => evictions::pod_limit(&limit.text),
            Exceeded::Container(name, limit) => evictions::container_limit(name, &limit.text),
        }
    }
}

#[cfg(test)]
mod tests;
