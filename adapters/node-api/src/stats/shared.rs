//! Measurements that requests share.

use std::sync::Arc;

use tokio::sync::Mutex;
use tokio::time::Instant;

use super::rates::SHORTEST;

/// A result that requests share: that of a measurement, or the text of its error.
pub(super) type Shared<T> = Result<Arc<T>, Arc<str>>;

/// Limits the measurements of one kind: one at a time, and none for a moment after it. Requests in the meantime get its result.
pub(super) struct Meter<T>(Arc<Mutex<Option<Last<T>>>>);

/// The last result.
struct Last<T> {
    at: Instant,
    result: Shared<T>,
}

impl<T> Default for Meter<T> {
    fn default() -> Self {
        Meter(Arc::default())
    }
}

impl<T: Send + Sync + 'static> Meter<T> {
    /// The result of the last measurement, or of this one if the last one is not new. A measurement continues if its request is dropped.
    pub(super) async fn measure(&self, measure: impl Future<Output = Result<T, String>> + Send + 'static) -> Shared<T> {
        let mut last = self.0.clone().lock_owned().await;
        if let Some(new) = last.as_ref().filter(|last| last.at.elapsed() < SHORTEST) {
            return new.result.clone();
        }
        let measuring = tokio::spawn(async move {
            let result: Shared<T> = measure.await.map(Arc::new).map_err(Arc::from);
            *last = Some(Last { at: Instant::now(), result: result.clone() });
            result
        });
        measuring.await.unwrap_or_else(|_| Err(PANIC.into()))
    }
}

/// The error text of a measurement that panics.
pub(super) const PANIC: &str = "the measurement failed: see the agent's log";

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use tokio::sync::Semaphore;
    use tokio::task::yield_now;

    use super::*;

    /// Measures the number of measurements so far. Each one waits for a permit.
    #[derive(Clone)]
    struct Rig {
        meter: Arc<Meter<u32>>,
        begun: Arc<AtomicU32>,
        finish: Arc<Semaphore>,
    }

    impl Rig {
        fn new(permits: usize) -> Self {
            Rig { meter: Arc::default(), begun: Arc::default(), finish: Arc::new(Semaphore::new(permits)) }
        }

        async fn request(self) -> Result<u32, String> {
            let (begun, finish) = (self.begun, self.finish);
            let measure = async move {
                let number = begun.fetch_add(1, Ordering::SeqCst) + 1;
                finish.acquire().await.unwrap().forget();
                if number == 3 { Err("no runtime".to_owned()) } else { Ok(number) }
            };
            self.meter.measure(measure).await.map(|number| *number).map_err(|error| error.to_string())
        }

        async fn until_begun(&self) {
            while self.begun.load(Ordering::SeqCst) == 0 {
                yield_now().await;
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn requests_share_a_measurement_and_its_error() {
        let rig = Rig::new(100);
        let requests = async || {
            let requests: Vec<_> = (0..5).map(|_| tokio::spawn(rig.clone().request())).collect();
            let mut results = Vec::new();
            for request in requests {
                results.push(request.await.unwrap());
            }
            results.dedup();
            results
        };
        assert_eq!(requests().await, [Ok(1)]);
        tokio::time::advance(SHORTEST / 2).await;
        assert_eq!(requests().await, [Ok(1)], "the result is new");
        tokio::time::advance(SHORTEST).await;
        assert_eq!(requests().await, [Ok(2)]);
        tokio::time::advance(SHORTEST).await;
        assert_eq!(requests().await, [Err("no runtime".to_owned())]);
        tokio::time::advance(SHORTEST).await;
        assert_eq!(requests().await, [Ok(4)]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_dropped_request_starts_no_second_measurement() {
        let rig = Rig::new(0);
        let dropped = tokio::spawn(rig.clone().request());
        rig.until_begun().await;
        dropped.abort();
        assert!(dropped.await.unwrap_err().is_cancelled());
        let waiting = tokio::spawn(rig.clone().request());
        yield_now().await;
        rig.finish.add_permits(2);
        assert_eq!(waiting.await.unwrap(), Ok(1));
    }
}
