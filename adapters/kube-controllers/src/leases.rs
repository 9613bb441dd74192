//! Reads and writes the lease of an election.

use std::time::Duration;

use futures_util::FutureExt;
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::PostParams;
use kube::{Api, Client};
use podwright_controllers::leader_election::LeaseName;
use podwright_ports::{ApiFuture, LeaseApi};

use podwright_kube::limited_to;

/// How long one call may take. The election has a shorter limit of its own.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);

/// The [`LeaseApi`] of an API server.
#[derive(Clone)]
pub struct KubeLeases {
    name: String,
    leases: Api<Lease>,
}

impl KubeLeases {
    /// Performs the calls for one lease with this client.
    pub fn new(client: Client, name: &LeaseName) -> Self {
        KubeLeases { name: name.name.clone(), leases: Api::namespaced(client, &name.namespace) }
    }
}

impl LeaseApi for KubeLeases {
    fn read(&self) -> ApiFuture<'_, Lease> {
        limited_to(CALL_TIMEOUT, self.leases.get(&self.name)).boxed()
    }

    fn create<'a>(&'a self, lease: &'a Lease) -> ApiFuture<'a, Lease> {
        async move { limited_to(CALL_TIMEOUT, self.leases.create(&PostParams::default(), lease)).await }.boxed()
    }

    fn replace<'a>(&'a self, lease: &'a Lease) -> ApiFuture<'a, Lease> {
        async move { limited_to(CALL_TIMEOUT, self.leases.replace(&self.name, &PostParams::default(), lease)).await }
            .boxed()
    }
}
