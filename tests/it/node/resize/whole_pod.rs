//! Resizes of a pod as a whole.

use serde_json::json;

use crate::support::fake_runtime::Script;
use crate::support::pods::pod;
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

// If it were stopped, its exit code could say that it has completed.
#[actix::test]
async fn init_container_whose_policy_requires_a_restart_is_not_stopped_for_a_resize() {
    let node = TestNode::start().await;
    node.runtime.script("setup", Script::ends(60.0, 0));
    let of = |memory: &str| {
        let amounts = json!({"memory": memory});
        let policy = json!([{"resourceName": "memory", "restartPolicy": "RestartContainer"}]);
        pod("web")
            .spec("resources", json!({"limits": amounts, "requests": amounts}))
            .spec("initContainers", json!([{"name": "setup", "image": "img", "resizePolicy": policy}]))
            .spec("containers", json!([{"name": "main", "image": "img"}]))
    };
    let conditions = || -> Vec<String> {
        let conditions = node.status("web").conditions.unwrap().into_iter().map(|condition| condition.type_);
        conditions.filter(|name| name.starts_with("PodResize")).collect()
    };
    node.deliver(&[of("95Mi")]).await;
    node.wait(5.0).await;
    node.deliver(&[of("100Mi")]).await;
    node.wait(30.0).await;
    assert_eq!(node.runtime.running("web"), ["setup"]);
    assert_eq!(conditions(), ["PodResizeInProgress"]);
    node.wait(40.0).await;
    assert_eq!(node.runtime.running("web"), ["main"]);
    assert_eq!(conditions(), [""; 0]);
    assert_eq!(node.status("web").init_container_statuses.unwrap()[0].restart_count, 0);
}
