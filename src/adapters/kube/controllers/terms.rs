//! Runs the ResourceClaim controller while this replica leads.

use std::sync::Arc;

use kube::Client;
use podwright_actors::controllers::claim_controller::{ClaimController, ClaimControllerConfig, ClaimControllerPorts};
use podwright_actors::controllers::leader_election::Leadership;
use podwright_actors::controllers::resource_claim::CONTROLLER_NAME;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::watches::{self, WatchProblems};

/// The terms of this replica as the leader. Each term has a controller with an empty cache and watches of its own, which begin with a
/// list from the storage of the server. So a term begins with everything that the previous leader has done.
pub struct ClaimTerms {
    client: Client,
    config: ClaimControllerConfig,
    ports: ClaimControllerPorts,
    current: watch::Sender<Option<Arc<ClaimController>>>,
    problems: WatchProblems,
}

impl ClaimTerms {
    /// No term has begun.
    pub fn new(client: Client, config: ClaimControllerConfig, ports: ClaimControllerPorts) -> Self {
        let (current, problems) = (watch::Sender::new(None), WatchProblems::default());
        ClaimTerms { client, config, ports, current, problems }
    }

    /// The controller of the current term. `None` while this replica does not lead.
    pub fn current(&self) -> watch::Receiver<Option<Arc<ClaimController>>> {
        self.current.subscribe()
    }

    /// Why watches do not deliver.
    pub fn problems(&self) -> WatchProblems {
        self.problems.clone()
    }

    /// Begins and ends terms with the leadership, until `stop` is cancelled. When this returns, no watch and no pass runs.
    pub async fn run(self, mut leadership: watch::Receiver<Leadership>, stop: CancellationToken) {
        loop {
            let leads = async { leadership.wait_for(Leadership::is_leading).await.is_ok() };
            // Without a sender, the election has ended.
            if stop.run_until_cancelled(leads).await != Some(true) {
                return;
            }
            let (watched, controller) = (stop.child_token(), ClaimController::start(self.config, self.ports.clone()));
            let controller = Arc::new(controller);
            // Also if this future is dropped, no watch goes on.
            let _ends_watches = watched.clone().drop_guard();
            self.problems.reset();
            let watches = watches::start(&self.client, &controller, self.config.features, &self.problems, &watched);
            self.current.send_replace(Some(controller.clone()));
            tracing::info!(controller = CONTROLLER_NAME, "the controller has started");
            let ends = async { leadership.wait_for(|leadership| !leadership.is_leading()).await.is_ok() };
            let _by_election = stop.run_until_cancelled(ends).await;
            self.current.send_replace(None);
            watched.cancel();
            controller.stop().await;
            watches.wait().await;
            tracing::info!(controller = CONTROLLER_NAME, "the controller has stopped");
            if stop.is_cancelled() {
                return;
            }
        }
    }
}
