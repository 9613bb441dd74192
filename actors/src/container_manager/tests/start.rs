use k8s_openapi::api::core::v1::{ConfigMapKeySelector, Container, EnvVar, EnvVarSource, PodStatus};
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
    let rig = Rig::new();
    let pod = three("Always");
    rig.statuses.set(&pod, None, PodStatus::default(), false);
    let result = rig.sync(&pod).await;
    assert!(result.error.is_none() && result.acted);
    assert_eq!(result.sandbox_created, Some("s0".into()));
    assert_eq!(
        rig.runtime.calls(),
        ["0: sandbox 0", "0: create a#0", "0: start a", "0: create b#0", "0: start b", "0: create c#0", "0: start c",]
    );
    let conditions = rig.statuses.get(pod.uid()).and_then(|status| status.conditions.clone()).unwrap_or_default();
    let ready = conditions.iter().find(|condition| condition.type_ == "PodReadyToStartContainers");
    assert_eq!(ready.map(|condition| condition.status.as_str()), Some("True"));
    assert_eq!(rig.attempts(), (1, 3));
    assert_eq!(rig.reasons()[..2], ["Created", "Started"]);
    let idle = rig.sync(&pod).await;
    assert!(!idle.acted && idle.error.is_none() && idle.sandbox_created.is_none());
}

// POD-S67
#[tokio::test(start_paused = true)]
async fn a_crash_loop_restarts_at_the_end_of_each_backoff() {
    let rig = Rig::new();
    let pod = one();
    rig.runtime.script("a", Script { ends: Some((secs(1), 1)), ..Script::default() });
    let mut starts = Vec::new();
    while starts.len() < 6 {
        let result = rig.sync(&pod).await;
        let started = rig.runtime.calls().iter().any(|call| call.contains("start"));
        if started {
            starts.push(rig.clock.now().since(Time::from_secs(2_000_000)).as_secs());
            assert!(rig.waiting(&pod).is_empty());
        }
        let Some(wait) = rig.backoff(&result) else {
            assert!(result.error.is_none());
            tokio::time::sleep(secs(1)).await;
            continue;
        };
        assert!(!result.acted);
        assert_eq!(rig.waiting(&pod), [("a".to_owned(), "CrashLoopBackOff")]);
        assert_eq!(rig.reasons().last().map(|reason| &**reason), Some("BackOff"));
        tokio::time::sleep(secs(wait)).await;
    }
    // Each run takes a second; the backoffs between are 0, 10, 20, 40 and 80 s.
    assert_eq!(starts, [0, 1, 12, 33, 74, 155]);
    assert_eq!(rig.runtime.status().containers[0].restart_count, 5);
    // A container in backoff is neither an attempt nor a failure.
    assert_eq!(rig.attempts(), (1, 6));
    assert!(!rig.metrics.encode(Format::Classic).contains("kubelet_started_containers_errors_total{"));
}

// KF26
#[tokio::test(start_paused = true)]
async fn nothing_is_remembered_of_the_starts_of_a_pod_that_is_gone() {
    let (rig, pod) = (Rig::new(), one());
    rig.runtime.script("a", Script { ends: Some((secs(1), 1)), ..Script::default() });
    while rig.backoff(&rig.sync(&pod).await).is_none() {
        sleep(secs(1)).await;
    }
    rig.manager.retain(|_| true);
    assert_eq!(rig.waiting(&pod), [("a".to_owned(), "CrashLoopBackOff")]);
    assert!(rig.backoff(&rig.sync(&pod).await).is_some());
    rig.manager.retain(|uid| uid != pod.uid());
    assert_eq!(rig.waiting(&pod), []);
    assert!(rig.sync(&pod).await.error.is_none(), "it starts at once");

    let rig = Rig::new();
    rig.runtime.fail_image(IMAGE, ImageError::pull("gone"));
    for _ in 0..2 {
        let _ = rig.sync(&pod).await;
    }
    assert_eq!(rig.waiting(&pod), [("a".to_owned(), "ImagePullBackOff")]);
    rig.manager.retain(|uid| uid != pod.uid());
    assert!(rig.manager.pull_failures(pod.uid()).is_empty());
    let _ = rig.sync(&pod).await;
    assert_eq!(rig.waiting(&pod), [("a".to_owned(), "ErrImagePull")], "it is pulled at once");
}

#[tokio::test(start_paused = true)]
async fn image_failures_have_their_reasons_and_events() {
    let table = [
        (ImageError::pull("gone"), "ErrImagePull", "Failed"),
        (
            ImageError::RegistryUnavailable { image: IMAGE.into(), rest: ": no route".into() },
            "RegistryUnavailable",
            "Failed",
        ),
        (
            ImageError::SignatureValidationFailed { image: IMAGE.into(), rest: ": no key".into() },
            "SignatureValidationFailed",
            "Failed",
        ),
        (ImageError::NeverPull(IMAGE.into()), "ErrImageNeverPull", "ErrImageNeverPull"),
        (ImageError::InvalidName(IMAGE.into()), "InvalidImageName", "InspectFailed"),
        (ImageError::inspect("out of order"), "ImageInspectError", "InspectFailed"),
    ];
    for (error, reason, event) in table {
        let rig = Rig::new();
        rig.runtime.fail_image(IMAGE, error);
        let result = rig.sync(&one()).await;
        assert!(result.error.as_ref().unwrap().to_string().contains(reason), "{result:?}");
        assert_eq!(rig.backoff(&result), None);
        assert_eq!(rig.waiting(&one()), [("a".to_owned(), reason)]);
        assert_eq!(rig.reasons(), [event, "Failed"]);
        assert_eq!(rig.fakes.events.lock()[1].message, format!("Error: {reason}"));
        assert_eq!(rig.attempts(), (1, 1));
        let errors =
            format!("kubelet_started_containers_errors_total{{code=\"{reason}\",container_type=\"container\"}}");
        assert_eq!(rig.metric(&errors), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_failed_image_pull_is_retried_after_growing_backoffs() {
    let rig = Rig::new();
    rig.runtime.fail_image(IMAGE, ImageError::pull("gone"));
    assert_eq!(rig.backoff(&rig.sync(&one()).await), None);
    let mut waits = Vec::new();
    for _ in 0..6 {
        let result = rig.sync(&one()).await;
        assert_eq!(rig.waiting(&one()), [("a".to_owned(), "ImagePullBackOff")]);
        assert_eq!(
            rig.manager.start_errors().of(one().uid()).values().next().unwrap().message,
            format!("Back-off pulling image {IMAGE:?}: ErrImagePull: gone")
        );
        let wait = rig.backoff(&result).unwrap();
        waits.push(wait);
        sleep(secs(wait)).await;
        let _ = rig.sync(&one()).await;
        assert_eq!(rig.waiting(&one()), [("a".to_owned(), "ErrImagePull")]);
    }
    assert_eq!(waits, [10, 20, 40, 80, 160, 300]);
    // During the backoff the registry is not called, but an image that became present is used.
    let _ = rig.sync(&one()).await;
    assert_eq!(rig.waiting(&one()), [("a".to_owned(), "ImagePullBackOff")]);
    rig.runtime.have_image(IMAGE);
    assert!(rig.sync(&one()).await.error.is_none());
    assert!(rig.waiting(&one()).is_empty());
    assert!(rig.manager.pull_failures(one().uid()).is_empty());
}

#[tokio::test(start_paused = true)]
async fn starts_wait_for_the_governor_until_they_are_cancelled() {
    let rig = Rig::new();
    let limit = rig.metric("podwright_start_limit");
    let held: Vec<_> = (0..limit).map(|_| rig.manager.governor().request(StartKind::Sandbox)).collect();
    let cancel = CancellationToken::new();
    let (one, probes) = (one(), ProbeSnapshot::new());
    let mut waiting = Box::pin(rig.sync_with(&one, &cancel, &probes));
    assert!(timeout(Duration::from_secs(1), &mut waiting).await.is_err());
    let doing = rig.manager.activities().of(one.uid());
    assert!(matches!(doing[..], [Activity { task: Task::AwaitTurn(StartKind::Sandbox, _), .. }]), "{doing:?}");
    cancel.cancel();
    let result = waiting.await;
    assert!(matches!(result.error, Some(SyncError::Cancelled)), "{result:?}");
    assert_eq!(rig.metric("podwright_starts_waiting"), 0);
    assert_eq!(rig.metric("podwright_start_limit"), limit);
    assert!(rig.runtime.calls().is_empty());

    // The next request is granted when there is room.
    let mut waiting = Box::pin(rig.sync(&one));
    assert!(timeout(Duration::from_secs(1), &mut waiting).await.is_err());
    drop(held);
    assert!(waiting.await.error.is_none());
    assert!(rig.manager.activities().of(one.uid()).is_empty());
}

#[tokio::test(start_paused = true)]
async fn start_failures_of_each_step_have_their_reasons() {
    let config = RuntimeError::config("no user");
    let failed = RuntimeError::failed("it broke");
    let table = [
        (Some(("create a", config)), "CreateContainerConfigError"),
        (Some(("create a", failed.clone())), "CreateContainerError"),
        (Some(("start a", failed)), "RunContainerError"),
        (None, "CreateContainerConfigError"),
    ];
    for (failure, reason) in table {
        let rig = Rig::new();
        let pod = if failure.is_some() { one() } else { unresolvable() };
        if let Some((call, error)) = failure {
            rig.runtime.fail_with(call, error);
        }
        let result = rig.sync(&pod).await;
        assert_eq!(result.error.as_ref().unwrap().retry(), SyncRetry::Backoff);
        assert_eq!(rig.waiting(&one()), [("a".to_owned(), reason)]);
        assert_eq!(rig.reasons().last().map(|reason| &**reason), Some("Failed"));
        // The next successful start clears the reason.
        rig.runtime.heal();
        assert!(rig.sync(&one()).await.error.is_none());
        assert!(rig.waiting(&one()).is_empty());
    }
}

/// The pod of [`one`], which mounts an image volume.
fn with_image_volume() -> Arc<PodObject> {
    let mounts = serde_json::json!([{"name": "files", "mountPath": "/files"}]);
    let container = Container { volume_mounts: Some(serde_json::from_value(mounts).unwrap()), ..named("a") };
    let mut object = pod("Always", Vec::new(), vec![container]).pod().clone();
    let volumes = serde_json::json!([{"name": "files", "image": {"reference": "files:1"}}]);
    object.spec.as_mut().unwrap().volumes = Some(serde_json::from_value(volumes).unwrap());
    PodObject::new(object).unwrap()
}

#[tokio::test(start_paused = true)]
async fn the_image_of_a_volume_is_pulled_before_its_container_is_created() {
    let rig = Rig::new();
    rig.runtime.fail_image("files:1", ImageError::pull("gone"));
    let pod = with_image_volume();
    assert!(rig.sync(&pod).await.error.is_some());
    assert_eq!(rig.waiting(&pod), [("a".to_owned(), "ErrImagePull")]);
    let events: Vec<_> =
        rig.fakes.events.lock().iter().map(|it| (it.field_path.is_some(), it.message.clone())).collect();
    let pull = "Failed to pull image \"files:1\": gone".to_owned();
    assert_eq!(events, [(false, pull), (true, "Error: gone".to_owned())], "the pull belongs to the pod");
    let wait = rig.backoff(&rig.sync(&pod).await).unwrap();
    assert_eq!(rig.waiting(&pod), [("a".to_owned(), "ImagePullBackOff")]);
    rig.runtime.have_image("files:1");
    sleep(secs(wait)).await;
    assert!(rig.sync(&pod).await.error.is_none());
    assert!(rig.waiting(&pod).is_empty());
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

pub(super) fn timeout_of_start() -> RuntimeError {
    RuntimeError::Timeout { call: "start_container", after: secs(120) }
}

#[tokio::test(start_paused = true)]
async fn an_unanswered_start_is_repeated_on_the_same_run() {
    let rig = Rig::new();
    rig.runtime.fail_with("start a", timeout_of_start());
    assert!(rig.sync(&one()).await.error.is_some());
    assert_eq!(rig.waiting(&one()), [("a".to_owned(), "RunContainerError")]);
    assert!(rig.sync(&one()).await.error.is_some());
    rig.runtime.heal();
    assert!(rig.sync(&one()).await.error.is_none());
    assert_eq!(rig.runtime.calls(), ["0: sandbox 0", "0: create a#0", "0: start a", "0: start a", "0: start a"]);
    assert_eq!(rig.reasons().iter().filter(|reason| *reason == "Created").count(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_run_that_the_runtime_refuses_to_start_is_replaced() {
    let rig = Rig::new();
    rig.runtime.fail("start a");
    assert!(rig.sync(&one()).await.error.is_some());
    rig.runtime.heal();
    assert!(rig.sync(&one()).await.error.is_none());
    let calls = rig.runtime.calls();
    assert_eq!(calls, ["0: sandbox 0", "0: create a#0", "0: start a", "0: create a#1", "0: start a"]);
}

// The runtime continues the start that another agent requested, and refuses a second one.
#[tokio::test(start_paused = true)]
async fn a_start_that_another_agent_began_is_waited_for() {
    let rig = Rig::new();
    rig.runtime.fail_with("start a", timeout_of_start());
    assert!(rig.sync(&one()).await.error.is_some());
    rig.runtime.heal();
    rig.runtime.fail("start a");
    assert!(rig.sync(&one()).await.error.is_some());
    let started = |run: &mut crate::ports::ContainerStatus| run.state = crate::ports::ContainerState::Running;
    rig.runtime.edit("a#0", started);
    assert!(rig.sync(&one()).await.error.is_none());
    assert_eq!(rig.runtime.calls(), ["0: sandbox 0", "0: create a#0", "0: start a", "0: start a"]);

    // The wait is limited.
    rig.runtime.edit("a#0", |run| run.state = crate::ports::ContainerState::Created);
    assert!(rig.sync(&one()).await.error.is_some());
    tokio::time::advance(secs(240)).await;
    assert!(rig.sync(&one()).await.error.is_some());
    rig.runtime.heal();
    assert!(rig.sync(&one()).await.error.is_none());
    let calls = rig.runtime.calls();
    assert_eq!(calls, ["0: start a", "240: start a", "240: create a#1", "240: start a"]);
}

// containerd 1.6 keeps the task of a start that it did not survive. It refuses the next start of the container, and reports the
// container as exited.
#[tokio::test(start_paused = true)]
async fn a_run_that_exits_because_its_start_failed_has_not_started() {
    let rig = Rig::new();
    rig.runtime.fail_with("start a", timeout_of_start());
    assert!(rig.sync(&one()).await.error.is_some());
    rig.runtime.heal();
    rig.runtime.fail("start a");
    rig.runtime.end_in_failed_start("a");
    assert!(rig.sync(&one()).await.error.is_some());
    assert_eq!(rig.waiting(&one()), [("a".to_owned(), "RunContainerError")]);
    assert!(!rig.reasons().iter().any(|reason| reason == "Started"), "{:?}", rig.reasons());
}

// POD-S98
#[tokio::test(start_paused = true)]
async fn cancellation_interrupts_an_image_pull() {
    let rig = Rig::new();
    rig.runtime.pull_takes(secs(600));
    let cancel = CancellationToken::new();
    let pod = three("Always");
    let probes = ProbeSnapshot::new();
    let stop = async {
        tokio::time::sleep(secs(10)).await;
        cancel.cancel();
    };
    let (result, ()) = tokio::join!(rig.sync_with(&pod, &cancel, &probes), stop);
    assert!(matches!(result.error, Some(SyncError::Cancelled)), "{:?}", result.error);
    assert_eq!(rig.clock.now(), Time::from_secs(2_000_010));
    assert_eq!(rig.runtime.calls(), ["0: sandbox 0"]);
    assert!(rig.waiting(&pod).is_empty() && rig.reasons().is_empty());
}

// Nothing writes the facts, as if the disk hung.
#[tokio::test(start_paused = true)]
async fn cancellation_interrupts_a_wait_for_the_disk() {
    let rig = Rig::with(RunFacts::open(&NoCheckpoint).unwrap());
    let (pod, cancel, probes) = (one(), CancellationToken::new(), ProbeSnapshot::new());
    let stop = async {
        sleep(secs(1)).await;
        cancel.cancel();
    };
    let (result, ()) = tokio::join!(rig.sync_with(&pod, &cancel, &probes), stop);
    assert!(matches!(result.error, Some(SyncError::Cancelled)), "{:?}", result.error);
    assert_eq!(rig.clock.now(), Time::from_secs(2_000_001));
    assert_eq!(rig.runtime.calls(), ["0: sandbox 0", "0: create a#0"]);
}

#[tokio::test(start_paused = true)]
async fn restart_count_comes_from_the_runtime_else_from_the_logs() {
    let rig = Rig::new();
    rig.fakes.restarts_by_log.lock().insert("a".into(), 7);
    let pod = one();
    let _ = rig.sync(&pod).await;
    assert_eq!(rig.runtime.status().containers[0].restart_count, 7);
    rig.runtime.edit("a#7", |run| {
        run.state = crate::ports::ContainerState::Exited;
        run.finished_at = Some(run.created_at);
    });
    let _ = rig.sync(&pod).await;
    assert_eq!(rig.runtime.status().containers[0].restart_count, 8);
}
