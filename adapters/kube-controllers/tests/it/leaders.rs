//! One of two replicas leads.

use std::sync::atomic::{AtomicUsize, Ordering};

use podwright_controllers::resource_claim::{ObjectKey, ReasonKind};
use podwright_stand_in::{Fault, Verb};
use serde_json::json;

use super::*;

// Takes over 25 s: the lease of a leader that is killed ends after 12 s, and two leaders are killed.
#[tokio::test]
async fn next_leader_completes_the_work_of_a_leader_that_ended_in_the_middle() {
    let cluster = Cluster::start().await;
    cluster.template("one");
    let mut leader = Replica::elected(client(&cluster).await, "replica-0");
    let mut created = 0;
    for round in 1..4 {
        eventually("the replica leads", || async { leader.leads().then_some(()) }).await;
        let next = Replica::elected(client(&cluster).await, &format!("replica-{round}"));
        let before = cluster.server.all("resourceclaims").len();
        for _ in 0..60 {
            cluster.pod(&format!("p{created}"), &["one"], &json!({}));
            created += 1;
        }
        eventually("the leader has begun", || async {
            (cluster.server.all("resourceclaims").len() > before).then_some(())
        })
        .await;
        assert!(!next.leads());
        if round == 2 {
            leader.stop().await;
        } else {
            leader.crash();
        }
        eventually("the next replica leads", || async { next.leads().then_some(()) }).await;
        leader = next;
    }
    cluster.has_all_claims().await;
    leader.until_idle().await;
    cluster.has_all_claims().await;
    let lease = cluster.server.get("leases", "kube-system", "resourceclaim-controller").unwrap();
    assert_eq!(lease["spec"]["holderIdentity"], "replica-3");
    assert_eq!(lease["spec"]["leaseTransitions"], 3);
}

/// Stalls the creates of a resource from now on, and counts them.
fn stall_creates(cluster: &Cluster, resource: &'static str) -> Arc<AtomicUsize> {
    let count = Arc::new(AtomicUsize::new(0));
    let stalled = count.clone();
    cluster.server.faults().on(move |request| {
        let is_create = request.verb == Some(Verb::Create) && request.resource == resource;
        is_create.then(|| {
            stalled.fetch_add(1, Ordering::Relaxed);
            Fault::Stall
        })
    });
    count
}

async fn until_stalled(stalled: &AtomicUsize, count: usize) {
    eventually("the creates are sent", || async { (stalled.load(Ordering::Relaxed) == count).then_some(()) }).await;
}

/// A leader that is stopped waits for its create, so the next leader finds the claim.
#[tokio::test]
async fn create_in_flight_at_the_end_of_a_term_makes_one_claim() {
    let cluster = Cluster::start().await;
    cluster.template("one");
    let leader = Replica::elected(client(&cluster).await, "leader");
    leader.until_idle().await;
    let next = Replica::elected(client(&cluster).await, "next");
    let stalled = stall_creates(&cluster, "resourceclaims");
    for at in 0..5 {
        cluster.pod(&format!("p{at}"), &["one"], &json!({}));
    }
    until_stalled(&stalled, 5).await;
    tokio::join!(leader.stop(), async { cluster.server.faults().clear() });
    assert_eq!(cluster.server.all("resourceclaims").len(), 5, "the lease was given back after the creates");
    eventually("the next replica leads", || async { next.leads().then_some(()) }).await;
    cluster.has_all_claims().await;
    next.until_idle().await;
    cluster.has_all_claims().await;
}

/// A lease may be lost and taken again before a task learns of that. Another term begins then, and knows the unanswered create of the last one.
#[tokio::test]
async fn term_that_begins_at_once_does_not_repeat_a_create() {
    let cluster = Cluster::start().await;
    cluster.template("one");
    let replica = Replica::alone(client(&cluster).await);
    replica.until_idle().await;
    let stalled = stall_creates(&cluster, "resourceclaims");
    cluster.pod("p", &["one"], &json!({}));
    until_stalled(&stalled, 1).await;
    let first = replica.current.borrow().as_ref().map(Arc::downgrade).unwrap();
    replica.term.as_ref().unwrap().send_replace(Leadership::Leading { term: 2 });
    eventually("the first term has ended", || async { first.upgrade().is_none().then_some(()) }).await;
    eventually("the next term waits for the create", || async {
        let controller = replica.current.borrow().clone()?;
        let explanation = controller.explain(&ObjectKey::new("default", "p-c0"));
        explanation.reasons.iter().any(|reason| reason.what == ReasonKind::Unanswered).then_some(())
    })
    .await;
    cluster.create_late("p");
    cluster.has_all_claims().await;
    replica.until_idle().await;
    assert_eq!(stalled.load(Ordering::Relaxed), 1);
}

/// The recorder of a term ends with the term. So no event of the term is written in the next one.
#[tokio::test]
async fn events_of_a_term_are_written_after_the_loss_of_the_lease() {
    let cluster = Cluster::start().await;
    let stalled = stall_creates(&cluster, "events");
    cluster.pod("p", &["none"], &json!({}));
    let replica = Replica::alone(client(&cluster).await);
    until_stalled(&stalled, 1).await;
    let leads = replica.term.as_ref().unwrap();
    leads.send_replace(Leadership::Following { holder: None, address: None, problem: None });
    eventually("the first term has ended", || async { replica.current.borrow().is_none().then_some(()) }).await;
    assert_eq!(cluster.server.all("events").len(), 0);
    cluster.server.faults().clear();
    eventually("the event is written", || async { (!cluster.server.all("events").is_empty()).then_some(()) }).await;
    leads.send_replace(Leadership::Leading { term: 2 });
    eventually("the next term has begun", || async { replica.current.borrow().is_some().then_some(()) }).await;
}

#[tokio::test]
async fn replica_that_follows_watches_and_writes_nothing() {
    let cluster = Cluster::start().await;
    cluster.template("one");
    let leader = Replica::elected(client(&cluster).await, "leader");
    eventually("the replica leads", || async { leader.leads().then_some(()) }).await;
    let user = User::new("follower", &["system:masters"]);
    let follower = Replica::elected(client_of(&cluster, &user).await, "follower");
    cluster.pod("p", &["one"], &json!({}));
    cluster.has_all_claims().await;
    eventually("the follower knows the leader", || async {
        matches!(&*follower.leadership.borrow(), Leadership::Following { holder: Some(holder), .. } if holder == "leader")
            .then_some(())
    })
    .await;
    let requests = cluster.server.requests();
    let own = requests.iter().filter(|served| served.user == "follower" && served.resource != "leases").count();
    assert_eq!(own, 0);
    assert!(follower.current.borrow().is_none());
}

#[tokio::test]
async fn replica_that_loses_its_lease_ends_its_work_and_may_lead_again() {
    let cluster = Cluster::start().await;
    cluster.template("one");
    let replica = Replica::elected(client(&cluster).await, "replica");
    replica.until_idle().await;
    let term = replica.current.borrow().as_ref().map(Arc::downgrade).unwrap();
    // As if this replica had paused for longer than its lease.
    let lease = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/resourceclaim-controller";
    let taken = json!({"spec": {"holderIdentity": "other"}});
    cluster.server.request("PATCH", lease, MERGE, &taken).unwrap();
    eventually("the term has ended", || async { term.upgrade().is_none().then_some(()) }).await;
    assert!(!replica.leads() && replica.current.borrow().is_none());
    cluster.server.forget_requests();
    cluster.pod("p", &["one"], &json!({}));
    // The other replica does not renew the lease.
    cluster.has_all_claims().await;
    assert!(replica.leads());
    let requests = cluster.server.requests();
    let first_write = requests.iter().position(|served| served.verb == Some(Verb::Create)).unwrap();
    let taken_back =
        requests.iter().position(|served| served.resource == "leases" && served.verb == Some(Verb::Update));
    assert!(taken_back.is_some_and(|taken| taken < first_write), "{requests:?}");
    assert_eq!(
        requests.iter().filter(|served| served.verb == Some(Verb::Watch)).count(),
        3,
        "each term has its watches"
    );
}
