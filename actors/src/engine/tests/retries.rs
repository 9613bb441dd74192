//! When a pod is called again.

use super::*;
use crate::ports::{Clock, SyncError, SyncKind};
use crate::testing::{Call, Does, pod};

// S19
#[actix::test]
async fn a_failing_stop_is_retried_until_it_succeeds() {
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

// S25
#[actix::test]
async fn a_failing_cleanup_is_retried_and_the_pod_is_terminated_meanwhile() {
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

// S22
#[actix::test]
async fn delays_follow_the_outcome_and_are_spread_by_up_to_a_half() {
    let rig = rig_with(EngineConfig { resync: Duration::from_secs(20), ..EngineConfig::default() });
    let mut seen = Vec::new();
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
        seen.push(gaps[0]);
    }
    let (least, most) = seen.iter().fold((f64::MAX, 0f64), |(a, b), gap| (a.min(*gap), b.max(*gap)));
    assert!(least < 11.0 && most > 14.0, "spread from {least} to {most}");
}

// S22, W35: a change of phase waits for nothing, and costs one call.
#[actix::test]
async fn phases_follow_one_another_at_once_and_leave_no_redundant_call() {
    let rig = rig();
    let a = pod("a").build();
    rig.hooks.next(a.uid(), Hook::Sync, Does::Ends);
    rig.engine.update_pod(Update::create(a.clone()));
    pass_secs(300).await;
    assert_eq!(rig.hooks.calls(a.uid()), [Call::create(), Call::unforced_stop(30), Call::clean_up()]);
    assert!(rig.hooks.gaps(a.uid()).iter().all(|gap| *gap == 0.0));
}

// S23
#[actix::test]
async fn an_error_may_say_when_to_try_again() {
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

// S24
#[actix::test]
async fn what_came_during_a_call_is_worked_on_after_it() {
    let rig = rig();
    let a = pod("a").build();
    let gate = rig.hooks.waits(a.uid(), Hook::Sync);
    rig.engine.update_pod(Update::create(a.clone()));
    pass_a_moment().await;
    rig.engine.update_pod(Update::sync(a.clone()));
    assert!(!rig.engine.is_quiescent());
    gate.open();
    rig.settled().await;
    assert_eq!(rig.hooks.calls(a.uid()), [Call::create(), Call::sync(SyncKind::Sync)]);
    assert!(rig.engine.is_quiescent());
}

// An update that comes while an error waits out its backoff does not wait.
#[actix::test]
async fn an_update_cuts_a_backoff_short() {
    let rig = rig();
    let a = pod("a").build();
    rig.hooks.fails(a.uid(), Hook::Sync, 1);
    rig.run(&a).await;
    assert_eq!(rig.engine.snapshot(a.uid()).unwrap().failure.unwrap().count, 1);
    rig.update(Update::changed(a.clone())).await;
    assert_eq!(rig.hooks.calls(a.uid()), [Call::create(), Call::sync(SyncKind::Update)]);
    assert_eq!(rig.engine.snapshot(a.uid()).unwrap().failure, None);
}

// S54
#[actix::test]
async fn pods_are_synced_when_they_fall_due() {
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

// The alarm is armed for the earlier of two due times, whichever was set first.
#[actix::test]
async fn an_earlier_due_time_replaces_a_later_one_and_the_reverse() {
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

// S38, S43, S46, W33: a retry comes at its own time, however often housekeeping asks.
#[actix::test]
async fn housekeeping_does_not_hurry_a_failing_stop() {
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
