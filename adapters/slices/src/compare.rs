//! Compares what a driver offers with what the API server stores.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::NodeSelector;
use k8s_openapi::api::resource::v1::{CapacityRequestPolicy, Counter, CounterSet, Device, DeviceTaint, ResourceSlice};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use podwright_model::quantity::Amount;

use super::resources::Slice;

/// A feature gate of the API server. A server without it drops the fields that belong to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum SuspectedFeature {
    /// Taints of devices.
    DRADeviceTaints,
    /// Shared counters, and nodes that are selected for each device.
    DRAPartitionableDevices,
    /// Conditions that are awaited before a pod is bound.
    DRADeviceBindingConditions,
    /// Devices that several claims share.
    DRAConsumableCapacity,
    /// The dropped fields belong to no known feature gate.
    Unknown,
}

impl std::fmt::Display for SuspectedFeature {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            SuspectedFeature::Unknown => f.write_str("unknown"),
            known => write!(f, "{known:?}"),
        }
    }
}

/// Whether the content of a stored slice is what the driver offers. Missing and empty values are equal, quantities are compared as
/// numbers, and the times of a taint are compared only if both have one.
pub(super) fn is_same(desired: &Slice, stored: &Slice) -> bool {
    let is_same_devices = desired.devices.len() == stored.devices.len()
        && desired.devices.iter().zip(&stored.devices).all(|(desired, stored)| is_same_device(desired, stored));
    is_same_devices
        && desired.per_device_node_selection == stored.per_device_node_selection
        && counters(&desired.shared_counters) == counters(&stored.shared_counters)
}

fn counters(sets: &[CounterSet]) -> Vec<CounterSet> {
    let mut sets = sets.to_vec();
    sets.iter_mut().for_each(|set| canonical_counters(&mut set.counters));
    sets
}

fn is_same_device(desired: &Device, stored: &Device) -> bool {
    // The usual case, without a copy.
    if desired == stored {
        return true;
    }
    let taints = |device: &Device| device.taints.clone().unwrap_or_default();
    let (ours, theirs) = (taints(desired), taints(stored));
    ours.len() == theirs.len()
        && ours.iter().zip(&theirs).all(|(ours, theirs)| is_same_taint(ours, theirs))
        && canonical(desired) == canonical(stored)
}

fn is_same_taint(ours: &DeviceTaint, theirs: &DeviceTaint) -> bool {
    let is_same_time = match (&ours.time_added, &theirs.time_added) {
        (Some(Time(ours)), Some(Time(theirs))) => ours.duration_since(*theirs).abs().as_secs() <= 1,
        (None, _) | (_, None) => true,
    };
    is_same_key(ours, theirs) && is_same_time
}

/// Whether two taints are equal apart from their times.
pub(super) fn is_same_key(ours: &DeviceTaint, theirs: &DeviceTaint) -> bool {
    let value = |taint: &DeviceTaint| taint.value.clone().unwrap_or_default();
    ours.key == theirs.key && value(ours) == value(theirs) && ours.effect == theirs.effect
}

/// A device without taints, and with one form of each value.
fn canonical(device: &Device) -> Device {
    let mut device = Device { taints: None, ..device.clone() };
    let Device {
        attributes,
        capacity,
        consumes_counters,
        binding_conditions,
        binding_failure_conditions,
        node_selector,
        ..
    } = &mut device;
    for capacity in capacity.iter_mut().flat_map(BTreeMap::values_mut) {
        canonical_quantity(&mut capacity.value);
        if let Some(policy) = &mut capacity.request_policy {
            canonical_policy(policy);
        }
    }
    for consumed in consumes_counters.iter_mut().flatten() {
        canonical_counters(&mut consumed.counters);
    }
    node_selector.iter_mut().for_each(canonical_selector);
    *attributes = attributes.take().filter(|found| !found.is_empty());
    *capacity = capacity.take().filter(|found| !found.is_empty());
    *consumes_counters = consumes_counters.take().filter(|found| !found.is_empty());
    *binding_conditions = binding_conditions.take().filter(|found| !found.is_empty());
    *binding_failure_conditions = binding_failure_conditions.take().filter(|found| !found.is_empty());
    device
}

/// Whether two selections of nodes are the same.
pub(super) fn is_same_selector(desired: Option<&NodeSelector>, stored: Option<&NodeSelector>) -> bool {
    let canonical = |selector: &NodeSelector| {
        let mut selector = selector.clone();
        canonical_selector(&mut selector);
        selector
    };
    desired == stored || desired.map(canonical) == stored.map(canonical)
}

/// The API server does not store empty lists.
fn canonical_selector(selector: &mut NodeSelector) {
    for term in &mut selector.node_selector_terms {
        for list in [&mut term.match_expressions, &mut term.match_fields] {
            *list = list.take().filter(|list| !list.is_empty());
            for requirement in list.iter_mut().flatten() {
                requirement.values = requirement.values.take().filter(|values| !values.is_empty());
            }
        }
    }
}

fn canonical_policy(policy: &mut CapacityRequestPolicy) {
    policy.default.iter_mut().for_each(canonical_quantity);
    policy.valid_values = policy.valid_values.take().filter(|values| !values.is_empty());
    policy.valid_values.iter_mut().flatten().for_each(canonical_quantity);
    if let Some(range) = &mut policy.valid_range {
        canonical_quantity(&mut range.min);
        range.max.iter_mut().chain(range.step.as_mut()).for_each(canonical_quantity);
    }
}

fn canonical_counters(counters: &mut BTreeMap<String, Counter>) {
    counters.values_mut().for_each(|counter| canonical_quantity(&mut counter.value));
}

/// `1024Mi` and `1Gi` are the same. A text that is no quantity stays as it is.
fn canonical_quantity(quantity: &mut Quantity) {
    if let Ok(amount) = Amount::of(quantity) {
        quantity.0 = format!("{amount:?}");
    }
}

/// The feature gates that seem to be off in the API server, because it stored less than it was sent. Empty if it stored everything.
pub(super) fn suspected_features(desired: &Slice, actual: &Slice) -> Vec<SuspectedFeature> {
    if is_same(desired, actual) {
        return Vec::new();
    }
    let count = |slice: &Slice, part: fn(&Device) -> usize| slice.devices.iter().map(part).sum::<usize>();
    let has_less = |part: fn(&Device) -> usize| count(actual, part) < count(desired, part);
    let taints = has_less(|device| device.taints.as_ref().map_or(0, Vec::len));
    let partitions = actual.shared_counters.len() < desired.shared_counters.len()
        || actual.per_device_node_selection != desired.per_device_node_selection
        || has_less(|device| device.consumes_counters.as_ref().map_or(0, Vec::len))
        || has_less(|device| {
            let has_nodes = device.node_name.is_some() || device.node_selector.is_some() || device.all_nodes.is_some();
            usize::from(has_nodes)
        });
    let binding = has_less(|device| {
        let conditions = |found: &Option<Vec<String>>| found.as_ref().map_or(0, Vec::len);
        conditions(&device.binding_conditions)
            + conditions(&device.binding_failure_conditions)
            + usize::from(device.binds_to_node.is_some())
    });
    let multiple = has_less(|device| usize::from(device.allow_multiple_allocations.is_some()));
    let suspects = [
        (taints, SuspectedFeature::DRADeviceTaints),
        (partitions, SuspectedFeature::DRAPartitionableDevices),
        (binding, SuspectedFeature::DRADeviceBindingConditions),
        (multiple, SuspectedFeature::DRAConsumableCapacity),
    ];
    let mut features: Vec<_> = suspects.into_iter().filter(|(found, _)| *found).map(|(_, feature)| feature).collect();
    if features.is_empty() {
        features.push(SuspectedFeature::Unknown);
    }
    features
}

/// The content of a stored slice.
pub(super) fn content(stored: &ResourceSlice) -> Slice {
    Slice {
        devices: stored.spec.devices.clone().unwrap_or_default(),
        shared_counters: stored.spec.shared_counters.clone().unwrap_or_default(),
        per_device_node_selection: stored.spec.per_device_node_selection.unwrap_or_default(),
    }
}
