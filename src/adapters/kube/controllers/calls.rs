//! One call of a controller: its timeout, its repetition after 429, and what a failure says about the state of the server.

use std::time::Duration;

use podwright_actors::ports::resource_claims::{ApiError, ApiErrorKind};
use podwright_actors::text::error_chain;
use tokio::time::{Instant, sleep, timeout_at};

/// The timeout of one call, with its repetitions.
const CALL_TIMEOUT: Duration = Duration::from_secs(30);
/// The delay after 429 without `Retry-After` (client-go, 1.36).
const BUSY: Duration = Duration::from_secs(1);

/// Performs a call. A server that answers 429 has not performed it, so the call is repeated after the delay that the server
/// requested.
///
/// # Errors
/// [`ApiError`], whose kind is [`ApiErrorKind::Unknown`] unless the server has certainly changed nothing.
pub(super) async fn perform<T, F>(call: impl Fn() -> F) -> Result<T, ApiError>
where
    F: Future<Output = kube::Result<T>>,
{
    let deadline = Instant::now() + CALL_TIMEOUT;
    loop {
        let error = match timeout_at(deadline, call()).await {
            Ok(Ok(answer)) => return Ok(answer),
            Ok(Err(error)) => error,
            Err(_) => {
                let message = format!("the API server has not answered within {} s", CALL_TIMEOUT.as_secs());
                return Err(ApiError { kind: ApiErrorKind::Unknown, message });
            }
        };
        match busy(&error) {
            Some(delay) if Instant::now() + delay < deadline => sleep(delay).await,
            _ => return Err(ApiError { kind: kind(&error), message: error_chain(&error).to_string() }),
        }
    }
}

/// The delay that a busy server requests. `None` for other errors.
fn busy(error: &kube::Error) -> Option<Duration> {
    let kube::Error::Api(status) = error else { return None };
    let seconds = status.details.as_ref().map_or(0, |details| details.retry_after_seconds);
    let delay = if seconds > 0 { Duration::from_secs(seconds.into()) } else { BUSY };
    (status.code == 429).then_some(delay)
}

fn kind(error: &kube::Error) -> ApiErrorKind {
    // The connection was lost, or the answer could not be read.
    let kube::Error::Api(status) = error else { return ApiErrorKind::Unknown };
    match status.code {
        404 => ApiErrorKind::NotFound,
        409 => ApiErrorKind::Conflict,
        // A proxy may answer 408 after it has forwarded the request.
        408 => ApiErrorKind::Unknown,
        400..500 => ApiErrorKind::Refused,
        _ => ApiErrorKind::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use serde_json::json;

    use super::*;

    fn answer(code: u16, retry_after_seconds: u32) -> kube::Error {
        let status = json!({"code": code, "details": {"retryAfterSeconds": retry_after_seconds}});
        kube::Error::Api(Box::new(serde_json::from_value(status).unwrap()))
    }

    #[tokio::test(start_paused = true)]
    async fn only_definite_refusals_say_that_nothing_was_changed() {
        let expected = [
            (404, ApiErrorKind::NotFound),
            (409, ApiErrorKind::Conflict),
            (403, ApiErrorKind::Refused),
            (422, ApiErrorKind::Refused),
            (408, ApiErrorKind::Unknown),
            (500, ApiErrorKind::Unknown),
            (504, ApiErrorKind::Unknown),
        ];
        for (code, kind) in expected {
            let error = perform(|| async { Err::<(), _>(answer(code, 0)) }).await.unwrap_err();
            assert_eq!(error.kind, kind, "{code}");
        }
        let started = Instant::now();
        let error = perform(std::future::pending::<kube::Result<()>>).await.unwrap_err();
        assert_eq!((error.kind, started.elapsed()), (ApiErrorKind::Unknown, CALL_TIMEOUT));
    }

    #[tokio::test(start_paused = true)]
    async fn busy_server_gets_the_call_again_after_its_delay() {
        let calls = AtomicUsize::new(0);
        let call = || async {
            match calls.fetch_add(1, Ordering::Relaxed) {
                0 => Err(answer(429, 7)),
                1 => Err(answer(429, 0)),
                _ => Ok("answer"),
            }
        };
        let started = Instant::now();
        assert_eq!(perform(call).await.unwrap(), "answer");
        assert_eq!(started.elapsed(), Duration::from_secs(8));
        // A delay beyond the timeout is no answer in time.
        let error = perform(|| async { Err::<(), _>(answer(429, 3600)) }).await.unwrap_err();
        assert_eq!(error.kind, ApiErrorKind::Refused);
    }
}
