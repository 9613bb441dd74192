//! One call to the API server: its timeout, and what its error means.

use std::time::Duration;

use podwright_kube_api::KubeError;
use podwright_ports::ApiError;
use tokio::time::timeout;

/// The timeout of one call. The server may still perform the call later. The caller then repeats it, and the repetition changes
/// nothing.
const CALL_TIMEOUT: Duration = Duration::from_secs(30);

/// Performs a call with the timeout.
pub(super) async fn limited<T>(call: impl Future<Output = kube::Result<T>>) -> Result<T, ApiError> {
    limited_to(CALL_TIMEOUT, call).await
}

/// Performs a call within `limit`. The server may still perform a call later that was too late.
///
/// # Errors
/// [`ApiError`], which says whether and when the call may be repeated.
pub async fn limited_to<T>(limit: Duration, call: impl Future<Output = kube::Result<T>>) -> Result<T, ApiError> {
    match timeout(limit, call).await {
        Ok(answer) => answer.map_err(|error| classify(error.into())),
        Err(elapsed) => Err(ApiError::unavailable(elapsed, None)),
    }
}

/// Converts the error of a call to the variant that says whether and when the call may be repeated.
fn classify(error: KubeError) -> ApiError {
    let Some(status) = error.status() else { return ApiError::unavailable(error, None) };
    let retry_after = status.details.as_ref().map(|details| details.retry_after_seconds).filter(|seconds| *seconds > 0);
    let retry_after = retry_after.map(|seconds| Duration::from_secs(seconds.into()));
    match status.code {
        404 => ApiError::NotFound,
        409 => ApiError::conflict(error),
        429 | 500.. => ApiError::unavailable(error, retry_after),
        // The credentials may be renewed at any time.
        401 => ApiError::unavailable(error, None),
        _ => ApiError::refused(error),
    }
}
