//! The deletion of the node when an agent ends that was registered.

use std::time::Duration;

use podwright_actors::Registration;
use podwright_ports::{ApiError, Clock};
use podwright_stand_in::Grant;
use serde_json::{Value, json};
use tokio::time::sleep;

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

    /// A kubelet renews the lease: it keeps the annotations and changes the renew time.
    fn kubelet_renews(&self) {
        let renewed = (Clock::now(&self.node.clock) + Duration::from_secs(1)).to_timestamp().to_string();
        let renewal = json!({"spec": {"renewTime": renewed}});
        self.api.server.request("PATCH", &format!("{LEASES}/node1"), STRATEGIC, &renewal).unwrap();
    }

    async fn end(&self) -> Result<bool, ApiError> {
        self.node.node.shutdown(Duration::ZERO).await;
        self.node.wait(0.2).await;
        self.node.node.deregister().await
    }

    /// The agent ends. Each call of its deregistration takes 100 ms: it reads the node and the lease, writes the lease, and deletes the node
    /// and the lease. Another agent writes the lease after a while. Returns the answers to both.
    async fn end_while<T>(&self, after: u64, write: impl FnOnce() -> T) -> (Result<bool, ApiError>, T) {
        let other = async {
            sleep(Duration::from_millis(after)).await;
            write()
        };
        self.end_during(other).await
    }

    /// The agent ends, while others do something from the beginning of its deregistration on.
    async fn end_during<T>(&self, others: impl Future<Output = T>) -> (Result<bool, ApiError>, T) {
        self.node.node.shutdown(Duration::ZERO).await;
        self.node.wait(0.2).await;
        self.api.server.latency(100);
        tokio::join!(self.node.node.deregister(), others)
    }

    /// The server performs a renewal that this agent requested before it ended.
    fn renews_late(&self) {
        let renewed = format!("{:.6}", Clock::now(&self.node.clock).to_timestamp());
        let annotations = json!({"podwright.dev/renewed": renewed});
        let renewal = json!({"metadata": {"annotations": annotations}, "spec": {"renewTime": renewed}});
        self.api.server.request("PATCH", &format!("{LEASES}/node1"), STRATEGIC, &renewal).unwrap();
    }

    fn delete_lease(&self) {
        self.api.server.request("DELETE", &format!("{LEASES}/node1"), JSON, &Value::Null).unwrap();
    }

    /// Checks that the agent deletes its node and its lease although the server writes or deletes the lease, on behalf of the agent or of a
    /// user, between the read and the write of the agent.
    async fn deletes_its_node_while(&self, write: impl FnOnce()) {
        let (answer, ()) = self.end_while(250, write).await;
        assert!(matches!(answer, Ok(true)), "{answer:?}");
        assert_eq!((self.api.read(), self.api.read_lease()), (None, None));
    }

    /// Another agent replaces this version of the lease. Returns the status of a refusal.
    fn replace(&self, mut lease: Value) -> Result<(), u16> {
        lease["metadata"]["annotations"]["podwright.dev/instance"] = "agent-2".into();
        let replaced = self.api.server.request("PUT", &format!("{LEASES}/node1"), JSON, &lease);
        replaced.map(drop).map_err(|refusal| refusal.code)
    }

    /// A node that somebody created again, this long before the agent ends, is left.
    async fn leaves_a_node_created_again(seconds: f64) {
        let this = Registered::with_permission_to_delete().await;
        this.create_again().await;
        this.node.wait(seconds).await;
        let of_other = this.api.read().unwrap();
        let answer = this.end().await;
        assert!(matches!(answer, Err(ApiError::Conflict(_))), "{answer:?}");
        assert_eq!(this.api.read().unwrap()["metadata"]["uid"], of_other["metadata"]["uid"]);
    }
}

#[actix::test]
async fn node_that_was_created_again_is_left_before_its_lease_is_renewed() {
    Registered::leaves_a_node_created_again(0.2).await;
}

// It may be the live node of a kubelet that has not renewed the lease yet.
#[actix::test]
async fn node_that_was_created_again_is_left_after_its_lease_is_renewed() {
    Registered::leaves_a_node_created_again(12.0).await;
}

// The agent registers its node again after the panic, and finds the new one.
#[actix::test]
async fn node_that_was_created_again_before_a_panic_is_left() {
    let this = Registered::with_permission_to_delete().await;
    this.create_again().await;
    this.api.server.panic_in("PUT lease");
    this.node.wait(20.0).await;
    assert_eq!(this.node.metric("podwright_part_panics_total{part=\"node_status\"}"), 1.0);
    assert!(matches!(this.progress(), Registration::Registered(_)), "{:?}", this.progress());
    let answer = this.end().await;
    assert!(matches!(answer, Err(ApiError::Conflict(_))), "{answer:?}");
    assert!(this.api.read().is_some());
}

#[actix::test]
async fn agent_stops_once_a_kubelet_renews_its_lease() {
    let this = Registered::with_permission_to_delete().await;
    this.kubelet_renews();
    this.node.wait(12.0).await;
    assert!(matches!(this.progress(), Registration::Taken), "{:?}", this.progress());
    let answer = this.end().await;
    assert!(matches!(answer, Ok(false)), "{answer:?}");
    assert!(this.api.read().is_some() && this.api.read_lease().is_some());
}

#[actix::test]
async fn node_whose_lease_a_kubelet_has_renewed_is_left() {
    let this = Registered::with_permission_to_delete().await;
    this.kubelet_renews();
    let answer = this.end().await;
    assert!(matches!(answer, Ok(false)), "{answer:?}");
    assert!(this.api.read().is_some() && this.api.read_lease().is_some());
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

#[actix::test]
async fn node_whose_lease_another_agent_takes_before_the_deletion_is_left() {
    let this = Registered::with_permission_to_delete().await;
    let (answer, taken) = this.end_while(250, || this.replace(this.api.read_lease().unwrap())).await;
    assert!(matches!((&answer, taken), (Ok(false), Ok(()))), "{answer:?} {taken:?}");
    assert!(this.api.read().is_some() && this.api.read_lease().is_some());
}

#[actix::test]
async fn late_renewal_by_the_agent_itself_is_no_claim() {
    let this = Registered::with_permission_to_delete().await;
    this.deletes_its_node_while(|| this.renews_late()).await;
}

#[actix::test]
async fn late_creation_of_the_lease_by_the_agent_itself_is_no_claim() {
    let this = Registered::with_permission_to_delete().await;
    let mut lease = this.api.read_lease().unwrap();
    lease["metadata"] = json!({"name": "node1", "annotations": lease["metadata"]["annotations"]});
    this.delete_lease();
    let create = || drop(this.api.server.request("POST", LEASES, JSON, &lease).unwrap());
    this.deletes_its_node_while(create).await;
}

#[actix::test]
async fn deletion_of_the_lease_is_no_claim() {
    let this = Registered::with_permission_to_delete().await;
    this.deletes_its_node_while(|| this.delete_lease()).await;
}

#[actix::test]
async fn node_whose_lease_changes_during_both_writes_is_left() {
    let this = Registered::with_permission_to_delete().await;
    let changes = async {
        for millis in [250, 200] {
            sleep(Duration::from_millis(millis)).await;
            this.renews_late();
        }
    };
    let (answer, ()) = this.end_during(changes).await;
    assert!(matches!(answer, Err(ApiError::Unavailable { .. })), "{answer:?}");
    assert!(this.api.read().is_some() && this.api.read_lease().is_some());
}

#[actix::test]
async fn agent_that_deletes_its_node_holds_the_lease() {
    let this = Registered::with_permission_to_delete().await;
    let found = this.api.read_lease().unwrap();
    let (answer, taken) = this.end_while(350, || this.replace(found)).await;
    assert!(matches!((&answer, taken), (Ok(true), Err(409))), "{answer:?} {taken:?}");
    assert_eq!((this.api.read(), this.api.read_lease()), (None, None));
}

// The cluster deletes the lease together with the node.
#[actix::test]
async fn lease_that_another_agent_creates_after_the_deletion_of_the_node_is_left() {
    let this = Registered::with_permission_to_delete().await;
    let create = || {
        assert_eq!((this.api.read(), this.api.read_lease()), (None, None));
        let lease = json!({"metadata": {"name": "node1", "annotations": {"podwright.dev/instance": "agent-2"}},
            "spec": {"holderIdentity": "node1"}});
        this.api.server.request("POST", LEASES, JSON, &lease).map(drop).map_err(|refusal| refusal.code)
    };
    let (answer, created) = this.end_while(450, create).await;
    assert!(matches!((&answer, created), (Ok(true), Ok(()))), "{answer:?} {created:?}");
    assert_eq!(this.api.read_lease().unwrap()["metadata"]["annotations"]["podwright.dev/instance"], "agent-2");
}
