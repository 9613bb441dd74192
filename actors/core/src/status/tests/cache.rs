use std::time::Duration;

use k8s_openapi::api::core::v1::PodStatus;
use serde_json::json;

use crate::ids::PodUid;
use crate::pod::ContainerKind;
use crate::status::fixtures::*;
use crate::status::{IllegalRestart, SetOutcome, StatusCache, StatusChange, TerminatedContainer};

fn accepted(outcome: SetOutcome) -> StatusChange {
    match outcome {
        SetOutcome::Accepted(change) => change,
        other => panic!("not accepted: {other:?}"),
    }
}

fn never() -> World {
    World::new(pod(json!({"spec": {"restartPolicy": "Never"}})))
}

// POD-S80
#[test]
fn versions_grow_with_changes_only() {
    let world = never();
    let mut cache = StatusCache::default();
    let set = |cache: &mut StatusCache, world: &World, force| cache.set(&world.pod, None, world.status(), force, at(1));
    assert_eq!(accepted(set(&mut cache, &world, false)).version, 1);
    assert_eq!(set(&mut cache, &world, false), SetOutcome::Unchanged);
    assert_eq!(accepted(set(&mut cache, &world, true)).version, 2);
    let world = world.runs([running("a", 0)]);
    assert_eq!(accepted(set(&mut cache, &world, false)).version, 3);
    assert_eq!(cache.unwritten().collect::<Vec<_>>(), [(world.pod.uid(), 3)], "the last version has to be written");
}

#[test]
fn a_pod_that_is_deleted_is_always_written() {
    let deleting = World::new(pod(json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}})));
    let mut cache = StatusCache::default();
    for version in 1..=3 {
        assert_eq!(accepted(cache.set(&deleting.pod, None, deleting.status(), false, at(1))).version, version);
    }
}

#[test]
fn foreign_conditions_and_condition_order_are_no_status_change() {
    let world = never();
    let mut cache = StatusCache::default();
    let mut status = world.status();
    accepted(cache.set(&world.pod, None, status.clone(), false, at(1)));
    let conditions = status.conditions.as_mut().unwrap();
    conditions.reverse();
    conditions.push(serde_json::from_value(json!({"type": "example.com/x", "status": "True"})).unwrap());
    assert_eq!(cache.set(&world.pod, None, status, false, at(2)), SetOutcome::Unchanged);
}

#[test]
fn the_start_time_never_changes() {
    let mut world = never();
    world.runtime.sandboxes.clear();
    let mut cache = StatusCache::default();
    accepted(cache.set(&world.pod, None, world.status(), false, at(1)));
    let world = world.runs([running("a", 0)]);
    let moved = PodStatus { start_time: Some(at(50).to_api()), ..world.status() };
    accepted(cache.set(&world.pod, None, moved, false, at(60)));
    assert_eq!(cache.get(world.pod.uid()).unwrap().start_time, Some(at(1).to_api()));

    let mut cache = StatusCache::default();
    let mirror = PodStatus { start_time: Some(at(0).to_api()), ..PodStatus::default() };
    accepted(cache.set(&world.pod, Some(&mirror), world.status(), false, at(60)));
    assert_eq!(cache.get(world.pod.uid()).unwrap().start_time, Some(at(0).to_api()), "that of the mirror holds");
}

#[test]
fn a_container_that_ended_for_good_does_not_come_back() {
    let rule = json!({"action": "Restart", "exitCodes": {"operator": "In", "values": [42]}});
    for (policy, container, code, allowed) in [
        ("Never", json!({"name": "a"}), 0, false),
        ("Never", json!({"name": "a"}), 1, false),
        ("OnFailure", json!({"name": "a"}), 0, false),
        ("OnFailure", json!({"name": "a"}), 1, true),
        ("Always", json!({"name": "a"}), 0, true),
        ("Never", json!({"name": "a", "restartPolicy": "Always"}), 0, true),
        ("Never", json!({"name": "a", "restartPolicyRules": [rule]}), 42, true),
        ("Never", json!({"name": "a", "restartPolicyRules": [rule]}), 1, false),
    ] {
        let world = || World::new(pod_with(policy, json!([]), json!([container])));
        let mut cache = StatusCache::default();
        let ended = world().runs([exited("a", 0, code)]);
        accepted(cache.set(&ended.pod, None, ended.status(), false, at(1)));
        let kept = cache.get(ended.pod.uid()).unwrap();
        let outcome = cache.set(&ended.pod, None, world().runs([running("a", 1)]).status(), false, at(2));
        if allowed {
            accepted(outcome);
        } else {
            let refused = IllegalRestart { container: "a".into() };
            let text = "container \"a\" had ended for good, and the new status shows it as waiting or running";
            assert_eq!(refused.to_string(), text);
            assert_eq!(outcome, SetOutcome::Refused(refused), "{policy} {code}");
            assert_eq!(cache.get(ended.pod.uid()).unwrap(), kept, "the refused status is not stored");
        }
    }
}

#[test]
fn a_container_that_was_stopped_for_a_resize_comes_back() {
    let world = || World::new(pod_with("OnFailure", json!([]), json!([{"name": "a"}])));
    let mut cache = StatusCache::default();
    let stopped = world().runs([stopped_for_resize("a", 0)]);
    accepted(cache.set(&stopped.pod, None, stopped.status(), false, at(1)));
    accepted(cache.set(&stopped.pod, None, world().runs([running("a", 1)]).status(), false, at(2)));
}

// After a shutdown or a restart of the machine, the mirror pod has a status of the pod's earlier life.
#[test]
fn status_of_a_static_pod_that_runs_anew_is_not_held_back_by_its_mirror_pod() {
    let world = || {
        let annotations = json!({"kubernetes.io/config.source": "file"});
        World::new(pod(json!({"metadata": {"annotations": annotations}, "spec": {"restartPolicy": "Never"}})))
    };
    for (phase, start) in [("Failed", 0), ("Running", 5)] {
        let mut cache = StatusCache::default();
        let ended = world().runs([exited("a", 0, 1)]);
        accepted(cache.set(&ended.pod, None, ended.status(), false, at(1)));
        let mut mirror = PodStatus::clone(&cache.get(ended.pod.uid()).unwrap());
        mirror.phase = Some(phase.into());
        mirror.start_time = Some(at(5).to_api());
        cache.forget(ended.pod.uid());
        let again = world().runs([running("a", 0)]);
        accepted(cache.set(&again.pod, Some(&mirror), again.status(), false, at(9)));
        assert_eq!(cache.get(again.pod.uid()).unwrap().start_time, Some(at(start).to_api()), "{phase}");
    }
}

#[test]
fn init_containers_come_back_only_where_the_pod_may_start_again() {
    let plain = json!({"name": "i"});
    let sidecar = json!({"name": "i", "restartPolicy": "Always"});
    for (policy, init, regular, allowed) in [
        ("Always", &plain, json!({"name": "a"}), true),
        // Its sandbox may be lost before the regular containers have done their work.
        ("OnFailure", &plain, json!({"name": "a"}), true),
        ("Never", &plain, json!({"name": "a"}), false),
        ("Never", &plain, json!({"name": "a", "restartPolicy": "OnFailure"}), true),
        ("Never", &sidecar, json!({"name": "a"}), true),
    ] {
        let world = || World::new(pod_with(policy, json!([init]), json!([regular])));
        let ended = world().runs([exited("i", 0, 0)]);
        let mut cache = StatusCache::default();
        accepted(cache.set(&ended.pod, None, ended.status(), false, at(1)));
        let outcome = cache.set(&ended.pod, None, world().runs([running("i", 1)]).status(), false, at(2));
        assert_eq!(matches!(outcome, SetOutcome::Accepted(_)), allowed, "{policy} {init} {regular}");
    }
}

#[test]
fn each_end_is_told_once() {
    let world = |runs: Vec<_>| World::new(pod(json!({}))).runs(runs);
    let mut cache = StatusCache::default();
    let mut set = |runs| {
        let world = world(runs);
        match cache.set(&world.pod, None, world.status(), false, at(1)) {
            SetOutcome::Accepted(change) => change.terminated,
            other => panic!("{other:?}"),
        }
    };
    let end = |exit_code, reason: &str| TerminatedContainer {
        kind: ContainerKind::Regular,
        name: "a".into(),
        exit_code,
        reason: reason.into(),
    };
    assert_eq!(set(vec![running("a", 0)]), []);
    assert_eq!(set(vec![exited("a", 0, 1)]), [end(1, "Error")]);
    assert_eq!(set(vec![running("a", 1), exited("a", 0, 1)]), []);
    // The container exited and restarted between two observations.
    assert_eq!(set(vec![running("a", 2), exited("a", 1, 0)]), [end(0, "Completed")]);
}

#[test]
fn container_exits_in_the_api_servers_status_are_not_reported_again() {
    let world = never().runs([exited("a", 0, 1)]);
    let api = serde_json::to_value(world.status()).unwrap();
    let restarted = pod(json!({"spec": {"restartPolicy": "Never"}, "status": api}));
    let mut cache = StatusCache::default();
    assert_eq!(accepted(cache.set(&restarted, None, world.status(), false, at(1))).terminated, []);
}

// POD-W15
#[test]
fn a_change_to_running_is_reported_once() {
    let mut cache = StatusCache::default();
    let mut set = |world: &World| accepted(cache.set(&world.pod, None, world.status(), false, at(1))).became_running;
    let world = || World::new(pod(json!({})));
    assert!(!set(&world()));
    assert!(set(&world().runs([running("a", 0)])));
    assert!(!set(&world()), "it falls back to Pending");
    assert!(!set(&world().runs([running("a", 1)])));
}

// POD-W16
#[test]
fn the_age_of_a_status_change_ends_with_its_write() {
    let world = never();
    let uid = world.pod.uid();
    let mut cache = StatusCache::default();
    let set = |cache: &mut StatusCache, runs, seconds| {
        let world = never().runs(runs);
        accepted(cache.set(&world.pod, None, world.status(), false, at(seconds))).version
    };
    set(&mut cache, vec![], 0);
    let version = set(&mut cache, vec![running("a", 0)], 3);
    assert_eq!(cache.written(uid, version, at(10)), Some(Duration::from_secs(10)));
    assert_eq!(cache.unwritten().count(), 0);
    assert_eq!(cache.written(uid, version, at(11)), None, "nothing was left to write");
    let version = set(&mut cache, vec![exited("a", 0, 0)], 100);
    assert_eq!(cache.written(uid, version, at(101)), Some(Duration::from_secs(1)));
    assert_eq!(cache.written(&PodUid::new("other"), 1, at(1)), None);

    // The status changes again while it is written.
    let mut cache = StatusCache::default();
    let taken = set(&mut cache, vec![], 200);
    cache.begin_write(uid);
    let version = set(&mut cache, vec![running("a", 0)], 203);
    assert_eq!(cache.written(uid, taken, at(210)), Some(Duration::from_secs(10)));
    cache.begin_write(uid);
    assert_eq!(cache.written(uid, version, at(212)), Some(Duration::from_secs(9)), "it waited since its change");
}

// POD-W24
#[test]
fn a_probe_result_changes_both_ready_conditions_at_once() {
    let probe = json!({"exec": {"command": ["x"]}});
    let world = World::new(pod(json!({"spec": {"containers": [{"name": "a", "readinessProbe": probe}]}})))
        .runs([running("a", 0)]);
    let mut cache = StatusCache::default();
    assert_eq!(cache.set_ready(&world.pod, &"a-0".into(), true, at(1)), SetOutcome::Unchanged, "unknown pod");
    accepted(cache.set(&world.pod, None, world.status(), false, at(1)));
    assert_eq!(cache.set_ready(&world.pod, &"a-9".into(), true, at(2)), SetOutcome::Unchanged, "unknown run");
    assert_eq!(cache.set_ready(&world.pod, &"a-0".into(), false, at(2)), SetOutcome::Unchanged, "no news");

    accepted(cache.set_ready(&world.pod, &"a-0".into(), true, at(3)));
    let status = cache.get(world.pod.uid()).unwrap();
    assert!(container(&status, "a").ready);
    assert_eq!((condition(&status, "Ready"), condition(&status, "ContainersReady")), ("True".into(), "True".into()));
    accepted(cache.set_ready(&world.pod, &"a-0".into(), false, at(4)));
    let status = cache.get(world.pod.uid()).unwrap();
    assert_eq!(condition(&status, "Ready"), "False ContainersNotReady");

    accepted(cache.set_started(&world.pod, &"a-0".into(), false, at(5)));
    assert_eq!(container(&cache.get(world.pod.uid()).unwrap(), "a").started, Some(false));
}

#[test]
fn a_probe_result_of_a_run_that_has_ended_is_ignored() {
    let probe = json!({"exec": {"command": ["x"]}});
    let world = World::new(pod(json!({"spec": {"containers": [{"name": "a", "readinessProbe": probe}]}})))
        .runs([exited("a", 0, 1)]);
    let mut cache = StatusCache::default();
    accepted(cache.set(&world.pod, None, world.status(), false, at(1)));
    assert_eq!(cache.set_ready(&world.pod, &"a-0".into(), true, at(2)), SetOutcome::Unchanged);
    assert_eq!(cache.set_started(&world.pod, &"a-0".into(), true, at(2)), SetOutcome::Unchanged);
}

#[test]
fn a_ready_sandbox_is_reported_before_its_containers() {
    let mut world = never();
    world.runtime.sandboxes.clear();
    let mut cache = StatusCache::default();
    assert_eq!(cache.set_sandbox_ready(&world.pod, true, at(1)), SetOutcome::Unchanged);
    accepted(cache.set(&world.pod, None, world.status(), false, at(1)));
    accepted(cache.set_sandbox_ready(&world.pod, true, at(2)));
    assert_eq!(cache.set_sandbox_ready(&world.pod, true, at(3)), SetOutcome::Unchanged);
    let status = cache.get(world.pod.uid()).unwrap();
    assert_eq!(condition(&status, "PodReadyToStartContainers"), "True");
    assert_eq!(condition(&status, "Initialized"), "True", "the other conditions are unchanged");
}

#[test]
fn a_finished_pod_stays_finished_unless_it_is_static() {
    for (source, stays) in [("api", true), ("file", false)] {
        let world = World::new(pod(json!({"metadata": {"annotations": {"kubernetes.io/config.source": source}}})));
        let mut cache = StatusCache::default();
        accepted(cache.terminate(&world.pod, None, at(1)));
        assert!(cache.is_finished(world.pod.uid()));
        accepted(cache.set(&world.pod, None, world.status(), true, at(2)));
        assert_eq!(cache.is_finished(world.pod.uid()), stays, "{source}");
    }
}

#[test]
fn statuses_of_removed_pods_are_dropped() {
    let world = never();
    let mut cache = StatusCache::default();
    accepted(cache.set(&world.pod, None, world.status(), false, at(1)));
    cache.retain(|uid| uid == world.pod.uid());
    assert_eq!(cache.begin_write(world.pod.uid()).map(|kept| kept.version), Some(1));
    cache.forget(world.pod.uid());
    assert_eq!(cache.get(world.pod.uid()), None);
}

#[test]
fn statuses_are_stored_normalized() {
    let long = "ä".repeat(7000);
    let pod = pod(json!({"spec": {"restartPolicy": "Never", "containers": [{"name": "b"}, {"name": "a"}]}}));
    let mut ended = exited("a", 0, 1);
    ended.message = long;
    ended.finished_at = Some(at(3) + Duration::from_millis(700));
    let mut world = World::new(pod.clone()).runs([ended]);
    world.runtime.sandboxes[0].created_at = at(1) + Duration::from_millis(900);
    let mut cache = StatusCache::default();
    accepted(cache.set(&pod, None, world.status(), false, at(1) + Duration::from_millis(900)));
    let status = cache.get(pod.uid()).unwrap();
    let names: Vec<_> = status.container_statuses.iter().flatten().map(|c| c.name.as_str()).collect();
    assert_eq!(names, ["a", "b"]);
    let end = container(&status, "a").state.as_ref().unwrap().terminated.as_ref().unwrap();
    assert_eq!(end.message.as_ref().unwrap().len(), 6 * 1024, "half of 12 KiB");
    assert_eq!(end.finished_at, Some(at(3).to_api()));
    assert_eq!(status.start_time, Some(at(1).to_api()));
}
