//! Performs the work of a queue.

use std::fmt::Display;
use std::hash::Hash;
use std::panic::AssertUnwindSafe;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use parking_lot::Mutex;
use podwright_metrics::{PanicMetrics, WorkQueueDurations};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::{Outcome, WorkQueue};
use crate::ports::Clock;
use crate::text::panic_text;

/// The delay after work that panicked.
const AFTER_PANIC: Duration = Duration::from_secs(10);

/// A queue, and how its keys are worked on.
pub(crate) struct Work<'a, K, Fill, Added, Perform> {
    pub(crate) queue: &'a Mutex<WorkQueue<K>>,
    /// The largest number of keys that are worked on at once.
    pub(crate) limit: usize,
    /// Moves new keys into the queue.
    pub(crate) fill: Fill,
    /// Ends when there are new keys. Cancel safe.
    pub(crate) added: Added,
    /// Works on a key.
    pub(crate) perform: Perform,
    pub(crate) clock: &'a dyn Clock,
    pub(crate) panics: &'a PanicMetrics,
    /// Measures the keys. `None` if the queue has no metrics.
    pub(crate) durations: Option<&'a WorkQueueDurations>,
}

/// Works on the keys of a queue until `stop` is cancelled. Work that runs then is dropped. Work that panics is tried again.
pub(crate) async fn work<K, Fill, Added, New, Perform, Done>(
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
