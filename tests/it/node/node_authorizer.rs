//! The objects of a new pod, while the Node authorizer of an API server learns of the pod later than the node. In paused time.

use std::sync::Arc;
use std::time::Duration;

use kube::Client;
use podwright::adapters::kube::KubeObjects;
use podwright_actors::pod::PodObject;
use podwright_actors::ports::{Clock, SourceKind};
use podwright_stand_in::{StandIn, User};
use serde_json::json;

use crate::support::test_node::Setup;

const CORE: &str = "/api/v1/namespaces/test";

#[actix::test]
async fn pod_whose_objects_are_refused_for_900_ms_starts_without_a_warning() {
    let setup = Setup::new(true);
    let clock = setup.clock;
    let server = StandIn::builder()
        .clock(move || clock.now().to_timestamp())
        .settings(|settings| settings.node_authorizer_delay = Duration::from_millis(900))
        .without_port();
    server.create_namespace("test");
    for plural in ["configmaps", "secrets"] {
        server.create(&format!("{CORE}/{plural}"), json!({"metadata": {"name": "web"}})).unwrap();
    }
    let client = Client::new(server.service(User::node("n1")), "test");
    let objects = Arc::new(KubeObjects::new(client, Arc::new(clock)));
    let node = Setup { objects: Some(objects), ..setup }.start();
    node.deliver(&[]).await;

    let pod = json!({
        "metadata": {"name": "web", "annotations": {"kubernetes.io/config.source": "api"}},
        "spec": {"nodeName": "n1", "volumes": [{"name": "settings", "configMap": {"name": "web"}}],
            "containers": [{"name": "main", "image": "img", "envFrom": [{"secretRef": {"name": "web"}}]}]}});
    let created = server.create(&format!("{CORE}/pods"), pod).unwrap();
    let pod = PodObject::new(serde_json::from_value(created).unwrap()).unwrap();
    let (uid, begin) = (pod.uid().to_string(), node.now());
    node.deliver_set(SourceKind::Api, vec![pod], Vec::new()).await;
    node.eventually(60.0, "the pod runs", || node.phase(&uid) == "Running").await;
    let took = node.now() - begin;
    assert!((1.0..2.0).contains(&took), "the repetition after 1,050 ms is the first that succeeds: {took} s");
    let failures = ["FailedMount", "Failed"].map(|reason| node.events.of(reason));
    assert!(failures.iter().all(Vec::is_empty), "{failures:?}");
}
