//! Calls that fail or have no answer.

use super::super::record::holder;
use super::*;

#[tokio::test(start_paused = true)]
async fn silent_leader_stops_at_its_deadline_and_another_replica_takes_over_after_the_duration() {
    let server = Arc::default();
    let one = Replica::start(&server, "one");
    one.until(true).await;
    let two = Replica::start(&server, "two");
    sleep(Duration::from_secs(7)).await;
    let silent = Instant::now();
    one.set_link(Link::Down);
    one.until(false).await;
    let lost = silent.elapsed();
    assert!(lost <= RENEW && lost > RENEW - Duration::from_secs(3), "{lost:?}");
    assert!(!two.leads());
    two.until(true).await;
    let took = silent.elapsed();
    assert!(took >= LEASE - LONGEST_RETRY && took <= LEASE + LONGEST_RETRY * 2, "{took:?}");
    assert_eq!(spec(&server).lease_transitions, Some(1));
    one.set_link(Link::Good);
    sleep(LEASE * 3).await;
    assert!(two.leads() && !one.leads(), "the earlier leader follows");
}

#[tokio::test(start_paused = true)]
async fn renewals_without_answers_end_the_leadership_at_the_deadline() {
    let server = Arc::default();
    let one = Replica::start(&server, "one");
    one.until(true).await;
    let before = Instant::now();
    one.set_link(Link::LosesAnswers);
    one.until(false).await;
    assert!(before.elapsed() <= RENEW, "{:?}", before.elapsed());
    let Leadership::Following { problem, .. } = one.leadership.borrow().clone() else { panic!() };
    assert!(problem.unwrap().contains("cannot write the lease"));
    // It finds its own name in the lease, and need not wait for the duration.
    one.set_link(Link::Good);
    assert!(one.until(true).await <= LONGEST_RETRY + RENEW / 2);
}

#[tokio::test(start_paused = true)]
async fn one_lost_renewal_changes_nothing() {
    let server = Arc::default();
    let one = Replica::start(&server, "one");
    one.until(true).await;
    for link in [Link::LosesAnswers, Link::Down] {
        one.set_link(link);
        sleep(Duration::from_secs(4)).await;
        one.set_link(Link::Good);
        for _ in 0..200 {
            sleep(Duration::from_millis(100)).await;
            assert!(one.leads(), "{link:?}");
        }
    }
}

// The renewal before the stop had no answer, so the version of the lease is not known.
#[tokio::test(start_paused = true)]
async fn leader_with_an_old_version_reads_the_lease_before_it_gives_it_back() {
    let server = Arc::default();
    let one = Replica::start(&server, "one");
    one.until(true).await;
    one.set_link(Link::LosesAnswers);
    sleep(Duration::from_secs(3)).await;
    one.set_link(Link::Good);
    one.stop.cancel();
    one.task.await.unwrap();
    assert_eq!(holder(server.lock().lease.as_ref().unwrap()), None);
}

#[tokio::test(start_paused = true)]
async fn refused_calls_are_reported_and_tried_again() {
    let server = Arc::new(Mutex::new(Server::default()));
    let one = Replica::start(&server, "one");
    for (link, text) in [
        (Link::Down, "cannot read the lease"),
        (Link::NoNamespace, "cannot create the lease: the namespace kube-system does not exist"),
    ] {
        one.set_link(link);
        sleep(PATIENCE).await;
        let Leadership::Following { holder, problem, .. } = one.leadership.borrow().clone() else { panic!() };
        assert_eq!(holder, None);
        let problem = problem.unwrap_or_default();
        assert!(problem.contains(text), "{problem}");
    }
    one.set_link(Link::Good);
    assert!(one.until(true).await <= LONGEST_RETRY);
}
