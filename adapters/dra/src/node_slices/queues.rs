//! The queues of the pools that the agent publishes, as one work queue of the metrics.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use podwright_metrics::{WorkQueueDurations, WorkQueueMetrics, WorkQueueNumbers};
use podwright_slices::{DriverResources, SliceEngine};
use podwright_work_loop::for_metrics;

use super::ports::Publisher;

/// The name of the work queue (upstream's kubelet of 2024).
const QUEUE_NAME: &str = "node_resource_slices";

type ReadNumbers = Box<dyn Fn() -> WorkQueueNumbers + Send>;

/// The queues of all drivers.
#[derive(Clone)]
pub(super) struct SliceQueues {
    queues: Arc<Mutex<Queues>>,
    durations: WorkQueueDurations,
}

#[derive(Default)]
struct Queues {
    running: BTreeMap<u64, ReadNumbers>,
    last: u64,
    /// The counts of the queues that have ended, so that the sums never become smaller.
    ended: WorkQueueNumbers,
}

impl SliceQueues {
    pub(super) fn new(metrics: &WorkQueueMetrics) -> Self {
        let queues = Arc::<Mutex<Queues>>::default();
        let observed = queues.clone();
        metrics.observe(QUEUE_NAME, move || observed.lock().numbers());
        SliceQueues { queues, durations: metrics.durations(QUEUE_NAME) }
    }

    /// A sync of a pool has ended.
    pub(super) fn synced(&self, waited: Duration, worked: Duration) {
        self.durations.taken(waited);
        self.durations.worked(worked);
    }

    /// Counts the queue of an engine as long as the publisher exists.
    pub(super) fn publisher(&self, engine: SliceEngine) -> NodePublisher {
        let mut queues = self.queues.lock();
        queues.last += 1;
        let number = queues.last;
        let read = engine.queue_numbers();
        queues.running.insert(number, Box::new(move || for_metrics(read())));
        NodePublisher { engine, number, queues: self.queues.clone() }
    }
}

impl Queues {
    fn numbers(&self) -> WorkQueueNumbers {
        self.running.values().map(|read| read()).fold(self.ended, |all, of| WorkQueueNumbers {
            depth: all.depth + of.depth,
            adds: all.adds + of.adds,
            retries: all.retries + of.retries,
            unfinished: all.unfinished + of.unfinished,
            longest: all.longest.max(of.longest),
        })
    }
}

/// Publishes for one driver of the node.
pub(super) struct NodePublisher {
    engine: SliceEngine,
    number: u64,
    queues: Arc<Mutex<Queues>>,
}

impl Publisher for NodePublisher {
    fn publish(&self, resources: DriverResources) {
        // An engine for all pools accepts each.
        let _ = self.engine.update(resources);
        self.engine.resume();
    }

    fn hold(&self) {
        self.engine.hold();
    }
}

impl Drop for NodePublisher {
    fn drop(&mut self) {
        let mut queues = self.queues.lock();
        if let Some(read) = queues.running.remove(&self.number) {
            let last = read();
            queues.ended.adds += last.adds;
            queues.ended.retries += last.retries;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queue_that_ended_stays_counted() {
        let of = |adds| WorkQueueNumbers { depth: 1, adds, retries: 2, ..WorkQueueNumbers::default() };
        let mut queues = Queues { ended: WorkQueueNumbers { adds: 3, ..Default::default() }, ..Queues::default() };
        queues.running = [4, 5].map(|adds| (adds, Box::new(move || of(adds)) as ReadNumbers)).into();
        assert_eq!(
            queues.numbers(),
            WorkQueueNumbers { depth: 2, adds: 12, retries: 4, ..WorkQueueNumbers::default() }
        );
    }
}
