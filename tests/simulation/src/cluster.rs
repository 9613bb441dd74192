//! The API server of a simulation of the adapters: the stand-in, which the clients of the agent call directly. It uses no socket and no
//! thread, so time is virtual.
//!
//! ```text
//! users of the cluster ---------------------------.
//!                                                  v
//! adapters -> kube::Client -> trace, crashes -> stand-in -> laws
//!                                                  ^
//! faults of requests and of watches, hang-ups -----'
//! ```

mod faults;
mod users;

use std::collections::BTreeMap;
use std::sync::Arc;

use http::Request;
use http_body_util::BodyExt;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::serde::de::DeserializeOwned;
use kube::Client;
use kube::client::{Body, DynBody};
use parking_lot::Mutex;
use podwright::testing::client_over;
use podwright_model::ids::PodUid;
use podwright_model::pod::{PodObject, SOURCE_ANNOTATION};
use podwright_model::time::Time;
use podwright_ports::SourceKind;
use podwright_stand_in::{StandIn, User, Write};
use serde_json::Value;
use tower::{BoxError, Service, service_fn};

use super::faulty_ports::NODE;
use super::laws::Laws;
use super::machine::Machine;
use super::scenario::{Moment, Op};

use faults::WatchFault;

/// The name of the node.
pub(super) const NODE_NAME: &str = "node1";
/// The namespace of all pods.
const NAMESPACE: &str = "sim";
/// The annotation with the UID that the server gives to a pod. The UID of a pod names its plan.
const UID: &str = "simulation/uid";

pub(super) struct Cluster {
    machine: Arc<Machine>,
    server: StandIn,
    /// Until then the server breaks every connection.
    away_until: Arc<Mutex<Time>>,
    /// The faults of watches, and their ends.
    lasting: Mutex<BTreeMap<WatchFault, Time>>,
}

impl Cluster {
    pub(super) fn new(machine: &Arc<Machine>, laws: Laws) -> Self {
        let clock = machine.clock.clone();
        let server = StandIn::builder()
            .seed(machine.scenario.seed)
            // The clock of the node jumps, and that of the server does not.
            .clock(move || clock.steady().to_timestamp())
            .settings(|settings| settings.uid_annotation = Some(UID))
            .on_write(move |user, write| {
                if user.node_name().is_some() {
                    check(&laws, write);
                }
            })
            .without_port();
        server.create_namespace(NAMESPACE);
        let (away_until, lasting) = (Arc::new(Mutex::new(Time::ZERO)), Mutex::default());
        let cluster = Cluster { machine: machine.clone(), server, away_until, lasting };
        cluster.draw_faults();
        cluster.draw_hang_ups();
        cluster
    }

    /// The client of one agent, with the rights of the node. Each request is traced, and the agent may be killed in it. Called in a tokio
    /// runtime.
    pub(super) fn client(&self) -> Client {
        let (machine, server) = (self.machine.clone(), self.server.service(User::node(NODE_NAME)));
        client_over(service_fn(move |request: Request<Body>| {
            let (machine, mut server) = (machine.clone(), server.clone());
            async move {
                let text = format!("{} {}", request.method(), request.uri());
                let (op, _) = target(request.method().as_str(), request.uri().path());
                machine.note(text.clone());
                machine.reach(op, Moment::Begin).await;
                let answer = server.call(request).await;
                machine.reach(op, Moment::End).await;
                let result = match &answer {
                    Ok(answer) => answer.status().to_string(),
                    Err(error) => error.to_string(),
                };
                machine.note(format!("{text}: {result}"));
                answer.map(|answer| {
                    answer
                        .map(|body| -> Box<DynBody> { Box::new(body.map_err(|error| -> BoxError { Box::new(error) })) })
                })
            }
        }))
    }

    /// The pod or the mirror pod with this name. Returns the known object if it has not changed.
    pub(super) fn pod(&self, name: &str, known: Option<&Arc<PodObject>>) -> Option<Arc<PodObject>> {
        let found = self.server.get("pods", NAMESPACE, name)?;
        let version = found["metadata"]["resourceVersion"].as_str();
        let is_known = |known: &&Arc<PodObject>| known.metadata().resource_version.as_deref() == version;
        Some(known.filter(is_known).cloned().unwrap_or_else(|| pod_object(&found)))
    }

    /// The UIDs of all pods, also of mirror pods.
    pub(super) fn pods(&self) -> Vec<PodUid> {
        let pods = self.server.all("pods");
        pods.iter().filter_map(|pod| pod["metadata"]["uid"].as_str()).map(PodUid::new).collect()
    }
}

/// The kind of a request, and its pod.
fn target(method: &str, path: &str) -> (Op, PodUid) {
    let parts: Vec<&str> = path.split('/').collect();
    match (method, &parts[..]) {
        ("PATCH", [.., "pods", name, "status"]) => (Op::PatchStatus, PodUid::new(name)),
        ("DELETE", [.., "pods", name]) => (Op::DeletePod, PodUid::new(name)),
        ("POST", [.., "pods"]) => (Op::CreatePod, NODE.clone()),
        (_, [.., "pods"]) => (Op::ReadPods, NODE.clone()),
        (_, [.., "events"] | [.., "events", _]) => (Op::WriteEvent, NODE.clone()),
        _ => (Op::NodeApi, NODE.clone()),
    }
}

/// Checks a write of the agent.
fn check(laws: &Laws, write: &Write) {
    match (write.resource, &write.before, &write.after) {
        ("pods", Some(before), Some(after)) => laws.pod_changed(&pod_object(before), &pod_object(after)),
        ("pods", Some(before), None) => laws.pod_deleted(&pod_object(before)),
        ("pods", None, Some(after)) => laws.pod_created(&pod_object(after)),
        ("leases", Some(before), Some(after)) => laws.lease_written(&typed(before), &typed(after)),
        ("nodes", Some(before), Some(after)) => laws.node_written(&typed(before), &typed(after)),
        ("events", None, Some(after)) => laws.event_created(&typed(after)),
        ("events", Some(before), Some(after)) => laws.event_written(&typed(before), &typed(after)),
        _ => {}
    }
}

fn typed<T: DeserializeOwned>(object: &Value) -> T {
    serde_json::from_value(object.clone()).unwrap()
}

/// A pod as the engine sees it.
fn pod_object(object: &Value) -> Arc<PodObject> {
    let mut pod: Pod = typed(object);
    pod.metadata.managed_fields = None;
    let annotations = pod.metadata.annotations.get_or_insert_default();
    annotations.insert(SOURCE_ANNOTATION.to_owned(), SourceKind::Api.as_str().to_owned());
    PodObject::new(pod).unwrap()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use kube::Api;
    use kube::api::DeleteParams;
    use podwright::adapters::kube::KubePodApi;
    use podwright_ports::PodApi;
    use serde_json::json;

    use super::*;
    use crate::disk::Disk;
    use crate::generator;
    use crate::scenario::{self, Fault, Window};
    use crate::trace::KEPT;

    fn start() -> (Arc<Machine>, Cluster) {
        let machine = Arc::new(Machine::new(Arc::new(generator::scenario(scenario::Api::Adapters, 0)), KEPT));
        let disk = Arc::new(Disk::new(machine.clone()));
        let cluster = Cluster::new(&machine, Laws::new(&machine, &disk));
        (machine, cluster)
    }

    fn create(cluster: &Cluster) -> Arc<PodObject> {
        let pod = json!({
            "metadata": {"name": "p0", "annotations": {UID: "p0-0"}},
            "spec": {"nodeName": NODE_NAME, "containers": [{"name": "c", "image": "i"}]},
        });
        cluster.server.create("/api/v1/namespaces/sim/pods", pod).unwrap();
        cluster.pod("p0", None).unwrap()
    }

    /// Runs what an agent does.
    fn run<T>(work: impl Future<Output = T>) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(work)
    }

    #[test]
    fn the_agent_must_not_delete_what_its_users_may_delete() {
        let (machine, cluster) = start();
        create(&cluster);
        cluster.delete("p0", 0);
        assert_eq!((cluster.pods(), machine.violation()), (Vec::new(), None));

        let pod = create(&cluster);
        assert_eq!((pod.uid(), pod.is_static()), (&PodUid::new("p0-0"), false));
        run(async { KubePodApi::new(cluster.client()).delete(&pod).await }).unwrap();
        let violation = machine.violation().unwrap_or_default();
        assert!(violation.starts_with("p0-0: is deleted from the API server"), "{violation}");
    }

    #[test]
    fn the_server_performs_some_writes_whose_client_has_gone() {
        let (machine, cluster) = start();
        let (cluster, pod) = (&cluster, &create(&cluster));
        let (lasts, fault) = (Duration::from_secs(3600), Fault::Slow(Duration::from_secs(60)));
        machine.add_fault_window(Window { lasts, op: Some(Op::PatchStatus), pod: None, fault, percent: 100 });
        let performed = run(async {
            let api = KubePodApi::new(cluster.client());
            let mut performed = 0;
            for number in 0..20 {
                let message = number.to_string();
                let patch = json!({"metadata": {"uid": "p0-0"}, "status": {"message": message}});
                assert!(api.patch_status(pod, patch).await.is_err(), "the server is slower than the client waits");
                let found = cluster.pod("p0", None).unwrap();
                let written = found.status().and_then(|status| status.message.as_ref());
                performed += usize::from(written == Some(&message));
            }
            performed
        });
        assert!((1..20).contains(&performed), "{performed} of 20");
        assert_eq!(machine.violation(), None);
    }

    #[test]
    fn a_deletion_with_a_grace_period_is_no_write_of_a_status() {
        let (machine, cluster) = start();
        create(&cluster);
        cluster.delete("p0", 30);
        assert_eq!(machine.violation(), None, "a user may do that");
        let delete = async {
            let pods = Api::<Pod>::namespaced(cluster.client(), NAMESPACE);
            pods.delete("p0", &DeleteParams::default().grace_period(5)).await.unwrap();
        };
        run(delete);
        assert_eq!(machine.violation().as_deref(), Some("p0-0: the agent deletes it with a grace period"));
    }

    #[test]
    fn a_write_of_a_status_must_change_nothing_else() {
        let (machine, cluster) = start();
        let (cluster, pod) = (&cluster, &create(&cluster));
        let patch = |metadata: Value| async move {
            let api = KubePodApi::new(cluster.client());
            api.patch_status(pod, json!({"metadata": metadata, "status": {"phase": "Running"}})).await.unwrap();
        };
        run(patch(json!({"uid": "p0-0"})));
        assert_eq!(machine.violation(), None);
        run(patch(json!({"uid": "p0-0", "annotations": {"a": "b"}})));
        let violation = machine.violation().unwrap_or_default();
        assert!(violation.starts_with("p0-0: a write of its status changes "), "{violation}");
    }
}
