//! Tasks of the adapter: blocking work, and calls that several callers share.

use std::collections::HashMap;
use std::future::Future;
use std::hash::Hash;
use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared};
use parking_lot::Mutex;
use podwright_host::step_error::StepError;
use podwright_ports::RuntimeError;
use tokio::runtime::Handle;
use tokio::task::JoinError;

/// Runs blocking work on tokio's blocking threads.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, RuntimeError> + Send + 'static,
) -> Result<T, RuntimeError> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|error| Err(lost_task(error)))
}

/// The result of a task. Any number of callers can await a clone of it.
pub(super) type SharedResult<V> = Shared<BoxFuture<'static, Result<V, RuntimeError>>>;

/// The result of `task`. It is an error if the task panics or the tokio runtime drops it.
pub(super) fn shared_result<V: Clone + Send + Sync + 'static>(
    task: impl Future<Output = Result<Result<V, RuntimeError>, JoinError>> + Send + 'static,
) -> SharedResult<V> {
    task.map(|result| result.unwrap_or_else(|error| Err(lost_task(error)))).boxed().shared()
}

fn lost_task(error: JoinError) -> RuntimeError {
    RuntimeError::failed(StepError::new("a task of the agent ended without a result", error))
}

/// Runs at most one task for each key. A caller with the key of a running task gets the result of that task. A task continues
/// after its callers have dropped their calls.
pub(super) struct SharedTasks<K, V> {
    handle: Handle,
    running: Arc<Mutex<HashMap<K, SharedResult<V>>>>,
}

impl<K, V> SharedTasks<K, V>
where
    K: Clone + Eq + Hash + Send + 'static,
    V: Clone + Send + Sync + 'static,
{
    /// Tasks will run on the tokio runtime of `handle`.
    pub(super) fn new(handle: Handle) -> Self {
        SharedTasks { handle, running: Arc::default() }
    }

    /// Waits for the running task of this key. If there is none, starts `work` as the task; otherwise drops `work`.
    ///
    /// Cancel safe: the task continues.
    pub(super) async fn join(
        &self,
        key: K,
        work: impl Future<Output = Result<V, RuntimeError>> + Send + 'static,
    ) -> Result<V, RuntimeError> {
        let result = {
            let mut running = self.running.lock();
            match running.get(&key) {
                Some(result) => result.clone(),
                None => {
                    let (all, own_key) = (Arc::clone(&self.running), key.clone());
                    let task = self.handle.spawn(async move {
                        // The guard is created in the task, because a tokio runtime that shuts down drops a new task at once, with the lock held.
                        let _entry = RemoveOnDrop { running: all, key: own_key };
                        work.await
                    });
                    let result = shared_result(task);
                    running.insert(key, result.clone());
                    result
                }
            }
        };
        result.await
    }
}

/// Removes a task's entry when the task ends, even after a panic.
struct RemoveOnDrop<K: Eq + Hash, V> {
    running: Arc<Mutex<HashMap<K, SharedResult<V>>>>,
    key: K,
}

impl<K: Eq + Hash, V> Drop for RemoveOnDrop<K, V> {
    fn drop(&mut self) {
        self.running.lock().remove(&self.key);
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
    async fn a_shared_task_runs_once_and_outlives_its_first_caller() {
        let tasks = SharedTasks::new(Handle::current());
        let ran = Arc::new(AtomicUsize::new(0));
        let work = || {
            let ran = ran.clone();
            async move {
                sleep(Duration::from_secs(10)).await;
                Ok(ran.fetch_add(1, Ordering::SeqCst))
            }
        };
        assert!(timeout(Duration::from_secs(1), tasks.join("a", work())).await.is_err());
        assert_eq!(join(tasks.join("a", work()), tasks.join("a", work())).await, (Ok(0), Ok(0)));
        assert_eq!(tasks.join("a", work()).await, Ok(1), "after the task has ended, the next call starts another one");
    }

    #[tokio::test(start_paused = true)]
    async fn a_shared_task_that_panics_is_an_error_and_can_be_retried() {
        let tasks: SharedTasks<&str, usize> = SharedTasks::new(Handle::current());
        assert!(matches!(tasks.join("a", async { panic!("on purpose") }).await, Err(RuntimeError::Failed(_))));
        assert_eq!(tasks.join("a", async { Ok(1) }).await, Ok(1));
    }
}
