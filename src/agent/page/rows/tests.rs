use std::sync::Arc;

use podwright_engine::PodSnapshot;
use std::time::Duration;

use k8s_openapi::api::core::v1::PodStatus;
use podwright_actors::explain::{Health, SubjectKind, Wait, WaitKind, WaitSubject};
use podwright_actors::health::OngoingFailure;
use podwright_core::pod_worker::{Failure, Hook, Lifecycle, Wait as PodWait, WaitFor};
use podwright_model::ids::FullName;
use podwright_model::pod::{Phase, PodObject};
use podwright_ports::{FailureCause, Unready};
use serde_json::json;

use super::*;

fn at(seconds: u64) -> Time {
    Time::from_secs(seconds)
}

/// A pod with one container, which started at 10 s and waits for nothing.
pub(in crate::agent::page) fn pod(name: &str, status: serde_json::Value) -> PodFacts {
    let object = json!({
        "metadata": {"name": name, "namespace": "default", "uid": name},
        "spec": {"containers": [{"name": "main"}]},
    });
    PodFacts {
        object: Some(PodObject::new(serde_json::from_value(object).unwrap()).unwrap()),
        status: Some(Arc::new(serde_json::from_value::<PodStatus>(status).unwrap())),
        snapshot: Some(PodSnapshot {
            uid: PodUid::new(name),
            full_name: Some(FullName::new("default", name)),
            lifecycle: Lifecycle::Sync,
            is_static: true,
            synced_at: at(10),
            wait: PodWait { what: WaitFor::Resync, since: at(10), tries: 0, next: None },
            failure: None,
            grace: None,
            deleted: false,
            evicted: false,
            restart_requested: false,
            transitions: vec![],
        }),
        desired: true,
        ..PodFacts::named(PodUid::new(name), FullName::new("default", name))
    }
}

pub(in crate::agent::page) fn running() -> serde_json::Value {
    let state = json!({"running": {"startedAt": "1970-01-01T00:00:12Z"}});
    let container =
        json!({"name": "main", "ready": true, "restartCount": 0, "image": "", "imageID": "", "state": state});
    json!({"phase": "Running", "startTime": "1970-01-01T00:00:11Z", "containerStatuses": [container]})
}

fn waits(reason: &str) -> serde_json::Value {
    let state = json!({"waiting": {"reason": reason}});
    let container =
        json!({"name": "main", "ready": false, "restartCount": 3, "image": "", "imageID": "", "state": state});
    json!({"phase": "Pending", "containerStatuses": [container]})
}

/// The wait of a pod, derived from its record.
fn wait(pod: &PodFacts) -> Wait {
    let since = pod.snapshot.as_ref().map(|snapshot| snapshot.wait.since);
    let what = match pod.snapshot.as_ref().map(|snapshot| &snapshot.wait.what) {
        Some(WaitFor::HookCall(Hook::Terminating)) => WaitKind::Grace,
        Some(WaitFor::HookCall(hook)) => WaitKind::HookCall(*hook),
        Some(WaitFor::Retry { hook, .. }) => WaitKind::Retry(*hook),
        _ if pod.phase() == Phase::Pending => WaitKind::ContainerStart,
        _ => WaitKind::Nothing,
    };
    let on = WaitSubject::only(SubjectKind::Nobody);
    let (released_by, detail) = (String::new(), String::new());
    let next = since.filter(|_| what == WaitKind::Grace).map(|since| since + Duration::from_secs(30));
    Wait {
        depth: 0,
        what,
        on,
        container: None,
        claim: None,
        driver: None,
        since,
        tries: None,
        next,
        released_by,
        detail,
    }
}

pub(in crate::agent::page) fn node() -> NodeState {
    NodeState {
        started: at(0),
        missing_sources: vec![],
        last_pass: None,
        passes: None,
        leftovers: Vec::new(),
        ended_pods: Vec::new(),
        runtime: None,
        unready: Unready::default(),
        pressures: vec![],
    }
}

fn update(rows: &mut PodRows, pods: Vec<PodFacts>, now: Time) -> RowChanges {
    rows.update(node(), pods, now, &|pod| RowWait::new(pod, wait(pod), "words".into(), now))
}

fn names(rows: &[Arc<PodRow>]) -> Vec<&str> {
    rows.iter().map(|row| row.name.as_str()).collect()
}

fn waiting(pod: PodFacts, what: WaitFor, since: u64) -> PodFacts {
    let snapshot = pod
        .snapshot
        .map(|snapshot| PodSnapshot { wait: PodWait { what, since: at(since), tries: 1, next: None }, ..snapshot });
    PodFacts { snapshot, ..pod }
}

/// A pod whose sync failed, and whose hook waits for its retry or runs again.
fn failing(pod: PodFacts, what: WaitFor) -> PodFacts {
    let pod = waiting(pod, what, 19);
    let failure =
        Failure { hook: Hook::Sync, error: "no".into(), cause: FailureCause::Unknown, count: 1, since: at(10) };
    let snapshot = pod.snapshot.map(|snapshot| PodSnapshot { failure: Some(failure), ..snapshot });
    PodFacts { snapshot, ..pod }
}

#[test]
fn an_update_publishes_changed_rows_and_removed_pods() {
    let mut rows = PodRows::default();
    let (a, b, c) = (pod("a", running()), pod("b", running()), pod("c", running()));
    let first = update(&mut rows, vec![a.clone(), b.clone(), c.clone()], at(20));
    assert_eq!((names(&first.rows), first.gone.len()), (vec!["a", "b", "c"], 0));
    assert!(update(&mut rows, vec![a.clone(), b.clone(), c.clone()], at(30)).is_empty(), "time alone changes no row");

    let same = PodFacts { status: a.status.as_deref().cloned().map(Arc::new), ..a.clone() };
    let change = update(&mut rows, vec![same, pod("b", waits("CrashLoopBackOff"))], at(40));
    assert_eq!((names(&change.rows), change.gone), (vec!["b"], vec!["c".to_owned()]));
    assert!(update(&mut rows, vec![a, pod("b", waits("CrashLoopBackOff"))], at(50)).is_empty());
}

#[test]
fn rows_are_ordered_by_health_worst_first() {
    let failed = json!({"phase": "Failed"});
    let succeeded = json!({"phase": "Succeeded"});
    let mut rows = PodRows::default();
    update(
        &mut rows,
        vec![
            pod("a-finished", succeeded),
            pod("b-healthy", running()),
            pod("c-starts", waits("ContainerCreating")),
            pod("d-crashes", waits("CrashLoopBackOff")),
            pod("e-failed", failed),
            failing(pod("f-retries", running()), WaitFor::Retry { hook: Hook::Sync, error: "no".into() }),
            failing(pod("g-is-called-again", running()), WaitFor::HookCall(Hook::Sync)),
        ],
        at(20),
    );
    let rows = rows.rows();
    assert_eq!(
        names(&rows),
        ["d-crashes", "e-failed", "f-retries", "g-is-called-again", "c-starts", "b-healthy", "a-finished"]
    );
    use Health::{Failing, Finished, Healthy, Waiting};
    let healths: Vec<_> = rows.iter().map(|row| row.health).collect();
    assert_eq!(healths, [Failing, Failing, Failing, Failing, Waiting, Healthy, Finished]);
}

// The regular sync of a healthy pod takes milliseconds, and must not change its health to waiting.
#[test]
fn a_row_shows_a_sync_only_after_two_seconds() {
    let mut rows = PodRows::default();
    let called = waiting(pod("a", running()), WaitFor::HookCall(Hook::Sync), 100);
    update(&mut rows, vec![pod("a", running())], at(99));
    let quick = update(&mut rows, vec![called.clone()], at(101));
    assert!(quick.rows.iter().all(|row| row.wait.is_none()), "{quick:?}");
    let long = update(&mut rows, vec![called], at(103));
    assert_eq!(long.rows.first().map(|row| row.health), Some(Health::Waiting), "{long:?}");
}

// The facts of a pod that cannot be killed do not change, but its row must.
#[test]
fn a_pod_that_outlasts_its_grace_period_is_failing() {
    let mut rows = PodRows::default();
    let stops = waiting(pod("a", running()), WaitFor::HookCall(Hook::Terminating), 100);
    update(&mut rows, vec![stops.clone()], at(101));
    assert_eq!(rows.rows()[0].health, Health::Waiting);
    assert!(update(&mut rows, vec![stops.clone()], at(139)).is_empty());
    let late = update(&mut rows, vec![stops.clone()], at(140));
    assert_eq!(late.rows.first().map(|row| row.health), Some(Health::Failing), "{late:?}");
    assert!(update(&mut rows, vec![stops], at(200)).is_empty());
}

// While the runtime does not answer, the facts of the pods do not change, but rows of idle pods must.
#[test]
fn a_runtime_outage_and_its_end_change_the_rows_of_idle_pods() {
    let mut rows = PodRows::default();
    let pods = vec![pod("crashes", waits("CrashLoopBackOff")), pod("idle", running())];
    let mut inspect = |tries: u32, now: u64| {
        let error = || OngoingFailure { since: at(100), tries, error: "gone".into() };
        let node = NodeState { last_pass: Some(at(now)), runtime: (tries > 0).then(error), ..node() };
        let runtime = node.runtime.clone();
        let wait = |pod: &PodFacts| match (wait(pod), &runtime) {
            (wait, Some(_)) if wait.what == WaitKind::Nothing => {
                Wait { what: WaitKind::Runtime, since: Some(at(100)), ..wait }
            }
            (wait, _) => wait,
        };
        let change =
            rows.update(node, pods.clone(), at(now), &|pod| RowWait::new(pod, wait(pod), "words".into(), at(now)));
        let rows = change.rows.iter().map(|row| (row.name.clone(), row.health));
        rows.collect::<Vec<_>>()
    };
    let idle = |health| vec![("idle".to_owned(), health)];
    inspect(0, 99);
    assert_eq!(inspect(1, 101), idle(Health::Waiting));
    assert_eq!(inspect(2, 102), [], "another try changes no row");
    assert_eq!(inspect(0, 103), idle(Health::Healthy));
}
