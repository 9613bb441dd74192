//! Runs the ResourceClaim controller while this replica leads.

use std::sync::Arc;

use kube::Client;
use podwright_actors::controllers::claim_controller::{ClaimController, ClaimControllerConfig, ClaimControllerPorts};
use podwright_actors::controllers::leader_election::Leadership;
use podwright_actors::controllers::resource_claim::{CONTROLLER_NAME, UnansweredCreates};
use tokio::sync::watch;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::watch_problems::WatchProblems;
use super::watches;

/// The terms of this replica as the leader. Each term has a controller with an empty cache and watches of its own, which begin with a
/// list from the storage of the server. So a term knows everything that the previous leader has done. It also knows the unanswered creates
/// of the previous term of this process.
pub struct ClaimTerms {
    client: Client,
    config: ClaimControllerConfig,
    ports: ClaimControllerPorts,
    current: watch::Sender<Option<Arc<ClaimController>>>,
    problems: WatchProblems,
}

impl ClaimTerms {
    /// The terms before the first one begins.
    pub fn new(client: Client, config: ClaimControllerConfig, ports: ClaimControllerPorts) -> Self {
        let problems = WatchProblems::new(CONTROLLER_NAME, ports.metrics.watches.clone());
        let current = watch::Sender::new(None);
        ClaimTerms { client, config, ports, current, problems }
    }

    /// The controller of the current term. `None` while this replica does not lead.
    pub fn current(&self) -> watch::Receiver<Option<Arc<ClaimController>>> {
        self.current.subscribe()
    }

    /// The errors of the watches that fail.
    pub fn problems(&self) -> WatchProblems {
        self.problems.clone()
    }

    /// Begins and ends terms with the leadership, until `stop` is cancelled. When this returns, no watch and no pass runs.
    ///
    /// Returns whether the lease may be given back. It may not while the server may still perform a create of the last term: the next leader
    /// would not find the claim, and create a second one.
    pub async fn run(self, mut leadership: watch::Receiver<Leadership>, stop: CancellationToken) -> bool {
        let mut unanswered = UnansweredCreates::default();
        loop {
            let leads = async { Some(leadership.wait_for(Leadership::is_leading).await.ok()?.clone()) };
            // Without a sender, the election has ended.
            let Some(Some(leading)) = stop.run_until_cancelled(leads).await else { break };
            unanswered = self.run_term(unanswered, &leading, &mut leadership, &stop).await;
            if stop.is_cancelled() {
                break;
            }
        }
        !unanswered.may_be_performed(self.ports.clock.now())
    }

    /// Runs the controller until the leadership changes or `stop` is cancelled. Returns the unanswered creates.
    async fn run_term(
        &self,
        unanswered: UnansweredCreates,
        leading: &Leadership,
        leadership: &mut watch::Receiver<Leadership>,
        stop: &CancellationToken,
    ) -> UnansweredCreates {
        let lease = match leading {
            Leadership::Leading { term } => self.ports.lease.of_term(*term),
            Leadership::Following { .. } => return unanswered,
        };
        let ports = ClaimControllerPorts { lease, ..self.ports.clone() };
        let controller = Arc::new(ClaimController::start(self.config, ports, unanswered));
        let watched = stop.child_token();
        // If this future is dropped, the watches end, and with the last reference to the controller its passes.
        let _term_end = TermEnd::new(&self.current, &watched);
        let panics = &self.ports.metrics.panics;
        let watches = watches::start(&self.client, &controller, self.config.features, &self.problems, panics, &watched);
        self.current.send_replace(Some(controller.clone()));
        tracing::info!(controller = CONTROLLER_NAME, "controller started");
        let ends = async { leadership.wait_for(|leadership| leadership != leading).await.is_ok() };
        let _by_election = stop.run_until_cancelled(ends).await;
        self.current.send_replace(None);
        watched.cancel();
        let unanswered = controller.stop().await;
        watches.wait().await;
        self.problems.reset();
        tracing::info!(controller = CONTROLLER_NAME, "controller stopped");
        unanswered
    }
}

/// Ends the watches of a term and the use of its controller by others.
pub(super) struct TermEnd<'a, C> {
    current: &'a watch::Sender<Option<Arc<C>>>,
    _watches: DropGuard,
}

impl<'a, C> TermEnd<'a, C> {
    pub(super) fn new(current: &'a watch::Sender<Option<Arc<C>>>, watched: &CancellationToken) -> Self {
        TermEnd { current, _watches: watched.clone().drop_guard() }
    }
}

impl<C> Drop for TermEnd<'_, C> {
    fn drop(&mut self) {
        self.current.send_replace(None);
    }
}
