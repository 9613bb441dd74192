//! Work of which there is at most one of a kind at a time.

use std::collections::HashMap;
use std::future::Future;
use std::hash::Hash;
use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared};
use parking_lot::Mutex;
use podwright_actors::ports::RuntimeError;
use tokio::runtime::Handle;
use tokio::task::JoinError;

/// The result of a task, for as many as wait for it.
pub(super) type Flight<V> = Shared<BoxFuture<'static, Result<V, RuntimeError>>>;

/// A task to wait for. One that panics, or that its runtime drops, is an error.
pub(super) fn flight<V: Clone + Send + Sync + 'static>(
    task: impl Future<Output = Result<Result<V, RuntimeError>, JoinError>> + Send + 'static,
) -> Flight<V> {
    let lost = |error| Err(RuntimeError::Failed(format!("the call was lost: {error}")));
    task.map(move |end| end.unwrap_or_else(lost)).boxed().shared()
}

/// Runs work apart from whoever wants it, so that it goes on when they do not want it any more; whoever wants the same
/// meanwhile waits for the same.
pub(super) struct Flights<K, V> {
    handle: Handle,
    under_way: Arc<Mutex<HashMap<K, Flight<V>>>>,
}

impl<K, V> Flights<K, V>
where
    K: Clone + Eq + Hash + Send + 'static,
    V: Clone + Send + Sync + 'static,
{
    /// Nothing under way; work will run on `handle`'s runtime.
    pub(super) fn new(handle: Handle) -> Self {
        Flights { handle, under_way: Arc::default() }
    }

    /// The result of the work of this key that is under way, or else of `work`, which is dropped unless it is needed. Cancel
    /// safe: the work goes on.
    pub(super) async fn join(
        &self,
        key: K,
        work: impl Future<Output = Result<V, RuntimeError>> + Send + 'static,
    ) -> Result<V, RuntimeError> {
        let flight = {
            let mut under_way = self.under_way.lock();
            match under_way.get(&key) {
                Some(flight) => flight.clone(),
                None => {
                    let (all, of) = (Arc::clone(&self.under_way), key.clone());
                    let task = self.handle.spawn(async move {
                        let _landed = Landed { all, of };
                        work.await
                    });
                    let flight = flight(task);
                    under_way.insert(key, flight.clone());
                    flight
                }
            }
        };
        flight.await
    }
}

/// Makes room for the next, also after a panic.
struct Landed<K: Eq + Hash, V> {
    all: Arc<Mutex<HashMap<K, Flight<V>>>>,
    of: K,
}

impl<K: Eq + Hash, V> Drop for Landed<K, V> {
    fn drop(&mut self) {
        self.all.lock().remove(&self.of);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use futures_util::future::join;
    use tokio::time::{sleep, timeout};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn work_of_one_kind_is_done_once_and_outlives_who_asked() {
        let flights = Flights::new(Handle::current());
        let ran = Arc::new(AtomicUsize::new(0));
        let work = || {
            let ran = ran.clone();
            async move {
                sleep(Duration::from_secs(10)).await;
                Ok(ran.fetch_add(1, Ordering::SeqCst))
            }
        };
        assert!(timeout(Duration::from_secs(1), flights.join("a", work())).await.is_err());
        assert_eq!(join(flights.join("a", work()), flights.join("a", work())).await, (Ok(0), Ok(0)));
        assert_eq!(flights.join("a", work()).await, Ok(1), "what has landed is done again when it is wanted again");
    }

    #[tokio::test(start_paused = true)]
    async fn work_that_panics_is_an_error_and_can_be_tried_again() {
        let flights: Flights<&str, usize> = Flights::new(Handle::current());
        assert!(matches!(flights.join("a", async { panic!("as told") }).await, Err(RuntimeError::Failed(_))));
        assert_eq!(flights.join("a", async { Ok(1) }).await, Ok(1));
    }
}
