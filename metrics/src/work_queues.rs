//! The work queues of controllers, with the names and buckets of client-go.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use prometheus_client::encoding::{EncodeLabelSet, EncodeMetric, MetricEncoder};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;

use crate::histogram::{Histogram, WORK_QUEUE};
use crate::register::kubelet;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct NameLabel {
    name: &'static str,
}

/// The numbers of a queue at one time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorkQueueNumbers {
    /// The number of keys that wait for a worker. Keys with a delay are not counted.
    pub depth: u64,
    /// How often a key was added, also after a delay. A key that is added twice before it is taken counts once.
    pub adds: u64,
    /// The number of delays after a failure.
    pub retries: u64,
    /// The sum of the durations of all work that runs.
    pub unfinished: Duration,
    /// The duration of the work that has run longest.
    pub longest: Duration,
}

/// Reads the numbers of a queue.
type ReadNumbers = Arc<dyn Fn() -> WorkQueueNumbers + Send + Sync>;
/// The queues by their names.
type Queues = Arc<Mutex<BTreeMap<&'static str, ReadNumbers>>>;

/// One number of each queue, read at each scrape.
#[derive(Clone)]
struct NumberOfQueues {
    queues: Queues,
    value: Value,
}

#[derive(Clone, Copy)]
enum Value {
    Counter(fn(&WorkQueueNumbers) -> u64),
    Gauge(fn(&WorkQueueNumbers) -> f64),
}

impl fmt::Debug for NumberOfQueues {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("NumberOfQueues")
    }
}

impl EncodeMetric for NumberOfQueues {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> Result<(), fmt::Error> {
        // No lock is held while a queue is read.
        let queues: Vec<_> = self.queues.lock().iter().map(|(name, read)| (*name, read.clone())).collect();
        for (name, read) in queues {
            let numbers = read();
            let label = NameLabel { name };
            let encoder = encoder.encode_family(&label)?;
            match self.value {
                Value::Counter(of) => ConstCounter::new(of(&numbers)).encode(encoder)?,
                Value::Gauge(of) => ConstGauge::new(of(&numbers)).encode(encoder)?,
            }
        }
        Ok(())
    }

    fn metric_type(&self) -> MetricType {
        match self.value {
            Value::Counter(_) => MetricType::Counter,
            Value::Gauge(_) => MetricType::Gauge,
        }
    }

    fn is_empty(&self) -> bool {
        self.queues.lock().is_empty()
    }
}

/// The work queues of controllers.
#[derive(Clone)]
pub struct WorkQueueMetrics {
    queues: Queues,
    waits: Family<NameLabel, Histogram>,
    work: Family<NameLabel, Histogram>,
}

impl fmt::Debug for WorkQueueMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WorkQueueMetrics")
    }
}

/// The durations of one queue.
#[derive(Clone, Debug)]
pub struct WorkQueueDurations {
    waits: Histogram,
    work: Histogram,
}

impl WorkQueueMetrics {
    /// Registers the families.
    pub fn register(registry: &mut Registry) -> Self {
        let queues = Queues::default();
        let mut number = |name: &str, help: &str, value: Value| {
            kubelet(registry, name, help, NumberOfQueues { queues: queues.clone(), value });
        };
        number("workqueue_depth", "Current depth of workqueue", Value::Gauge(|numbers| numbers.depth as f64));
        number(
            "workqueue_adds_total",
            "Total number of adds handled by workqueue",
            Value::Counter(|numbers| numbers.adds),
        );
        number(
            "workqueue_retries_total",
            "Total number of retries handled by workqueue",
            Value::Counter(|numbers| numbers.retries),
        );
        number(
            "workqueue_unfinished_work_seconds",
            "Seconds of work that is in progress and that work_duration does not contain yet. Large values show stuck workers",
            Value::Gauge(|numbers| numbers.unfinished.as_secs_f64()),
        );
        number(
            "workqueue_longest_running_processor_seconds",
            "Seconds for which the longest running processor of workqueue has been running",
            Value::Gauge(|numbers| numbers.longest.as_secs_f64()),
        );
        let mut durations = |name: &str, help: &str| {
            kubelet(
                registry,
                name,
                help,
                Family::new_with_constructor((|| Histogram::new(WORK_QUEUE)) as fn() -> Histogram),
            )
        };
        let waits = durations(
            "workqueue_queue_duration_seconds",
            "How long in seconds an item stays in workqueue before being requested",
        );
        let work =
            durations("workqueue_work_duration_seconds", "How long in seconds processing an item from workqueue takes");
        WorkQueueMetrics { queues, waits, work }
    }

    /// Reads the numbers of a queue with `read` at each scrape from now on. `read` must not block, and must not scrape.
    pub fn observe(&self, name: &'static str, read: impl Fn() -> WorkQueueNumbers + Send + Sync + 'static) {
        self.queues.lock().insert(name, Arc::new(read));
    }

    /// The durations of a queue.
    pub fn durations(&self, name: &'static str) -> WorkQueueDurations {
        let label = NameLabel { name };
        WorkQueueDurations {
            waits: self.waits.get_or_create_owned(&label),
            work: self.work.get_or_create_owned(&label),
        }
    }
}

impl WorkQueueDurations {
    /// A key was taken after it has waited for a worker.
    pub fn taken(&self, waited: Duration) {
        self.waits.observe(waited);
    }

    /// The work on a key has ended.
    pub fn worked(&self, took: Duration) {
        self.work.observe(took);
    }
}
