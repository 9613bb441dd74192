//! Explanations of pods that wait for each kind of thing.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::PodStatus;
use podwright::actors::engine::PodSnapshot;
use podwright::actors::ids::{FullName, PodUid};
use podwright::actors::pod::PodObject;
use podwright::actors::pod_worker::{Cause, Hook, Lifecycle, Transition, Wait as EngineWait, WaitFor};
use podwright::actors::ports::{PodEvent, SourceProblem};
use podwright::actors::time::{Grace, Time};
use serde_json::json;

use super::*;

const NOW: Time = Time::from_secs(1_000_000);

fn ago(seconds: u64) -> Time {
    Time::from_secs(1_000_000 - seconds)
}

/// A static pod with one container `app`, in the lifecycle `sync`, with nothing to wait for.
fn pod(uid: &str, status: serde_json::Value) -> PodFacts {
    let object = json!({
        "metadata": {"name": "web-n1", "namespace": "default", "uid": uid,
            "annotations": {"kubernetes.io/config.source": "file"}},
        "spec": {
            "initContainers": [{"name": "first"}, {"name": "second"}],
            "containers": [{"name": "app", "readinessProbe": {"tcpSocket": {"port": 80}}}],
            "readinessGates": [{"conditionType": "example.com/lb"}],
        },
    });
    let status: PodStatus = serde_json::from_value(status).unwrap();
    PodFacts {
        uid: PodUid::new(uid),
        full_name: FullName::new("default", "web-n1"),
        object: Some(PodObject::new(serde_json::from_value(object).unwrap()).unwrap()),
        status: Some(Arc::new(status)),
        snapshot: Some(PodSnapshot {
            uid: PodUid::new(uid),
            full_name: Some(FullName::new("default", "web-n1")),
            lifecycle: Lifecycle::Sync,
            is_static: true,
            synced_at: ago(60),
            wait: EngineWait {
                what: WaitFor::Resync,
                since: ago(60),
                tries: 0,
                next: Some(NOW + Duration::from_secs(30)),
            },
            failure: None,
            grace: None,
            deleted: false,
            evicted: false,
            restart_requested: false,
            transitions: vec![Transition { at: ago(60), to: Lifecycle::Sync, cause: Cause::Started }],
        }),
        desired: true,
    }
}

fn running() -> serde_json::Value {
    json!({
        "phase": "Running",
        "conditions": [{"type": "example.com/lb", "status": "True"}],
        "containerStatuses": [container(json!({"running": {}}), true)],
    })
}

fn container(state: serde_json::Value, ready: bool) -> serde_json::Value {
    json!({"name": "app", "image": "", "imageID": "", "restartCount": 2, "ready": ready, "started": true, "state": state})
}

fn with(mut pod: PodFacts, edit: impl FnOnce(&mut PodSnapshot)) -> PodFacts {
    edit(pod.snapshot.as_mut().unwrap());
    pod
}

fn kinds(pod: &PodFacts) -> Vec<Kind> {
    waits(pod, &|_| None).iter().map(|wait| wait.kind).collect()
}

#[test]
fn each_thing_that_is_waited_for_has_its_kind() {
    let status = |status: serde_json::Value| pod("u", status);
    let waiting = |reason: &str| {
        status(json!({"conditions": [{"type": "example.com/lb", "status": "True"}],
            "containerStatuses": [container(json!({"waiting": {"reason": reason, "message": "m"}}), false)]}))
    };
    let engine = |what: WaitFor| with(pod("u", running()), |snapshot| snapshot.wait.what = what);
    let cases = [
        ("all is well", pod("u", running()), Kind::Resync),
        ("not taken", engine(WaitFor::Worker), Kind::Worker),
        ("a name", engine(WaitFor::FullName { held_by: None }), Kind::FullName),
        ("a setup", engine(WaitFor::HookCall(Hook::Sync)), Kind::HookCall),
        ("a stop", engine(WaitFor::HookCall(Hook::Terminating)), Kind::Grace),
        ("a failure", engine(WaitFor::Retry { hook: Hook::Sync, error: "no".into() }), Kind::Retry),
        ("its end", engine(WaitFor::Removal), Kind::Removal),
        ("crash", waiting("CrashLoopBackOff"), Kind::CrashBackoff),
        ("pull", waiting("ImagePullBackOff"), Kind::Image),
        ("config", waiting("CreateContainerConfigError"), Kind::ContainerStart),
        ("creating", waiting("ContainerCreating"), Kind::ContainerStart),
        (
            "a probe",
            status(json!({"conditions": [{"type": "example.com/lb", "status": "True"}],
                "containerStatuses": [container(json!({"running": {}}), false)]})),
            Kind::Probe,
        ),
        (
            "a gate",
            status(json!({"containerStatuses": [container(json!({"running": {}}), true)]})),
            Kind::ReadinessGate,
        ),
        ("delivery", PodFacts { snapshot: None, ..pod("u", json!({"phase": "Pending"})) }, Kind::Delivery),
        ("rejection", PodFacts { snapshot: None, ..pod("u", json!({"phase": "Failed"})) }, Kind::Rejected),
    ];
    for (what, pod, kind) in cases {
        assert_eq!(kinds(&pod), [kind], "{what}");
    }
}

#[test]
fn an_init_container_is_all_that_is_waited_for_while_it_runs() {
    let mut init = container(json!({"running": {}}), false);
    init["name"] = "second".into();
    let status = json!({"initContainerStatuses": [init],
        "containerStatuses": [container(json!({"waiting": {"reason": "PodInitializing"}}), false)]});
    let waits = waits(&pod("u", status), &|_| None);
    assert_eq!(waits.len(), 1);
    assert_eq!(waits[0].what, "init container \"second\" (2 of 2) runs");
}

// The chain goes across pods: a static pod waits for the end of the one that has its name, which waits for its containers.
#[test]
fn a_name_that_is_held_leads_to_what_its_holder_waits_for() {
    let holder = with(pod("old", running()), |snapshot| {
        snapshot.lifecycle = Lifecycle::Terminating;
        snapshot.grace = Some(Grace::from_seconds(30));
        snapshot.wait = EngineWait { what: WaitFor::HookCall(Hook::Terminating), since: ago(10), tries: 1, next: None };
    });
    let waiting = with(pod("new", json!({"phase": "Pending"})), |snapshot| {
        snapshot.lifecycle = Lifecycle::Waiting;
        snapshot.wait.what = WaitFor::FullName { held_by: Some(PodUid::new("old")) };
        snapshot.wait.next = None;
    });
    let waits = waits(&waiting, &|uid| (*uid == holder.uid).then(|| holder.clone()));
    assert_eq!((waits[0].kind, waits[0].pod.as_deref()), (Kind::FullName, Some("old")));
    assert_eq!(waits[0].because[0].kind, Kind::Grace);
    assert_eq!(waits[0].because[0].until, Some(NOW + Duration::from_secs(20)));
    assert_eq!(short(&waits, NOW), "its name, held by an earlier pod");
    assert_eq!(short(&waits[0].because, NOW), "containers to stop, 20s left");
}

#[test]
fn pods_that_wait_for_each_other_do_not_make_an_endless_chain() {
    let one = with(pod("one", running()), |snapshot| {
        snapshot.wait.what = WaitFor::FullName { held_by: Some(PodUid::new("one")) };
    });
    let mut wait = &waits(&one, &|_| Some(one.clone()))[0];
    let mut length = 1;
    while let Some(inner) = wait.because.first() {
        wait = inner;
        length += 1;
    }
    assert!(length < 10, "{length}");
}

#[test]
fn a_crash_backoff_ends_when_the_engine_tries_again() {
    let mut app = container(json!({"waiting": {"reason": "CrashLoopBackOff"}}), false);
    app["lastState"] = json!({"terminated": {"exitCode": 3, "reason": "Error"}});
    let status = json!({"phase": "Running", "conditions": [{"type": "example.com/lb", "status": "True"}],
        "containerStatuses": [app]});
    let pod = with(pod("u", status), |snapshot| {
        snapshot.wait = EngineWait {
            what: WaitFor::Retry { hook: Hook::Sync, error: "CrashLoopBackOff: waiting".into() },
            since: ago(5),
            tries: 1,
            next: Some(NOW + Duration::from_secs(12)),
        };
    });
    let waits = waits(&pod, &|_| None);
    assert_eq!(waits[0].what, "container \"app\" waits out its crash backoff: it ended with exit code 3 (Error)");
    assert_eq!(waits[0].until, Some(NOW + Duration::from_secs(12)));
    assert_eq!(short(&waits, NOW), "backoff of app, 12s left");
}

#[test]
fn the_text_says_what_the_fields_say() {
    let pod = pod("u", running());
    let events = [Seen { event: PodEvent::warning("BackOff", "waits"), count: 3, first: ago(50), last: ago(20) }];
    let problems =
        [SourceProblem { what: "/m/web.yaml".into(), message: "line 3: pod \"web\": spec.x: unknown".into() }];
    let explanation =
        explain(&Facts { now: NOW, pod: &pod, others: &[], find: &|_| None, events: &events, problems: &problems });
    let text = explanation.to_string();
    for part in [
        "default/web-n1 (static pod from a file, uid u)",
        "Running, 1 of 1 ready, 2 restarts",
        "lifecycle: sync for 60s",
        "nothing: all is as it should be; next in 30s",
        "60s ago  sync         allowed to start",
        "20s ago  Warning BackOff (x3): waits",
        "/m/web.yaml: line 3",
    ] {
        assert!(text.contains(part), "{part:?} is not in\n{text}");
    }
    let fields = serde_json::to_value(&explanation).unwrap();
    assert_eq!(fields["waits"][0]["kind"], "resync");
    assert_eq!(fields["waits"][0]["releasedBy"], "an update, a change in the runtime, or the next re-check");
    assert_eq!(
        fields["transitions"][0],
        json!({"at": "1970-01-12T13:45:40.000Z", "to": "sync", "cause": "allowed to start"})
    );
    assert_eq!(fields["events"][0]["count"], 3);
}

#[test]
fn problems_are_found_by_the_name_as_written_or_as_completed() {
    let problem = |message: &str| SourceProblem { what: "/m".into(), message: message.into() };
    let problems = [problem("line 1: pod \"web\": x"), problem("pod \"we\": x"), problem("no pod at all")];
    let found = |name: &str| mentions(&problems, name).count();
    assert_eq!((found("web"), found("web-n1"), found("webber"), found("other")), (1, 1, 0, 0));
}

#[test]
fn a_name_that_is_not_there_leads_to_near_ones() {
    let name = |name: &str| FullName::new("default", name);
    let known = || ["hello-vm", "crashloop-vm", "stubborn-vm"].map(name);
    assert_eq!(nearest(&name("hello"), known()), [name("hello-vm")]);
    assert_eq!(nearest(&name("crashlop-vm"), known()), [name("crashloop-vm")]);
    assert_eq!(nearest(&FullName::new("other", "hello-vm"), known()), [name("hello-vm")]);
    assert_eq!(nearest(&name("database"), known()), []);
}
