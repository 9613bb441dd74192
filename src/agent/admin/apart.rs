//! Answers that cost all pods: worked out apart from the thread that pods are started on.

use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;

/// How many are worked out at a time. Pods need the processor too, and each answer is there until it was taken.
const AT_ONCE: usize = 2;

static TURNS: Semaphore = Semaphore::const_new(AT_ONCE);

/// Has an answer worked out. Cancel safe: who has gone before its turn takes none.
pub(super) async fn apart<V, A>(view: V, answer: impl FnOnce(&V) -> A + Send + 'static) -> Response
where
    V: Send + 'static,
    A: IntoResponse,
{
    let turn = TURNS.acquire().await;
    let worked = spawn_blocking(move || {
        let _turn = turn;
        answer(&view).into_response()
    });
    worked.await.unwrap_or_else(|_| {
        (StatusCode::INTERNAL_SERVER_ERROR, "the answer could not be worked out: see the log\n").into_response()
    })
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[tokio::test]
    async fn others_go_on_while_answers_are_worked_out_and_only_few_are() {
        let (begin, begun) = channel();
        let (tell, told) = channel::<()>();
        let told = std::sync::Arc::new(parking_lot::Mutex::new(told));
        let ask = || {
            let (begin, told) = (begin.clone(), told.clone());
            tokio::spawn(apart((), move |()| {
                begin.send(()).unwrap();
                told.lock().recv().unwrap();
                "done"
            }))
        };
        let asked: Vec<_> = (0..3).map(|_| ask()).collect();
        for _ in 0..AT_ONCE {
            while begun.try_recv().is_err() {
                tokio::task::yield_now().await;
            }
        }
        assert_eq!(TURNS.available_permits(), 0);
        assert!(begun.try_recv().is_err(), "the third waits for its turn");
        for _ in 0..3 {
            tell.send(()).unwrap();
        }
        for asked in asked {
            assert_eq!(asked.await.unwrap().status(), StatusCode::OK);
        }
        // Who panics gives its turn back.
        let panics = apart((), |()| -> &str { std::panic::resume_unwind(Box::new("no")) });
        assert_eq!(panics.await.status(), StatusCode::INTERNAL_SERVER_ERROR);
        assert_eq!(TURNS.available_permits(), AT_ONCE);
    }
}
