//! When hooks are called again: resync, backoff and due times.

use super::*;
use crate::ports::{Clock, SyncError, SyncKind};
use crate::testing::{Call, Does, pod};

// POD-S19
#[actix::test]
async fn failing_stop_is_retried_until_it_succeeds() {
    let rig = rig();
    let a = pod("a").build();
    rig.run(&a).await;
    rig.hooks.fails(a.uid(), Hook::Terminating, 2);
    rig.update(Update::kill(a.clone())).await;
    for _ in 0..2 {
        assert!(rig.engine.should_pod_containers_be_terminating(a.uid()));
        assert!(!rig.engine.is_pod_known_terminated(a.uid()));
        assert!(rig.engine.is_quiescent());
        pass_secs(16).await;
    }
    let stop = Call::stop(30);
    assert_eq!(rig.hooks.calls(a.uid()), [Call::create(), stop.clone(), stop.clone(), stop, Call::clean_up()]);
    assert_eq!(rig.lifecycle("a"), Some(Lifecycle::Finished));
}

// POD-S25
#[actix::test]
async fn pod_stays_terminated_while_its_failing_cleanup_is_retried() {
    let rig = rig();
    let a = pod("a").build();
    rig.run(&a).await;
    rig.hooks.fails(a.uid(), Hook::Terminated, 3);
    rig.update(Update::kill(a.clone())).await;
    assert!(rig.engine.is_pod_known_terminated(a.uid()));
    assert!(!rig.engine.should_pod_be_finished(a.uid()));
    pass_secs(46).await;
    assert!(rig.engine.should_pod_be_finished(a.uid()));
    assert_eq!(rig.hooks.calls(a.uid()).iter().filter(|call| **call == Call::clean_up()).count(), 4);
}

// POD-S22
#[actix::test]
async fn resync_and_backoff_are_spread_by_a_jitter_of_up_to_one_half() {
    let rig = rig_with(EngineConfig { resync: Duration::from_secs(20), ..EngineConfig::default() });
    let mut delays = Vec::new();
    for n in 0..40 {
        let a = pod(&format!("a{n}")).build();
        rig.hooks.fails(a.uid(), Hook::Sync, 1);
        rig.engine.update_pod(Update::create(a));
    }
    pass_secs(100).await;
    for n in 0..40 {
        let gaps = rig.hooks.gaps(&format!("a{n}").as_str().into());
        assert!((10.0..=15.01).contains(&gaps[0]), "after an error: {gaps:?}");
        assert!(gaps[1..].iter().all(|gap| (20.0..=30.01).contains(gap)), "after a success: {gaps:?}");
        delays.push(gaps[0]);
    }
    let (least, most) = delays.iter().fold((f64::MAX, 0f64), |(a, b), gap| (a.min(*gap), b.max(*gap)));
    assert!(least < 11.0 && most > 14.0, "spread from {least} to {most}");
}

// A phase change waits for nothing and causes one call (POD-S22, POD-W35).
#[actix::test]
async fn phase_changes_follow_at_once_and_cause_no_redundant_call() {
    let rig = rig();
    let a = pod("a").build();
    rig.hooks.next(a.uid(), Hook::Sync, Does::Ends);
    rig.engine.update_pod(Update::create(a.clone()));
    pass_secs(300).await;
    assert_eq!(rig.hooks.calls(a.uid()), [Call::create(), Call::unforced_stop(30), Call::clean_up()]);
    assert!(rig.hooks.gaps(a.uid()).iter().all(|gap| *gap == 0.0));
}

// POD-S23
#[actix::test]
async fn error_may_set_the_time_of_its_retry() {
    let rig = rig_with(EngineConfig { resync: Duration::from_secs(20), ..EngineConfig::default() });
    let at = |seconds| SyncError::BackOff {
        what: "waits".to_owned(),
        until: rig.clock.now() + Duration::from_secs(seconds),
    };
    let cases: Vec<(&str, SyncError, f64, f64)> = vec![
        ("earliest", SyncError::Many(vec![at(10), SyncError::failed("x"), at(3)]), 3.0, 4.5),
        ("far", at(500), 20.0, 30.0),
        ("past", at(0), 0.0, 0.0),
        ("network", SyncError::Many(vec![at(10), SyncError::NetworkNotReady("cni".to_owned())]), 1.0, 1.5),
        ("other", SyncError::failed("x"), 10.0, 15.0),
        ("cancelled", SyncError::Cancelled, 10.0, 15.0),
    ];
    let mut expected = Vec::new();
    for (name, error, least, most) in cases {
        rig.hooks.next(&name.into(), Hook::Sync, Does::Fails(error));
        rig.engine.update_pod(Update::create(pod(name).build()));
        expected.push((name, least, most));
    }
    pass_secs(40).await;
    for (name, least, most) in expected {
        let gap = rig.hooks.gaps(&name.into())[0];
        assert!((least..=most + 0.01).contains(&gap), "{name}: {gap}");
    }
}

// POD-S24
#[actix::test]
async fn update_during_a_hook_call_is_processed_after_it() {
    let rig = rig();
    let a = pod("a").build();
    let gate = rig.hooks.waits(a.uid(), Hook::Sync);
    rig.engine.update_pod(Update::create(a.clone()));
    let_workers_run().await;
    rig.engine.update_pod(Update::sync(a.clone()));
    assert!(!rig.engine.is_quiescent());
    gate.open();
    rig.settled().await;
    assert_eq!(rig.hooks.calls(a.uid()), [Call::create(), Call::sync(SyncKind::Sync)]);
    assert!(rig.engine.is_quiescent());
}

#[actix::test]
async fn update_during_a_backoff_is_processed_at_once() {
    let rig = rig();
    let a = pod("a").build();
    rig.hooks.fails(a.uid(), Hook::Sync, 1);
    rig.run(&a).await;
    assert_eq!(rig.engine.snapshot(a.uid()).unwrap().failure.unwrap().count, 1);
    rig.update(Update::changed(a.clone())).await;
    assert_eq!(rig.hooks.calls(a.uid()), [Call::create(), Call::sync(SyncKind::Update)]);
    assert_eq!(rig.engine.snapshot(a.uid()).unwrap().failure, None);
}

// POD-S54
#[actix::test]
async fn pods_are_synced_at_their_due_times() {
    let rig = rig_with(EngineConfig { resync: Duration::from_secs(600), ..EngineConfig::default() });
    let start = rig.clock.now();
    for (name, due) in [("now", 0), ("half a minute", 30), ("two minutes", 120), ("deadline", 45)] {
        let at = start + Duration::from_secs(due);
        rig.hooks.next(&name.into(), Hook::Sync, Does::Continues(Some(at)));
        rig.engine.update_pod(Update::create(pod(name).build()));
    }
    pass_secs(60).await;
    let synced = |name: &str| rig.hooks.calls(&name.into()).len() - 1;
    assert_eq!([synced("now"), synced("half a minute"), synced("two minutes"), synced("deadline")], [1, 1, 0, 1]);
    pass_secs(61).await;
    assert_eq!(synced("two minutes"), 1);
}

#[actix::test]
async fn new_due_time_replaces_an_earlier_or_a_later_one() {
    let rig = rig_with(EngineConfig { resync: Duration::from_secs(600), ..EngineConfig::default() });
    let a = pod("a").build();
    let start = rig.clock.now();
    for seconds in [100, 50, 200] {
        let at = start + Duration::from_secs(seconds);
        rig.hooks.next(a.uid(), Hook::Sync, Does::Continues(Some(at)));
    }
    rig.run(&a).await; // due at 100 s
    rig.update(Update::sync(a.clone())).await; // due at 50 s
    pass_secs(60).await; // called at 50 s, due at 200 s
    assert_eq!(rig.hooks.calls(a.uid()).len(), 3);
    pass_secs(130).await;
    assert_eq!(rig.hooks.calls(a.uid()).len(), 3, "nothing at 100 s");
    pass_secs(20).await;
    assert_eq!(rig.hooks.calls(a.uid()).len(), 4);
}

// The retry follows its backoff, however often housekeeping runs (POD-S38, POD-S43, POD-S46, POD-W33).
#[actix::test]
async fn housekeeping_does_not_shorten_the_backoff_of_a_failing_stop() {
    for desired in [&["a"][..], &[]] {
        let rig = rig();
        let a = pod("a").build();
        rig.run(&a).await;
        rig.hooks.fails(a.uid(), Hook::Terminating, 3);
        rig.update(Update::kill(a.clone()).with_options(graced(2))).await;
        for _ in 0..5 {
            rig.known(desired);
            rig.settled().await;
        }
        assert_eq!(rig.hooks.calls(a.uid()).len(), 2);
        for _ in 0..30 {
            pass_secs(2).await;
            rig.known(desired);
        }
        rig.settled().await;
        let calls = rig.hooks.calls(a.uid());
        assert_eq!(calls[1..], [vec![Call::stop(2); 4], vec![Call::clean_up()]].concat());
        assert!(rig.hooks.gaps(a.uid())[1..4].iter().all(|gap| *gap >= 10.0));
    }
}
