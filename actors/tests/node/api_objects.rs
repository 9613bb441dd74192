//! Pods that wait for API objects.

use std::sync::Arc;
use std::time::Duration;

use podwright_fixtures::api_pods::pod;
use serde_json::{Value, json};

use super::explain::reading::waits;
use crate::support::fake_objects::FakeObjects;
use crate::support::test_node::{Setup, TestNode};

async fn start() -> (TestNode, Arc<FakeObjects>) {
    let setup = Setup::new(true);
    let objects = Arc::new(FakeObjects::default());
    let node = Setup { objects: Some(objects.clone()), ..setup }.start();
    node.deliver(&[]).await;
    (node, objects)
}

fn messages(node: &TestNode, reason: &str) -> Vec<String> {
    node.events.of(reason).into_iter().map(|event| event.message).collect()
}

/// The message of the container's waiting state.
fn waiting(node: &TestNode, uid: &str) -> (String, String) {
    let status = node.status(uid).container_statuses.unwrap_or_default();
    let state = status.first().and_then(|container| container.state.as_ref()?.waiting.clone()).unwrap_or_default();
    (state.reason.unwrap_or_default(), state.message.unwrap_or_default())
}

#[actix::test]
async fn pod_waits_for_a_missing_config_map_and_starts_when_it_appears() {
    let (node, objects) = start().await;
    let volumes = json!([{"name": "settings", "configMap": {"name": "web"}}]);
    node.deliver(&[pod("web").spec("volumes", volumes)]).await;
    node.wait(30.0).await;
    assert_eq!(node.phase("web"), "Pending");
    let expected = "MountVolume.SetUp failed for volume \"settings\" : configmap \"web\" not found";
    assert!(messages(&node, "FailedMount").iter().all(|message| message == expected), "{:?}", node.events.all());
    assert!(node.events.has("web", "FailedMount"));
    let explained = waits(&node, "web");
    assert!(explained.contains("configmap \"web\" not found"), "{explained}");

    // The pod does not wait for the end of its backoff.
    objects.put_config_map("web", &json!({"a": "1"}));
    node.wait(1.0).await;
    assert_eq!(node.phase("web"), "Running");
}

/// The pod does not wait for the end of its backoff.
#[actix::test]
async fn changes_of_objects_are_followed_after_a_panic() {
    let (node, objects) = start().await;
    let volumes = json!([{"name": "settings", "configMap": {"name": "web"}}]);
    node.deliver(&[pod("web").spec("volumes", volumes)]).await;
    node.wait(30.0).await;
    objects.panic_in_changed();
    node.wait(0.5).await;
    let stopped: Vec<_> = node.node.stopped_parts().into_iter().map(|part| part.name).collect();
    assert_eq!(stopped, ["object_changes"]);
    objects.put_config_map("web", &json!({"a": "1"}));
    node.wait(2.0).await;
    assert_eq!(node.phase("web"), "Running");
    assert!(node.node.stopped_parts().is_empty());
}

#[actix::test]
async fn container_waits_for_the_objects_of_its_variables() {
    let (node, objects) = start().await;
    let key = |name: &str, key: &str| json!({"secretKeyRef": {"name": name, "key": key}});
    let containers = |from: Value| json!([{"name": "main", "image": "img", "env": [{"name": "A", "valueFrom": from}]}]);
    node.deliver(&[pod("web").spec("containers", containers(key("login", "word")))]).await;
    node.wait(3.0).await;
    let error = "CreateContainerConfigError".to_owned();
    assert_eq!(waiting(&node, "web"), (error.clone(), "secret \"login\" not found".to_owned()));
    assert_eq!(messages(&node, "Failed")[0], "Error: secret \"login\" not found");

    objects.put_secret("login", &json!({"user": "bWU="}));
    node.wait(1.0).await;
    assert_eq!(waiting(&node, "web"), (error, "couldn't find key word in Secret test/login".to_owned()));
    objects.put_secret("login", &json!({"word": "cHc="}));
    node.wait(1.0).await;
    assert_eq!(node.phase("web"), "Running");
}

#[actix::test]
async fn objects_of_a_pod_are_read_at_once() {
    let (node, objects) = start().await;
    for name in ["a", "b", "c"] {
        objects.put_config_map(name, &json!({"key": "1"}));
        objects.put_secret(name, &json!({"key": "MQ=="}));
    }
    objects.slow(Duration::from_secs(1));
    let parts = json!([{"serviceAccountToken": {"path": "token"}}, {"clusterTrustBundle": {"name": "roots", "path": "ca"}},
        {"secret": {"name": "b"}}, {"configMap": {"name": "c"}}]);
    let volumes = json!([{"name": "v1", "configMap": {"name": "a"}}, {"name": "v2", "configMap": {"name": "b"}},
        {"name": "v3", "secret": {"secretName": "a"}}, {"name": "v4", "projected": {"sources": parts}}]);
    let from = |kind: &str, name: &str| json!({kind: {"name": name}});
    let sources =
        [from("configMapRef", "a"), from("configMapRef", "b"), from("secretRef", "a"), from("secretRef", "c")];
    let main = json!([{"name": "main", "image": "img", "envFrom": sources}]);
    let begin = node.now();
    node.deliver(&[pod("web").spec("volumes", volumes).spec("containers", main)]).await;
    node.eventually(60.0, "the pod runs", || node.phase("web") == "Running").await;
    let took = node.now() - begin;
    assert!(took < 3.0, "one second for the volumes and one for the variables: {took} s");
}

#[actix::test]
async fn optional_object_delays_no_pod() {
    let (node, _) = start().await;
    let volumes = json!([{"name": "v", "secret": {"secretName": "none", "optional": true}}]);
    let main =
        json!([{"name": "main", "image": "img", "envFrom": [{"configMapRef": {"name": "none", "optional": true}}]}]);
    node.deliver(&[pod("web").spec("volumes", volumes).spec("containers", main)]).await;
    node.wait(1.0).await;
    assert_eq!(node.phase("web"), "Running");
}

#[actix::test]
async fn objects_are_followed_until_the_pod_has_ended() {
    let (node, objects) = start().await;
    objects.put_config_map("web", &json!({}));
    let volumes = json!([{"name": "settings", "configMap": {"name": "web"}}]);
    node.deliver(&[pod("web").spec("volumes", volumes), pod("file").of_file()]).await;
    node.wait(1.0).await;
    assert!(objects.is_registered("web") && !objects.is_registered("file"));
    node.deliver(&[pod("file").of_file()]).await;
    node.wait(60.0).await;
    assert!(!objects.is_registered("web"));
}

#[actix::test]
async fn static_pod_does_not_wait_for_objects() {
    let (node, objects) = start().await;
    objects.remove_config_map("none");
    node.deliver(&[pod("web").of_file()]).await;
    node.wait(1.0).await;
    assert_eq!(node.phase("web"), "Running");
}
