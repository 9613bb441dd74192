//! The recorded exchanges of a real server, in order.
//!
//! `recorded.json` holds the exchanges without the objects of other clusters' users. Three answers are corrected: the
//! recorder had changed the object in its memory after it was received, so the answer showed the next request (the lease
//! after its creation, the claim after its creation, and the claim after its first update). The request without a
//! credential is marked as such.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use podwright_stand_in::StandIn;
use serde_json::{Value, json};

use crate::http::Client;

/// 2026-11-21T05:37:00Z, the minute of the recording.
const MINUTE: i64 = 1_795_239_420;

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

struct Replay {
    server: StandIn,
    clock: Arc<AtomicI64>,
    bindings: Bindings,
}

impl Replay {
    async fn start() -> Self {
        let clock = Arc::new(AtomicI64::new(MINUTE));
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
        server.create_namespace("ref2");
        server.create_namespace("bench");
        Self { server, clock, bindings: Bindings::default() }
    }

    async fn exchange(&mut self, number: usize, recorded: &Value) -> Vec<String> {
        let text = |field: &str| recorded[field].as_str().unwrap_or_default();
        let title = format!("{number}: {}", text("note"));
        self.clock.store(MINUTE + recorded["at"].as_i64().unwrap(), Ordering::SeqCst);
        let token = match text("credentials") {
            "none" => None,
            "node" => Some(self.server.node_token("node1")),
            _ => Some(self.server.admin_token()),
        };
        let client = Client::new(&self.server, token);
        let body = self.bindings.apply_to(&recorded["body"]);
        let path = self.bindings.apply(text("path"));
        let reply = client.send(text("method"), &path, text("contentType"), &body).await;
        self.bindings.learn(&recorded["answer"], &reply.body);
        let mut expected = self.bindings.apply_to(&recorded["answer"]);
        let mut actual = reply.body;
        if number == 25 {
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
    let mut replay = Replay::start().await;
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
