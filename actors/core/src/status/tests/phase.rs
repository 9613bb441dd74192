use serde_json::json;

use crate::ports::{ContainerState, SandboxState};
use crate::status::fixtures::*;

fn two(policy: &str) -> World {
    World::new(pod_with(policy, json!([]), json!([{"name": "a"}, {"name": "b"}])))
}

// POD-S74
#[test]
fn the_phase_follows_the_regular_containers() {
    let created = run("b", 0, ContainerState::Created);
    let cases = [
        (two("Always").runs([running("a", 0)]), "Pending", "b never started"),
        (two("Always").runs([running("a", 0), created.clone()]), "Pending", "b waits"),
        (two("Always").runs([running("a", 0), exited("b", 0, 1)]).error("b", "CrashLoopBackOff"), "Running", "b again"),
        (two("Always").runs([running("a", 0), running("b", 0)]), "Running", "both run"),
        (two("Always").runs([exited("a", 0, 0), exited("b", 0, 1)]), "Running", "both restart"),
        (two("Always").runs([exited("a", 0, 0), exited("b", 0, 1)]).terminal(), "Failed", "ended for good"),
        (two("Always").runs([exited("a", 0, 0), exited("b", 0, 0)]).terminal(), "Succeeded", "succeeded for good"),
        (two("Never").runs([exited("a", 0, 0), running("b", 0)]), "Running", "one left"),
        (two("Never").runs([exited("a", 0, 0), exited("b", 0, 0)]), "Succeeded", "all succeeded"),
        (two("Never").runs([exited("a", 0, 0), exited("b", 0, 1)]), "Failed", "one failed"),
        (two("OnFailure").runs([exited("a", 0, 0), exited("b", 0, 1)]), "Running", "the failed one restarts"),
        (two("OnFailure").runs([exited("a", 0, 0), exited("b", 0, 0)]), "Succeeded", "nothing to restart"),
        (two("Never"), "Pending", "nothing ran"),
    ];
    for (world, phase, why) in cases {
        assert_eq!(phase_of(&world.status()), phase, "{why}");
    }
}

#[test]
fn policies_and_rules_of_a_container_count_for_the_phase() {
    let always = json!([{"name": "a", "restartPolicy": "Always"}]);
    let rule = |action: &str| {
        json!([{"name": "a", "restartPolicy": "Never", "restartPolicyRules": [
            {"action": action, "exitCodes": {"operator": "In", "values": [42]}}]}])
    };
    for (containers, code, phase) in [
        (always, 0, "Running"),
        (rule("Restart"), 42, "Running"),
        (rule("Restart"), 1, "Failed"),
        (rule("RestartAllContainers"), 42, "Running"),
    ] {
        let world = World::new(pod_with("Never", json!([]), containers)).runs([exited("a", 0, code)]);
        assert_eq!(phase_of(&world.status()), phase, "exit {code}");
    }
}

// The container is replaced because its definition or its resources changed, and the agent died meanwhile.
#[test]
fn a_new_run_that_has_not_started_keeps_the_pod_alive() {
    let replaced = |policy: &str, own: &str| {
        let containers = json!([{"name": "a", "restartPolicy": own}]);
        let created = run("a", 1, ContainerState::Created);
        World::new(pod_with(policy, json!([]), containers)).runs([created, exited("a", 0, 137)])
    };
    for (policy, own) in [("Never", "Never"), ("Always", "Never")] {
        assert_eq!(phase_of(&replaced(policy, own).status()), "Running", "{policy}, {own}");

        let mut stopping = replaced(policy, own);
        stopping.termination_requested = true;
        assert_eq!(phase_of(&stopping.status()), "Failed", "{policy}, {own}: nothing starts any more");

        let mut lost = replaced(policy, own);
        lost.runtime.sandboxes[0].state = SandboxState::NotReady;
        assert_eq!(phase_of(&lost.status()), "Failed", "{policy}, {own}: the run cannot start without its sandbox");
    }
}

// The agent stopped the container for a resize and died before the next run started, or the next run cannot start.
#[test]
fn a_container_that_was_stopped_for_a_resize_has_not_ended() {
    for (policy, code) in [("OnFailure", 0), ("Never", 0), ("Never", 143)] {
        let world = || two(policy).runs([stopped_for_resize("a", code), exited("b", 0, 0)]);
        assert_eq!(phase_of(&world().status()), "Running", "{policy}, {code}");
        assert_eq!(phase_of(&world().error("a", "ImagePullBackOff").status()), "Running", "{policy}, {code}");
        let ended = if code == 0 { "Succeeded" } else { "Failed" };
        assert_eq!(phase_of(&world().terminal().status()), ended, "{policy}, {code}: the pod has stopped");
    }
    for (policy, code) in [("Always", 0), ("Never", 143)] {
        let pod = pod_with(policy, json!([{"name": "i"}]), json!([{"name": "a"}]));
        let world = || World::new(pod.clone()).runs([stopped_for_resize("i", code)]);
        assert_eq!(phase_of(&world().status()), "Pending", "{policy}");
        assert_eq!(condition(&world().status(), "Initialized"), "False ContainersNotInitialized", "{policy}");
        assert_eq!(phase_of(&world().error("i", "ImagePullBackOff").status()), "Pending", "{policy}");
    }
}

#[test]
fn init_containers_decide_first() {
    let init = json!([{"name": "i"}]);
    let world = |policy| World::new(pod_with(policy, init.clone(), json!([{"name": "a"}])));
    for (world, phase) in [
        (world("Always"), "Pending"),
        (world("Always").runs([running("i", 0)]), "Pending"),
        (world("Always").runs([exited("i", 0, 1)]), "Pending"),
        (world("Always").runs([exited("i", 0, 1)]).error("i", "CrashLoopBackOff"), "Pending"),
        (world("Never").runs([exited("i", 0, 1)]), "Failed"),
        (world("Never").runs([exited("i", 0, 0)]), "Pending"),
        (world("Never").runs([exited("i", 0, 0), running("a", 0)]), "Running"),
    ] {
        assert_eq!(phase_of(&world.status()), phase, "{:?}", world.runtime.containers);
    }
}

// POD-S75
#[test]
fn sidecars_keep_a_pod_running_but_never_fail_it() {
    let sidecar = json!([{"name": "s", "restartPolicy": "Always",
        "startupProbe": {"exec": {"command": ["x"]}}}]);
    let world = || World::new(pod_with("Never", sidecar.clone(), json!([{"name": "a"}])));
    for (world, phase, why) in [
        (world().runs([running("s", 0), exited("a", 0, 0)]), "Running", "the sidecar runs"),
        (world().runs([exited("s", 0, 1), exited("a", 0, 0)]), "Succeeded", "its end does not count"),
        (world().runs([running("s", 0)]), "Pending", "not started, nothing ran"),
        (world().runs([running("s", 1), running("a", 0)]), "Running", "it restarts beside a pod that ran"),
    ] {
        assert_eq!(phase_of(&world.status()), phase, "{why}");
    }
}

#[test]
fn static_pods_do_not_end_by_the_terminal_flag() {
    let pod = pod(json!({"metadata": {"annotations": {"kubernetes.io/config.source": "file"}}}));
    assert_eq!(phase_of(&World::new(pod).runs([exited("a", 0, 1)]).terminal().status()), "Running");
}

// POD-S87: the phase of a deleted pod after its stop.
#[test]
fn the_exit_code_decides_how_a_stopped_pod_ended() {
    for (code, phase) in [(0, "Succeeded"), (137, "Failed")] {
        let pod = pod(json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}));
        assert_eq!(phase_of(&World::new(pod).runs([exited("a", 0, code)]).terminal().status()), phase);
    }
}
