//! The passes of a controller: the queue of its items, the retries of passes that failed, and their errors.

use std::collections::HashMap;
use std::fmt;
use std::hash::Hash;
use std::panic::AssertUnwindSafe;
use std::time::Duration;

use foldhash::fast::RandomState;
use futures_util::FutureExt;
use parking_lot::Mutex;
use podwright_metrics::PanicMetrics;
use podwright_model::text::panic_text;
use podwright_model::time::Time;
use podwright_work_queue::{Backoff, Outcome, Pace, WorkQueue};
use tracing::Instrument;

use super::failed_pass::FailedPass;

/// The delays of an item whose pass failed (client-go `DefaultTypedControllerRateLimiter`).
const BACKOFF: Backoff = Backoff { first: Duration::from_millis(5), longest: Duration::from_secs(1000) };
/// The rate of the retries of all items (as above).
const PACE: Pace = Pace { every: Duration::from_millis(100), burst: 100 };
/// The shortest delay after a pass that panicked.
const AFTER_PANIC: Duration = Duration::from_secs(1);

/// How a pass ended.
#[derive(Debug)]
pub(super) enum PassEnd {
    /// Nothing is left to do.
    Finished,
    /// The item is due again at this time.
    Again(Time),
    /// The pass waits for something that takes this long. That is no failure.
    Waits { reason: String, delay: Duration },
    /// The pass failed. It is repeated after its backoff, and after this delay.
    Failed { error: String, at_least: Duration },
}

/// The queue of a controller, and the errors of the items whose passes fail.
#[derive(Debug)]
pub(super) struct Passes<K> {
    /// The name of the controller.
    controller: &'static str,
    pub(super) queue: Mutex<WorkQueue<K>>,
    /// The error of the last pass of each item whose passes fail.
    errors: Mutex<HashMap<K, String, RandomState>>,
    panics: PanicMetrics,
}

impl<K: Clone + Eq + Hash + fmt::Display> Passes<K> {
    pub(super) fn new(controller: &'static str, panics: PanicMetrics) -> Self {
        let queue = Mutex::new(WorkQueue::new(BACKOFF).paced(PACE));
        Passes { controller, queue, errors: Mutex::default(), panics }
    }

    /// The failed passes of an item. `None` if its last pass succeeded.
    pub(super) fn failures(&self, item: &K) -> Option<FailedPass> {
        let (failures, next) = self.queue.lock().failures(item)?;
        let error = self.errors.lock().get(item).cloned().unwrap_or_default();
        Some(FailedPass::new(item, failures.since, failures.count, next, error))
    }

    /// Runs the pass of an item, in a span that names the item. A pass that panics is counted and repeated.
    pub(super) async fn perform(&self, item: K, pass: impl Future<Output = PassEnd>) -> Outcome {
        let span = tracing::info_span!("pass", controller = self.controller, object = %item);
        let end = AssertUnwindSafe(pass).catch_unwind().instrument(span.clone()).await;
        let _entered = span.enter();
        match end {
            Ok(PassEnd::Finished) => {
                self.succeeded(&item);
                Outcome::Finished
            }
            Ok(PassEnd::Again(at)) => {
                self.succeeded(&item);
                // The pass of the item still counts as running, so the queue takes this as the time of its next pass.
                self.queue.lock().add_at(&item, at);
                Outcome::Finished
            }
            Ok(PassEnd::Waits { reason, delay }) => {
                tracing::debug!(reason, "pass waits");
                Outcome::Wait(delay)
            }
            Ok(PassEnd::Failed { error, at_least }) => {
                self.failed(item, error);
                Outcome::Retry { at_least }
            }
            Err(panic) => {
                self.panics.caught();
                let panic = panic_text(&*panic);
                tracing::error!(panic, "the pass panicked and will be repeated");
                self.errors.lock().insert(item, format!("the pass panicked: {panic}"));
                Outcome::Retry { at_least: AFTER_PANIC }
            }
        }
    }

    fn succeeded(&self, item: &K) {
        if self.errors.lock().remove(item).is_some() {
            tracing::info!("the pass succeeded after it had failed");
        }
    }

    /// A pass failed and will be repeated for as long as it fails. The reason is logged once at WARN, and again when it changes.
    fn failed(&self, item: K, error: String) {
        if self.errors.lock().get(&item) == Some(&error) {
            tracing::debug!(error, "the pass failed again and will be repeated");
        } else {
            tracing::warn!(error, "the pass failed and will be repeated");
        }
        self.errors.lock().insert(item, error);
    }
}
