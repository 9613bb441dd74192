//! Performs the work of a [`WorkQueue`], and converts its numbers for the metrics.

mod work;

use podwright_metrics::WorkQueueNumbers;

pub use podwright_work_queue::{Backoff, Failures, Outcome, Pace, QueueNumbers, Urgency, WorkQueue};
pub(crate) use work::{Work, work};

/// The numbers of a queue as the metrics count them.
pub fn for_metrics(numbers: QueueNumbers) -> WorkQueueNumbers {
    let QueueNumbers { depth, adds, retries, unfinished, longest } = numbers;
    WorkQueueNumbers { depth, adds, retries, unfinished, longest }
}
