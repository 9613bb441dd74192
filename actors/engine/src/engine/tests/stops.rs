//! Stopping a pod: grace period, flags, cancellation and notifiers.

use super::*;
use crate::pod_worker::Notifier;
use crate::ports::{Observed, SyncError, SyncKind, SyncOutcome};
use crate::testing::{Call, Does, Gate, pod};

// POD-S4
#[actix::test]
async fn deleted_pod_is_stopped_with_its_deletion_grace_and_cleaned_up() {
    let rig = rig();
    let a = pod("a").build();
    rig.run(&a).await;
    rig.update(Update::changed(pod("a").deleting(15).build())).await;
    assert_eq!(rig.hooks.calls(a.uid()), [Call::create(), Call::stop(15), Call::clean_up()]);
    let snapshot = rig.engine.snapshot(a.uid()).unwrap();
    assert_eq!((snapshot.lifecycle, snapshot.deleted, snapshot.evicted), (Lifecycle::Finished, true, false));
    assert!(rig.engine.is_pod_known_terminated(a.uid()));
}

// POD-S5
#[actix::test]
async fn content_of_an_evicted_pod_may_be_removed_before_it_has_stopped() {
    let rig = rig();
    let a = pod("a").build();
    rig.run(&a).await;
    let gate = rig.hooks.waits(a.uid(), Hook::Terminating);
    rig.engine.update_pod(Update::kill(a.clone()).with_options(evicting()));
    let_workers_run().await;
    assert!(rig.engine.should_pod_content_be_removed(a.uid()));
    assert!(rig.engine.could_have_running_containers(a.uid()));
    gate.open();
    rig.settled().await;
    assert_eq!(rig.hooks.calls(a.uid()), [Call::create(), Call::stop(30), Call::clean_up()]);
    assert!(rig.engine.snapshot(a.uid()).unwrap().evicted);
}

// The stop needs no update, and its grace period is the one of the spec (POD-S13, POD-W6).
#[actix::test]
async fn pod_that_ends_by_itself_is_stopped_and_cleaned_up() {
    let rig = rig();
    let a = pod("a").build();
    for does in [Does::Continues(None), Does::Continues(None), Does::Ends] {
        rig.hooks.next(a.uid(), Hook::Sync, does);
    }
    rig.run(&a).await;
    rig.update(Update::sync(a.clone())).await;
    rig.update(Update::sync(a.clone())).await;
    let calls = rig.hooks.calls(a.uid());
    assert_eq!(calls[3..], [Call::unforced_stop(30), Call::clean_up()]);
    let snapshot = rig.engine.snapshot(a.uid()).unwrap();
    assert_eq!((snapshot.lifecycle, snapshot.deleted, snapshot.evicted), (Lifecycle::Finished, false, false));
}

// POD-W6
#[actix::test]
async fn deletion_may_shorten_the_grace_of_a_pod_that_ended_by_itself() {
    let rig = rig();
    let a = pod("a").build();
    rig.hooks.next(a.uid(), Hook::Sync, Does::Ends);
    rig.hooks.stops_take(Duration::from_secs(600));
    rig.engine.update_pod(Update::create(a.clone()));
    let_workers_run().await;
    rig.engine.update_pod(Update::changed(pod("a").deleting(3).build()));
    let_workers_run().await;
    assert_eq!(rig.hooks.calls(a.uid()), [Call::create(), Call::unforced_stop(30), Call::stop(3)]);
    assert_eq!(rig.hooks.cancelled(a.uid()), 1);
}

// POD-S14, POD-S98
#[actix::test]
async fn deletion_cancels_a_long_sync() {
    let rig = rig();
    let a = pod("a").build();
    rig.hooks.next(a.uid(), Hook::Sync, Does::Takes(Duration::from_secs(600)));
    rig.engine.update_pod(Update::create(a.clone()));
    pass_secs(5).await;
    rig.engine.update_pod(Update::changed(pod("a").deleting(5).build()));
    pass(Duration::from_millis(100)).await;
    assert_eq!(rig.hooks.cancelled(a.uid()), 1);
    assert_eq!(rig.hooks.calls(a.uid()), [Call::create(), Call::stop(5), Call::clean_up()]);
}

// The outcome of a sync that was cancelled does not matter (POD-S14).
#[actix::test]
async fn hook_call_after_a_stop_request_stops_the_pod() {
    let outcomes: [fn() -> Result<SyncOutcome, SyncError>; 3] = [
        || Ok(SyncOutcome::Continue { check_at: None }),
        || Ok(SyncOutcome::Terminal),
        || Err(SyncError::failed("late")),
    ];
    for outcome in outcomes {
        let rig = rig();
        let a = pod("a").build();
        rig.run(&a).await;
        let engine = rig.engine.clone();
        let kill = Update::kill(a.clone());
        // The stop request arrives during the sync.
        let setup = move || {
            engine.update_pod(kill);
            outcome()
        };
        rig.hooks.next(a.uid(), Hook::Sync, Does::Runs(Box::new(setup)));
        rig.update(Update::sync(a.clone())).await;
        let calls = [Call::create(), Call::sync(SyncKind::Sync), Call::stop(30), Call::clean_up()];
        assert_eq!(rig.hooks.calls(a.uid()), calls);
    }
}

// POD-S15, POD-S99
#[actix::test]
async fn only_a_shorter_grace_restarts_a_stop_in_progress() {
    let rig = rig();
    let a = pod("a").build();
    rig.run(&a).await;
    rig.hooks.stops_take(Duration::from_secs(600));
    rig.engine.update_pod(Update::kill(a.clone()));
    pass_secs(1).await;
    rig.engine.update_pod(Update::changed(pod("a").deleting(5).build()));
    pass(Duration::from_millis(10)).await;
    let calls = [Call::create(), Call::stop(30), Call::stop(5)];
    assert_eq!(rig.hooks.calls(a.uid()), calls);
    rig.engine.update_pod(Update::kill(a.clone()).with_options(graced(20)));
    pass_secs(1).await;
    assert_eq!(rig.engine.snapshot(a.uid()).unwrap().grace, Some(Grace::from_seconds(5)));
    assert_eq!(rig.hooks.calls(a.uid()), calls);
    assert_eq!(rig.hooks.cancelled(a.uid()), 1);
}

// POD-S16
#[actix::test]
async fn every_stop_attempt_applies_only_the_last_status_function() {
    let rig = rig();
    let a = pod("a").build();
    rig.run(&a).await;
    rig.hooks.fails(a.uid(), Hook::Terminating, 2);
    let hold = rig.engine.hold(a.uid()).unwrap();
    rig.engine.update_pod(Update::kill(a.clone()).with_options(with_reason("first")));
    rig.engine.update_pod(Update::kill(a.clone()).with_options(with_reason("second")));
    drop(hold);
    pass_secs(60).await;
    assert_eq!(rig.hooks.reasons(a.uid()), vec![Some("second".to_owned()); 3]);
}

// POD-S17
#[actix::test]
async fn notifier_of_a_stop_completes_once_no_container_can_run() {
    let rig = rig();
    let a = pod("a").build();
    rig.run(&a).await;

    let (notifier, completed) = Notifier::new();
    let options = KillOptions { completed: Some(notifier), ..KillOptions::default() };
    rig.engine.update_pod(Update::sync(a.clone()).with_options(options));
    assert!(completed.await, "a pod that is not terminating completes a notifier at once");

    let gate = rig.hooks.waits(a.uid(), Hook::Terminating);
    let (notifier, mut completed) = Notifier::new();
    let options = KillOptions { completed: Some(notifier), ..KillOptions::default() };
    rig.engine.update_pod(Update::kill(a.clone()).with_options(options));
    assert!(tokio::time::timeout(Duration::from_secs(5), &mut completed).await.is_err());
    gate.open();
    assert!(completed.await);
    assert!(rig.engine.is_pod_known_terminated(a.uid()));
}

// POD-S20, POD-W5
#[actix::test]
async fn grace_is_the_shortest_of_deletion_override_and_spec() {
    let cases = [
        (None, None, 30),
        (Some(5), None, 5),
        (Some(5), Some(2), 2),
        (Some(0), None, 1),
        (Some(5), Some(0), 1),
        (Some(0), Some(30), 1),
        (None, Some(45), 45),
    ];
    for (deletion, forced, expected) in cases {
        let rig = rig();
        rig.run(&pod("a").build()).await;
        let target = deletion.map_or(pod("a"), |grace| pod("a").deleting(grace)).build();
        rig.update(Update::kill(target.clone()).with_options(forced.map(graced).unwrap_or_default())).await;
        let calls = [Call::create(), Call::stop(expected), Call::clean_up()];
        assert_eq!(rig.hooks.calls(target.uid()), calls, "deletion {deletion:?}, override {forced:?}");
    }
    let rig = rig();
    let without = pod("a").spec(|spec| spec.termination_grace_period_seconds = None).build();
    rig.run(&without).await;
    rig.update(Update::kill(without.clone())).await;
    assert_eq!(rig.hooks.calls(without.uid()), [Call::create(), Call::stop(1), Call::clean_up()]);
}

// POD-S21
#[actix::test]
async fn kill_pod_now_returns_when_the_pod_has_stopped() {
    let rig = rig();
    let a = pod("a").build();
    let how = KillNow { grace_seconds: Some(0), ..KillNow::default() };
    rig.run(&a).await;
    rig.engine.kill_pod_now(&a, how).await.unwrap();
    rig.settled().await;
    assert_eq!(rig.hooks.calls(a.uid()), [Call::create(), Call::stop(1), Call::clean_up()]);
}

// POD-W36
#[actix::test]
async fn kill_pod_now_fails_after_one_and_a_half_times_the_grace() {
    for (grace, waited) in [(Some(0), 10), (None, 45), (Some(100), 150)] {
        let rig = rig();
        let a = pod("a").build();
        rig.run(&a).await;
        let gate = rig.hooks.waits(a.uid(), Hook::Terminating);
        let before = tokio::time::Instant::now();
        let how = KillNow { grace_seconds: grace, ..KillNow::default() };
        let error = rig.engine.kill_pod_now(&a, how).await.unwrap_err();
        let waited = Duration::from_secs(waited);
        assert_eq!(error, KillPodError { pod: a.full_name().clone(), waited });
        assert!(before.elapsed().abs_diff(waited) < Duration::from_millis(2));
        gate.open();
        rig.settled().await;
        assert_eq!(rig.lifecycle("a"), Some(Lifecycle::Finished), "the stop continued");
    }
}

// POD-W7
#[actix::test]
async fn eviction_and_deletion_are_added_to_a_stop_in_progress() {
    let rig = rig();
    let a = pod("a").build();
    rig.run(&a).await;
    let gate = rig.hooks.waits(a.uid(), Hook::Terminating);
    rig.engine.update_pod(Update::kill(a.clone()));
    let_workers_run().await;
    assert!(!rig.engine.should_pod_content_be_removed(a.uid()));
    rig.engine.update_pod(Update::kill(a.clone()).with_options(evicting()));
    assert!(rig.engine.should_pod_content_be_removed(a.uid()));
    rig.engine.update_pod(Update::changed(pod("a").deleting(30).build()));
    let snapshot = rig.engine.snapshot(a.uid()).unwrap();
    assert!(snapshot.deleted && snapshot.evicted);
    gate.open();
}

// A later stop without options keeps the options of the earlier one (POD-W8).
#[actix::test]
async fn options_of_several_stop_requests_accumulate() {
    let rig = rig();
    let a = pod("a").build();
    rig.run(&a).await;
    rig.hooks.fails(a.uid(), Hook::Terminating, 1);
    let (notifier, completed) = Notifier::new();
    let options = KillOptions { completed: Some(notifier), evict: true, ..with_reason("pressure") };
    rig.update(Update::kill(a.clone()).with_options(KillOptions { grace: Some(Grace::from_seconds(7)), ..options }))
        .await;
    rig.update(Update::kill(a.clone())).await;
    assert_eq!(rig.hooks.calls(a.uid()), [Call::create(), Call::stop(7), Call::stop(7), Call::clean_up()]);
    assert_eq!(rig.hooks.reasons(a.uid()), vec![Some("pressure".to_owned()); 2]);
    assert!(rig.engine.snapshot(a.uid()).unwrap().evicted);
    assert!(completed.await);
}

// POD-S97, POD-W2
#[actix::test]
async fn notifier_completes_at_once_if_no_container_can_run() {
    let rig = rig();
    let waiting = || {
        let (notifier, completed) = Notifier::new();
        (KillOptions { completed: Some(notifier), ..KillOptions::default() }, completed)
    };
    let prompt = Duration::from_millis(100);

    let finished = pod("finished").build();
    rig.run(&finished).await;
    rig.update(Update::kill(finished.clone())).await;
    let (options, completed) = waiting();
    rig.engine.update_pod(Update::kill(finished.clone()).with_options(options));
    assert!(tokio::time::timeout(prompt, completed).await.unwrap(), "finished");
    let (options, completed) = waiting();
    rig.engine.update_pod(Update::create(finished).with_options(options));
    assert!(tokio::time::timeout(prompt, completed).await.unwrap(), "finished, and created again");

    let unstarted = pod("unstarted").static_pod().build();
    let (options, completed) = waiting();
    rig.engine.update_pod(Update::kill(unstarted).with_options(options));
    assert!(tokio::time::timeout(prompt, completed).await.unwrap(), "never started");

    let orphan = pod("orphan").static_pod().build();
    rig.engine.update_pod(Update::create(orphan.clone()));
    let hold = rig.engine.hold(orphan.uid()).unwrap();
    let (options, completed) = waiting();
    rig.engine.update_pod(Update::kill(orphan.clone()).with_options(options));
    rig.known(&[]);
    assert!(tokio::time::timeout(prompt, completed).await.unwrap(), "orphan dropped unstarted");
    assert!(!rig.engine.is_pod_known(orphan.uid()));
    drop(hold);

    let (options, completed) = waiting();
    let running = RunningPod { uid: "runtime".into(), full_name: FullName::new("test", "runtime") };
    rig.engine.update_pod(Update::kill_runtime(running).with_options(options));
    assert!(tokio::time::timeout(prompt, completed).await.unwrap(), "runtime only");

    let ended = pod("ended").phase("Failed").build();
    rig.view.shows(ended.uid(), Observed::Stopped);
    let (options, completed) = waiting();
    rig.engine.update_pod(Update::kill(ended).with_options(options));
    assert!(tokio::time::timeout(prompt, completed).await.unwrap(), "terminated at its first update");
}

#[actix::test]
async fn stop_that_succeeds_despite_its_cancellation_counts_as_success() {
    let rig = rig();
    let a = pod("a").build();
    rig.run(&a).await;
    let gate = Gate::default();
    rig.hooks.next(a.uid(), Hook::Terminating, Does::IsDeaf(gate.clone()));
    rig.engine.update_pod(Update::kill(a.clone()));
    let_workers_run().await;
    rig.engine.update_pod(Update::kill(a.clone()).with_options(graced(2)));
    let_workers_run().await;
    gate.open();
    rig.settled().await;
    assert_eq!(rig.hooks.calls(a.uid()), [Call::create(), Call::stop(30), Call::clean_up()]);
}
