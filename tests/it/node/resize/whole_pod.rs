//! Resizes of a pod as a whole.

use serde_json::json;

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
