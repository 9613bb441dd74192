//! The generation in the status of a pod that is resized.

use podwright_actors::pod::PodObject;
use podwright_actors::ports::SourceKind;
use serde_json::json;

use super::{ResizeNode, request};

/// Checks a pod of the API server: if its status has its generation, then the pod has what it requests, or a condition that says why not.
pub(super) fn assert_decided(pod: &PodObject) {
    let (Some(status), Some(generation)) = (pod.status(), pod.metadata().generation) else { return };
    let has_condition = status.conditions.iter().flatten().any(|it| it.type_.starts_with("PodResize"));
    if status.observed_generation != Some(generation) || has_condition || pod.is_deleting() || pod.is_mirror() {
        return;
    }
    for container in pod.containers() {
        let found = status.container_statuses.iter().flatten().find(|it| it.name == container.name);
        let Some(allocated) = found.and_then(|it| it.allocated_resources.as_ref()) else { continue };
        let requested = container.resources.as_ref().and_then(|it| it.requests.as_ref());
        assert_eq!(Some(allocated), requested, "{} observed generation {generation}", container.name);
    }
}

// The other source may have pods that need the room, so that nothing is decided before it has delivered.
#[actix::test]
async fn status_has_the_generation_of_a_resize_only_after_the_decision() {
    let this = ResizeNode::start().await;
    this.run("web", &request("1")).await;
    let observed = |this: &ResizeNode| this.api.status("web").observed_generation;
    assert_eq!(observed(&this), Some(1));
    let this = this.restart_with(vec![SourceKind::Api, SourceKind::File]).await;
    this.resize("web", &request("3")["containers"]).await;
    assert_eq!((observed(&this), this.resources("web").1), (Some(1), json!({"cpu": "1"})));
    assert_eq!(this.condition("web", "PodResizePending"), "");
    this.node.deliver_set(SourceKind::File, Vec::new(), Vec::new()).await;
    this.wait(3).await;
    assert_eq!((observed(&this), this.resources("web").1), (Some(2), json!({"cpu": "3"})));
    // A deferred resize is decided too.
    this.resize("web", &request("5")["containers"]).await;
    assert_eq!(observed(&this), Some(3));
    assert!(this.condition("web", "PodResizePending").ends_with("@3"));
}
