//! The API server of `--kubeconfig`.

use std::sync::Arc;
use std::time::Duration;

use kube::Client;
use tokio::sync::watch;
use tokio::time::timeout;

use super::node::{Background, ClusterPorts, StartEvents};
use crate::adapters::kube::{KubeEvents, KubeNodeApi, KubeObjects, KubePodApi, PodSource};
use crate::agent::certificates::{ClientCredentials, ClientError, ClientSettings};
use crate::agent::cli::RunArgs;
use crate::agent::root::RootDirectory;
use crate::agent::view::NodeView;
use podwright_actors::Registration;
use podwright_actors::node::NodeHandle;
use podwright_model::text::error_chain;
use podwright_ports::{ApiError, Severity, SourceInbox, SourceKind, SourceProblem, SourceUpdate, SystemClock};

/// How long the deletion of the node may take when the agent ends.
const DEREGISTRATION: Duration = Duration::from_secs(5);

/// The connection to an API server.
pub(super) struct Cluster {
    client: Client,
    credentials: ClientCredentials,
}

impl Cluster {
    /// The API server that the flags name, if they name one. Does not wait for the server.
    pub(super) async fn of(args: &RunArgs, root: &RootDirectory, node: &str) -> Result<Option<Self>, ClientError> {
        let Some(kubeconfig) = args.kubeconfig.clone() else { return Ok(None) };
        let bootstrap = args.certificates.bootstrap_kubeconfig.clone();
        let directory = args.certificates.directory(root.path());
        let settings = ClientSettings { node: node.to_owned(), directory, kubeconfig, bootstrap };
        let (client, credentials) = ClientCredentials::open(settings).await?;
        Ok(Some(Cluster { client, credentials }))
    }

    /// The client of the API server.
    pub(super) fn client(&self) -> Client {
        self.client.clone()
    }

    /// The ports of a node that the API server implements.
    pub(super) fn ports(&self, args: &RunArgs, node: &str) -> ClusterPorts {
        let objects = Arc::new(KubeObjects::new(self.client.clone(), Arc::new(SystemClock::new())));
        ClusterPorts {
            pod_api: Some(Arc::new(KubePodApi::new(self.client.clone()))),
            node_api: Some(Arc::new(KubeNodeApi::new(self.client.clone(), node))),
            pull_secrets: objects.clone(),
            accounts: Some(objects.clone()),
            objects: Some(objects),
            claims: super::claims::ClaimServer {
                claims: Some(Arc::new(crate::adapters::kube::KubeClaimApi::new(self.client.clone()))),
                slices: Some(self.slices(args, node)),
            },
            events: Some(self.events(args, node)),
            port: 0,
        }
    }

    /// The settings for the slices of the node.
    fn slices(&self, args: &RunArgs, node: &str) -> crate::adapters::dra::SlicesConfig {
        let mut slices = crate::adapters::dra::SlicesConfig::new(self.client.clone(), node);
        slices.startup_wipe_delay = args.startup_wipe_delay;
        slices
    }

    /// The recorder that writes events of this node.
    fn events(&self, args: &RunArgs, node: &str) -> StartEvents {
        let (client, node, rate) = (self.client.clone(), node.to_owned(), args.events.rate());
        Box::new(move |clock, metrics| Arc::new(KubeEvents::start(client, &node, clock, metrics.events.clone(), rate)))
    }

    /// Follows the credentials, and starts the source of pods. The source sends them to the node. No pod of the API server runs before
    /// the node is registered.
    pub(super) fn start(self, name: &str, node: &NodeHandle, view: &NodeView, background: &Background) {
        let Cluster { client, mut credentials } = self;
        let metrics = view.metrics.certificates.clone();
        // Until the agent has ended, statuses and the lease are written with the credentials.
        background.parts.spawn_local("client_credentials", async move || credentials.run(&metrics).await);
        let (name, clock) = (name.to_owned(), view.clock.clone());
        let (updates, registration) = (node.sources(), node.registration());
        let stop = background.sources.stop().clone();
        background.sources.spawn_local("pod_source", async move || {
            if let Some(registration) = registration.clone()
                && !until_registered(registration, &*updates).await
            {
                return;
            }
            PodSource::new(client.clone(), name.clone(), clock.clone()).run(updates.clone(), stop.clone()).await;
        });
    }
}

/// Waits until the node is registered. If the registration takes long, publishes the reason as a problem of the source. Returns false
/// if the node is never registered.
async fn until_registered(mut registration: watch::Receiver<Registration>, updates: &dyn SourceInbox) -> bool {
    loop {
        let problem = match &*registration.borrow_and_update() {
            Registration::Registered(_) | Registration::Deleted(_) => return true,
            Registration::Pending { problem } => problem.clone(),
            _ => return false,
        };
        if let Some(message) = problem {
            let problem =
                SourceProblem { what: "API server".to_owned(), message, pods: Vec::new(), severity: Severity::Fault };
            let update = SourceUpdate::NotYet { source: SourceKind::Api, problems: vec![problem] };
            if updates.send(update).await.is_err() {
                return false;
            }
        }
        if registration.changed().await.is_err() {
            return false;
        }
    }
}

/// Deletes the node from the API server.
pub(super) async fn deregister(node: &NodeHandle) {
    match timeout(DEREGISTRATION, node.deregister()).await {
        Ok(Ok(true)) => tracing::info!("the node is deleted from the API server"),
        Ok(Ok(false)) => tracing::info!(
            "the node is not deleted from the API server: this agent has not registered it, or another agent or a kubelet has claimed it"
        ),
        Ok(Err(ApiError::Conflict(_))) => {
            tracing::info!("the node is not deleted from the API server: another node of this name exists and is left");
        }
        Ok(Err(error)) => {
            let error = error_chain(&error).to_string();
            tracing::warn!(
                error,
                "cannot delete the node from the API server: grant the verb delete on nodes, or delete it by hand"
            );
        }
        Err(_) => tracing::warn!("the API server did not delete the node in time: delete it by hand"),
    }
}
