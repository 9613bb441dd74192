//! The paths below a pod: resize, ephemeral containers and eviction; and the garbage collector.

use podwright_stand_in::StandIn;
use serde_json::{Value, json};

use crate::http::Client;

const PODS: &str = "/api/v1/namespaces/default/pods";
const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const STRATEGIC: &str = "application/strategic-merge-patch+json";

async fn start() -> (StandIn, Client) {
    let server = StandIn::start().await.unwrap();
    let client = Client::admin(&server);
    (server, client)
}

fn pod(name: &str) -> Value {
    json!({
        "metadata": {"name": name, "labels": {"app": "a"}},
        "spec": {
            "nodeName": "n1",
            "containers": [{"name": "a", "image": "x:1", "resources": {"requests": {"cpu": "1"}}}],
        },
    })
}

#[tokio::test]
async fn a_resize_changes_resources_and_nothing_else() {
    let (server, client) = start().await;
    server.create(PODS, pod("p")).unwrap();
    let send = async |path: &str, container: Value| {
        let patch = json!({"metadata": {"labels": {"b": "c"}}, "spec": {"containers": [container]}});
        client.send("PATCH", &format!("{PODS}/p{path}"), STRATEGIC, &patch).await
    };
    let cpu = json!({"name": "a", "image": "x:2", "resources": {"requests": {"cpu": "2"}}});
    assert_eq!(send("", cpu.clone()).await.code, 422, "only the path resize changes resources");
    let resized = send("/resize", cpu).await;
    assert_eq!((resized.code, &resized.body["metadata"]["generation"]), (200, &json!(2)));
    let container = &resized.body["spec"]["containers"][0];
    assert_eq!((&container["resources"]["requests"]["cpu"], &container["image"]), (&json!("2"), &json!("x:1")));
    assert_eq!(resized.body["metadata"]["labels"], json!({"app": "a"}));
    for (container, message) in [
        (
            json!({"name": "a", "resources": {"requests": {"ephemeral-storage": "1"}}}),
            "only cpu and memory resources are mutable",
        ),
        (json!({"name": "a", "resources": {"requests": {"cpu": null}}}), "resource requests cannot be removed"),
        (json!({"name": "b", "image": "x:1"}), "containers may not be added or removed on resize"),
        (
            json!({"name": "a", "resources": {"requests": {"cpu": "2", "memory": "1"}, "limits": {"cpu": "2", "memory": "1"}}}),
            "Pod QOS Class may not change as a result of resizing",
        ),
    ] {
        let refused = send("/resize", container).await;
        let found = refused.body["message"].as_str().unwrap_or_default();
        assert!(refused.code == 422 && found.contains(message), "{message}: {} {found}", refused.code);
    }
}

#[tokio::test]
async fn ephemeral_containers_are_added_and_stay() {
    let (server, client) = start().await;
    server.create(PODS, pod("p")).unwrap();
    let path = format!("{PODS}/p/ephemeralcontainers");
    let send = async |containers: Value| {
        client.send("PATCH", &path, STRATEGIC, &json!({"spec": {"ephemeralContainers": containers}})).await
    };
    let added = send(json!([{"name": "d", "image": "x:1"}])).await;
    assert_eq!(added.code, 200);
    let debugger = &added.body["spec"]["ephemeralContainers"][0];
    assert_eq!((&debugger["name"], &debugger["imagePullPolicy"]), (&json!("d"), &json!("IfNotPresent")));
    let mut without = Value::clone(&server.get("pods", "default", "p").unwrap());
    without["spec"]["ephemeralContainers"] = json!([]);
    let removed = client.send("PUT", &path, "application/json", &without).await;
    assert!(
        removed.body["message"].as_str().unwrap().contains("existing ephemeral containers \"d\" may not be removed")
    );
    for (container, message) in [
        (json!({"name": "d", "image": "x:2"}), "existing ephemeral containers \"d\" may not be changed"),
        (json!({"name": "a", "image": "x:1"}), "Duplicate value: \"a\""),
        (json!({"name": "e"}), "image: Required value"),
        (
            json!({"name": "e", "image": "x:1", "ports": [{"containerPort": 1}]}),
            "cannot be set for an Ephemeral Container",
        ),
    ] {
        let refused = send(json!([container])).await;
        let found = refused.body["message"].as_str().unwrap_or_default();
        assert!(refused.code == 422 && found.contains(message), "{message}: {} {found}", refused.code);
    }
}

#[tokio::test]
async fn an_eviction_respects_the_disruption_budget() {
    let (server, client) = start().await;
    let budgets = "/apis/policy/v1/namespaces/default/poddisruptionbudgets";
    let budget =
        json!({"metadata": {"name": "b"}, "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "a"}}}});
    server.create(budgets, budget).unwrap();
    for name in ["p", "q"] {
        server.create(PODS, pod(name)).unwrap();
        let status = json!({"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}});
        client.send("PATCH", &format!("{PODS}/{name}/status"), STRATEGIC, &status).await;
    }
    let evict =
        async |name: &str| client.post(&format!("{PODS}/{name}/eviction"), json!({"metadata": {"name": name}})).await;
    assert_eq!(evict("p").await.code, 201);
    let evicted = server.get("pods", "default", "p").unwrap();
    let condition = evicted["status"]["conditions"].as_array().unwrap().last().unwrap().clone();
    assert_eq!(
        (&condition["type"], &condition["reason"]),
        (&json!("DisruptionTarget"), &json!("EvictionByEvictionAPI"))
    );
    let refused = evict("q").await;
    assert_eq!(refused.code, 429);
    assert_eq!(
        (&refused.body["message"], &refused.body["details"]["causes"][0]["message"]),
        (
            &json!("Cannot evict pod as it would violate the pod's disruption budget."),
            &json!("The disruption budget b needs 1 healthy pods and has 1 currently")
        )
    );
    let again = json!({"metadata": {"name": "b2"}, "spec": {"selector": {}}});
    server.create(budgets, again).unwrap();
    assert_eq!(evict("q").await.code, 500);
}

#[tokio::test]
async fn an_object_whose_owner_never_existed_is_deleted() {
    let (server, client) = start().await;
    let owner = server.create(MAPS, json!({"metadata": {"name": "owner"}})).unwrap();
    let map = |name: &str, owner: Value| json!({"metadata": {"name": name, "ownerReferences": [owner]}});
    let reference =
        |name: &str, uid: &Value| json!({"apiVersion": "v1", "kind": "ConfigMap", "name": name, "uid": uid});
    let unknown = json!({"apiVersion": "example.com/v1", "kind": "Owner", "name": "o", "uid": "x"});
    for (name, owner, stays) in [
        ("owned", reference("owner", &owner["metadata"]["uid"]), true),
        ("orphan", reference("none", &json!("x")), false),
        ("of-an-earlier-owner", reference("owner", &json!("x")), false),
        ("of-an-unknown-kind", unknown, true),
    ] {
        assert_eq!(client.post(MAPS, map(name, owner)).await.code, 201);
        assert_eq!(server.get("configmaps", "default", name).is_some(), stays, "{name}");
    }
    let patch = json!({"metadata": {"ownerReferences": [reference("none", &json!("x"))]}});
    client.send("PATCH", &format!("{MAPS}/owner"), "application/merge-patch+json", &patch).await;
    assert!(server.get("configmaps", "default", "owner").is_none());
    assert!(server.get("configmaps", "default", "owned").is_none(), "the dependents follow");
}
