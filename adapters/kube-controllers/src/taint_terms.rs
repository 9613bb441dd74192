//! Runs the device taint eviction controller while this replica leads.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use kube::Client;
use podwright_controllers::device_taint_controller::{
    DeviceTaintController, DeviceTaintControllerConfig, DeviceTaintControllerPorts,
};
use podwright_controllers::device_taint_eviction::CONTROLLER_NAME;
use podwright_controllers::leader_election::Leadership;
use podwright_metrics::ControllersMetrics;
use podwright_parts::Parts;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::terms::{TermController, Terms};
use super::watch_problems::WatchProblems;
use super::watches;

/// The terms of this replica as the leader. Each term has a controller with an empty cache and watches of its own, which begin with a
/// list from the storage of the server. The evictions are counted from zero in each term.
pub struct DeviceTaintTerms(Terms<DeviceTaintController>);

impl DeviceTaintTerms {
    /// The terms before the first one begins.
    pub fn new(client: Client, config: DeviceTaintControllerConfig, ports: DeviceTaintControllerPorts) -> Self {
        DeviceTaintTerms(Terms::new(client, config, ports))
    }

    /// The controller of the current term. `None` while this replica does not lead.
    pub fn current(&self) -> watch::Receiver<Option<Arc<DeviceTaintController>>> {
        self.0.current()
    }

    /// The errors of the watches that fail.
    pub fn problems(&self) -> WatchProblems {
        self.0.problems()
    }

    /// Begins and ends terms with the leadership, until `stop` is cancelled. When this returns, no watch and no pass runs. The lease may
    /// be given back at once: a late deletion has the UID of the pod as precondition.
    pub async fn run(self, leadership: watch::Receiver<Leadership>, stop: CancellationToken) {
        self.0.run(leadership, stop).await;
    }
}

impl TermController for DeviceTaintController {
    const NAME: &'static str = CONTROLLER_NAME;
    type Config = DeviceTaintControllerConfig;
    type Ports = DeviceTaintControllerPorts;
    type Left = ();

    fn metrics(ports: &DeviceTaintControllerPorts) -> &ControllersMetrics {
        &ports.metrics
    }

    fn of_term(ports: &DeviceTaintControllerPorts, term: u64) -> DeviceTaintControllerPorts {
        DeviceTaintControllerPorts { lease: ports.lease.of_term(term), ..ports.clone() }
    }

    fn begin(config: DeviceTaintControllerConfig, ports: DeviceTaintControllerPorts, (): ()) -> Self {
        DeviceTaintController::start(config, ports)
    }

    fn watch(
        controller: &Arc<Self>,
        config: DeviceTaintControllerConfig,
        client: &Client,
        problems: &WatchProblems,
        parts: &Parts,
    ) {
        watches::start_taints(client, controller, config.settings, problems, parts);
    }

    async fn end(&self) {
        self.stop().await;
    }

    fn close_events(ports: &DeviceTaintControllerPorts, limit: Duration) -> BoxFuture<'_, usize> {
        ports.api.close_events(limit)
    }
}
