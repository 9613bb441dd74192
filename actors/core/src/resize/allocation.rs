//! The resources that the node has allocated to a pod.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Container, ContainerStatus, PodSpec, PodStatus, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use serde::{Deserialize, Serialize};

use super::decide::amount;
use crate::config::pod_resources::{class_of, pod_bounds, resources_of_containers};
use crate::pod::{ContainerKind, PodObject};
use crate::ports::CgroupLimits;
use crate::quantity::Amount;

/// The resources that can be resized.
pub(super) const RESIZABLE: [&str; 2] = ["cpu", "memory"];

/// The resources of the containers that can be resized, by container name, and those of the pod as a whole.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Allocation {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pod: Option<ResourceRequirements>,
    containers: BTreeMap<String, ResourceRequirements>,
}

/// A container that can be resized: a regular or an init container (upstream `IsResizableContainer` with the feature
/// `InPlacePodVerticalScalingInitContainers`, kubelet 1.36).
#[derive(Clone, Copy, Debug)]
pub(super) struct Resizable<'a> {
    pub(super) kind: ContainerKind,
    /// The index in the list of the spec.
    pub(super) index: usize,
    pub(super) container: &'a Container,
}

/// The containers of a pod that can be resized.
pub(super) fn resizable(pod: &PodObject) -> impl Iterator<Item = Resizable<'_>> {
    let of = |kind| move |(index, container)| Resizable { kind, index, container };
    let (regular, init) = (pod.containers().iter().enumerate(), pod.init_containers().iter().enumerate());
    regular.map(of(ContainerKind::Regular)).chain(init.map(of(ContainerKind::Init)))
}

impl Allocation {
    /// The resources in the spec of a pod.
    pub fn of(pod: &PodObject) -> Self {
        let of = |Resizable { container, .. }: Resizable<'_>| {
            (container.name.clone(), container.resources.clone().unwrap_or_default())
        };
        Allocation { pod: pod.spec().resources.clone(), containers: resizable(pod).map(of).collect() }
    }

    /// The resources that the status of a pod reports as allocated. An agent uses them if it has no record of the pod: an older agent or a
    /// kubelet started the pod, or the record was damaged.
    ///
    /// A status reports nothing for a container that has not been created. Such a container has the resources of the spec. A container also
    /// reports a limit that it inherits from its pod, so an amount that the spec does not have for the container is left out.
    ///
    /// While a resize is in progress, a status has the allocated requests and the limits in use. A limit below its request is raised to it,
    /// because no allocation has such a limit. A container runtime causes no such limit: containerd and CRI-O report the limits that were
    /// requested, not what the kernel makes of them, which rounds a memory limit down to whole pages.
    ///
    /// `None` if nothing is reported, if the pod as a whole would have less than its containers, or if the pod would have another class,
    /// which no resize changes: then nobody knows what was allocated. The same holds for a request of the pod as a whole above its limit if a
    /// container is not reported, because the limit may be the sum of the containers.
    pub fn of_status(pod: &Arc<PodObject>) -> Option<Self> {
        let status = pod.status()?;
        let statuses = [&status.container_statuses, &status.init_container_statuses];
        let find = |name: &str| statuses.into_iter().flatten().flatten().find(|status| status.name == name);
        let of = |Resizable { container, .. }: Resizable<'_>| {
            let ContainerStatus { name, allocated_resources, resources, .. } = find(&container.name)?;
            let (own, actual) = (container.resources.clone().unwrap_or_default(), resources.as_ref()?);
            // Kubelets before 1.36 do not report `allocatedResources`.
            let requests = allocated_resources.as_ref().or(actual.requests.as_ref());
            let resources = ResourceRequirements {
                claims: None,
                limits: own_amounts(&own.limits, actual.limits.as_ref()),
                requests: own_amounts(&own.requests, requests),
            };
            Some((name.clone(), resources))
        };
        let containers: BTreeMap<_, _> = resizable(pod).filter_map(of).collect();
        if containers.is_empty() {
            return None;
        }
        let all_reported = resizable(pod).all(|it| containers.contains_key(&it.container.name));
        let mut allocation = Allocation { pod: pod.spec().resources.clone(), containers };
        allocation.pod = whole_of_status(allocation.apply(pod).spec(), all_reported, status);
        // Not before: the status has the sum of the limits in use.
        let whole = allocation.pod.as_mut().filter(|_| all_reported);
        allocation.containers.values_mut().chain(whole).for_each(raise_limits);
        let allocated = allocation.apply(pod);
        let spec = allocated.spec();
        let is_possible =
            whole_is_within_limits(spec) && whole_suffices(spec) && class_of(spec) == class_of(pod.spec());
        is_possible.then_some(allocation)
    }

    /// The pod with these resources. The same object if it has them already.
    pub fn apply(&self, pod: &Arc<PodObject>) -> Arc<PodObject> {
        let differs = |Resizable { container, .. }: Resizable<'_>| {
            let own = self.containers.get(&container.name);
            own.is_some_and(|own| !same(Some(own), container.resources.as_ref()))
        };
        if same(self.pod.as_ref(), pod.spec().resources.as_ref()) && !resizable(pod).any(differs) {
            return pod.clone();
        }
        let mut spec: PodSpec = pod.spec().clone();
        spec.resources = self.pod.clone();
        for container in spec.containers.iter_mut().chain(spec.init_containers.iter_mut().flatten()) {
            let Some(own) = self.containers.get(&container.name) else { continue };
            let claims = container.resources.as_ref().and_then(|desired| desired.claims.clone());
            container.resources = Some(ResourceRequirements { claims, ..own.clone() });
        }
        pod.with_spec(spec)
    }
}

/// The amounts of `reported` whose names `own` has.
fn own_amounts(
    own: &Option<BTreeMap<String, Quantity>>,
    reported: Option<&BTreeMap<String, Quantity>>,
) -> Option<BTreeMap<String, Quantity>> {
    let own = own.as_ref()?;
    let amounts = reported?.iter().filter(|(name, _)| own.contains_key(*name));
    let amounts: BTreeMap<_, _> = amounts.map(|(name, quantity)| (name.clone(), quantity.clone())).collect();
    (!amounts.is_empty()).then_some(amounts)
}

/// The resources of the pod as a whole that its status reports as allocated. `spec` has the allocated resources of its containers, if
/// `all_reported`, and the desired ones of the pod as a whole.
///
/// For an amount that is not allocated to the pod as a whole, the status has the sum of the containers. So a desired limit is only desired
/// if the status has that sum instead. A request that equals the sum has the same effect as none.
fn whole_of_status(spec: &PodSpec, all_reported: bool, status: &PodStatus) -> Option<ResourceRequirements> {
    type List = Option<BTreeMap<String, Quantity>>;
    let desired = spec.resources.as_ref()?;
    // The amounts of the status contain the overhead of the pod.
    if spec.overhead.as_ref().is_some_and(|overhead| !overhead.is_empty()) {
        return Some(desired.clone());
    }
    let reported = ResourceRequirements {
        claims: None,
        limits: status.resources.as_ref().and_then(|actual| actual.limits.clone()),
        requests: status.allocated_resources.clone(),
    };
    let sum = resources_of_containers(spec);
    let is_only_desired = |requirement: &str, name: &str| {
        let of = |resources| amount(Some(resources), requirement, name);
        let has_effect = requirement == "limits" || of(&reported).is_none();
        RESIZABLE.contains(&name) && has_effect && of(&reported) == of(&sum) && of(&reported) != of(desired)
    };
    let list = |requirement: &str, desired: &List, reported: &List, leaves_out: bool| -> List {
        let reported = |name: &String| reported.as_ref().and_then(|reported| reported.get(name)).cloned();
        let names =
            desired.iter().flatten().filter(|(name, _)| !leaves_out || !is_only_desired(requirement, name.as_str()));
        let list: BTreeMap<_, _> =
            names.map(|(name, own)| (name.clone(), reported(name).unwrap_or_else(|| own.clone()))).collect();
        (!list.is_empty()).then_some(list)
    };
    let whole = |leaves_out| ResourceRequirements {
        claims: desired.claims.clone(),
        limits: list("limits", &desired.limits, &reported.limits, leaves_out),
        requests: list("requests", &desired.requests, &reported.requests, leaves_out),
    };
    // Earlier kubelets report nothing of the pod as a whole.
    let allocated = whole(all_reported && status.resources.is_some());
    // No resize changes the class of a pod.
    let has_class = class_of(&PodSpec { resources: Some(allocated.clone()), ..spec.clone() }) == class_of(spec);
    Some(if has_class { allocated } else { whole(false) })
}

/// Raises each limit that is below its request to the request.
fn raise_limits(resources: &mut ResourceRequirements) {
    for name in RESIZABLE {
        let of = |requirement| amount(Some(&*resources), requirement, name);
        let is_below = of("limits").is_some_and(|limit| of("requests").is_some_and(|request| limit < request));
        let request = resources.requests.as_ref().and_then(|requests| requests.get(name)).filter(|_| is_below);
        if let (Some(limits), Some(request)) = (&mut resources.limits, request) {
            limits.insert(name.to_owned(), request.clone());
        }
    }
}

/// Whether no request of the pod as a whole is above its limit, as the API server requires.
fn whole_is_within_limits(spec: &PodSpec) -> bool {
    RESIZABLE.iter().all(|name| {
        let of = |requirement| amount(spec.resources.as_ref(), requirement, name);
        of("limits").is_none_or(|limit| of("requests").is_none_or(|request| request <= limit))
    })
}

/// Whether the pod as a whole has what its containers have, as the API server requires: the requests of all, and the limit of each.
fn whole_suffices(spec: &PodSpec) -> bool {
    let suffices = |requirement: &str, needed: &ResourceRequirements| {
        RESIZABLE.iter().all(|name| {
            let has = amount(spec.resources.as_ref(), requirement, name);
            has.is_none_or(|has| amount(Some(needed), requirement, name).is_none_or(|needed| needed <= has))
        })
    };
    let mut containers = spec.containers.iter().filter_map(|container| container.resources.as_ref());
    suffices("requests", &resources_of_containers(spec)) && containers.all(|own| suffices("limits", own))
}

/// The pod with the resources of `allocated`, which is the same pod. The same object if it has them already.
pub fn with_resources_of(pod: &Arc<PodObject>, allocated: &PodObject) -> Arc<PodObject> {
    // Most updates change no resources, so that nothing is copied for them.
    if has_resources_of(pod, allocated) { pod.clone() } else { Allocation::of(allocated).apply(pod) }
}

/// Whether a pod has the resources of `allocated`, which is the same pod.
pub(super) fn has_resources_of(pod: &PodObject, allocated: &PodObject) -> bool {
    let is_same = |it: Resizable<'_>| {
        resources_of(allocated, &it.container.name).is_some_and(|other| same(it.container.resources.as_ref(), other))
    };
    same(pod.spec().resources.as_ref(), allocated.spec().resources.as_ref()) && resizable(pod).all(is_same)
}

/// The resources of a container that can be resized. `None` if the pod has no such container.
pub(crate) fn resources_of<'a>(pod: &'a PodObject, name: &str) -> Option<Option<&'a ResourceRequirements>> {
    resizable(pod).find(|it| it.container.name == name).map(|it| it.container.resources.as_ref())
}

/// The resources that a runtime gives to a container: its own, and the pod-level limits of CPU and memory where it has no limit of its own
/// (KEP-2837). So a resize of the pod-level resources changes them too.
pub(super) fn effective(pod: &PodObject, container: &Container) -> ResourceRequirements {
    let mut resources = container.resources.clone().unwrap_or_default();
    let whole = pod.spec().resources.as_ref().and_then(|whole| whole.limits.as_ref());
    for name in RESIZABLE {
        if amount(Some(&resources), "limits", name).is_none()
            && let Some(limit) = whole.and_then(|whole| whole.get(name))
        {
            resources.limits.get_or_insert_default().insert(name.to_owned(), limit.clone());
        }
    }
    resources
}

/// The effective resources of a container that can be resized. `None` if the pod has no such container.
pub(super) fn effective_of(pod: &PodObject, name: &str) -> Option<ResourceRequirements> {
    resizable(pod).find(|it| it.container.name == name).map(|it| effective(pod, it.container))
}

/// Whether a pod has resources that could be resized. Other pods need no record of their allocation: the QoS class of a pod never
/// changes, so a pod without resources never gets any.
pub fn has_resources(pod: &PodObject) -> bool {
    let has = |resources: Option<&ResourceRequirements>| {
        let lists = resources.into_iter().flat_map(|own| [own.requests.as_ref(), own.limits.as_ref()]);
        lists.flatten().any(|list| RESIZABLE.iter().any(|name| list.contains_key(*name)))
    };
    has(pod.spec().resources.as_ref()) || resizable(pod).any(|it| has(it.container.resources.as_ref()))
}

/// The resources `own` with the request and the limit of one resource from `other`.
pub(super) fn with_amounts_of(
    own: &ResourceRequirements,
    other: &ResourceRequirements,
    name: &str,
) -> ResourceRequirements {
    type List = Option<BTreeMap<String, Quantity>>;
    let list = |own: &List, other: &List| -> List {
        let mut list = own.clone().unwrap_or_default();
        match other.as_ref().and_then(|other| other.get(name)) {
            Some(quantity) => list.insert(name.to_owned(), quantity.clone()),
            None => list.remove(name),
        };
        (!list.is_empty()).then_some(list)
    };
    ResourceRequirements {
        claims: own.claims.clone(),
        limits: list(&own.limits, &other.limits),
        requests: list(&own.requests, &other.requests),
    }
}

/// Whether two resources have equal requests and limits. Quantities with different texts may be equal.
pub(crate) fn same(one: Option<&ResourceRequirements>, other: Option<&ResourceRequirements>) -> bool {
    type List = BTreeMap<String, Quantity>;
    fn of<'a>(
        resources: Option<&'a ResourceRequirements>,
        list: fn(&'a ResourceRequirements) -> &'a Option<List>,
    ) -> impl Iterator<Item = (&'a String, &'a Quantity)> {
        resources.into_iter().flat_map(list).flatten()
    }
    let same_amount = |(name, one): (&String, &Quantity), (other_name, other): (&String, &Quantity)| {
        name == other_name && (one == other || matches!((Amount::of(one), Amount::of(other)), (Ok(a), Ok(b)) if a == b))
    };
    let same_list = |list: fn(&ResourceRequirements) -> &Option<List>| {
        let (mut ones, mut others) = (of(one, list), of(other, list));
        loop {
            match (ones.next(), others.next()) {
                (None, None) => return true,
                (Some(one), Some(other)) if same_amount(one, other) => {}
                _ => return false,
            }
        }
    };
    same_list(|own| &own.requests) && same_list(|own| &own.limits)
}

/// The bounds of a pod's cgroup.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bounds {
    /// The CPU request in thousandths of a CPU.
    pub cpu_request: i64,
    /// The CPU limit in thousandths of a CPU.
    pub cpu_limit: Option<i64>,
    /// The memory limit in bytes.
    pub memory_limit: Option<i64>,
}

impl Bounds {
    /// The bounds that follow from the spec of a pod.
    pub fn of(pod: &PodObject) -> Self {
        Bounds::of_spec(pod.spec())
    }

    /// The bounds that follow from a spec.
    pub(super) fn of_spec(spec: &PodSpec) -> Self {
        let bounds = pod_bounds(spec);
        Bounds {
            cpu_request: bounds.cpu_request.millis(),
            cpu_limit: bounds.cpu_limit.map(Amount::millis),
            memory_limit: bounds.memory_limit.map(Amount::units),
        }
    }

    /// These bounds after a change of limits.
    pub(super) fn with(self, limits: CgroupLimits) -> Bounds {
        Bounds {
            cpu_request: limits.cpu_request.unwrap_or(self.cpu_request),
            cpu_limit: limits.cpu_limit.or(self.cpu_limit),
            memory_limit: limits.memory_limit.or(self.memory_limit),
        }
    }

    /// These bounds after a resize to `new`. A limit is never removed in place (upstream `doPodResizeAction`, kubelet 1.36).
    pub(super) fn resized_to(self, new: Bounds) -> Bounds {
        Bounds {
            cpu_request: new.cpu_request,
            cpu_limit: new.cpu_limit.or(self.cpu_limit),
            memory_limit: new.memory_limit.or(self.memory_limit),
        }
    }
}
