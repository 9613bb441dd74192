//! The controllers over HTTP, on an API server in memory.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

mod claims;
mod deployment;
mod faults;
mod groups;
mod leaders;
mod taint_changes;
mod taint_replica;
mod taint_times;
mod taints;

use std::sync::Arc;
use std::time::Duration;

use kube::Client;
use podwright_cluster::{CLAIMS, Cluster, ENTRY, MERGE, PARAMETERS, PODS, recorded};
use podwright_controllers::claim_controller::{ClaimController, ClaimControllerConfig, ClaimControllerPorts};
use podwright_controllers::leader_election::{Candidate, Elector, Leadership, LeaseGuard, LeaseName, Timing};
use podwright_fixtures::polling::{PATIENCE, eventually};
use podwright_kube::connect;
use podwright_kube_controllers::{ClaimTerms, KubeLeases, KubeResourceClaims};
use podwright_metrics::ControllersMetrics;
use podwright_ports::{SystemClock, TokioClock};
use podwright_stand_in::{StandIn, User};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// A client of an administrator, as the controllers make it.
async fn client(cluster: &Cluster) -> Client {
    client_of(cluster, &User::admin()).await
}

async fn client_of(cluster: &Cluster, user: &User) -> Client {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("kubeconfig");
    cluster.server.write_kubeconfig(&path, &cluster.server.token(user.clone())).unwrap();
    connect(&path).await.unwrap()
}

/// The election of a replica with short durations. A busy machine must not end a term.
fn elector(client: &Client, lease: &str, identity: &str) -> Elector {
    let name = LeaseName { namespace: "kube-system".to_owned(), name: lease.to_owned() };
    let timing = Timing {
        lease_duration: Duration::from_secs(12),
        renew_deadline: Duration::from_secs(10),
        retry_period: Duration::from_millis(200),
    };
    let leases = Arc::new(KubeLeases::new(client.clone(), &name));
    Elector::new(leases, Candidate::new(identity, name, timing), Arc::new(SystemClock::new()))
}

/// A replica of the controller, in tasks of the test.
struct Replica {
    stop: CancellationToken,
    resign: CancellationToken,
    terms: JoinHandle<bool>,
    election: Option<JoinHandle<()>>,
    leadership: watch::Receiver<Leadership>,
    current: watch::Receiver<Option<Arc<ClaimController>>>,
    metrics: ControllersMetrics,
    /// The leadership of a replica without an election.
    term: Option<watch::Sender<Leadership>>,
}

impl Replica {
    /// A replica that leads.
    fn alone(client: Client) -> Self {
        Self::alone_with(client, ClaimControllerConfig::default())
    }

    /// A replica that leads, with these settings.
    fn alone_with(client: Client, config: ClaimControllerConfig) -> Self {
        let (term, leadership) = watch::channel(Leadership::Leading { term: 1 });
        Replica { term: Some(term), ..Self::with(client, config, leadership, LeaseGuard::without_election()) }
    }

    /// A replica that takes part in an election with short durations.
    fn elected(client: Client, identity: &str) -> Self {
        let elector = elector(&client, "resourceclaim-controller", identity);
        // The replica gives its lease back only if all creates in flight are answered. A slow machine needs time for the answers.
        let config = ClaimControllerConfig { creates_timeout: PATIENCE, ..ClaimControllerConfig::default() };
        let replica = Self::with(client, config, elector.leadership(), elector.guard());
        let election = tokio::spawn(elector.run(replica.resign.clone()));
        Replica { election: Some(election), ..replica }
    }

    fn with(
        client: Client,
        config: ClaimControllerConfig,
        leadership: watch::Receiver<Leadership>,
        lease: LeaseGuard,
    ) -> Self {
        let metrics = ControllersMetrics::new();
        let api = KubeResourceClaims::new(client.clone(), Arc::new(SystemClock::new()), metrics.events.clone());
        let clock = Arc::new(TokioClock::new());
        let ports = ClaimControllerPorts { api: Arc::new(api), clock, metrics: metrics.clone(), lease };
        let terms = ClaimTerms::new(client, config, ports);
        let (stop, current) = (CancellationToken::new(), terms.current());
        let terms = tokio::spawn(terms.run(leadership.clone(), stop.clone()));
        let resign = CancellationToken::new();
        Replica { stop, resign, terms, election: None, leadership, current, metrics, term: None }
    }

    fn leads(&self) -> bool {
        self.leadership.borrow().is_leading()
    }

    /// Whether nothing is queued, and no pass runs.
    fn is_idle(&self) -> bool {
        self.current.borrow().as_ref().is_some_and(|controller| controller.is_synced() && controller.queued() == 0)
    }

    async fn until_idle(&self) {
        eventually("the controller is idle", || async { self.is_idle().then_some(()) }).await;
    }

    /// Stops as the binary does.
    async fn stop(self) {
        self.stop.cancel();
        self.terms.await.unwrap();
        self.resign.cancel();
        if let Some(election) = self.election {
            election.await.unwrap();
        }
    }

    /// Ends at once, like a process that is killed.
    fn crash(&self) {
        self.terms.abort();
        if let Some(election) = &self.election {
            election.abort();
        }
    }
}
