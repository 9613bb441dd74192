//! Clocks that are set, and leases that lapse.

use super::*;

/// A clock that the test sets.
struct SetClock {
    clock: TokioClock,
    /// The seconds that were added.
    ahead: Mutex<u64>,
}

/// The seconds by which a [`SetClock`] begins ahead, so that it can be set back.
const HOUR: u64 = 3600;

impl SetClock {
    /// Begins at `T0`.
    fn new() -> Arc<Self> {
        let clock = TokioClock::starting_at(Time::from_nanos(T0.as_nanos() - 1_000_000_000 * HOUR));
        Arc::new(SetClock { clock, ahead: Mutex::new(HOUR) })
    }
}

impl Clock for SetClock {
    fn now(&self) -> Time {
        self.clock.now() + Duration::from_secs(*self.ahead.lock())
    }
}

fn with_clock(reply: Reply, clock: &Arc<SetClock>, tolerations: &Value) -> Fixture {
    let fixture = Fixture::with(reply, LeaseGuard::without_election(), clock.clone());
    fixture.controller.slice_event(WatchEvent::Apply(slice("NoExecute")));
    fixture.add("p", tolerations);
    fixture.complete_lists();
    fixture
}

#[tokio::test(start_paused = true)]
async fn a_clock_that_is_set_back_delays_evictions() {
    let clock = SetClock::new();
    let fixture = with_clock(Reply::Success, &clock, &tolerate(60));
    sleep(Duration::from_secs(30)).await;
    *clock.ahead.lock() = 0;
    sleep(Duration::from_secs(HOUR + 29)).await;
    assert_eq!(fixture.calls(), [""; 0]);
    sleep(Duration::from_millis(1002)).await;
    assert_eq!(*fixture.api.deleted.lock(), ["p"]);
}

#[tokio::test(start_paused = true)]
async fn a_clock_that_is_set_ahead_brings_evictions_forward() {
    let clock = SetClock::new();
    let fixture = with_clock(Reply::Success, &clock, &tolerate(2 * HOUR));
    sleep(Duration::from_secs(30)).await;
    *clock.ahead.lock() = 3 * HOUR;
    sleep(Duration::from_secs(11)).await;
    assert_eq!(*fixture.api.deleted.lock(), ["p"]);
}

#[tokio::test(start_paused = true)]
async fn a_clock_that_is_set_back_does_not_stop_retries() {
    let clock = SetClock::new();
    let fixture = with_clock(Reply::NoDeletion, &clock, &json!([]));
    // The time of the taint has passed on the clock that is set back, too.
    fixture.controller.slice_event(WatchEvent::Delete(slice("NoExecute")));
    let mut early = (*slice("NoExecute")).clone();
    let added = serde_json::from_value(json!("1999-01-01T00:00:00Z")).unwrap();
    early.spec.devices.as_mut().unwrap()[0].taints.as_mut().unwrap()[0].time_added = Some(added);
    fixture.controller.slice_event(WatchEvent::Apply(Arc::new(early)));
    sleep(Duration::from_secs(30)).await;
    *clock.ahead.lock() = 0;
    sleep(Duration::from_secs(11)).await;
    *fixture.api.reply.lock() = Reply::Success;
    sleep(Duration::from_secs(120)).await;
    assert_eq!(*fixture.api.deleted.lock(), ["p"]);
}

#[tokio::test(start_paused = true)]
async fn a_deletion_whose_answer_comes_after_the_end_of_the_lease_is_counted() {
    let clock = TokioClock::starting_at(T0);
    let lease = LeaseGuard::new(clock);
    lease.set(Some((1, clock.now() + Duration::from_secs(2))));
    let fixture = Fixture::with_lease(Reply::SlowDeletion, lease.of_term(1));
    fixture.controller.slice_event(WatchEvent::Apply(slice("NoExecute")));
    fixture.add("p", &json!([]));
    fixture.complete_lists();
    sleep(Duration::from_secs(10)).await;
    assert!(!lease.is_held());
    fixture.controller.stop().await;
    assert_eq!(*fixture.api.deleted.lock(), ["p"]);
    assert_eq!(fixture.series("device_taint_eviction_controller_pod_deletions_total"), Some(1.0));
}
