//! Mirror pods of static pods.

use std::sync::Arc;

use k8s_openapi::api::core::v1::PodStatus;
use podwright_actors::NodeRegistration;
use podwright_fixtures::api_pods::{PodBuilder, pod};
use podwright_fixtures::scripted_runtime::Script;
use podwright_model::ids::FullName;
use podwright_model::pod::PodObject;
use podwright_ports::{ApiError, ExecOutput, NodeApi, SourceKind};
use serde_json::{Value, json};

use crate::support::api_node::{ApiNode, unavailable};
use crate::support::fake_node_api::FakeNodeApi;
use crate::support::fake_pod_api::FakePodApi;
use crate::support::test_node::Setup;

/// A node with files and an API server. The Node object exists, and the node adopts it.
struct MirrorNode {
    this: ApiNode,
}

impl MirrorNode {
    fn new(setup: Setup, api: Arc<FakePodApi>) -> Self {
        register(&api);
        let node_api = Arc::new(FakeNodeApi { server: api.clone(), user: "node1" });
        let registration = (node_api as Arc<dyn NodeApi>, NodeRegistration::new("agent-1"));
        let setup = Setup { api: Some(api.clone()), node_api: Some(registration), ..setup };
        MirrorNode { this: ApiNode { node: setup.start(), api } }
    }

    /// A node whose two sources have delivered.
    async fn start() -> Self {
        let setup = Setup::new(true);
        let api = Arc::new(FakePodApi::new(setup.clock));
        let node = MirrorNode::new(setup, api);
        node.files(&[]).await;
        node.this.watch().await;
        node
    }

    async fn files(&self, pods: &[PodBuilder]) {
        let pods = pods.iter().map(PodBuilder::build).collect();
        self.this.node.deliver_set(SourceKind::File, pods, Vec::new()).await;
        self.this.node.wait(0.05).await;
    }

    /// Delivers the pods of the API server, and lets the node write.
    async fn watch(&self) {
        self.this.watch().await;
        self.this.node.wait(0.05).await;
    }

    /// The hash of the manifest from which the mirror pod was made.
    fn mirror(&self, name: &str) -> Option<String> {
        Some(self.this.api.pod(name)?.annotation("kubernetes.io/config.mirror")?.to_owned())
    }

    fn uid(&self, name: &str) -> Option<String> {
        Some(self.this.api.pod(name)?.uid().to_string())
    }

    /// The calls that create and delete pods.
    fn calls(&self) -> Vec<String> {
        let is_status = |call: &String| call.starts_with("PATCH");
        let is_node = |call: &String| call.ends_with(" node") || call.ends_with(" lease");
        self.this.api.take_calls().into_iter().filter(|call| !is_status(call) && !is_node(call)).collect()
    }

    /// A user's deletion without a grace period.
    fn force_delete(&self, name: &str) {
        let options = json!({"gracePeriodSeconds": 0});
        let path = format!("/api/v1/namespaces/test/pods/{name}");
        self.this.api.request("DELETE", &path, "application/json", &options).unwrap();
    }
}

/// Creates the Node object. The API server removes pods whose owner does not exist.
fn register(api: &FakePodApi) -> String {
    let node = json!({"metadata": {"name": "node1"}});
    let node = api.request("POST", "/api/v1/nodes", "application/json", &node).unwrap();
    node["metadata"]["uid"].as_str().unwrap().to_owned()
}

/// A static pod `web` whose manifest has this hash.
fn web(hash: &str) -> PodBuilder {
    static_pod("web", hash)
}

fn static_pod(name: &str, hash: &str) -> PodBuilder {
    pod(name).of_file().uid(hash).annotation("kubernetes.io/config.hash", hash).spec("nodeName", "node1")
}

fn mirror_of(name: &str, hash: &str) -> Value {
    json!({
        "metadata": {"name": name, "namespace": "test", "annotations": {"kubernetes.io/config.mirror": hash}},
        "spec": {"nodeName": "node1", "containers": [{"name": "main", "image": "img"}]}})
}

fn create(api: &FakePodApi, mirror: &Value) {
    api.request("POST", "/api/v1/namespaces/test/pods", "application/json", mirror).unwrap();
}

fn is_deleting(pod: &Option<Arc<PodObject>>) -> bool {
    pod.as_ref().is_some_and(|pod| pod.is_deleting())
}

// Scenario POD-S94.
#[actix::test]
async fn static_pod_gets_a_mirror_pod_and_the_mirror_pod_gets_its_status() {
    let node = MirrorNode::start().await;
    node.files(&[web("1").annotation("a", "b").label("x")]).await;
    node.this.wait(5).await;
    assert_eq!(node.calls(), ["POST web"]);
    assert_eq!(node.this.api.phase("web"), "Running");
    let mirror = node.this.api.pod("web").unwrap();
    assert_ne!(mirror.uid().to_string(), "1", "the API server gives it a UID of its own");
    assert_eq!(mirror.annotation("a"), Some("b"));
    assert_eq!(mirror.annotation("kubernetes.io/config.hash"), Some("1"));
    assert_eq!(mirror.metadata().labels.as_ref().unwrap()["v"], "x");
    let owner = &mirror.metadata().owner_references.as_ref().unwrap()[0];
    let read = node.this.api.request("GET", "/api/v1/nodes/node1", "application/json", &Value::Null).unwrap();
    assert_eq!((&*owner.name, &json!(owner.uid), owner.controller), ("node1", &read["metadata"]["uid"], Some(true)));

    node.this.wait(60).await;
    assert_eq!(node.calls(), [""; 0], "nothing has changed");
}

// Scenario POD-S31.
#[actix::test]
async fn mirror_pod_is_replaced_after_the_pod_of_the_old_manifest_has_stopped() {
    let node = MirrorNode::start().await;
    node.this.node.runtime.script("main", Script::stubborn());
    node.files(&[web("0").grace(10)]).await;
    node.this.wait(2).await;
    for version in 1..300 {
        let pods = vec![web(&version.to_string()).build()];
        node.this.node.deliver_set(SourceKind::File, pods, Vec::new()).await;
    }
    node.calls();
    node.this.wait(8).await;
    assert_eq!(node.mirror("web").as_deref(), Some("0"), "containers of the old pod still run");
    assert_eq!(node.calls(), [""; 0]);
    node.this.wait(10).await;
    assert_eq!(node.mirror("web").as_deref(), Some("299"));
    assert_eq!(node.calls(), ["DELETE web", "POST web"]);
    node.this.wait(5).await;
    assert_eq!(node.this.api.phase("web"), "Running");
}

// A kubelet looks for the pod among the desired ones, and reports a static pod as ready until its containers end (kubernetes#140881).
#[actix::test]
async fn static_pod_that_stops_reports_the_results_of_its_readiness_probe() {
    let node = MirrorNode::start().await;
    node.this.node.runtime.script("main", Script::stubborn());
    let probe = json!({"exec": {"command": ["ready"]}, "periodSeconds": 1, "failureThreshold": 1});
    let main = json!([{"name": "main", "image": "img", "readinessProbe": probe}]);
    node.files(&[web("1").grace(20).spec("containers", main)]).await;
    node.this.wait(5).await;
    let ready = || {
        let of = |status: PodStatus| {
            let conditions = status.conditions.unwrap_or_default();
            conditions.into_iter().find(|condition| condition.type_ == "Ready").map(|condition| condition.status)
        };
        [of(node.this.node.status("1")), of(node.this.api.status("web"))].map(Option::unwrap_or_default)
    };
    assert_eq!(ready(), ["True", "True"]);

    node.files(&[]).await;
    node.this.wait(3).await;
    assert_eq!(ready(), ["True", "True"], "its probe still succeeds");
    node.this.node.runtime.exec_result(Ok(ExecOutput { exit_code: 1, ..ExecOutput::default() }));
    node.this.wait(3).await;
    assert_eq!(ready(), ["False", "False"], "in the node and in the mirror pod");
    assert_eq!(node.this.node.runtime.running("1"), ["main"]);

    node.this.wait(30).await;
    assert!(node.this.api.pod("web").is_none(), "its mirror pod goes with it");
}

#[actix::test]
async fn mirror_pod_that_a_user_deletes_is_created_again_at_once() {
    let node = MirrorNode::start().await;
    node.files(&[web("1")]).await;
    node.this.wait(2).await;
    let (first, starts) = (node.uid("web"), node.this.node.runtime.times_of("start main").len());
    node.calls();

    node.this.api.delete_pod("web");
    assert!(is_deleting(&node.this.api.pod("web")), "a user's deletion has a grace period");
    node.watch().await;
    assert_eq!(node.calls(), ["DELETE web", "POST web"]);
    let second = node.uid("web");
    assert_ne!(second, first);

    node.watch().await;
    node.force_delete("web");
    node.watch().await;
    assert_eq!(node.calls(), ["POST web"]);
    assert_ne!(node.uid("web"), second);
    node.this.wait(5).await;
    assert_eq!(node.this.api.phase("web"), "Running");
    assert_eq!(node.this.node.runtime.times_of("start main").len(), starts, "the containers were left alone");
    assert_eq!(node.this.node.runtime.times_of("stop"), [0.0; 0]);
}

// KF6, KF7, KF8
#[actix::test]
async fn containers_follow_the_files_while_the_api_server_is_away() {
    let setup = Setup::new(true);
    let api = Arc::new(FakePodApi::new(setup.clock));
    let node = MirrorNode::new(setup, api);
    node.this.node.wait(1.0).await;
    node.this.api.fail(unavailable());
    node.this.node.runtime.script("main", Script::stubborn());
    node.files(&[web("1").grace(5)]).await;
    node.this.node.wait(10.0).await;
    assert_eq!(node.this.node.runtime.running("1"), ["main"]);
    node.files(&[web("2").grace(5)]).await;
    node.this.node.wait(3.0).await;
    let running = |uid: &str| node.this.node.runtime.running(uid);
    assert_eq!((running("1").len(), running("2").len()), (1, 0), "the new pod waits until the old one has stopped");
    node.this.node.wait(7.0).await;
    assert_eq!(running("1"), [""; 0], "the API source has never delivered");
    assert_eq!(node.this.node.runtime.running("2"), ["main"]);

    // The source was restored, and calls still fail.
    node.this.watch().await;
    node.this.node.wait(60.0).await;
    let tries = node.calls();
    assert!((5..=20).contains(&tries.len()) && tries.iter().all(|call| call == "POST web"), "{tries:?}");
    node.this.api.fail(None);
    node.this.wait(15).await;
    assert_eq!(node.mirror("web").as_deref(), Some("2"));
    assert_eq!(node.this.api.phase("web"), "Running");
}

// KF1, KF6
#[actix::test]
async fn static_pod_that_is_put_back_starts_again_although_the_api_source_has_never_delivered() {
    let setup = Setup::new(true);
    let api = Arc::new(FakePodApi::new(setup.clock));
    let node = MirrorNode::new(setup, api);
    let runtime = &node.this.node.runtime;
    runtime.script("main", Script::stubborn());
    runtime.plant("remote", FullName::new("default", "remote"), "main");
    node.files(&[web("1").grace(2)]).await;
    node.this.node.wait(5.0).await;
    assert_eq!(runtime.running("1"), ["main"]);
    node.files(&[]).await;
    node.this.node.wait(0.5).await;
    node.files(&[web("1").grace(2)]).await;
    node.this.node.wait(10.0).await;
    assert_eq!(runtime.running("1"), ["main"]);
    assert_eq!(runtime.times_of("start main").len(), 2);
    node.files(&[]).await;
    node.this.node.wait(10.0).await;
    assert_eq!(node.this.node.lifecycle("1"), None, "the record is dropped");
    assert_eq!(runtime.running("remote"), ["main"], "a pod that the API server may desire is left alone");

    node.this.watch().await;
    node.this.node.wait(10.0).await;
    assert_eq!(runtime.running("remote"), [""; 0]);
}

// KF8
#[actix::test]
async fn call_that_hangs_does_not_delay_the_containers_of_a_changed_manifest() {
    let node = MirrorNode::start().await;
    node.files(&[web("1").grace(5)]).await;
    node.this.wait(2).await;
    node.this.api.latency(30_000);
    node.files(&[web("2")]).await;
    node.this.node.wait(5.0).await;
    assert_eq!(node.this.node.runtime.running("2"), ["main"]);
    assert_eq!(node.mirror("web").as_deref(), Some("1"), "the deletion has not ended");
    node.this.wait(100).await;
    assert_eq!(node.mirror("web").as_deref(), Some("2"));
}

#[actix::test]
async fn mirror_pod_that_the_source_has_not_delivered_yet_is_not_created_twice() {
    let node = MirrorNode::start().await;
    create(&node.this.api, &mirror_of("web", "1"));
    let existing = node.uid("web");
    node.files(&[web("1")]).await;
    assert_eq!(node.calls(), ["POST web"], "the source has not delivered the mirror pod");
    node.this.wait(30).await;
    assert_eq!(node.calls().iter().filter(|call| *call != "POST web").count(), 0);
    assert_eq!(node.uid("web"), existing);
    assert_eq!(node.this.api.phase("web"), "Running");
    node.this.wait(30).await;
    assert_eq!(node.calls(), [""; 0]);
}

// The answer to the creation arrives after the source has delivered the mirror pod and its removal.
#[actix::test]
async fn mirror_pod_that_is_deleted_before_its_creation_is_answered_is_created_again() {
    let node = MirrorNode::start().await;
    node.files(&[web("1")]).await;
    assert_eq!(node.calls(), ["POST web"]);
    node.force_delete("web");
    node.this.wait(14).await;
    assert_eq!(node.calls(), ["POST web"]);
    assert_eq!(node.this.api.phase("web"), "Running");
}

#[actix::test]
async fn late_source_causes_no_second_mirror_pod() {
    let node = MirrorNode::start().await;
    node.files(&[web("1")]).await;
    assert_eq!(node.calls(), ["POST web"]);
    let before = node.this.api.pods();
    node.this.node.wait(5.0).await;
    node.files(&[web("1").label("changed")]).await;
    node.this.node.wait(4.0).await;
    assert_eq!(node.calls(), [""; 0], "the source has not delivered the mirror pod for 9 s");
    node.this.deliver(before).await;
    node.this.wait(5).await;
    assert_eq!(node.calls(), [""; 0]);
}

#[actix::test]
async fn mirror_pod_waits_for_its_namespace() {
    let node = MirrorNode::start().await;
    let mut system: Value = serde_json::to_value(web("1").build().pod()).unwrap();
    system["metadata"]["namespace"] = json!("later");
    let system = PodObject::new(serde_json::from_value(system).unwrap()).unwrap();
    node.this.node.deliver_set(SourceKind::File, vec![system], Vec::new()).await;
    node.this.node.wait(60.0).await;
    assert_eq!(node.this.node.runtime.running("1"), ["main"]);
    let tries = node.calls();
    assert!((5..=20).contains(&tries.len()) && tries.iter().all(|call| call == "POST web"), "{tries:?}");
    let namespace = json!({"metadata": {"name": "later"}});
    node.this.api.request("POST", "/api/v1/namespaces", "application/json", &namespace).unwrap();
    node.this.wait(15).await;
    let found = node.this.api.pods();
    assert_eq!(found.iter().map(|pod| pod.full_name().to_string()).collect::<Vec<_>>(), ["later/web"]);
}

#[actix::test]
async fn mirror_pod_waits_for_the_node_object() {
    let node = MirrorNode::start().await;
    node.this.api.request("DELETE", "/api/v1/nodes/node1", "application/json", &Value::Null).unwrap();
    node.this.wait(11).await;
    node.files(&[web("1")]).await;
    node.this.wait(30).await;
    assert_eq!(node.calls(), [""; 0]);
    assert_eq!(node.this.node.runtime.running("1"), ["main"]);
    let again = register(&node.this.api);
    node.this.wait(11).await;
    assert_eq!(node.calls(), ["POST web"]);
    let mirror = node.this.api.pod("web").unwrap();
    assert_eq!(mirror.metadata().owner_references.as_ref().unwrap()[0].uid, again);
}

// POD-K8
#[actix::test]
async fn orphan_mirror_pod_of_an_earlier_agent_is_deleted_once_all_sources_have_delivered() {
    let setup = Setup::new(true);
    let api = Arc::new(FakePodApi::new(setup.clock));
    create(&api, &mirror_of("gone", "1"));
    create(&api, &mirror_of("web", "1"));
    let node = MirrorNode::new(setup, api);
    node.this.wait(10).await;
    assert_eq!(node.calls(), [""; 0], "the files may still have the static pods");
    node.files(&[web("1")]).await;
    node.this.wait(3).await;
    assert_eq!(node.calls(), ["DELETE gone"]);
    assert!(node.this.api.pod("gone").is_none());
    assert_eq!(node.mirror("web").as_deref(), Some("1"));
}

// Scenario POD-S50.
#[actix::test]
async fn orphan_mirror_pod_stays_until_the_containers_of_its_static_pod_have_stopped() {
    let node = MirrorNode::start().await;
    node.this.node.runtime.script("main", Script::stubborn());
    node.files(&[web("1").grace(20)]).await;
    node.this.wait(2).await;
    create(&node.this.api, &mirror_of("a", "1"));
    create(&node.this.api, &mirror_of("b", "1"));
    node.calls();
    node.files(&[]).await;
    node.this.wait(18).await;
    let mut calls = node.calls();
    calls.sort();
    assert_eq!(calls, ["DELETE a", "DELETE b"]);
    assert_eq!(node.this.api.phase("web"), "Running");
    node.this.wait(6).await;
    assert_eq!(node.calls(), ["DELETE web"]);
    assert_eq!(node.this.api.pods().len(), 0);
}

#[actix::test]
async fn static_pod_that_cannot_run_shows_the_reason_in_its_mirror_pod() {
    let node = MirrorNode::start().await;
    node.files(&[web("1").cpu("64")]).await;
    node.this.wait(3).await;
    assert_eq!(node.calls(), ["POST web"]);
    assert_eq!(node.this.api.phase("web"), "Failed");
    assert_eq!(node.this.api.status("web").reason.as_deref(), Some("UnexpectedAdmissionError"));
}

// Nothing syncs a pod that was rejected, so nothing else asks for its mirror pod again.
#[actix::test]
async fn rejected_static_pod_gets_its_mirror_pod_once_the_pod_of_the_old_manifest_has_stopped() {
    let node = MirrorNode::start().await;
    node.this.node.runtime.script("main", Script::stubborn());
    node.files(&[web("0").grace(10)]).await;
    node.this.wait(2).await;
    node.files(&[web("1").cpu("64")]).await;
    node.this.wait(8).await;
    assert_eq!(node.mirror("web").as_deref(), Some("0"), "containers of the old pod still run");
    node.this.wait(10).await;
    assert_eq!(node.mirror("web").as_deref(), Some("1"));
    assert_eq!(node.this.api.phase("web"), "Failed");
}

#[actix::test]
async fn rejected_static_pod_whose_manifest_changes_starts_as_it_is_when_there_is_room() {
    let node = MirrorNode::start().await;
    let large = static_pod("large", "l").cpu("3");
    node.files(std::slice::from_ref(&large)).await;
    node.files(&[large.clone(), web("1").cpu("2")]).await;
    node.this.wait(3).await;
    assert_eq!(node.this.api.phase("web"), "Failed");
    assert_eq!(node.this.node.lifecycle("1"), None, "a rejected pod has no record");
    // The UID stays, as with a fixed UID in the manifest.
    node.files(&[large, web("1").containers(&["new"]).cpu("2")]).await;
    node.this.wait(3).await;
    node.files(&[web("1").containers(&["new"]).cpu("2")]).await;
    node.this.wait(10).await;
    assert_eq!(node.this.node.runtime.running("1"), ["new"]);
}

#[actix::test]
async fn static_pod_and_pod_of_the_api_server_run_under_one_full_name() {
    let node = MirrorNode::start().await;
    node.this.api.create_pod("web", &json!({}));
    let uid = node.uid("web").unwrap();
    node.watch().await;
    node.files(&[web("1")]).await;
    node.this.wait(5).await;
    assert_eq!(node.this.node.runtime.running("1"), ["main"]);
    assert_eq!(node.this.node.runtime.running(&uid), ["main"]);
    assert_eq!((node.uid("web"), node.mirror("web")), (Some(uid.clone()), None), "the name is taken");
    assert_eq!(node.this.api.phase("web"), "Running");

    node.this.api.delete_pod("web");
    node.this.wait(20).await;
    assert_eq!(node.mirror("web").as_deref(), Some("1"));
    assert_eq!(node.this.api.phase("web"), "Running");
    assert_eq!((node.this.node.runtime.running("1").len(), node.this.node.runtime.running(&uid).len()), (1, 0));
    assert_eq!(node.this.starts("1"), 1);

    // A user replaces the mirror pod by a pod of the same name.
    node.force_delete("web");
    node.this.api.create_pod("web", &json!({}));
    let uid = node.uid("web").unwrap();
    node.this.wait(5).await;
    assert_eq!(node.this.node.runtime.running(&uid), ["main"]);
    node.this.api.delete_pod("web");
    node.this.wait(20).await;
    assert_eq!(node.mirror("web").as_deref(), Some("1"));
    assert_eq!(node.this.api.phase("web"), "Running");
    assert_eq!(node.this.starts("1"), 1);
}

#[actix::test]
async fn refused_mirror_pod_is_tried_again() {
    let node = MirrorNode::start().await;
    node.this.api.fail(Some(ApiError::refused("a policy forbids it")));
    node.files(&[web("1")]).await;
    node.this.wait(30).await;
    node.this.api.fail(None);
    node.this.wait(11).await;
    assert_eq!(node.mirror("web").as_deref(), Some("1"));
}
