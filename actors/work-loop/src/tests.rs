//! The loop after a panic of its own.

use std::cell::Cell;
use std::future::pending;

use podwright_metrics::Registry;
use podwright_ports::TokioClock;
use podwright_work_queue::{Backoff, Urgency};
use tokio::sync::Notify;
use tokio::time::timeout;

use super::*;

#[tokio::test(start_paused = true)]
async fn work_that_a_panic_of_the_loop_has_dropped_is_repeated() {
    let second = Duration::from_secs(1);
    let queue = Mutex::new(WorkQueue::new(Backoff { first: second, longest: second }));
    queue.lock().add(&"web", Urgency::Normal);
    let (clock, panics) = (TokioClock::new(), PanicMetrics::register(&mut Registry::default()));
    let (fills, performed, added) = (Cell::new(0), Cell::new(0), Notify::new());
    let run = || {
        let passes = Work {
            queue: &queue,
            limit: 4,
            fill: |_: &mut WorkQueue<&'static str>| {
                fills.set(fills.get() + 1);
                assert_ne!(fills.get(), 2, "a fault of the loop");
            },
            added: || added.notified(),
            perform: |_: &'static str| {
                performed.set(performed.get() + 1);
                let is_first = performed.get() == 1;
                async move { if is_first { pending().await } else { Outcome::Finished } }
            },
            clock: &clock,
            panics: &panics,
            durations: None,
        };
        work(passes, CancellationToken::new())
    };
    added.notify_one();
    AssertUnwindSafe(run()).catch_unwind().await.unwrap_err();
    assert_eq!((performed.get(), queue.lock().active()), (1, 1));

    timeout(6 * AFTER_PANIC, run()).await.unwrap_err();
    assert_eq!((performed.get(), queue.lock().is_empty()), (2, true));
}
