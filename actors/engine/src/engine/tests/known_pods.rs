//! `sync_known_pods`: the comparison of the records with the desired pods.

use super::*;
use crate::ports::SyncKind;
use crate::testing::{Call, pod};

fn named(name: &str, uid: &str) -> Arc<PodObject> {
    pod(name).uid(uid).static_pod().build()
}

// POD-S30
#[actix::test]
async fn known_pods_contain_every_record_that_remains() {
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

// POD-S34, POD-S47
#[actix::test]
async fn orphans_are_stopped_with_their_own_grace_and_forgotten_when_finished() {
    let rig = rig();
    for pod in [pod("a").build(), named("b", "b")] {
        rig.run(&pod).await;
    }
    assert_eq!(rig.known_uids(&[]), ["a", "b"]);
    rig.settled().await;
    for uid in ["a", "b"] {
        assert_eq!(rig.hooks.calls(&uid.into()), [Call::create(), Call::unforced_stop(30), Call::clean_up()]);
        let snapshot = rig.engine.snapshot(&uid.into()).unwrap();
        assert_eq!((snapshot.lifecycle, snapshot.deleted), (Lifecycle::Finished, true));
    }
    assert!(rig.known(&[]).is_empty());
    assert_eq!(rig.engine.known_pods(), 0);
}

// POD-S35
#[actix::test]
async fn record_is_forgotten_only_if_not_desired_and_finished_or_not_started() {
    let rig = rig();
    let finished = pod("finished").build();
    rig.run(&finished).await;
    rig.update(Update::kill(finished)).await;
    rig.run(&named("x", "runs")).await;
    for uid in ["waits, desired", "waits, orphan"] {
        rig.run(&named("x", uid)).await;
    }
    let all = ["finished", "runs", "waits, desired"];
    assert_eq!(rig.known_uids(&all), all, "a desired pod stays, finished or not");
    assert_eq!(rig.known_uids(&["runs", "waits, desired"]), ["runs", "waits, desired"]);
    assert!(rig.hooks.calls(&"waits, orphan".into()).is_empty());
}

// A stop that is already in progress is not requested again (POD-S36, POD-W35).
#[actix::test]
async fn orphan_that_is_already_terminating_is_stopped_once() {
    let rig = rig();
    let a = pod("a").build();
    rig.run(&a).await;
    let gate = rig.hooks.waits(a.uid(), Hook::Terminating);
    rig.engine.update_pod(Update::kill(a.clone()));
    let_workers_run().await;
    for _ in 0..3 {
        rig.known(&[]);
        pass_secs(2).await;
    }
    assert!(rig.engine.snapshot(a.uid()).unwrap().deleted);
    gate.open();
    rig.settled().await;
    assert_eq!(rig.hooks.calls(a.uid()), [Call::create(), Call::stop(30), Call::clean_up()]);
}

// POD-W4
#[actix::test]
async fn sync_of_an_orphan_is_cancelled() {
    let rig = rig();
    let a = pod("a").build();
    rig.hooks.waits(a.uid(), Hook::Sync);
    rig.engine.update_pod(Update::create(a.clone()));
    let_workers_run().await;
    rig.known(&[]);
    rig.settled().await;
    assert_eq!(rig.hooks.cancelled(a.uid()), 1);
    assert_eq!(rig.hooks.calls(a.uid()), [Call::create(), Call::unforced_stop(30), Call::clean_up()]);
}

// POD-S48, and the engine's part of POD-S46
#[actix::test]
async fn pod_with_a_restart_requested_is_forgotten_once_finished() {
    let rig = rig();
    let first = pod("a").label("v", "1").build();
    let second = pod("a").label("v", "2").build();
    rig.run(&first).await;
    rig.hooks.fails(first.uid(), Hook::Terminating, 1);
    rig.update(Update::kill(first.clone())).await;
    rig.update(Update::create(second.clone())).await;
    assert_eq!(rig.known_uids(&["a"]), ["a"], "the pod is not finished yet");
    pass_secs(20).await;
    assert_eq!(rig.lifecycle("a"), Some(Lifecycle::Finished));
    assert!(rig.known(&["a"]).is_empty(), "the caller creates the pod again");
    rig.run(&second).await;
    let calls = rig.hooks.calls(first.uid());
    assert_eq!(calls.last(), Some(&Call::version(SyncKind::Create, "2")));
    assert_eq!(calls.iter().filter(|call| matches!(call, Call::Sync { .. })).count(), 2);
}

// The pod stays known and its stop is retried until it succeeds (POD-S39).
#[actix::test]
async fn failed_stop_of_a_runtime_only_pod_is_retried() {
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

// The worker has not taken the runtime-only pod yet. The pod must not count as one that never ran.
#[actix::test]
async fn runtime_only_pod_is_known_before_its_worker_stops_it() {
    let rig = rig();
    rig.engine.update_pod(runtime_kill("a"));
    let known = rig.known(&[]);
    assert_eq!((known.len(), known[0].has_config), (1, false));
    rig.settled().await;
    assert_eq!(rig.hooks.calls(&"a".into()), [Call::StopRuntime]);
}

// POD-K13: the pod fits no series of working pods until its worker takes the spec.
#[actix::test]
async fn runtime_only_pod_that_is_desired_again_has_no_spec_yet() {
    let rig = rig();
    let gate = rig.hooks.waits(&"a".into(), Hook::TerminatingRuntime);
    rig.engine.update_pod(runtime_kill("a"));
    let_workers_run().await;
    rig.engine.update_pod(Update::kill(pod("a").build()));
    let known = rig.known(&["a"]);
    assert_eq!((known.len(), known[0].has_config, known[0].orphan), (1, false, false));
    gate.open();
    rig.settled().await;
}
