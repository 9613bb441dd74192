//! The runtime against a server that answers as runtimes do when things go wrong.

mod fake;
mod images;

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, join_all};
use podwright_actors::ids::SandboxId;
use podwright_actors::pod::ContainerKind;
use podwright_actors::ports::{
    ContainerConfig, ContainerRuntime, ImageError, PodCgroups, RuntimeClassError, RuntimeClasses, RuntimeError,
    SandboxConfig,
};
use podwright_metrics::{Format, Metrics};
use serde_json::json;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tonic::Status;

use super::CgroupDriver;
use super::config::fixtures::{container, pod};
use super::v1;
use fake::{Answer, Fake};

fn late() -> Status {
    Status::deadline_exceeded("context deadline exceeded")
}

fn taken() -> Status {
    Status::unknown("failed to reserve sandbox name \"web_shop_u-1_0\": name \"web_shop_u-1_0\" is reserved for \"x\"")
}

async fn run(fake: &Fake) -> Result<SandboxId, RuntimeError> {
    let pod = pod(json!({"containers": [{"name": "a"}]}));
    fake.runtime.run_sandbox(SandboxConfig { pod, attempt: 0 }).await
}

#[tokio::test]
async fn a_sandbox_whose_answer_did_not_come_is_found_and_kept() {
    let fake = Fake::start(1).await;
    fake.script([Answer::MadeBut(late())]);
    assert_eq!(run(&fake).await.unwrap().as_str(), "s0");
    assert_eq!(fake.attempts(), [0]);
}

#[tokio::test]
async fn a_sandbox_that_was_made_and_is_of_no_use_is_removed() {
    let fake = Fake::start(1).await;
    fake.script([Answer::BrokenBut(late())]);
    assert!(matches!(run(&fake).await, Err(RuntimeError::Timeout { .. })));
    assert_eq!(fake.removed(), ["s0"]);
    assert_eq!(fake.attempts(), [0], "the next try is the engine's");
}

#[tokio::test]
async fn a_name_that_is_taken_leads_to_the_next_one_and_never_to_a_loop() {
    let fake = Fake::start(1).await;
    fake.script([Answer::Refused(taken()), Answer::BrokenBut(taken())]);
    assert_eq!(run(&fake).await.unwrap().as_str(), "s2");
    assert_eq!((fake.attempts(), fake.removed()), (vec![0, 1, 2], vec!["s1".to_owned()]));

    let fake = Fake::start(1).await;
    fake.script((0..100).map(|_| Answer::Refused(taken())));
    let error = run(&fake).await.unwrap_err().to_string();
    assert!(error.contains("holds the names of sandboxes 0 to 3"), "{error}");
    assert_eq!(fake.attempts(), [0, 1, 2, 3]);
}

#[tokio::test]
async fn other_failures_are_told_and_not_tried_again() {
    let fake = Fake::start(1).await;
    fake.script([Answer::Refused(Status::unknown("no network"))]);
    assert_eq!(run(&fake).await, Err(RuntimeError::Failed("no network".into())));
    assert_eq!(fake.attempts(), [0]);
}

#[tokio::test]
async fn a_container_of_another_definition_makes_room() {
    let fake = Fake::start(1).await;
    let pod = pod(json!({"containers": [{"name": "a"}]}));
    let mut config = container(&pod, "a", 0);
    config.sandbox = run(&fake).await.unwrap();
    fake.script([Answer::MadeBut(late())]);
    let first = fake.runtime.create_container(config.clone()).await.unwrap();
    assert_eq!(first.as_str(), "c1", "what was made is kept");
    assert_eq!(fake.links(), ["web_shop_a-c1.log"], "and collectors find its log");

    config.spec_hash = 7;
    // The runtime refuses, and shows the other one under the name.
    fake.script([Answer::Refused(taken()), Answer::Made]);
    let second = fake.runtime.create_container(config).await.unwrap();
    assert_eq!((second.as_str(), fake.removed()), ("c3", vec!["c1".to_owned()]));
}

#[tokio::test]
async fn a_container_that_came_late_and_never_ran_takes_no_log_from_the_one_that_runs() {
    let fake = Fake::start(1).await;
    let pod = pod(json!({"containers": [{"name": "a"}]}));
    let mut config = container(&pod, "a", 0);
    config.sandbox = run(&fake).await.unwrap();
    let late = fake.runtime.create_container(config.clone()).await.unwrap();
    let runs = fake.runtime.create_container(config).await.unwrap();
    let written = fake.writes_to(runs.as_str());
    assert_eq!((written.len(), &written), (2, &fake.writes_to(late.as_str())), "both are of one run");
    written.iter().for_each(|path| std::fs::write(path, "said").unwrap());

    fake.runtime.remove_container(&late, false).await.unwrap();
    let left = || written.iter().filter(|path| path.exists()).count();
    assert_eq!((left(), fake.links()), (2, vec![format!("web_shop_a-{runs}.log")]));
    fake.ends(runs.as_str());
    fake.runtime.remove_container(&runs, false).await.unwrap();
    assert_eq!((left(), fake.links()), (0, vec![]), "with the one that ran they go");
}

#[tokio::test]
async fn what_may_run_after_all_is_given_the_time_that_is_written_on_it() {
    let fake = Fake::start(1).await;
    let sandbox = run(&fake).await.unwrap();
    for (grace, seconds) in [(Some(40), 40), (Some(1), 2), (None, 2)] {
        let mut spec = json!({"containers": [{"name": "a"}]});
        if let Some(grace) = grace {
            spec["terminationGracePeriodSeconds"] = json!(grace);
        }
        let mut config = container(&pod(spec), "a", 0);
        config.sandbox = sandbox.clone();
        let id = fake.runtime.create_container(config).await.unwrap();
        fake.loses(id.as_str());
        fake.runtime.remove_container(&id, false).await.unwrap();
        assert_eq!(fake.stops().pop(), Some((id.to_string(), seconds)));
        assert_eq!(fake.removed().pop(), Some(id.to_string()));
    }
}

#[tokio::test]
async fn pods_that_come_together_ask_the_runtime_once_what_it_can_do() {
    let metrics = Metrics::new();
    let fake = Fake::with(1, |config| {
        config.metrics = metrics.clone();
        // No cgroup is looked for: slices are systemd's.
        config.settings.cgroup_driver = CgroupDriver::Systemd;
    })
    .await;
    let pod = pod(json!({"containers": [{"name": "a"}]}));
    join_all((0..8).map(|_| PodCgroups::exists(&fake.runtime, &pod))).await;
    let text = metrics.encode(Format::Classic);
    let asked = text
        .lines()
        .find_map(|line| line.strip_prefix("kubelet_runtime_operations_total{operation_type=\"runtime_config\"} "));
    assert_eq!(asked, Some("1"));
}

struct Kata;

impl RuntimeClasses for Kata {
    fn handler<'a>(&'a self, _: &'a str) -> BoxFuture<'a, Result<String, RuntimeClassError>> {
        std::future::ready(Ok("kata-qemu".to_owned())).boxed()
    }
}

#[tokio::test]
async fn sandboxes_are_counted_by_the_handler_that_runs_them() {
    let metrics = Metrics::new();
    let fake = Fake::with(1, |config| {
        config.metrics = metrics.clone();
        config.runtime_classes = Arc::new(Kata);
    })
    .await;
    let pod = pod(json!({"containers": [{"name": "a"}], "runtimeClassName": "sandboxed"}));
    fake.runtime.run_sandbox(SandboxConfig { pod, attempt: 0 }).await.unwrap();
    run(&fake).await.unwrap();
    let text = metrics.encode(Format::Classic);
    let counted = text.lines().filter(|line| line.starts_with("kubelet_run_podsandbox_duration_seconds_count"));
    let counted: Vec<_> = counted.filter_map(|line| line.split_once('{')).map(|(_, labels)| labels).collect();
    assert_eq!(counted, ["runtime_handler=\"\"} 1", "runtime_handler=\"kata-qemu\"} 1"]);
}

const IMAGE: &str = "registry.example/a:1";

#[tokio::test]
async fn pods_that_wait_for_an_image_share_its_pull() {
    let fake = Fake::start(2).await;
    let (pod, never) = (pod(json!({"containers": []})), CancellationToken::new());
    let first = CancellationToken::new();
    let ensure = |cancel| fake.runtime.ensure_image(&pod, IMAGE, None, cancel);
    let both = async { tokio::join!(ensure(&first), ensure(&never)) };
    let act = async {
        fake.pulls(1).await;
        // One that goes away takes nothing from the other.
        first.cancel();
        fake.pulled(IMAGE);
    };
    let ((gone, had), ()) = tokio::join!(both, act);
    assert_eq!((gone, had), (Err(ImageError::Cancelled), Ok("sha256:1".to_owned())));
    assert_eq!(fake.pull_count(), 1);
    assert_eq!(ensure(&never).await, Ok("sha256:1".to_owned()), "it is there");
    assert_eq!(fake.pull_count(), 1);
}

#[tokio::test]
async fn a_pull_that_nobody_waits_for_ends_and_gives_its_place_to_the_next() {
    let fake = Fake::start(1).await;
    let (pod, cancel, never) = (pod(json!({"containers": []})), CancellationToken::new(), CancellationToken::new());
    let other = "registry.example/b:1";
    let first = fake.runtime.ensure_image(&pod, IMAGE, None, &cancel);
    let second = async {
        fake.pulls(1).await;
        fake.runtime.ensure_image(&pod, other, None, &never).await
    };
    let act = async {
        fake.pulls(1).await;
        assert!(timeout(Duration::from_millis(100), fake.pulls(2)).await.is_err(), "one place");
        cancel.cancel();
        fake.pulls(2).await;
        fake.pulled(other);
    };
    let (first, second, ()) = tokio::join!(first, second, act);
    assert_eq!((first, second), (Err(ImageError::Cancelled), Ok("sha256:1".to_owned())));
    assert_eq!(fake.ended_early(), 1, "the runtime is told");
}

#[tokio::test]
async fn an_absent_image_is_not_pulled_against_its_policy() {
    let fake = Fake::start(1).await;
    let (pod, never) = (pod(json!({"containers": []})), CancellationToken::new());
    let absent = fake.runtime.ensure_image(&pod, IMAGE, Some("Never"), &never).await;
    assert_eq!(absent, Err(ImageError::NeverPull(IMAGE.into())));
    let invalid = fake.runtime.ensure_image(&pod, "A", Some("Never"), &never).await;
    assert_eq!(invalid, Err(ImageError::InvalidName("A".into())));
    assert_eq!(fake.pull_count(), 0);
}

#[tokio::test]
async fn events_are_followed_while_the_runtime_has_them() {
    let fake = Fake::start(1).await;
    assert!(!fake.runtime.has_events());
    let labels = [(super::config::labels::POD_UID.to_owned(), "u-1".to_owned())].into();
    let sandbox = v1::PodSandboxStatus { labels, ..Default::default() };
    fake.tell(v1::ContainerEventResponse { pod_sandbox_status: Some(sandbox), ..Default::default() }).await;
    let told = timeout(Duration::from_secs(10), fake.runtime.next_event()).await.unwrap();
    assert_eq!(told.to_string(), "u-1");
    assert!(fake.runtime.has_events());
    fake.end_events();
    let ended = async {
        while fake.runtime.has_events() {
            tokio::task::yield_now().await;
        }
    };
    timeout(Duration::from_secs(10), ended).await.unwrap();
}

#[tokio::test]
async fn a_runtime_that_ends_its_events_without_a_word_has_none() {
    let fake = Fake::start(1).await;
    fake.end_events();
    fake.event_calls(1).await;
    // What has them is asked again after a second.
    let again = timeout(Duration::from_millis(1500), fake.event_calls(2)).await;
    assert!(again.is_err() && !fake.runtime.has_events());
}

#[tokio::test]
async fn a_grace_that_never_ends_is_one() {
    let fake = Fake::start(1).await;
    let stopped = fake.runtime.stop_container(&"c".into(), Duration::MAX).await;
    assert!(matches!(stopped, Err(RuntimeError::Failed(_))), "asked, and the fake stops nothing: {stopped:?}");
}

#[tokio::test]
async fn what_a_pod_does_not_get_is_told_once_when_its_sandbox_is_there() {
    let fake = Fake::start(1).await;
    fake.script([Answer::Refused(Status::unknown("no network"))]);
    assert!(run(&fake).await.is_err());
    assert_eq!(fake.told.reasons(), [""; 0]);
    run(&fake).await.unwrap();
    assert_eq!(fake.told.reasons(), ["MissingClusterDNS"]);
}

#[tokio::test]
async fn what_the_node_cannot_do_is_refused_with_a_remedy() {
    let fake = Fake::start(1).await;
    let strict = json!({"containers": [{"name": "a"}], "securityContext": {"supplementalGroupsPolicy": "Strict"}});
    let strict = SandboxConfig { pod: pod(strict), attempt: 0 };
    let refused = fake.runtime.run_sandbox(strict.clone()).await;
    assert!(matches!(&refused, Err(RuntimeError::Config(why)) if why.contains("use a newer runtime")), "{refused:?}");

    // The one that answers from now on can do it.
    fake.renew(v1::RuntimeFeatures { supplemental_groups_policy: true });
    fake.end_events();
    let again = async {
        while fake.runtime.run_sandbox(strict.clone()).await.is_err() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(Duration::from_secs(10), again).await.unwrap();

    let target = json!({"name": "debug", "targetContainerName": "a"});
    let pod = pod(json!({"containers": [{"name": "a"}], "ephemeralContainers": [target]}));
    let config = ContainerConfig { kind: ContainerKind::Ephemeral, ..container(&pod, "debug", 0) };
    let sandbox = fake.runtime.run_sandbox(SandboxConfig { pod, attempt: 0 }).await.unwrap();
    let refused = fake.runtime.create_container(ContainerConfig { sandbox, ..config }).await;
    assert!(matches!(&refused, Err(RuntimeError::Config(why)) if why.contains("does not run")), "{refused:?}");
}
