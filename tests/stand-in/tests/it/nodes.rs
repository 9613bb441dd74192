//! The rights of a node: the Node authorizer, and the admission plugin `NodeRestriction`.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use podwright_stand_in::StandIn;
use serde_json::{Value, json};

use crate::http::{Client, Reply};

const PODS: &str = "/api/v1/namespaces/default/pods";
const NODES: &str = "/api/v1/nodes";
const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";
const SLICES: &str = "/apis/resource.k8s.io/v1/resourceslices";
const TOKEN: &str = "/api/v1/namespaces/default/serviceaccounts/default/token";
const STRATEGIC: &str = "application/strategic-merge-patch+json";

async fn start() -> (StandIn, Client) {
    let server = StandIn::start().await.unwrap();
    server.create(NODES, json!({"metadata": {"name": "n1", "labels": {"kept": ""}}})).unwrap();
    let node = Client::new(&server, Some(server.node_token("n1")));
    (server, node)
}

fn pod(name: &str, node: &str) -> Value {
    json!({"metadata": {"name": name}, "spec": {"nodeName": node, "containers": [{"name": "a", "image": "i:1"}]}})
}

/// A mirror pod of the node, with a change.
fn mirror(server: &StandIn, change: impl FnOnce(&mut Value)) -> Value {
    let mut pod = pod("static-n1", "n1");
    let uid = &server.get("nodes", "", "n1").unwrap()["metadata"]["uid"];
    pod["metadata"]["annotations"] = json!({"kubernetes.io/config.mirror": "hash"});
    pod["metadata"]["ownerReferences"] =
        json!([{"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": uid, "controller": true}]);
    change(&mut pod);
    pod
}

/// A change of a mirror pod, and the end of the refusal.
type Refused = (fn(&mut Value), &'static str);

#[track_caller]
fn assert_refused(reply: &Reply, reason: &str) {
    let message = reply.body["message"].as_str().unwrap_or_default();
    assert!(
        reply.code == 403 && message.ends_with(reason),
        "expected 403 {reason:?}, found {} {message:?}",
        reply.code
    );
    assert_eq!((&reply.body["kind"], &reply.body["reason"]), (&json!("Status"), &json!("Forbidden")));
}

#[tokio::test]
async fn a_node_reads_its_own_pods_only() {
    let (server, node) = start().await;
    server.create(PODS, pod("own", "n1")).unwrap();
    server.create(PODS, pod("other", "n2")).unwrap();
    let selector = "can only list/watch pods with spec.nodeName field selector";
    assert_refused(&node.get("/api/v1/pods").await, selector);
    assert_refused(&node.get("/api/v1/pods?watch=1&fieldSelector=spec.nodeName%3Dn2").await, selector);
    assert_eq!(node.get("/api/v1/pods?fieldSelector=spec.nodeName%3Dn1").await.code, 200);
    assert_eq!(node.get(&format!("{PODS}/own")).await.code, 200);
    let refused = node.get(&format!("{PODS}/other")).await;
    assert_eq!(
        refused.body["message"],
        "pods \"other\" is forbidden: User \"system:node:n1\" cannot get resource \"pods\" in API group \"\" in the \
         namespace \"default\": no relationship found between node 'n1' and this object"
    );
    // The authorizer knows nothing of a pod that is gone, so the answer is not 404.
    assert_refused(&node.get(&format!("{PODS}/gone")).await, "no relationship found between node 'n1' and this object");
}

#[tokio::test]
async fn a_node_writes_the_status_of_its_own_pods_only() {
    let (server, node) = start().await;
    server.create(PODS, pod("own", "n1")).unwrap();
    server.create(PODS, pod("other", "n2")).unwrap();
    let patch =
        async |name: &str, patch: Value| node.send("PATCH", &format!("{PODS}/{name}/status"), STRATEGIC, &patch).await;
    assert_eq!(patch("own", json!({"status": {"phase": "Running"}})).await.code, 200);
    assert_eq!(patch("gone", json!({"status": {"phase": "Running"}})).await.code, 404);
    assert_refused(
        &patch("other", json!({"status": {"phase": "Failed"}})).await,
        "node \"n1\" can only update pod status for pods with spec.nodeName set to itself",
    );
    assert_refused(
        &patch("own", json!({"metadata": {"labels": {"a": "b"}}})).await,
        "node \"n1\" cannot update labels through pod status",
    );
    let claims = json!({"status": {"resourceClaimStatuses": [{"name": "c", "resourceClaimName": "x"}]}});
    assert_refused(&patch("own", claims).await, "node \"n1\" cannot update resource claim statues");
    let spec =
        node.send("PATCH", &format!("{PODS}/own"), STRATEGIC, &json!({"metadata": {"labels": {"a": "b"}}})).await;
    assert_eq!(spec.code, 403);
    assert_eq!(node.delete(&format!("{PODS}/own")).await.code, 200);
    assert_refused(
        &node.delete(&format!("{PODS}/other")).await,
        "node \"n1\" can only delete pods with spec.nodeName set to itself",
    );
    assert_refused(
        &node.post(&format!("{PODS}/other/eviction"), json!({"metadata": {"name": "other"}})).await,
        "node n1 can only evict pods with spec.nodeName set to itself",
    );
    assert_eq!(node.delete(PODS).await.code, 403);
    assert_eq!(node.post(&format!("{PODS}/own/binding"), json!({"target": {"name": "n1"}})).await.code, 403);
}

#[tokio::test]
async fn the_authorizer_learns_late_of_what_a_pod_names() {
    let time = Arc::new(AtomicI64::new(1_800_000_000));
    let clock = time.clone();
    let server = StandIn::builder()
        .clock(move || jiff::Timestamp::from_second(clock.load(Ordering::SeqCst)).unwrap())
        .settings(|settings| settings.node_authorizer_delay = Duration::from_secs(1))
        .start()
        .await
        .unwrap();
    server.create(NODES, json!({"metadata": {"name": "n1"}})).unwrap();
    let node = Client::new(&server, Some(server.node_token("n1")));
    let map = "/api/v1/namespaces/default/configmaps/m";
    let claim = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims/c";
    server.create("/api/v1/namespaces/default/configmaps", json!({"metadata": {"name": "m"}})).unwrap();
    let claims = claim.trim_end_matches("/c");
    server.create(claims, json!({"metadata": {"name": "c"}, "spec": {}})).unwrap();
    let mut pod = pod("p", "n1");
    pod["spec"]["volumes"] = json!([{"name": "v", "configMap": {"name": "m"}}]);
    server.create(PODS, pod).unwrap();
    let codes = async || (node.get(map).await.code, node.get(claim).await.code);
    assert_eq!(codes().await, (403, 403));
    time.fetch_add(1, Ordering::SeqCst);
    assert_eq!(codes().await, (200, 403));
    // A change of the pod adds a relation, and leaves the others.
    let status = json!({"status": {"resourceClaimStatuses": [{"name": "c", "resourceClaimName": "c"}]}});
    server.request("PATCH", &format!("{PODS}/p/status"), STRATEGIC, &status).unwrap();
    assert_eq!(codes().await, (200, 403));
    time.fetch_add(1, Ordering::SeqCst);
    assert_eq!(codes().await, (200, 200));
}

#[tokio::test]
async fn a_node_creates_mirror_pods_only() {
    let (server, node) = start().await;
    let refused: [Refused; 9] = [
        (
            |pod| pod["metadata"]["annotations"] = json!({}),
            "pod does not have \"kubernetes.io/config.mirror\" annotation, node \"n1\" can only create mirror pods",
        ),
        (|pod| pod["spec"]["nodeName"] = json!("n2"), "can only create pods with spec.nodeName set to itself"),
        (
            |pod| pod["metadata"]["ownerReferences"] = json!([]),
            "can only create pods with an owner reference set to itself",
        ),
        (
            |pod| pod["metadata"]["ownerReferences"][0]["controller"] = json!(false),
            "can only create pods with a controller owner reference set to itself",
        ),
        (
            |pod| pod["metadata"]["ownerReferences"][0]["blockOwnerDeletion"] = json!(true),
            "must not set blockOwnerDeletion on an owner reference",
        ),
        (|pod| pod["spec"]["serviceAccountName"] = json!("a"), "a mirror pod may not reference service accounts"),
        (
            |pod| pod["spec"]["containers"][0]["envFrom"] = json!([{"configMapRef": {"name": "m"}}]),
            "can not create pods that reference configmaps",
        ),
        (
            |pod| pod["spec"]["volumes"] = json!([{"name": "v", "secret": {"secretName": "s"}}]),
            "a mirror pod may not reference secrets",
        ),
        (
            |pod| pod["spec"]["resourceClaims"] = json!([{"name": "c", "resourceClaimName": "c"}]),
            "can not create pods that reference resourceclaims",
        ),
    ];
    for (change, reason) in refused {
        assert_refused(&node.post(PODS, mirror(&server, change)).await, reason);
    }
    let other_uid = mirror(&server, |pod| pod["metadata"]["ownerReferences"][0]["uid"] = json!("x"));
    let uid = server.get("nodes", "", "n1").unwrap()["metadata"]["uid"].as_str().unwrap().to_owned();
    assert_refused(&node.post(PODS, other_uid).await, &format!("node n1 UID mismatch: expected x got {uid}"));
    assert_eq!(node.post(PODS, mirror(&server, |_| {})).await.code, 201);
}

#[tokio::test]
async fn a_node_writes_itself_and_its_lease() {
    let (server, node) = start().await;
    server.create(NODES, json!({"metadata": {"name": "n2"}})).unwrap();
    let patch = async |path: &str, patch: Value| node.send("PATCH", path, STRATEGIC, &patch).await;
    let (own, other) = (format!("{NODES}/n1"), format!("{NODES}/n2"));
    let labels = |labels: Value| json!({"metadata": {"labels": labels}});
    let allowed =
        json!({"a": "b", "kubernetes.io/hostname": "n1", "node.kubernetes.io/x": "", "a.kubelet.kubernetes.io/y": ""});
    assert_eq!(patch(&own, labels(allowed)).await.code, 200);
    for key in ["node-restriction.kubernetes.io/x", "kubernetes.io/x", "a.k8s.io/x", "node-role.kubernetes.io/master"] {
        assert_refused(
            &patch(&own, labels(json!({key: ""}))).await,
            &format!("is not allowed to modify labels: {key}"),
        );
    }
    let taints = json!({"spec": {"taints": []}});
    let replaced = node.send("PATCH", &own, "application/merge-patch+json", &taints).await;
    assert_refused(&replaced, "node \"n1\" is not allowed to modify taints");
    let status = json!({"status": {"conditions": [{"type": "Ready", "status": "True"}]}});
    assert_eq!(patch(&format!("{own}/status"), status.clone()).await.code, 200);
    assert_refused(
        &patch(&format!("{other}/status"), status).await,
        "node \"n1\" is not allowed to modify node \"n2\"",
    );
    assert_eq!(node.get(&own).await.code, 200);
    assert_eq!(node.get(&format!("{NODES}?fieldSelector=metadata.name%3Dn1")).await.code, 200);
    assert_refused(&node.get(&other).await, "node 'n1' cannot read 'n2', only its own Node object");
    assert_refused(&node.get(NODES).await, "node 'n1' cannot read all nodes, only its own Node object");
    assert_eq!(node.delete(&own).await.code, 403, "a node cannot delete itself");

    let lease = |name: &str| json!({"metadata": {"name": name}});
    assert_eq!(node.post(LEASES, lease("n1")).await.code, 201);
    let same_name = "can only access node lease with the same name as the requesting node";
    assert_refused(&node.post(LEASES, lease("n2")).await, same_name);
    assert_refused(&node.get(&format!("{LEASES}/n2")).await, same_name);
    let others = LEASES.replace("kube-node-lease", "default");
    assert_refused(
        &node.post(&others, lease("n1")).await,
        "can only access leases in the \"kube-node-lease\" system namespace",
    );
}

#[tokio::test]
async fn a_node_registers_under_its_own_name_without_foreign_labels() {
    let server = StandIn::start().await.unwrap();
    let node = Client::new(&server, Some(server.node_token("n1")));
    let refused = node.post(NODES, json!({"metadata": {"name": "n1", "labels": {"k8s.io/x": ""}}})).await;
    assert_refused(&refused, "node \"n1\" is not allowed to set the following labels: k8s.io/x");
    let refused = node.post(NODES, json!({"metadata": {"name": "n2"}})).await;
    assert_refused(&refused, "node \"n1\" is not allowed to modify node \"n2\"");
    assert_eq!(node.post(NODES, json!({"metadata": {"name": "n1"}})).await.code, 201);
    let early = Client::new(&server, Some(server.node_token("n3")));
    let mut mirror = mirror(&server, |_| {});
    mirror["spec"]["nodeName"] = json!("n3");
    mirror["metadata"]["ownerReferences"][0]["name"] = json!("n3");
    let refused = early.post(PODS, mirror).await;
    assert_eq!((refused.code, &refused.body["message"]), (404, &json!("nodes \"n3\" not found")));
}

#[tokio::test]
async fn a_node_reads_what_its_pods_name() {
    let (server, node) = start().await;
    let secret = "/api/v1/namespaces/default/secrets/s";
    let by_name = "/api/v1/namespaces/default/secrets?fieldSelector=metadata.name%3Ds";
    server.create("/api/v1/namespaces/default/secrets", json!({"metadata": {"name": "s"}})).unwrap();
    let unrelated = "no relationship found between node 'n1' and this object";
    assert_refused(&node.get(secret).await, unrelated);
    // A mirror pod gives its node no rights, even if an administrator made it.
    let map = "/api/v1/namespaces/default/configmaps/m";
    server.create("/api/v1/namespaces/default/configmaps", json!({"metadata": {"name": "m"}})).unwrap();
    let mirror = mirror(&server, |pod| {
        pod["spec"]["volumes"] = json!([{"name": "v", "configMap": {"name": "m"}}]);
    });
    server.create(PODS, mirror).unwrap();
    assert_refused(&node.get(map).await, unrelated);
    let mut own = pod("own", "n1");
    own["spec"]["containers"][0]["env"] =
        json!([{"name": "E", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]);
    server.create(PODS, own).unwrap();
    assert_eq!((node.get(secret).await.code, node.get(by_name).await.code), (200, 200));
    assert_eq!(node.watch(&format!("{by_name}&watch=1")).await.event().await, "ADDED s");
    assert_refused(&node.get("/api/v1/namespaces/default/secrets").await, "No Object name found");
    assert_refused(&node.get("/api/v1/secrets").await, "can only read namespaced object of this type");
    assert_refused(&node.delete(secret).await, "can only read resources of this type");
    server.request("DELETE", &format!("{PODS}/own?gracePeriodSeconds=0"), "", &Value::Null).unwrap();
    assert_refused(&node.get(secret).await, unrelated);
}

#[tokio::test]
async fn a_node_requests_tokens_for_its_own_pods_only() {
    let (server, node) = start().await;
    let own = server.create(PODS, pod("own", "n1")).unwrap();
    let other = server.create(PODS, pod("other", "n2")).unwrap();
    let request = |pod: &Value, audiences: &[&str]| {
        let (name, uid) = (&pod["metadata"]["name"], &pod["metadata"]["uid"]);
        let bound = json!({"apiVersion": "v1", "kind": "Pod", "name": name, "uid": uid});
        json!({"spec": {"audiences": audiences, "boundObjectRef": bound}})
    };
    let issued = node.post(TOKEN, request(&own, &[])).await;
    assert_eq!(issued.code, 201);
    let token = issued.body["status"]["token"].as_str().unwrap().to_owned();
    let review = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
    let found = Client::new(&server, Some(token)).post(review, json!({})).await.body;
    let extra = &found["status"]["userInfo"]["extra"];
    let node_uid = &server.get("nodes", "", "n1").unwrap()["metadata"]["uid"];
    assert_eq!(extra["authentication.kubernetes.io/node-name"], json!(["n1"]));
    assert_eq!(&extra["authentication.kubernetes.io/node-uid"][0], node_uid);
    assert_refused(&node.post(TOKEN, json!({"spec": {}})).await, "node requested token not bound to a pod");
    let mut without_uid = request(&own, &[]);
    without_uid["spec"]["boundObjectRef"]["uid"] = json!("");
    assert_refused(&node.post(TOKEN, without_uid).await, "node requested token with a pod binding without a uid");
    assert_refused(
        &node.post(TOKEN, request(&other, &[])).await,
        "node requested token bound to a pod scheduled on a different node",
    );
    assert_refused(
        &node.post(TOKEN, request(&own, &["x"])).await,
        "audience \"x\" not found in pod spec volume, system:node:n1 is not authorized to request tokens for this audience",
    );
    assert_refused(&node.post(TOKEN, request(&own, &["x", "y"])).await, "node may only request 0 or 1 audiences");
}

#[tokio::test]
async fn a_node_writes_its_own_resource_slices() {
    let (server, node) = start().await;
    let slice = |name: &str, node: &str| {
        json!({
            "metadata": {"name": name},
            "spec": {
                "driver": "d",
                "nodeName": node,
                "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
                "devices": [],
            },
        })
    };
    server.create(SLICES, slice("other", "n2")).unwrap();
    assert_eq!(node.post(SLICES, slice("own", "n1")).await.code, 201);
    assert_refused(
        &node.post(SLICES, slice("wrong", "n2")).await,
        "can only create ResourceSlice with the same NodeName as the requesting node",
    );
    let unrelated = "no relationship found between node 'n1' and this object";
    assert_refused(&node.delete(&format!("{SLICES}/other")).await, unrelated);
    assert_refused(&node.get(&format!("{SLICES}/other")).await, unrelated);
    assert_eq!(node.delete(&format!("{SLICES}?fieldSelector=spec.nodeName%3Dn1")).await.code, 200);
    assert_eq!(node.delete(SLICES).await.code, 403);
    assert!(server.get("resourceslices", "", "own").is_none());
}
