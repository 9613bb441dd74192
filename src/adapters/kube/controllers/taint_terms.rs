//! Runs the device taint eviction controller while this replica leads.

use std::sync::Arc;

use kube::Client;
use podwright_actors::controllers::device_taint_controller::{
    DeviceTaintController, DeviceTaintControllerConfig, DeviceTaintControllerPorts,
};
use podwright_actors::controllers::device_taint_eviction::CONTROLLER_NAME;
use podwright_actors::controllers::leader_election::Leadership;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::terms::TermEnd;
use super::watch_problems::WatchProblems;
use super::watches;

/// The terms of this replica as the leader. Each term has a controller with an empty cache and watches of its own, which begin with a
/// list from the storage of the server. The evictions are counted from zero in each term.
pub struct DeviceTaintTerms {
    client: Client,
    config: DeviceTaintControllerConfig,
    ports: DeviceTaintControllerPorts,
    current: watch::Sender<Option<Arc<DeviceTaintController>>>,
    problems: WatchProblems,
}

impl DeviceTaintTerms {
    /// The terms before the first one begins.
    pub fn new(client: Client, config: DeviceTaintControllerConfig, ports: DeviceTaintControllerPorts) -> Self {
        let problems = WatchProblems::new(CONTROLLER_NAME, ports.metrics.watches.clone());
        let current = watch::Sender::new(None);
        DeviceTaintTerms { client, config, ports, current, problems }
    }

    /// The controller of the current term. `None` while this replica does not lead.
    pub fn current(&self) -> watch::Receiver<Option<Arc<DeviceTaintController>>> {
        self.current.subscribe()
    }

    /// The errors of the watches that fail.
    pub fn problems(&self) -> WatchProblems {
        self.problems.clone()
    }

    /// Begins and ends terms with the leadership, until `stop` is cancelled. When this returns, no watch and no pass runs. The lease may
    /// be given back at once: a late deletion has the UID of the pod as precondition.
    pub async fn run(self, mut leadership: watch::Receiver<Leadership>, stop: CancellationToken) {
        while !stop.is_cancelled() {
            let leads = async { Some(leadership.wait_for(Leadership::is_leading).await.ok()?.clone()) };
            // Without a sender, the election has ended.
            let Some(Some(leading)) = stop.run_until_cancelled(leads).await else { break };
            self.run_term(&leading, &mut leadership, &stop).await;
        }
    }

    /// Runs the controller until the leadership changes or `stop` is cancelled.
    async fn run_term(
        &self,
        leading: &Leadership,
        leadership: &mut watch::Receiver<Leadership>,
        stop: &CancellationToken,
    ) {
        let lease = match leading {
            Leadership::Leading { term } => self.ports.lease.of_term(*term),
            Leadership::Following { .. } => return,
        };
        let ports = DeviceTaintControllerPorts { lease, ..self.ports.clone() };
        let controller = Arc::new(DeviceTaintController::start(self.config, ports));
        let watched = stop.child_token();
        // If this future is dropped, the watches end, and with the last reference to the controller its passes.
        let _term_end = TermEnd::new(&self.current, &watched);
        let (settings, panics) = (self.config.settings, &self.ports.metrics.panics);
        let watches = watches::start_taints(&self.client, &controller, settings, &self.problems, panics, &watched);
        self.current.send_replace(Some(controller.clone()));
        tracing::info!(controller = CONTROLLER_NAME, "controller started");
        let ends = async { leadership.wait_for(|leadership| leadership != leading).await.is_ok() };
        let _by_election = stop.run_until_cancelled(ends).await;
        self.current.send_replace(None);
        watched.cancel();
        controller.stop().await;
        watches.wait().await;
        self.problems.reset();
        tracing::info!(controller = CONTROLLER_NAME, "controller stopped");
    }
}
