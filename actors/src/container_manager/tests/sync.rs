use k8s_openapi::api::core::v1::{PodExtendedResourceClaimStatus, PodResourceClaim, PodStatus};

use super::stop::{exec_hook, with_pre_stop};
use super::*;
use crate::probes::ProbeResult;
use crate::text::error_chain;

#[tokio::test(start_paused = true)]
async fn init_containers_run_step_by_step() {
    let rig = Rig::new();
    let pod = pod("Never", vec![named("i"), with_policy("s", "Always")], vec![named("a")]);
    rig.runtime.script("i", Script { ends: Some((secs(2), 0)), ..Script::default() });
    for _ in 0..5 {
        assert!(rig.sync(&pod).await.error.is_none());
        tokio::time::sleep(secs(1)).await;
    }
    let calls = rig.runtime.calls();
    let starts: Vec<_> = calls.iter().filter(|call| call.contains("start")).map(String::as_str).collect();
    assert_eq!(starts, ["0: start i", "2: start s", "3: start a"]);
    assert_eq!(rig.attempts(), (1, 1));
    assert_eq!(rig.metric("kubelet_started_containers_total{container_type=\"init_container\"}"), 2);
}

// An agent without the feature `dra`, or a library whose user gives it no port for resources.
#[tokio::test(start_paused = true)]
async fn pod_with_claims_does_not_start_without_support_for_them() {
    let rig = Rig::new();
    let plain = pod("Always", vec![], vec![named("a")]);
    let mut object = plain.pod().clone();
    let claim = PodResourceClaim { name: "gpu".into(), ..PodResourceClaim::default() };
    object.spec.as_mut().unwrap().resource_claims = Some(vec![claim]);
    let of_spec = PodObject::new(object).unwrap();
    let extended = Some(PodExtendedResourceClaimStatus::default());
    let extended = plain.with_status(PodStatus { extended_resource_claim_status: extended, ..PodStatus::default() });
    let refused = async |pod: &Arc<PodObject>| {
        let error = rig.sync(pod).await.error.expect("it does not start");
        assert!(error_chain(&error).to_string().contains("supports DRA drivers"), "{error:?}");
        assert_eq!(rig.runtime.calls(), [""; 0]);
        assert_eq!(rig.reasons(), ["FailedPrepareDynamicResources"]);
        rig.fakes.events.lock().clear();
    };
    refused(&of_spec).await;
    refused(&extended).await;

    // An agent with support for claims has left a sandbox in which no container has run.
    rig.runtime.fail("create a");
    assert!(rig.sync(&plain).await.error.is_some());
    rig.runtime.calls();
    rig.fakes.events.lock().clear();
    refused(&of_spec).await;
}

#[tokio::test(start_paused = true)]
async fn a_failed_start_does_not_keep_other_containers_from_starting() {
    let rig = Rig::new();
    let pod = pod("Always", vec![with_policy("s", "Always"), with_policy("t", "Always")], vec![named("a"), named("b")]);
    rig.settled(&pod).await;
    for id in ["s#0", "t#0", "a#0", "b#0"] {
        rig.runtime.edit(id, |run| {
            run.state = crate::ports::ContainerState::Created;
            // The run has another definition.
            run.spec_hash = 0;
        });
    }
    for call in ["create s", "create a"] {
        rig.runtime.fail(call);
    }
    let result = rig.sync(&pod).await;
    assert!(matches!(&result.error, Some(SyncError::Many(errors)) if errors.len() == 2), "{:?}", result.error);
    assert!(result.acted);
    assert_eq!(
        rig.runtime.calls(),
        ["0: create s#1", "0: create t#1", "0: start t", "0: create a#1", "0: create b#1", "0: start b"]
    );
}

#[tokio::test(start_paused = true)]
async fn a_failed_init_container_holds_back_the_next_ones() {
    let rig = Rig::new();
    let init = vec![named("i"), with_policy("s", "Always")];
    let pod = pod("Always", init, vec![named("a")]);
    rig.runtime.fail("create i");
    let result = rig.sync(&pod).await;
    assert!(result.error.unwrap().to_string().contains("CreateContainerError"));
    assert_eq!(rig.runtime.calls(), ["0: sandbox 0", "0: create i#0"]);
}

#[tokio::test(start_paused = true)]
async fn a_failed_kill_ends_the_sync() {
    let rig = Rig::new();
    let pod = three("Always");
    rig.settled(&pod).await;
    rig.runtime.fail("stop a");
    rig.runtime.edit("b#0", |run| run.state = crate::ports::ContainerState::Created);
    let probes = probes(&[("a#0", None, Some(ProbeResult::Failure))]);
    let result = rig.sync_with(&pod, &CancellationToken::new(), &probes).await;
    assert!(result.error.unwrap().to_string().contains("failed to \"KillContainer\" for \"a\""));
    assert_eq!(rig.runtime.calls(), ["0: stop a 30"]);
}

#[tokio::test(start_paused = true)]
async fn a_lost_sandbox_is_replaced_after_all_containers_stopped() {
    let rig = Rig::new();
    let pod = pod("Always", vec![named("i")], vec![named("a")]);
    rig.runtime.script("i", Script { ends: Some((secs(0), 0)), ..Script::default() });
    rig.runtime.script("a", Script { stops_in: Some(secs(3)), ..Script::default() });
    rig.settled(&pod).await;
    rig.runtime.end_sandbox();
    let result = rig.sync(&pod).await;
    assert_eq!(result.sandbox_created, Some("s1".into()));
    assert_eq!(rig.reasons(), ["SandboxChanged", "Killing", "Created", "Started"]);
    assert_eq!(
        rig.runtime.calls(),
        ["0: stop a 30", "3: stop-sandbox s0", "3: remove i#0", "3: sandbox 1", "3: create i#1", "3: start i"]
    );
}

#[tokio::test(start_paused = true)]
async fn an_ended_pod_is_stopped_and_starts_nothing() {
    let rig = Rig::new();
    let pod = pod("Never", vec![with_policy("s", "Always")], vec![named("a")]);
    rig.runtime.script("a", Script { ends: Some((secs(1), 0)), ..Script::default() });
    rig.settled(&pod).await;
    tokio::time::sleep(secs(1)).await;
    let result = rig.sync(&pod).await;
    assert!(result.acted && result.error.is_none());
    assert_eq!(rig.runtime.calls(), ["1: stop s 30", "1: stop-sandbox s0"]);
}

#[tokio::test(start_paused = true)]
async fn a_failed_sandbox_is_an_error_unless_the_pod_stops() {
    let rig = Rig::new();
    let pod = three("Always");
    rig.runtime.fail("sandbox");
    let cancel = CancellationToken::new();
    let probes = ProbeSnapshot::new();
    let result = rig.sync_with(&pod, &cancel, &probes).await;
    assert!(error_chain(&result.error.unwrap()).to_string().contains("it broke"));
    assert_eq!(rig.metric("kubelet_started_pods_total"), 1);
    assert_eq!(rig.metric("kubelet_started_pods_errors_total"), 1);
    assert_eq!(rig.reasons(), ["FailedCreatePodSandBox"]);

    cancel.cancel();
    let result = rig.sync_with(&pod, &cancel, &probes).await;
    assert!(matches!(result.error, Some(SyncError::Cancelled)));
    assert_eq!(rig.metric("kubelet_started_pods_total"), 1);
    assert_eq!(rig.metric("kubelet_started_pods_errors_total"), 1);
    assert_eq!(rig.reasons(), ["FailedCreatePodSandBox"]);
    assert!(rig.runtime.calls().iter().all(|call| call == "0: sandbox 0"));
}

#[tokio::test(start_paused = true)]
async fn an_unreadable_new_sandbox_is_an_event() {
    let rig = Rig::new();
    rig.runtime.fail("status");
    let result = rig.sync(&three("Always")).await;
    assert!(error_chain(&result.error.unwrap()).to_string().contains("it broke"));
    assert_eq!(rig.reasons(), ["FailedPodSandBoxStatus"]);
}

#[tokio::test(start_paused = true)]
async fn the_newest_exited_run_of_an_init_container_is_kept() {
    let rig = Rig::new();
    let pod = pod("OnFailure", vec![named("i")], vec![named("a")]);
    rig.runtime.script("i", Script { ends: Some((secs(0), 1)), ..Script::default() });
    let _ = rig.sync(&pod).await;
    let _ = rig.sync(&pod).await;
    tokio::time::sleep(secs(10)).await;
    let result = rig.sync(&pod).await;
    assert!(result.error.is_none());
    assert_eq!(
        rig.runtime.calls()[3..],
        ["0: create i#1", "0: start i", "10: remove i#0", "10: create i#2", "10: start i"]
    );
}

#[tokio::test(start_paused = true)]
async fn the_last_exit_of_a_running_init_container_is_kept() {
    let rig = Rig::new();
    let pod = pod("OnFailure", vec![named("i")], vec![named("a")]);
    rig.runtime.script("i", Script { ends: Some((secs(1), 1)), ..Script::default() });
    let _ = rig.sync(&pod).await;
    tokio::time::sleep(secs(1)).await;
    let _ = rig.sync(&pod).await;
    let result = rig.sync(&pod).await;
    assert!(!result.acted);
    assert!(rig.runtime.calls().iter().all(|call| !call.contains("remove")));
}

fn restarting() -> Arc<PodObject> {
    let trigger = with_rule(with_policy("b", "Never"), &[42], "RestartAllContainers");
    // Its hook does not run, because there is no grace period.
    let other = with_pre_stop(named("a"), exec_hook());
    pod("Never", vec![named("i")], vec![other, trigger])
}

#[tokio::test(start_paused = true)]
async fn restart_all_removes_the_trigger_last_and_keeps_logs() {
    let rig = Rig::new();
    let pod = restarting();
    rig.runtime.script("i", Script { ends: Some((secs(0), 0)), ..Script::default() });
    rig.runtime.script("a", Script { stops_in: None, ..Script::default() });
    rig.runtime.script("b", Script { ends: Some((secs(1), 42)), ..Script::default() });
    rig.settled(&pod).await;
    tokio::time::sleep(secs(1)).await;

    let result = rig.sync(&pod).await;
    assert!(result.acted && result.error.is_none());
    assert_eq!(rig.runtime.calls(), ["1: stop a 2", "3: remove a#0 keep", "3: remove i#0 keep", "3: remove b#0 keep"]);
    rig.fakes.restarts_by_log.lock().extend(["i", "a", "b"].map(|name| (name.to_owned(), 1)));
    let _ = rig.sync(&pod).await;
    let _ = rig.sync(&pod).await;
    assert_eq!(
        rig.runtime.calls(),
        ["3: create i#1", "3: start i", "3: create a#1", "3: start a", "3: create b#1", "3: start b"]
    );
}

#[tokio::test(start_paused = true)]
async fn repeated_restart_all_waits_for_its_backoff() {
    let rig = Rig::new();
    let pod = restarting();
    rig.runtime.script("i", Script { ends: Some((secs(0), 0)), ..Script::default() });
    rig.runtime.script("b", Script { ends: Some((secs(0), 42)), ..Script::default() });
    let mut waited = None;
    for _ in 0..8 {
        let result = rig.sync(&pod).await;
        waited = waited.or(rig.backoff(&result));
    }
    assert_eq!(waited, Some(10));
    assert_eq!(rig.waiting(&pod), [("b".to_owned(), "CrashLoopBackOff")]);
}

#[tokio::test(start_paused = true)]
async fn the_managers_state_of_a_pod_can_be_forgotten() {
    let rig = Rig::new();
    let pod = three("Always");
    rig.runtime.fail("create a");
    let _ = rig.sync(&pod).await;
    assert!(!rig.waiting(&pod).is_empty());
    rig.manager.retain(|uid| uid != pod.uid());
    assert!(rig.waiting(&pod).is_empty());
}
