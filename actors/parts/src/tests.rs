//! Parts that panic, end and are stopped. The time is paused.

use std::sync::atomic::{AtomicUsize, Ordering};

use podwright_metrics::{ControllersMetrics, Format};
use tokio::task::LocalSet;

use super::*;

/// Parts, and how often their work began.
struct Bed {
    parts: Parts,
    metrics: ControllersMetrics,
    begun: Arc<AtomicUsize>,
    at: Instant,
}

impl Bed {
    fn new() -> Self {
        let metrics = ControllersMetrics::new();
        let parts = Parts::new(metrics.panics.clone(), CancellationToken::new());
        Bed { parts, metrics, begun: Arc::default(), at: Instant::now() }
    }

    /// Work that panics when it has run for `after`, the first `panics` times.
    fn faulty(
        &self,
        panics: usize,
        after: Duration,
    ) -> impl FnMut() -> futures_util::future::BoxFuture<'static, ()> + use<> {
        let begun = self.begun.clone();
        move || {
            let number = begun.fetch_add(1, Ordering::Relaxed);
            async move {
                sleep(after).await;
                assert!(number >= panics, "fault {number}");
                std::future::pending().await
            }
            .boxed()
        }
    }

    /// How often the work has begun by this time after the beginning of the test.
    async fn begun_by(&self, millis: u64) -> usize {
        tokio::time::sleep_until(self.at + Duration::from_millis(millis)).await;
        self.begun.load(Ordering::Relaxed)
    }

    /// The counted panics of the part, and all.
    fn panics(&self) -> (f64, f64) {
        let text = self.metrics.encode(Format::Classic);
        let value = |series: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(series)).expect("the series exists");
            line.trim().parse().expect("a number")
        };
        (value("podwright_part_panics_total{part=\"writer\"} "), value("podwright_hook_panics_total "))
    }
}

#[tokio::test(start_paused = true)]
async fn part_that_panics_is_counted_and_begins_again_after_a_delay_that_grows() {
    let bed = Bed::new();
    bed.parts.spawn("writer", bed.faulty(6, Duration::ZERO));
    assert_eq!(bed.panics(), (0.0, 0.0), "a series begins at zero");
    // The delays are 1, 2, 4, 8, 10 and 10 s.
    for (millis, expected) in
        [(900, 1), (1100, 2), (2900, 2), (3100, 3), (7100, 4), (15_100, 5), (25_100, 6), (35_100, 7)]
    {
        assert_eq!(bed.begun_by(millis).await, expected, "after {millis} ms");
    }
    assert_eq!((bed.panics(), bed.begun_by(600_000).await), ((6.0, 6.0), 7));
}

#[tokio::test(start_paused = true)]
async fn panic_after_a_steady_time_counts_as_the_first_one() {
    let bed = Bed::new();
    let steady = STEADY + Duration::from_millis(1);
    bed.parts.spawn("writer", bed.faulty(10, steady));
    let cycle = u64::try_from((steady + RESTART.first).as_millis()).unwrap();
    assert_eq!(bed.begun_by(9 * cycle + 100).await, 10);
}

#[tokio::test(start_paused = true)]
async fn part_is_reported_from_its_panic_until_it_begins_again() {
    let bed = Bed::new();
    bed.parts.spawn("reader", std::future::pending);
    bed.parts.spawn("writer", bed.faulty(1, Duration::from_millis(500)));
    bed.begun_by(400).await;
    assert_eq!(bed.parts.stopped(), []);
    bed.begun_by(600).await;
    let expected = StoppedPart { name: "writer", panic: Some("fault 0".to_owned()) };
    assert_eq!(expected.to_string(), "the part writer panicked and starts again: fault 0");
    assert_eq!(bed.parts.stopped(), [expected]);
    bed.begun_by(1600).await;
    assert_eq!(bed.parts.stopped(), []);
}

#[tokio::test(start_paused = true)]
async fn part_whose_work_returns_is_reported_until_the_parts_are_stopped() {
    let bed = Bed::new();
    bed.parts.spawn("writer", || std::future::ready(()));
    assert_eq!(bed.parts.running(), 1);
    bed.begun_by(1).await;
    assert_eq!(bed.parts.running(), 0);
    let expected = StoppedPart { name: "writer", panic: None };
    assert_eq!(expected.to_string(), "the part writer has ended");
    assert_eq!((bed.parts.stopped(), bed.panics()), (vec![expected], (0.0, 0.0)));
    bed.parts.stop().cancel();
    assert_eq!(bed.parts.stopped(), []);
}

#[tokio::test(start_paused = true)]
async fn panic_before_the_work_returns_a_future_is_caught_and_reported() {
    let bed = Bed::new();
    let (begun, reported) = (bed.begun.clone(), Arc::new(Mutex::new(Vec::new())));
    let work = move || {
        assert!(begun.fetch_add(1, Ordering::Relaxed) > 0, "no future");
        std::future::pending()
    };
    let texts = reported.clone();
    bed.parts.spawn_reporting("writer", work, move |panic| texts.lock().push(panic.to_owned()));
    assert_eq!(bed.begun_by(1100).await, 2);
    assert_eq!(*reported.lock(), ["no future"]);
}

/// A part that waits for its next beginning ends too.
#[tokio::test(start_paused = true)]
async fn stop_ends_all_parts() {
    let bed = Bed::new();
    bed.parts.spawn("reader", std::future::pending);
    bed.parts.spawn("writer", bed.faulty(1, Duration::ZERO));
    bed.begun_by(500).await;
    bed.parts.stop().cancel();
    bed.parts.ended().await;
    assert_eq!(bed.parts.running(), 0);
    assert!(bed.at.elapsed() < Duration::from_secs(1));
    assert_eq!(bed.begun_by(60_000).await, 1);
}

/// The future of this work may not leave its thread.
#[tokio::test(start_paused = true)]
async fn local_part_begins_again_after_a_panic() {
    let bed = Bed::new();
    let begun = bed.begun.clone();
    let local = LocalSet::new();
    let test = async {
        bed.parts.spawn_local("writer", async move || {
            let number = std::rc::Rc::new(begun.fetch_add(1, Ordering::Relaxed));
            tokio::task::yield_now().await;
            assert!(*number > 0, "a fault");
            std::future::pending::<()>().await;
        });
        assert_eq!(bed.begun_by(1100).await, 2);
        assert_eq!(bed.panics(), (1.0, 1.0));
    };
    local.run_until(test).await;
}
