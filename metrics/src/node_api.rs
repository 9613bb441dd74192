//! The limits of the node API.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

use crate::labels::label_values;
use crate::register::podwright;

label_values! {
    /// What a client of the node API may have only a limited number of.
    pub enum NodeApiResource {
        /// Connections.
        Connection = "connection",
        /// Container logs that are being read.
        Log = "log",
        /// Reviews of tokens and permissions by the API server.
        Review = "review",
        /// Commands, attached terminals and forwarded ports.
        Stream = "stream",
    }
}

label_values! {
    /// Whose limit a request exceeds.
    pub enum NodeApiLimit {
        /// The limit of one client: of an address, or of a user.
        Client = "client",
        /// The limit of one pod.
        Pod = "pod",
        /// The limit of one namespace.
        Namespace = "namespace",
        /// The limit of the whole node.
        Node = "node",
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RefusalLabels {
    resource: NodeApiResource,
    limit: NodeApiLimit,
}

/// What the node API refuses because of its limits. The default counts, and nothing shows the numbers.
#[derive(Clone, Debug, Default)]
pub struct NodeApiMetrics {
    refusals: Family<RefusalLabels, Counter>,
}

impl NodeApiMetrics {
    /// Registers the families.
    pub fn register(registry: &mut Registry) -> Self {
        NodeApiMetrics {
            refusals: podwright(
                registry,
                "podwright_node_api_refusals_total",
                "Connections, logs, reviews and streams that the node API refused or closed because of a limit",
                Family::default(),
            ),
        }
    }

    /// Counts a refusal.
    pub fn refused(&self, resource: NodeApiResource, limit: NodeApiLimit) {
        self.refusals.get_or_create(&RefusalLabels { resource, limit }).inc();
    }
}
