//! Answers that cost all pods: worked out apart from the thread that pods are started on.

use std::sync::Arc;

use axum::body::{Body, Bytes, HttpBody, to_bytes};
use axum::http::StatusCode;
use axum::http::header::RETRY_AFTER;
use axum::response::{IntoResponse, Response};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::spawn_blocking;

/// How many are worked out at a time: pods need the processor too.
const AT_ONCE: usize = 2;
/// Beyond how many bytes an answer is a large one. Of others there may be as many as there are connections.
const LARGE: u64 = 1 << 20;
/// How many large ones there are until they were taken: each is kept whole, and is as large as all pods are.
const UNTAKEN: usize = 4;

/// Bounds what they take of processor and memory. Clones share it.
#[derive(Clone, Debug)]
pub(super) struct Apart {
    turns: Arc<Semaphore>,
    untaken: Arc<Semaphore>,
}

impl Default for Apart {
    fn default() -> Self {
        Apart { turns: Arc::new(Semaphore::new(AT_ONCE)), untaken: Arc::new(Semaphore::new(UNTAKEN)) }
    }
}

impl Apart {
    /// Has an answer worked out. Cancel safe: who has gone before its turn takes none.
    pub(super) async fn answer<V, A>(&self, view: V, answer: impl FnOnce(&V) -> A + Send + 'static) -> Response
    where
        V: Send + 'static,
        A: IntoResponse,
    {
        let turn = self.turns.clone().acquire_owned().await;
        let untaken = self.untaken.clone();
        let worked = spawn_blocking(move || {
            let _turn = turn;
            let response = answer(&view).into_response();
            if response.body().size_hint().lower() <= LARGE {
                return Ok((response, None));
            }
            // One that may not be kept is gone before the next is worked out.
            untaken.try_acquire_owned().map(|seat| (response, Some(seat)))
        });
        match worked.await {
            Ok(Ok((response, None))) => response,
            Ok(Ok((response, Some(seat)))) => keep(response, seat).await,
            Ok(Err(_)) => {
                let why = "answers as large as this one wait for others who asked and do not read them: end those, or ask \
                           again later\n";
                (StatusCode::SERVICE_UNAVAILABLE, [(RETRY_AFTER, "1")], why).into_response()
            }
            Err(_) => failed(),
        }
    }
}

/// Keeps a seat for as long as the answer's bytes are there.
async fn keep(response: Response, seat: OwnedSemaphorePermit) -> Response {
    let (head, body) = response.into_parts();
    let Ok(bytes) = to_bytes(body, usize::MAX).await else { return failed() };
    Response::from_parts(head, Body::from(Bytes::from_owner(Untaken { bytes, _seat: seat })))
}

fn failed() -> Response {
    (StatusCode::INTERNAL_SERVER_ERROR, "the answer could not be worked out: see the log\n").into_response()
}

/// An answer on its way. The seat is free again when its bytes are.
struct Untaken {
    bytes: Bytes,
    _seat: OwnedSemaphorePermit,
}

impl AsRef<[u8]> for Untaken {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[tokio::test]
    async fn others_go_on_while_answers_are_worked_out_and_only_few_are() {
        let apart = Apart::default();
        let (begin, begun) = channel();
        let (tell, told) = channel::<()>();
        let told = Arc::new(parking_lot::Mutex::new(told));
        let ask = || {
            let (apart, begin, told) = (apart.clone(), begin.clone(), told.clone());
            let answer = move |(): &()| {
                begin.send(()).unwrap();
                told.lock().recv().unwrap();
                "done"
            };
            tokio::spawn(async move { apart.answer((), answer).await })
        };
        let asked: Vec<_> = (0..3).map(|_| ask()).collect();
        for _ in 0..AT_ONCE {
            while begun.try_recv().is_err() {
                tokio::task::yield_now().await;
            }
        }
        assert_eq!(apart.turns.available_permits(), 0);
        assert!(begun.try_recv().is_err(), "the third waits for its turn");
        for _ in 0..3 {
            tell.send(()).unwrap();
        }
        for asked in asked {
            assert_eq!(asked.await.unwrap().status(), StatusCode::OK);
        }
        // Who panics gives its turn back.
        let panics = apart.answer((), |()| -> &str { std::panic::resume_unwind(Box::new("no")) });
        assert_eq!(panics.await.status(), StatusCode::INTERNAL_SERVER_ERROR);
        assert_eq!(apart.turns.available_permits(), AT_ONCE);
    }

    #[tokio::test]
    async fn large_answers_that_nobody_takes_are_few_and_keep_no_small_one_away() {
        let apart = Apart::default();
        let ask = |bytes: u64| apart.answer((), move |()| "x".repeat(bytes as usize));
        let mut asked = Vec::new();
        for _ in 0..UNTAKEN {
            asked.push(ask(LARGE + 1).await);
        }
        assert!(asked.iter().all(|response| response.status() == StatusCode::OK));
        let refused = ask(LARGE + 1).await;
        assert_eq!(refused.status(), StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(refused.headers()[RETRY_AFTER], "1");
        assert_eq!(ask(LARGE).await.status(), StatusCode::OK);

        // What is under way still counts; what was taken, and what nobody wants any more, does not.
        let taken = asked.pop().unwrap();
        assert_eq!(taken.body().size_hint().exact(), Some(LARGE + 1), "its length is told");
        let bytes = to_bytes(taken.into_body(), usize::MAX).await.unwrap();
        assert_eq!((bytes.len() as u64, ask(LARGE + 1).await.status()), (LARGE + 1, StatusCode::SERVICE_UNAVAILABLE));
        drop(bytes);
        assert_eq!(ask(LARGE + 1).await.status(), StatusCode::OK);
        asked.clear();
        assert_eq!(apart.untaken.available_permits(), UNTAKEN);
    }
}
