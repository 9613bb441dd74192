//! The API server's node and lease in paused time, with the rights of the node.

use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::{self, BoxStream};
use futures_util::{FutureExt, StreamExt};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node;
use podwright_ports::{ApiError, ApiFuture, Freshness, NodeApi};
use podwright_stand_in::{Refusal, User};
use serde_json::{Value, json};
use tokio::time::sleep;

use super::fake_pod_api::{FakePodApi, Writer};

const NODES: &str = "/api/v1/nodes";
const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";
const STRATEGIC: &str = "application/strategic-merge-patch+json";
const JSON: &str = "application/json";

/// The API server of `node1`.
pub(crate) struct FakeNodeApi {
    pub(crate) server: Arc<FakePodApi>,
    /// The name in the credentials.
    pub(crate) user: &'static str,
}

impl FakeNodeApi {
    /// The node, as an administrator reads it.
    pub(crate) fn read(&self) -> Option<Value> {
        self.server.request("GET", &node_path(), JSON, &Value::Null).ok()
    }

    /// The lease, as an administrator reads it.
    pub(crate) fn read_lease(&self) -> Option<Value> {
        self.server.request("GET", &lease_path(), JSON, &Value::Null).ok()
    }

    /// A condition of the node.
    pub(crate) fn condition(&self, kind: &str) -> Option<Value> {
        let node = self.read()?;
        node["status"]["conditions"].as_array()?.iter().find(|condition| condition["type"] == kind).cloned()
    }

    /// The status of the condition `Ready` with its message.
    pub(crate) fn ready(&self) -> String {
        let Some(ready) = self.condition("Ready") else { return "absent".to_owned() };
        format!("{} {}", ready["status"].as_str().unwrap(), ready["message"].as_str().unwrap())
    }

    /// Each agent has a `FakeNodeApi` of its own, so the address tells the agents apart.
    fn writer(&self) -> Writer {
        Writer::Node(std::ptr::from_ref(self).addr())
    }

    fn request(&self, method: &str, path: &str, content_type: &str, body: &Value) -> Result<Value, Refusal> {
        self.server.request_of(User::node(self.user), method, path, content_type, body)
    }

    fn node_call(
        &self,
        method: &'static str,
        path: String,
        content_type: &'static str,
        body: Value,
    ) -> ApiFuture<'_, Node> {
        self.server
            .call(method, "node", self.writer(), move || {
                let node = self.request(method, &path, content_type, &body)?;
                Ok(serde_json::from_value(node).expect("the server sends a node"))
            })
            .boxed()
    }

    fn lease_call(&self, method: &'static str, path: String, body: Value) -> ApiFuture<'_, Lease> {
        self.server
            .call(method, "lease", self.writer(), move || {
                let lease = self.request(method, &path, JSON, &body)?;
                Ok(serde_json::from_value(lease).expect("the server sends a lease"))
            })
            .boxed()
    }
}

impl NodeApi for FakeNodeApi {
    fn node(&self, _: Freshness) -> ApiFuture<'_, Node> {
        self.node_call("GET", node_path(), JSON, Value::Null)
    }

    /// Looks for another version every 100 ms.
    fn versions(&self) -> BoxStream<'_, Result<Option<Node>, ApiError>> {
        let next = move |last: Option<Result<Value, ()>>| async move {
            loop {
                sleep(Duration::from_millis(100)).await;
                let current = if self.server.is_watch_broken() { Err(()) } else { Ok(self.read().unwrap_or_default()) };
                if last.as_ref() != Some(&current) {
                    let version = match &current {
                        Ok(node) if node.is_null() => Ok(None),
                        Ok(node) => Ok(Some(serde_json::from_value(node.clone()).expect("the server has a node"))),
                        Err(()) => Err(ApiError::unavailable("the watch is broken", None)),
                    };
                    return Some((version, Some(current)));
                }
            }
        };
        stream::unfold(None, next).boxed()
    }

    fn create_node<'a>(&'a self, node: &'a Node) -> ApiFuture<'a, Node> {
        self.node_call("POST", NODES.to_owned(), JSON, serde_json::to_value(node).expect("a node is JSON"))
    }

    fn patch_node(&self, patch: Value) -> ApiFuture<'_, Node> {
        self.node_call("PATCH", node_path(), STRATEGIC, patch)
    }

    fn patch_node_status(&self, patch: Value) -> ApiFuture<'_, Node> {
        self.node_call("PATCH", format!("{}/status", node_path()), STRATEGIC, patch)
    }

    fn delete_node<'a>(&'a self, uid: &'a str) -> ApiFuture<'a, ()> {
        let options = json!({"preconditions": {"uid": uid}});
        self.server
            .call("DELETE", "node", self.writer(), move || {
                self.request("DELETE", &node_path(), JSON, &options).map(drop)
            })
            .boxed()
    }

    fn lease(&self) -> ApiFuture<'_, Lease> {
        self.lease_call("GET", lease_path(), Value::Null)
    }

    fn create_lease<'a>(&'a self, lease: &'a Lease) -> ApiFuture<'a, Lease> {
        self.lease_call("POST", LEASES.to_owned(), serde_json::to_value(lease).expect("a lease is JSON"))
    }

    fn replace_lease<'a>(&'a self, lease: &'a Lease) -> ApiFuture<'a, Lease> {
        self.lease_call("PUT", lease_path(), serde_json::to_value(lease).expect("a lease is JSON"))
    }

    fn delete_lease<'a>(&'a self, lease: &'a Lease) -> ApiFuture<'a, ()> {
        let options = json!({"preconditions": {"resourceVersion": lease.metadata.resource_version}});
        self.server
            .call("DELETE", "lease", self.writer(), move || {
                self.request("DELETE", &lease_path(), JSON, &options).map(drop)
            })
            .boxed()
    }
}

fn node_path() -> String {
    format!("{NODES}/node1")
}

fn lease_path() -> String {
    format!("{LEASES}/node1")
}
