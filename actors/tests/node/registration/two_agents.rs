//! Two agents that register the same node at once.

use std::sync::Arc;
use std::time::Duration;

use podwright_actors::Registration;
use podwright_ports::{ApiError, Clock, SourceKind};
use podwright_stand_in::Grant;
use serde_json::{Value, json};
use tokio::time::sleep;

use super::{JSON, LEASES, READY, Registered, settings};
use crate::support::fake_pod_api::FakePodApi;
use crate::support::test_node::Setup;

impl Registered {
    /// Two agents of the same node. The second one starts after this delay. Each call of the API server takes 100 ms.
    async fn two(delay: f64) -> [Self; 2] {
        let setup = || Setup { sources: vec![SourceKind::File], ..Setup::again(true) };
        let (first, second) = (setup(), setup());
        let server = Arc::new(FakePodApi::new(first.clock));
        server.latency(100);
        let later = async {
            sleep(Duration::from_secs_f64(delay)).await;
            Registered::start(second, &server, settings("agent-2")).await
        };
        let (first, second) = tokio::join!(Registered::start(first, &server, settings("agent-1")), later);
        [first, second]
    }
}

// Both agents find no lease, and one adopts the node that the other one has created.
#[actix::test]
async fn one_of_two_agents_that_register_a_node_at_once_gets_it() {
    tokio::time::pause();
    for delay in [0.0, 0.05, 0.15, 0.25, 0.35, 0.5, 1.0] {
        let agents = Registered::two(delay).await;
        let mut winners = Vec::new();
        for seconds in [20.0, 60.0] {
            agents[0].node.wait(seconds).await;
            winners.push(match agents.each_ref().map(Registered::progress) {
                [Registration::Registered(_), Registration::Taken] => "agent-1",
                [Registration::Taken, Registration::Registered(_)] => "agent-2",
                both => panic!("{delay}: {both:?}"),
            });
        }
        let lease = agents[0].api.read_lease().unwrap();
        assert_eq!(lease["metadata"]["annotations"]["podwright.dev/instance"], winners[0], "{delay}");
        assert_eq!((winners[1], agents[0].api.ready().as_str()), (winners[0], READY), "{delay}");
    }
}

#[actix::test]
async fn agent_that_ends_before_it_has_claimed_the_lease_does_not_delete_the_node_of_another_agent() {
    let (setup, server) = Registered::setup();
    server.latency(100);
    let other = server.clone();
    let clock = setup.clock;
    let other_claims = async {
        // The agent under test has found no lease, and the other agent creates it first. The agent under test gets no answer to its write.
        sleep(Duration::from_millis(150)).await;
        let lease = json!({"metadata": {"name": "node1", "annotations": {"podwright.dev/instance": "agent-2"}},
            "spec": {"holderIdentity": "node1", "renewTime": Clock::now(&clock).to_timestamp().to_string()}});
        other.request("POST", LEASES, JSON, &lease).unwrap();
        other.hold_answers(Some("lease"));
    };
    let (this, ()) = tokio::join!(Registered::start(setup, &server, settings("agent-1")), other_claims);
    assert!(matches!(this.progress(), Registration::Pending { .. }) && this.api.read().is_some());
    this.node.node.shutdown(Duration::ZERO).await;
    this.node.wait(0.2).await;
    server.hold_answers(None);
    let answer = this.node.node.deregister().await;
    assert!(matches!(answer, Ok(false)), "{answer:?}");
}

#[actix::test]
async fn agent_that_ends_before_it_has_claimed_the_lease_deletes_no_node_that_was_created_again() {
    let (setup, server) = Registered::setup();
    server.grant(Grant::new("system:node:node1", "delete", "nodes"));
    // The agent reads the lease and creates the node. It cannot write the lease.
    server.fail_after(Some(2));
    let this = Registered::start(setup, &server, settings("agent-1")).await;
    assert!(matches!(this.progress(), Registration::Pending { .. }));
    server.request("DELETE", "/api/v1/nodes/node1", JSON, &Value::Null).unwrap();
    server.request("POST", "/api/v1/nodes", JSON, &json!({"metadata": {"name": "node1"}})).unwrap();
    let of_other = this.api.read().unwrap();
    this.node.node.shutdown(Duration::ZERO).await;
    this.node.wait(0.2).await;
    server.fail_after(None);
    let answer = this.node.node.deregister().await;
    assert!(matches!(answer, Err(ApiError::Conflict(_))), "{answer:?}");
    assert_eq!(this.api.read(), Some(of_other));
}

// The other agent has ended before this one starts. Its lease is no claim.
#[actix::test]
async fn agent_that_ends_before_it_has_replaced_an_expired_lease_deletes_its_node() {
    let (setup, server) = Registered::setup();
    for resource in ["nodes", "leases"] {
        server.grant(Grant::new("system:node:node1", "delete", resource));
    }
    let lease = json!({"metadata": {"name": "node1", "annotations": {"podwright.dev/instance": "agent-2"}},
        "spec": {"holderIdentity": "node1", "renewTime": Clock::now(&setup.clock).to_timestamp().to_string()}});
    server.request("POST", LEASES, JSON, &lease).unwrap();
    server.hold_answers(Some("node"));
    let this = Registered::start(setup, &server, settings("agent-1")).await;
    this.node.wait(45.0).await;
    assert!(matches!(this.progress(), Registration::Pending { .. }) && this.api.read().is_some());
    this.node.node.shutdown(Duration::ZERO).await;
    this.node.wait(0.2).await;
    server.hold_answers(None);
    let answer = this.node.node.deregister().await;
    assert!(matches!(answer, Ok(true)), "{answer:?}");
    assert_eq!((this.api.read(), this.api.read_lease()), (None, None));
}
