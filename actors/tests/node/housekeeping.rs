//! Housekeeping passes over desired pods. The node has no API server, so these tests do not cover the deletion of orphan
//! mirror pods (POD-S50) and of API objects (POD-S57). Its pods have no cgroups (POD-S56).

use std::time::Duration;

use podwright_actors::housekeeping::PassError;
use podwright_core::pod_worker::Lifecycle;
use podwright_engine::KillNow;
use podwright_engine::replay::{Pick, replay};
use podwright_fixtures::api_pods::{PodBuilder, pod};
use podwright_fixtures::scripted_runtime::{Op, Script};
use podwright_ports::{RuntimeError, SourceKind};

use crate::support::test_node::{Setup, TestNode};

/// Makes a pod desired without the dispatcher, as if its update had been lost.
fn make_desired(node: &TestNode, pod: &PodBuilder) {
    node.node.desired().lock().pods.put(pod.build());
}

fn make_undesired(node: &TestNode, pod: &PodBuilder) {
    node.node.desired().lock().pods.remove(&pod.build());
}

#[actix::test]
async fn running_pod_is_counted_as_desired_active_and_working() {
    let node = TestNode::start().await;
    node.deliver(&[pod("a"), pod("s").of_file(), pod("s").uid("m").mirror()]).await;
    node.wait(3.0).await;
    assert_eq!(node.phase("a"), "Running");
    assert_eq!(node.runtime.calls_of("a"), ["sandbox 0", "pull img", "create main", "start main"]);
    let expected = [
        "active_pods{true} 1",
        "active_pods{} 1",
        "desired_pods{true} 1",
        "desired_pods{} 1",
        "mirror_pods{} 1",
        "working_pods{desired,sync,true} 1",
        "working_pods{desired,sync,} 1",
    ];
    assert_eq!(node.pod_counts(), expected);
}

// Scenario POD-S40.
#[actix::test]
async fn desired_pod_without_a_record_is_created() {
    let node = TestNode::start().await;
    make_desired(&node, &pod("a"));
    node.pass().await;
    let expected = ["active_pods{} 1", "desired_pods{} 1", "restarted_pods_total{} 1", "working_pods{desired,sync,} 1"];
    assert_eq!(node.pod_counts(), expected);
    assert_eq!(node.runtime.running("a"), ["main"]);
    node.pass().await;
    assert_eq!(node.pod_counts(), expected);
}

// Scenario POD-S41.
#[actix::test]
async fn desired_pod_in_phase_failed_is_not_created() {
    let node = TestNode::start().await;
    make_desired(&node, &pod("a").phase("Failed"));
    node.pass().await;
    assert_eq!(node.pod_counts(), ["desired_pods{} 1"]);
    assert_eq!(node.lifecycle("a"), None);
}

// Scenario POD-S42.
#[actix::test]
async fn rejected_pod_is_not_created() {
    let node = TestNode::start().await;
    node.deliver(&[pod("a").cpu("64")]).await;
    node.wait(5.0).await;
    assert_eq!(node.pod_counts(), ["desired_pods{} 1"]);
    assert_eq!(node.lifecycle("a"), None);
    assert_eq!((node.phase("a"), node.reason("a")), ("Failed".into(), "OutOfcpu".into()));
    assert_eq!(node.metric("kubelet_admission_rejections_total{reason=\"OutOfcpu\"}"), 1.0);
    assert_eq!(node.events.count("a", "OutOfcpu"), 1);
    let message = node.status("a").message.unwrap();
    assert!(message.starts_with("Pod was rejected: "), "{message}");
}

// Scenario POD-S43.
#[actix::test]
async fn housekeeping_does_not_retry_a_terminating_desired_pod() {
    let node = TestNode::start().await;
    node.deliver(&[pod("a")]).await;
    node.runtime.fail_stops();
    node.deliver(&[pod("a").deleting(5)]).await;
    for _ in 0..3 {
        node.pass().await;
    }
    assert_eq!(node.runtime.times_of("stop main").len(), 1);
    let expected = ["active_pods{} 1", "desired_pods{} 1", "working_pods{desired,terminating,} 1"];
    assert_eq!(node.pod_counts(), expected);
    assert!(node.events.has("a", "FailedKillPod"));
}

// Scenario POD-S47.
#[actix::test]
async fn orphan_is_stopped_with_the_grace_period_of_its_spec() {
    let node = TestNode::start().await;
    let web = pod("web").of_file().grace(40);
    node.runtime.script("main", Script::stubborn());
    node.deliver(std::slice::from_ref(&web)).await;
    make_undesired(&node, &web);
    node.pass().await;
    assert_eq!(node.pod_counts(), ["working_pods{orphan,terminating,true} 1"]);
    assert_eq!(node.runtime.calls_of("web").last().unwrap(), "stop main 40");
    assert!(node.node.engine().snapshot(&"web".into()).unwrap().deleted);
    node.wait(45.0).await;
    assert_eq!((node.lifecycle("web"), node.pod_counts()), (None, vec![]));
}

// KF1. Scenario POD-S48.
#[actix::test]
async fn one_pass_restarts_a_finished_pod_with_the_same_uid() {
    let node = TestNode::start().await;
    node.until(2.5).await;
    let web = pod("web").of_file();
    node.deliver(std::slice::from_ref(&web)).await;
    node.deliver(&[]).await;
    assert_eq!(node.lifecycle("web"), Some(Lifecycle::Finished));
    node.deliver(&[web.label("2")]).await;
    assert_eq!(node.lifecycle("web"), Some(Lifecycle::Finished));
    node.pass().await;
    assert_eq!(node.lifecycle("web"), Some(Lifecycle::Sync));
    let expected = [
        "active_pods{true} 1",
        "desired_pods{true} 1",
        "restarted_pods_total{true} 1",
        "working_pods{desired,sync,true} 1",
    ];
    assert_eq!(node.pod_counts(), expected);
    let active = node.node.engine().active_pod(&"web".into()).unwrap();
    assert_eq!(active.metadata().labels.as_ref().unwrap()["v"], "2");
}

// Scenario POD-S49.
#[actix::test]
async fn no_pod_is_stopped_before_every_source_that_may_desire_it_delivered() {
    let mut setup = Setup::new(true);
    setup.sources = vec![SourceKind::File, SourceKind::Http];
    let node = setup.start();
    let web = pod("web").of_file().build();
    node.deliver_set(SourceKind::File, vec![web], vec![]).await;
    node.wait(1.0).await;
    node.deliver_set(SourceKind::File, vec![], vec![]).await;
    node.wait(10.0).await;
    assert_eq!(node.runtime.running("web"), ["main"]);
    assert!(!node.node.engine().is_synced());
    node.deliver_set(SourceKind::Http, vec![], vec![]).await;
    node.wait(3.0).await;
    assert_eq!(node.runtime.running("web"), [""; 0]);
    assert!(node.node.engine().is_synced());
}

// Scenario POD-S49. The manifest URL does not answer. Only the API server may desire the pod, so the room of the pod is not kept.
#[actix::test]
async fn removed_pod_of_the_api_server_is_stopped_although_a_source_of_static_pods_has_not_delivered() {
    let mut setup = Setup::new(true);
    setup.sources = vec![SourceKind::Api, SourceKind::Http];
    let node = setup.start();
    for name in ["old", "new"] {
        node.deliver_set(SourceKind::Api, vec![pod(name).cpu("3").build()], vec![]).await;
        node.wait(10.0).await;
        assert_eq!(node.runtime.running(name), ["main"]);
    }
    assert_eq!(node.runtime.running("old"), [""; 0]);
}

// Scenario POD-S51.
#[actix::test]
async fn housekeeping_pass_with_failing_list_creates_and_removes_nothing() {
    let node = TestNode::start().await;
    let (gone, lost) = (pod("gone"), pod("lost"));
    node.deliver(std::slice::from_ref(&gone)).await;
    node.runtime.fail(Op::List);
    node.runtime.fail_stops();
    make_undesired(&node, &gone);
    make_desired(&node, &lost);
    let error = node.node.run_housekeeping().await.unwrap_err();
    assert_eq!(error, PassError::List(RuntimeError::failed("it broke")));
    assert!(node.node.engine().is_synced());
    assert_eq!(node.lifecycle("lost"), None);
    assert_eq!(node.phase("gone"), "Running");
    assert!(node.storage.has("gone"));
    // The pass compared the records before the list failed, so the orphan is stopping.
    assert_eq!(node.lifecycle("gone"), Some(Lifecycle::Terminating));
}

// The recorder keeps no successful passes, because there are many of them and they do not differ.
#[actix::test]
async fn recorder_keeps_failed_passes_and_the_first_pass_after_them() {
    let node = TestNode::start().await;
    node.wait(10.0).await;
    let recorded_passes = || {
        let file = node.node.engine().recording().unwrap();
        let lines = replay(&file, &Pick::Uid("none".into())).unwrap().timeline.into_iter().map(|line| line.event);
        lines.filter(|line| line.starts_with("housekeeping: ")).collect::<Vec<_>>()
    };
    assert_eq!(recorded_passes(), [""; 0]);
    node.runtime.fail(Op::List);
    node.node.run_housekeeping().await.unwrap_err();
    node.runtime.heal();
    node.wait(10.0).await;
    let passes = recorded_passes();
    assert_eq!(passes.len(), 2, "{passes:?}");
    assert!(passes[0].contains("failed: cannot list the runtime's pods: "), "{passes:?}");
    assert!(!passes[1].contains("failed"), "{passes:?}");
}

// Scenario POD-S52.
#[actix::test]
async fn removed_pod_loses_status_and_directory_and_finished_pod_keeps_both() {
    let node = TestNode::start().await;
    node.runtime.script("ok", Script::ends(1.0, 0));
    node.runtime.script("bad", Script::ends(1.0, 1));
    let ok = pod("ok").policy("Never").containers(&["ok"]);
    let bad = pod("bad").policy("Never").containers(&["bad"]);
    node.deliver(&[ok.clone(), bad.clone(), pod("gone")]).await;
    node.wait(5.0).await;
    node.deliver(&[ok, bad]).await;
    node.wait(10.0).await;
    assert_eq!((node.phase("ok"), node.phase("bad")), ("Succeeded".into(), "Failed".into()));
    assert!(node.storage.has("ok") && node.storage.has("bad"));
    assert!(!node.storage.has("gone"));
    assert_eq!(node.phase("gone"), "");
    assert_eq!(node.pod_counts(), ["desired_pods{} 2", "working_pods{desired,terminated,} 2"]);
}

// The deletion of the API object is not tested here, because the status writer does it (POD-S57).
#[actix::test]
async fn deleted_failed_pod_of_an_earlier_agent_is_cleaned_up_once() {
    let node = TestNode::start().await;
    make_desired(&node, &pod("a").phase("Failed").deleting(30));
    node.pass().await;
    assert_eq!(node.lifecycle("a"), Some(Lifecycle::Finished));
    assert!(node.node.statuses().is_finished(&"a".into()));
    let first = node.node.engine().snapshot(&"a".into()).unwrap();
    node.pass().await;
    assert_eq!(node.node.engine().snapshot(&"a".into()), Some(first));
    assert_eq!(node.pod_counts(), ["desired_pods{} 1", "working_pods{desired,terminated,} 1"]);
}

#[actix::test]
async fn pod_dispatched_during_the_list_is_not_counted_as_restarted() {
    let node = TestNode::start().await;
    node.runtime.slow(Op::List, 1.0);
    let pass = node.node.run_housekeeping();
    let deliver = async {
        node.wait(0.5).await;
        node.deliver(&[pod("a")]).await;
    };
    let (result, ()) = tokio::join!(pass, deliver);
    result.unwrap();
    assert_eq!(node.metric("kubelet_restarted_pods_total{static=\"\"}"), 0.0);
    assert_eq!(node.runtime.calls_of("a").iter().filter(|call| *call == "sandbox 0").count(), 1);
}

#[actix::test]
async fn housekeeping_continues_after_a_panic_in_a_port() {
    let node = TestNode::start().await;
    node.runtime.panic_in(Op::List);
    node.wait(5.0).await;
    node.runtime.heal();
    node.deliver(&[pod("a")]).await;
    node.wait(3.0).await;
    assert_eq!(node.pod_counts(), ["active_pods{} 1", "desired_pods{} 1", "working_pods{desired,sync,} 1"]);
    assert!(node.metric("podwright_hook_panics_total") >= 1.0);
}

// Rule POD-W11.
#[actix::test]
async fn exit_codes_of_an_evicted_pod_are_read_before_its_removal() {
    let node = TestNode::start().await;
    node.runtime.script("main", Script { stops: Some((Duration::from_secs(1), 7)), ..Script::default() });
    let a = pod("a");
    node.deliver(std::slice::from_ref(&a)).await;
    node.wait(3.0).await;
    node.runtime.fail(Op::StopSandbox);
    let evict = KillNow { evict: true, ..KillNow::default() };
    let (object, engine) = (a.build(), node.node.engine().clone());
    let killed = actix::spawn(async move { engine.kill_pod_now(&object, evict).await });
    node.wait(8.0).await;
    assert_eq!(node.lifecycle("a"), Some(Lifecycle::Terminating));
    node.runtime.heal();
    node.wait(30.0).await;
    killed.await.unwrap().unwrap();
    let calls = node.runtime.calls_of("a");
    let last = calls.len() - 3;
    assert_eq!(calls[last..], ["stop-sandbox", "remove main", "remove-sandbox"], "{calls:?}");
    let main = node.status("a").container_statuses.unwrap().remove(0);
    assert_eq!(main.state.unwrap().terminated.unwrap().exit_code, 7);
}
