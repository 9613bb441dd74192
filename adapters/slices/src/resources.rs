//! The devices that a driver offers.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::NodeSelector;
use k8s_openapi::api::resource::v1::{CounterSet, Device};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{OwnerReference, Time};
use k8s_openapi::jiff::Unit;

/// All devices of a driver, by pool.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DriverResources {
    /// The pools, by name. A driver that has no device offers a pool with one empty slice, which shows that it runs.
    pub pools: BTreeMap<String, Pool>,
}

impl DriverResources {
    /// One pool with one slice.
    pub fn one_slice(pool: impl Into<String>, devices: Vec<Device>) -> Self {
        let slice = Slice { devices, ..Slice::default() };
        DriverResources { pools: BTreeMap::from([(pool.into(), Pool { slices: vec![slice], ..Pool::default() })]) }
    }
}

/// The devices of one pool.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Pool {
    /// The nodes with access to the devices. `None` if only the driver's node has access, or all nodes have.
    pub node_selector: Option<NodeSelector>,
    /// Whether all nodes have access to the devices.
    pub all_nodes: bool,
    /// The generation of the pool, if it is larger than the published one. The library chooses it otherwise.
    pub generation: i64,
    /// The slices. Their order, and the order of devices in them, is the order in which devices are preferred.
    pub slices: Vec<Slice>,
}

/// The content of one ResourceSlice. It has devices or shared counters, never both.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Slice {
    /// The devices, at most 128.
    pub devices: Vec<Device>,
    /// The counters that devices of the pool consume.
    pub shared_counters: Vec<CounterSet>,
    /// Whether each device names the nodes with access to it.
    pub per_device_node_selection: bool,
}

/// The object that owns the slices. When it is deleted, the garbage collector deletes them too.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// The API version of the owner.
    pub api_version: String,
    /// The kind of the owner.
    pub kind: String,
    /// The name of the owner.
    pub name: String,
    /// The UID. If it is `None`, the library looks up the UID of a Node.
    pub uid: Option<String>,
}

impl Owner {
    /// The node of this name.
    pub fn node(name: impl Into<String>, uid: Option<String>) -> Self {
        Owner { api_version: "v1".to_owned(), kind: "Node".to_owned(), name: name.into(), uid }
    }

    pub(super) fn is_node(&self) -> bool {
        self.api_version == "v1" && self.kind == "Node"
    }

    /// The reference of a slice to its owner.
    pub(super) fn reference(&self, uid: &str) -> OwnerReference {
        OwnerReference {
            api_version: self.api_version.clone(),
            kind: self.kind.clone(),
            name: self.name.clone(),
            uid: uid.to_owned(),
            controller: Some(true),
            block_owner_deletion: None,
        }
    }
}

/// Why the devices of a pool cannot be published.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidPool {
    /// The slices are for the node of the driver, and the pool also names other nodes.
    #[error(
        "the slices are for the node of the driver, so node_selector, all_nodes and per_device_node_selection must not be set: \
         leave them out, or publish a single pool, which names its nodes itself"
    )]
    BoundToNode,
    /// The pool names the nodes with access in several ways.
    #[error("of node_selector, all_nodes and per_device_node_selection, exactly one must be set for each slice")]
    SeveralNodeSelections,
    /// The pool does not say which nodes have access to its devices.
    #[error("no node has access to the devices: set node_selector, all_nodes or per_device_node_selection")]
    NoNodes,
    /// Two sets of counters have one name.
    #[error("the counter set {0} appears twice: give each set a name of its own")]
    DuplicateCounterSet(String),
    /// Two devices have one name.
    #[error("the device {0} appears twice: give each device a name of its own")]
    DuplicateDevice(String),
    /// A device consumes counters of a set that the pool does not have.
    #[error("the device {device} consumes the counter set {set}, which the pool does not have")]
    UnknownCounterSet {
        /// The name of the device.
        device: String,
        /// The name of the set.
        set: String,
    },
    /// A device consumes a counter that its set does not have.
    #[error("the device {device} consumes the counter {counter}, which the counter set {set} does not have")]
    UnknownCounter {
        /// The name of the device.
        device: String,
        /// The name of the set.
        set: String,
        /// The name of the counter.
        counter: String,
    },
}

impl Pool {
    /// Checks what the API server cannot check, because it sees one slice at a time, and which nodes have access: each write of a
    /// slice for no node or for nodes of two kinds would fail. `has_node` is whether the slices are bound to the node of the driver.
    pub(super) fn validate(&self, has_node: bool) -> Result<(), InvalidPool> {
        for slice in &self.slices {
            let others = [self.node_selector.is_some(), self.all_nodes, slice.per_device_node_selection];
            match others.into_iter().filter(|is_set| *is_set).count() {
                1.. if has_node => return Err(InvalidPool::BoundToNode),
                0 if !has_node => return Err(InvalidPool::NoNodes),
                2.. => return Err(InvalidPool::SeveralNodeSelections),
                0 | 1 => {}
            }
        }
        let mut sets = BTreeMap::new();
        for set in self.slices.iter().flat_map(|slice| &slice.shared_counters) {
            if sets.insert(&set.name, &set.counters).is_some() {
                return Err(InvalidPool::DuplicateCounterSet(set.name.clone()));
            }
        }
        let mut names = BTreeSet::new();
        for device in self.slices.iter().flat_map(|slice| &slice.devices) {
            if !names.insert(&device.name) {
                return Err(InvalidPool::DuplicateDevice(device.name.clone()));
            }
            for consumed in device.consumes_counters.iter().flatten() {
                let (device, set) = (device.name.clone(), consumed.counter_set.clone());
                let Some(counters) = sets.get(&set) else { return Err(InvalidPool::UnknownCounterSet { device, set }) };
                if let Some(counter) = consumed.counters.keys().find(|name| !counters.contains_key(*name)) {
                    return Err(InvalidPool::UnknownCounter { device, set, counter: counter.clone() });
                }
            }
        }
        Ok(())
    }

    /// Rounds the times of taints to seconds, as the API server stores them.
    pub(super) fn round_taint_times(&mut self) {
        let devices = self.slices.iter_mut().flat_map(|slice| &mut slice.devices);
        for taint in devices.flat_map(|device| device.taints.iter_mut().flatten()) {
            if let Some(Time(time)) = &mut taint.time_added {
                // Rounding fails only at the end of the representable times.
                *time = time.round(Unit::Second).unwrap_or(*time);
            }
        }
    }
}
