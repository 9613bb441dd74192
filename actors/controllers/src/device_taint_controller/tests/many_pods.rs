//! Many pods that one taint evicts, and their order.

use super::*;

/// Adds this number of pods that a taint evicts, and completes the first lists.
fn add_many(fixture: &Fixture, number: usize) {
    (0..number).for_each(|number| fixture.add(&format!("p{number:04}"), &json!([])));
    fixture.complete_lists();
}

/// TAINT-S20.
#[tokio::test(start_paused = true)]
async fn a_rule_that_hits_many_pods_keeps_the_calls_in_flight_at_the_workers() {
    let fixture = Fixture::new(Reply::Success);
    add_many(&fixture, 1000);
    rest().await;
    fixture.controller.rule_event(WatchEvent::Apply(rule()));
    sleep(Duration::from_secs(60)).await;
    assert_eq!(fixture.api.deleted.lock().len(), 1000);
    assert!(fixture.api.most_active.load(Ordering::Relaxed) <= 8);
    let calls = fixture.calls();
    assert_eq!(calls[0], "status r PodsPendingEviction");
    assert_eq!(calls.last().unwrap(), "status r Completed");
    assert_eq!(calls.iter().filter(|call| !call.starts_with("status")).count(), 3000);
}

#[tokio::test(start_paused = true)]
async fn pods_are_deleted_in_the_order_of_their_evictions() {
    let fixture = Fixture::new(Reply::Success);
    // The times have passed before the controller learns of the taint.
    for (name, seconds) in [("late", 50), ("early", 10), ("middle", 30)] {
        fixture.add(name, &tolerate(seconds));
    }
    sleep(Duration::from_secs(100)).await;
    fixture.controller.slice_event(WatchEvent::Apply(slice("NoExecute")));
    fixture.complete_lists();
    rest().await;
    assert_eq!(*fixture.api.deleted.lock(), ["early", "middle", "late"]);
}

#[tokio::test(start_paused = true)]
async fn all_pods_go_exactly_once_from_a_server_that_fails_half_of_the_time() {
    let fixture = Fixture::new(Reply::HalfFails);
    add_many(&fixture, 5000);
    fixture.controller.slice_event(WatchEvent::Apply(slice("NoExecute")));
    // A pod whose pass fails many times waits up to 1000 s between two tries.
    for _ in 0..10_000 {
        sleep(Duration::from_secs(100)).await;
        if fixture.controller.pending_pods() == 0 {
            break;
        }
    }
    let mut deleted = fixture.api.deleted.lock().clone();
    assert_eq!(deleted.len(), 5000);
    deleted.sort();
    deleted.dedup();
    assert_eq!(deleted.len(), 5000);
    assert!(fixture.api.most_active.load(Ordering::Relaxed) <= 8);
    assert_eq!(fixture.api.events.lock().len(), 5000, "one event for each pod");
    sleep(Duration::from_secs(2000)).await;
    assert_eq!((fixture.controller.pending_pods(), fixture.controller.queued()), (0, 0));
}
