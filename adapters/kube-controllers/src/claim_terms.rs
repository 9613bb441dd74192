//! Runs the ResourceClaim controller while this replica leads.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use kube::Client;
use podwright_controllers::claim_controller::{ClaimController, ClaimControllerConfig, ClaimControllerPorts};
use podwright_controllers::leader_election::Leadership;
use podwright_controllers::resource_claim::{CONTROLLER_NAME, UnansweredCreates};
use podwright_metrics::ControllersMetrics;
use podwright_parts::Parts;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::terms::{TermController, Terms};
use super::watch_problems::WatchProblems;
use super::watches;

/// The terms of this replica as the leader. Each term has a controller with an empty cache and watches of its own, which begin with a
/// list from the storage of the server. So a term knows everything that the previous leader has done. It also knows the unanswered creates
/// of the previous term of this process.
pub struct ClaimTerms(Terms<ClaimController>);

impl ClaimTerms {
    /// The terms before the first one begins.
    pub fn new(client: Client, config: ClaimControllerConfig, ports: ClaimControllerPorts) -> Self {
        ClaimTerms(Terms::new(client, config, ports))
    }

    /// The controller of the current term. `None` while this replica does not lead.
    pub fn current(&self) -> watch::Receiver<Option<Arc<ClaimController>>> {
        self.0.current()
    }

    /// The errors of the watches that fail.
    pub fn problems(&self) -> WatchProblems {
        self.0.problems()
    }

    /// Begins and ends terms with the leadership, until `stop` is cancelled. When this returns, no watch and no pass runs.
    ///
    /// Returns whether the lease may be given back. It may not while the server may still perform a create of the last term: the next leader
    /// would not find the claim, and create a second one.
    pub async fn run(self, leadership: watch::Receiver<Leadership>, stop: CancellationToken) -> bool {
        let clock = self.0.ports.clock.clone();
        let unanswered = self.0.run(leadership, stop).await;
        !unanswered.may_be_performed(clock.now())
    }
}

impl TermController for ClaimController {
    const NAME: &'static str = CONTROLLER_NAME;
    type Config = ClaimControllerConfig;
    type Ports = ClaimControllerPorts;
    type Left = UnansweredCreates;

    fn metrics(ports: &ClaimControllerPorts) -> &ControllersMetrics {
        &ports.metrics
    }

    fn of_term(ports: &ClaimControllerPorts, term: u64) -> ClaimControllerPorts {
        ClaimControllerPorts { lease: ports.lease.of_term(term), ..ports.clone() }
    }

    fn begin(config: ClaimControllerConfig, ports: ClaimControllerPorts, left: UnansweredCreates) -> Self {
        ClaimController::start(config, ports, left)
    }

    fn watch(
        controller: &Arc<Self>,
        config: ClaimControllerConfig,
        client: &Client,
        problems: &WatchProblems,
        parts: &Parts,
    ) {
        watches::start(client, controller, config.features, problems, parts);
    }

    async fn end(&self) -> UnansweredCreates {
        self.stop().await
    }

    fn close_events(ports: &ClaimControllerPorts, limit: Duration) -> BoxFuture<'_, usize> {
        ports.api.close_events(limit)
    }
}
