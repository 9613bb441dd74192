//! One call of a controller: its timeout, and what a failure says about the state of the server.

use std::error::Error;
use std::iter::successors;
use std::time::Duration;

use podwright_controllers::ports::resource_claims::{ApiError, ApiErrorKind};
use podwright_kube_api::KubeError;
use tokio::time::timeout;

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

/// Whether the call has certainly not left this process: there was no connection, or it was closed before the request was written.
fn was_not_sent(error: &kube::Error) -> bool {
    let is_unsent = |error: &(dyn Error + 'static)| {
        let connecting = error.downcast_ref::<hyper_util::client::legacy::Error>();
        let request = error.downcast_ref::<hyper::Error>();
        connecting.is_some_and(|error| error.is_connect()) || request.is_some_and(hyper::Error::is_canceled)
    };
    let mut sources = successors(error.source(), |error| (*error).source());
    matches!(error, kube::Error::BuildRequest(_) | kube::Error::Auth(_)) || sources.any(is_unsent)
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};
    use std::io;

    use http::{Request, Uri};
    use http_body_util::Empty;
    use hyper::body::Bytes;
    use hyper::client::conn::http1::handshake;
    use hyper_util::client::legacy::Client;
    use hyper_util::rt::{TokioExecutor, TokioIo};
    use serde_json::json;
    use tokio::io::AsyncReadExt;
    use tokio::net::TcpStream;
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
        let started = Instant::now();
        let error = perform(pending::<kube::Result<()>>()).await.unwrap_err();
        assert_eq!((error.kind, started.elapsed()), (ApiErrorKind::Unknown, CALL_TIMEOUT));
    }

    /// Whatever the reason, a request without a connection was not sent.
    #[tokio::test]
    async fn request_without_a_connection_is_not_performed() {
        for reason in [io::ErrorKind::ConnectionRefused, io::ErrorKind::TimedOut, io::ErrorKind::NotFound] {
            let connect = tower::service_fn(move |_: Uri| ready(Err::<TokioIo<TcpStream>, _>(io::Error::from(reason))));
            let client = Client::builder(TokioExecutor::new()).build::<_, Empty<Bytes>>(connect);
            let error = client.get(Uri::from_static("http://server/")).await.unwrap_err();
            assert_eq!(failure(kube::Error::Service(Box::new(error))).await.kind, ApiErrorKind::Refused, "{reason}");
        }
    }

    /// A server may perform a request whose connection is closed, unless the client has not begun to write it.
    #[tokio::test]
    async fn request_that_was_written_may_be_performed() {
        for (is_written, kind) in [(true, ApiErrorKind::Unknown), (false, ApiErrorKind::Refused)] {
            let (near, mut far) = tokio::io::duplex(1024);
            let (mut requests, connection) = handshake::<_, Empty<Bytes>>(TokioIo::new(near)).await.unwrap();
            if is_written {
                tokio::spawn(connection);
                tokio::spawn(async move { far.read_u8().await });
            } else {
                drop(connection);
            }
            let error = requests.send_request(Request::new(Empty::new())).await.unwrap_err();
            assert_eq!(failure(kube::Error::HyperError(error)).await.kind, kind);
        }
    }

    #[tokio::test]
    async fn busy_server_requests_a_delay() {
        for (code, seconds, delay) in [(429, 7, 7), (429, 0, 1), (403, 0, 0), (503, 5, 0)] {
            assert_eq!(failure(answer(code, seconds)).await.retry_after, Duration::from_secs(delay), "{code}");
        }
    }
}
