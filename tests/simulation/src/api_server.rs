//! The API server as the writers of the agent see it: it patches statuses, deletes pods, and has the Node object, its lease and the mirror
//! pods.

use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::stream::{self, BoxStream};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::serde::Serialize;
use k8s_openapi::serde::de::DeserializeOwned;
use parking_lot::Mutex;
use podwright_model::ids::PodUid;
use podwright_model::pod::PodObject;
use podwright_ports::{ApiError, ApiFuture, Freshness, NodeApi, PodApi};
use serde_json::{Map, Value, json};

use super::faulty_ports::NODE;
use super::laws::Laws;
use super::machine::{CallDetail, Machine};
use super::scenario::Op;
use super::sources::SimSources;

pub(super) struct SimApiServer {
    machine: Arc<Machine>,
    sources: Arc<Mutex<SimSources>>,
    laws: Laws,
    node: Mutex<SimNode>,
}

/// The Node object and its lease.
#[derive(Default)]
struct SimNode {
    version: u64,
    node: Option<Node>,
    lease: Option<Lease>,
}

impl SimApiServer {
    pub(super) fn new(machine: Arc<Machine>, sources: Arc<Mutex<SimSources>>, laws: Laws) -> Self {
        SimApiServer { machine, sources, laws, node: Mutex::default() }
    }

    fn check_reachable(&self) -> Result<(), ApiError> {
        let is_away = self.sources.lock().is_away(self.machine.clock.steady());
        if is_away { Err(ApiError::unavailable("the API server is away", None)) } else { Ok(()) }
    }

    async fn call<T>(
        &self,
        op: Op,
        uid: &PodUid,
        perform: impl FnOnce() -> Result<T, ApiError>,
    ) -> Result<T, ApiError> {
        let work = async {
            self.check_reachable()?;
            perform()
        };
        self.machine.call(op, uid, CallDetail::Nothing, work).await
    }

    fn edit_node<T>(&self, edit: impl FnOnce(&mut SimNode, &str) -> Result<T, ApiError>) -> Result<T, ApiError> {
        let mut node = self.node.lock();
        node.version += 1;
        let version = node.version.to_string();
        edit(&mut node, &version)
    }

    fn patch_object(&self, patch: &Value) -> Result<Node, ApiError> {
        self.edit_node(|state, version| {
            let node = state.node.as_mut().ok_or(ApiError::NotFound)?;
            let mut value = serde_json::to_value(&*node).unwrap();
            merge(&mut value, patch);
            let mut patched: Node = serde_json::from_value(value).unwrap();
            patched.metadata.resource_version = Some(version.to_owned());
            self.laws.node_written(node, &patched);
            *node = patched;
            Ok(node.clone())
        })
    }
}

impl PodApi for SimApiServer {
    fn patch_status<'a>(&'a self, pod: &'a PodObject, patch: Value) -> ApiFuture<'a, Arc<PodObject>> {
        let perform = move || {
            let mut sources = self.sources.lock();
            let before = sources.api_object(pod.full_name()).ok_or(ApiError::NotFound)?;
            if patch["metadata"]["uid"] != json!(before.uid().to_string()) {
                return Err(ApiError::conflict("another UID"));
            }
            let mut status = serde_json::to_value(before.status().cloned().unwrap_or_default()).unwrap();
            merge(&mut status, &patch["status"]);
            let after = sources.set_status(&before, serde_json::from_value(status).unwrap());
            drop(sources);
            self.laws.status_written(&before, &after);
            Ok(after)
        };
        self.call(Op::PatchStatus, pod.uid(), perform).boxed()
    }

    fn delete<'a>(&'a self, pod: &'a PodObject) -> ApiFuture<'a, ()> {
        let perform = move || {
            let found = self.sources.lock().api_object(pod.full_name()).ok_or(ApiError::NotFound)?;
            if found.uid() != pod.uid() {
                return Err(ApiError::conflict("another UID"));
            }
            self.laws.pod_deleted(&found);
            self.sources.lock().delete_object(&found);
            Ok(())
        };
        self.call(Op::DeletePod, pod.uid(), perform).boxed()
    }

    fn create<'a>(&'a self, pod: &'a Pod) -> ApiFuture<'a, Arc<PodObject>> {
        let perform = move || {
            let name = pod.metadata.name.clone().unwrap_or_default();
            let created = self.sources.lock().create_mirror(&name, pod)?;
            self.laws.pod_created(&created);
            Ok(created)
        };
        self.call(Op::CreatePod, &NODE, perform).boxed()
    }
}

impl NodeApi for SimApiServer {
    fn node(&self, _: Freshness) -> ApiFuture<'_, Node> {
        self.call(Op::NodeApi, &NODE, || self.node.lock().node.clone().ok_or(ApiError::NotFound)).boxed()
    }

    /// The node reads its object periodically.
    fn versions(&self) -> BoxStream<'_, Result<Option<Node>, ApiError>> {
        Box::pin(stream::pending())
    }

    fn create_node<'a>(&'a self, node: &'a Node) -> ApiFuture<'a, Node> {
        let perform = || {
            self.edit_node(|state, version| {
                if state.node.is_some() {
                    return Err(ApiError::conflict("it exists"));
                }
                let mut node = stored(node);
                node.metadata.uid = Some("the-node".to_owned());
                node.metadata.resource_version = Some(version.to_owned());
                Ok(state.node.insert(node).clone())
            })
        };
        self.call(Op::NodeApi, &NODE, perform).boxed()
    }

    fn patch_node(&self, patch: Value) -> ApiFuture<'_, Node> {
        self.call(Op::NodeApi, &NODE, move || self.patch_object(&patch)).boxed()
    }

    fn patch_node_status(&self, patch: Value) -> ApiFuture<'_, Node> {
        self.call(Op::NodeApi, &NODE, move || self.patch_object(&patch)).boxed()
    }

    fn delete_node<'a>(&'a self, _: &'a str) -> ApiFuture<'a, ()> {
        async { Ok(()) }.boxed()
    }

    fn lease(&self) -> ApiFuture<'_, Lease> {
        self.call(Op::NodeApi, &NODE, || self.node.lock().lease.clone().ok_or(ApiError::NotFound)).boxed()
    }

    fn create_lease<'a>(&'a self, lease: &'a Lease) -> ApiFuture<'a, Lease> {
        let perform = || {
            self.edit_node(|state, version| {
                if state.lease.is_some() {
                    return Err(ApiError::conflict("it exists"));
                }
                let mut lease = stored(lease);
                lease.metadata.resource_version = Some(version.to_owned());
                Ok(state.lease.insert(lease).clone())
            })
        };
        self.call(Op::NodeApi, &NODE, perform).boxed()
    }

    fn replace_lease<'a>(&'a self, lease: &'a Lease) -> ApiFuture<'a, Lease> {
        let perform = || {
            self.edit_node(|state, version| {
                let found = state.lease.as_ref().ok_or(ApiError::NotFound)?;
                if found.metadata.resource_version != lease.metadata.resource_version {
                    return Err(ApiError::conflict("another version"));
                }
                let mut lease = stored(lease);
                self.laws.lease_written(found, &lease);
                lease.metadata.resource_version = Some(version.to_owned());
                Ok(state.lease.insert(lease).clone())
            })
        };
        self.call(Op::NodeApi, &NODE, perform).boxed()
    }

    fn delete_lease<'a>(&'a self, _: &'a Lease) -> ApiFuture<'a, ()> {
        async { Ok(()) }.boxed()
    }
}

/// The object as the server stores it. An agent writes JSON, which has no fractions of a second in most times.
fn stored<T: Serialize + DeserializeOwned>(object: &T) -> T {
    serde_json::from_value(serde_json::to_value(object).unwrap()).unwrap()
}

/// Applies a strategic merge patch of a status. Merges conditions by their type, and replaces other lists.
fn merge(value: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *value = patch.clone();
        return;
    };
    if !value.is_object() {
        *value = Value::Object(Map::new());
    }
    for (field, new) in patch {
        match new {
            Value::Null => drop(value.as_object_mut().unwrap().remove(field)),
            Value::Array(list) if field == "conditions" => merge_conditions(&mut value[field], list),
            Value::Array(list) => {
                value[field] = list.iter().filter(|it| it.get("$patch").is_none()).cloned().collect();
            }
            new => merge(&mut value[field], new),
        }
    }
}

fn merge_conditions(value: &mut Value, patches: &[Value]) {
    let mut conditions = value.as_array().cloned().unwrap_or_default();
    for patch in patches {
        let found = conditions.iter().position(|condition| condition["type"] == patch["type"]);
        if patch["$patch"] == "delete" {
            found.map(|index| conditions.remove(index));
            continue;
        }
        let index = found.unwrap_or_else(|| {
            conditions.push(json!({}));
            conditions.len() - 1
        });
        merge(&mut conditions[index], patch);
    }
    *value = Value::Array(conditions);
}
