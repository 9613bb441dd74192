//! The answers to `/exec`, `/attach` and `/portForward`, after the request was authorized and its container was found.

use std::sync::Arc;

use axum::extract::Request;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};

use crate::adapters::streaming::StreamingRuntime;

/// The stream that a client requests.
pub(crate) use crate::adapters::streaming::StreamRequest as Stream;

/// Opens the stream at the runtime and upgrades the connection of the client.
pub(crate) async fn serve(request: Request, stream: Stream, runtime: &Arc<dyn StreamingRuntime>) -> Response {
    let _ = (request, stream, runtime);
    (StatusCode::NOT_IMPLEMENTED, "this build of podwright serves no streams").into_response()
}
