//! Performs the work of a [`WorkQueue`]: [`work`] takes the keys that are due, works on several of them at once, and reports to the queue
//! how the work on each one ended.
//!
//! ```
//! use std::future::{pending, ready};
//! use std::time::Duration;
//!
//! use parking_lot::Mutex;
//! use podwright_metrics::{PanicMetrics, Registry};
//! use podwright_ports::SystemClock;
//! use podwright_work_loop::{Work, work};
//! use podwright_work_queue::{Backoff, Outcome, Urgency, WorkQueue};
//! use tokio_util::sync::CancellationToken;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() {
//! let queue = Mutex::new(WorkQueue::new(Backoff { first: Duration::from_secs(1), longest: Duration::from_secs(60) }));
//! queue.lock().add(&"web", Urgency::Normal);
//! let (clock, panics) = (SystemClock::new(), PanicMetrics::register(&mut Registry::default()));
//! let writes = Work {
//!     queue: &queue,
//!     limit: 4,
//!     fill: |_: &mut WorkQueue<&'static str>| {},
//!     added: pending::<()>,
//!     perform: |pod: &'static str| {
//!         println!("write the status of {pod}");
//!         ready(Outcome::Finished)
//!     },
//!     clock: &clock,
//!     panics: &panics,
//!     durations: None,
//! };
//! let stop = CancellationToken::new();
//! let until_empty = async {
//!     while !queue.lock().is_empty() {
//!         tokio::task::yield_now().await;
//!     }
//!     stop.cancel();
//! };
//! tokio::join!(work(writes, stop.clone()), until_empty);
//! # }
//! ```
//!
//! # Parts
//!
//! - [`Work`] and [`work`]: the keys, the work on them, and the loop. Work that panics is counted, logged and repeated. A loop that panics may
//!   begin again, and repeats the work that it has dropped.
//! - [`for_metrics`]: the numbers of a queue as the metrics count them.
//!
//! # Arrows
//!
//! The crate uses `podwright-model`, `podwright-ports` for the clock, `podwright-work-queue` and `podwright-metrics`. The writers of
//! statuses and mirror pods in `podwright-actors`, and the controllers, use the crate. A publisher of slices uses the queue without this
//! loop, so that a DRA driver builds no metrics.

use std::fmt::Display;
use std::hash::Hash;
use std::panic::AssertUnwindSafe;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use parking_lot::Mutex;
use podwright_metrics::{PanicMetrics, WorkQueueDurations, WorkQueueNumbers};
use podwright_model::text::panic_text;
use podwright_ports::Clock;
use podwright_work_queue::{Outcome, QueueNumbers, WorkQueue};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

/// The delay after work that panicked.
const AFTER_PANIC: Duration = Duration::from_secs(10);

/// A queue, and how its keys are worked on.
pub struct Work<'a, K, Fill, Added, Perform> {
    /// The queue.
    pub queue: &'a Mutex<WorkQueue<K>>,
    /// The largest number of keys that are worked on at once.
    pub limit: usize,
    /// Moves new keys into the queue.
    pub fill: Fill,
    /// Ends when there are new keys. Cancel safe.
    pub added: Added,
    /// Works on a key.
    pub perform: Perform,
    /// The clock of the queue.
    pub clock: &'a dyn Clock,
    /// Counts work that panicked.
    pub panics: &'a PanicMetrics,
    /// Measures the keys. `None` if the queue has no metrics.
    pub durations: Option<&'a WorkQueueDurations>,
}

/// Works on the keys of a queue until `stop` is cancelled. Work that runs then is dropped. Work that panics is tried again.
pub async fn work<K, Fill, Added, New, Perform, Done>(
    mut work: Work<'_, K, Fill, Added, Perform>,
    stop: CancellationToken,
) where
    K: Clone + Display + Eq + Hash,
    Fill: FnMut(&mut WorkQueue<K>),
    Added: Fn() -> New,
    New: Future<Output = ()>,
    Perform: Fn(K) -> Done,
    Done: Future<Output = Outcome>,
{
    // A loop of this queue that panicked has dropped its work.
    work.queue.lock().retry_active(AFTER_PANIC, work.clock.now());
    let mut active = FuturesUnordered::new();
    loop {
        let due = {
            let mut queue = work.queue.lock();
            (work.fill)(&mut queue);
            while queue.active() < work.limit
                && let Some(key) = queue.take(work.clock.now())
            {
                if let (Some(durations), Some(waited)) = (work.durations, queue.waited(&key)) {
                    durations.taken(waited);
                }
                let done = AssertUnwindSafe((work.perform)(key.clone())).catch_unwind();
                active.push(async move { (key, done.await) });
            }
            queue.next_due()
        };
        let until_due = due.map(|due| due.since(work.clock.now()));
        tokio::select! {
            // In a fixed order, so that a simulation repeats.
            biased;
            () = stop.cancelled() => return,
            Some((key, outcome)) = active.next() => {
                let outcome = outcome.unwrap_or_else(|panic| {
                    work.panics.caught();
                    tracing::error!(object = %key, panic = panic_text(&*panic), "the work on an object panicked and is repeated");
                    Outcome::Retry { at_least: AFTER_PANIC }
                });
                let (mut queue, now) = (work.queue.lock(), work.clock.now());
                if let (Some(durations), Some(worked)) = (work.durations, queue.worked(&key, now)) {
                    durations.worked(worked);
                }
                queue.done(&key, outcome, now);
            }
            () = (work.added)() => {}
            // At the limit, a key that is due waits for the end of other work.
            () = sleep(until_due.unwrap_or_default()), if until_due.is_some() && active.len() < work.limit => {}
        }
    }
}

/// The numbers of a queue as the metrics count them.
pub fn for_metrics(numbers: QueueNumbers) -> WorkQueueNumbers {
    let QueueNumbers { depth, adds, retries, unfinished, longest } = numbers;
    WorkQueueNumbers { depth, adds, retries, unfinished, longest }
}

#[cfg(test)]
mod tests;
