//! The deletion of the node when an agent ends that was registered.

use std::time::Duration;

use podwright_actors::ports::ApiError;
use podwright_stand_in::Grant;
use serde_json::{Value, json};

use super::{JSON, LEASES, Registered, STRATEGIC, settings};

impl Registered {
    /// A node that has registered itself, and that may delete its node and its lease.
    async fn with_permission_to_delete() -> Self {
        let (setup, server) = Registered::setup();
        for resource in ["nodes", "leases"] {
            server.grant(Grant::new("system:node:node1", "delete", resource));
        }
        Registered::start(setup, &server, settings("agent-1")).await
    }

    /// A user deletes the node. After a while, somebody creates it again.
    async fn create_again(&self) {
        self.api.server.request("DELETE", "/api/v1/nodes/node1", JSON, &Value::Null).unwrap();
        self.node.wait(0.2).await;
        self.api.server.request("POST", "/api/v1/nodes", JSON, &json!({"metadata": {"name": "node1"}})).unwrap();
    }

    async fn end(&self) -> Result<bool, ApiError> {
        self.node.node.shutdown(Duration::ZERO).await;
        self.node.wait(0.2).await;
        self.node.node.deregister().await
    }
}

#[actix::test]
async fn node_that_was_created_again_is_deleted_once_its_lease_is_renewed() {
    let this = Registered::with_permission_to_delete().await;
    this.create_again().await;
    this.node.wait(12.0).await;
    let owner = this.api.read_lease().unwrap()["metadata"]["ownerReferences"][0]["uid"].clone();
    assert_eq!(owner, this.api.read().unwrap()["metadata"]["uid"]);
    let answer = this.end().await;
    assert!(matches!(answer, Ok(true)), "{answer:?}");
    assert_eq!((this.api.read(), this.api.read_lease()), (None, None));
}

// Another agent may have created the node, and may claim the lease next.
#[actix::test]
async fn node_that_was_created_again_is_left_before_its_lease_is_renewed() {
    let this = Registered::with_permission_to_delete().await;
    this.create_again().await;
    this.node.wait(0.2).await;
    let of_other = this.api.read().unwrap();
    let answer = this.end().await;
    assert!(matches!(answer, Err(ApiError::Conflict(_))), "{answer:?}");
    assert_eq!(this.api.read().unwrap()["metadata"]["uid"], of_other["metadata"]["uid"]);
}

// An agent that did not run for a while, as on a suspended machine, has not learned that another one has replaced it.
#[actix::test]
async fn node_whose_lease_another_agent_has_taken_is_left() {
    let this = Registered::with_permission_to_delete().await;
    let other = json!({"metadata": {"annotations": {"podwright.dev/instance": "agent-2"}}});
    this.api.server.request("PATCH", &format!("{LEASES}/node1"), STRATEGIC, &other).unwrap();
    let answer = this.end().await;
    assert!(matches!(answer, Ok(false)), "{answer:?}");
    assert!(this.api.read().is_some() && this.api.read_lease().is_some());
}
