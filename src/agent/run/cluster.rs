//! The API server of `--kubeconfig`.

use std::sync::Arc;

use actix::Recipient;
use kube::Client;
use tokio_util::sync::CancellationToken;

use crate::actors::ports::{Clock, PodApi, SourceUpdate};
use crate::adapters::kube::{ConnectError, KubeObjects, KubePodApi, PodSource, connect};
use crate::agent::cli::RunArgs;

/// The connection to an API server.
pub(super) struct Cluster {
    client: Client,
}

impl Cluster {
    /// The API server that the flags name, if they name one. Does not wait for the server.
    pub(super) async fn of(args: &RunArgs) -> Result<Option<Self>, ConnectError> {
        match &args.kubeconfig {
            Some(kubeconfig) => Ok(Some(Cluster { client: connect(kubeconfig).await? })),
            None => Ok(None),
        }
    }

    /// The objects that pods refer to.
    pub(super) fn objects(&self, clock: Arc<dyn Clock>) -> Arc<KubeObjects> {
        Arc::new(KubeObjects::new(self.client.clone(), clock))
    }

    pub(super) fn pod_api(&self) -> Arc<dyn PodApi> {
        Arc::new(KubePodApi::new(self.client.clone()))
    }

    /// Starts the source of pods. It sends them to `to` until `stop` is cancelled.
    pub(super) fn start(self, node: &str, clock: Arc<dyn Clock>, to: Recipient<SourceUpdate>, stop: CancellationToken) {
        actix::spawn(PodSource::new(self.client, node, clock).run(to, stop));
    }
}
