//! Resizes of a pod as a whole.

use podwright_fixtures::api_pods::{PodBuilder, pod};
use podwright_fixtures::scripted_runtime::{Op, Script};
use serde_json::json;

use super::{ResizeNode, STRATEGIC, container, waits};
use crate::support::test_node::TestNode;

#[actix::test]
async fn containers_get_the_limits_that_they_inherit_from_a_resized_pod() {
    let node = TestNode::start().await;
    let of = |memory: &str| {
        let amounts = json!({"memory": memory});
        let container = |name: &str, policy: &str| {
            let policy = json!([{"resourceName": "memory", "restartPolicy": policy}]);
            json!({"name": name, "image": "img", "resizePolicy": policy})
        };
        let mut side = container("side", "RestartContainer");
        side["restartPolicy"] = json!("Always");
        pod("web")
            .spec("resources", json!({"limits": amounts, "requests": amounts}))
            .spec("initContainers", json!([side]))
            .spec("containers", json!([container("main", "NotRequired")]))
    };
    node.deliver(&[of("95Mi")]).await;
    node.wait(5.0).await;
    node.runtime.uses_memory("web", 8);
    // The second resize takes the first one back. A container that restarts again has a crash backoff.
    for (memory, restarts) in [("100Mi", 1), ("95Mi", 2)] {
        node.deliver(&[of(memory)]).await;
        node.wait(30.0).await;
        let mut updates = node.runtime.calls_of("web").into_iter().filter(|call| call.starts_with("update"));
        assert_eq!(updates.next_back(), Some(format!("update main memory={memory}")));
        let status = node.status("web");
        let count = |list: Option<Vec<k8s_openapi::api::core::v1::ContainerStatus>>| list.unwrap()[0].restart_count;
        assert_eq!((count(status.init_container_statuses), count(status.container_statuses)), (restarts, 0));
        assert!(!status.conditions.unwrap().iter().any(|condition| condition.type_.starts_with("PodResize")));
    }
}

#[actix::test]
async fn init_container_gets_the_limit_that_it_inherits_only_while_it_runs() {
    let node = TestNode::start().await;
    node.runtime.script("setup", Script::ends(60.0, 0));
    let of = |memory: &str| {
        let amounts = json!({"memory": memory});
        pod("web")
            .spec("resources", json!({"limits": amounts, "requests": amounts}))
            .spec("initContainers", json!([{"name": "setup", "image": "img"}]))
            .spec("containers", json!([{"name": "main", "image": "img"}]))
    };
    let updates = || -> Vec<String> {
        node.runtime.calls_of("web").into_iter().filter(|call| call.starts_with("update")).collect()
    };
    node.deliver(&[of("95Mi")]).await;
    node.wait(5.0).await;
    node.deliver(&[of("100Mi")]).await;
    node.wait(5.0).await;
    assert_eq!(updates(), ["update setup memory=100Mi"]);
    assert!(!node.status("web").conditions.unwrap().iter().any(|condition| condition.type_.starts_with("PodResize")));

    // The other container starts with the new limit. A later resize does not change the container that has ended.
    node.wait(60.0).await;
    assert_eq!(node.runtime.running("web"), ["main"]);
    node.deliver(&[of("105Mi")]).await;
    node.wait(5.0).await;
    assert_eq!(updates(), ["update setup memory=100Mi", "update main memory=105Mi"]);
    assert!(!node.status("web").conditions.unwrap().iter().any(|condition| condition.type_.starts_with("PodResize")));
}

/// A pod with a memory limit as a whole. The container `name` restarts for a change of the memory that it inherits. An init container
/// `setup` comes before the container `main`.
fn restarting(name: &str, memory: &str) -> PodBuilder {
    let amounts = json!({"memory": memory});
    let container = |own: &str| {
        let policy = if own == name { "RestartContainer" } else { "NotRequired" };
        let policy = json!([{"resourceName": "memory", "restartPolicy": policy}]);
        json!({"name": own, "image": "img", "resizePolicy": policy})
    };
    let init = if name == "setup" { vec![container("setup")] } else { Vec::new() };
    pod("web")
        .policy("OnFailure")
        .spec("resources", json!({"limits": amounts, "requests": amounts}))
        .spec("initContainers", init)
        .spec("containers", json!([container("main")]))
}

#[actix::test]
async fn init_container_restarts_for_a_resize_if_its_policy_requires_that() {
    let node = TestNode::start().await;
    node.runtime.script("setup", Script::ends(60.0, 0));
    node.deliver(&[restarting("setup", "95Mi")]).await;
    node.wait(30.0).await;
    node.deliver(&[restarting("setup", "100Mi")]).await;
    node.wait(50.0).await;
    assert_eq!(node.runtime.running("web"), ["setup"], "its run of 60 s begins again");
    assert_eq!(node.status("web").init_container_statuses.unwrap()[0].restart_count, 1);
    assert!(!node.status("web").conditions.unwrap().iter().any(|condition| condition.type_.starts_with("PodResize")));
    node.wait(20.0).await;
    assert_eq!(node.runtime.running("web"), ["main"]);
    assert_eq!(node.status("web").init_container_statuses.unwrap()[0].restart_count, 1);
}

// With the cgroups of version 1, the kernel refuses a container more than its pod has.
#[actix::test]
async fn pod_gets_more_before_an_init_container_that_restarts_for_it() {
    let this = ResizeNode::start().await;
    let side = |memory: &str| {
        let mut side = container("side", "1", memory);
        side["restartPolicy"] = json!("Always");
        side["resizePolicy"] = json!([{"resourceName": "memory", "restartPolicy": "RestartContainer"}]);
        side
    };
    this.run("web", &json!({"initContainers": [side("64Mi")], "containers": [container("main", "1", "64Mi")]})).await;
    let uid = this.api.pod("web").unwrap().uid().to_string();
    let before = this.node.runtime.calls_of(&uid).len();
    let path = "/api/v1/namespaces/test/pods/web/resize";
    let more = json!({"spec": {"initContainers": [side("128Mi")]}});
    this.api.request("PATCH", path, STRATEGIC, &more).unwrap();
    this.watch().await;
    this.wait(2).await;
    let calls = this.node.runtime.calls_of(&uid).split_off(before);
    let at = |what: &str| calls.iter().position(|call| call.starts_with(what));
    assert!(at("stop side") < at("cgroup memory 192") && at("cgroup memory 192") < at("create side"), "{calls:?}");
    assert!(at("stop side").is_some(), "{calls:?}");
}

// The container exits with 0 when it is stopped. Its next run cannot be created.
#[test]
fn container_that_was_stopped_for_a_resize_has_not_completed_its_work() {
    for (name, phase) in [("setup", "Pending"), ("main", "Running")] {
        for is_killed in [false, true] {
            actix::System::new().block_on(stopped_container_runs_again(name, phase, is_killed));
        }
    }
}

async fn stopped_container_runs_again(name: &str, phase: &str, is_killed: bool) {
    let mut node = TestNode::start().await;
    node.runtime.script("setup", Script::ends(600.0, 0));
    node.deliver(&[restarting(name, "95Mi")]).await;
    node.wait(5.0).await;
    assert_eq!(node.runtime.running("web"), [name]);
    node.runtime.fail(Op::Create);
    node.deliver(&[restarting(name, "100Mi")]).await;
    node.wait(5.0).await;
    assert_eq!((node.runtime.running("web").len(), node.phase("web").as_str()), (0, phase), "{name}");
    if is_killed {
        node = node.killed().start();
        node.deliver(&[restarting(name, "100Mi")]).await;
        node.wait(5.0).await;
        assert_eq!((node.runtime.running("web").len(), node.phase("web").as_str()), (0, phase), "{name}");
    }
    node.runtime.heal();
    node.wait(60.0).await;
    assert_eq!(node.runtime.running("web"), [name], "killed: {is_killed}");
}

// The resize is taken back, so the container runs on. It completes its work an hour later.
#[test]
fn container_whose_stop_for_a_resize_failed_completes_its_work() {
    for is_killed in [false, true] {
        actix::System::new().block_on(container_completes_its_work(is_killed));
    }
}

async fn container_completes_its_work(is_killed: bool) {
    let mut node = TestNode::start().await;
    node.runtime.script("main", Script::ends(3600.0, 0));
    node.deliver(&[restarting("main", "95Mi")]).await;
    node.wait(5.0).await;
    node.runtime.fail(Op::Stop);
    node.deliver(&[restarting("main", "100Mi")]).await;
    node.wait(5.0).await;
    assert!(!calls(&node, "stop main").is_empty());
    if is_killed {
        node = node.killed().start();
    }
    node.runtime.heal();
    node.deliver(&[restarting("main", "95Mi")]).await;
    node.wait(4000.0).await;
    assert_eq!(node.phase("web"), "Succeeded", "killed: {is_killed}");
    assert_eq!(calls(&node, "start main").len(), 1, "killed: {is_killed}");
}

// An agent that dies before the next run starts would take the exit for completed work.
#[actix::test]
async fn container_is_not_stopped_for_a_resize_before_the_stop_is_in_the_file() {
    let node = TestNode::start().await;
    node.deliver(&[restarting("main", "95Mi")]).await;
    node.wait(5.0).await;
    let message = || {
        let conditions = node.status("web").conditions.unwrap();
        let progress = conditions.into_iter().find(|condition| condition.type_ == "PodResizeInProgress");
        progress.and_then(|progress| progress.message)
    };
    node.run_facts.broken(true);
    node.deliver(&[restarting("main", "100Mi")]).await;
    node.wait(60.0).await;
    assert_eq!(calls(&node, "stop main"), [""; 0]);
    assert!(message().unwrap().contains("the file of the facts of containers cannot be written"), "{:?}", message());
    node.run_facts.broken(false);
    node.wait(600.0).await;
    assert_eq!((calls(&node, "stop main").len(), calls(&node, "start main").len()), (1, 2));
    assert_eq!(message(), None);
}

#[actix::test]
async fn wait_for_the_record_of_a_stop_for_a_resize_is_explained() {
    let node = TestNode::start().await;
    node.deliver(&[restarting("main", "95Mi")]).await;
    node.wait(5.0).await;
    node.run_facts.slow(60_000);
    node.deliver(&[restarting("main", "100Mi")]).await;
    node.wait(5.0).await;
    let explained = waits(&node, "web");
    assert!(explained.contains("the resources of its containers are being changed"), "{explained}");
    node.wait(10.0).await;
    assert_eq!(calls(&node, "stop main"), [""; 0]);
}

fn calls(node: &TestNode, what: &str) -> Vec<String> {
    node.runtime.calls_of("web").into_iter().filter(|call| call.starts_with(what)).collect()
}
