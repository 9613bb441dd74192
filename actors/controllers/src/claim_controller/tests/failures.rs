//! Calls that fail, and panics.

use super::*;

/// Neither the first lists nor the keys of the queue are lost.
#[tokio::test(start_paused = true)]
async fn passes_begin_again_after_a_panic_of_the_clock() {
    let fixture = Fixture::new(Reply::Success);
    rest().await;
    fixture.list(&["p"], true);
    fixture.clock.panics.store(true, Ordering::Relaxed);
    rest().await;
    let stopped: Vec<_> = fixture.controller.stopped_parts().iter().map(ToString::to_string).collect();
    assert_eq!(stopped, [format!("the part {CONTROLLER_NAME} panicked and starts again: a fault of the clock")]);
    assert_eq!((fixture.calls(), fixture.controller.has_ended()), (vec![], false));
    sleep(Duration::from_secs(2)).await;
    assert_eq!(fixture.calls(), ["create p-res-1", "apply shop/p"]);
    assert!(fixture.controller.stopped_parts().is_empty());
}

/// CLAIM-S42: the delays between the tries of a key double from 5 ms up to 1000 s, without an end.
#[tokio::test(start_paused = true)]
async fn failed_pass_is_repeated_with_growing_delays() {
    let fixture = Fixture::new(Reply::Refused);
    fixture.list(&["p"], true);
    sleep(Duration::from_secs(6000)).await;
    let times: Vec<_> = fixture.api.calls.lock().iter().map(|(at, _)| *at).collect();
    let mut expected = Duration::from_millis(5);
    for (retry, pair) in times.windows(2).enumerate() {
        let delay = pair[1] - pair[0];
        assert!((expected..=expected + Duration::from_millis(2)).contains(&delay), "retry {retry} after {delay:?}");
        expected = (expected * 2).min(Duration::from_secs(1000));
    }
    assert!(times.len() >= 21, "{} tries", times.len());
    assert_eq!(fixture.api.warnings.lock().len(), times.len(), "an event for each failure");
    assert_eq!(fixture.series("workqueue_retries_total{name=\"resource_claim\"}"), Some(times.len() as f64));
    let failed = "resourceclaim_controller_creates_total{admin_access=\"false\",status=\"failure\"}";
    assert_eq!(fixture.series(failed), Some(times.len() as f64));
}

#[tokio::test(start_paused = true)]
async fn an_event_ends_the_backoff() {
    let fixture = Fixture::new(Reply::Success);
    fixture.list(&["p"], false);
    sleep(Duration::from_secs(3000)).await;
    assert_eq!(fixture.calls(), Vec::<String>::new());
    fixture.controller.template_event(WatchEvent::Apply(template()));
    rest().await;
    assert_eq!(fixture.calls(), ["create p-res-1", "apply shop/p"]);
    rest().await;
    assert_eq!(fixture.controller.queued(), 0);
}

#[tokio::test(start_paused = true)]
async fn no_event_ends_the_delay_that_the_server_requested() {
    let fixture = Fixture::new(Reply::Busy);
    fixture.list(&["p"], true);
    rest().await;
    *fixture.api.reply.lock() = Reply::Success;
    fixture.controller.template_event(WatchEvent::Apply(template()));
    sleep(Duration::from_secs(59)).await;
    assert_eq!(fixture.calls(), ["create p-res-1"]);
    sleep(Duration::from_secs(1)).await;
    assert_eq!(fixture.calls(), ["create p-res-1", "create p-res-1", "apply shop/p"]);
}

#[tokio::test(start_paused = true)]
async fn a_pass_that_panics_is_counted_logged_and_repeated() {
    let log = Log::default();
    let _guard = tracing::subscriber::set_default(log.clone());
    let fixture = Fixture::new(Reply::Panic);
    fixture.list(&["p", "q"], true);
    rest().await;
    assert_eq!(fixture.calls().len(), 2);
    assert_eq!(fixture.series("podwright_hook_panics_total"), Some(2.0));
    let lines = log.lines();
    assert!(lines.iter().any(|line| line.contains("pod:shop/p") && line.contains("panicked")), "{lines:?}");
    assert!(lines.iter().any(|line| line.contains("a fault of the client")), "{lines:?}");
    *fixture.api.reply.lock() = Reply::Success;
    rest().await;
    assert_eq!(fixture.calls().len(), 2, "the next try waits a second");
    sleep(Duration::from_secs(1)).await;
    // The create without an answer may have been performed, so the claims are listed first.
    let calls = fixture.calls();
    assert_eq!(calls[2], "list shop");
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_panics_is_counted_logged_and_ends_nothing() {
    let log = Log::default();
    let _guard = tracing::subscriber::set_default(log.clone());
    let fixture = Fixture::new(Reply::Success);
    fixture.list(&[], true);
    let panics = |_: &mut Core, _: WatchEvent<Pod>, _: Time| -> Vec<Key> { panic!("a fault of the handler") };
    fixture.controller.shared.apply(WatchEvent::Apply(pod("p")), panics);
    assert_eq!(fixture.series("podwright_hook_panics_total"), Some(1.0));
    let lines = log.lines();
    assert!(lines.iter().any(|line| line.contains("object=shop/p") && line.contains("panicked")), "{lines:?}");
    fixture.controller.pod_event(WatchEvent::Apply(pod("q")));
    rest().await;
    assert_eq!(fixture.calls(), ["create q-res-1", "apply shop/q"]);
}

#[tokio::test(start_paused = true)]
async fn failure_is_logged_once_for_each_reason() {
    let log = Log::default();
    let _guard = tracing::subscriber::set_default(log.clone());
    let fixture = Fixture::new(Reply::Refused);
    fixture.list(&["p"], true);
    sleep(Duration::from_secs(600)).await;
    let count = |text: &str| log.lines().iter().filter(|line| line.contains(text)).count();
    assert!(count("the pass failed again") > 10);
    assert_eq!(count("the pass failed and will be repeated"), 1);
    *fixture.api.reply.lock() = Reply::Success;
    sleep(Duration::from_secs(1000)).await;
    assert_eq!(count("the pass succeeded after it had failed"), 1);
}

#[tokio::test(start_paused = true)]
async fn failures_are_part_of_the_explanation() {
    let fixture = Fixture::new(Reply::Refused);
    fixture.list(&["p"], true);
    sleep(Duration::from_millis(12)).await;
    let explanation = fixture.controller.explain(&ObjectKey::new("shop", "p-res"));
    let [failure] = &explanation.failures[..] else { panic!("{explanation:?}") };
    assert_eq!((failure.item.as_str(), failure.tries), ("pod:shop/p", 2));
    assert!(failure.error.contains("no quota"), "{failure:?}");
    let text = explanation.to_string();
    assert!(text.contains("2 tries since 1970-01-12T13:46:40Z") && text.contains("no quota"), "{text}");
}
