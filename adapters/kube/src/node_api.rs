//! Reads and writes the Node object of this node and its lease.

use std::time::Duration;

use futures_util::stream::BoxStream;
use futures_util::{FutureExt, StreamExt, TryStreamExt};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node;
use kube::api::{DeleteParams, GetParams, Patch, PatchParams, PostParams, Preconditions};
use kube::{Api, Client};
use podwright_ports::{ApiError, ApiFuture, Freshness, NodeApi};
use serde_json::Value;

use super::call::limited_to;
use super::listing;

/// The namespace of the leases of nodes (`core/v1`, `NamespaceNodeLease`).
const LEASES: &str = "kube-node-lease";
/// How long one call may take (upstream `nodeStatusUpdateFrequency`, the timeout of the kubelet's heartbeat client, 1.36). A lease has
/// to be renewed within 40 s.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);

/// The [`NodeApi`] of an API server.
#[derive(Clone)]
pub struct KubeNodeApi {
    name: String,
    nodes: Api<Node>,
    leases: Api<Lease>,
}

impl KubeNodeApi {
    /// Calls over a client for the node of this name.
    pub fn new(client: Client, name: impl Into<String>) -> Self {
        let leases = Api::namespaced(client.clone(), LEASES);
        KubeNodeApi { name: name.into(), nodes: Api::all(client), leases }
    }
}

impl NodeApi for KubeNodeApi {
    fn node(&self, freshness: Freshness) -> ApiFuture<'_, Node> {
        async move {
            let params = match freshness {
                Freshness::Cached => GetParams { resource_version: Some("0".to_owned()) },
                Freshness::Newest => GetParams::default(),
            };
            limited_to(CALL_TIMEOUT, self.nodes.get_with(&self.name, &params)).await.map(without_managers)
        }
        .boxed()
    }

    fn versions(&self) -> BoxStream<'_, Result<Option<Node>, ApiError>> {
        let versions = listing::watch_object(self.nodes.clone(), &self.name);
        let versions = versions.map_ok(|node| node.map(without_managers));
        versions.map_err(|error| ApiError::unavailable(error, None)).boxed()
    }

    fn create_node<'a>(&'a self, node: &'a Node) -> ApiFuture<'a, Node> {
        async move {
            let created = limited_to(CALL_TIMEOUT, self.nodes.create(&PostParams::default(), node)).await;
            created.map(without_managers)
        }
        .boxed()
    }

    fn patch_node(&self, patch: Value) -> ApiFuture<'_, Node> {
        async move {
            let (params, patch) = (PatchParams::default(), Patch::Strategic(patch));
            limited_to(CALL_TIMEOUT, self.nodes.patch(&self.name, &params, &patch)).await.map(without_managers)
        }
        .boxed()
    }

    fn patch_node_status(&self, patch: Value) -> ApiFuture<'_, Node> {
        async move {
            let (params, patch) = (PatchParams::default(), Patch::Strategic(patch));
            limited_to(CALL_TIMEOUT, self.nodes.patch_status(&self.name, &params, &patch)).await.map(without_managers)
        }
        .boxed()
    }

    fn delete_node<'a>(&'a self, uid: &'a str) -> ApiFuture<'a, ()> {
        async move {
            let preconditions = Preconditions { uid: Some(uid.to_owned()), ..Preconditions::default() };
            let params = DeleteParams::default().preconditions(preconditions);
            limited_to(CALL_TIMEOUT, self.nodes.delete(&self.name, &params)).await.map(drop)
        }
        .boxed()
    }

    fn lease(&self) -> ApiFuture<'_, Lease> {
        limited_to(CALL_TIMEOUT, self.leases.get(&self.name)).boxed()
    }

    fn create_lease<'a>(&'a self, lease: &'a Lease) -> ApiFuture<'a, Lease> {
        async move { limited_to(CALL_TIMEOUT, self.leases.create(&PostParams::default(), lease)).await }.boxed()
    }

    fn replace_lease<'a>(&'a self, lease: &'a Lease) -> ApiFuture<'a, Lease> {
        async move { limited_to(CALL_TIMEOUT, self.leases.replace(&self.name, &PostParams::default(), lease)).await }
            .boxed()
    }

    fn delete_lease<'a>(&'a self, lease: &'a Lease) -> ApiFuture<'a, ()> {
        async move {
            let resource_version = lease.metadata.resource_version.clone();
            let preconditions = Preconditions { resource_version, ..Preconditions::default() };
            let params = DeleteParams::default().preconditions(preconditions);
            limited_to(CALL_TIMEOUT, self.leases.delete(&self.name, &params)).await.map(drop)
        }
        .boxed()
    }
}

/// The node without its field managers, which take half of its memory.
fn without_managers(mut node: Node) -> Node {
    node.metadata.managed_fields = None;
    node
}
