//! Pods of the simulated runtime.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{ContainerStatus, PodStatus};
use parking_lot::Mutex;
use podwright_actors::node::{Node, NodeHandle, NodePorts};
use podwright_core::pod_worker::Lifecycle;
use podwright_engine::{EngineConfig, Threads};
use podwright_fixtures::api_pods::{PodBuilder, pod};
use podwright_fixtures::fake_ports::FakeStorage;
use podwright_model::pod::PodObject;
use podwright_model::time::Time;
use podwright_ports::{SourceKind, SourceSet, TokioClock};
use podwright_simulated::{SimulatedConfig, SimulatedRuntime};
use serde_json::json;
use tokio::time::{Instant, pause, sleep};

/// A node with the simulated runtime.
struct TestNode {
    node: NodeHandle,
    begin: Instant,
    last_set: Mutex<Vec<Arc<PodObject>>>,
}

impl TestNode {
    /// A node without pods, whose runtime has these default settings.
    async fn start(defaults: &[(&str, &str)]) -> Self {
        let clock = Arc::new(TokioClock::starting_at(Time::from_secs(1_800_000_000)));
        let mut config = SimulatedConfig { clock: clock.clone(), ..SimulatedConfig::default() };
        for (key, value) in defaults {
            config.set(key, value).unwrap();
        }
        let runtime = SimulatedRuntime::new(config);
        let network = Arc::new(runtime.network());
        let ports = NodePorts::new(Arc::new(runtime), network, Arc::new(FakeStorage::default())).clock(clock);
        let engine = EngineConfig::default().threads(Threads::Current).seed(7);
        let node = Node::builder(ports).sources([SourceKind::Api]).engine(engine).start().unwrap();
        let node = TestNode { node, begin: Instant::now(), last_set: Mutex::default() };
        node.deliver(&[]).await;
        node
    }

    /// Delivers a full set, and lets the node do all work that needs no waiting.
    async fn deliver(&self, pods: &[PodBuilder]) {
        // A source delivers the same object for an unchanged pod.
        let pods = {
            let mut last = self.last_set.lock();
            let same = |pod: Arc<PodObject>| last.iter().find(|old| old.pod() == pod.pod()).unwrap_or(&pod).clone();
            let pods: Vec<_> = pods.iter().map(PodBuilder::build).map(same).collect();
            last.clone_from(&pods);
            pods
        };
        let set = SourceSet { source: SourceKind::Api, pods, problems: Vec::new() };
        self.node.sources().send(set.into()).await.unwrap();
        sleep(Duration::from_millis(1)).await;
    }

    async fn wait(&self, seconds: f64) {
        sleep(Duration::from_secs_f64(seconds)).await;
    }

    /// Seconds since the node started.
    fn now(&self) -> f64 {
        self.begin.elapsed().as_secs_f64()
    }

    /// Waits for a condition. Fails after a minute.
    async fn eventually(&self, what: &str, mut is: impl FnMut() -> bool) {
        let end = Instant::now() + Duration::from_secs(60);
        while !is() {
            assert!(Instant::now() < end, "not within a minute: {what}");
            sleep(Duration::from_millis(5)).await;
        }
    }

    fn lifecycle(&self, uid: &str) -> Option<Lifecycle> {
        self.node.engine().lifecycle(&uid.into())
    }

    fn status(&self, uid: &str) -> PodStatus {
        self.node.statuses().get(&uid.into()).map(|status| PodStatus::clone(&status)).unwrap_or_default()
    }

    fn phase(&self, uid: &str) -> String {
        self.status(uid).phase.unwrap_or_default()
    }
}

/// A node with these default settings, in paused time.
async fn node(defaults: &[(&str, &str)]) -> TestNode {
    pause();
    TestNode::start(defaults).await
}

/// A pod with annotations of the simulated runtime.
fn that(name: &str, does: &[(&str, &str)]) -> PodBuilder {
    let annotate =
        |pod: PodBuilder, (key, value): &(&str, &str)| pod.annotation(&format!("simulated.podwright.dev/{key}"), value);
    does.iter().fold(pod(name), annotate)
}

fn container(node: &TestNode, uid: &str, name: &str) -> ContainerStatus {
    let all = node.status(uid).container_statuses.unwrap_or_default();
    all.into_iter().find(|container| container.name == name).unwrap()
}

fn waiting(node: &TestNode, uid: &str) -> (String, String) {
    let waiting = container(node, uid, "main").state.unwrap().waiting.unwrap();
    (waiting.reason.unwrap_or_default(), waiting.message.unwrap_or_default())
}

/// The time at which a pod first has this phase, in seconds.
async fn phase_at(node: &TestNode, uid: &str, phase: &str) -> f64 {
    node.eventually(phase, || node.phase(uid) == phase).await;
    node.now()
}

#[actix::test]
async fn simulated_steps_and_exits_follow_their_annotations() {
    let node = node(&[("sandbox-latency", "1s"), ("start-latency", "1h")]).await;
    let does = [("pull-latency", "2s"), ("start-latency", "3s"), ("run-for", "5s,side=1s"), ("exit-code", "3,side=0")];
    let begin = node.now();
    node.deliver(&[that("a", &does).policy("Never").containers(&["main", "side"])]).await;
    // 1 s for the sandbox, 2 s for the image, 3 s for the start, 5 s of running.
    assert_eq!((phase_at(&node, "a", "Failed").await - begin).round(), 11.0);
    for (name, code, ran) in [("main", 3, 5), ("side", 0, 1)] {
        let ended = container(&node, "a", name).state.unwrap().terminated.unwrap();
        let (start, end) = (ended.started_at.unwrap().0, ended.finished_at.unwrap().0);
        assert_eq!((ended.exit_code, (end - start).get_seconds()), (code, ran), "{name}");
    }
}

#[actix::test]
async fn simulated_failures_are_retried_until_they_succeed() {
    let node = node(&[]).await;
    let begin = node.now();
    node.deliver(&[that("sandbox", &[("sandbox-failures", "1")]), that("pull", &[("pull-failures", "1")])]).await;
    node.deliver(&[
        that("sandbox", &[("sandbox-failures", "1")]),
        that("pull", &[("pull-failures", "1")]),
        that("start", &[("start-failures", "2")]),
        that("crash", &[("run-for", "1s"), ("exit-code", "1"), ("exits", "2")]),
        that("never", &[("run-for", "1s"), ("exits", "never")]),
    ])
    .await;
    assert_eq!(waiting(&node, "pull").0, "ErrImagePull");
    assert_eq!(node.phase("sandbox"), "Pending");
    for (uid, restarts) in [("sandbox", 0), ("pull", 0), ("start", 2), ("crash", 2), ("never", 0)] {
        let running = || {
            let all = node.status(uid).container_statuses.unwrap_or_default();
            all.iter().any(|c| c.ready && c.restart_count == restarts)
        };
        node.eventually(uid, running).await;
    }
    node.wait(begin + 600.0 - node.now()).await;
    for (uid, restarts) in [("start", 2), ("crash", 2), ("never", 0)] {
        assert_eq!(container(&node, uid, "main").restart_count, restarts, "{uid}");
    }
    let last = container(&node, "crash", "main").last_state.unwrap().terminated.unwrap();
    assert_eq!((last.exit_code, last.reason.as_deref()), (1, Some("Error")));
    let last = container(&node, "start", "main").last_state.unwrap().terminated.unwrap();
    assert_eq!((last.exit_code, last.reason.as_deref()), (128, Some("StartError")));
}

#[actix::test]
async fn simulated_stop_takes_its_configured_time_or_the_grace_period() {
    let node = node(&[]).await;
    for (uid, latency, grace, took, code) in
        [("quick", "0s", 30, 0, 0), ("slow", "7s", 30, 7, 0), ("late", "7s", 5, 5, 137), ("deaf", "never", 5, 5, 137)]
    {
        let pod = that(uid, &[("stop-latency", latency)]);
        node.deliver(std::slice::from_ref(&pod)).await;
        let begin = node.now();
        node.deliver(&[pod.deleting(grace)]).await;
        node.eventually(uid, || node.lifecycle(uid) == Some(Lifecycle::Finished)).await;
        assert_eq!((node.now() - begin).round() as i64, took, "{uid}");
        assert_eq!(container(&node, uid, "main").state.unwrap().terminated.unwrap().exit_code, code, "{uid}");
    }
    // A later, shorter grace period applies.
    let deaf = that("deaf-2", &[("stop-latency", "never")]);
    node.deliver(std::slice::from_ref(&deaf)).await;
    let begin = node.now();
    node.deliver(&[deaf.clone().deleting(1000)]).await;
    node.wait(2.0).await;
    node.deliver(&[deaf.deleting(3)]).await;
    node.eventually("killed", || node.lifecycle("deaf-2") == Some(Lifecycle::Finished)).await;
    assert_eq!((node.now() - begin).round(), 5.0);
}

#[actix::test]
async fn simulated_probes_need_no_process_and_no_network() {
    let node = node(&[]).await;
    let probe = |kind: &str, action: serde_json::Value| {
        let mut container = json!({"name": "main", "image": "img"});
        container[kind] = action;
        container[kind]["periodSeconds"] = json!(1);
        json!([container])
    };
    let http = || probe("readinessProbe", json!({"httpGet": {"port": 80}}));
    let exec = || probe("livenessProbe", json!({"exec": {"command": ["true"]}}));
    node.deliver(&[
        that("answers", &[]).spec("containers", http()),
        that("refuses", &[("network-failures", "always")]).spec("containers", http()),
        that("lives", &[]).spec("containers", exec()),
        that("dies", &[("exec-exit-code", "4")]).spec("containers", exec()),
    ])
    .await;
    node.wait(5.0).await;
    assert!(container(&node, "answers", "main").ready);
    assert!(!container(&node, "refuses", "main").ready);
    assert_eq!(container(&node, "lives", "main").restart_count, 0);
    assert!(container(&node, "dies", "main").restart_count > 0);
}

#[actix::test]
async fn invalid_simulation_annotation_prevents_container_starts() {
    let node = node(&[]).await;
    node.deliver(&[that("a", &[("run-for", "soon")]), that("b", &[("run-fro", "5s")]), pod("c")]).await;
    for (uid, says) in [
        ("a", "annotation simulated.podwright.dev/run-for: run-for cannot be \"soon\": write a duration"),
        ("b", "annotation simulated.podwright.dev/run-fro: there is no setting \"run-fro\": write one of"),
    ] {
        let (reason, message) = waiting(&node, uid);
        assert_eq!(reason, "CreateContainerConfigError");
        assert!(message.contains(says), "{message}");
    }
    assert_eq!(node.phase("c"), "Running");
    // The agent applies a corrected annotation.
    node.deliver(&[that("a", &[("run-for", "1h")])]).await;
    node.eventually("a starts", || node.phase("a") == "Running").await;
}

/// The restarts and the last run's duration of 60 pods after a minute.
async fn fates(seed: &str, reversed: bool) -> Vec<(i32, Option<i128>)> {
    let defaults =
        [("seed", seed), ("run-for", "1s..20s"), ("exits", "0.5"), ("start-failures", "0.2"), ("exit-code", "1")];
    let node = TestNode::start(&defaults).await;
    let mut pods: Vec<PodBuilder> = (0..60).map(|n| pod(&format!("p{n}"))).collect();
    if reversed {
        pods.reverse();
    }
    // The pods arrive in two sets, so with `reversed` they also start in another order.
    node.deliver(&pods[..25]).await;
    node.deliver(&pods).await;
    node.wait(60.0).await;
    let fate = |n: i32| {
        let container = container(&node, &format!("p{n}"), "main");
        let last = container.last_state.and_then(|state| state.terminated);
        let ran = last.and_then(|last| Some((last.finished_at?.0 - last.started_at?.0).get_seconds().into()));
        (container.restart_count, ran)
    };
    (0..60).map(fate).collect()
}

#[actix::test]
async fn simulated_runtime_seed_determines_every_random_choice() {
    pause();
    let one = fates("1", false).await;
    assert_eq!(one, fates("1", true).await);
    assert_ne!(one, fates("2", false).await);
    assert!(one.iter().any(|(restarts, _)| *restarts > 1) && one.iter().any(|(restarts, _)| *restarts == 0));
}
