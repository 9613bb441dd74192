//! `/recording`: the memory of the flight recorder, as a file.

use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::http::StatusCode;
use axum::http::header::{CONTENT_DISPOSITION, CONTENT_TYPE, RETRY_AFTER};
use axum::response::{IntoResponse, Response};
use podwright_actors::node::NodeQueries;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Serves one recording at a time. A recording is a copy of the recorder's memory, which may have megabytes, and stays in
/// memory until its last byte is sent.
#[derive(Clone)]
pub(super) struct RecordingEndpoint(Arc<Semaphore>);

impl Default for RecordingEndpoint {
    fn default() -> Self {
        RecordingEndpoint(Arc::new(Semaphore::new(1)))
    }
}

impl RecordingEndpoint {
    pub(super) async fn recording(&self, node: NodeQueries) -> Response {
        self.answer(move || node.recording()).await
    }

    async fn answer(&self, save: impl FnOnce() -> Option<Vec<u8>> + Send + 'static) -> Response {
        let Ok(permit) = self.0.clone().try_acquire_owned() else {
            let why = "another client is downloading a recording: try again when that download has ended\n";
            return (StatusCode::TOO_MANY_REQUESTS, [(RETRY_AFTER, "1")], why).into_response();
        };
        // This runs on a blocking thread, because the checksum covers megabytes and other requests must not wait for it.
        let saved = tokio::task::spawn_blocking(move || save().map(|file| RecordingBody { file, _permit: permit }));
        match saved.await {
            Ok(Some(body)) => {
                let name = "attachment; filename=\"podwright.podrec\"";
                let head = [(CONTENT_TYPE, "application/octet-stream"), (CONTENT_DISPOSITION, name)];
                (head, Body::from(Bytes::from_owner(body))).into_response()
            }
            Ok(None) => {
                let why = "the flight recorder is off: start the agent with a --recording-size other than 0\n";
                (StatusCode::NOT_FOUND, why).into_response()
            }
            Err(_) => (StatusCode::INTERNAL_SERVER_ERROR, "the recording could not be saved: see the agent's log\n")
                .into_response(),
        }
    }
}

/// The bytes of a recording, with the permit that is returned when they are freed.
struct RecordingBody {
    file: Vec<u8>,
    _permit: OwnedSemaphorePermit,
}

impl AsRef<[u8]> for RecordingBody {
    fn as_ref(&self) -> &[u8] {
        &self.file
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn one_client_at_a_time_downloads_a_recording() {
        let endpoint = RecordingEndpoint::default();
        let file = || Some(vec![1, 2, 3]);
        let slow = endpoint.answer(file).await;
        let refused = endpoint.answer(file).await;
        assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(refused.headers()[RETRY_AFTER], "1");
        let sent = axum::body::to_bytes(slow.into_body(), 10).await.unwrap();
        assert_eq!((&sent[..], endpoint.answer(file).await.status()), (&[1, 2, 3][..], StatusCode::TOO_MANY_REQUESTS));
        drop(sent);
        // A dropped answer, an empty recorder and a panic return the permit too.
        for (save, status) in [
            ((|| Some(vec![1])) as fn() -> Option<Vec<u8>>, StatusCode::OK),
            (|| None, StatusCode::NOT_FOUND),
            (|| std::panic::resume_unwind(Box::new("no")), StatusCode::INTERNAL_SERVER_ERROR),
            (|| Some(vec![1]), StatusCode::OK),
        ] {
            assert_eq!(endpoint.answer(save).await.status(), status);
        }
    }
}
