//! What a term waits for, and what it leaves behind.

use super::*;

#[tokio::test(start_paused = true)]
async fn stop_ends_passes_and_timers_within_a_second() {
    let log = Log::default();
    let _guard = tracing::subscriber::set_default(log.clone());
    let fixture = Fixture::new(Reply::Hang);
    fixture.list(&["p", "q"], true);
    rest().await;
    assert_eq!(fixture.api.active.load(Ordering::Relaxed), 2);
    assert!(!fixture.controller.has_ended());
    let before = Instant::now();
    assert_eq!(fixture.controller.stop().await.len(), 2, "the results of the creates are not known");
    assert!(fixture.controller.has_ended());
    assert!((CREATES_TIMEOUT..Duration::from_secs(1)).contains(&before.elapsed()), "{:?}", before.elapsed());
    let lines = log.lines();
    for pod in ["object=shop/p", "object=shop/q"] {
        let is_named = |line: &String| line.contains("term ended before the result") && line.contains(pod);
        assert!(lines.iter().any(is_named), "{pod}: {lines:?}");
    }
    assert_eq!(fixture.api.active.load(Ordering::Relaxed), 0, "the calls are dropped");
    fixture.controller.pod_event(WatchEvent::Apply(pod("r")));
    sleep(Duration::from_secs(2000)).await;
    assert_eq!(fixture.calls().len(), 2, "no call follows");
    assert_eq!(Arc::strong_count(&fixture.controller.shared), 1, "no task is left");
}

/// A create that ends in time is counted and remembered, and no call follows it.
#[tokio::test(start_paused = true)]
async fn stop_waits_for_a_create_in_flight() {
    let fixture = Fixture::new(Reply::Slow(Duration::from_millis(500)));
    fixture.list(&["p"], true);
    rest().await;
    let before = Instant::now();
    let unanswered = fixture.controller.stop().await;
    assert!(unanswered.is_empty(), "{unanswered:?}");
    assert!(before.elapsed() < CREATES_TIMEOUT, "{:?}", before.elapsed());
    assert_eq!(fixture.calls(), ["create p-res-1"]);
    let created = "resourceclaim_controller_creates_total{admin_access=\"false\",status=\"success\"}";
    assert_eq!(fixture.series(created), Some(1.0));
}

/// The second call of the pass does not end. What the pass has done before is counted, recorded and logged.
#[tokio::test(start_paused = true)]
async fn stop_loses_no_report_of_a_pass() {
    let log = Log::default();
    let _guard = tracing::subscriber::set_default(log.clone());
    let fixture = Fixture::new(Reply::Success);
    *fixture.api.reply_to_apply.lock() = Some(Reply::Hang);
    let of_other = ResourceClaim { metadata: pod("other").metadata.clone(), ..ResourceClaim::default() };
    fixture.controller.claim_event(WatchEvent::Apply(Arc::new(of_other)));
    let mut pod: Pod = (*pod("p")).clone();
    let spec = json!([{ "name": "no", "resourceClaimTemplateName": "none" },
        { "name": "res", "resourceClaimTemplateName": "tpl" }]);
    pod.spec.get_or_insert_default().resource_claims = serde_json::from_value(spec).unwrap();
    let statuses = json!([{ "name": "res", "resourceClaimName": "other" }]);
    pod.status.get_or_insert_default().resource_claim_statuses = serde_json::from_value(statuses).unwrap();
    fixture.controller.pod_event(WatchEvent::Apply(Arc::new(pod)));
    fixture.complete_lists(true);
    rest().await;
    assert_eq!(fixture.calls(), ["create p-res-1", "apply shop/p"]);
    fixture.controller.stop().await;
    let created = "resourceclaim_controller_creates_total{admin_access=\"false\",status=\"success\"}";
    assert_eq!(fixture.series(created), Some(1.0));
    assert_eq!(fixture.api.warnings.lock().len(), 1);
    let lines = log.lines();
    assert!(lines.iter().any(|line| line.contains("pod:shop/p") && line.contains("replaces")), "{lines:?}");
}

/// A process that was paused for longer than the lease sends nothing when it goes on, although its term has not ended yet.
#[tokio::test(start_paused = true)]
async fn no_call_is_sent_after_the_lease_has_expired() {
    let clock = TokioClock::new();
    let lease = LeaseGuard::new(clock);
    lease.set(Some((1, clock.now() + Duration::from_secs(10))));
    let fixture = Fixture::with_lease(Reply::Success, 1, lease.clone());
    fixture.list(&["a"], true);
    rest().await;
    assert_eq!(fixture.calls(), ["create a-res-1", "apply shop/a"]);
    sleep(Duration::from_secs(10)).await;
    fixture.controller.pod_event(WatchEvent::Apply(pod("b")));
    sleep(Duration::from_secs(60)).await;
    assert_eq!(fixture.calls(), ["create a-res-1", "apply shop/a"]);
    lease.set(Some((1, clock.now() + Duration::from_secs(10))));
    sleep(Duration::from_secs(1)).await;
    assert_eq!(fixture.calls()[2..], ["create b-res-1", "apply shop/b"]);
}

/// The retries of a create whose result is not known follow its rule, and not the backoff of failures.
#[tokio::test(start_paused = true)]
async fn create_without_an_answer_is_listed_once_and_again_after_ten_seconds() {
    let fixture = Fixture::new(Reply::Unknown);
    fixture.list(&["p"], true);
    rest().await;
    *fixture.api.reply.lock() = Reply::Success;
    sleep(Duration::from_secs(9)).await;
    assert_eq!(fixture.calls(), ["create p-res-1", "list shop"]);
    sleep(Duration::from_secs(2)).await;
    assert_eq!(fixture.calls()[2..], ["list shop", "create p-res-1", "apply shop/p"]);
    assert_eq!(fixture.series("workqueue_retries_total{name=\"resource_claim\"}"), Some(1.0));
}
