//! The metrics of pod starts.

use podwright_fixtures::api_pods::{PodBuilder, pod};
use podwright_fixtures::scripted_runtime::{Op, Script};
use podwright_ports::SourceKind;
use serde_json::{Value, json};

use crate::support::api_node::ApiNode;
use crate::support::test_node::TestNode;

/// The node's clock begins at 1 800 000 000.
fn with_seen_annotation(pod: PodBuilder) -> PodBuilder {
    pod.annotation("kubernetes.io/config.seen", "2027-01-15T08:00:00Z")
}

// Rule POD-W15.
#[actix::test]
async fn pod_start_duration_is_measured_once_per_pod() {
    let node = TestNode::start().await;
    node.runtime.script("main", Script::ends(5.0, 1));
    node.runtime.slow(Op::Pull, 7.0);
    node.deliver(&[with_seen_annotation(pod("a")), pod("unseen")]).await;
    node.wait(1.0).await;
    assert_eq!(node.metric("kubelet_pod_start_duration_seconds_count"), 0.0);
    node.wait(100.0).await;
    assert!(node.runtime.times_of("start main").len() > 4);
    assert_eq!(node.metric("kubelet_pod_start_duration_seconds_count"), 1.0);
    let took = node.metric("kubelet_pod_start_duration_seconds_sum");
    assert!((7.0..7.5).contains(&took), "{took}");
}

// Rule POD-W18.
#[actix::test]
async fn worker_start_duration_is_measured_for_a_merged_create() {
    let node = TestNode::start().await;
    node.wait(1.0).await;
    let versions = [with_seen_annotation(pod("a")), with_seen_annotation(pod("a")).label("2")];
    for version in &versions {
        node.deliver_set(SourceKind::Api, vec![version.build()], vec![]).await;
    }
    node.settled().await;
    assert_eq!(node.runtime.times_of("start main").len(), 1);
    assert_eq!(node.metric("kubelet_pod_worker_start_duration_seconds_count"), 1.0);
    let took = node.metric("kubelet_pod_worker_start_duration_seconds_sum");
    assert!((1.0..1.1).contains(&took), "{took}");
    assert_eq!(node.metric("kubelet_containers_per_pod_count_count"), 1.0);
}

impl ApiNode {
    /// The numbers of pods in the indicator and in the total, and their seconds in all.
    fn measured_starts(&self) -> [f64; 4] {
        [
            "sli_duration_seconds_count",
            "total_duration_seconds_count",
            "sli_duration_seconds_sum",
            "total_duration_seconds_sum",
        ]
        .map(|series| self.node.metric(&format!("kubelet_pod_start_{series}")))
    }

    /// The value of the gauge for the first pod with a pod network.
    fn first_network_pod(&self) -> f64 {
        self.node.metric("kubelet_first_network_pod_start_sli_duration_seconds")
    }

    /// Creates pods, and waits until they run.
    async fn start_pods(&self, pods: &[(&str, Value)]) {
        pods.iter().for_each(|(name, spec)| self.api.create_pod(name, spec));
        self.watch().await;
        self.wait(40).await;
        assert!(pods.iter().all(|(name, _)| self.api.phase(name) == "Running"));
    }
}

#[actix::test]
async fn start_indicator_contains_neither_pulls_nor_init_containers() {
    let this = ApiNode::start().await;
    this.node.runtime.slow(Op::Pull, 3.0);
    this.node.runtime.script("init", Script::ends(5.0, 0));
    let init = json!({"initContainers": [{"name": "init", "image": "img"}]});
    this.start_pods(&[("web", init)]).await;
    let [count, total_count, indicator, total] = this.measured_starts();
    assert_eq!((count, total_count), (1.0, 1.0));
    assert!((11.0..12.0).contains(&total), "two pulls of 3 s and 5 s of the init container: {total}");
    assert!((0.0..1.0).contains(&indicator), "{indicator}");
    assert_eq!(this.first_network_pod(), indicator);

    // A restart of the container is no start of the pod.
    this.node.runtime.edit(&this.api.pods()[0].uid().to_string(), "main", |run| {
        run.state = podwright_ports::ContainerState::Exited;
    });
    this.wait(30).await;
    assert_eq!(this.measured_starts(), [1.0, 1.0, indicator, total]);
}

#[actix::test]
async fn start_indicator_leaves_out_stateful_and_unscheduled_pods_and_the_pods_of_earlier_agents() {
    let this = ApiNode::start().await;
    let host_path = json!({"volumes": [{"name": "data", "hostPath": {"path": "/data"}}]});
    let empty_dir = json!({"hostNetwork": true, "volumes": [{"name": "data", "emptyDir": {}}]});
    this.start_pods(&[("stateful", host_path)]).await;
    assert_eq!(this.measured_starts()[..2], [0.0, 1.0]);
    this.start_pods(&[("stateless", empty_dir)]).await;
    assert_eq!(this.measured_starts()[..2], [1.0, 2.0]);
    assert_eq!(this.first_network_pod(), 0.0, "the pod uses the network of the host");

    this.api.create_pod("late", &json!({}));
    let unscheduled = json!({"conditions": [{"type": "PodScheduled", "status": "False"}]});
    this.api.patch_status_of("late", &unscheduled);
    this.api.create_pod("earlier", &json!({}));
    this.api.patch_status_of("earlier", &json!({"startTime": "2027-01-15T08:00:00Z"}));
    this.start_pods(&[]).await;
    assert_eq!((&*this.api.phase("late"), &*this.api.phase("earlier")), ("Running", "Running"));
    assert_eq!(this.measured_starts()[..2], [1.0, 2.0]);
}
