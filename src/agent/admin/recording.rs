//! The flight recorder's memory, as a file.

use std::sync::Arc;

use crate::actors::engine::Engine;
use axum::body::{Body, Bytes};
use axum::http::StatusCode;
use axum::http::header::{CONTENT_DISPOSITION, CONTENT_TYPE, RETRY_AFTER};
use axum::response::{IntoResponse, Response};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Who fetches a recording has it: each is a copy of the recorder's memory, which may be megabytes, and is there until the
/// last byte of it was sent.
#[derive(Clone)]
pub(super) struct Seat(Arc<Semaphore>);

impl Default for Seat {
    fn default() -> Self {
        Seat(Arc::new(Semaphore::new(1)))
    }
}

impl Seat {
    pub(super) async fn recording(&self, engine: &Engine) -> Response {
        let engine = engine.clone();
        self.answer(move || engine.recording()).await
    }

    async fn answer(&self, save: impl FnOnce() -> Option<Vec<u8>> + Send + 'static) -> Response {
        let Ok(seat) = self.0.clone().try_acquire_owned() else {
            let why = "somebody else is fetching a recording: end that, or ask again when it is done\n";
            return (StatusCode::TOO_MANY_REQUESTS, [(RETRY_AFTER, "1")], why).into_response();
        };
        // Sums over megabytes: other requests need not wait for them.
        let saved = tokio::task::spawn_blocking(move || save().map(|file| Sent { file, _seat: seat }));
        match saved.await {
            Ok(Some(sent)) => {
                let name = "attachment; filename=\"podwright.podrec\"";
                let head = [(CONTENT_TYPE, "application/octet-stream"), (CONTENT_DISPOSITION, name)];
                (head, Body::from(Bytes::from_owner(sent))).into_response()
            }
            Ok(None) => {
                let why = "nothing is recorded: start the agent with a --recording-size other than 0\n";
                (StatusCode::NOT_FOUND, why).into_response()
            }
            Err(_) => {
                (StatusCode::INTERNAL_SERVER_ERROR, "the recording could not be saved: see the log\n").into_response()
            }
        }
    }
}

/// A recording on its way. The seat is free again when its bytes are.
struct Sent {
    file: Vec<u8>,
    _seat: OwnedSemaphorePermit,
}

impl AsRef<[u8]> for Sent {
    fn as_ref(&self) -> &[u8] {
        &self.file
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_recording_is_fetched_by_one_at_a_time() {
        let seat = Seat::default();
        let file = || Some(vec![1, 2, 3]);
        let slow = seat.answer(file).await;
        let refused = seat.answer(file).await;
        assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(refused.headers()[RETRY_AFTER], "1");
        let sent = axum::body::to_bytes(slow.into_body(), 10).await.unwrap();
        assert_eq!((&sent[..], seat.answer(file).await.status()), (&[1, 2, 3][..], StatusCode::TOO_MANY_REQUESTS));
        drop(sent);
        // Nor is it kept by who gave up, got nothing, or was answered by a panic.
        for (save, status) in [
            ((|| Some(vec![1])) as fn() -> Option<Vec<u8>>, StatusCode::OK),
            (|| None, StatusCode::NOT_FOUND),
            (|| std::panic::resume_unwind(Box::new("no")), StatusCode::INTERNAL_SERVER_ERROR),
            (|| Some(vec![1]), StatusCode::OK),
        ] {
            assert_eq!(seat.answer(save).await.status(), status);
        }
    }
}
