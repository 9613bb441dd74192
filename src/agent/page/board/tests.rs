use std::sync::Arc;

use crate::actors::engine::PodSnapshot;
use crate::actors::explain::{Failing, On, Subject, Wait, What};
use crate::actors::ids::FullName;
use crate::actors::pod::PodObject;
use crate::actors::pod_worker::{Failure, Hook, Wait as PodWait, WaitFor};
use crate::actors::ports::{Blame, Unready};
use k8s_openapi::api::core::v1::PodStatus;
use serde_json::json;

use super::*;
use crate::agent::page::nearest::nearest;

fn at(seconds: u64) -> Time {
    Time::from_secs(seconds)
}

/// A pod with one container, that began at 10 s and has no more to wait for.
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

pub(in crate::agent::page) fn runs() -> serde_json::Value {
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

/// What a pod waits for, as its record says.
fn wait(pod: &PodFacts) -> Wait {
    let since = pod.snapshot.as_ref().map(|snapshot| snapshot.wait.since);
    let what = match pod.snapshot.as_ref().map(|snapshot| &snapshot.wait.what) {
        Some(WaitFor::HookCall(Hook::Terminating)) => What::Grace,
        Some(WaitFor::HookCall(hook)) => What::HookCall(*hook),
        Some(WaitFor::Retry { hook, .. }) => What::Retry(*hook),
        _ if pod.phase() == Phase::Pending => What::ContainerStart,
        _ => What::Nothing,
    };
    let on = On::only(Subject::Nobody);
    let (released_by, detail) = (String::new(), String::new());
    let next = since.filter(|_| what == What::Grace).map(|since| since + Duration::from_secs(30));
    Wait { depth: 0, what, on, container: None, since, tries: None, next, released_by, detail }
}

pub(in crate::agent::page) fn node() -> NodeState {
    NodeState {
        started: at(0),
        missing_sources: vec![],
        last_pass: None,
        passes: None,
        runtime: None,
        unready: Unready::default(),
    }
}

fn take(board: &mut Board, pods: Vec<PodFacts>, now: Time) -> Change {
    board.take(node(), pods, now, &|pod| nearest(pod, wait(pod), "words".into(), now))
}

fn names(rows: &[Arc<Row>]) -> Vec<&str> {
    rows.iter().map(|row| row.name.as_str()).collect()
}

fn waiting(pod: PodFacts, what: WaitFor, since: u64) -> PodFacts {
    let snapshot = pod
        .snapshot
        .map(|snapshot| PodSnapshot { wait: PodWait { what, since: at(since), tries: 1, next: None }, ..snapshot });
    PodFacts { snapshot, ..pod }
}

/// A pod whose setup failed and waits to be called again, or is called.
fn failing(pod: PodFacts, what: WaitFor) -> PodFacts {
    let pod = waiting(pod, what, 19);
    let failure = Failure { hook: Hook::Sync, error: "no".into(), blame: Blame::Nothing, count: 1, since: at(10) };
    let snapshot = pod.snapshot.map(|snapshot| PodSnapshot { failure: Some(failure), ..snapshot });
    PodFacts { snapshot, ..pod }
}

#[test]
fn only_rows_that_differ_are_told_and_those_that_went() {
    let mut board = Board::default();
    let (a, b, c) = (pod("a", runs()), pod("b", runs()), pod("c", runs()));
    let first = take(&mut board, vec![a.clone(), b.clone(), c.clone()], at(20));
    assert_eq!((names(&first.rows), first.gone.len()), (vec!["a", "b", "c"], 0));
    assert!(take(&mut board, vec![a.clone(), b.clone(), c.clone()], at(30)).is_empty(), "time alone changes no row");

    let same = PodFacts { status: a.status.as_deref().cloned().map(Arc::new), ..a.clone() };
    let change = take(&mut board, vec![same, pod("b", waits("CrashLoopBackOff"))], at(40));
    assert_eq!((names(&change.rows), change.gone), (vec!["b"], vec!["c".to_owned()]));
    assert!(take(&mut board, vec![a, pod("b", waits("CrashLoopBackOff"))], at(50)).is_empty());
}

#[test]
fn the_worst_comes_first() {
    let failed = json!({"phase": "Failed"});
    let succeeded = json!({"phase": "Succeeded"});
    let mut board = Board::default();
    take(
        &mut board,
        vec![
            pod("a-finished", succeeded),
            pod("b-healthy", runs()),
            pod("c-starts", waits("ContainerCreating")),
            pod("d-crashes", waits("CrashLoopBackOff")),
            pod("e-failed", failed),
            failing(pod("f-retries", runs()), WaitFor::Retry { hook: Hook::Sync, error: "no".into() }),
            failing(pod("g-is-called-again", runs()), WaitFor::HookCall(Hook::Sync)),
        ],
        at(20),
    );
    let rows = board.rows();
    assert_eq!(
        names(&rows),
        ["d-crashes", "e-failed", "f-retries", "g-is-called-again", "c-starts", "b-healthy", "a-finished"]
    );
    use Health::{Failing, Finished, Healthy, Waiting};
    let healths: Vec<_> = rows.iter().map(|row| row.health).collect();
    assert_eq!(healths, [Failing, Failing, Failing, Failing, Waiting, Healthy, Finished]);
}

// A pod that is checked once a minute for a few milliseconds is not one that waits.
#[test]
fn a_call_is_told_once_it_takes_long() {
    let mut board = Board::default();
    let called = waiting(pod("a", runs()), WaitFor::HookCall(Hook::Sync), 100);
    take(&mut board, vec![pod("a", runs())], at(99));
    let quick = take(&mut board, vec![called.clone()], at(101));
    assert!(quick.rows.iter().all(|row| row.wait.is_none()), "{quick:?}");
    let long = take(&mut board, vec![called], at(103));
    assert_eq!(long.rows.first().map(|row| row.health), Some(Health::Waiting), "{long:?}");
}

// Nothing happens to a pod that cannot be killed, and so its facts stay the same.
#[test]
fn a_pod_that_outlasts_its_grace_period_is_failing() {
    let mut board = Board::default();
    let stops = waiting(pod("a", runs()), WaitFor::HookCall(Hook::Terminating), 100);
    take(&mut board, vec![stops.clone()], at(101));
    assert_eq!(board.rows()[0].health, Health::Waiting);
    assert!(take(&mut board, vec![stops.clone()], at(139)).is_empty());
    let late = take(&mut board, vec![stops.clone()], at(140));
    assert_eq!(late.rows.first().map(|row| row.health), Some(Health::Failing), "{late:?}");
    assert!(take(&mut board, vec![stops], at(200)).is_empty());
}

// What is known of the pods stays the same while the runtime is away, because nothing can be known.
#[test]
fn an_outage_is_told_of_pods_that_rest_and_so_is_its_end() {
    let mut board = Board::default();
    let pods = vec![pod("crashes", waits("CrashLoopBackOff")), pod("rests", runs())];
    let mut look = |tries: u32, now: u64| {
        let error = || Failing { since: at(100), tries, error: "gone".into() };
        let node = NodeState { last_pass: Some(at(now)), runtime: (tries > 0).then(error), ..node() };
        let runtime = node.runtime.clone();
        let wait = |pod: &PodFacts| match (wait(pod), &runtime) {
            (wait, Some(_)) if wait.what == What::Nothing => Wait { what: What::Runtime, since: Some(at(100)), ..wait },
            (wait, _) => wait,
        };
        let change = board.take(node, pods.clone(), at(now), &|pod| nearest(pod, wait(pod), "words".into(), at(now)));
        let rows = change.rows.iter().map(|row| (row.name.clone(), row.health));
        rows.collect::<Vec<_>>()
    };
    let rests = |health| vec![("rests".to_owned(), health)];
    look(0, 99);
    assert_eq!(look(1, 101), rests(Health::Waiting));
    assert_eq!(look(2, 102), [], "another try changes no row");
    assert_eq!(look(0, 103), rests(Health::Healthy));
}
