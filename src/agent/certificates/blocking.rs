//! Runs work that blocks on files.

use std::future::pending;
use std::panic::resume_unwind;

use tokio::task::spawn_blocking;

/// Runs work on a thread that may block. A panic of the work continues here.
///
/// A runtime that shuts down cancels work that has not started, and may still poll its tasks. The result then never arrives, and the
/// task ends with the runtime.
pub(super) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match spawn_blocking(work).await {
        Ok(result) => result,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => resume_unwind(panic),
            Err(_cancelled) => pending().await,
        },
    }
}

#[cfg(test)]
mod tests {
    use std::panic::AssertUnwindSafe;
    use std::sync::mpsc::{RecvError, channel};

    use futures_util::FutureExt;
    use tokio::runtime::Builder;

    use super::*;

    #[test]
    fn runtime_that_shuts_down_causes_no_panic() {
        let runtime = Builder::new_multi_thread().worker_threads(1).build().unwrap();
        let ((started, wait), (shut_down, go_on), (ended, end)) = (channel(), channel::<()>(), channel());
        runtime.spawn(async move {
            started.send(()).unwrap();
            // The runtime shuts down while it polls this task.
            go_on.recv().unwrap();
            let result = AssertUnwindSafe(blocking(|| ())).catch_unwind().await;
            ended.send(result.is_ok()).unwrap();
        });
        wait.recv().unwrap();
        runtime.shutdown_background();
        shut_down.send(()).unwrap();
        assert_eq!(end.recv(), Err(RecvError), "the task is dropped while it waits");
    }

    #[tokio::test]
    async fn work_that_panics_is_reported_where_it_is_awaited() {
        let result = AssertUnwindSafe(blocking(|| assert_eq!(1, 2, "faulty"))).catch_unwind().await;
        assert!(result.is_err());
        assert_eq!(blocking(|| 3).await, 3);
    }
}
