//! Calls that fail, and passes that panic.

use super::*;

/// TAINT-S19.
#[tokio::test(start_paused = true)]
async fn a_refused_deletion_is_tried_for_ever_with_growing_delays() {
    let fixture = Fixture::new(Reply::NoDeletion);
    fixture.controller.slice_event(WatchEvent::Apply(slice("NoExecute")));
    fixture.add("p", &json!([]));
    fixture.complete_lists();
    sleep(Duration::from_secs(6000)).await;
    let calls = fixture.api.calls.lock().clone();
    let deletions: Vec<_> = calls.iter().filter(|(_, call)| call == "delete p").map(|(at, _)| *at).collect();
    let mut expected = Duration::from_millis(5);
    for pair in deletions.windows(2) {
        let delay = pair[1] - pair[0];
        assert!((expected..=expected + Duration::from_millis(2)).contains(&delay), "{delay:?} for {expected:?}");
        expected = (expected * 2).min(Duration::from_secs(1000));
    }
    assert!(deletions.len() >= 21, "{} attempts", deletions.len());
    assert_eq!(fixture.api.events.lock().len(), 1, "one event for all attempts");
    *fixture.api.reply.lock() = Reply::Success;
    sleep(Duration::from_secs(1001)).await;
    assert_eq!(*fixture.api.deleted.lock(), ["p"]);
    assert_eq!(fixture.api.events.lock().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_pass_that_panics_is_counted_and_repeated() {
    let fixture = Fixture::new(Reply::Panic);
    fixture.controller.slice_event(WatchEvent::Apply(slice("NoExecute")));
    fixture.add("p", &json!([]));
    fixture.complete_lists();
    rest().await;
    assert_eq!(fixture.series("podwright_hook_panics_total"), Some(1.0));
    *fixture.api.reply.lock() = Reply::Success;
    sleep(Duration::from_secs(2)).await;
    assert_eq!(*fixture.api.deleted.lock(), ["p"]);
}

#[tokio::test(start_paused = true)]
async fn a_busy_server_gets_the_next_call_after_the_delay_that_it_requests() {
    let fixture = Fixture::new(Reply::Busy);
    fixture.controller.slice_event(WatchEvent::Apply(slice("NoExecute")));
    fixture.add("p", &json!([]));
    fixture.complete_lists();
    rest().await;
    // The pod is evaluated again.
    fixture.controller.claim_event(WatchEvent::Apply(claim("p", &tolerate(1))));
    sleep(Duration::from_millis(6_900)).await;
    assert_eq!(fixture.calls(), ["get p"]);
    *fixture.api.reply.lock() = Reply::Success;
    sleep(Duration::from_millis(200)).await;
    assert_eq!(*fixture.api.deleted.lock(), ["p"]);
}

#[tokio::test(start_paused = true)]
async fn a_changed_rule_waits_for_the_delay_that_a_busy_server_requests() {
    let fixture = Fixture::new(Reply::Busy);
    fixture.complete_lists();
    fixture.controller.rule_event(WatchEvent::Apply(rule()));
    rest().await;
    let mut changed = (*rule()).clone();
    changed.metadata.generation = Some(2);
    changed.spec.taint.effect = "None".to_owned();
    fixture.controller.rule_event(WatchEvent::Apply(Arc::new(changed)));
    sleep(Duration::from_millis(6_900)).await;
    assert_eq!(fixture.calls(), ["status r NotStarted"]);
    *fixture.api.reply.lock() = Reply::Success;
    sleep(Duration::from_millis(200)).await;
    assert_eq!(fixture.calls(), ["status r NotStarted", "status r NoEffect"]);
}
