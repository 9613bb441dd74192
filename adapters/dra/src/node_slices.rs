//! The ResourceSlices of the node: deletes those of drivers that are not there, and publishes those of drivers without access to the
//! API server.
//!
//! ```text
//!   state      decides (pure), with wiping and stream
//!   task       performs: deletions, streams and publishers are tasks
//!   resources  reads the messages of drivers (pure)
//!   report     the state, for operators
//!   ports      what the task uses; api has the API server and the drivers
//!   queues     what is counted of the queues of the publishers
//! ```
//!
//! Pods must not be scheduled to devices that nobody prepares. So the slices of a driver are deleted when none of its instances has been
//! connected for a while, and all slices of the node when the agent starts. A driver that publishes by itself does so again when it is
//! back. For a driver that offers `v1alpha1.NodeResources`, the agent publishes what the driver sends.

mod api;
mod ports;
mod queues;
mod report;
mod resources;
mod state;
mod stream;
mod task;
mod wiping;

#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use kube::Client;
use podwright_metrics::{SliceMetrics, WorkQueueMetrics};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use self::api::{InstanceRef, KubePorts};
use self::queues::SliceQueues;
pub(super) use self::report::SlicesReport;
pub use self::resources::read_node_resources;
use self::state::{Delays, InstanceFacts, Snapshot};
use self::task::SlicesTask;
use super::registry::Drivers;

/// How long the slices of a driver stay after its last connection has ended (upstream `wipingDelay`, kubelet 1.36).
pub const WIPE_DELAY: Duration = Duration::from_secs(30);

/// The settings of [`DraPlugins::manage_slices`](super::DraPlugins::manage_slices).
#[non_exhaustive]
pub struct SlicesConfig {
    /// The client of the API server.
    pub client: Client,
    /// The name of the node.
    pub node: String,
    /// How long the slices of a driver stay after its last connection has ended.
    pub wipe_delay: Duration,
    /// How long the slices that an earlier agent left stay after the start. If this is zero, all of them are deleted at once. Otherwise
    /// those of drivers that are connected by then stay.
    pub startup_wipe_delay: Duration,
}

impl SlicesConfig {
    /// Settings with the default delays: [`WIPE_DELAY`], and none after the start.
    pub fn new(client: Client, node: impl Into<String>) -> Self {
        SlicesConfig { client, node: node.into(), wipe_delay: WIPE_DELAY, startup_wipe_delay: Duration::ZERO }
    }
}

impl fmt::Debug for SlicesConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SlicesConfig").field("node", &self.node).finish_non_exhaustive()
    }
}

/// Manages the slices of the node until `stop` fires.
pub(super) async fn run(
    config: SlicesConfig,
    drivers: watch::Receiver<Drivers>,
    (metrics, queues): (SliceMetrics, WorkQueueMetrics),
    report: SlicesReport,
    stop: CancellationToken,
) {
    let SlicesConfig { client, node, wipe_delay, startup_wipe_delay } = config;
    let delays = Delays { wipe: wipe_delay, startup_wipe: startup_wipe_delay };
    let ports = Arc::new(KubePorts::new(client, &node, metrics.clone(), SliceQueues::new(&queues)));
    SlicesTask::new(ports, &node, delays, metrics).report_to(report).run(drivers, snapshot, stop).await;
}

fn snapshot(drivers: &Drivers) -> Snapshot<InstanceRef> {
    let of_driver = |name| {
        let instances = drivers.instances(name).iter().map(|state| InstanceFacts {
            instance: InstanceRef(state.instance.clone()),
            is_connected: state.is_connected,
            publishes: state.instance.services().node_resources,
        });
        instances.collect()
    };
    drivers.names().map(|name| (name.clone(), of_driver(name))).collect()
}
