//! Leases that other programs have written or deleted.

use super::super::record::duration;
use super::*;

#[tokio::test(start_paused = true)]
async fn lease_without_a_holder_or_a_duration_is_free() {
    let held = LeaseSpec { holder_identity: Some("gone".to_owned()), ..LeaseSpec::default() };
    let negative = LeaseSpec { lease_duration_seconds: Some(-5), ..held.clone() };
    for spec in [None, Some(LeaseSpec::default()), Some(held), Some(negative)] {
        let server = Arc::new(Mutex::new(Server::default()));
        server.lock().store(&Lease { spec, ..Lease::default() });
        let one = Replica::start(&server, "one");
        assert!(one.until(true).await < Duration::from_secs(1));
        assert_eq!(super::spec(&server).lease_transitions, Some(1));
    }
}

// The holder may have another configuration. Its own duration counts.
#[tokio::test(start_paused = true)]
async fn duration_of_the_holder_counts() {
    let server = Arc::new(Mutex::new(Server::default()));
    let spec = LeaseSpec {
        holder_identity: Some("gone".to_owned()),
        lease_duration_seconds: Some(60),
        ..LeaseSpec::default()
    };
    server.lock().store(&Lease { spec: Some(spec), ..Lease::default() });
    let one = Replica::start(&server, "one");
    let took = one.until(true).await;
    assert!(took >= Duration::from_secs(60) && took <= Duration::from_secs(60) + LONGEST_RETRY, "{took:?}");
    assert_eq!(duration(server.lock().lease.as_ref().unwrap()), LEASE);
}

#[tokio::test(start_paused = true)]
async fn deleted_lease_is_created_again_by_the_leader() {
    let server = Arc::default();
    let one = Replica::start(&server, "one");
    one.until(true).await;
    server.lock().lease = None;
    sleep(Duration::from_secs(3)).await;
    assert!(one.leads());
    assert_eq!(spec(&server).holder_identity.as_deref(), Some("one"));
}

#[tokio::test(start_paused = true)]
async fn leader_that_reads_another_holder_stops_at_once() {
    let server = Arc::default();
    let one = Replica::start(&server, "one");
    one.until(true).await;
    let mut other = server.lock().lease.clone().unwrap();
    other.spec.as_mut().unwrap().holder_identity = Some("other".to_owned());
    server.lock().store(&other);
    assert!(one.until(false).await <= Duration::from_secs(2));
}
