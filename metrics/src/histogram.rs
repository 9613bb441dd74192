//! A histogram without a lock, and the lists of bucket bounds.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use prometheus_client::encoding::{EncodeMetric, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::{MetricType, TypedMetric};

/// The handling of one pod, a relist or a sandbox call: the range of a request, 5 ms to 10 s. The kubelet's buckets.
pub(crate) const REQUEST: &[f64] = &[0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

/// The start of a pod: dense around the usual objectives (5 to 20 s), up to an hour for large images. The kubelet's
/// buckets.
pub(crate) const POD_START: &[f64] = &[
    0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 20.0, 30.0, 45.0, 60.0, 120.0, 180.0, 240.0, 300.0, 360.0, 480.0,
    600.0, 900.0, 1200.0, 1800.0, 2700.0, 3600.0,
];

/// The delay between a changed status and its write: milliseconds normally, up to a minute. The kubelet's buckets.
pub(crate) const STATUS_SYNC: &[f64] = &[0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 20.0, 30.0, 45.0, 60.0];

/// One runtime call, from a list (5 ms) to a pull (minutes): each bucket is 2.5 times the previous one. The kubelet's
/// buckets.
pub(crate) const RUNTIME_CALL: &[f64] = &[
    0.005,
    0.0125,
    0.03125,
    0.078125,
    0.1953125,
    0.48828125,
    1.220703125,
    3.0517578125,
    7.62939453125,
    19.073486328125,
    47.6837158203125,
    119.20928955078125,
    298.0232238769531,
    745.0580596923828,
];

/// An image pull: a second if most layers are present, an hour for the largest images. The kubelet's buckets.
pub(crate) const IMAGE_PULL: &[f64] = &[
    1.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 180.0, 240.0, 300.0, 360.0, 480.0, 600.0, 900.0, 1200.0, 1800.0, 2700.0,
    3600.0,
];

/// The wait for the start governor: nothing on an idle runtime, minutes when a whole node starts on a slow one.
pub(crate) const START_WAIT: &[f64] =
    &[0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0];

/// The time for which a certificate was in use: a minute in a test cluster, a year by default, four years at most. The kubelet's
/// buckets.
pub(crate) const CERTIFICATE_LIFE: &[f64] =
    &[60.0, 3600.0, 14_400.0, 86_400.0, 604_800.0, 2_592_000.0, 7_776_000.0, 15_552_000.0, 31_104_000.0, 124_416_000.0];

/// The preparation or the return of a pod's devices: a tenth of a second normally, 45 s at most. The kubelet's buckets: 15 bounds,
/// each about 1.53 times the previous one.
pub(crate) const DRA_OPERATION: &[f64] = &[
    0.1, 0.1534, 0.2354, 0.3611, 0.5539, 0.8498, 1.3037, 2.0, 3.0683, 4.7071, 7.2213, 11.0784, 16.9956, 26.0735, 40.0,
];

/// The number of regular containers of a pod. The kubelet's buckets.
pub(crate) const CONTAINERS: &[f64] = &[1.0, 2.0, 4.0, 8.0, 16.0];

/// The handling of one message by an actor. Handlers do no I/O, so microseconds are normal, a millisecond is
/// suspicious, and a second stalls the other actors of the thread.
pub(crate) const HANDLER: &[f64] = &[0.000001, 0.00001, 0.0001, 0.001, 0.01, 0.1, 1.0];

/// The time of a key in a work queue: nanoseconds to 1,000 seconds. The buckets of client-go, with the rounding of its computation.
pub(crate) const WORK_QUEUE: &[f64] =
    &[1e-08, 1e-07, 1e-06, 9.999999999999999e-06, 9.999999999999999e-05, 0.001, 0.01, 0.1, 1.0, 10.0, 100.0, 1000.0];

/// The deletion of a pod after its eviction was due: milliseconds normally, minutes when the API server refuses. Upstream's buckets.
pub(crate) const POD_DELETION: &[f64] = &[0.005, 0.025, 0.1, 0.5, 1.0, 2.5, 10.0, 30.0, 60.0, 120.0, 180.0, 240.0];

const NANOS_PER_UNIT: u64 = 1_000_000_000;

/// A histogram over fixed buckets, made of atomics and shared by its clones.
///
/// `prometheus_client`'s own histogram takes a mutex for each observation, which all pods would share in every sync.
/// Without a lock, a scrape during an observation may see the observation's bucket and not yet its sum. The count is
/// computed from the buckets, so `_count` and the `+Inf` bucket always agree.
#[derive(Clone, Debug)]
pub(crate) struct Histogram(Arc<HistogramInner>);

#[derive(Debug)]
struct HistogramInner {
    bounds: &'static [f64],
    /// One more element than bounds; the last one counts values above all bounds. Each element counts its own
    /// observations, and the encoder accumulates them.
    buckets: Box<[AtomicU64]>,
    /// The sum in billionths of the unit, because integers can be added without a retry loop. Enough for 584 years in
    /// seconds.
    sum: AtomicU64,
}

impl Histogram {
    /// An empty histogram with these ascending upper bounds; the infinite bound is implied.
    pub(crate) fn new(bounds: &'static [f64]) -> Self {
        Histogram(Arc::new(HistogramInner {
            bounds,
            buckets: (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect(),
            sum: AtomicU64::new(0),
        }))
    }

    /// A constructor for families, which need a plain function.
    pub(crate) fn request() -> Self {
        Histogram::new(REQUEST)
    }

    /// Records a duration, in seconds.
    pub(crate) fn observe(&self, duration: Duration) {
        let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        self.add(duration.as_secs_f64(), nanos);
    }

    /// Records a duration, in milliseconds.
    pub(crate) fn observe_millis(&self, duration: Duration) {
        let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        self.add(duration.as_secs_f64() * 1000.0, nanos.saturating_mul(1000));
    }

    /// Records a number.
    pub(crate) fn observe_count(&self, count: usize) {
        let count = count as u64;
        self.add(count as f64, count.saturating_mul(NANOS_PER_UNIT));
    }

    fn add(&self, value: f64, nanos: u64) {
        // An upper bound belongs to its bucket ("le").
        let bucket = self.0.bounds.partition_point(|bound| *bound < value);
        self.0.buckets[bucket].fetch_add(1, Ordering::Relaxed);
        self.0.sum.fetch_add(nanos, Ordering::Relaxed);
    }
}

impl TypedMetric for Histogram {
    const TYPE: MetricType = MetricType::Histogram;
}

impl EncodeMetric for Histogram {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> Result<(), std::fmt::Error> {
        let bounds = self.0.bounds.iter().copied().chain([f64::INFINITY]);
        let buckets: Vec<(f64, u64)> =
            bounds.zip(self.0.buckets.iter().map(|bucket| bucket.load(Ordering::Relaxed))).collect();
        let count = buckets.iter().map(|(_, count)| count).sum();
        let sum = self.0.sum.load(Ordering::Relaxed) as f64 / NANOS_PER_UNIT as f64;
        encoder.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)
    }

    fn metric_type(&self) -> MetricType {
        Self::TYPE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(histogram: &Histogram) -> Vec<u64> {
        histogram.0.buckets.iter().map(|bucket| bucket.load(Ordering::Relaxed)).collect()
    }

    #[test]
    fn a_value_on_a_bound_belongs_to_that_bucket() {
        let histogram = Histogram::new(&[0.005, 1.0]);
        for millis in [0, 5, 6, 1000, 1001, 86_400_000] {
            histogram.observe(Duration::from_millis(millis));
        }
        assert_eq!(counts(&histogram), [2, 2, 2]);
    }

    #[test]
    fn bounds_ascend() {
        let lists = [
            REQUEST,
            POD_START,
            STATUS_SYNC,
            RUNTIME_CALL,
            IMAGE_PULL,
            START_WAIT,
            CERTIFICATE_LIFE,
            DRA_OPERATION,
            CONTAINERS,
            HANDLER,
            WORK_QUEUE,
            POD_DELETION,
        ];
        for bounds in lists {
            assert!(bounds.is_sorted_by(|a, b| a < b), "{bounds:?}");
        }
    }

    #[test]
    fn concurrent_observations_lose_nothing() {
        const THREADS: u64 = 8;
        const EACH: u64 = 20_000;
        let histogram = Histogram::new(REQUEST);
        std::thread::scope(|scope| {
            for _ in 0..THREADS {
                let histogram = histogram.clone();
                scope.spawn(move || {
                    for i in 0..EACH {
                        histogram.observe(Duration::from_millis(if i % 2 == 0 { 1 } else { 20_000 }));
                    }
                });
            }
        });
        let half = THREADS * EACH / 2;
        let counts = counts(&histogram);
        assert_eq!((counts[0], counts[REQUEST.len()]), (half, half));
        assert_eq!(counts.iter().sum::<u64>(), THREADS * EACH);
        assert_eq!(histogram.0.sum.load(Ordering::Relaxed), half * 1_000_000 + half * 20 * NANOS_PER_UNIT);
    }

    #[test]
    fn the_longest_duration_does_not_panic() {
        let histogram = Histogram::new(REQUEST);
        histogram.observe(Duration::MAX);
        histogram.observe_count(usize::MAX);
        assert_eq!(counts(&histogram)[REQUEST.len()], 2);
    }
}
