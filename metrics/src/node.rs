//! Metrics of the node and its cgroups.

use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use crate::histogram::Histogram;
use crate::labels::label_values;
use crate::register::kubelet;

label_values! {
    /// What is done to a cgroup.
    pub enum CgroupOperation {
        /// Made.
        Create = "create",
        /// Its limits changed.
        Update = "update",
        /// Removed.
        Destroy = "destroy",
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct NodeLabel {
    node: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OperationLabel {
    operation_type: CgroupOperation,
}

/// The node itself and its cgroups.
#[derive(Clone, Debug)]
pub struct NodeMetrics {
    name: Family<NodeLabel, Gauge>,
    cgroups: Family<OperationLabel, Histogram>,
}

impl NodeMetrics {
    /// Registers the families.
    pub fn register(registry: &mut Registry) -> Self {
        NodeMetrics {
            name: kubelet(
                registry,
                "kubelet_node_name",
                "The name of this node, as a label; always 1",
                Family::default(),
            ),
            cgroups: kubelet(
                registry,
                "kubelet_cgroup_manager_duration_seconds",
                "Seconds that operations on pod cgroups took",
                Family::new_with_constructor(Histogram::request),
            ),
        }
    }

    /// Sets the node's name. There is one series, with the last name.
    pub fn name(&self, name: &str) {
        self.name.clear();
        self.name.get_or_create(&NodeLabel { node: name.to_owned() }).set(1);
    }

    /// Records a cgroup operation.
    pub fn cgroup(&self, operation_type: CgroupOperation, took: Duration) {
        self.cgroups.get_or_create(&OperationLabel { operation_type }).observe(took);
    }
}
