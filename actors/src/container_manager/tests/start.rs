use k8s_openapi::api::core::v1::{
    ConfigMapKeySelector, Container, ContainerPort, EnvVar, EnvVarSource, ExecAction, HTTPGetAction, HTTPHeader,
    Lifecycle, LifecycleHandler, PodStatus, TCPSocketAction,
};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use tokio::time::{sleep, timeout};

use super::*;
use crate::container_manager::activity::{Activity, Task};
use crate::container_manager::governor::StartKind;
use crate::ports::{ImageError, RuntimeError};

fn one() -> Arc<PodObject> {
    pod("Always", Vec::new(), vec![named("a")])
}

#[tokio::test(start_paused = true)]
async fn a_new_pod_gets_sandbox_and_containers_in_order() {
    let world = World::new();
    let pod = three("Always");
    world.statuses.set(&pod, None, PodStatus::default(), false);
    let result = world.sync(&pod).await;
    assert!(result.error.is_none() && result.acted);
    assert_eq!(result.sandbox_created, Some("s0".into()));
    assert_eq!(
        world.runtime.calls(),
        ["0: sandbox 0", "0: create a#0", "0: start a", "0: create b#0", "0: start b", "0: create c#0", "0: start c",]
    );
    let conditions = world.statuses.get(pod.uid()).and_then(|status| status.conditions.clone()).unwrap_or_default();
    let ready = conditions.iter().find(|condition| condition.type_ == "PodReadyToStartContainers");
    assert_eq!(ready.map(|condition| condition.status.as_str()), Some("True"));
    assert_eq!(world.attempts(), (1, 3));
    assert_eq!(world.reasons()[..2], ["Created", "Started"]);
    let idle = world.sync(&pod).await;
    assert!(!idle.acted && idle.error.is_none() && idle.sandbox_created.is_none());
}

// POD-S67
#[tokio::test(start_paused = true)]
async fn a_crash_loop_is_restarted_at_the_end_of_each_backoff() {
    let world = World::new();
    let pod = one();
    world.runtime.script("a", Script { ends: Some((secs(1), 1)), ..Script::default() });
    let mut starts = Vec::new();
    while starts.len() < 6 {
        let result = world.sync(&pod).await;
        let started = world.runtime.calls().iter().any(|call| call.contains("start"));
        if started {
            starts.push(world.clock.now().since(Time::from_secs(2_000_000)).as_secs());
            assert!(world.waiting(&pod).is_empty());
        }
        let Some(wait) = world.backoff(&result) else {
            assert!(result.error.is_none());
            tokio::time::sleep(secs(1)).await;
            continue;
        };
        assert!(!result.acted);
        assert_eq!(world.waiting(&pod), [("a".to_owned(), "CrashLoopBackOff")]);
        assert_eq!(world.reasons().last().map(|reason| &**reason), Some("BackOff"));
        tokio::time::sleep(secs(wait)).await;
    }
    // Each run takes a second; the waits between are 0, 10, 20, 40 and 80.
    assert_eq!(starts, [0, 1, 12, 33, 74, 155]);
    assert_eq!(world.runtime.status().containers[0].restart_count, 5);
    // Waiting is neither an attempt nor a failed one.
    assert_eq!(world.attempts(), (1, 6));
    assert!(!world.metrics.encode(Format::Classic).contains("kubelet_started_containers_errors_total{"));
}

#[tokio::test(start_paused = true)]
async fn image_failures_have_their_reasons() {
    let table = [
        (ImageError::Pull("gone".into()), "ErrImagePull", "Failed"),
        (ImageError::NeverPull(IMAGE.into()), "ErrImageNeverPull", "ErrImageNeverPull"),
        (ImageError::InvalidName(IMAGE.into()), "InvalidImageName", "InspectFailed"),
        (ImageError::Inspect("out of order".into()), "ImageInspectError", "InspectFailed"),
    ];
    for (error, reason, event) in table {
        let world = World::new();
        world.runtime.fail_image(IMAGE, error);
        let result = world.sync(&one()).await;
        assert!(result.error.as_ref().unwrap().to_string().contains(reason), "{result:?}");
        assert_eq!(world.backoff(&result), None);
        assert_eq!(world.waiting(&one()), [("a".to_owned(), reason)]);
        assert_eq!(world.reasons(), [event, "Failed"]);
        assert_eq!(world.told.events.lock()[1].message, format!("Error: {reason}"));
        assert_eq!(world.attempts(), (1, 1));
        let errors =
            format!("kubelet_started_containers_errors_total{{code=\"{reason}\",container_type=\"container\"}}");
        assert_eq!(world.metric(&errors), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_pull_that_fails_is_tried_again_after_growing_pauses() {
    let world = World::new();
    world.runtime.fail_image(IMAGE, ImageError::Pull("gone".into()));
    assert_eq!(world.backoff(&world.sync(&one()).await), None);
    let mut waits = Vec::new();
    for _ in 0..6 {
        let result = world.sync(&one()).await;
        assert_eq!(world.waiting(&one()), [("a".to_owned(), "ImagePullBackOff")]);
        assert_eq!(
            world.manager.start_errors().of(one().uid()).values().next().unwrap().message,
            format!("back-off pulling image {IMAGE:?}: gone")
        );
        let wait = world.backoff(&result).unwrap();
        waits.push(wait);
        sleep(secs(wait)).await;
        let _ = world.sync(&one()).await;
        assert_eq!(world.waiting(&one()), [("a".to_owned(), "ErrImagePull")]);
    }
    assert_eq!(waits, [10, 20, 40, 80, 160, 300]);
    // While it waits the registry is left alone; an image that came another way is used.
    let _ = world.sync(&one()).await;
    assert_eq!(world.waiting(&one()), [("a".to_owned(), "ImagePullBackOff")]);
    world.runtime.have_image(IMAGE);
    assert!(world.sync(&one()).await.error.is_none());
    assert!(world.waiting(&one()).is_empty());
    assert!(world.manager.pull_failures(one().uid()).is_empty());
}

// D10: a pod that is deleted while it waits for its turn leaves the line at once.
#[tokio::test(start_paused = true)]
async fn starts_wait_for_their_turn_until_they_are_cancelled() {
    let world = World::new();
    let limit = world.metric("podwright_start_limit");
    let held: Vec<_> = (0..limit).map(|_| world.manager.governor().ask(StartKind::Sandbox)).collect();
    let cancel = CancellationToken::new();
    let (one, probes) = (one(), ProbeSnapshot::new());
    let mut waiting = Box::pin(world.sync_with(&one, &cancel, &probes));
    assert!(timeout(Duration::from_secs(1), &mut waiting).await.is_err());
    let doing = world.manager.activities().of(one.uid());
    assert!(matches!(doing[..], [Activity { task: Task::AwaitTurn(StartKind::Sandbox, _), .. }]), "{doing:?}");
    cancel.cancel();
    let result = waiting.await;
    assert!(matches!(result.error, Some(SyncError::Cancelled)), "{result:?}");
    assert_eq!(world.metric("podwright_starts_waiting"), 0);
    assert_eq!(world.metric("podwright_start_limit"), limit);
    assert!(world.runtime.calls().is_empty());

    // The next one starts as soon as there is room.
    let mut waiting = Box::pin(world.sync(&one));
    assert!(timeout(Duration::from_secs(1), &mut waiting).await.is_err());
    drop(held);
    assert!(waiting.await.error.is_none());
    assert!(world.manager.activities().of(one.uid()).is_empty());
}

#[tokio::test(start_paused = true)]
async fn failures_of_each_step_have_their_reasons() {
    let config = RuntimeError::Config("no user".into());
    let failed = RuntimeError::Failed("it broke".into());
    let table = [
        (Some(("create a", config)), "CreateContainerConfigError"),
        (Some(("create a", failed.clone())), "CreateContainerError"),
        (Some(("start a", failed)), "RunContainerError"),
        (None, "CreateContainerConfigError"),
    ];
    for (failure, reason) in table {
        let world = World::new();
        let pod = if failure.is_some() { one() } else { unresolvable() };
        if let Some((call, error)) = failure {
            world.runtime.fail_with(call, error);
        }
        let result = world.sync(&pod).await;
        assert_eq!(result.error.as_ref().unwrap().retry(), SyncRetry::Backoff);
        assert_eq!(world.waiting(&one()), [("a".to_owned(), reason)]);
        assert_eq!(world.reasons().last().map(|reason| &**reason), Some("Failed"));
        // The next try that succeeds takes the reason away.
        world.runtime.heal();
        assert!(world.sync(&one()).await.error.is_none());
        assert!(world.waiting(&one()).is_empty());
    }
}

/// The pod of [`one`], with a variable that only an API server could resolve.
fn unresolvable() -> Arc<PodObject> {
    let source = EnvVarSource {
        config_map_key_ref: Some(ConfigMapKeySelector { name: "settings".into(), key: "k".into(), optional: None }),
        ..EnvVarSource::default()
    };
    let variable = EnvVar { name: "V".into(), value_from: Some(source), ..EnvVar::default() };
    pod("Always", Vec::new(), vec![Container { env: Some(vec![variable]), ..named("a") }])
}

fn with_post_start(handler: LifecycleHandler) -> Arc<PodObject> {
    let port = ContainerPort { name: Some("web".into()), container_port: 8080, ..ContainerPort::default() };
    pod(
        "Always",
        Vec::new(),
        vec![Container {
            lifecycle: Some(Lifecycle { post_start: Some(handler), ..Lifecycle::default() }),
            ports: Some(vec![port]),
            ..named("a")
        }],
    )
}

#[tokio::test(start_paused = true)]
async fn a_container_whose_post_start_hook_fails_is_stopped_again() {
    let world = World::new();
    let exec = ExecAction { command: Some(vec!["warm".into(), "up".into()]) };
    let pod = with_post_start(LifecycleHandler { exec: Some(exec), ..LifecycleHandler::default() });
    world.runtime.script("a", Script { exec: (secs(1), 9), ..Script::default() });
    let result = world.sync(&pod).await;
    assert!(result.error.unwrap().to_string().contains("PostStartHookError"));
    assert_eq!(
        world.runtime.calls(),
        ["0: sandbox 0", "0: create a#0", "0: start a", "0: exec a warm up", "1: stop a 30"]
    );
    assert_eq!(world.reasons(), ["Created", "Started", "Killing", "FailedPostStartHook"]);
    assert_eq!(world.waiting(&pod), [("a".to_owned(), "PostStartHookError")]);
}

fn timeout_of_start() -> RuntimeError {
    RuntimeError::Timeout { call: "start_container", after: secs(120) }
}

#[tokio::test(start_paused = true)]
async fn a_run_whose_start_was_not_answered_is_started_again_and_never_doubled() {
    let world = World::new();
    world.runtime.fail_with("start a", timeout_of_start());
    assert!(world.sync(&one()).await.error.is_some());
    assert_eq!(world.waiting(&one()), [("a".to_owned(), "RunContainerError")]);
    assert!(world.sync(&one()).await.error.is_some());
    world.runtime.heal();
    assert!(world.sync(&one()).await.error.is_none());
    assert_eq!(world.runtime.calls(), ["0: sandbox 0", "0: create a#0", "0: start a", "0: start a", "0: start a"]);
    assert_eq!(world.reasons().iter().filter(|reason| *reason == "Created").count(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_start_that_was_done_and_not_answered_goes_on_with_its_hook() {
    let world = World::new();
    let exec = ExecAction { command: Some(vec!["warm".into()]) };
    let pod = with_post_start(LifecycleHandler { exec: Some(exec), ..LifecycleHandler::default() });
    world.runtime.fail_with("answer to start a", timeout_of_start());
    assert!(world.sync(&pod).await.error.is_none());
    assert_eq!(world.runtime.calls(), ["0: sandbox 0", "0: create a#0", "0: start a", "0: exec a warm"]);
}

#[tokio::test(start_paused = true)]
async fn a_run_that_the_runtime_refuses_to_start_is_left_for_a_new_one() {
    let world = World::new();
    world.runtime.fail("start a");
    assert!(world.sync(&one()).await.error.is_some());
    world.runtime.heal();
    assert!(world.sync(&one()).await.error.is_none());
    let calls = world.runtime.calls();
    assert_eq!(calls, ["0: sandbox 0", "0: create a#0", "0: start a", "0: create a#1", "0: start a"]);
}

// The runtime goes on with what another agent asked it for, and refuses to do it twice.
#[tokio::test(start_paused = true)]
async fn a_start_that_somebody_else_began_is_waited_for() {
    let world = World::new();
    world.runtime.fail_with("start a", timeout_of_start());
    assert!(world.sync(&one()).await.error.is_some());
    world.runtime.heal();
    world.runtime.fail("start a");
    assert!(world.sync(&one()).await.error.is_some());
    let started = |run: &mut crate::ports::ContainerStatus| run.state = crate::ports::ContainerState::Running;
    world.runtime.edit("a#0", started);
    assert!(world.sync(&one()).await.error.is_none());
    assert_eq!(world.runtime.calls(), ["0: sandbox 0", "0: create a#0", "0: start a", "0: start a"]);

    // Not for ever.
    world.runtime.edit("a#0", |run| run.state = crate::ports::ContainerState::Created);
    assert!(world.sync(&one()).await.error.is_some());
    tokio::time::advance(secs(240)).await;
    assert!(world.sync(&one()).await.error.is_some());
    world.runtime.heal();
    assert!(world.sync(&one()).await.error.is_none());
    let calls = world.runtime.calls();
    assert_eq!(calls, ["0: start a", "240: start a", "240: create a#1", "240: start a"]);
}

#[tokio::test(start_paused = true)]
async fn network_hooks_go_to_the_pod_and_know_named_ports() {
    let http = |scheme: Option<&str>, host: Option<&str>, port| {
        let get = HTTPGetAction {
            scheme: scheme.map(Into::into),
            host: host.map(Into::into),
            path: Some("ready".into()),
            port,
            ..HTTPGetAction::default()
        };
        LifecycleHandler { http_get: Some(get), ..LifecycleHandler::default() }
    };
    let tcp = TCPSocketAction { host: None, port: IntOrString::Int(9000) };
    let table = [
        (http(None, None, IntOrString::String("web".into())), Some("http://10.0.0.7:8080/ready")),
        (http(Some("HTTPS"), Some("h"), IntOrString::Int(1)), Some("https://h:1/ready")),
        (http(None, None, IntOrString::String("81".into())), Some("http://10.0.0.7:81/ready")),
        (LifecycleHandler { tcp_socket: Some(tcp), ..LifecycleHandler::default() }, Some("tcp 10.0.0.7:9000")),
        (http(None, None, IntOrString::String("absent".into())), None),
        (http(None, None, IntOrString::Int(0)), None),
        (http(None, None, IntOrString::Int(70_000)), None),
        (LifecycleHandler::default(), None),
    ];
    for (handler, expected) in table {
        let world = World::new();
        let result = world.sync(&with_post_start(handler.clone())).await;
        // A server error is an answer too.
        assert_eq!(result.error.is_none(), expected.is_some(), "{handler:?} {:?}", result.error);
        assert_eq!(world.told.network.lock().first().map(String::as_str), expected);
    }
    let world = World::new();
    *world.told.network_broken.lock() = true;
    let result = world.sync(&with_post_start(http(None, None, IntOrString::Int(1)))).await;
    assert!(result.error.unwrap().to_string().contains("refused"));
}

#[tokio::test(start_paused = true)]
async fn a_hook_by_https_is_repeated_without_tls_and_without_credentials() {
    let header = |name: &str, value: &str| HTTPHeader { name: name.into(), value: value.into() };
    let get = HTTPGetAction {
        scheme: Some("HTTPS".into()),
        port: IntOrString::Int(8080),
        http_headers: Some(vec![header("authorization", "secret"), header("X-A", "1")]),
        ..HTTPGetAction::default()
    };
    let pod = with_post_start(LifecycleHandler { http_get: Some(get), ..LifecycleHandler::default() });
    let sent = |headers: &[(String, String)]| {
        headers.iter().map(|(name, value)| format!("{name}: {value}")).collect::<Vec<_>>()
    };
    let others = ["X-A: 1", "User-Agent: kube-lifecycle/1.36", "Accept: */*"];

    let world = World::new();
    *world.told.without_tls.lock() = true;
    assert!(world.sync(&pod).await.error.is_none());
    assert_eq!(*world.told.network.lock(), ["https://10.0.0.7:8080/", "http://10.0.0.7:8080/"]);
    let headers = std::mem::take(&mut *world.told.headers.lock());
    assert_eq!(sent(&headers[0]), [&["authorization: secret"][..], &others].concat());
    assert_eq!(sent(&headers[1]), others);
    assert_eq!(world.metric("kubelet_lifecycle_handler_http_fallbacks_total"), 1);

    let world = World::new();
    assert!(world.sync(&pod).await.error.is_none());
    assert_eq!(*world.told.network.lock(), ["https://10.0.0.7:8080/"]);
    assert_eq!(world.metric("kubelet_lifecycle_handler_http_fallbacks_total"), 0);
}

// POD-S98
#[tokio::test(start_paused = true)]
async fn cancellation_reaches_a_pull() {
    let world = World::new();
    world.runtime.pull_takes(secs(600));
    let cancel = CancellationToken::new();
    let pod = three("Always");
    let probes = ProbeSnapshot::new();
    let stop = async {
        tokio::time::sleep(secs(10)).await;
        cancel.cancel();
    };
    let (result, ()) = tokio::join!(world.sync_with(&pod, &cancel, &probes), stop);
    assert!(matches!(result.error, Some(SyncError::Cancelled)), "{:?}", result.error);
    assert_eq!(world.clock.now(), Time::from_secs(2_000_010));
    assert_eq!(world.runtime.calls(), ["0: sandbox 0"]);
    assert!(world.waiting(&pod).is_empty() && world.reasons().is_empty());
}

#[tokio::test(start_paused = true)]
async fn cancellation_reaches_a_post_start_hook() {
    let world = World::new();
    let exec = ExecAction { command: Some(vec!["hang".into()]) };
    let pod = with_post_start(LifecycleHandler { exec: Some(exec), ..LifecycleHandler::default() });
    world.runtime.script("a", Script { exec: (secs(10_000), 0), ..Script::default() });
    let cancel = CancellationToken::new();
    let probes = ProbeSnapshot::new();
    let stop = async {
        tokio::time::sleep(secs(10)).await;
        cancel.cancel();
    };
    let (result, ()) = tokio::join!(world.sync_with(&pod, &cancel, &probes), stop);
    assert!(matches!(result.error, Some(SyncError::Cancelled)), "{:?}", result.error);
    assert_eq!(world.clock.now(), Time::from_secs(2_000_010));
}

#[tokio::test(start_paused = true)]
async fn the_restart_count_comes_from_the_runtime_else_from_the_logs() {
    let world = World::new();
    world.told.restarts_by_log.lock().insert("a".into(), 7);
    let pod = one();
    let _ = world.sync(&pod).await;
    assert_eq!(world.runtime.status().containers[0].restart_count, 7);
    world.runtime.edit("a#7", |run| {
        run.state = crate::ports::ContainerState::Exited;
        run.finished_at = Some(run.created_at);
    });
    let _ = world.sync(&pod).await;
    assert_eq!(world.runtime.status().containers[0].restart_count, 8);
}
