use super::stop::{exec_hook, with_pre_stop};
use super::*;
use crate::probes::ProbeResult;

#[tokio::test(start_paused = true)]
async fn initialization_goes_step_by_step() {
    let world = World::new();
    let pod = pod("Never", vec![named("i"), with_policy("s", "Always")], vec![named("a")]);
    world.runtime.script("i", Script { ends: Some((secs(2), 0)), ..Script::default() });
    for _ in 0..5 {
        assert!(world.sync(&pod).await.error.is_none());
        tokio::time::sleep(secs(1)).await;
    }
    let calls = world.runtime.calls();
    let starts: Vec<_> = calls.iter().filter(|call| call.contains("start")).map(String::as_str).collect();
    assert_eq!(starts, ["0: start i", "2: start s", "3: start a"]);
    assert_eq!(world.attempts(), (1, 1));
    assert_eq!(world.metric("kubelet_started_containers_total{container_type=\"init_container\"}"), 2);
}

#[tokio::test(start_paused = true)]
async fn a_start_that_fails_does_not_stop_the_others() {
    let world = World::new();
    let pod = pod("Always", vec![with_policy("s", "Always"), with_policy("t", "Always")], vec![named("a"), named("b")]);
    world.settled(&pod).await;
    for id in ["s#0", "t#0", "a#0", "b#0"] {
        world.runtime.edit(id, |run| {
            run.state = crate::ports::ContainerState::Created;
            // Made from another definition, so that it is not what is wanted.
            run.spec_hash = 0;
        });
    }
    for call in ["create s", "create a"] {
        world.runtime.fail(call);
    }
    let result = world.sync(&pod).await;
    assert!(matches!(&result.error, Some(SyncError::Many(errors)) if errors.len() == 2), "{:?}", result.error);
    assert!(result.acted);
    assert_eq!(
        world.runtime.calls(),
        ["0: create s#1", "0: create t#1", "0: start t", "0: create a#1", "0: create b#1", "0: start b"]
    );
}

#[tokio::test(start_paused = true)]
async fn a_failed_init_container_holds_its_successors_back() {
    let world = World::new();
    let init = vec![named("i"), with_policy("s", "Always")];
    let pod = pod("Always", init, vec![named("a")]);
    world.runtime.fail("create i");
    let result = world.sync(&pod).await;
    assert!(result.error.unwrap().to_string().contains("CreateContainerError"));
    assert_eq!(world.runtime.calls(), ["0: sandbox 0", "0: create i#0"]);
}

#[tokio::test(start_paused = true)]
async fn a_failed_kill_ends_the_run() {
    let world = World::new();
    let pod = three("Always");
    world.settled(&pod).await;
    world.runtime.fail("stop a");
    world.runtime.edit("b#0", |run| run.state = crate::ports::ContainerState::Created);
    let probes = probes(&[("a#0", None, Some(ProbeResult::Failure))]);
    let result = world.sync_with(&pod, &CancellationToken::new(), &probes).await;
    assert!(result.error.unwrap().to_string().contains("stopping container a"));
    assert_eq!(world.runtime.calls(), ["0: stop a 30"]);
}

#[tokio::test(start_paused = true)]
async fn a_lost_sandbox_is_replaced_after_all_has_stopped() {
    let world = World::new();
    let pod = pod("Always", vec![named("i")], vec![named("a")]);
    world.runtime.script("i", Script { ends: Some((secs(0), 0)), ..Script::default() });
    world.runtime.script("a", Script { stops_in: Some(secs(3)), ..Script::default() });
    world.settled(&pod).await;
    world.runtime.end_sandbox();
    let result = world.sync(&pod).await;
    assert_eq!(result.sandbox_created, Some("s1".into()));
    assert_eq!(world.reasons(), ["SandboxChanged", "Killing", "Created", "Started"]);
    assert_eq!(
        world.runtime.calls(),
        ["0: stop a 30", "3: stop-sandbox s0", "3: remove i#0", "3: sandbox 1", "3: create i#1", "3: start i"]
    );
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_ended_is_stopped_and_nothing_started() {
    let world = World::new();
    let pod = pod("Never", vec![with_policy("s", "Always")], vec![named("a")]);
    world.runtime.script("a", Script { ends: Some((secs(1), 0)), ..Script::default() });
    world.settled(&pod).await;
    tokio::time::sleep(secs(1)).await;
    let result = world.sync(&pod).await;
    assert!(result.acted && result.error.is_none());
    assert_eq!(world.runtime.calls(), ["1: stop s 30", "1: stop-sandbox s0"]);
}

#[tokio::test(start_paused = true)]
async fn a_failed_sandbox_is_an_error_unless_the_pod_is_to_stop() {
    let world = World::new();
    let pod = three("Always");
    world.runtime.fail("sandbox");
    let cancel = CancellationToken::new();
    let probes = ProbeSnapshot::new();
    let result = world.sync_with(&pod, &cancel, &probes).await;
    assert!(result.error.unwrap().to_string().contains("it broke"));
    assert_eq!(world.metric("kubelet_started_pods_total"), 1);
    assert_eq!(world.metric("kubelet_started_pods_errors_total"), 1);
    assert_eq!(world.reasons(), ["FailedCreatePodSandBox"]);

    cancel.cancel();
    let result = world.sync_with(&pod, &cancel, &probes).await;
    assert!(matches!(result.error, Some(SyncError::Cancelled)));
    assert_eq!(world.metric("kubelet_started_pods_total"), 1);
    assert_eq!(world.metric("kubelet_started_pods_errors_total"), 1);
    assert_eq!(world.reasons(), ["FailedCreatePodSandBox"]);
    assert!(world.runtime.calls().iter().all(|call| call == "0: sandbox 0"));
}

#[tokio::test(start_paused = true)]
async fn a_new_sandbox_that_cannot_be_looked_at_is_told() {
    let world = World::new();
    world.runtime.fail("status");
    let result = world.sync(&three("Always")).await;
    assert!(result.error.unwrap().to_string().contains("it broke"));
    assert_eq!(world.reasons(), ["FailedPodSandBoxStatus"]);
}

#[tokio::test(start_paused = true)]
async fn of_an_init_containers_exited_runs_the_newest_stays() {
    let world = World::new();
    let pod = pod("OnFailure", vec![named("i")], vec![named("a")]);
    world.runtime.script("i", Script { ends: Some((secs(0), 1)), ..Script::default() });
    let _ = world.sync(&pod).await;
    let _ = world.sync(&pod).await;
    tokio::time::sleep(secs(10)).await;
    let result = world.sync(&pod).await;
    assert!(result.error.is_none());
    assert_eq!(
        world.runtime.calls()[3..],
        ["0: create i#1", "0: start i", "10: remove i#0", "10: create i#2", "10: start i"]
    );
}

#[tokio::test(start_paused = true)]
async fn the_last_exit_of_a_running_init_container_stays() {
    let world = World::new();
    let pod = pod("OnFailure", vec![named("i")], vec![named("a")]);
    world.runtime.script("i", Script { ends: Some((secs(1), 1)), ..Script::default() });
    let _ = world.sync(&pod).await;
    tokio::time::sleep(secs(1)).await;
    let _ = world.sync(&pod).await;
    let result = world.sync(&pod).await;
    assert!(!result.acted);
    assert!(world.runtime.calls().iter().all(|call| !call.contains("remove")));
}

fn restarting() -> Arc<PodObject> {
    let trigger = with_rule(with_policy("b", "Never"), &[42], "RestartAllContainers");
    // Its hook is not run: there is no grace.
    let other = with_pre_stop(named("a"), exec_hook());
    pod("Never", vec![named("i")], vec![other, trigger])
}

#[tokio::test(start_paused = true)]
async fn a_restart_of_all_removes_the_trigger_last_and_keeps_logs() {
    let world = World::new();
    let pod = restarting();
    world.runtime.script("i", Script { ends: Some((secs(0), 0)), ..Script::default() });
    world.runtime.script("a", Script { stops_in: None, ..Script::default() });
    world.runtime.script("b", Script { ends: Some((secs(1), 42)), ..Script::default() });
    world.settled(&pod).await;
    tokio::time::sleep(secs(1)).await;

    let result = world.sync(&pod).await;
    assert!(result.acted && result.error.is_none());
    assert_eq!(
        world.runtime.calls(),
        ["1: stop a 2", "3: remove a#0 keep", "3: remove i#0 keep", "3: remove b#0 keep"]
    );
    world.told.restarts_by_log.lock().extend(["i", "a", "b"].map(|name| (name.to_owned(), 1)));
    let _ = world.sync(&pod).await;
    let _ = world.sync(&pod).await;
    assert_eq!(
        world.runtime.calls(),
        ["3: create i#1", "3: start i", "3: create a#1", "3: start a", "3: create b#1", "3: start b"]
    );
}

#[tokio::test(start_paused = true)]
async fn a_restart_of_all_that_repeats_is_held_back() {
    let world = World::new();
    let pod = restarting();
    world.runtime.script("i", Script { ends: Some((secs(0), 0)), ..Script::default() });
    world.runtime.script("b", Script { ends: Some((secs(0), 42)), ..Script::default() });
    let mut waited = None;
    for _ in 0..8 {
        let result = world.sync(&pod).await;
        waited = waited.or(world.backoff(&result));
    }
    assert_eq!(waited, Some(10));
    assert_eq!(world.waiting(&pod), [("b".to_owned(), "CrashLoopBackOff")]);
}

#[tokio::test(start_paused = true)]
async fn what_is_known_of_a_pod_can_be_forgotten() {
    let world = World::new();
    let pod = three("Always");
    world.runtime.fail("create a");
    let _ = world.sync(&pod).await;
    assert!(!world.waiting(&pod).is_empty());
    world.manager.retain(|uid| uid != pod.uid());
    assert!(world.waiting(&pod).is_empty());
}
