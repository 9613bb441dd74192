//! Updates of new pods and of running pods.
//!
//! Two scenarios have no test because `Update` has no constructor for them: an update with a spec and a runtime pod (POD-S3), and a
//! runtime pod without a spec in an update that is not a kill (POD-S9).

use super::*;
use crate::ports::{Observed, SyncKind};
use crate::testing::{Call, pod};

// POD-S1
#[actix::test]
async fn created_pod_is_synced_once() {
    let rig = rig();
    let a = pod("a").build();
    rig.run(&a).await;
    assert_eq!(rig.hooks.calls(a.uid()), [Call::create()]);
    assert_eq!(rig.lifecycle("a"), Some(Lifecycle::Sync));
    assert!(Arc::ptr_eq(&rig.engine.active_pod(a.uid()).unwrap(), &a));
    assert!(!rig.engine.is_pod_termination_requested(a.uid()));
}

// KF1, POD-S2
#[actix::test]
async fn create_during_a_stop_only_requests_a_restart() {
    let rig = rig();
    let first = pod("a").label("v", "1").build();
    rig.run(&first).await;
    let hold = rig.engine.hold(first.uid()).unwrap();
    rig.engine.update_pod(Update::kill(first.clone()));
    rig.engine.update_pod(Update::create(pod("a").label("v", "2").build()));
    drop(hold);
    rig.settled().await;
    let snapshot = rig.engine.snapshot(first.uid()).unwrap();
    assert_eq!((snapshot.lifecycle, snapshot.restart_requested), (Lifecycle::Finished, true));
    let calls = [Call::version(SyncKind::Create, "1"), Call::stop(30), Call::clean_up()];
    assert_eq!(rig.hooks.calls(first.uid()), calls);
}

// POD-S6
#[actix::test]
async fn pod_in_a_terminal_phase_at_its_first_update_is_stopped() {
    for observed in [Observed::Never, Observed::Running] {
        let rig = rig();
        let a = pod("a").phase("Succeeded").build();
        rig.view.shows(a.uid(), observed);
        rig.run(&a).await;
        assert_eq!(rig.hooks.calls(a.uid()), [Call::stop(30), Call::clean_up()], "{observed:?}");
        assert_eq!(rig.lifecycle("a"), Some(Lifecycle::Finished));
    }
}

// POD-S7
#[actix::test]
async fn pod_in_a_terminal_phase_that_does_not_run_is_only_cleaned_up() {
    let rig = rig();
    let a = pod("a").phase("Succeeded").build();
    rig.view.shows(a.uid(), Observed::Stopped);
    rig.engine.update_pod(Update::create(a.clone()));
    assert!(rig.engine.is_pod_known_terminated(a.uid()), "from its first update");
    assert!(!rig.engine.should_pod_be_finished(a.uid()));
    rig.settled().await;
    assert_eq!(rig.hooks.calls(a.uid()), [Call::clean_up()]);
    let snapshot = rig.engine.snapshot(a.uid()).unwrap();
    assert_eq!((snapshot.lifecycle, snapshot.restart_requested), (Lifecycle::Finished, false));
}

// POD-S8
#[actix::test]
async fn runtime_only_pod_is_stopped_and_leaves_no_record() {
    let rig = rig();
    let uid = PodUid::new("a");
    let gate = rig.hooks.waits(&uid, Hook::TerminatingRuntime);
    rig.engine.update_pod(runtime_kill("a"));
    let_workers_run().await;
    let snapshot = rig.engine.snapshot(&uid).unwrap();
    assert_eq!((snapshot.lifecycle, snapshot.grace), (Lifecycle::Terminating, Some(Grace::MIN)));
    assert!(snapshot.deleted && snapshot.full_name == Some(FullName::new("test", "a")));
    assert!(rig.engine.active_pod(&uid).is_none());
    gate.open();
    let_workers_run().await;
    assert_eq!(rig.hooks.calls(&uid), [Call::StopRuntime]);
    assert!(!rig.engine.is_pod_known(&uid));
    assert!(!rig.engine.is_pod_known_terminated(&uid));
}

// POD-S10
#[actix::test]
async fn runtime_kill_of_a_terminated_pod_changes_nothing() {
    let rig = rig();
    let a = pod("a").build();
    rig.run(&a).await;
    rig.hooks.fails(a.uid(), Hook::Terminated, 1);
    rig.update(Update::kill(a.clone())).await;
    let before = rig.engine.snapshot(a.uid()).unwrap();
    assert_eq!(before.lifecycle, Lifecycle::Terminated);
    rig.update(runtime_kill("a")).await;
    assert_eq!(rig.engine.snapshot(a.uid()).unwrap(), before);
    assert_eq!(rig.hooks.calls(a.uid()), [Call::create(), Call::stop(30), Call::clean_up()]);
}

// POD-S10
#[actix::test]
async fn update_of_a_terminated_pod_retries_its_cleanup_at_once() {
    let rig = rig();
    let a = pod("a").build();
    rig.run(&a).await;
    rig.hooks.fails(a.uid(), Hook::Terminated, 1);
    rig.update(Update::kill(a.clone())).await;
    rig.update(Update::sync(a.clone())).await;
    assert_eq!(rig.hooks.calls(a.uid()), [Call::create(), Call::stop(30), Call::clean_up(), Call::clean_up()]);
    assert_eq!(rig.lifecycle("a"), Some(Lifecycle::Finished));
}

// POD-S18, except the measured start time, which the tests of `step` check
#[actix::test]
async fn only_the_newest_of_several_updates_to_a_busy_pod_is_processed() {
    let rig = rig();
    let a = pod("a").build();
    let gate = rig.hooks.waits(a.uid(), Hook::Sync);
    rig.engine.update_pod(Update::create(a.clone()));
    let_workers_run().await;
    for version in ["1", "2", "3"] {
        rig.engine.update_pod(Update::changed(pod("a").label("v", version).build()));
        let_workers_run().await;
    }
    gate.open();
    rig.settled().await;
    assert_eq!(rig.hooks.calls(a.uid()), [Call::create(), Call::version(SyncKind::Update, "3")]);
}

// POD-I10
#[actix::test]
async fn active_pod_is_the_new_version_only_after_the_worker_took_it() {
    let rig = rig();
    let first = pod("a").label("v", "1").build();
    rig.run(&first).await;
    let hold = rig.engine.hold(first.uid()).unwrap();
    let second = pod("a").label("v", "2").build();
    rig.engine.update_pod(Update::changed(second.clone()));
    let_workers_run().await;
    assert!(Arc::ptr_eq(&rig.engine.active_pod(first.uid()).unwrap(), &first));
    drop(hold);
    rig.settled().await;
    assert!(Arc::ptr_eq(&rig.engine.active_pod(first.uid()).unwrap(), &second));
}

#[actix::test]
async fn pod_is_held_until_the_last_hold_is_dropped() {
    let rig = rig();
    let a = pod("a").build();
    rig.run(&a).await;
    let (one, two) = (rig.engine.hold(a.uid()).unwrap(), rig.engine.hold(a.uid()).unwrap());
    rig.engine.update_pod(Update::sync(a.clone()));
    drop(one);
    pass_secs(200).await;
    assert_eq!(rig.hooks.calls(a.uid()), [Call::create()]);
    drop(two);
    rig.settled().await;
    assert_eq!(rig.hooks.calls(a.uid()), [Call::create(), Call::sync(SyncKind::Sync)]);
    assert!(rig.engine.hold(&"unknown".into()).is_none());
}

// POD-U4
#[actix::test]
async fn runtime_kill_of_a_known_pod_uses_its_spec() {
    let rig = rig();
    let a = pod("a").build();
    rig.run(&a).await;
    rig.update(runtime_kill("a")).await;
    assert_eq!(rig.hooks.calls(a.uid()), [Call::create(), Call::stop(1), Call::clean_up()]);
    assert_eq!(rig.lifecycle("a"), Some(Lifecycle::Finished));
}

#[actix::test]
async fn snapshot_names_what_the_pod_waits_for() {
    use crate::pod_worker::WaitFor;
    let rig = rig();
    let a = pod("a").build();
    let gate = rig.hooks.waits(a.uid(), Hook::Sync);
    let wait = || rig.engine.snapshot(a.uid()).unwrap().wait;
    rig.engine.update_pod(Update::create(a.clone()));
    assert_eq!(wait().what, WaitFor::Worker);
    let_workers_run().await;
    assert_eq!((wait().what, wait().tries), (WaitFor::HookCall(Hook::Sync), 1));
    gate.open();
    let_workers_run().await;
    assert_eq!(wait().what, WaitFor::Resync);
    assert!(wait().next.is_some());
    rig.hooks.fails(a.uid(), Hook::Terminating, 1);
    rig.update(Update::kill(a.clone())).await;
    assert_eq!(wait().what, WaitFor::Retry { hook: Hook::Terminating, error: "out of luck".to_owned() });
    pass_secs(20).await;
    assert_eq!(wait().what, WaitFor::Removal);
}
