//! A controller that replaces pods, and a node that has no room for two of them.

use podwright_fixtures::scripted_runtime::Script;
use podwright_model::pod::Phase;
use serde_json::json;

use crate::support::api_node::ApiNode;

/// A controller that keeps one pod, as a ReplicaSet does. A pod that has ended or is being deleted does not count.
#[derive(Default)]
struct ReplicaSet {
    /// How many pods it has created.
    created: usize,
}

impl ReplicaSet {
    /// The name of the newest pod.
    fn newest(&self) -> String {
        format!("web-{}", self.created)
    }

    fn reconcile(&mut self, this: &ApiNode) {
        let is_active = |phase| matches!(phase, Phase::Pending | Phase::Running | Phase::Unknown);
        let pods = this.api.pods();
        let mut own = pods.iter().filter(|pod| pod.full_name().name().starts_with("web-"));
        if !own.any(|pod| is_active(pod.phase()) && !pod.is_deleting()) {
            self.created += 1;
            this.api.create_pod(&self.newest(), &json!({"containers": [container("slow", "2")]}));
        }
    }

    /// Lets time pass while the controller and the node see each change.
    async fn run(&mut self, this: &ApiNode, seconds: u64) {
        for _ in 0..seconds * 10 {
            self.reconcile(this);
            this.watch().await;
            this.node.wait(0.1).await;
        }
        this.watch().await;
    }
}

fn container(name: &str, cpu: &str) -> serde_json::Value {
    json!({"name": name, "image": "img", "resources": {"requests": {"cpu": cpu}}})
}

// A new pod that failed would be replaced at once, and so would be each one after it until the old pod has stopped.
#[actix::test]
async fn controller_replaces_a_force_deleted_pod_by_exactly_one_pod() {
    let this = ApiNode::start().await;
    this.node.runtime.script("slow", Script::stubborn());
    this.api.create_pod("other", &json!({"containers": [container("main", "1")]}));
    let mut controller = ReplicaSet::default();
    controller.run(&this, 3).await;
    for is_stopping in [false, true] {
        let (before, old) = (controller.created, controller.newest());
        let old_uid = this.uid(&old);
        assert_eq!(this.api.phase(&old), "Running");
        if is_stopping {
            this.api.delete_pod(&old);
            controller.run(&this, 5).await;
        }
        this.api.force_delete(&old);
        controller.run(&this, 10).await;
        assert!(this.api.pod(&old).is_none());
        assert_eq!(this.node.runtime.running(&old_uid), ["slow"]);
        let (new, uid) = (controller.newest(), this.uid(&controller.newest()));
        assert_eq!((this.api.phase(&new), this.starts(&uid)), ("Pending".to_owned(), 0), "it waits");
        controller.run(&this, 35).await;
        assert_eq!((this.api.phase(&new), this.starts(&uid)), ("Running".to_owned(), 1));
        assert_eq!(this.node.runtime.running(&old_uid), [""; 0]);
        assert_eq!(controller.created, before + 1, "deleted before it stopped: {is_stopping}");
        assert_eq!(this.node.events.count(&new, "OutOfcpu"), 0);
    }
}
