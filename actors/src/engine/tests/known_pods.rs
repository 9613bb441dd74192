//! The comparison of records with what the sources want.

use super::*;
use crate::ports::SyncKind;
use crate::testing::{Call, pod};

fn named(name: &str, uid: &str) -> Arc<PodObject> {
    pod(name).uid(uid).static_pod().build()
}

// S30
#[actix::test]
async fn the_answer_tells_of_every_record_that_remains() {
    let rig = rig();
    rig.run(&pod("web").uid("1").build()).await;
    rig.hooks.waits(&"8".into(), Hook::Terminating);
    for uid in ["2", "3", "8", "9"] {
        rig.run(&named("web", uid)).await;
        if matches!(uid, "2" | "3") {
            rig.update(Update::kill(named("web", uid))).await;
        }
    }
    assert_eq!(rig.lifecycle("8"), Some(Lifecycle::Sync));
    assert_eq!(rig.lifecycle("9"), Some(Lifecycle::Waiting));
    let orphan = KnownPod {
        uid: "1".into(),
        lifecycle: Lifecycle::Terminating,
        orphan: true,
        has_config: true,
        is_static: false,
        since: rig.clock.now(),
    };
    let desired = KnownPod {
        uid: "8".into(),
        lifecycle: Lifecycle::Sync,
        orphan: false,
        has_config: true,
        is_static: true,
        since: rig.engine.snapshot(&"8".into()).unwrap().transitions.last().unwrap().at,
    };
    assert_eq!(rig.known(&["8"]), [orphan, desired]);
    assert_eq!(rig.engine.known_pods(), 2);
}

// S34, S47
#[actix::test]
async fn orphans_are_stopped_with_their_own_grace_and_dropped_when_they_are_over() {
    let rig = rig();
    for pod in [pod("a").build(), named("b", "b")] {
        rig.run(&pod).await;
    }
    assert_eq!(rig.known_uids(&[]), ["a", "b"]);
    rig.settled().await;
    for uid in ["a", "b"] {
        assert_eq!(rig.hooks.calls(&uid.into()), [Call::create(), Call::unforced_stop(30), Call::clean_up()]);
        let seen = rig.engine.snapshot(&uid.into()).unwrap();
        assert_eq!((seen.lifecycle, seen.deleted), (Lifecycle::Finished, true));
    }
    assert!(rig.known(&[]).is_empty());
    assert_eq!(rig.engine.known_pods(), 0);
}

// S35
#[actix::test]
async fn a_record_goes_only_when_nothing_needs_it() {
    let rig = rig();
    let finished = pod("finished").build();
    rig.run(&finished).await;
    rig.update(Update::kill(finished)).await;
    rig.run(&named("x", "runs")).await;
    for uid in ["waits, wanted", "waits, orphan"] {
        rig.run(&named("x", uid)).await;
    }
    let all = ["finished", "runs", "waits, wanted"];
    assert_eq!(rig.known_uids(&all), all, "what is wanted stays, finished or not");
    assert_eq!(rig.known_uids(&["runs", "waits, wanted"]), ["runs", "waits, wanted"]);
    assert!(rig.hooks.calls(&"waits, orphan".into()).is_empty());
}

// S36, W35: what a call under way will do anyway is not asked of it twice.
#[actix::test]
async fn an_orphan_that_is_being_stopped_is_stopped_once() {
    let rig = rig();
    let a = pod("a").build();
    rig.run(&a).await;
    let gate = rig.hooks.waits(a.uid(), Hook::Terminating);
    rig.engine.update_pod(Update::kill(a.clone()));
    pass_a_moment().await;
    for _ in 0..3 {
        rig.known(&[]);
        pass_secs(2).await;
    }
    assert!(rig.engine.snapshot(a.uid()).unwrap().deleted);
    gate.open();
    rig.settled().await;
    assert_eq!(rig.hooks.calls(a.uid()), [Call::create(), Call::stop(30), Call::clean_up()]);
}

// W4
#[actix::test]
async fn the_setup_of_an_orphan_is_cut_short() {
    let rig = rig();
    let a = pod("a").build();
    rig.hooks.waits(a.uid(), Hook::Sync);
    rig.engine.update_pod(Update::create(a.clone()));
    pass_a_moment().await;
    rig.known(&[]);
    rig.settled().await;
    assert_eq!(rig.hooks.cancelled(a.uid()), 1);
    assert_eq!(rig.hooks.calls(a.uid()), [Call::create(), Call::unforced_stop(30), Call::clean_up()]);
}

// S48, and the engine's part of S46
#[actix::test]
async fn a_pod_that_came_back_is_forgotten_once_it_is_over() {
    let rig = rig();
    let first = pod("a").label("v", "1").build();
    let second = pod("a").label("v", "2").build();
    rig.run(&first).await;
    rig.hooks.fails(first.uid(), Hook::Terminating, 1);
    rig.update(Update::kill(first.clone())).await;
    rig.update(Update::create(second.clone())).await;
    assert_eq!(rig.known_uids(&["a"]), ["a"], "not over yet");
    pass_secs(20).await;
    assert_eq!(rig.lifecycle("a"), Some(Lifecycle::Finished));
    assert!(rig.known(&["a"]).is_empty(), "the caller is to create it again");
    rig.run(&second).await;
    let calls = rig.hooks.calls(first.uid());
    assert_eq!(calls.last(), Some(&Call::version(SyncKind::Create, "2")));
    assert_eq!(calls.iter().filter(|call| matches!(call, Call::Sync { .. })).count(), 2);
}

// S39: the pod stays known, and is tried again, until it has stopped.
#[actix::test]
async fn a_runtime_pod_whose_stop_fails_is_retried() {
    let rig = rig();
    let uid = PodUid::new("a");
    rig.hooks.fails(&uid, Hook::TerminatingRuntime, 1);
    rig.update(runtime_kill("a")).await;
    let known = rig.known(&[]);
    let expected = KnownPod {
        uid: uid.clone(),
        lifecycle: Lifecycle::Terminating,
        orphan: true,
        has_config: false,
        is_static: false,
        since: known[0].since,
    };
    assert_eq!(known, [expected]);
    assert_eq!(rig.engine.snapshot(&uid).unwrap().grace, Some(Grace::MIN));
    pass_secs(20).await;
    assert_eq!(rig.hooks.calls(&uid), [Call::StopRuntime, Call::StopRuntime]);
    assert!(!rig.engine.is_pod_known(&uid));
}

// A runtime pod that housekeeping reported and nobody has looked at yet is not taken for one that never ran.
#[actix::test]
async fn a_runtime_pod_survives_a_comparison_before_its_stop() {
    let rig = rig();
    rig.engine.update_pod(runtime_kill("a"));
    let known = rig.known(&[]);
    assert_eq!((known.len(), known[0].has_config), (1, false));
    rig.settled().await;
    assert_eq!(rig.hooks.calls(&"a".into()), [Call::StopRuntime]);
}
