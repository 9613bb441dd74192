//! The recorded exchanges of real servers, in order.
//!
//! `recorded.json` holds the exchanges without the objects of other clusters' users. Three answers are corrected: the
//! recorder had changed the object in its memory after it was received, so the answer showed the next request (the lease
//! after its creation, the claim after its creation, and the claim after its first update). The request without a
//! credential is marked as such.
//!
//! `recorded-2.json` holds the exchanges with a server of version 1.36. Its recorder left out `managedFields` of answers that it decoded,
//! long texts, and one request without an owner reference, which is corrected.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use podwright_stand_in::StandIn;
use serde_json::{Value, json};

use crate::http::Client;

/// 2026-11-21T05:37:00Z, the minute of the first recording.
const FIRST: i64 = 1_795_239_420;

/// 2026-11-27T08:48:00Z, the minute of the second recording.
const SECOND: i64 = 1_795_769_280;

const STRATEGIC: &str = "application/strategic-merge-patch+json";
const MERGE: &str = "application/merge-patch+json";

/// Recorded values that differ in each run, with the values of this run.
#[derive(Default)]
struct Bindings(BTreeMap<String, String>);

impl Bindings {
    /// Learns UIDs, resource versions and generated names from two answers to one request.
    fn learn(&mut self, recorded: &Value, actual: &Value) {
        let (old, new) = (&recorded["metadata"], &actual["metadata"]);
        let fields: &[&str] = if old["generateName"].is_string() {
            &["uid", "resourceVersion", "name"]
        } else {
            &["uid", "resourceVersion"]
        };
        for field in fields {
            self.bind(&old[*field], &new[*field]);
        }
        let volumes = |object: &Value| object["spec"]["volumes"].as_array().cloned().unwrap_or_default();
        for (old, new) in volumes(recorded).iter().zip(volumes(actual)) {
            self.bind(&old["name"], &new["name"]);
        }
        let items = |list: &Value| list["items"].as_array().cloned().unwrap_or_default();
        for (old, new) in items(recorded).iter().zip(items(actual)) {
            self.learn(old, &new);
        }
    }

    fn bind(&mut self, old: &Value, new: &Value) {
        if let (Some(old), Some(new)) = (old.as_str(), new.as_str()) {
            self.0.entry(old.to_owned()).or_insert_with(|| new.to_owned());
        }
    }

    /// A recorded text or body with the values of this run.
    fn apply(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for (old, new) in &self.0 {
            let is_version = old.bytes().all(|byte| byte.is_ascii_digit());
            text = if is_version {
                text.replace(&format!("\"{old}\""), &format!("\"{new}\""))
            } else {
                text.replace(old, new)
            };
        }
        text
    }

    fn apply_to(&self, value: &Value) -> Value {
        serde_json::from_str(&self.apply(&value.to_string())).unwrap()
    }
}

/// Whether everything in `part` is in `whole`.
fn contains(whole: &Value, part: &Value) -> bool {
    match (whole, part) {
        (Value::Object(whole), Value::Object(part)) => {
            part.iter().all(|(name, value)| whole.get(name).is_some_and(|found| contains(found, value)))
        }
        (Value::Array(whole), Value::Array(part)) => {
            whole.len() == part.len() && whole.iter().zip(part).all(|(whole, part)| contains(whole, part))
        }
        _ => whole == part,
    }
}

/// The texts in a value, each as `change` returns it.
fn with_texts(value: &Value, change: &impl Fn(&str) -> String) -> Value {
    match value {
        Value::String(text) => json!(change(text)),
        Value::Array(items) => items.iter().map(|item| with_texts(item, change)).collect(),
        Value::Object(fields) => {
            Value::Object(fields.iter().map(|(name, value)| (name.clone(), with_texts(value, change))).collect())
        }
        value => value.clone(),
    }
}

/// A text of a body that the recorder has shortened, in its length.
fn lengthened(text: &str) -> String {
    let number = text.strip_prefix('<').and_then(|rest| rest.strip_suffix(" characters>"));
    number.and_then(|number| number.parse().ok()).map_or_else(|| text.to_owned(), |length| "x".repeat(length))
}

/// A text of an answer without what depends on the language of the server: the dump of a value, and the difference of two.
fn shortened(text: &str) -> String {
    if text.len() > 100_000 {
        return format!("<{} characters>", text.len());
    }
    let (start, end) = ("Invalid value: {", "}: field is immutable");
    let text = text.split("\n@@").next().unwrap_or_default();
    match text.split_once(start).and_then(|(before, rest)| Some((before, rest.split_once(end)?.1))) {
        Some((before, after)) => format!("{before}{start}{end}{after}"),
        None => text.to_owned(),
    }
}

/// Removes from an answer the owners of fields that the recorded answer does not have.
fn without_owners(expected: &Value, actual: &mut Value) {
    if expected["metadata"]["managedFields"].is_null()
        && let Some(metadata) = actual.get_mut("metadata").and_then(Value::as_object_mut)
    {
        metadata.remove("managedFields");
    }
    let items = actual.get_mut("items").and_then(Value::as_array_mut).into_iter().flatten();
    items.zip(expected["items"].as_array().into_iter().flatten()).for_each(|(new, old)| without_owners(old, new));
}

struct Replay {
    server: StandIn,
    /// The start of the recording.
    start: i64,
    clock: Arc<AtomicI64>,
    bindings: Bindings,
}

impl Replay {
    async fn start(start: i64, namespaces: &[&str]) -> Self {
        let clock = Arc::new(AtomicI64::new(start));
        let time = clock.clone();
        let server = StandIn::builder()
            .clock(move || jiff::Timestamp::from_second(time.load(Ordering::SeqCst)).unwrap())
            .settings(|settings| {
                settings.ca_config_maps = vec![("openshift-service-ca.crt".to_owned(), "service-ca.crt".to_owned())];
            })
            .bookmark_period(Duration::from_millis(20))
            .start()
            .await
            .unwrap();
        namespaces.iter().for_each(|namespace| server.create_namespace(namespace));
        Self { server, start, clock, bindings: Bindings::default() }
    }

    fn set_time(&self, seconds: i64) {
        self.clock.store(self.start + seconds, Ordering::SeqCst);
    }

    async fn exchange(&mut self, number: usize, recorded: &Value) -> Vec<String> {
        let text = |field: &str| recorded[field].as_str().unwrap_or_default();
        let title = format!("{number}: {}", text("note"));
        self.set_time(recorded["at"].as_i64().unwrap());
        let token = match text("credentials") {
            "none" => None,
            "admin" => Some(self.server.admin_token()),
            "node" => Some(self.server.node_token("node1")),
            node => Some(self.server.node_token(node)),
        };
        let client = Client::new(&self.server, token);
        let path = self.bindings.apply(text("path"));
        if path.contains("watch=1") {
            client.watch(&path).await;
            return Vec::new();
        }
        let body = match (recorded["text"].as_str(), recorded.get("body")) {
            (Some(text), _) => self.bindings.apply(text),
            (None, Some(body)) if !body.is_null() => self.bindings.apply(&with_texts(body, &lengthened).to_string()),
            (None, _) => String::new(),
        };
        let reply = client.send_bytes(text("method"), &path, text("contentType"), body).await;
        self.bindings.learn(&recorded["answer"], &reply.body);
        let mut expected = self.bindings.apply_to(&with_texts(&recorded["answer"], &shortened));
        let mut actual = with_texts(&reply.body, &shortened);
        if self.start == SECOND {
            without_owners(&expected, &mut actual);
        }
        if let Some(part) = recorded["contains"].as_str() {
            assert!(String::from_utf8_lossy(&reply.bytes).contains(part), "{title}: {actual}");
        }
        for (name, value) in recorded["headers"].as_object().into_iter().flatten() {
            assert_eq!(reply.headers[name.as_str()], value.as_str().unwrap(), "{title}");
        }
        if path.ends_with("resourceVersion=99999999") {
            // The current version stands in the text.
            for message in [&mut expected["message"], &mut actual["message"]] {
                *message = json!(message.as_str().unwrap().split(", current").next());
            }
        }
        for metadata in [&mut expected["metadata"], &mut actual["metadata"]] {
            if let Some(metadata) = metadata.as_object_mut() {
                metadata.remove("resourceVersion");
            }
        }
        if reply.code != recorded["status"] {
            return vec![format!("{title}: expected {}, found {}: {actual}", recorded["status"], reply.code)];
        }
        if recorded["partial"] == true && contains(&actual, &expected) {
            return Vec::new();
        }
        differences(&format!("{title}: "), &expected, &actual)
    }
}

/// Each difference on its own line.
fn differences(path: &str, expected: &Value, actual: &Value) -> Vec<String> {
    match (expected, actual) {
        (Value::Object(old), Value::Object(new)) => {
            let names: std::collections::BTreeSet<&String> = old.keys().chain(new.keys()).collect();
            let find =
                |map: &serde_json::Map<String, Value>, name| map.get(name).cloned().unwrap_or(json!("(missing)"));
            names
                .into_iter()
                .flat_map(|name| differences(&format!("{path}.{name}"), &find(old, name), &find(new, name)))
                .collect()
        }
        (Value::Array(old), Value::Array(new)) if old.len() == new.len() => {
            let pairs = old.iter().zip(new).enumerate();
            pairs.flat_map(|(at, (old, new))| differences(&format!("{path}[{at}]"), old, new)).collect()
        }
        _ if expected == actual => Vec::new(),
        _ => vec![format!("{path}: expected {expected}, found {actual}")],
    }
}

#[tokio::test]
async fn the_recorded_exchanges_have_the_recorded_answers() {
    let data: Value = serde_json::from_str(include_str!("recorded.json")).unwrap();
    let mut replay = Replay::start(FIRST, &["ref2", "bench"]).await;
    let admin = Client::admin(&replay.server);
    for (name, reason, message) in [
        (
            "s0.18e9f810c0e213c2",
            "Pulled",
            "Container image \"docker.io/library/busybox:test\" already present on machine and can be accessed by the pod",
        ),
        ("s0.18e9f811054655b8", "Created", "Container created"),
        ("s0.18e9f8110ffffff0", "Started", "Container started"),
    ] {
        let event = json!({"metadata": {"name": name}, "involvedObject": {}, "reason": reason, "message": message});
        replay.server.create("/api/v1/namespaces/bench/events", event).unwrap();
    }
    let mut watch = None;
    let mut faults = Vec::new();
    for (number, recorded) in data["exchanges"].as_array().unwrap().iter().enumerate() {
        match number {
            // The node's time-to-live annotation is a controller's.
            2 => {
                let patch = json!({"metadata": {"annotations": {"node.alpha.kubernetes.io/ttl": "0"}}});
                admin.send("PATCH", "/api/v1/nodes/nodex", "application/merge-patch+json", &patch).await;
            }
            // The claim controller names its own claim.
            44 => {
                let status = json!({"resourceClaimStatuses": [{"name": "d", "resourceClaimName": "p2-d-6bq9b"}]});
                let patch = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p2"}, "status": status});
                let path = "/api/v1/namespaces/ref2/pods/p2/status?fieldManager=ResourceClaimController&force=true";
                assert_eq!(admin.send("PATCH", path, "application/apply-patch+yaml", &patch).await.code, 200);
                watch = Some(admin.watch(data["watches"][0]["path"].as_str().unwrap()).await);
            }
            _ => {}
        }
        faults.extend(replay.exchange(number, recorded).await);
    }
    let mut watch = watch.unwrap();
    for (number, recorded) in data["watches"].as_array().unwrap().iter().enumerate() {
        let lines = recorded["lines"].as_array().unwrap();
        if number == 1 {
            watch = admin.watch(recorded["path"].as_str().unwrap()).await;
        }
        for line in lines {
            let is_end =
                |line: &Value| line["type"] == "BOOKMARK" && line["object"]["metadata"]["annotations"].is_null();
            let mut found = watch.next().await.unwrap();
            while is_end(&found) && !is_end(line) {
                found = watch.next().await.unwrap();
            }
            replay.bindings.learn(&line["object"], &found["object"]);
            let mut expected = replay.bindings.apply_to(line);
            for object in [&mut expected["object"], &mut found["object"]] {
                object["metadata"].as_object_mut().unwrap().remove("resourceVersion");
            }
            faults.extend(differences(&format!("watch {number}: "), &expected, &found));
        }
    }
    assert!(faults.is_empty(), "the answers differ from the recording:\n{}", faults.join("\n"));
}

#[tokio::test]
async fn the_second_recording_has_the_recorded_answers() {
    let data: Value = serde_json::from_str(include_str!("recorded-2.json")).unwrap();
    let mut replay = Replay::start(SECOND, &["ref3"]).await;
    let admin = Client::admin(&replay.server);
    let pods = "/api/v1/namespaces/ref3/pods";
    let pod = |name: &str, node: &str| {
        let labels = if name == "guarded" { json!({"a": "g"}) } else { Value::Null };
        let containers = json!([{"name": "c", "image": "x"}]);
        let mut pod = json!({"metadata": {"name": name, "labels": labels}, "spec": {"containers": containers}});
        if !node.is_empty() {
            pod["spec"]["nodeName"] = json!(node);
        }
        pod
    };
    replay.set_time(56);
    for node in ["node1", "node2"] {
        let (labels, annotations) =
            (json!({"kubernetes.io/hostname": node}), json!({"node.alpha.kubernetes.io/ttl": "0"}));
        let object = json!({"metadata": {"name": node, "labels": labels, "annotations": annotations}});
        let made = replay.server.create("/api/v1/nodes", object).unwrap();
        if node == "node1" {
            replay.bindings.bind(&json!("eeb6fd10-2b68-4d76-8ce4-294aa3debbf6"), &made["metadata"]["uid"]);
        }
        let ready = json!({"spec": {"taints": null}});
        assert_eq!(admin.send("PATCH", &format!("/api/v1/nodes/{node}"), MERGE, &ready).await.code, 200);
    }
    replay.server.create("/api/v1/namespaces/ref3/configmaps", json!({"metadata": {"name": "cm"}})).unwrap();
    replay.server.create(pods, pod("guarded", "")).unwrap();
    let scheduled = "0/2 nodes are available: 2 Too many pods. no new claims to deallocate, preemption: 0/2 nodes are \
                     available: 2 No preemption victims found for incoming pod.";
    let scheduled = json!({"type": "PodScheduled", "status": "False", "observedGeneration": 1,
        "lastTransitionTime": "2026-11-27T08:48:56Z", "reason": "Unschedulable", "message": scheduled});
    let status =
        json!({"status": {"phase": "Running", "conditions": [scheduled, {"type": "Ready", "status": "True"}]}});
    assert_eq!(admin.send("PATCH", &format!("{pods}/guarded/status"), STRATEGIC, &status).await.code, 200);
    let budget = json!({"minAvailable": 1, "selector": {"matchLabels": {"a": "g"}}});
    let budget = json!({"metadata": {"name": "b"}, "spec": budget});
    replay.server.create("/apis/policy/v1/namespaces/ref3/poddisruptionbudgets", budget).unwrap();
    let mut faults = Vec::new();
    for (number, recorded) in data["exchanges"].as_array().unwrap().iter().enumerate() {
        match recorded["note"].as_str().unwrap() {
            "a node writes the status of a pod of another node" => {
                replay.server.create(pods, pod("uses", "node1")).unwrap();
            }
            "then it is gone" => {
                let claim = "/apis/resource.k8s.io/v1/namespaces/ref3/resourceclaims/op";
                assert_eq!(admin.delete(claim).await.code, 200);
            }
            "token for a pod with another uid" => {
                replay.server.create(pods, pod("tok", "node1")).unwrap();
            }
            _ => {}
        }
        faults.extend(replay.exchange(number, recorded).await);
    }
    assert!(faults.is_empty(), "the answers differ from the recording:\n{}", faults.join("\n"));
}
