use std::sync::Arc;
use std::time::Duration;

use actix::{Actor, Context, Handler};
use serde_json::{Value, json};
use tokio::task::LocalSet;
use tokio_util::sync::CancellationToken;

use super::fakes::Fakes;
use crate::ids::{ContainerId, PodUid};
use crate::mailbox::Outbox;
use crate::pod::PodObject;
use crate::ports::{
    Clock, ContainerState, ContainerStatus, ExecOutput, PodRuntimeStatus, RuntimeError, SandboxState, SandboxStatus,
};
use crate::probe_manager::{ProbeChange, ProbeManager};
use crate::probes::{ContainerProbes, ProbeKind, ProbeResult, ProbeSnapshot};
use crate::run_facts::RunFacts;
use crate::testing::created;
use crate::time::Time;

const UID: &str = "u-1";

/// Receives probe changes in place of the dispatcher.
struct Collector(Arc<Fakes>);

impl Actor for Collector {
    type Context = Context<Self>;
}

impl Handler<ProbeChange> for Collector {
    type Result = ();

    fn handle(&mut self, change: ProbeChange, _: &mut Self::Context) {
        self.0.changes.lock().push(change);
    }
}

fn manager(fakes: &Arc<Fakes>) -> ProbeManager {
    let collector = Collector(Arc::clone(fakes)).start();
    let metrics = podwright_metrics::Metrics::new().actors.of("dispatcher");
    ProbeManager::new(fakes.ports(), Outbox::new(&collector, &metrics), CancellationToken::new())
}

/// Runs a test in time that is paused from the start, so that timers, which count in milliseconds, fire exactly when due.
fn paused(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    LocalSet::new().block_on(&runtime, test);
}

fn pod_of(spec: Value) -> Arc<PodObject> {
    let pod = json!({"metadata": {"name": "web", "namespace": "shop", "uid": UID}, "spec": spec});
    PodObject::new(serde_json::from_value(pod).unwrap()).unwrap()
}

fn pod(probes: Value) -> Arc<PodObject> {
    let mut container = json!({"name": "main", "ports": [{"name": "web", "containerPort": 8080}]});
    container.as_object_mut().unwrap().extend(probes.as_object().unwrap().clone());
    pod_of(json!({"containers": [container]}))
}

fn exec(word: &str, period: u32) -> Value {
    json!({"exec": {"command": [word]}, "periodSeconds": period, "failureThreshold": 1})
}

fn container(name: &str, id: &str, state: ContainerState, started: Time) -> ContainerStatus {
    ContainerStatus {
        id: id.into(),
        state,
        created_at: started,
        started_at: (state != ContainerState::Created).then_some(started),
        ..created(name)
    }
}

fn status(containers: Vec<ContainerStatus>) -> PodRuntimeStatus {
    PodRuntimeStatus { containers, ..PodRuntimeStatus::default() }
}

fn running(fakes: &Fakes, id: &str) -> PodRuntimeStatus {
    status(vec![container("main", id, ContainerState::Running, fakes.clock.now())])
}

async fn pass(seconds: u64) {
    tokio::time::sleep(Duration::from_secs(seconds)).await;
}

fn of(manager: &ProbeManager, id: &str) -> ContainerProbes {
    manager.snapshot(&UID.into()).remove(&ContainerId::from(id)).unwrap_or_default()
}

fn changes(fakes: &Fakes) -> Vec<(String, ProbeKind, ProbeResult)> {
    fakes.changes.lock().drain(..).map(|change| (change.id.to_string(), change.kind, change.result)).collect()
}

#[test]
fn the_startup_probe_runs_first_and_readiness_right_after_it() {
    paused(async {
        let fakes = Fakes::new();
        let manager = manager(&fakes);
        fakes.on_exec(|_| Err(RuntimeError::Timeout { call: "exec", after: Duration::from_secs(1) }));
        manager.add_pod(&pod(json!({
            "startupProbe": {"exec": {"command": ["up"]}, "periodSeconds": 3, "failureThreshold": 5},
            "livenessProbe": exec("live", 10),
            "readinessProbe": exec("ready", 10),
        })));
        manager.observe(&UID.into(), &running(&fakes, "c1"));
        assert_eq!(of(&manager, "c1").startup, Some(ProbeResult::Unknown));
        assert_eq!(of(&manager, "c1").readiness, Some(ProbeResult::Failure));
        assert_eq!(of(&manager, "c1").liveness, Some(ProbeResult::Success));

        pass(4).await;
        assert!(changes(&fakes).is_empty());
        fakes.on_exec(|_| Ok(ExecOutput::default()));
        pass(10).await;
        let requests = fakes.take_requests();
        let expected = [(0, "up"), (3, "up"), (6, "up"), (6, "ready"), (10, "live")];
        let expected = expected.map(|(at, what)| (at, format!("exec c1 {what}")));
        assert_eq!(requests, expected);
        assert_eq!(
            changes(&fakes),
            [
                ("c1".into(), ProbeKind::Startup, ProbeResult::Success),
                ("c1".into(), ProbeKind::Readiness, ProbeResult::Success)
            ],
        );
        assert_eq!(
            fakes.events.lock()[0],
            "Unhealthy: Startup probe failed: command timed out: \"up\" timed out after 1s"
        );
    });
}

#[test]
fn results_of_an_earlier_agent_stay_until_a_probe_answers() {
    paused(async {
        let fakes = Fakes::new();
        fakes.run_facts.probed(&UID.into(), &"c1".into(), ProbeKind::Startup, true);
        fakes.run_facts.probed(&UID.into(), &"c1".into(), ProbeKind::Readiness, true);
        let manager = manager(&fakes);
        fakes.on_exec(|_| Ok(ExecOutput { exit_code: 1, ..ExecOutput::default() }));
        manager.add_pod(&pod(json!({"startupProbe": exec("up", 3), "readinessProbe": exec("ready", 10)})));
        let adopted = status(vec![container("main", "c1", ContainerState::Running, Time::from_secs(900_000))]);
        manager.observe(&UID.into(), &adopted);
        let results = || {
            let mut probes = manager.snapshot(&UID.into());
            fakes.run_facts.complete(&UID.into(), &adopted, &mut probes);
            let of = &probes[&ContainerId::from("c1")];
            (of.startup, of.readiness)
        };
        assert_eq!(results(), (Some(ProbeResult::Success), Some(ProbeResult::Success)));
        pass(10).await;
        assert_eq!(results(), (Some(ProbeResult::Success), Some(ProbeResult::Failure)));
        let requests = fakes.take_requests();
        assert!(requests.iter().all(|(_, what)| what == "exec c1 ready"), "the container has started: {requests:?}");

        // The next agent gets the new result.
        let mut probes = ProbeSnapshot::new();
        fakes.run_facts.complete(&UID.into(), &adopted, &mut probes);
        assert_eq!(probes[&ContainerId::from("c1")].readiness, Some(ProbeResult::Failure));
    });
}

// The clock was set back after the start of the run, so the run looks younger than this agent.
#[test]
fn results_of_an_earlier_agent_count_whatever_the_clock_says() {
    paused(async {
        let earlier = RunFacts::in_memory();
        earlier.probed(&UID.into(), &"c1".into(), ProbeKind::Startup, true);
        earlier.probed(&UID.into(), &"c1".into(), ProbeKind::Readiness, true);
        let fakes = Fakes::after(earlier.of_next_agent());
        let manager = manager(&fakes);
        manager.add_pod(&pod(json!({"startupProbe": exec("up", 3), "readinessProbe": exec("ready", 10)})));
        let later = fakes.clock.now() + Duration::from_secs(3600);
        let adopted = status(vec![container("main", "c1", ContainerState::Running, later)]);
        manager.observe(&UID.into(), &adopted);
        let mut probes = manager.snapshot(&UID.into());
        fakes.run_facts.complete(&UID.into(), &adopted, &mut probes);
        let of = &probes[&ContainerId::from("c1")];
        assert_eq!((of.startup, of.readiness), (Some(ProbeResult::Success), Some(ProbeResult::Success)));
        pass(11).await;
        let requests = fakes.take_requests();
        assert!(!requests.is_empty() && requests.iter().all(|(_, what)| what == "exec c1 ready"), "{requests:?}");
    });
}

// POD-S61: a failed liveness probe is reported once and remains until the container has another run.
#[test]
fn a_failed_liveness_probe_is_reported_once() {
    paused(async {
        let fakes = Fakes::new();
        let manager = manager(&fakes);
        fakes.on_exec(|_| Ok(ExecOutput { exit_code: 1, output: b"no\n".to_vec(), stderr_from: 3 }));
        manager.add_pod(&pod(json!({"livenessProbe": exec("live", 2)})));
        manager.observe(&UID.into(), &running(&fakes, "c1"));
        pass(9).await;
        assert_eq!(changes(&fakes), [("c1".into(), ProbeKind::Liveness, ProbeResult::Failure)]);
        assert_eq!(fakes.take_requests().len(), 1);
        assert_eq!(*fakes.events.lock(), ["Unhealthy: Liveness probe failed: no\n"]);

        manager.observe(&UID.into(), &running(&fakes, "c2"));
        let snapshot = manager.snapshot(&UID.into());
        assert_eq!(snapshot.len(), 1, "the results of the old run are removed");
        assert_eq!(of(&manager, "c2").liveness, Some(ProbeResult::Success));
        pass(2).await;
        assert_eq!(changes(&fakes), [("c2".into(), ProbeKind::Liveness, ProbeResult::Failure)]);
    });
}

#[test]
fn a_probe_that_cannot_run_is_retried_without_a_result() {
    paused(async {
        let fakes = Fakes::new();
        let manager = manager(&fakes);
        fakes.on_exec(|_| Err(RuntimeError::failed("no such container")));
        manager.add_pod(&pod(json!({"livenessProbe": exec("live", 10)})));
        manager.observe(&UID.into(), &running(&fakes, "c1"));
        pass(5).await;
        assert_eq!(fakes.take_requests().len(), 3);
        assert!(changes(&fakes).is_empty());
        assert_eq!(of(&manager, "c1").liveness, Some(ProbeResult::Success));
        assert_eq!(
            *fakes.events.lock(),
            ["Unhealthy: Liveness probe errored and resulted in unknown state: no such container"]
        );

        // A runtime that panics counts as an error, and the next period is kept.
        fakes.on_exec(|_| panic!("a bug"));
        pass(10).await;
        assert_eq!(fakes.take_requests().len(), 3);
        pass(10).await;
        assert_eq!(fakes.take_requests().len(), 3);
    });
}

#[test]
fn network_probes_call_the_pod_and_follow_the_servers_answer() {
    paused(async {
        let fakes = Fakes::new();
        let manager = manager(&fakes);
        manager.add_pod(&pod(json!({
            "startupProbe": {"httpGet": {"port": "web", "path": "/up"}},
            "livenessProbe": {"tcpSocket": {"port": 1}, "failureThreshold": 1},
            "readinessProbe": {"grpc": {"port": 2, "service": "shop"}, "failureThreshold": 1},
        })));
        *fakes.http.lock() = Ok((302, String::new()));
        let sandbox = SandboxStatus {
            id: "s".into(),
            attempt: 0,
            state: SandboxState::Ready,
            created_at: fakes.start,
            host_network: false,
            ips: vec!["10.0.0.7".parse().unwrap()],
        };
        let status = PodRuntimeStatus { sandboxes: vec![sandbox], ..running(&fakes, "c1") };
        manager.observe(&UID.into(), &status);
        pass(1).await;
        let requests: Vec<_> = fakes.take_requests().into_iter().map(|(_, what)| what).collect();
        assert_eq!(requests[0], "http 10.0.0.7:8080/up");
        assert!(
            requests.contains(&"tcp 10.0.0.7:1".into()) && requests.contains(&"grpc 10.0.0.7:2 shop".into()),
            "{requests:?}"
        );
        let results = changes(&fakes);
        assert!(results.contains(&("c1".into(), ProbeKind::Startup, ProbeResult::Success)), "{results:?}");
        assert!(results.contains(&("c1".into(), ProbeKind::Liveness, ProbeResult::Failure)), "{results:?}");
        assert_eq!(of(&manager, "c1").readiness, Some(ProbeResult::Failure));
        let events = fakes.events.lock();
        assert!(
            events[0] == "ProbeWarning: Startup probe warning: Probe terminated redirects, Response body: ",
            "{events:?}"
        );
    });
}

#[test]
fn an_http_probe_passes_for_200_to_399() {
    paused(async {
        for (code, ready) in [(199, false), (200, true), (204, true), (399, true), (400, false), (503, false)] {
            let fakes = Fakes::new();
            let manager = manager(&fakes);
            *fakes.http.lock() = Ok((code, String::new()));
            manager.add_pod(&pod(json!({"readinessProbe": {"httpGet": {"port": 80}}})));
            manager.observe(&UID.into(), &running(&fakes, "c1"));
            pass(1).await;
            assert_eq!(fakes.take_requests(), [(0, "http 127.0.0.1:80/".to_owned())]);
            assert_eq!(of(&manager, "c1").readiness == Some(ProbeResult::Success), ready, "{code}");
        }
    });
}

#[test]
fn a_pod_on_the_node_network_is_probed_at_the_nodes_address() {
    paused(async {
        let fakes = Fakes::new();
        let manager = manager(&fakes);
        let container = json!({"name": "main", "readinessProbe": {"httpGet": {"port": 80}}});
        manager.add_pod(&pod_of(json!({"hostNetwork": true, "containers": [container]})));
        manager.observe(&UID.into(), &running(&fakes, "c1"));
        pass(1).await;
        assert_eq!(fakes.take_requests(), [(0, "http 192.0.2.1:80/".to_owned())]);
    });
}

#[test]
fn a_run_that_ends_during_its_probe_is_not_ready() {
    paused(async {
        let fakes = Fakes::new();
        let manager = manager(&fakes);
        *fakes.exec_time.lock() = Duration::from_secs(5);
        manager.add_pod(&pod(json!({"readinessProbe": exec("ready", 10)})));
        manager.observe(&UID.into(), &running(&fakes, "c1"));
        pass(1).await;
        let ended = status(vec![container("main", "c1", ContainerState::Exited, fakes.start)]);
        manager.observe(&UID.into(), &ended);
        pass(60).await;
        assert_eq!(of(&manager, "c1").readiness, Some(ProbeResult::Failure));
        assert!(changes(&fakes).is_empty());
        assert_eq!(fakes.take_requests().len(), 1);
    });
}

// Adopted runs: nothing is recorded before the first result, and first probes are spread over the period.
#[test]
fn after_an_agent_restart_probes_run_within_one_period() {
    paused(async {
        let fakes = Fakes::new();
        let manager = manager(&fakes);
        let names: Vec<_> = (0..8).map(|n| format!("c{n}")).collect();
        let containers: Vec<_> =
            names.iter().map(|name| json!({"name": name, "readinessProbe": exec(name, 10)})).collect();
        manager.add_pod(&pod_of(json!({"containers": containers})));
        let old = Time::from_secs(500);
        manager.observe(
            &UID.into(),
            &status(names.iter().map(|n| container(n, n, ContainerState::Running, old)).collect()),
        );
        assert!(manager.snapshot(&UID.into()).is_empty());
        pass(10).await;
        let mut seconds: Vec<_> = fakes.take_requests().iter().map(|(at, _)| *at).collect();
        assert_eq!(seconds.len(), 8);
        seconds.dedup();
        assert!(seconds.len() > 2 && seconds.iter().all(|at| *at < 10), "{seconds:?}");
        assert_eq!(manager.snapshot(&UID.into()).len(), 8);
    });
}

#[test]
fn a_container_started_before_an_agent_restart_has_no_startup_probe() {
    paused(async {
        let fakes = Fakes::new();
        let manager = manager(&fakes);
        let pod = json!({
            "metadata": {"name": "web", "namespace": "shop", "uid": UID},
            "spec": {"containers": [{"name": "main", "startupProbe": exec("up", 1), "livenessProbe": exec("live", 1)}]},
            "status": {"containerStatuses": [
                {"name": "main", "image": "", "imageID": "", "ready": false, "restartCount": 0, "started": true,
                 "containerID": "fake://c1"},
            ]},
        });
        manager.add_pod(&PodObject::new(serde_json::from_value(pod).unwrap()).unwrap());
        let old = status(vec![container("main", "c1", ContainerState::Running, Time::from_secs(500))]);
        manager.observe(&UID.into(), &old);
        assert_eq!(of(&manager, "c1").startup, Some(ProbeResult::Success));
        pass(3).await;
        let requests = fakes.take_requests();
        assert!(!requests.is_empty() && requests.iter().all(|(_, what)| what == "exec c1 live"), "{requests:?}");
    });
}

#[test]
fn a_terminating_pod_keeps_its_readiness_and_sidecar_probes() {
    paused(async {
        let fakes = Fakes::new();
        let manager = manager(&fakes);
        manager.add_pod(&pod_of(json!({
            "initContainers": [
                {"name": "side", "restartPolicy": "Always", "livenessProbe": exec("side-live", 1)},
                {"name": "init", "livenessProbe": exec("init-live", 1)},
            ],
            "containers": [{"name": "main", "livenessProbe": exec("live", 1), "readinessProbe": exec("ready", 1)}],
        })));
        let now = fakes.clock.now();
        let all = ["side", "init", "main"].map(|name| container(name, name, ContainerState::Running, now));
        manager.observe(&UID.into(), &status(all.to_vec()));
        manager.stop_liveness_and_startup(&UID.into());
        pass(1).await;
        let mut requests: Vec<_> = fakes.take_requests().into_iter().map(|(_, what)| what).collect();
        requests.sort();
        requests.dedup();
        assert_eq!(requests, ["exec main ready", "exec side side-live"]);
        assert_eq!(of(&manager, "main").liveness, Some(ProbeResult::Success), "the last result is kept");
    });
}

// POD-K5: only possibly-running pods have probes.
#[test]
fn a_removed_pod_has_no_probes_and_no_results() {
    paused(async {
        let fakes = Fakes::new();
        let manager = manager(&fakes);
        let pod = pod(json!({"readinessProbe": exec("ready", 1)}));
        for forget in [(|manager| manager.remove_pod(&UID.into())) as fn(&ProbeManager), |manager| {
            manager.retain(|uid| *uid != PodUid::from(UID))
        }] {
            manager.add_pod(&pod);
            manager.observe(&UID.into(), &running(&fakes, "c1"));
            pass(1).await;
            assert!(!fakes.take_requests().is_empty());
            manager.retain(|_| true);
            assert!(!manager.snapshot(&UID.into()).is_empty());
            forget(&manager);
            assert!(manager.snapshot(&UID.into()).is_empty());
            pass(5).await;
            assert_eq!(fakes.take_requests(), []);
        }
        drop(manager);
    });
}

#[test]
fn a_changed_probe_of_a_pod_restarts_and_the_others_continue() {
    paused(async {
        let fakes = Fakes::new();
        let manager = manager(&fakes);
        manager.add_pod(&pod(json!({"readinessProbe": exec("ready", 10)})));
        manager.observe(&UID.into(), &running(&fakes, "c1"));
        pass(1).await;
        manager.add_pod(&pod(json!({"readinessProbe": exec("ready", 10)})));
        assert_eq!(of(&manager, "c1").readiness, Some(ProbeResult::Success));
        assert_eq!(fakes.take_requests().len(), 1);

        manager.add_pod(&pod(json!({"readinessProbe": exec("other", 10)})));
        assert_eq!(of(&manager, "c1").readiness, Some(ProbeResult::Failure));
        pass(1).await;
        assert_eq!(fakes.take_requests(), [(1, "exec c1 other".to_owned())]);

        manager.add_pod(&pod(json!({})));
        assert!(manager.snapshot(&UID.into()).is_empty());
    });
}

#[test]
fn dropping_the_manager_ends_its_probes() {
    paused(async {
        let fakes = Fakes::new();
        let manager = manager(&fakes);
        manager.add_pod(&pod(json!({"readinessProbe": exec("ready", 1)})));
        manager.observe(&UID.into(), &running(&fakes, "c1"));
        drop(manager);
        pass(5).await;
        assert_eq!(fakes.take_requests(), []);
    });
}
