//! The chains of pods for each kind of wait, and chains that would run in a circle.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::PodStatus;
use serde_json::{Value, json};

use super::chain::{chain, short};
use super::*;
use crate::container_manager::activity::{Activity, Task};
use crate::desired::MissingSource;
use crate::engine::PodSnapshot;
use crate::health::OngoingFailure;
use crate::ids::{FullName, PodUid};
use crate::pod::PodObject;
use crate::pod_worker::{Cause, Failure, Hook, Lifecycle, Transition, Wait as RecordWait, WaitFor};
use crate::ports::{BadVolume, FailureCause, ResourceWait, Severity, SourceKind, SourceProblem, Unready};

const NOW: Time = Time::from_secs(1_000_000);

fn ago(seconds: u64) -> Time {
    Time::from_secs(1_000_000 - seconds)
}

/// A static pod with one container `app`, in the lifecycle `sync`, with nothing to wait for.
fn pod(uid: &str, status: Value) -> PodFacts {
    let object = json!({
        "metadata": {"name": "web", "namespace": "default", "uid": uid,
            "annotations": {"kubernetes.io/config.source": "file"}},
        "spec": {
            "initContainers": [{"name": "first"}, {"name": "second"}],
            "containers": [{"name": "app", "readinessProbe": {"tcpSocket": {"port": 80}}}],
            "readinessGates": [{"conditionType": "example.com/lb"}],
        },
    });
    let status: PodStatus = serde_json::from_value(status).unwrap();
    let full_name = FullName::new("default", "web");
    PodFacts {
        object: Some(PodObject::new(serde_json::from_value(object).unwrap()).unwrap()),
        status: Some(Arc::new(status)),
        snapshot: Some(PodSnapshot {
            uid: PodUid::new(uid),
            full_name: Some(full_name.clone()),
            lifecycle: Lifecycle::Sync,
            is_static: true,
            synced_at: ago(60),
            wait: RecordWait { what: WaitFor::Resync, since: ago(60), tries: 0, next: None },
            failure: None,
            grace: None,
            deleted: false,
            evicted: false,
            restart_requested: false,
            transitions: vec![Transition { at: ago(60), to: Lifecycle::Sync, cause: Cause::Started }],
        }),
        desired: true,
        ..PodFacts::named(PodUid::new(uid), full_name)
    }
}

fn container(state: Value, ready: bool) -> Value {
    json!({"name": "app", "image": "", "imageID": "", "restartCount": 2, "ready": ready, "started": true, "state": state})
}

fn with_container(state: Value, ready: bool) -> PodFacts {
    pod(
        "u",
        json!({
            "phase": "Running",
            "conditions": [{"type": "example.com/lb", "status": "True"}],
            "containerStatuses": [container(state, ready)],
        }),
    )
}

fn running() -> PodFacts {
    with_container(json!({"running": {}}), true)
}

fn waiting_for(what: WaitFor) -> PodFacts {
    with(running(), |snapshot| snapshot.wait.what = what)
}

fn with(mut pod: PodFacts, edit: impl FnOnce(&mut PodSnapshot)) -> PodFacts {
    edit(pod.snapshot.as_mut().unwrap());
    pod
}

fn node() -> NodeState {
    NodeState {
        started: ago(100),
        missing_sources: vec![],
        last_pass: Some(ago(1)),
        passes: None,
        leftovers: vec![],
        ended_pods: vec![],
        runtime: None,
        unready: Unready::default(),
        pressures: vec![],
    }
}

fn kinds_on(node: &NodeState, pod: &PodFacts) -> Vec<(usize, WaitKind)> {
    let context = ExplainContext { now: NOW, node, find: &|_| Some(pod.clone()) };
    chain(&context, pod).iter().map(|wait| (wait.depth, wait.what)).collect()
}

// A restart of the agent starts a rejected pod only if the shutdown of the node rejected it (POD-W13).
#[test]
fn rejected_pod_is_released_by_what_can_start_it() {
    let rejected = |reason: &str| PodFacts {
        snapshot: None,
        ..pod("u", json!({"phase": "Failed", "reason": reason, "message": "m"}))
    };
    let context = ExplainContext { now: NOW, node: &node(), find: &|_| None };
    let mut of_api = rejected("NodeShutdown");
    let object = json!({"metadata": {"name": "web", "namespace": "default", "uid": "u"}, "spec": {"containers": []}});
    of_api.object = Some(PodObject::new(serde_json::from_value(object).unwrap()).unwrap());
    for (pod, released_by) in [
        (rejected("NodeAffinity"), "a change of its manifest, or its removal"),
        (rejected("NodePorts"), "the end of pods that use what it needs, or a change of its manifest"),
        (rejected("NodeShutdown"), "the next start of the agent"),
        (of_api, "its removal from its source"),
    ] {
        let chain = chain(&context, &pod);
        assert_eq!(chain[0].released_by, released_by);
        assert_eq!(short(&chain, NOW), released_by);
    }
}

#[test]
fn each_wait_of_a_pod_has_its_kind() {
    let waiting = |reason: &str| with_container(json!({"waiting": {"reason": reason, "message": "m"}}), false);
    let over = |desired: bool, again: bool| {
        let pod = with(waiting_for(WaitFor::Removal), |snapshot| {
            snapshot.lifecycle = Lifecycle::Finished;
            snapshot.restart_requested = again;
        });
        PodFacts { desired, ..pod }
    };
    let ungated = pod("u", json!({"containerStatuses": [container(json!({"running": {}}), true)]}));
    let cases = [
        ("a healthy pod", running(), WaitKind::Nothing),
        ("not taken", waiting_for(WaitFor::Worker), WaitKind::Worker),
        ("a name", waiting_for(WaitFor::FullName { held_by: None }), WaitKind::FullName),
        ("a setup", waiting_for(WaitFor::HookCall(Hook::Sync)), WaitKind::HookCall(Hook::Sync)),
        ("a stop", waiting_for(WaitFor::HookCall(Hook::Terminating)), WaitKind::Grace),
        (
            "a failure",
            waiting_for(WaitFor::Retry { hook: Hook::Sync, error: "no".into() }),
            WaitKind::Retry(Hook::Sync),
        ),
        (
            "a network",
            failing(
                waiting_for(WaitFor::Retry { hook: Hook::Sync, error: "network is not ready: no plugin".into() }),
                FailureCause::Network("no plugin".into()),
            ),
            WaitKind::Network,
        ),
        ("its end", over(true, false), WaitKind::Nothing),
        ("its removal", over(false, false), WaitKind::Housekeeping),
        ("its next life", over(true, true), WaitKind::Housekeeping),
        ("unwanted", PodFacts { desired: false, ..running() }, WaitKind::Housekeeping),
        ("crash", waiting("CrashLoopBackOff"), WaitKind::CrashBackoff),
        ("pull", waiting("ImagePullBackOff"), WaitKind::Image),
        ("creation", waiting("ContainerCreating"), WaitKind::ContainerStart),
        ("bad settings", waiting("CreateContainerConfigError"), WaitKind::ContainerStart),
        ("a probe", with_container(json!({"running": {}}), false), WaitKind::Probe),
        ("a gate", ungated, WaitKind::ReadinessGate),
        ("delivery", PodFacts { snapshot: None, ..pod("u", json!({"phase": "Pending"})) }, WaitKind::Housekeeping),
        ("rejection", PodFacts { snapshot: None, ..pod("u", json!({"phase": "Failed"})) }, WaitKind::Rejected),
    ];
    for (what, pod, kind) in cases {
        assert_eq!(kinds_on(&node(), &pod), [(0, kind)], "{what}");
    }
}

#[test]
fn finished_pod_that_was_created_again_restarts_unless_it_has_ended() {
    for (phase, starts_anew, restarts) in [("Running", false, true), ("Failed", true, true), ("Failed", false, false)] {
        let finished = with(pod("u", json!({"phase": phase})), |snapshot| {
            (snapshot.lifecycle, snapshot.restart_requested) = (Lifecycle::Finished, true);
            snapshot.wait.what = WaitFor::Removal;
        });
        let finished = PodFacts { starts_anew, ..finished };
        let context = ExplainContext { now: NOW, node: &node(), find: &|_| None };
        let chain = chain(&context, &finished);
        let expected = if restarts { "restarts it" } else { "forgets it, and it does not run again" };
        assert!(chain[0].detail.ends_with(expected), "{phase}, {starts_anew}: {}", chain[0].detail);
    }
}

#[test]
fn release_is_the_first_wait_once_the_containers_have_ended() {
    use WaitKind::{Claim, Grace, Nothing, Retry};
    let ended = || with_container(json!({"terminated": {"exitCode": 0}}), false);
    let held = |pod: PodFacts| {
        let release = ResourceWait {
            is_release: true,
            resource: "default/cam".into(),
            driver: Some("gpu".into()),
            since: ago(9),
            tries: 1,
            error: None,
        };
        PodFacts { resources: vec![release], ..pod }
    };
    let stops = |pod: PodFacts, what: WaitFor| {
        with(pod, |snapshot| {
            snapshot.lifecycle = Lifecycle::Terminating;
            snapshot.wait.what = what;
            snapshot.wait.next = Some(NOW + Duration::from_secs(5));
        })
    };
    let call = || WaitFor::HookCall(Hook::Terminating);
    let retry = || WaitFor::Retry { hook: Hook::Terminating, error: "no".into() };
    // After a restart of the agent, the record of the pod begins as finished.
    let over = || {
        with(ended(), |snapshot| {
            snapshot.lifecycle = Lifecycle::Finished;
            snapshot.wait.what = WaitFor::Removal;
        })
    };
    let away = NodeState { runtime: Some(OngoingFailure { since: ago(9), tries: 9, error: "gone".into() }), ..node() };
    let stop = Retry(Hook::Terminating);
    for (node, pod, expected) in [
        (&node(), held(stops(ended(), call())), vec![(0, Claim)]),
        (&node(), held(stops(ended(), retry())), vec![(0, Claim)]),
        (&node(), held(over()), vec![(0, Claim)]),
        (&node(), stops(ended(), call()), vec![(0, Grace)]),
        (&node(), stops(ended(), retry()), vec![(0, stop)]),
        (&node(), over(), vec![(0, Nothing)]),
        (&node(), held(stops(running(), call())), vec![(0, Grace), (1, Claim)]),
        (&away, held(stops(ended(), retry())), vec![(0, stop), (1, WaitKind::Runtime), (1, Claim)]),
    ] {
        assert_eq!(kinds_on(node, &pod), expected, "{:?}", pod.snapshot);
    }
    let summary =
        |pod: &PodFacts| short(&chain(&ExplainContext { now: NOW, node: &node(), find: &|_| None }, pod), NOW);
    assert_eq!(summary(&held(over())), "DRA driver gpu");
    assert_eq!(summary(&held(stops(ended(), retry()))), "DRA driver gpu, next try in 5s");
}

#[test]
fn the_wait_for_housekeeping_says_why_passes_do_not_run() {
    let pod = PodFacts { snapshot: None, ..pod("u", json!({"phase": "Pending"})) };
    let failing = || Some(OngoingFailure { since: ago(9), tries: 9, error: "no".into() });
    let silent = NodeState { passes: failing(), runtime: failing(), ..node() };
    assert_eq!(kinds_on(&silent, &pod), [(0, WaitKind::Housekeeping), (1, WaitKind::Runtime)]);
    let problem =
        SourceProblem { what: "place".into(), message: "no answer".into(), pods: vec![], severity: Severity::Fault };
    let missing = [(SourceKind::Http, vec![problem]), (SourceKind::Api, vec![])];
    let missing = missing.map(|(kind, problems)| MissingSource { kind, problems, held: false });
    let early = NodeState { missing_sources: missing.into(), ..silent };
    assert_eq!(kinds_on(&early, &pod), [(0, WaitKind::Housekeeping), (1, WaitKind::Source)]);
    let chain = chain(&ExplainContext { now: NOW, node: &early, find: &|_| None }, &pod);
    let detail = "housekeeping begins when every source has sent its pods; missing: http (place: no answer), api";
    assert_eq!((&*chain[1].detail, &*chain[1].on.name), (detail, "http, api"));
}

#[test]
fn a_running_init_container_is_the_only_wait_of_its_pod() {
    let mut init = container(json!({"running": {}}), false);
    init["name"] = "second".into();
    let status = json!({"initContainerStatuses": [init],
        "containerStatuses": [container(json!({"waiting": {"reason": "PodInitializing"}}), false)]});
    let pod = pod("u", status);
    let chain = chain(&ExplainContext { now: NOW, node: &node(), find: &|_| None }, &pod);
    assert_eq!((chain.len(), &*chain[0].detail), (1, "init container \"second\" (2 of 2) runs"));
}

#[test]
fn a_circle_of_waiting_pods_ends_the_chain() {
    let names = ["one", "two"].map(PodUid::new);
    let of = |index: usize| {
        let pod = pod(&names[index].to_string(), json!({"phase": "Pending"}));
        with(pod, |snapshot| snapshot.wait.what = WaitFor::FullName { held_by: Some(names[1 - index].clone()) })
    };
    let find = |uid: &PodUid| Some(of(usize::from(*uid == names[1])));
    let chain = chain(&ExplainContext { now: NOW, node: &node(), find: &find }, &of(0));
    let kinds: Vec<_> = chain.iter().map(|wait| (wait.depth, wait.what)).collect();
    assert_eq!(kinds, [(0, WaitKind::FullName), (1, WaitKind::FullName), (2, WaitKind::Circle)]);
}

#[test]
fn an_ephemeral_container_is_explained_while_the_pod_initializes() {
    let mut init = container(json!({"running": {}}), false);
    init["name"] = "second".into();
    let mut debugger = container(json!({"waiting": {"reason": "ErrImagePull", "message": "m"}}), false);
    debugger["name"] = "debugger".into();
    let mut facts = pod("u", json!({"initContainerStatuses": [init], "ephemeralContainerStatuses": [debugger]}));
    let mut object = facts.object.take().unwrap().pod().clone();
    object.spec.as_mut().unwrap().ephemeral_containers =
        serde_json::from_value(json!([{"name": "debugger", "image": "tools"}])).unwrap();
    facts.object = Some(PodObject::new(object).unwrap());
    assert_eq!(kinds_on(&node(), &facts), [(0, WaitKind::InitContainer), (0, WaitKind::Image)]);
    let explanation = explain(&ExplainContext { now: NOW, node: &node(), find: &|_| None }, &facts, &[], &[], &[]);
    let containers: Vec<_> =
        explanation.containers.iter().map(|c| (c.name.as_str(), c.kind, c.state, c.waits.len())).collect();
    assert_eq!(containers[3], ("debugger", "ephemeral", "waiting", 1));
}

#[test]
fn phase_of_a_runtime_only_pod_is_unknown() {
    let undelivered = PodFacts { status: None, ..running() };
    let runtime_only = PodFacts { object: None, ..undelivered.clone() };
    assert_eq!(
        [running(), undelivered, runtime_only].map(|pod| pod.phase().as_str()),
        ["Running", "Pending", "Unknown"]
    );
}

// The waits of the containers have the errors, so a wait for the hook would say the same again.
#[test]
fn container_that_cannot_be_started_is_the_wait_of_its_pod() {
    let waiting = json!({"waiting": {"reason": "CreateContainerConfigError", "message": "no key"}});
    let pod = failing(
        pod("u", json!({"phase": "Pending", "containerStatuses": [container(waiting, false)]})),
        FailureCause::Containers,
    );
    let chain = chain(&ExplainContext { now: NOW, node: &node(), find: &|_| None }, &pod);
    let waits: Vec<_> = chain.iter().map(|wait| (wait.depth, wait.what, wait.detail.as_str())).collect();
    let detail = "container \"app\" cannot be started (CreateContainerConfigError): no key";
    assert_eq!(waits, [(0, WaitKind::ContainerStart, detail)]);
}

fn failing(pod: PodFacts, cause: FailureCause) -> PodFacts {
    with(pod, |snapshot| {
        snapshot.wait.what = WaitFor::Retry { hook: Hook::Sync, error: "no".into() };
        snapshot.failure = Some(Failure { hook: Hook::Sync, error: "no".into(), cause, count: 3, since: ago(9) });
    })
}

// During an outage of the runtime, the status keeps the container's last known wait.
#[test]
fn an_outage_during_a_crash_backoff_is_explained() {
    let crashes = || with_container(json!({"waiting": {"reason": "CrashLoopBackOff"}}), false);
    let away = NodeState { runtime: Some(OngoingFailure { since: ago(9), tries: 9, error: "gone".into() }), ..node() };
    use WaitKind::{CrashBackoff, Retry, Runtime, Volume};
    let retry = Retry(Hook::Sync);
    let cases = [
        (&node(), FailureCause::Containers, vec![(0, CrashBackoff)]),
        (&away, FailureCause::Containers, vec![(0, CrashBackoff), (0, Runtime)]),
        (&node(), FailureCause::Unknown, vec![(0, retry), (0, CrashBackoff)]),
        (&away, FailureCause::Unknown, vec![(0, retry), (1, Runtime), (0, CrashBackoff)]),
        (
            &away,
            FailureCause::Volume(Arc::new(BadVolume { volume: "v".into(), reason: "r".into() })),
            vec![(0, Volume), (1, Runtime)],
        ),
    ];
    for (node, cause, expected) in cases {
        assert_eq!(kinds_on(node, &failing(crashes(), cause.clone())), expected, "{cause:?}");
    }
    // The same holds while the next try reads the status from the runtime, which does not answer.
    let task = Activity { task: Task::ReadStatus, container: None, since: ago(5), until: None };
    let call =
        with(failing(crashes(), FailureCause::Unknown), |snapshot| snapshot.wait.what = WaitFor::HookCall(Hook::Sync));
    let expected = [(0, WaitKind::HookCall(Hook::Sync)), (0, CrashBackoff), (0, Runtime)];
    assert_eq!(kinds_on(&away, &call), expected, "the hook has no current activity");
    let call = PodFacts { activities: vec![(task, None)], ..call };
    assert_eq!(kinds_on(&away, &call), [(0, Runtime), (0, CrashBackoff), (0, Runtime)]);
    let chain = chain(&ExplainContext { now: NOW, node: &away, find: &|_| None }, &call);
    assert_eq!(chain[0].detail, "the runtime's status of the pod is being read; the last try failed: no");
}
