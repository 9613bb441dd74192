//! The start order of static pods with the same full name.

use super::*;
use crate::ids::FullName;
use crate::pod_worker::WaitFor;
use crate::ports::{Observed, SyncKind};
use crate::testing::{Call, pod};

fn web() -> FullName {
    FullName::new("test", "web")
}

fn static_web(uid: &str) -> Arc<PodObject> {
    pod("web").uid(uid).static_pod().build()
}

impl Rig {
    fn waiting(&self) -> Vec<String> {
        self.engine.waiting_for_name(&web()).iter().map(ToString::to_string).collect()
    }
}

// POD-S26
#[actix::test]
async fn api_pod_and_static_pod_of_the_same_full_name_both_run() {
    let rig = rig();
    rig.run(&static_web("1")).await;
    rig.run(&pod("web").uid("2").build()).await;
    assert_eq!(rig.hooks.calls(&"1".into()), [Call::create()]);
    assert_eq!(rig.hooks.calls(&"2".into()), [Call::create()]);
}

// POD-S27, POD-S44
#[actix::test]
async fn static_pods_wait_for_the_one_that_has_their_full_name() {
    let rig = rig();
    for uid in ["2", "3", "4"] {
        rig.run(&static_web(uid)).await;
    }
    assert_eq!(rig.waiting(), ["3", "4"]);
    for uid in ["3", "4"] {
        assert_eq!(rig.lifecycle(uid), Some(Lifecycle::Waiting));
        assert!(rig.engine.active_pod(&uid.into()).is_none());
        let wait = rig.engine.snapshot(&uid.into()).unwrap().wait;
        assert_eq!(wait.what, WaitFor::FullName { held_by: Some("2".into()) });
        let delay = wait.next.unwrap().since(START);
        assert!((10.0..=15.0).contains(&delay.as_secs_f64()), "{delay:?}");
    }
    // Neither their own retries nor housekeeping starts them.
    pass_secs(100).await;
    let known = rig.known(&["2", "3", "4"]);
    rig.settled().await;
    assert!(rig.hooks.calls(&"3".into()).is_empty() && rig.hooks.calls(&"4".into()).is_empty());
    assert!(known.iter().all(|pod| pod.lifecycle == Lifecycle::Sync && pod.has_config && pod.is_static && !pod.orphan));
}

// The worker was woken and has not taken its turn yet.
#[actix::test]
async fn next_static_pod_for_a_free_full_name_waits_for_its_worker() {
    let rig = rig();
    for uid in ["2", "3"] {
        rig.run(&static_web(uid)).await;
    }
    let hold = rig.engine.hold(&"3".into()).unwrap();
    rig.engine.update_pod(Update::kill(static_web("2")));
    pass_secs(5).await;
    assert_eq!((rig.lifecycle("2"), rig.waiting()), (Some(Lifecycle::Finished), vec!["3".to_owned()]));
    assert_eq!(rig.engine.snapshot(&"3".into()).unwrap().wait.what, WaitFor::Worker);
    drop(hold);
    rig.settled().await;
    assert_eq!(rig.hooks.calls(&"3".into()), [Call::create()]);
}

// POD-S28, POD-W31
#[actix::test]
async fn killed_static_pod_is_skipped_and_the_next_one_starts() {
    let rig = rig();
    for uid in ["2", "3", "4"] {
        rig.run(&static_web(uid)).await;
    }
    rig.update(Update::kill(static_web("3"))).await;
    assert_eq!((rig.lifecycle("3"), rig.waiting()), (Some(Lifecycle::Finished), vec!["4".to_owned()]));
    rig.update(Update::kill(static_web("2"))).await;
    assert_eq!(rig.hooks.calls(&"4".into()), [Call::create()], "the pod is woken when the full name is free");
    assert!(rig.hooks.calls(&"3".into()).is_empty());
    assert!(rig.waiting().is_empty());
}

// POD-S29
#[actix::test]
async fn static_pods_start_in_the_order_of_their_first_updates() {
    let rig = rig();
    let mut holds = Vec::new();
    for uid in ["7", "8", "9"] {
        rig.engine.update_pod(Update::create(static_web(uid)));
        holds.push(rig.engine.hold(&uid.into()).unwrap());
    }
    let hold_of_seven = holds.remove(0);
    drop(holds);
    let_workers_run().await;
    rig.engine.update_pod(Update::sync(static_web("8")));
    let_workers_run().await;
    assert_eq!(rig.waiting(), ["7", "8", "9"]);
    rig.engine.update_pod(Update::kill(static_web("7")));
    drop(hold_of_seven);
    rig.update(Update::sync(static_web("8"))).await;
    assert_eq!(rig.hooks.calls(&"8".into()), [Call::sync(SyncKind::Sync)]);
    assert!(rig.hooks.calls(&"7".into()).is_empty() && rig.hooks.calls(&"9".into()).is_empty());
    assert_eq!(rig.waiting(), ["9"]);
}

// The engine's part of POD-S31. The host makes the mirror pod.
#[actix::test]
async fn only_the_last_of_many_versions_of_a_static_pod_starts() {
    let rig = rig();
    let version = |n: usize| static_web(&format!("version {n}"));
    rig.run(&version(0)).await;
    rig.hooks.stops_take(Duration::from_secs(5));
    for n in 1..=300 {
        rig.engine.update_pod(Update::kill(version(n - 1)));
        rig.engine.update_pod(Update::create(version(n)));
        pass(Duration::from_millis(10)).await;
    }
    pass_secs(10).await;
    for n in 1..300 {
        assert!(rig.hooks.calls(version(n).uid()).is_empty(), "version {n} started");
        assert_eq!(rig.engine.lifecycle(version(n).uid()), Some(Lifecycle::Finished));
    }
    assert_eq!(rig.hooks.calls(version(300).uid()), [Call::create()]);
    assert!(rig.waiting().is_empty());
    // The other versions leave no record.
    assert_eq!(rig.known_uids(&["version 300"]), ["version 300"]);
    assert_eq!(rig.engine.known_pods(), 1);
}

// POD-S45
#[actix::test]
async fn waiting_static_pod_that_is_not_desired_is_forgotten_uncalled() {
    let rig = rig();
    rig.run(&static_web("1")).await;
    rig.run(&static_web("2")).await;
    assert_eq!(rig.known_uids(&["1"]), ["1"]);
    rig.settled().await;
    assert!(!rig.engine.is_pod_known(&"2".into()));
    assert!(rig.hooks.calls(&"2".into()).is_empty() && rig.waiting().is_empty());
}

// KF3
#[actix::test]
async fn full_name_is_free_after_every_way_a_static_pod_can_end() {
    let rig = rig();
    for (n, uid) in ["1", "2", "3", "4"].into_iter().enumerate() {
        rig.run(&static_web(uid)).await;
        assert_eq!(rig.hooks.calls(&uid.into()), [Call::create()], "pod {uid}");
        match n {
            0 => rig.update(Update::kill(static_web(uid))).await,
            1 => rig.update(Update::changed(pod("web").uid(uid).static_pod().deleting(1).build())).await,
            2 => rig.update(runtime_kill(uid)).await,
            _ => {
                rig.known(&[]);
                rig.settled().await;
            }
        }
    }
    rig.run(&static_web("5")).await;
    assert_eq!(rig.hooks.calls(&"5".into()), [Call::create()]);
}

// KF3, KF4
#[actix::test]
async fn static_pod_stopped_before_its_start_does_not_block_others() {
    let rig = rig();
    rig.engine.update_pod(Update::create(static_web("1")));
    let hold = rig.engine.hold(&"1".into()).unwrap();
    rig.engine.update_pod(Update::kill(static_web("1")));
    rig.run_beside(&static_web("2")).await;
    assert_eq!(rig.hooks.calls(&"2".into()), [Call::create()]);
    drop(hold);
    rig.settled().await;
    assert_eq!(rig.lifecycle("1"), Some(Lifecycle::Finished));
    assert!(rig.hooks.calls(&"1".into()).is_empty());
}

impl Rig {
    /// Creates a pod while others are held.
    async fn run_beside(&self, pod: &Arc<PodObject>) {
        self.engine.update_pod(Update::create(pod.clone()));
        let_workers_run().await;
    }
}

// Containers of an earlier run are stopped first (POD-W32).
#[actix::test]
async fn unstarted_static_pod_is_stopped_if_the_runtime_still_runs_it() {
    for (observed, calls) in [
        (Observed::Never, vec![]),
        (Observed::Stopped, vec![]),
        (Observed::Running, vec![Call::stop(30), Call::clean_up()]),
    ] {
        let rig = rig();
        rig.view.shows(&"1".into(), observed);
        rig.update(Update::kill(static_web("1"))).await;
        assert_eq!(rig.hooks.calls(&"1".into()), calls, "{observed:?}");
        assert_eq!(rig.lifecycle("1"), Some(Lifecycle::Finished));
        assert!(rig.engine.should_pod_containers_be_terminating(&"1".into()));
    }
    // Housekeeping observed the pod in the runtime.
    let rig = rig();
    rig.engine.update_pod(Update::create(static_web("1")));
    let hold = rig.engine.hold(&"1".into()).unwrap();
    rig.engine.update_pod(runtime_kill("1"));
    drop(hold);
    rig.settled().await;
    assert_eq!(rig.hooks.calls(&"1".into()), [Call::stop(1), Call::clean_up()]);
}

// A pod that was woken for its full name has work, even before its turn (POD-I10).
#[actix::test]
async fn static_pod_whose_full_name_is_free_counts_as_working() {
    let rig = rig();
    rig.run(&static_web("1")).await;
    rig.run(&static_web("2")).await;
    assert!(rig.engine.is_quiescent());
    let hold = rig.engine.hold(&"2".into()).unwrap();
    rig.engine.update_pod(Update::kill(static_web("1")));
    let_workers_run().await;
    assert_eq!(rig.lifecycle("1"), Some(Lifecycle::Finished));
    assert!(!rig.engine.is_quiescent());
    drop(hold);
    rig.settled().await;
    assert_eq!(rig.hooks.calls(&"2".into()), [Call::create()]);
}
