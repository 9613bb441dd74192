//! Compares the texts of events, conditions and container states with those of a kubelet.
//!
//! `recorded.json` holds what a kubelet of Kubernetes 1.36 on containerd wrote for each pod: the pod's spec without commands, its
//! events, its conditions, the states and the fields of its containers, the pod's own phase, reason and message, and the whole
//! last status. The events `Pulled` are left out, because the runtime adapter records them. The pod `volumes` has no variable from
//! a config map, because the fakes have no API server.

use std::collections::BTreeSet;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{ContainerState, ContainerStatus, PodStatus};
use podwright_core::admission::{NodeCapacity, NodePredicates};
use podwright_fixtures::api_pods::{PodBuilder, pod};
use podwright_fixtures::scripted_runtime::{Op, Script};
use podwright_ports::{EventType, ExecOutput, PodEvent, StorageError};
use serde::Deserialize;
use serde_json::Value;

use crate::support::test_node::{Setup, TestNode};

const RECORDED: &str = include_str!("kubelet_texts/recorded.json");

/// Container, field, kind of the state, reason, message, exit code.
type State = (String, String, String, Option<String>, Option<String>, Option<i32>);

/// Type, status, reason, message, whether it has an observed generation.
type Condition = (String, String, Option<String>, Option<String>, bool);

/// The name of a list of container statuses, and the fields of a status in it.
type StatusKeys = (String, Vec<String>);

/// The last status of a pod.
#[derive(Debug, Default, PartialEq, Deserialize)]
struct LastStatus {
    /// Type, status and reason of each condition, in order.
    conditions: Vec<(String, String, Option<String>)>,
    /// The fields of the status besides conditions and containers.
    fields: Vec<String>,
}

/// The texts that one pod has shown, each of them once.
#[derive(Debug, Default, Deserialize)]
struct Texts {
    #[serde(default)]
    spec: Value,
    /// Type, reason, message, field path.
    events: BTreeSet<(String, String, String, Option<String>)>,
    conditions: BTreeSet<Condition>,
    states: BTreeSet<State>,
    /// Phase, reason, message.
    pod: BTreeSet<(String, Option<String>, Option<String>)>,
    #[serde(rename = "statusKeys")]
    status_keys: BTreeSet<StatusKeys>,
    end: LastStatus,
}

/// The texts that a kubelet wrote for a pod.
fn recorded(name: &str) -> Texts {
    // The pods were in the namespace `diff`. Here a pod's UID is its name.
    let text = RECORDED.replace("_diff(<uid>)", &format!("_test({name})"));
    let mut all: std::collections::BTreeMap<String, Texts> = serde_json::from_str(&text).unwrap();
    all.remove(name).unwrap()
}

/// A pod that runs, and the texts that it has shown so far.
struct WatchedPod {
    node: TestNode,
    pod: PodBuilder,
    name: String,
    shown: Texts,
}

impl WatchedPod {
    async fn start(name: &str, prepare: impl FnOnce(&Setup)) -> Self {
        let mut setup = Setup::again(true);
        setup.cpu_millis = 2000;
        setup.admission = Some(Arc::new(NodePredicates::new("node1", NodeCapacity::new(2000, 1 << 30, 500))));
        // The first status is visible for some time, as with a real runtime.
        setup.runtime.slow(Op::RunSandbox, 0.1);
        setup.runtime.slow(Op::Create, 0.1);
        prepare(&setup);
        let node = setup.start();
        let pod = pod(name).whole_spec(recorded(name).spec);
        node.deliver(std::slice::from_ref(&pod)).await;
        WatchedPod { node, pod, name: name.to_owned(), shown: Texts::default() }
    }

    /// Watches the pod for some time.
    async fn run(&mut self, seconds: f64) {
        let end = self.node.now() + seconds;
        while self.node.now() < end {
            self.record_texts();
            self.node.wait(0.02).await;
        }
        self.record_texts();
    }

    /// Deletes the pod. Its last status is compared after the deletion.
    async fn delete(&mut self, grace: i64) {
        self.pod = self.pod.clone().deleting(grace);
        self.node.deliver(std::slice::from_ref(&self.pod)).await;
    }

    fn record_texts(&mut self) {
        let status = self.node.status(&self.name);
        if status.phase.is_none() {
            return;
        }
        let Texts { conditions, states, pod, status_keys, end, .. } = &mut self.shown;
        *end = LastStatus::default();
        for condition in status.conditions.iter().flatten() {
            let (kind, value, reason) = (condition.type_.clone(), condition.status.clone(), condition.reason.clone());
            end.conditions.push((kind.clone(), value.clone(), reason.clone()));
            let observed = condition.observed_generation.is_some();
            conditions.insert((kind, value, reason, condition.message.clone(), observed));
        }
        let Value::Object(fields) = serde_json::to_value(&status).unwrap() else {
            unreachable!("a status is an object")
        };
        for (field, value) in fields {
            match value {
                _ if field == "conditions" => {}
                Value::Array(list) if field.ends_with("ontainerStatuses") => {
                    status_keys.extend(list.iter().map(|status| (field.clone(), keys(status))));
                }
                _ => end.fields.push(field),
            }
        }
        end.fields.sort();
        for container in containers(&status) {
            states.extend(state(container, "state", container.state.as_ref()));
            states.extend(state(container, "lastState", container.last_state.as_ref()));
        }
        if status.reason.is_some() {
            pod.insert((status.phase.clone().unwrap_or_default(), status.reason.clone(), status.message.clone()));
        }
    }

    /// Deletes the pod, as the recording did at its end, and compares.
    async fn compare(mut self) {
        let before = std::mem::take(&mut self.shown.end);
        // A pod that has ended leaves the API server at once.
        if !matches!(&*self.node.phase(&self.name), "Succeeded" | "Failed") {
            self.delete(1).await;
            self.run(8.0).await;
        }
        // These recordings end before the deletion.
        if matches!(&*self.name, "pod-network" | "missing-secret-volume" | "force-delete")
            || self.shown.end == LastStatus::default()
        {
            self.shown.end = before;
        }
        self.assert_same();
    }

    fn assert_same(mut self) {
        self.shown.events = self.node.events.all().into_iter().map(event).collect();
        let expected = recorded(&self.name);
        let name = &self.name;
        assert_eq!(self.shown.events, expected.events, "events of {name}");
        assert_eq!(self.shown.conditions, expected.conditions, "conditions of {name}");
        assert_eq!(self.shown.states, expected.states, "states of {name}");
        assert_eq!(self.shown.pod, expected.pod, "phase, reason and message of {name}");
        assert_eq!(self.shown.status_keys, expected.status_keys, "fields of the containers of {name}");
        assert_eq!(self.shown.end, expected.end, "last status of {name}");
    }
}

fn event(event: PodEvent) -> (String, String, String, Option<String>) {
    let kind = match event.kind {
        EventType::Normal => "Normal",
        EventType::Warning => "Warning",
    };
    (kind.to_owned(), event.reason.into_owned(), event.message, event.field_path)
}

/// The fields of a container status. The API server adds an empty `lastState`.
fn keys(status: &Value) -> Vec<String> {
    let mut keys: Vec<String> = status.as_object().unwrap().keys().cloned().chain(["lastState".to_owned()]).collect();
    keys.sort();
    keys.dedup();
    keys
}

fn containers(status: &PodStatus) -> impl Iterator<Item = &ContainerStatus> {
    status.init_container_statuses.iter().chain(&status.container_statuses).flatten()
}

fn state(container: &ContainerStatus, field: &str, state: Option<&ContainerState>) -> Option<State> {
    let (kind, reason, message, code) = match state? {
        ContainerState { waiting: Some(waiting), .. } => {
            ("waiting", waiting.reason.clone(), waiting.message.clone(), None)
        }
        ContainerState { running: Some(_), .. } => ("running", None, None, None),
        ContainerState { terminated: Some(end), .. } => {
            ("terminated", end.reason.clone(), end.message.clone(), Some(end.exit_code))
        }
        _ => return None,
    };
    Some((container.name.clone(), field.to_owned(), kind.to_owned(), reason, message, code))
}

fn exit(code: i32) -> ExecOutput {
    ExecOutput { exit_code: code, ..ExecOutput::default() }
}

#[actix::test]
async fn a_container_that_ends_has_the_texts_of_a_kubelet() {
    tokio::time::pause();
    for (name, code) in [("succeed", 0), ("fail", 3)] {
        let mut watched = WatchedPod::start(name, |setup| setup.runtime.script("a", Script::ends(0.5, code))).await;
        watched.run(5.0).await;
        watched.compare().await;
    }
}

#[actix::test]
async fn a_restarted_container_has_the_texts_of_a_kubelet() {
    tokio::time::pause();
    let mut once = WatchedPod::start("onfailure", |setup| setup.runtime.script("a", Script::ends(0.5, 1))).await;
    once.run(0.2).await;
    once.node.runtime.script("a", Script::ends(0.5, 0));
    once.run(10.0).await;
    once.compare().await;
    for (name, after, code, seconds) in [("crashloop", 0.5, 1, 25.0), ("always-exit0", 1.0, 0, 12.0)] {
        let mut watched = WatchedPod::start(name, |setup| setup.runtime.script("a", Script::ends(after, code))).await;
        watched.run(seconds).await;
        watched.compare().await;
    }
}

#[actix::test]
async fn init_containers_have_the_texts_of_a_kubelet() {
    tokio::time::pause();
    for (name, first) in [("init-ok", 0), ("init-fail-never", 2)] {
        let mut watched = WatchedPod::start(name, |setup| {
            setup.runtime.script("i1", Script::ends(1.0, first));
            setup.runtime.script("i2", Script::ends(0.5, 0));
        })
        .await;
        watched.run(8.0).await;
        watched.compare().await;
    }
    let mut watched = WatchedPod::start("sidecar-job", |setup| setup.runtime.script("a", Script::ends(2.0, 0))).await;
    watched.run(12.0).await;
    watched.compare().await;
}

#[actix::test]
async fn a_stopped_pod_has_the_texts_of_a_kubelet() {
    tokio::time::pause();
    for name in ["graceful-delete", "prestop"] {
        let mut watched = WatchedPod::start(name, |_| {}).await;
        watched.run(6.0).await;
        watched.delete(10).await;
        watched.run(6.0).await;
        watched.compare().await;
    }
    for (name, seconds) in [("deadline", 15.0), ("pod-network", 5.0)] {
        let mut watched = WatchedPod::start(name, |_| {}).await;
        watched.run(seconds).await;
        watched.compare().await;
    }
}

#[actix::test]
async fn probed_containers_have_the_texts_of_a_kubelet() {
    tokio::time::pause();
    let mut ready = WatchedPod::start("readiness", |setup| setup.runtime.exec_result(Ok(exit(1)))).await;
    ready.run(3.0).await;
    ready.node.runtime.exec_result(Ok(exit(0)));
    ready.run(4.0).await;
    ready.node.runtime.exec_result(Ok(exit(1)));
    ready.run(4.0).await;
    ready.compare().await;

    let mut live = WatchedPod::start("liveness", |setup| setup.runtime.exec_result(Ok(exit(1)))).await;
    live.run(33.0).await;
    live.compare().await;
}

#[actix::test]
async fn a_container_that_cannot_start_has_the_texts_of_a_kubelet() {
    tokio::time::pause();
    let mut absent = WatchedPod::start("no-image", |setup| setup.runtime.no_image("docker.io/library/absent:1")).await;
    absent.run(10.0).await;
    absent.compare().await;

    let no_command = "failed to create containerd task: failed to create shim task: OCI runtime create failed: runc create \
                      failed: unable to start container process: exec: \"/no/such\": stat /no/such: no such file or \
                      directory: unknown";
    let script = Script { start_error: Some(no_command), ..Script::default() };
    let mut bad = WatchedPod::start("bad-command", |setup| setup.runtime.script("a", script)).await;
    bad.run(5.0).await;
    bad.compare().await;

    let missing = StorageError::volume("s", "secret \"absent\" not found");
    let mut volume = WatchedPod::start("missing-secret-volume", |setup| setup.storage.refuse(missing)).await;
    volume.run(8.0).await;
    volume.compare().await;
}

// A pod whose directories cannot be made was not recorded; the text is from `SyncPod` in `kubelet.go`.
#[actix::test]
async fn directories_that_cannot_be_made_have_the_event_of_a_kubelet() {
    let setup = Setup::new(true);
    setup.storage.refuse(StorageError::io("/pods/a", "no space left on device"));
    let node = setup.start();
    node.deliver(&[pod("a")]).await;
    node.wait(2.0).await;
    let events = node.events.of("Failed");
    let message = events.first().map(|event| event.message.as_str());
    assert_eq!(message, Some("error making pod data directories: /pods/a: no space left on device"));
}

#[actix::test]
async fn a_rejected_pod_has_the_texts_of_a_kubelet() {
    tokio::time::pause();
    let mut watched = WatchedPod::start("out-of-cpu", |_| {}).await;
    watched.run(2.0).await;
    watched.compare().await;

    let mut unmatched = WatchedPod::start("node-selector-mismatch", |_| {}).await;
    unmatched.run(2.0).await;
    unmatched.compare().await;
}

#[actix::test]
async fn a_pod_with_volumes_has_the_texts_of_a_kubelet() {
    tokio::time::pause();
    let mut volumes = WatchedPod::start("volumes", |setup| setup.runtime.script("a", Script::ends(0.5, 0))).await;
    volumes.run(5.0).await;
    volumes.compare().await;
}

// The API server sets the condition of an evicted pod, and then deletes the pod.
#[actix::test]
async fn a_pod_that_the_api_server_removes_has_the_texts_of_a_kubelet() {
    tokio::time::pause();
    let mut evicted = WatchedPod::start("evicted", |_| {}).await;
    evicted.run(6.0).await;
    evicted.pod = evicted.pod.clone().condition("DisruptionTarget", "EvictionByEvictionAPI", "Eviction API: evicting");
    evicted.delete(3).await;
    evicted.run(4.0).await;
    evicted.compare().await;

    let mut forced = WatchedPod::start("force-delete", |_| {}).await;
    forced.run(6.0).await;
    forced.node.deliver(&[]).await;
    // The API server no longer has the pod, so the last status is not written.
    forced.node.wait(8.0).await;
    forced.assert_same();
}
