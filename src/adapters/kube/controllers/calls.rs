//! One call of a controller: its timeout, and what a failure says about the state of the server.

use std::error::Error;
use std::io;
use std::iter::successors;
use std::time::Duration;

use podwright_actors::ports::resource_claims::{ApiError, ApiErrorKind};
use tokio::time::timeout;

use crate::KubeError;

/// The timeout of one call.
const CALL_TIMEOUT: Duration = Duration::from_secs(30);
/// The delay after 429 without `Retry-After` (client-go, 1.36).
const DEFAULT_RETRY_AFTER: Duration = Duration::from_secs(1);

/// Performs a call.
///
/// # Errors
/// [`ApiError`], whose kind is [`ApiErrorKind::Unknown`] unless the server has certainly changed nothing.
pub(super) async fn perform<T>(call: impl Future<Output = kube::Result<T>>) -> Result<T, ApiError> {
    match timeout(CALL_TIMEOUT, call).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(error)) => {
            let (kind, retry_after) = (kind(&error), requested_delay(&error));
            Err(ApiError { retry_after, ..ApiError::new(kind, KubeError::from(error).to_string()) })
        }
        Err(_) => {
            let message = format!("the API server has not answered within {} s", CALL_TIMEOUT.as_secs());
            Err(ApiError::new(ApiErrorKind::Unknown, message))
        }
    }
}

/// The delay that a busy server requests. Zero for other errors.
fn requested_delay(error: &kube::Error) -> Duration {
    let kube::Error::Api(status) = error else { return Duration::ZERO };
    let seconds = status.details.as_ref().map_or(0, |details| details.retry_after_seconds);
    match status.code {
        429 if seconds == 0 => DEFAULT_RETRY_AFTER,
        429 => Duration::from_secs(seconds.into()),
        _ => Duration::ZERO,
    }
}

fn kind(error: &kube::Error) -> ApiErrorKind {
    let status = match error {
        kube::Error::Api(status) => status,
        error if was_not_sent(error) => return ApiErrorKind::Refused,
        // The connection was lost, or the answer could not be read.
        _ => return ApiErrorKind::Unknown,
    };
    match status.code {
        404 => ApiErrorKind::NotFound,
        409 => ApiErrorKind::Conflict,
        // A proxy may answer 408 after it has forwarded the request.
        408 => ApiErrorKind::Unknown,
        400..500 => ApiErrorKind::Refused,
        _ => ApiErrorKind::Unknown,
    }
}

/// Whether the call has certainly not left this process.
fn was_not_sent(error: &kube::Error) -> bool {
    let sources = successors(error.source(), |error| (*error).source());
    // An established connection cannot be refused.
    let is_refused = |error: &(dyn Error + 'static)| {
        error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
    };
    matches!(error, kube::Error::BuildRequest(_) | kube::Error::Auth(_)) || sources.into_iter().any(is_refused)
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use serde_json::json;
    use tokio::time::Instant;

    use super::*;

    fn answer(code: u16, retry_after_seconds: u32) -> kube::Error {
        let status = json!({"code": code, "details": {"retryAfterSeconds": retry_after_seconds}});
        kube::Error::Api(Box::new(serde_json::from_value(status).unwrap()))
    }

    async fn failure(error: kube::Error) -> ApiError {
        perform(ready(Err::<(), _>(error))).await.unwrap_err()
    }

    #[tokio::test(start_paused = true)]
    async fn only_definite_refusals_say_that_nothing_was_changed() {
        let expected = [
            (404, ApiErrorKind::NotFound),
            (409, ApiErrorKind::Conflict),
            (403, ApiErrorKind::Refused),
            (422, ApiErrorKind::Refused),
            (429, ApiErrorKind::Refused),
            (408, ApiErrorKind::Unknown),
            (500, ApiErrorKind::Unknown),
            (504, ApiErrorKind::Unknown),
        ];
        for (code, kind) in expected {
            assert_eq!(failure(answer(code, 0)).await.kind, kind, "{code}");
        }
        let io = |kind: io::ErrorKind| kube::Error::Service(Box::new(io::Error::from(kind)));
        assert_eq!(failure(io(io::ErrorKind::ConnectionRefused)).await.kind, ApiErrorKind::Refused);
        assert_eq!(failure(io(io::ErrorKind::ConnectionReset)).await.kind, ApiErrorKind::Unknown);
        let started = Instant::now();
        let error = perform(pending::<kube::Result<()>>()).await.unwrap_err();
        assert_eq!((error.kind, started.elapsed()), (ApiErrorKind::Unknown, CALL_TIMEOUT));
    }

    #[tokio::test]
    async fn busy_server_requests_a_delay() {
        for (code, seconds, delay) in [(429, 7, 7), (429, 0, 1), (403, 0, 0), (503, 5, 0)] {
            assert_eq!(failure(answer(code, seconds)).await.retry_after, Duration::from_secs(delay), "{code}");
        }
    }
}
