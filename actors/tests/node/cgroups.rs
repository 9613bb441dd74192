//! The cgroups of pods, from their creation before the sandbox to their removal after the cleanup.

use std::sync::Arc;

use podwright_core::pod_worker::Lifecycle;
use podwright_fixtures::api_pods::pod;

use super::explain::reading::waits;
use crate::support::fake_cgroups::FakeCgroups;
use crate::support::test_node::{Setup, TestNode};

async fn start(cgroups: &Arc<FakeCgroups>) -> TestNode {
    let node = Setup { cgroups: Some(cgroups.clone()), ..Setup::new(true) }.start();
    node.deliver(&[]).await;
    node
}

// KF23
#[actix::test]
async fn pod_cgroup_exists_until_pod_cleanup() {
    let cgroups = Arc::new(FakeCgroups::default());
    let node = start(&cgroups).await;
    node.deliver(&[pod("a")]).await;
    assert_eq!((cgroups.of(), node.runtime.running("a")), (vec!["a".to_owned()], vec!["main".to_owned()]));

    // A cgroup that cannot be removed delays the end of the pod, and the error says so.
    cgroups.stick(true);
    node.deliver(&[pod("a").deleting(1)]).await;
    node.wait(5.0).await;
    assert_eq!(node.lifecycle("a"), Some(Lifecycle::Terminated));
    let why = node.node.engine().snapshot(&"a".into()).unwrap().wait;
    assert!(format!("{why:?}").contains("/kubepods/poda: in use"), "{why:?}");
    cgroups.stick(false);
    node.eventually(60.0, "finished", || node.lifecycle("a") == Some(Lifecycle::Finished)).await;
    assert_eq!(cgroups.of(), [""; 0]);
}

// Rules POD-K1, POD-K14, POD-W37.
#[actix::test]
async fn housekeeping_removes_only_cgroups_of_removed_pods() {
    let cgroups = Arc::new(FakeCgroups::default());
    ["gone", "runs", "theirs"].iter().for_each(|uid| cgroups.plant(uid));
    let node = start(&cgroups).await;
    node.storage.plant("gone");
    node.deliver(&[pod("runs")]).await;
    node.wait(10.0).await;
    // A cgroup without a pod directory belongs to another agent.
    assert_eq!(cgroups.of(), ["runs", "theirs"]);

    // A pod is not forgotten while its cgroup cannot be removed.
    node.storage.plant("stuck");
    cgroups.plant("stuck");
    cgroups.stick(true);
    node.wait(10.0).await;
    assert!(node.storage.has("stuck"));
    cgroups.stick(false);
    node.wait(10.0).await;
    assert!(!node.storage.has("stuck") && cgroups.of() == ["runs", "theirs"]);
}

// Rule POD-W37.
#[actix::test]
async fn pod_added_again_during_cgroup_removal_keeps_its_cgroup() {
    let cgroups = Arc::new(FakeCgroups::default());
    let node = start(&cgroups).await;
    node.storage.plant("back");
    cgroups.plant("back");
    cgroups.hold(true);
    node.wait(10.0).await;
    node.deliver(&[pod("back")]).await;
    cgroups.hold(false);
    node.wait(10.0).await;
    assert_eq!((cgroups.of(), node.runtime.running("back")), (vec!["back".to_owned()], vec!["main".to_owned()]));
}

#[actix::test]
async fn containers_outside_their_pod_cgroup_are_restarted_inside_it() {
    let cgroups = Arc::new(FakeCgroups::default());
    let node = start(&cgroups).await;
    node.deliver(&[pod("a"), pod("once").policy("Never")]).await;
    ["a", "once"].iter().for_each(|uid| cgroups.lose(uid));
    node.deliver(&[pod("a").label("new"), pod("once").label("new").policy("Never")]).await;
    node.wait(30.0).await;
    assert!(cgroups.of().contains(&"a".to_owned()));
    assert_eq!(node.runtime.running("a"), ["main"]);
    let calls = node.runtime.calls_of("a");
    assert_eq!(calls.iter().filter(|call| *call == "start main").count(), 2, "{calls:?}");
    // A container of a pod with restartPolicy Never is not started again.
    assert_eq!(node.runtime.running("once"), [""; 0]);
    let calls = node.runtime.calls_of("once");
    assert_eq!(calls.iter().filter(|call| *call == "start main").count(), 1, "{calls:?}");
}

// Rule POD-W3.
#[actix::test]
async fn slow_cgroup_call_is_explained_and_cancelled_with_its_pod() {
    let cgroups = Arc::new(FakeCgroups::default());
    let node = start(&cgroups).await;
    cgroups.silence(true);
    node.deliver(&[pod("a")]).await;
    node.until(20.0).await;
    let explanation = waits(&node, "a");
    assert!(explanation.contains("its cgroup is being made"), "{explanation}");
    node.deliver(&[]).await;
    node.until(40.0).await;
    assert_eq!(node.lifecycle("a"), None, "the engine has dropped the record");

    cgroups.silence(false);
    node.deliver(&[pod("b")]).await;
    cgroups.hold(true);
    node.deliver(&[pod("b").deleting(1)]).await;
    node.until(60.0).await;
    let explanation = waits(&node, "b");
    assert!(explanation.contains("its cgroup is being removed"), "{explanation}");
    cgroups.hold(false);
    node.eventually(120.0, "finished", || node.lifecycle("b") == Some(Lifecycle::Finished)).await;
}
