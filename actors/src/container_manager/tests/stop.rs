use k8s_openapi::api::core::v1::{Container, ExecAction, Lifecycle, LifecycleHandler, Probe, SleepAction};

use super::*;
use crate::containers::plan::{Kill, KillReason};
use crate::containers::restart::STOPPED_FOR_RESIZE;
use crate::ports::ContainerState;
use crate::ports::RuntimeError;
use crate::probes::ProbeResult;

pub(super) fn exec_hook() -> LifecycleHandler {
    let exec = ExecAction { command: Some(vec!["drain".into()]) };
    LifecycleHandler { exec: Some(exec), ..LifecycleHandler::default() }
}

pub(super) fn with_pre_stop(container: Container, handler: LifecycleHandler) -> Container {
    Container { lifecycle: Some(Lifecycle { pre_stop: Some(handler), ..Lifecycle::default() }), ..container }
}

fn draining() -> Arc<PodObject> {
    pod("Always", Vec::new(), vec![with_pre_stop(named("a"), exec_hook())])
}

// KF10, POD-S69
#[tokio::test(start_paused = true)]
async fn the_pre_stop_hook_uses_up_the_grace_period() {
    let table = [
        (Script { exec: (secs(7), 0), ..Script::default() }, ["7: stop a 23", "7: stop-sandbox s0"], false),
        (Script { exec: (secs(3) / 2, 0), ..Script::default() }, ["1: stop a 28.5", "1: stop-sandbox s0"], false),
        (Script { exec: (secs(99), 0), ..Script::default() }, ["30: stop a 2", "30: stop-sandbox s0"], false),
        (Script { exec: (secs(1), 3), ..Script::default() }, ["1: stop a 29", "1: stop-sandbox s0"], true),
    ];
    for (script, expected, failed) in table {
        let rig = Rig::new();
        rig.runtime.script("a", script);
        rig.settled(&draining()).await;
        rig.kill(&draining(), None).await.unwrap();
        assert_eq!(rig.runtime.calls(), [&["0: exec a drain"][..], &expected].concat());
        let events = if failed { &["Killing", "FailedPreStopHook"][..] } else { &["Killing"] };
        assert_eq!(rig.reasons(), events);
        // The command's output may contain secrets.
        assert_eq!(rig.event("FailedPreStopHook"), if failed { "PreStopHook failed" } else { "" });
    }
}

#[tokio::test(start_paused = true)]
async fn a_missing_pre_stop_command_is_an_event_and_the_stop_continues() {
    let rig = Rig::new();
    rig.settled(&draining()).await;
    rig.runtime.fail("exec a");
    rig.kill(&draining(), Some(10)).await.unwrap();
    assert_eq!(rig.runtime.calls(), ["0: exec a drain", "0: stop a 10", "0: stop-sandbox s0"]);
    assert_eq!(rig.reasons(), ["Killing", "FailedPreStopHook"]);
}

#[tokio::test(start_paused = true)]
async fn the_grace_period_cuts_a_sleep_hook_short() {
    let rig = Rig::new();
    let sleep = LifecycleHandler { sleep: Some(SleepAction { seconds: 5 }), ..LifecycleHandler::default() };
    let pod = pod("Always", Vec::new(), vec![with_pre_stop(named("a"), sleep)]);
    rig.settled(&pod).await;
    rig.kill(&pod, Some(3)).await.unwrap();
    assert_eq!(rig.runtime.calls(), ["3: stop a 2", "3: stop-sandbox s0"]);
    assert_eq!(rig.metric("kubelet_sleep_action_terminated_early_total"), 1);
}

fn sidecars() -> Arc<PodObject> {
    let init = ["s1", "s2", "s3"].map(|name| with_policy(name, "Always")).to_vec();
    pod("Always", init, vec![named("main")])
}

// POD-S70
#[tokio::test(start_paused = true)]
async fn sidecars_stop_last_and_in_reverse_order() {
    let rig = Rig::new();
    for (name, takes) in [("main", 4), ("s3", 3), ("s2", 2), ("s1", 1)] {
        rig.runtime.script(name, Script { stops_in: Some(secs(takes)), ..Script::default() });
    }
    rig.settled(&sidecars()).await;
    rig.kill(&sidecars(), None).await.unwrap();
    assert_eq!(
        rig.runtime.calls(),
        ["0: stop main 30", "4: stop s3 26", "7: stop s2 23", "9: stop s1 21", "10: stop-sandbox s0"]
    );
}

#[tokio::test(start_paused = true)]
async fn a_sidecar_waits_no_longer_than_its_grace_period() {
    let rig = Rig::new();
    rig.runtime.script("main", Script { stops_in: None, ..Script::default() });
    rig.settled(&sidecars()).await;
    rig.kill(&sidecars(), Some(5)).await.unwrap();
    let calls = rig.runtime.calls();
    assert_eq!(calls[0], "0: stop main 5");
    // The sidecars spend all their time waiting for the container that does not stop, so they get the shortest stop.
    assert!(calls[1..4].iter().all(|call| call.starts_with("5: stop s") && call.ends_with(" 2")), "{calls:?}");
}

// POD-W22
#[tokio::test(start_paused = true)]
async fn a_failed_stop_releases_the_sidecars_that_wait_for_it() {
    let rig = Rig::new();
    rig.settled(&sidecars()).await;
    rig.runtime.fail("stop main");
    let error = rig.kill(&sidecars(), None).await.unwrap_err();
    assert!(error.to_string().contains("failed to \"KillContainer\" for \"main\""), "{error}");
    assert_eq!(
        rig.runtime.calls(),
        ["0: stop main 30", "0: stop s3 30", "0: stop s2 30", "0: stop s1 30", "0: stop-sandbox s0"]
    );
}

#[tokio::test(start_paused = true)]
async fn a_container_that_does_not_exist_counts_as_stopped() {
    let rig = Rig::new();
    rig.settled(&sidecars()).await;
    rig.runtime.fail_with("stop main", RuntimeError::NotFound("main".into()));
    rig.runtime.fail_with("stop-sandbox", RuntimeError::NotFound("s0".into()));
    rig.kill(&sidecars(), None).await.unwrap();
}

// POD-S99
#[tokio::test(start_paused = true)]
async fn a_shorter_grace_period_applies_to_a_running_stop() {
    let rig = Rig::new();
    let pod = pod("Always", Vec::new(), vec![named("a")]);
    rig.runtime.script("a", Script { stops_in: None, ..Script::default() });
    rig.settled(&pod).await;
    let cancel = CancellationToken::new();
    let first = rig.kill_until(&pod, Some(600), &cancel);
    let lower = async {
        tokio::time::sleep(secs(4)).await;
        cancel.cancel();
    };
    let (first, ()) = tokio::join!(first, lower);
    assert!(matches!(first, Err(SyncError::Cancelled)));
    rig.kill(&pod, Some(5)).await.unwrap();
    assert_eq!(rig.runtime.calls(), ["0: stop a 600", "4: stop a 5", "9: stop-sandbox s0"]);
    assert_eq!(rig.reasons(), ["Killing"], "ports once");
}

// KF11, POD-S99
#[tokio::test(start_paused = true)]
async fn a_running_pre_stop_hook_continues_and_does_not_run_twice() {
    // (the duration of the hook) -> the stop after the grace period fell to 5 s at second 4
    for (takes, stop) in [(6, "6: stop a 3"), (60, "9: stop a 2")] {
        let rig = Rig::new();
        rig.runtime.script("a", Script { exec: (secs(takes), 0), ..Script::default() });
        rig.settled(&draining()).await;
        let cancel = CancellationToken::new();
        let pod = draining();
        let lower = async {
            tokio::time::sleep(secs(4)).await;
            cancel.cancel();
        };
        let (first, ()) = tokio::join!(rig.kill_until(&pod, Some(600), &cancel), lower);
        assert!(matches!(first, Err(SyncError::Cancelled)));
        rig.kill(&draining(), Some(5)).await.unwrap();
        assert_eq!(rig.runtime.calls()[..2], ["0: exec a drain", stop]);
    }
}

// POD-I5
#[tokio::test(start_paused = true)]
async fn a_second_stop_never_delays_the_kill() {
    // (the container that hangs, its script) -> the stop of the second call, with 20 s from second 25 on instead of 30
    let hook = Script { exec: (secs(60), 0), ..Script::default() };
    let endless = Script { stops_in: None, ..Script::default() };
    let init = vec![with_policy("side", "Always")];
    let both = pod("Always", init, vec![with_pre_stop(named("a"), exec_hook())]);
    for (script, stop) in [(hook, "30: stop a 2"), (endless, "25: stop a 5")] {
        let rig = Rig::new();
        rig.runtime.script("a", script);
        rig.settled(&both).await;
        let cancel = CancellationToken::new();
        let lower = async {
            tokio::time::sleep(secs(25)).await;
            cancel.cancel();
        };
        let (first, ()) = tokio::join!(rig.kill_until(&both, None, &cancel), lower);
        assert!(matches!(first, Err(SyncError::Cancelled)));
        rig.runtime.calls();
        let ports = async {
            tokio::time::sleep(secs(1)).await;
            rig.manager.activities().of(both.uid())
        };
        let (second, ports) = tokio::join!(rig.kill(&both, Some(20)), ports);
        second.unwrap();
        let calls = rig.runtime.calls();
        assert_eq!((calls[0].as_str(), calls[1].as_str()), (stop, "30: stop side 2"));
        let untils: Vec<u64> =
            ports.iter().map(|one| one.until.unwrap().since(Time::from_secs(2_000_000)).as_secs()).collect();
        assert_eq!(untils, [30, 30], "{ports:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_repeated_stop_does_not_repeat_hook_or_events() {
    let rig = Rig::new();
    rig.runtime.script("a", Script { exec: (secs(1), 3), ..Script::default() });
    rig.settled(&draining()).await;
    rig.runtime.fail("stop a");
    rig.runtime.fail("stop-sandbox");
    let error = rig.kill(&draining(), None).await.unwrap_err();
    assert!(matches!(error, SyncError::Many(errors) if errors.len() == 2));
    rig.runtime.heal();
    rig.kill(&draining(), None).await.unwrap();
    assert_eq!(
        rig.runtime.calls(),
        ["0: exec a drain", "1: stop a 29", "1: stop-sandbox s0", "1: stop a 30", "1: stop-sandbox s0"]
    );
    assert_eq!(rig.reasons(), ["Killing", "FailedPreStopHook"]);
}

#[tokio::test(start_paused = true)]
async fn a_pod_without_spec_is_stopped_without_hooks_or_order() {
    let rig = Rig::new();
    rig.settled(&sidecars()).await;
    let running = RunningParts::from(&rig.runtime.status());
    let uid = sidecars().uid().clone();
    rig.manager.kill_pod(&CancellationToken::new(), &uid, None, &running, Some(Grace::MIN)).await.unwrap();
    let calls = rig.runtime.calls();
    assert!(calls[..4].iter().all(|call| call.starts_with("0: stop ") && call.ends_with(" 2")), "{calls:?}");
    assert!(rig.reasons().is_empty());
}

// POD-S68
#[tokio::test(start_paused = true)]
async fn a_liveness_kill_uses_the_probes_grace_period_and_restarts() {
    let rig = Rig::new();
    let probe = Probe { termination_grace_period_seconds: Some(10), ..Probe::default() };
    let container = Container { liveness_probe: Some(probe), ..named("a") };
    let pod = pod("Always", Vec::new(), vec![container, named("b")]);
    rig.settled(&pod).await;
    let probes = probes(&[("a#0", None, Some(ProbeResult::Failure))]);
    let result = rig.sync_with(&pod, &CancellationToken::new(), &probes).await;
    assert!(result.error.is_none() && result.acted);
    assert_eq!(rig.runtime.calls(), ["0: stop a 10", "0: create a#1", "0: start a"]);
    assert_eq!(rig.reasons(), ["Killing", "Created", "Started"]);
}

/// Stops the containers of a status that the runtime reported before.
async fn kill_reported(rig: &Rig, pod: &Arc<PodObject>, reported: &PodRuntimeStatus) {
    let running = RunningParts::from(reported);
    rig.manager.kill_pod(&CancellationToken::new(), pod.uid(), Some(pod), &running, None).await.unwrap();
}

// KF24
#[tokio::test(start_paused = true)]
async fn container_that_was_stopped_often_before_the_first_check_is_reported_once() {
    let (rig, pod) = (Rig::new(), pod("Always", Vec::new(), vec![named("a")]));
    rig.settled(&pod).await;
    let reported = rig.runtime.status();
    for _ in 0..4 {
        kill_reported(&rig, &pod, &reported).await;
    }
    for _ in 0..2 {
        let error = rig.manager.check_stopped(pod.uid(), Some(&pod), &reported).await.unwrap_err().to_string();
        assert!(error.contains("but stops of the container succeeded: read the log"), "{error}");
        assert_eq!(rig.reasons().iter().filter(|reason| *reason == "RuntimeLied").count(), 1);
        kill_reported(&rig, &pod, &reported).await;
    }
}

// KF24
#[tokio::test(start_paused = true)]
async fn container_of_a_running_pod_that_runs_after_each_stop_is_reported_once() {
    let (rig, pod) = (Rig::new(), pod("Always", Vec::new(), vec![named("a")]));
    rig.settled(&pod).await;
    rig.runtime.edit("a#0", |run| run.state = ContainerState::Exited);
    rig.settled(&pod).await;
    // The runtime has missed the exit of the older run.
    let mut reported = rig.runtime.status();
    reported.containers.iter_mut().find(|run| run.id.as_str() == "a#0").unwrap().state = ContainerState::Running;
    let sync = async |status: &PodRuntimeStatus| {
        let (cancel, probes, volumes) = (CancellationToken::new(), ProbeSnapshot::new(), VolumeMounts::new());
        let work = SyncWork { cancel: &cancel, pod: &pod, status, probes: &probes, volumes: &volumes };
        let result = rig.manager.sync_containers(&work, &plan(&pod, status, &probes)).await;
        result.error.map(|error| error.to_string()).unwrap_or_default()
    };
    let mut errors = Vec::new();
    for _ in 0..5 {
        errors.push(sync(&reported).await);
    }
    assert_eq!(errors[..3], ["", "", ""], "one or two stops may end while the container is read");
    for error in &errors[3..] {
        assert!(error.contains("as running, but stops of the container succeeded: read the log"), "{error}");
    }
    assert_eq!(rig.reasons().iter().filter(|reason| *reason == "RuntimeLied").count(), 1);
    assert_eq!(sync(&rig.runtime.status()).await, "", "the runtime has found the exit");
}

// KF26
#[tokio::test(start_paused = true)]
async fn nothing_is_remembered_of_the_stops_of_a_pod_that_is_gone() {
    let (rig, pod) = (Rig::new(), pod("Always", Vec::new(), vec![named("a")]));
    rig.settled(&pod).await;
    let reported = rig.runtime.status();
    rig.runtime.fail("stop a");
    let kill = async || {
        let running = RunningParts::from(&reported);
        let _fails = rig.manager.kill_pod(&CancellationToken::new(), pod.uid(), Some(&pod), &running, None).await;
        rig.reasons().iter().filter(|reason| *reason == "Killing").count()
    };
    assert_eq!((kill().await, kill().await), (1, 1), "a stop that is repeated is not announced again");
    rig.manager.retain(|_| true);
    assert_eq!(kill().await, 1);
    rig.manager.retain(|uid| uid != pod.uid());
    assert_eq!(kill().await, 2);

    rig.runtime.heal();
    for _ in 0..3 {
        kill_reported(&rig, &pod, &reported).await;
    }
    rig.manager.retain(|uid| uid != pod.uid());
    let error = rig.manager.check_stopped(pod.uid(), Some(&pod), &reported).await.unwrap_err().to_string();
    assert!(error.contains("still runs although"), "{error}");
}

// Otherwise each restart of a container would need memory until its pod ends.
#[tokio::test(start_paused = true)]
async fn stops_of_a_container_are_forgotten_once_it_has_ended() {
    let (rig, pod) = (Rig::new(), pod("Always", Vec::new(), vec![named("a")]));
    rig.settled(&pod).await;
    let reported = rig.runtime.status();
    for _ in 0..2 {
        kill_reported(&rig, &pod, &reported).await;
    }
    let _ = rig.sync(&pod).await;
    kill_reported(&rig, &pod, &reported).await;
    let error = rig.manager.check_stopped(pod.uid(), Some(&pod), &reported).await.unwrap_err().to_string();
    assert!(error.contains("still runs although"), "only one stop is remembered: {error}");
}

// The exit code of the run may say that its work is complete.
#[tokio::test(start_paused = true)]
async fn next_agent_knows_which_run_is_stopped_for_a_resize_and_how_long_that_takes() {
    for (outlives, expected) in [(secs(59), STOPPED_FOR_RESIZE), (secs(60), "")] {
        let (rig, pod) = (Rig::new(), draining());
        rig.settled(&pod).await;
        let running = rig.runtime.status();
        let kill = Kill { id: running.containers[0].id.clone(), name: "a".into(), reason: KillReason::Resize };
        rig.manager.record_stops(&pod, &[&kill]).await.unwrap();
        let next = rig.manager.ports.run_facts.of_next_agent();
        next.observe(pod.uid(), Arc::new(running.clone()), rig.clock.now() + outlives);
        let mut ended = running;
        ended.containers[0].state = ContainerState::Exited;
        let ended = next.observe(pod.uid(), Arc::new(ended), rig.clock.now() + outlives);
        assert_eq!(ended.containers[0].reason, expected, "the grace period has 30 s: {outlives:?}");
    }
}

// As after a restart of the agent: the stop is in the file, and not in the memory of this agent.
#[tokio::test(start_paused = true)]
async fn stop_that_an_earlier_agent_began_goes_on_with_its_rest() {
    let rig = Rig::new();
    rig.runtime.script("a", Script { stops_in: None, ..Script::default() });
    let pod = draining();
    rig.settled(&pod).await;
    let run = rig.runtime.status().containers[0].id.clone();
    let facts = &rig.manager.ports.run_facts;
    facts.stops(pod.uid(), &run, rig.clock.now() + secs(9), secs(30));
    rig.runtime.fail("stop a");
    rig.kill(&pod, None).await.unwrap_err();
    assert_eq!(rig.runtime.calls(), ["0: exec a drain", "0: stop a 9", "0: stop-sandbox s0"]);
}

#[tokio::test(start_paused = true)]
async fn failed_stop_leaves_no_rest_to_the_next_agent() {
    let rig = Rig::new();
    rig.settled(&draining()).await;
    let run = rig.runtime.status().containers[0].id.clone();
    rig.runtime.fail("stop a");
    rig.kill(&draining(), None).await.unwrap_err();
    let facts = &rig.manager.ports.run_facts;
    assert_eq!(facts.rest_of_stop(draining().uid(), &run, rig.clock.now()), None);
}
