//! Behaviour that the recording does not contain: pages, watches, patches, deletion, garbage, tokens, reviews and nodes' rights.

use podwright_stand_in::{Grant, StandIn, User};
use serde_json::{Value, json};

use crate::http::Client;

const PODS: &str = "/api/v1/namespaces/default/pods";
const MAPS: &str = "/api/v1/namespaces/default/configmaps";

async fn start() -> (StandIn, Client) {
    let server = StandIn::start().await.unwrap();
    let client = Client::admin(&server);
    (server, client)
}

fn pod(name: &str, node: &str) -> Value {
    let mut pod = json!({
        "metadata": {"name": name},
        "spec": {"containers": [{"name": "a", "image": "busybox:1"}]},
    });
    if !node.is_empty() {
        pod["spec"]["nodeName"] = json!(node);
    }
    pod
}

fn names(list: &Value) -> Vec<&str> {
    list["items"].as_array().unwrap().iter().map(|item| item["metadata"]["name"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn pages_are_of_one_version() {
    let (server, client) = start().await;
    for name in ["a", "b", "c"] {
        server.create(MAPS, json!({"metadata": {"name": name, "labels": {"t": name}}})).unwrap();
    }
    let first = client.get(&format!("{MAPS}?limit=2&labelSelector=t")).await.body;
    assert_eq!(names(&first), ["a", "b"]);
    assert_eq!(first["metadata"].get("remainingItemCount"), None);
    client.delete(&format!("{MAPS}/c")).await;
    server.create(MAPS, json!({"metadata": {"name": "d", "labels": {"t": "d"}}})).unwrap();
    let token = first["metadata"]["continue"].as_str().unwrap();
    let second = client.get(&format!("{MAPS}?limit=2&labelSelector=t&continue={token}")).await.body;
    assert_eq!(names(&second), ["c"]);
    assert_eq!(second["metadata"]["resourceVersion"], first["metadata"]["resourceVersion"]);
    assert_eq!(names(&client.get(&format!("{MAPS}?labelSelector=t+in+(a,d)")).await.body), ["a", "d"]);
    assert_eq!(client.get(&format!("{MAPS}?fieldSelector=data.x%3D1")).await.code, 400);
}

#[tokio::test]
async fn a_pod_enters_and_leaves_a_selected_watch() {
    let (server, client) = start().await;
    server.create(PODS, pod("p", "")).unwrap();
    let path = "/api/v1/pods?watch=1&fieldSelector=spec.nodeName%3Dn1,status.phase%3DPending";
    let mut watch = client.watch(path).await;
    let target = json!({"target": {"kind": "Node", "name": "n1"}});
    assert_eq!(client.post(&format!("{PODS}/p/binding"), target.clone()).await.code, 201);
    assert_eq!(watch.event().await, "ADDED p");
    assert_eq!(client.post(&format!("{PODS}/p/binding"), target).await.code, 409);
    let patch = json!({"status": {"phase": "Running"}});
    client.send("PATCH", &format!("{PODS}/p/status"), "application/merge-patch+json", &patch).await;
    assert_eq!(watch.event().await, "DELETED p");
}

#[tokio::test(start_paused = true)]
async fn a_watch_ends_at_its_time_with_a_bookmark() {
    let (_server, client) = start().await;
    let mut watch = client.watch(&format!("{PODS}?watch=1&allowWatchBookmarks=true&timeoutSeconds=1")).await;
    assert_eq!(watch.event().await, "BOOKMARK");
    assert_eq!(watch.event().await, "BOOKMARK");
    assert_eq!(watch.event().await, "END");
}

#[tokio::test]
async fn initial_events_require_a_version_match() {
    let (_server, client) = start().await;
    assert_eq!(client.get(&format!("{PODS}?watch=1&sendInitialEvents=true")).await.code, 422);
}

#[tokio::test]
async fn an_unscheduled_pod_is_deleted_at_once_and_a_scheduled_one_waits() {
    let (server, client) = start().await;
    server.create(PODS, pod("free", "")).unwrap();
    server.create(PODS, pod("bound", "n1")).unwrap();
    client.delete(&format!("{PODS}/free")).await;
    assert_eq!(client.get(&format!("{PODS}/free")).await.code, 404);
    client.delete(&format!("{PODS}/bound")).await;
    let found = client.get(&format!("{PODS}/bound")).await.body;
    assert_eq!(
        (&found["metadata"]["deletionGracePeriodSeconds"], &found["metadata"]["generation"]),
        (&json!(30), &json!(2))
    );
    let evict = json!({"deleteOptions": {"gracePeriodSeconds": 0}});
    assert_eq!(client.post(&format!("{PODS}/bound/eviction"), evict).await.code, 201);
    assert_eq!(client.get(&format!("{PODS}/bound")).await.code, 404);
}

#[tokio::test]
async fn the_last_finalizer_ends_a_deletion_and_dependents_follow() {
    let (server, client) = start().await;
    let owner = server.create(MAPS, json!({"metadata": {"name": "owner", "finalizers": ["example.com/f"]}})).unwrap();
    let reference = json!({"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner["metadata"]["uid"]});
    server.create(MAPS, json!({"metadata": {"name": "child", "ownerReferences": [reference]}})).unwrap();
    client.delete(&format!("{MAPS}/owner")).await;
    assert_eq!(client.get(&format!("{MAPS}/child")).await.code, 200);
    let more = json!({"metadata": {"finalizers": ["example.com/f", "example.com/g"]}});
    let merge = "application/merge-patch+json";
    assert_eq!(client.send("PATCH", &format!("{MAPS}/owner"), merge, &more).await.code, 422);
    let none = json!({"metadata": {"finalizers": null}});
    assert_eq!(client.send("PATCH", &format!("{MAPS}/owner"), merge, &none).await.code, 200);
    assert_eq!(client.get(&format!("{MAPS}/owner")).await.code, 404);
    assert_eq!(client.get(&format!("{MAPS}/child")).await.code, 404);
}

#[tokio::test]
async fn a_namespace_takes_its_content_with_it() {
    let (server, client) = start().await;
    assert_eq!(client.post("/api/v1/namespaces/n/pods", pod("p", "")).await.code, 404);
    client.post("/api/v1/namespaces", json!({"metadata": {"name": "n"}})).await;
    assert_eq!(server.get("namespaces", "", "n").unwrap()["status"]["phase"], "Active");
    assert_eq!(client.post("/api/v1/namespaces/n/pods", pod("p", "n1")).await.code, 201);
    client.delete("/api/v1/namespaces/n").await;
    assert_eq!(server.get("namespaces", "", "n").unwrap()["status"]["phase"], "Terminating");
    assert_eq!(client.post("/api/v1/namespaces/n/pods", pod("q", "")).await.code, 403);
    client.delete("/api/v1/namespaces/n/pods/p?gracePeriodSeconds=0").await;
    assert!(server.get("namespaces", "", "n").is_none());
}

#[tokio::test]
async fn the_texts_of_a_secret_become_data() {
    let (server, _client) = start().await;
    let secret =
        json!({"metadata": {"name": "s"}, "data": {"kept": "a2VwdA==", "p": "b2xk"}, "stringData": {"p": "new"}});
    let secret = server.create("/api/v1/namespaces/default/secrets", secret).unwrap();
    assert_eq!(secret["data"], json!({"kept": "a2VwdA==", "p": "bmV3"}));
    assert_eq!(secret.get("stringData"), None);
}

#[tokio::test]
async fn an_update_without_a_change_writes_nothing() {
    let (server, client) = start().await;
    let made = server.create(MAPS, json!({"metadata": {"name": "m"}, "data": {"a": "1"}})).unwrap();
    let same = client.send("PUT", &format!("{MAPS}/m"), "application/json", &made).await.body;
    assert_eq!(same["metadata"]["resourceVersion"], made["metadata"]["resourceVersion"]);
    let mut other = made.clone();
    other["metadata"]["uid"] = json!("x");
    let refused = client.send("PUT", &format!("{MAPS}/m"), "application/json", &other).await;
    assert_eq!(refused.code, 409);
    let dry = client
        .send("PUT", &format!("{MAPS}/m?dryRun=All"), "application/json", &json!({"metadata": {}, "data": {}}))
        .await;
    assert_eq!((dry.code, server.get("configmaps", "default", "m").unwrap()["data"]["a"].clone()), (200, json!("1")));
}

#[tokio::test]
async fn an_applied_field_that_is_left_out_goes_unless_another_manager_has_it() {
    let (_server, client) = start().await;
    let apply = |manager: &'static str, data: Value| {
        let client = client.clone();
        async move {
            let body = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m"}, "data": data});
            let path = format!("{MAPS}/m?fieldManager={manager}");
            client.send("PATCH", &path, "application/apply-patch+yaml", &body).await
        }
    };
    assert_eq!(apply("one", json!({"a": "1", "b": "2"})).await.code, 201);
    assert_eq!(apply("two", json!({"b": "2"})).await.code, 200);
    let found = apply("one", json!({})).await.body;
    assert_eq!(found["data"], json!({"b": "2"}));
    let conflict = apply("one", json!({"b": "3"})).await;
    assert_eq!(conflict.body["message"], "Apply failed with 1 conflict: conflict with \"two\": .data.b");
}

#[tokio::test]
async fn a_token_is_valid_while_its_pod_exists() {
    let (server, client) = start().await;
    let mut with_token = pod("p", "n1");
    let source = json!({"serviceAccountToken": {"path": "t", "audience": "x"}});
    with_token["spec"]["volumes"] = json!([{"name": "v", "projected": {"sources": [source]}}]);
    let made = server.create(PODS, with_token).unwrap();
    let node = Client::new(&server, Some(server.node_token("n1")));
    let bound = json!({"kind": "Pod", "apiVersion": "v1", "name": "p", "uid": made["metadata"]["uid"]});
    let path = "/api/v1/namespaces/default/serviceaccounts/default/token";
    let issued = node.post(path, json!({"spec": {"boundObjectRef": bound, "audiences": ["x"]}})).await;
    assert_eq!(issued.code, 201);
    let review = json!({"spec": {"token": issued.body["status"]["token"], "audiences": ["x"]}});
    let reviews = "/apis/authentication.k8s.io/v1/tokenreviews";
    let found = client.post(reviews, review.clone()).await.body;
    assert_eq!(found["status"]["user"]["username"], "system:serviceaccount:default:default");
    client.delete(&format!("{PODS}/p?gracePeriodSeconds=0")).await;
    assert!(client.post(reviews, review).await.body["status"]["authenticated"].is_null());
    assert_eq!(node.post(path, json!({"spec": {}})).await.code, 403);
}

#[tokio::test]
async fn a_review_answers_by_grants() {
    let (server, client) = start().await;
    server.grant(Grant::new("viewers", "get", "nodes/metrics"));
    let review = |user: &str, verb: &str| {
        let attributes = json!({"verb": verb, "resource": "nodes", "subresource": "metrics"});
        json!({"spec": {"user": user, "groups": ["viewers"], "resourceAttributes": attributes}})
    };
    let path = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
    assert_eq!(client.post(path, review("eve", "get")).await.body["status"]["allowed"], true);
    assert_eq!(client.post(path, review("eve", "create")).await.body["status"]["allowed"], false);
    let eve = Client::new(&server, Some(server.token(User::new("eve", &["viewers"]))));
    assert_eq!(eve.get(PODS).await.code, 403);
    let own = eve.post("/apis/authentication.k8s.io/v1/selfsubjectreviews", json!({})).await;
    assert_eq!(own.body["status"]["userInfo"]["username"], "eve");
}

#[tokio::test]
async fn a_review_of_a_node_answers_as_the_node_authorizer() {
    let (server, client) = start().await;
    server.create("/api/v1/nodes", json!({"metadata": {"name": "n1"}})).unwrap();
    let volumes = json!([{"name": "v", "secret": {"secretName": "mounted"}}]);
    let containers = json!([{"name": "a", "image": "x:1"}]);
    let spec = json!({"nodeName": "n1", "containers": containers, "volumes": volumes});
    server.create(PODS, json!({"metadata": {"name": "p"}, "spec": spec})).unwrap();
    let path = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
    let selected = json!({"requirements": [{"key": "spec.nodeName", "operator": "In", "values": ["n1"]}]});
    for (attributes, allowed) in [
        (json!({"verb": "get", "resource": "secrets", "namespace": "default", "name": "mounted"}), true),
        (json!({"verb": "get", "resource": "secrets", "namespace": "default", "name": "other"}), false),
        (json!({"verb": "delete", "resource": "secrets", "namespace": "default", "name": "mounted"}), false),
        (json!({"verb": "watch", "resource": "pods", "fieldSelector": selected}), true),
        (json!({"verb": "watch", "resource": "pods"}), false),
        (json!({"verb": "get", "resource": "nodes", "subresource": "proxy", "name": "n1"}), false),
    ] {
        let groups = ["system:nodes", "system:authenticated"];
        let spec = json!({"user": "system:node:n1", "groups": groups, "resourceAttributes": attributes});
        let status = client.post(path, json!({"spec": spec})).await.body["status"].clone();
        assert_eq!(status["allowed"], allowed, "{attributes}: {status}");
    }
}

#[tokio::test]
async fn events_are_served_in_both_groups() {
    let (server, client) = start().await;
    let path = "/apis/events.k8s.io/v1/namespaces/default/events";
    let event =
        json!({"metadata": {"name": "e"}, "regarding": {"kind": "Pod", "name": "p"}, "note": "n", "reason": "R"});
    assert_eq!(client.post(path, event).await.body["note"], "n");
    let core = client.get("/api/v1/namespaces/default/events/e").await.body;
    assert_eq!(
        (&core["message"], &core["involvedObject"]["name"], &core["kind"]),
        (&json!("n"), &json!("p"), &json!("Event"))
    );
    assert_eq!(server.all("events").len(), 1);
}

#[tokio::test]
async fn discovery_names_resources_and_their_paths() {
    let (_server, client) = start().await;
    let core = client.get("/api/v1").await.body;
    let has = |name: &str| core["resources"].as_array().unwrap().iter().any(|found| found["name"] == name);
    assert!(has("pods") && has("pods/status") && has("nodes/status"));
    let groups = client.get("/apis").await.body;
    let group = groups["groups"].as_array().unwrap().iter().find(|group| group["name"] == "resource.k8s.io").unwrap();
    assert_eq!(group["versions"].as_array().unwrap().len(), 2);
    assert_eq!(client.get("/version").await.body["minor"], "36");
}

#[tokio::test]
async fn a_claim_keeps_its_allocation_and_takes_no_reservation_while_it_is_deleted() {
    let (server, client) = start().await;
    let path = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims";
    let spec = json!({"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "c"}}]}});
    let finalizers = json!(["resource.kubernetes.io/delete-protection"]);
    server.create(path, json!({"metadata": {"name": "c", "finalizers": finalizers}, "spec": spec})).unwrap();
    let merge = "application/merge-patch+json";
    let status = |name: &str| {
        json!({"status": {
            "allocation": {"devices": {"results": [{"request": "r", "driver": "d", "pool": "p", "device": name}]}},
            "reservedFor": [{"resource": "pods", "name": "p", "uid": name}],
        }})
    };
    let status_path = format!("{path}/c/status");
    assert_eq!(client.send("PATCH", &status_path, merge, &status("one")).await.code, 200);
    assert_eq!(client.send("PATCH", &status_path, merge, &status("two")).await.code, 422);
    client.delete(&format!("{path}/c")).await;
    let more = json!({"status": {"reservedFor": [{"resource": "pods", "name": "q", "uid": "q"}]}});
    assert_eq!(client.send("PATCH", &status_path, merge, &more).await.code, 422);
}
