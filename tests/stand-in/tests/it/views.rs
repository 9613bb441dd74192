//! The answers for `kubectl`: tables, metadata, discovery and the description of the API.

use podwright_stand_in::StandIn;
use serde_json::{Value, json};

use crate::http::Client;

const PODS: &str = "/api/v1/namespaces/default/pods";
const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json";
/// 2026-01-01T00:00:00Z.
const START: i64 = 1_767_225_600;

async fn start() -> (StandIn, Client) {
    let clock = || jiff::Timestamp::from_second(START).unwrap();
    let server = StandIn::builder().clock(clock).start().await.unwrap();
    let client = Client::admin(&server);
    (server, client)
}

/// The names of the columns that `kubectl get` prints, and the cells of each row.
fn printed(table: &Value) -> (Vec<&str>, Vec<String>) {
    assert_eq!((&table["kind"], &table["apiVersion"]), (&json!("Table"), &json!("meta.k8s.io/v1")));
    let columns = table["columnDefinitions"].as_array().unwrap();
    let is_shown: Vec<bool> = columns.iter().map(|column| column["priority"] == 0).collect();
    let names = columns.iter().zip(&is_shown).filter(|(_, shown)| **shown);
    let rows = table["rows"].as_array().unwrap().iter().map(|row| {
        let cells = row["cells"].as_array().unwrap().iter().zip(&is_shown).filter(|(_, shown)| **shown);
        cells.map(|(cell, _)| cell.as_str().unwrap_or_default()).collect::<Vec<_>>().join(" ")
    });
    (names.map(|(column, _)| column["name"].as_str().unwrap()).collect(), rows.collect())
}

fn pod(name: &str) -> Value {
    let init = json!([{"name": "i", "image": "x:1"}, {"name": "s", "image": "x:1", "restartPolicy": "Always"}]);
    json!({
        "metadata": {"name": name},
        "spec": {"nodeName": "n1", "initContainers": init, "containers": [{"name": "a", "image": "x:1"}]},
    })
}

#[tokio::test]
async fn the_table_of_pods_has_the_words_of_kubectl() {
    let (server, client) = start().await;
    let done = json!({"name": "i", "state": {"terminated": {"exitCode": 0}}});
    let sidecar = json!({"name": "s", "started": true, "ready": true, "state": {"running": {}}});
    let container = |state: Value, ready: bool, restarts: i64| {
        json!([{"name": "a", "ready": ready, "restartCount": restarts, "state": state,
            "lastState": {"terminated": {"finishedAt": "2025-12-31T23:55:30Z"}}}])
    };
    let running = || container(json!({"running": {}}), true, 0);
    let failing = json!({"name": "i", "state": {"waiting": {"reason": "ImagePullBackOff"}}});
    for (name, status, row) in [
        ("pending", json!({}), "pending 0/2 Pending 0 0s"),
        ("pulling", json!({"initContainerStatuses": [failing]}), "pulling 0/2 Init:ImagePullBackOff 0 0s"),
        (
            "waiting",
            json!({"initContainerStatuses": [{"name": "i", "state": {"running": {}}}]}),
            "waiting 0/2 Init:0/2 0 0s",
        ),
        (
            "running",
            json!({"phase": "Running", "initContainerStatuses": [done, sidecar], "containerStatuses": running()}),
            "running 2/2 Running 0 0s",
        ),
        (
            "crashing",
            json!({
                "phase": "Running",
                "initContainerStatuses": [done, sidecar],
                "containerStatuses": container(json!({"waiting": {"reason": "CrashLoopBackOff"}}), false, 3),
            }),
            "crashing 1/2 CrashLoopBackOff 3 (4m30s ago) 0s",
        ),
        (
            "failed",
            json!({
                "phase": "Failed",
                "initContainerStatuses": [done],
                "containerStatuses": container(json!({"terminated": {"exitCode": 3}}), false, 0),
            }),
            "failed 0/2 ExitCode:3 0 0s",
        ),
        ("evicted", json!({"phase": "Failed", "reason": "Evicted"}), "evicted 0/2 Evicted 0 0s"),
    ] {
        server.create(PODS, pod(name)).unwrap();
        let path = format!("{PODS}/{name}");
        client
            .send("PATCH", &format!("{path}/status"), "application/merge-patch+json", &json!({"status": status}))
            .await;
        let (columns, rows) = {
            let table = client.accepting(TABLE).get(&path).await.body;
            let (columns, rows) = printed(&table);
            (columns.join(" "), rows)
        };
        assert_eq!((columns.as_str(), rows.as_slice()), ("Name Ready Status Restarts Age", &[row.to_owned()][..]));
    }
    client.delete(&format!("{PODS}/running")).await;
    let list = client.accepting(TABLE).get(PODS).await.body;
    let (_, rows) = printed(&list);
    assert!(rows.contains(&"running 2/2 Terminating 0 0s".to_owned()), "{rows:?}");
    assert_eq!(list["rows"][0]["object"]["kind"], "PartialObjectMetadata");
    assert!(list["metadata"]["resourceVersion"].is_string());
}

#[tokio::test]
async fn tables_of_nodes_and_events_have_their_columns() {
    let (server, client) = start().await;
    let status = json!({
        "conditions": [{"type": "Ready", "status": "True"}],
        "nodeInfo": {"kubeletVersion": "v1.36.0"},
    });
    let labels = json!({"node-role.kubernetes.io/worker": ""});
    server.create("/api/v1/nodes", json!({"metadata": {"name": "n1", "labels": labels}, "status": status})).unwrap();
    let client = client.accepting(TABLE);
    let nodes = client.get("/api/v1/nodes").await.body;
    assert_eq!(
        printed(&nodes),
        (vec!["Name", "Status", "Roles", "Age", "Version"], vec!["n1 Ready worker 0s v1.36.0".to_owned()])
    );
    let event = json!({
        "metadata": {"name": "e"},
        "involvedObject": {"kind": "Pod", "name": "p"},
        "type": "Warning",
        "reason": "BackOff",
        "message": "m",
        "count": 4,
        "firstTimestamp": "2025-12-31T23:00:00Z",
        "lastTimestamp": "2025-12-31T23:59:50Z",
    });
    server.create("/api/v1/namespaces/default/events", event).unwrap();
    let row = vec!["10s (x4 over 60m) Warning BackOff pod/p m".to_owned()];
    for path in ["/api/v1/namespaces/default/events", "/apis/events.k8s.io/v1/namespaces/default/events"] {
        let events = client.get(path).await.body;
        assert_eq!(printed(&events), (vec!["Last Seen", "Type", "Reason", "Object", "Message"], row.clone()));
    }
}

#[tokio::test]
async fn a_watch_sends_tables_or_metadata() {
    let (server, client) = start().await;
    server.create(PODS, pod("p")).unwrap();
    let path = format!("{PODS}?watch=1&allowWatchBookmarks=true");
    let mut tables = client.accepting(TABLE).watch(&path).await;
    let first = tables.next().await.unwrap();
    assert_eq!(printed(&first["object"]).1, ["p 0/2 Pending 0 0s"]);
    let bookmark = tables.next().await.unwrap();
    assert_eq!((&bookmark["type"], &bookmark["object"]["rows"]), (&json!("BOOKMARK"), &json!([])));
    assert!(bookmark["object"]["metadata"]["resourceVersion"].is_string());
    let partial = client.accepting("application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1");
    let line = partial.watch(&path).await.next().await.unwrap();
    assert_eq!((&line["object"]["kind"], line["object"].get("spec")), (&json!("PartialObjectMetadata"), None));
    let list =
        client.accepting("application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1").get(PODS).await.body;
    assert_eq!(list["kind"], "PartialObjectMetadataList");
    assert_eq!(client.accepting(TABLE).get(&format!("{PODS}/none")).await.body["kind"], "Status");
}

#[tokio::test]
async fn discovery_is_aggregated_for_clients_that_ask() {
    let (_server, client) = start().await;
    let accept = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json";
    let client = client.accepting(accept);
    let core = client.get("/api").await;
    assert!(core.headers["content-type"].to_str().unwrap().ends_with("as=APIGroupDiscoveryList"));
    let resources = core.body["items"][0]["versions"][0]["resources"].as_array().unwrap().clone();
    let pods = resources.iter().find(|resource| resource["resource"] == "pods").unwrap();
    assert_eq!((&pods["scope"], &pods["responseKind"]["kind"]), (&json!("Namespaced"), &json!("Pod")));
    let below: Vec<&str> =
        pods["subresources"].as_array().unwrap().iter().map(|found| found["subresource"].as_str().unwrap()).collect();
    for name in ["binding", "ephemeralcontainers", "eviction", "exec", "log", "resize", "status"] {
        assert!(below.contains(&name), "{name} in {below:?}");
    }
    let groups = client.get("/apis").await.body;
    let names: Vec<&str> =
        groups["items"].as_array().unwrap().iter().map(|group| group["metadata"]["name"].as_str().unwrap()).collect();
    assert!(names.contains(&"coordination.k8s.io") && names.contains(&"policy"), "{names:?}");
    assert_eq!(client.plain().get("/apis").await.body["kind"], "APIGroupList");
}

#[tokio::test]
async fn the_description_says_that_the_server_validates_fields() {
    let (_server, client) = start().await;
    let paths = client.get("/openapi/v3").await.body;
    let path = paths["paths"]["api/v1"]["serverRelativeURL"].as_str().unwrap().to_owned();
    let document = client.get(&path).await.body;
    let patch = &document["paths"]["/api/v1/namespaces/{namespace}/pods/{name}"]["patch"];
    assert_eq!(patch["x-kubernetes-group-version-kind"], json!({"group": "", "version": "v1", "kind": "Pod"}));
    assert_eq!(patch["parameters"][0]["name"], "fieldValidation");
    assert_eq!(client.get("/openapi/v3/apis/none/v1").await.code, 404);
    assert_eq!(client.get("/openapi/v2").await.body["swagger"], "2.0");
}
