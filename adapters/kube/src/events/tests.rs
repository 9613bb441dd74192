use std::time::Duration;

use parking_lot::Mutex;
use podwright_metrics::{Format, Metrics};
use podwright_ports::{ApiError, TokioClock};
use tokio::time::sleep;

use super::*;

/// An API server that answers each call as the test has set.
#[derive(Clone, Default)]
struct FakeEventApi(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    calls: Vec<String>,
    failure: Option<ApiError>,
    /// The next call panics.
    panics: bool,
    /// The events are gone from the server.
    is_forgetful: bool,
    latency: Duration,
}

impl FakeEventApi {
    fn call<'a>(&'a self, method: &'static str, event: &'a Event) -> ApiFuture<'a, Event> {
        async move {
            let (latency, failure) = {
                let mut state = self.0.lock();
                assert!(!std::mem::take(&mut state.panics), "a fault of the client");
                let (reason, count) = (event.reason.as_deref().unwrap_or_default(), event.count.unwrap_or_default());
                state.calls.push(format!("{method} {reason} {count}"));
                let gone = (method == "PATCH" && state.is_forgetful).then_some(ApiError::NotFound);
                (state.latency, gone.or(state.failure.clone()))
            };
            sleep(latency).await;
            failure.map_or_else(|| Ok(event.clone()), Err)
        }
        .boxed()
    }

    fn take_calls(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().calls)
    }
}

impl EventApi for FakeEventApi {
    fn create<'a>(&'a self, event: &'a Event) -> ApiFuture<'a, Event> {
        self.call("POST", event)
    }

    fn repeat<'a>(&'a self, event: &'a Event) -> ApiFuture<'a, Event> {
        self.call("PATCH", event)
    }
}

struct Recorder {
    api: FakeEventApi,
    events: KubeEvents,
    metrics: Metrics,
}

impl Recorder {
    fn start() -> Self {
        Self::start_with(None)
    }

    fn start_with(rate: Option<EventRate>) -> Self {
        tokio::time::pause();
        let (api, metrics) = (FakeEventApi::default(), Metrics::new());
        let clock = Arc::new(TokioClock::new());
        let events = KubeEvents::over(|| api.clone(), "n1", clock, metrics.events.clone(), rate);
        Recorder { api, events, metrics }
    }

    fn record(&self, pod: &str, reason: &'static str) {
        let pod = json!({"metadata": {"name": pod, "namespace": "test", "uid": pod}, "spec": {"containers": []}});
        let pod = PodObject::new(serde_json::from_value(pod).unwrap()).unwrap();
        self.events.record(&pod, PodEvent::normal(reason, "message"));
    }

    fn count(&self, outcome: &str) -> usize {
        let series = format!("podwright_events_total{{outcome=\"{outcome}\"}} ");
        let text = self.metrics.encode(Format::Classic);
        text.lines().find_map(|line| line.strip_prefix(&series)?.parse().ok()).unwrap_or(0)
    }
}

async fn settled() {
    sleep(Duration::from_millis(20)).await;
}

#[tokio::test]
async fn repeated_event_is_a_patch_and_a_create_once_the_server_has_forgotten_it() {
    let recorder = Recorder::start();
    recorder.record("web", "BackOff");
    recorder.record("web", "BackOff");
    settled().await;
    assert_eq!(recorder.api.take_calls(), ["POST BackOff 1", "PATCH BackOff 2"]);
    recorder.api.0.lock().is_forgetful = true;
    recorder.record("web", "BackOff");
    settled().await;
    assert_eq!(recorder.api.take_calls(), ["PATCH BackOff 3", "POST BackOff 3"]);
    assert_eq!(recorder.count("written"), 3);
}

#[tokio::test]
async fn refused_event_is_not_written_again() {
    let recorder = Recorder::start();
    for failure in [ApiError::NotFound, ApiError::conflict("exists"), ApiError::refused("no")] {
        recorder.api.0.lock().failure = Some(failure);
        recorder.record("web", "Started");
        sleep(Duration::from_secs(60)).await;
        recorder.api.0.lock().failure = None;
    }
    assert_eq!(recorder.api.take_calls().iter().filter(|call| call.starts_with("POST Started 1")).count(), 1);
    assert_eq!(recorder.count("failed"), 3);
    recorder.record("web", "Killing");
    settled().await;
    assert_eq!(recorder.api.take_calls(), ["POST Killing 1"]);
}

/// The events of one object are in one lane.
#[tokio::test]
async fn panic_loses_one_event_and_the_next_ones_follow() {
    let recorder = Recorder::start();
    recorder.record("web", "Pulled");
    settled().await;
    recorder.api.0.lock().panics = true;
    for reason in ["Created", "Started", "Pulled"] {
        recorder.record("web", reason);
    }
    sleep(Duration::from_secs(2)).await;
    assert_eq!(recorder.api.take_calls(), ["POST Pulled 1", "POST Started 1", "PATCH Pulled 2"]);
    assert_eq!((recorder.count("written"), recorder.count("failed")), (3, 1));
    assert_eq!(recorder.events.close(Duration::from_secs(1)).await, 0);
}

#[tokio::test]
async fn events_of_an_outage_are_bounded_and_recording_never_waits() {
    let recorder = Recorder::start();
    recorder.api.0.lock().failure = Some(ApiError::unavailable("connection refused", None));
    // The lanes hold no more than 1000 events, and each works on one.
    (0..2000).for_each(|number| recorder.record(&format!("web-{number}"), "Started"));
    settled().await;
    (0..2000).for_each(|number| recorder.record(&format!("web-{number}"), "Started"));
    let dropped = recorder.count("dropped");
    assert!((2990..=3004).contains(&dropped), "{dropped}");

    sleep(Duration::from_secs(60)).await;
    let tries = recorder.api.take_calls().len();
    assert!((4 * 5..=4 * 9).contains(&tries), "{tries} tries in a minute");
    recorder.api.0.lock().failure = None;
    sleep(Duration::from_secs(11)).await;
    assert_eq!(recorder.count("written") + dropped, 4000);
}

#[tokio::test]
async fn an_event_is_given_up_after_twelve_tries() {
    let recorder = Recorder::start();
    recorder.api.0.lock().failure = Some(ApiError::unavailable("connection refused", None));
    recorder.record("web", "Started");
    sleep(Duration::from_secs(200)).await;
    assert_eq!(recorder.api.take_calls().len(), 12);
    assert_eq!(recorder.count("failed"), 1);
}

#[tokio::test]
async fn hanging_calls_of_one_lane_do_not_delay_the_others() {
    let recorder = Recorder::start();
    recorder.api.0.lock().latency = Duration::from_millis(20);
    (0..200).for_each(|number| recorder.record(&format!("web-{number}"), "Started"));
    sleep(Duration::from_millis(1600)).await;
    assert_eq!(recorder.count("written"), 200, "four lanes write at once");
}

#[tokio::test]
async fn events_of_all_lanes_together_have_a_rate() {
    let number = |number| std::num::NonZeroU32::new(number).unwrap();
    let recorder = Recorder::start_with(Some(EventRate { per_second: number(10), burst: number(20) }));
    (0..100).for_each(|number| recorder.record(&format!("web-{number}"), "Started"));
    settled().await;
    assert_eq!(recorder.count("written"), 20, "the burst is written at once");
    sleep(Duration::from_secs(2)).await;
    assert_eq!(recorder.count("written"), 40);
    sleep(Duration::from_secs(6)).await;
    assert_eq!(recorder.count("written"), 100, "no event is lost");
    // The second request for an event that the server has forgotten counts too.
    recorder.api.0.lock().is_forgetful = true;
    recorder.api.take_calls();
    (0..20).for_each(|number| recorder.record(&format!("web-{number}"), "Started"));
    sleep(Duration::from_secs(1)).await;
    let calls = recorder.api.take_calls().len();
    assert!((9..=10).contains(&calls), "{calls} requests in a second");
}

#[tokio::test]
async fn close_writes_the_events_that_were_recorded() {
    let recorder = Recorder::start();
    recorder.api.0.lock().latency = Duration::from_millis(20);
    (0..40).for_each(|number| recorder.record(&format!("web-{number}"), "Started"));
    assert_eq!(recorder.events.lanes.close(Duration::from_secs(2)).await, 0);
    assert_eq!(recorder.count("written"), 40);
    recorder.record("web", "Late");
    assert_eq!(recorder.count("dropped"), 1);
}

#[tokio::test]
async fn close_of_an_unreachable_server_is_bounded() {
    let recorder = Recorder::start();
    recorder.api.0.lock().failure = Some(ApiError::unavailable("connection refused", None));
    (0..40).for_each(|number| recorder.record(&format!("web-{number}"), "Started"));
    let started = tokio::time::Instant::now();
    assert_eq!(recorder.events.lanes.close(Duration::from_secs(2)).await, 40);
    assert!(started.elapsed() < Duration::from_millis(2100), "{:?}", started.elapsed());
    assert_eq!((recorder.count("dropped"), recorder.events.lanes.parts.running()), (40, 0));
    recorder.api.take_calls();
    sleep(Duration::from_secs(60)).await;
    assert!(recorder.api.take_calls().is_empty(), "no task is left");
}

/// The lane waits for 10 s between two tries when the recorder begins to close.
#[tokio::test]
async fn close_writes_the_events_to_a_server_that_comes_back() {
    let recorder = Recorder::start();
    recorder.api.0.lock().failure = Some(ApiError::unavailable("connection refused", None));
    (0..5).for_each(|_| recorder.record("web", "Started"));
    while recorder.api.0.lock().calls.len() < 2 {
        settled().await;
    }
    let comes_back = async {
        sleep(Duration::from_secs(3)).await;
        recorder.api.0.lock().failure = None;
    };
    let started = tokio::time::Instant::now();
    let (unwritten, ()) = tokio::join!(recorder.events.lanes.close(Duration::from_secs(8)), comes_back);
    assert_eq!((unwritten, recorder.count("written")), (0, 5));
    assert!(started.elapsed() < Duration::from_millis(4100), "{:?}", started.elapsed());
}

#[tokio::test]
async fn close_makes_no_call_before_the_time_that_the_server_requested() {
    let recorder = Recorder::start();
    let busy = ApiError::unavailable("too many requests", Some(Duration::from_secs(20)));
    recorder.api.0.lock().failure = Some(busy);
    recorder.record("web", "Started");
    settled().await;
    assert_eq!(recorder.events.lanes.close(Duration::from_secs(8)).await, 1);
    assert_eq!(recorder.api.take_calls(), ["POST Started 1"]);
}
