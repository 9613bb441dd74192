//! The reviews of the API server. Requests that need the same review share one, and the number of reviews is limited.

mod limits;

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared, WeakShared};
use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep, timeout};

use limits::{MAX_RUNNING, RATE, may_open};
use podwright_http_server::Pace;
use podwright_metrics::{NodeApiLimit, NodeApiMetrics, NodeApiResource};

/// How long a review may wait for others to end before it begins.
const WAIT_LIMIT: Duration = Duration::from_secs(10);

/// Too many reviews run and wait, of this client or of all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TooManyReviews;

type Answer<V> = BoxFuture<'static, Result<V, TooManyReviews>>;

/// The reviews of one kind, by their keys. Each one belongs to the client that needed it first.
pub(super) struct ReviewQueue<K, C, V> {
    running: Arc<Semaphore>,
    pace: Arc<Mutex<Pace>>,
    open: Mutex<HashMap<K, OpenReview<C, V>>>,
    metrics: NodeApiMetrics,
}

struct OpenReview<C, V> {
    client: C,
    /// The requests that wait for the answer own the review. It is cancelled when the last of them has gone.
    answer: WeakShared<Answer<V>>,
}

impl<K: Eq + Hash, C: PartialEq, V: Clone + Send + Sync + 'static> ReviewQueue<K, C, V> {
    /// No reviews. Those that are refused are counted in these metrics.
    pub(super) fn new(metrics: NodeApiMetrics) -> Self {
        ReviewQueue {
            running: Arc::new(Semaphore::new(MAX_RUNNING)),
            pace: Arc::default(),
            open: Mutex::default(),
            metrics,
        }
    }

    /// The answer of the review with this key, which may be under way already. Cancel safe: the review goes on for other requests.
    ///
    /// # Errors
    /// [`TooManyReviews`] if the client, or all clients together, have too many reviews open, or if the review could not begin in time.
    pub(super) async fn answer<F>(&self, key: K, client: C, review: F) -> Result<V, TooManyReviews>
    where
        F: Future<Output = V> + Send + 'static,
    {
        self.join(key, client, review)?.await
    }

    fn join<F>(&self, key: K, client: C, review: F) -> Result<Shared<Answer<V>>, TooManyReviews>
    where
        F: Future<Output = V> + Send + 'static,
    {
        let mut open = self.open.lock();
        open.retain(|_, review| review.answer.upgrade().is_some());
        if let Some(answer) = open.get(&key).and_then(|review| review.answer.upgrade()) {
            return Ok(answer);
        }
        if let Err(limit) = may_open(open.values().map(|review| &review.client), &client) {
            self.metrics.refused(NodeApiResource::Review, limit);
            return Err(TooManyReviews);
        }
        let answer = self.limited(review).shared();
        if let Some(weak) = answer.downgrade() {
            open.insert(key, OpenReview { client, answer: weak });
        }
        Ok(answer)
    }

    /// The review, after it has waited for a permit and for its time.
    fn limited<F>(&self, review: F) -> Answer<V>
    where
        F: Future<Output = V> + Send + 'static,
    {
        let (running, pace, metrics) = (self.running.clone(), self.pace.clone(), self.metrics.clone());
        let begin = async move {
            let permit = running.acquire_owned().await.expect("the semaphore is never closed");
            let now = Instant::now().into_std();
            let wait = {
                let mut pace = pace.lock();
                let wait = pace.wait(RATE, now);
                pace.count(RATE, now);
                wait
            };
            if !wait.is_zero() {
                sleep(wait).await;
            }
            permit
        };
        let limited = async move {
            let Ok(_permit) = timeout(WAIT_LIMIT, begin).await else {
                metrics.refused(NodeApiResource::Review, NodeApiLimit::Node);
                return Err(TooManyReviews);
            };
            Ok(review.await)
        };
        limited.boxed()
    }
}

#[cfg(test)]
mod tests {
    use futures_util::future::{join_all, pending};

    use super::limits::{MAX_OF_CLIENT, MAX_OPEN};
    use super::*;

    type Numbers = ReviewQueue<usize, usize, usize>;

    #[tokio::test(start_paused = true)]
    async fn requests_for_one_review_share_it_and_go_on_without_the_first_one() {
        let queue = Numbers::new(NodeApiMetrics::default());
        let slow = async {
            sleep(Duration::from_secs(5)).await;
            7
        };
        let mut first = Box::pin(queue.answer(1, 0, slow));
        assert!(first.as_mut().now_or_never().is_none());
        let others: Vec<_> = (0..20).map(|client| queue.answer(1, client, async { 8 })).collect();
        let mut others = Box::pin(join_all(others));
        assert!(others.as_mut().now_or_never().is_none());
        drop(first);
        assert!(others.await.iter().all(|answer| *answer == Ok(7)), "there was a second review");
        assert_eq!(queue.answer(1, 0, async { 8 }).await, Ok(8), "an answer is not kept");
        assert_eq!(queue.running.available_permits(), MAX_RUNNING);
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_has_a_share_of_the_reviews_and_none_waits_for_ever() {
        let metrics = podwright_metrics::Metrics::new();
        let queue = Numbers::new(metrics.node_api.clone());
        let request = |number: usize, client: usize| queue.answer(number, client, pending());
        let mut greedy: Vec<_> = (0..MAX_OF_CLIENT).map(|number| Box::pin(request(number, 0))).collect();
        assert!(greedy.iter_mut().all(|request| request.now_or_never().is_none()));
        assert_eq!(request(MAX_OF_CLIENT, 0).await, Err(TooManyReviews));
        let others = MAX_OF_CLIENT..MAX_OPEN;
        let mut others: Vec<_> = others.map(|number| Box::pin(request(number, number))).collect();
        assert!(others.iter_mut().all(|request| request.now_or_never().is_none()));
        assert_eq!(request(MAX_OPEN, MAX_OPEN).await, Err(TooManyReviews));
        let begin = Instant::now();
        let late = others.split_off(MAX_RUNNING - MAX_OF_CLIENT);
        for late in late {
            assert_eq!(late.await, Err(TooManyReviews));
        }
        assert_eq!(begin.elapsed().as_secs(), WAIT_LIMIT.as_secs());
        drop((greedy, others));
        assert_eq!(queue.answer(MAX_OPEN, 0, async { 1 }).await, Ok(1));
        let text = metrics.encode(podwright_metrics::Format::Classic);
        for (limit, count) in [("client", 1), ("node", 1 + MAX_OPEN - MAX_RUNNING)] {
            let series =
                format!("podwright_node_api_refusals_total{{limit=\"{limit}\",resource=\"review\"}} {count}\n");
            assert!(text.contains(&series), "{series}{text}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn quick_reviews_do_not_exceed_the_rate() {
        let queue = Numbers::new(NodeApiMetrics::default());
        let begin = Instant::now();
        for number in 0..RATE.burst as usize + 50 {
            assert_eq!(queue.answer(number, 0, async move { number }).await, Ok(number));
        }
        let waited = begin.elapsed();
        assert!(waited >= RATE.every * 50 && waited < RATE.every * 51, "{waited:?}");
    }
}
