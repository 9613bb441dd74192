//! Answers that visit all pods. They are computed on blocking threads, because the async thread also starts pods.

use std::sync::Arc;

use axum::body::{Body, Bytes, HttpBody, to_bytes};
use axum::http::StatusCode;
use axum::http::header::RETRY_AFTER;
use axum::response::{IntoResponse, Response};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::spawn_blocking;

/// How many answers are computed at a time. The limit leaves CPU time for pods.
const MAX_COMPUTING: usize = 2;
/// An answer with more bytes than this is large. The number of smaller answers is limited only by the number of
/// connections.
const LARGE: u64 = 1 << 20;
/// How many large answers may be in memory. Each one stays there until the client has read all of it.
const MAX_UNREAD: usize = 4;

/// Limits the CPU time and the memory of answers that visit all pods. Clones share the limits.
#[derive(Clone, Debug)]
pub struct BlockingAnswers {
    computing: Arc<Semaphore>,
    unread: Arc<Semaphore>,
}

impl Default for BlockingAnswers {
    fn default() -> Self {
        BlockingAnswers {
            computing: Arc::new(Semaphore::new(MAX_COMPUTING)),
            unread: Arc::new(Semaphore::new(MAX_UNREAD)),
        }
    }
}

impl BlockingAnswers {
    /// Computes an answer on a blocking thread. Cancel safe: a request that is dropped while it waits uses no permit.
    pub async fn answer<V, A>(&self, view: V, answer: impl FnOnce(&V) -> A + Send + 'static) -> Response
    where
        V: Send + 'static,
        A: IntoResponse,
    {
        let unread = self.unread.clone();
        let computed = self.compute(move || {
            let response = answer(&view).into_response();
            if response.body().size_hint().lower() <= LARGE {
                return Ok((response, None));
            }
            // An answer that is refused is dropped here, before the next one is computed.
            unread.try_acquire_owned().map(|permit| (response, Some(permit)))
        });
        match computed.await {
            Some(Ok((response, None))) => response,
            Some(Ok((response, Some(permit)))) => hold_permit(response, permit).await,
            Some(Err(_)) => {
                let why = "other clients have not read their large answers yet: close their connections, or try again \
                           later\n";
                (StatusCode::SERVICE_UNAVAILABLE, [(RETRY_AFTER, "1")], why).into_response()
            }
            None => failed(),
        }
    }

    /// Computes a part of an answer on a blocking thread. `None` if it panics. Cancel safe, as [`answer`](Self::answer).
    pub async fn compute<T: Send + 'static>(&self, part: impl FnOnce() -> T + Send + 'static) -> Option<T> {
        let computing = self.computing.clone().acquire_owned().await;
        let computed = spawn_blocking(move || {
            let _computing = computing;
            part()
        });
        computed.await.ok()
    }
}

/// Holds the permit for as long as the bytes of the answer are in memory.
async fn hold_permit(response: Response, permit: OwnedSemaphorePermit) -> Response {
    let (head, body) = response.into_parts();
    let Ok(bytes) = to_bytes(body, usize::MAX).await else { return failed() };
    Response::from_parts(head, Body::from(Bytes::from_owner(UnreadAnswer { bytes, _permit: permit })))
}

fn failed() -> Response {
    (StatusCode::INTERNAL_SERVER_ERROR, "the answer could not be computed: see the agent's log\n").into_response()
}

/// The bytes of a large answer, with the permit that is returned when they are freed.
struct UnreadAnswer {
    bytes: Bytes,
    _permit: OwnedSemaphorePermit,
}

impl AsRef<[u8]> for UnreadAnswer {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[tokio::test]
    async fn few_answers_are_computed_at_once_without_blocking_other_tasks() {
        let answers = BlockingAnswers::default();
        let (begin, begun) = channel();
        let (allow, finish) = channel::<()>();
        let finish = Arc::new(parking_lot::Mutex::new(finish));
        let request = || {
            let (answers, begin, finish) = (answers.clone(), begin.clone(), finish.clone());
            let answer = move |(): &()| {
                begin.send(()).unwrap();
                finish.lock().recv().unwrap();
                "done"
            };
            tokio::spawn(async move { answers.answer((), answer).await })
        };
        let requests: Vec<_> = (0..3).map(|_| request()).collect();
        for _ in 0..MAX_COMPUTING {
            while begun.try_recv().is_err() {
                tokio::task::yield_now().await;
            }
        }
        assert_eq!(answers.computing.available_permits(), 0);
        assert!(begun.try_recv().is_err(), "the third answer waits for a permit");
        for _ in 0..3 {
            allow.send(()).unwrap();
        }
        for request in requests {
            assert_eq!(request.await.unwrap().status(), StatusCode::OK);
        }
        // A panic returns the permit.
        let panics = answers.answer((), |()| -> &str { std::panic::resume_unwind(Box::new("no")) });
        assert_eq!(panics.await.status(), StatusCode::INTERNAL_SERVER_ERROR);
        assert_eq!(answers.computing.available_permits(), MAX_COMPUTING);
    }

    #[tokio::test]
    async fn unread_large_answers_are_limited_and_small_ones_are_not() {
        let answers = BlockingAnswers::default();
        let request = |bytes: u64| answers.answer((), move |()| "x".repeat(bytes as usize));
        let mut requests = Vec::new();
        for _ in 0..MAX_UNREAD {
            requests.push(request(LARGE + 1).await);
        }
        assert!(requests.iter().all(|response| response.status() == StatusCode::OK));
        let refused = request(LARGE + 1).await;
        assert_eq!(refused.status(), StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(refused.headers()[RETRY_AFTER], "1");
        assert_eq!(request(LARGE).await.status(), StatusCode::OK);

        // An answer counts until its bytes are freed, whether the client reads them or goes away.
        let taken = requests.pop().unwrap();
        assert_eq!(taken.body().size_hint().exact(), Some(LARGE + 1), "the answer has a length");
        let bytes = to_bytes(taken.into_body(), usize::MAX).await.unwrap();
        assert_eq!(
            (bytes.len() as u64, request(LARGE + 1).await.status()),
            (LARGE + 1, StatusCode::SERVICE_UNAVAILABLE)
        );
        drop(bytes);
        assert_eq!(request(LARGE + 1).await.status(), StatusCode::OK);
        requests.clear();
        assert_eq!(answers.unread.available_permits(), MAX_UNREAD);
    }
}
