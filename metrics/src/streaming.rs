//! The streams of the node API.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

use crate::labels::label_values;
use crate::register::kubelet;

label_values! {
    /// The subresource of a pod that a stream belongs to.
    pub enum StreamSubresource {
        /// The command of a client.
        Exec = "exec",
        /// The command of the container.
        Attach = "attach",
        /// Connections to ports.
        PortForward = "portforward",
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct SubresourceLabel {
    subresource: StreamSubresource,
}

/// The requests for streams. The default counts, and nothing shows the numbers.
#[derive(Clone, Debug, Default)]
pub struct StreamingMetrics {
    websocket_requests: Family<SubresourceLabel, Counter>,
}

impl StreamingMetrics {
    /// Registers the families.
    pub fn register(registry: &mut Registry) -> Self {
        StreamingMetrics {
            websocket_requests: kubelet(
                registry,
                "kubelet_streaming_websocket_requests_total",
                "Requests for exec, attach and port-forward over a WebSocket protocol that the agent serves itself",
                Family::default(),
            ),
        }
    }

    /// Counts a request over WebSocket with the protocol `v5.channel.k8s.io` or `SPDY/3.1+portforward.k8s.io`.
    pub fn websocket_request(&self, subresource: StreamSubresource) {
        self.websocket_requests.get_or_create(&SubresourceLabel { subresource }).inc();
    }
}
