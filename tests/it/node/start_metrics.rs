//! The metrics of pod starts.

use podwright_actors::ports::SourceKind;

use crate::support::fake_runtime::{Op, Script};
use crate::support::pods::{PodBuilder, pod};
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
