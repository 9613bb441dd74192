//! The pass: what is desired, known and running, brought together.

use podwright_actors::pod_worker::Lifecycle;

use crate::support::pods::pod;
use crate::support::test_node::TestNode;

#[actix::test]
async fn smoke() {
    let node = TestNode::start().await;
    node.deliver(&[pod("a")]).await;
    node.wait(3.0).await;
    assert_eq!(node.lifecycle("a"), Some(Lifecycle::Sync));
    assert_eq!(node.phase("a"), "Running");
    assert_eq!(node.runtime.calls_of("a"), ["sandbox 0", "pull img", "create main", "start main"]);
    assert_eq!(node.pod_counts(), ["active_pods{} 1", "desired_pods{} 1", "working_pods{desired,sync,} 1"]);
}
