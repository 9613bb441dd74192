//! Tests of `CriRuntime` with a fake runtime, mostly with failing calls.

mod adopted;
mod cdi;
mod cgroups;
mod fake;
mod images;
mod network_images;

use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, join_all};
use podwright_metrics::{Format, Metrics};
use podwright_model::ids::SandboxId;
use podwright_model::pod::{ContainerKind, PodObject};
use podwright_ports::{
    ContainerConfig, ContainerProcess, ContainerRuntime, ContainerUpdate, ImageError, ImageRequest, PodCgroups,
    RuntimeClassError, RuntimeClasses, RuntimeError, SandboxConfig,
};
use serde_json::json;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tonic::Status;

use super::CgroupDriver;
use super::config::fixtures::{container, pod};
use super::v1;
use fake::{CreateAnswer, FakeRuntime};

/// How long a test waits for a condition. The limit guards only against hanging.
const PATIENCE: Duration = Duration::from_secs(60);

fn deadline_exceeded() -> Status {
    Status::deadline_exceeded("context deadline exceeded")
}

fn name_taken() -> Status {
    Status::unknown("failed to reserve sandbox name \"web_shop_u-1_0\": name \"web_shop_u-1_0\" is reserved for \"x\"")
}

async fn run_sandbox(fake: &FakeRuntime) -> Result<SandboxId, RuntimeError> {
    let pod = pod(json!({"containers": [{"name": "a"}]}));
    fake.runtime.run_sandbox(SandboxConfig { pod, attempt: 0 }).await
}

#[tokio::test]
async fn a_checkpoint_is_a_file_that_only_the_agents_user_may_read() {
    let fake = FakeRuntime::start(1).await;
    for (timeout, seconds) in [(0, 120), (300, 300)] {
        let path = fake.runtime.checkpoint(&"c0".into(), "c.tar", Duration::from_secs(timeout)).await.unwrap();
        assert!(path.ends_with("checkpoints/c.tar"), "{path:?}");
        assert_eq!(std::fs::metadata(path.parent().unwrap()).unwrap().permissions().mode() & 0o7777, 0o700);
        assert_eq!(fake.checkpoints().pop(), Some(("c0".to_owned(), path.clone(), seconds)));
    }
}

// KF25
#[tokio::test]
async fn a_sandbox_is_found_and_kept_if_the_create_answer_is_lost() {
    let fake = FakeRuntime::start(1).await;
    fake.script([CreateAnswer::CreatedWithError(deadline_exceeded())]);
    assert_eq!(run_sandbox(&fake).await.unwrap().as_str(), "s0");
    assert_eq!(fake.attempts(), [0]);
}

#[tokio::test]
async fn a_sandbox_that_is_not_ready_is_removed_if_the_answer_is_lost() {
    let fake = FakeRuntime::start(1).await;
    fake.script([CreateAnswer::NotReadyWithError(deadline_exceeded())]);
    assert!(matches!(run_sandbox(&fake).await, Err(RuntimeError::Timeout { .. })));
    assert_eq!(fake.removed(), ["s0"]);
    assert_eq!(fake.attempts(), [0], "the engine retries, not the adapter");
}

// KF25
#[tokio::test]
async fn a_taken_sandbox_name_is_replaced_for_a_limited_number_of_times() {
    let fake = FakeRuntime::start(1).await;
    fake.script([CreateAnswer::Refused(name_taken()), CreateAnswer::NotReadyWithError(name_taken())]);
    assert_eq!(run_sandbox(&fake).await.unwrap().as_str(), "s2");
    assert_eq!((fake.attempts(), fake.removed()), (vec![0, 1, 2], vec!["s1".to_owned()]));

    let fake = FakeRuntime::start(1).await;
    fake.script((0..100).map(|_| CreateAnswer::Refused(name_taken())));
    let error = run_sandbox(&fake).await.unwrap_err().to_string();
    assert!(error.contains("the names of sandboxes 0 to 3"), "{error}");
    assert_eq!(fake.attempts(), [0, 1, 2, 3]);
}

#[tokio::test]
async fn other_create_errors_are_returned_without_a_retry() {
    let fake = FakeRuntime::start(1).await;
    fake.script([CreateAnswer::Refused(Status::unknown("no network"))]);
    assert_eq!(run_sandbox(&fake).await, Err(RuntimeError::Status { code: "Unknown", message: "no network".into() }));
    assert_eq!(fake.attempts(), [0]);
}

#[tokio::test]
async fn a_container_of_an_older_definition_is_removed_and_replaced() {
    let fake = FakeRuntime::start(1).await;
    let pod = pod(json!({"containers": [{"name": "a"}]}));
    let mut config = container(&pod, "a", 0);
    config.sandbox = run_sandbox(&fake).await.unwrap();
    fake.script([CreateAnswer::CreatedWithError(deadline_exceeded())]);
    let first = fake.runtime.create_container(config.clone()).await.unwrap();
    assert_eq!(first.as_str(), "c1", "the created container is kept");
    assert_eq!(fake.links(), ["web_shop_a-c1.log"], "its log is linked");

    config.spec_hash = 7;
    // The runtime refuses the name, and lists the older container under it.
    fake.script([CreateAnswer::Refused(name_taken()), CreateAnswer::Created]);
    let second = fake.runtime.create_container(config).await.unwrap();
    assert_eq!((second.as_str(), fake.removed()), ("c3", vec!["c1".to_owned()]));
}

// KF24
#[tokio::test]
async fn the_process_of_a_container_is_looked_up_on_the_machine() {
    let fake = FakeRuntime::start(1).await;
    let pod = pod(json!({"containers": [{"name": "a"}]}));
    let mut config = container(&pod, "a", 0);
    config.sandbox = run_sandbox(&fake).await.unwrap();
    let id = fake.runtime.create_container(config).await.unwrap();
    assert_eq!(fake.runtime.process_of(&id).await, Ok(None), "the runtime reports no process");

    let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
    let pid = child.id();
    fake.has_process(pid);
    assert_eq!(fake.runtime.process_of(&id).await, Ok(Some(ContainerProcess { pid, has_ended: false })));
    child.kill().unwrap();
    // The process is a zombie once its end is known, until it is reaped.
    let child_pid = rustix::process::Pid::from_child(&child);
    let ended = rustix::process::WaitIdOptions::EXITED | rustix::process::WaitIdOptions::NOWAIT;
    rustix::process::waitid(rustix::process::WaitId::Pid(child_pid), ended).unwrap();
    let gone = Ok(Some(ContainerProcess { pid, has_ended: true }));
    assert_eq!(fake.runtime.process_of(&id).await, gone, "a zombie");
    child.wait().unwrap();
    assert_eq!(fake.runtime.process_of(&id).await, gone);
}

#[tokio::test]
async fn removing_a_never_started_container_keeps_the_log_of_its_run() {
    let fake = FakeRuntime::start(1).await;
    let pod = pod(json!({"containers": [{"name": "a"}]}));
    let mut config = container(&pod, "a", 0);
    config.sandbox = run_sandbox(&fake).await.unwrap();
    let late = fake.runtime.create_container(config.clone()).await.unwrap();
    let runs = fake.runtime.create_container(config).await.unwrap();
    let written = fake.log_and_message_files(runs.as_str());
    assert_eq!(
        (written.len(), &written),
        (2, &fake.log_and_message_files(late.as_str())),
        "both containers have the files of the same run"
    );
    written.iter().for_each(|path| std::fs::write(path, "said").unwrap());

    fake.runtime.remove_container(&late, false).await.unwrap();
    let left = || written.iter().filter(|path| path.exists()).count();
    assert_eq!((left(), fake.links()), (2, vec![format!("web_shop_a-{runs}.log")]));
    fake.set_exited(runs.as_str());
    fake.runtime.remove_container(&runs, false).await.unwrap();
    assert_eq!((left(), fake.links()), (0, vec![]), "the files are removed with the container that ran");
}

#[tokio::test]
async fn a_container_in_unknown_state_is_stopped_with_its_recorded_grace() {
    let fake = FakeRuntime::start(1).await;
    let sandbox = run_sandbox(&fake).await.unwrap();
    for (grace, seconds) in [(Some(40), 40), (Some(1), 2), (None, 2)] {
        let mut spec = json!({"containers": [{"name": "a"}]});
        if let Some(grace) = grace {
            spec["terminationGracePeriodSeconds"] = json!(grace);
        }
        let mut config = container(&pod(spec), "a", 0);
        config.sandbox = sandbox.clone();
        let id = fake.runtime.create_container(config).await.unwrap();
        fake.set_unknown(id.as_str());
        fake.runtime.remove_container(&id, false).await.unwrap();
        assert_eq!(fake.stops().pop(), Some((id.to_string(), seconds)));
        assert_eq!(fake.removed().pop(), Some(id.to_string()));
    }
}

#[tokio::test]
async fn concurrent_pods_share_one_read_of_the_node_facts() {
    let metrics = Metrics::new();
    let fake = FakeRuntime::with(1, |config| {
        config.metrics = metrics.clone();
        // With systemd the adapter does not check the pods' cgroups.
        config.settings.cgroup_driver = Some(CgroupDriver::Systemd);
    })
    .await;
    let pod = pod(json!({"containers": [{"name": "a"}]}));
    join_all((0..8).map(|_| PodCgroups::exists(&fake.runtime, &pod))).await;
    let text = metrics.encode(Format::Classic);
    let calls = text
        .lines()
        .find_map(|line| line.strip_prefix("kubelet_runtime_operations_total{operation_type=\"runtime_config\"} "));
    assert_eq!(calls, Some("1"));
}

struct Kata;

impl RuntimeClasses for Kata {
    fn handler<'a>(&'a self, _: &'a str) -> BoxFuture<'a, Result<String, RuntimeClassError>> {
        std::future::ready(Ok("kata-qemu".to_owned())).boxed()
    }
}

#[tokio::test]
async fn sandbox_creations_are_counted_by_runtime_handler() {
    let metrics = Metrics::new();
    let fake = FakeRuntime::with(1, |config| {
        config.metrics = metrics.clone();
        config.runtime_classes = Arc::new(Kata);
    })
    .await;
    let pod = pod(json!({"containers": [{"name": "a"}], "runtimeClassName": "sandboxed"}));
    fake.runtime.run_sandbox(SandboxConfig { pod, attempt: 0 }).await.unwrap();
    run_sandbox(&fake).await.unwrap();
    let text = metrics.encode(Format::Classic);
    let counted = text.lines().filter(|line| line.starts_with("kubelet_run_podsandbox_duration_seconds_count"));
    let counted: Vec<_> = counted.filter_map(|line| line.split_once('{')).map(|(_, labels)| labels).collect();
    assert_eq!(counted, ["runtime_handler=\"\"} 1", "runtime_handler=\"kata-qemu\"} 1"]);
}

const IMAGE: &str = "registry.example/a:1";

#[tokio::test]
async fn pods_that_wait_for_the_same_image_share_one_pull() {
    let fake = FakeRuntime::start(2).await;
    let (pod, never) = (pod(json!({"containers": []})), CancellationToken::new());
    let first = CancellationToken::new();
    let ensure = |cancel| fake.runtime.ensure_image(request(&pod, IMAGE, None), cancel);
    let both = async { tokio::join!(ensure(&first), ensure(&never)) };
    let act = async {
        fake.wait_for_pulls(1).await;
        // The pull continues for the second caller.
        first.cancel();
        fake.add_image(IMAGE);
    };
    let ((cancelled, pulled), ()) = tokio::join!(both, act);
    assert_eq!((cancelled, pulled), (Err(ImageError::Cancelled), Ok("sha256:1".to_owned())));
    assert_eq!(fake.pull_count(), 1);
    assert_eq!(ensure(&never).await, Ok("sha256:1".to_owned()), "the image is present");
    assert_eq!(fake.pull_count(), 1);
}

#[tokio::test]
async fn a_pull_without_callers_is_cancelled_and_frees_its_permit() {
    let fake = FakeRuntime::start(1).await;
    // Time passes when all tasks are idle and no call is under way.
    tokio::time::pause();
    let (pod, cancel, never) = (pod(json!({"containers": []})), CancellationToken::new(), CancellationToken::new());
    let other = "registry.example/b:1";
    let first = fake.runtime.ensure_image(request(&pod, IMAGE, None), &cancel);
    let second = async {
        fake.wait_for_pulls(1).await;
        fake.runtime.ensure_image(request(&pod, other, None), &never).await
    };
    let act = async {
        fake.wait_for_pulls(1).await;
        assert!(timeout(Duration::from_millis(100), fake.wait_for_pulls(2)).await.is_err(), "there is one permit");
        cancel.cancel();
        fake.wait_for_pulls(2).await;
        fake.add_image(other);
    };
    let (first, second, ()) = tokio::join!(first, second, act);
    assert_eq!((first, second), (Err(ImageError::Cancelled), Ok("sha256:1".to_owned())));
    assert_eq!(fake.cancelled_pulls(), 1, "the runtime's call is cancelled");
}

#[tokio::test]
async fn an_absent_image_with_policy_never_is_not_pulled() {
    let fake = FakeRuntime::start(1).await;
    let (pod, never) = (pod(json!({"containers": []})), CancellationToken::new());
    let absent = fake.runtime.ensure_image(request(&pod, IMAGE, Some("Never")), &never).await;
    assert_eq!(absent, Err(ImageError::NeverPull(IMAGE.into())));
    let invalid = fake.runtime.ensure_image(request(&pod, "A", Some("Never")), &never).await;
    assert_eq!(invalid, Err(ImageError::InvalidName("A".into())));
    assert_eq!(fake.pull_count(), 0);
}

#[tokio::test]
async fn container_events_are_followed_until_the_stream_ends() {
    let fake = FakeRuntime::start(1).await;
    assert!(!fake.runtime.has_events());
    let labels = [(super::config::labels::POD_UID.to_owned(), "u-1".to_owned())].into();
    let sandbox = v1::PodSandboxStatus { labels, ..Default::default() };
    fake.send_event(v1::ContainerEventResponse { pod_sandbox_status: Some(sandbox), ..Default::default() }).await;
    let changed = timeout(PATIENCE, fake.runtime.next_event()).await.unwrap();
    assert_eq!(changed.to_string(), "u-1");
    assert!(fake.runtime.has_events());
    fake.end_events();
    let ended = async {
        while fake.runtime.has_events() {
            tokio::task::yield_now().await;
        }
    };
    timeout(PATIENCE, ended).await.unwrap();
}

#[tokio::test]
async fn an_event_stream_that_ends_without_an_event_is_not_retried_soon() {
    let fake = FakeRuntime::start(1).await;
    tokio::time::pause();
    fake.end_events();
    fake.wait_for_event_calls(1).await;
    // If the runtime had delivered events, the stream would be requested again after a second.
    let again = timeout(Duration::from_millis(1500), fake.wait_for_event_calls(2)).await;
    assert!(again.is_err() && !fake.runtime.has_events());
}

#[tokio::test]
async fn a_very_long_grace_period_does_not_overflow() {
    let fake = FakeRuntime::start(1).await;
    let stopped = fake.runtime.stop_container(&"c".into(), Duration::MAX).await;
    assert!(matches!(stopped, Err(RuntimeError::Status { .. })), "the fake answers with an error: {stopped:?}");
}

#[tokio::test]
async fn dns_warnings_are_recorded_once_when_the_sandbox_is_created() {
    let fake = FakeRuntime::start(1).await;
    fake.script([CreateAnswer::Refused(Status::unknown("no network"))]);
    assert!(run_sandbox(&fake).await.is_err());
    assert_eq!(fake.recorded_events.reasons(), [""; 0]);
    run_sandbox(&fake).await.unwrap();
    assert_eq!(fake.recorded_events.reasons(), ["MissingClusterDNS"]);
}

#[tokio::test]
async fn unsupported_pod_settings_are_refused_with_a_remedy() {
    let fake = FakeRuntime::start(1).await;
    let strict = json!({"containers": [{"name": "a"}], "securityContext": {"supplementalGroupsPolicy": "Strict"}});
    let strict = SandboxConfig { pod: pod(strict), attempt: 0 };
    let refused = fake.runtime.run_sandbox(strict.clone()).await;
    assert!(
        matches!(&refused, Err(RuntimeError::Config(why)) if why.to_string().contains("use a newer runtime")),
        "{refused:?}"
    );

    // The runtime restarts with support for the setting.
    fake.set_features(v1::RuntimeFeatures { supplemental_groups_policy: true });
    fake.end_events();
    let again = async {
        while fake.runtime.run_sandbox(strict.clone()).await.is_err() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(PATIENCE, again).await.unwrap();

    let target = json!({"name": "debug", "targetContainerName": "a"});
    let pod = pod(json!({"containers": [{"name": "a"}], "ephemeralContainers": [target]}));
    let config = ContainerConfig { kind: ContainerKind::Ephemeral, ..container(&pod, "debug", 0) };
    let sandbox = fake.runtime.run_sandbox(SandboxConfig { pod, attempt: 0 }).await.unwrap();
    let refused = fake.runtime.create_container(ContainerConfig { sandbox, ..config }).await;
    assert!(
        matches!(&refused, Err(RuntimeError::Config(why)) if why.to_string() == "unable to find target container a"),
        "{refused:?}"
    );
}

fn request<'a>(pod: &'a Arc<PodObject>, image: &'a str, pull_policy: Option<&'a str>) -> ImageRequest<'a> {
    ImageRequest { pod, container: Some((ContainerKind::Regular, "a")), image, pull_policy }
}

#[tokio::test]
async fn only_cpu_and_memory_of_a_resized_container_are_sent() {
    let fake = FakeRuntime::start(1).await;
    let pod = pod(json!({"containers": [{"name": "a", "resources": {"limits": {"cpu": "1", "memory": "64Mi"}}}]}));
    let limits = json!({"cpu": "2", "memory": "64Mi"});
    let resources =
        serde_json::from_value(json!({"limits": limits, "requests": {"cpu": "1", "memory": "64Mi"}})).unwrap();
    let update = ContainerUpdate { pod, kind: ContainerKind::Regular, name: "a".into(), resources };
    fake.runtime.update_container(&"c1".into(), update).await.unwrap();
    let [request] = &fake.updates()[..] else { panic!("one request: {:?}", fake.updates()) };
    let linux = request.linux.as_ref().unwrap();
    assert_eq!((request.container_id.as_str(), linux.cpu_quota, linux.cpu_period), ("c1", 200_000, 100_000));
    assert_eq!((linux.cpu_shares, linux.memory_limit_in_bytes), (1024, 64 << 20));
    assert_eq!((linux.oom_score_adj, linux.hugepage_limits.len(), linux.unified.len()), (0, 0, 0));
}
