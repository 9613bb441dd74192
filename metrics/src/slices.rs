//! The ResourceSlices of the node.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

use crate::labels::label_values;
use crate::register::podwright;

label_values! {
    /// A write of a ResourceSlice.
    pub enum SliceWrite {
        /// A published slice got another content.
        Update = "update",
        /// A new slice was published.
        Create = "create",
        /// A published slice was removed.
        Delete = "delete",
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct WriteLabel {
    operation: SliceWrite,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResultLabel {
    result: &'static str,
}

/// The slices that the agent publishes and deletes.
#[derive(Clone, Debug)]
pub struct SliceMetrics {
    writes: Family<WriteLabel, Counter>,
    wipes: Family<ResultLabel, Counter>,
    messages: Family<ResultLabel, Counter>,
}

impl SliceMetrics {
    /// Registers the families.
    pub fn register(registry: &mut Registry) -> Self {
        let mut wipes = |name: &str, help: &str| podwright(registry, name, help, Family::default());
        let (wipes, messages) = (
            wipes(
                "podwright_resource_slice_wipes_total",
                "Number of deletions of the ResourceSlices of drivers that are not connected, by result",
            ),
            wipes(
                "podwright_node_resource_messages_total",
                "Number of messages with which drivers sent their node resources, by result",
            ),
        );
        let writes = podwright(
            registry,
            "podwright_resource_slice_writes_total",
            "Number of ResourceSlices that the agent has written for drivers, by operation",
            Family::default(),
        );
        SliceMetrics { writes, wipes, messages }
    }

    /// Counts a write.
    pub fn wrote(&self, operation: SliceWrite) {
        self.writes.get_or_create(&WriteLabel { operation }).inc();
    }

    /// Counts the end of a deletion of all slices of a driver, or of the node.
    pub fn wiped(&self, success: bool) {
        let result = if success { "succeeded" } else { "failed" };
        self.wipes.get_or_create(&ResultLabel { result }).inc();
    }

    /// Counts a message, and whether it can be used.
    pub fn received(&self, is_accepted: bool) {
        let result = if is_accepted { "accepted" } else { "refused" };
        self.messages.get_or_create(&ResultLabel { result }).inc();
    }
}
