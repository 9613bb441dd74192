//! Decides which writes make the slices of a pool equal to what the driver offers. Pure.

use std::sync::Arc;

use k8s_openapi::api::resource::v1::{Device, ResourcePool, ResourceSlice, ResourceSliceSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};

use super::compare::{self, is_same_key};
use super::resources::{Pool, Slice};
use super::slice_name;

/// What all slices of a driver have in common.
#[derive(Clone, Debug)]
pub(super) struct Identity {
    pub(super) driver: String,
    pub(super) owner: Option<OwnerReference>,
    /// The node with access to the devices.
    pub(super) node: Option<String>,
}

/// The writes, in the order in which they are done: existing slices are reused before others are created, and obsolete ones are
/// deleted last.
#[derive(Clone, Debug, Default, PartialEq)]
#[must_use]
pub(super) struct Plan {
    /// Slices to update, each with its index.
    pub(super) updates: Vec<(usize, ResourceSlice)>,
    /// Slices to create, each with its index.
    pub(super) creates: Vec<(usize, ResourceSlice)>,
    /// Slices to delete.
    pub(super) deletes: Vec<Arc<ResourceSlice>>,
}

/// Compares the slices of a pool with what the driver offers. `desired` is `None` if the driver no longer offers the pool.
pub(super) fn plan(identity: &Identity, name: &str, desired: Option<&Pool>, seen: &[Arc<ResourceSlice>]) -> Plan {
    let Some(pool) = desired else { return Plan { deletes: seen.to_vec(), ..Plan::default() } };
    let newest = seen.iter().map(|slice| slice.spec.pool.generation).max().unwrap_or(0);
    let (matched, deletes) = match_slices(newest, pool.slices.len(), seen);

    let header = |generation| ResourcePool {
        name: name.to_owned(),
        generation,
        resource_slice_count: i64::try_from(pool.slices.len()).unwrap_or(i64::MAX),
    };
    let published = header(newest);
    let is_changed = |(slice, found): (&Slice, &Option<Arc<ResourceSlice>>)| {
        found.as_ref().is_some_and(|found| is_changed(&published, pool, slice, found))
    };
    let changed: Vec<bool> = pool.slices.iter().zip(&matched).map(is_changed).collect();
    let is_complete = matched.iter().all(Option::is_some);
    let generation = if pool.generation > newest {
        pool.generation
    } else if is_complete && changed.iter().filter(|changed| **changed).count() <= 1 {
        newest
    } else {
        newest.saturating_add(1)
    };

    let mut plan = Plan { deletes, ..Plan::default() };
    for (index, (slice, found)) in pool.slices.iter().zip(matched).enumerate() {
        let spec = spec(identity, header(generation), pool, slice);
        match found {
            Some(found) if changed[index] || generation != newest => {
                plan.updates.push((index, updated(&found, spec)));
            }
            Some(_) => {}
            None => plan.creates.push((index, created(identity, index, pool.slices.len(), spec))),
        }
    }
    plan
}

/// Finds the published slice of each index. The others are obsolete: those of an older generation, those whose name has no valid
/// index, and further slices of an index.
fn match_slices(
    newest: i64,
    count: usize,
    seen: &[Arc<ResourceSlice>],
) -> (Vec<Option<Arc<ResourceSlice>>>, Vec<Arc<ResourceSlice>>) {
    let width = slice_name::width(count);
    let mut matched = vec![None; count];
    let mut obsolete = Vec::new();
    for slice in seen {
        let index = slice.metadata.name.as_deref().and_then(|name| slice_name::index(name, width));
        let is_current = slice.spec.pool.generation == newest;
        match index.filter(|_| is_current).and_then(|index| matched.get_mut(index)) {
            Some(free @ None) => *free = Some(slice.clone()),
            Some(Some(_)) | None => obsolete.push(slice.clone()),
        }
    }
    (matched, obsolete)
}

fn is_changed(header: &ResourcePool, pool: &Pool, slice: &Slice, stored: &ResourceSlice) -> bool {
    stored.spec.pool != *header
        || !compare::is_same_selector(pool.node_selector.as_ref(), stored.spec.node_selector.as_ref())
        || stored.spec.all_nodes.unwrap_or_default() != pool.all_nodes
        || !compare::is_same(slice, &compare::content(stored))
}

fn spec(identity: &Identity, header: ResourcePool, pool: &Pool, slice: &Slice) -> ResourceSliceSpec {
    ResourceSliceSpec {
        driver: identity.driver.clone(),
        pool: header,
        node_name: identity.node.clone(),
        node_selector: pool.node_selector.clone(),
        all_nodes: pool.all_nodes.then_some(true),
        devices: Some(slice.devices.clone()).filter(|devices| !devices.is_empty()),
        shared_counters: Some(slice.shared_counters.clone()).filter(|counters| !counters.is_empty()),
        per_device_node_selection: slice.per_device_node_selection.then_some(true),
    }
}

fn created(identity: &Identity, index: usize, count: usize, spec: ResourceSliceSpec) -> ResourceSlice {
    let owner = identity.owner.as_ref();
    let generate_name =
        slice_name::generate_name(index, count, &identity.driver, owner.map(|owner| owner.name.as_str()));
    let metadata = ObjectMeta {
        generate_name: Some(generate_name),
        owner_references: owner.map(|owner| vec![owner.clone()]),
        ..ObjectMeta::default()
    };
    ResourceSlice { metadata, spec }
}

/// The published slice with another content. Keeps its metadata and its node, which are immutable.
fn updated(stored: &ResourceSlice, mut spec: ResourceSliceSpec) -> ResourceSlice {
    spec.node_name.clone_from(&stored.spec.node_name);
    let stored_devices = stored.spec.devices.as_deref().unwrap_or_default();
    for device in spec.devices.iter_mut().flatten() {
        if let Some(stored) = stored_devices.iter().find(|stored| stored.name == device.name) {
            keep_taint_times(device, stored);
        }
    }
    ResourceSlice { metadata: stored.metadata.clone(), spec }
}

/// Keeps the times that the API server gave to the taints of a device, where the driver gives none.
fn keep_taint_times(device: &mut Device, stored: &Device) {
    for taint in device.taints.iter_mut().flatten().filter(|taint| taint.time_added.is_none()) {
        let known = stored.taints.iter().flatten().find(|known| is_same_key(taint, known));
        taint.time_added = known.and_then(|known| known.time_added.clone());
    }
}

#[cfg(test)]
mod tests;
