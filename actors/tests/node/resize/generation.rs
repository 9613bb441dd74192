//! The generation in the status of a pod that is resized.

use k8s_openapi::api::core::v1::ContainerStatus;
use podwright_core::config::pod_resources::resources_without_overhead;
use podwright_model::pod::PodObject;
use podwright_ports::{PodRuntimeStatus, SourceKind};
use serde_json::{Value, json};

use super::{ResizeNode, STRATEGIC, request};
use crate::support::test_node::Setup;

/// Checks a pod of the API server: if its status has its generation, then the pod and its containers have what they request and their
/// limits, or a condition says why not.
pub(super) fn assert_decided(pod: &PodObject, runtime: &PodRuntimeStatus) {
    let (Some(status), Some(generation)) = (pod.status(), pod.metadata().generation) else { return };
    let conditions = || status.conditions.iter().flatten();
    let has_condition = conditions().any(|it| it.type_.starts_with("PodResize"));
    // A pod that ends is not resized further. Its phase stays Running while a container runs.
    let is_ending = conditions().any(|it| matches!(it.reason.as_deref(), Some("PodFailed" | "PodCompleted")));
    let is_stopping = pod.is_deleting() || is_ending;
    if status.observed_generation != Some(generation) || has_condition || is_stopping || pod.is_mirror() {
        return;
    }
    let regular = pod.containers().iter().zip(std::iter::repeat(&status.container_statuses));
    let init = pod.init_containers().iter().zip(std::iter::repeat(&status.init_container_statuses));
    for (container, statuses) in regular.chain(init) {
        // A container that has not begun has no resources, and one that was removed keeps those of its last run.
        let runs = |it: &&ContainerStatus| it.state.as_ref().is_some_and(|state| state.running.is_some());
        let found = statuses.iter().flatten().find(|it| it.name == container.name);
        let Some(found) = found.filter(runs) else { continue };
        let what = format!("{} observed generation {generation}", container.name);
        let desired = container.resources.clone().unwrap_or_default();
        assert_eq!(found.allocated_resources, desired.requests, "{what}");
        // The node does not decide what the runtime reports.
        if runtime.newest(&container.name).is_none_or(|run| run.applied.is_none()) {
            let shown = found.resources.clone().unwrap_or_default();
            assert_eq!((shown.requests, shown.limits), (desired.requests, desired.limits), "{what}");
        }
        let whole = resources_without_overhead(pod.spec());
        assert_eq!(status.allocated_resources, whole.requests, "the pod observed generation {generation}");
        assert_eq!(status.resources.clone().unwrap_or_default(), whole, "the pod observed generation {generation}");
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

// Until the decision, the status has the old generation. After the decision, it has the new resources or a condition: `watch` checks this
// at each delivery.
#[actix::test]
async fn each_kind_of_resize_is_reported_with_its_decision() {
    let resources = |cpu: &str, limit: &str| json!({"requests": {"cpu": cpu}, "limits": {"cpu": limit}});
    let list = |name: &str, resources: Value| json!([{"name": name, "image": "img", "resources": resources}]);
    let main = |resources: Value| json!({"containers": list("main", resources)});
    let setup = |resources: Value| json!({"initContainers": list("setup", resources)});
    let whole = |resources: Value| json!({"resources": resources});
    tokio::time::pause();
    for (what, from, to) in [
        ("request", main(resources("1", "3")), main(resources("2", "3"))),
        ("limit", main(resources("1", "3")), main(resources("1", "2"))),
        ("limit of the pod", whole(resources("1", "3")), whole(resources("1", "2"))),
        ("init container", setup(resources("1", "3")), setup(resources("2", "3"))),
        ("limit of an init container", setup(resources("1", "3")), setup(resources("1", "2"))),
    ] {
        let this = ResizeNode::start_with(Setup::again(true)).await;
        this.api.create_pod("web", &from);
        this.watch().await;
        this.wait(2).await;
        let observed = |this: &ResizeNode| this.api.status("web").observed_generation;
        assert_eq!(observed(&this), Some(1), "{what}");

        let this = this.restart_with(vec![SourceKind::Api, SourceKind::File]).await;
        let path = "/api/v1/namespaces/test/pods/web/resize";
        this.api.request("PATCH", path, STRATEGIC, &json!({"spec": to})).unwrap();
        this.watch().await;
        this.wait(2).await;
        assert_eq!((observed(&this), this.updates("web").len()), (Some(1), 0), "{what}");
        this.node.deliver_set(SourceKind::File, Vec::new(), Vec::new()).await;
        this.wait(3).await;
        assert_eq!((observed(&this), this.updates("web").len()), (Some(2), 1), "{what}");
        let conditions = ["PodResizePending", "PodResizeInProgress"].map(|kind| this.condition("web", kind));
        assert_eq!(conditions, ["", ""], "{what}");
    }
}
