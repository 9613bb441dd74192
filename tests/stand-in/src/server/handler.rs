//! One HTTP request.

use std::sync::Arc;

use axum::Extension;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::tls::Peer;
use super::{Served, Shared, watches};
use crate::access::User;
use crate::call::Call;
use crate::discovery;
use crate::faults::{Fault, RequestInfo};
use crate::refusal::Refusal;
use crate::store::Answer;

/// The limit of a body, as on a real server.
const LARGEST_BODY: usize = 3 * 1024 * 1024;

/// Answers a request, or drops its connection.
pub(super) async fn handle(
    State(shared): State<Arc<Shared>>,
    Extension(cut): Extension<CancellationToken>,
    Extension(peer): Extension<Peer>,
    request: Request,
) -> Response {
    let (parts, body) = request.into_parts();
    let text = |name: header::HeaderName| header_text(&parts.headers, name);
    let user = authenticate(&shared, peer, &text(header::AUTHORIZATION));
    let body = axum::body::to_bytes(body, LARGEST_BODY).await;
    let content_type = text(header::CONTENT_TYPE);
    let (method, path, query) = (parts.method.as_str(), parts.uri.path(), parts.uri.query().unwrap_or_default());
    let call = match &body {
        Ok(body) => Call::parse(method, path, query, &content_type, body),
        Err(_) => Err(Refusal::plain(413, "RequestEntityTooLarge", "the request is larger than 3 MiB")),
    };
    let info = describe(method, path, query, &content_type, user.as_ref(), call.as_ref().ok());
    tokio::time::sleep(shared.faults.latency()).await;
    let fault = shared.faults.decide(&info);
    let record = |code: u16| shared.served.lock().push(served(&info, code));
    match &fault {
        Some(Fault::Stall) => shared.faults.stall().await,
        Some(Fault::Delay(time)) => tokio::time::sleep(*time).await,
        Some(Fault::DropBefore) => {
            record(0);
            return drop_connection(&cut).await;
        }
        Some(Fault::Refuse(refusal)) => {
            record(refusal.code);
            return refuse(refusal);
        }
        Some(Fault::DropAfter) | None => {}
    }
    let answer = answer(&shared, path, &text(header::USER_AGENT), user, call);
    if matches!(fault, Some(Fault::DropAfter)) {
        record(0);
        return drop_connection(&cut).await;
    }
    match answer {
        Ok(Reply::Json(code, body)) => {
            record(code);
            reply(code, &body)
        }
        Ok(Reply::Text(text)) => {
            record(200);
            text.into_response()
        }
        Ok(Reply::Watch(start)) => {
            record(200);
            let stream = watches::stream(shared.clone(), start, cut);
            ([(header::CONTENT_TYPE, "application/json")], Body::from_stream(stream)).into_response()
        }
        Err(refusal) => {
            record(refusal.code);
            refuse(&refusal)
        }
    }
}

enum Reply {
    Json(u16, Value),
    Text(&'static str),
    Watch(crate::store::WatchStart),
}

fn answer(
    shared: &Shared,
    path: &str,
    agent: &str,
    user: Option<User>,
    call: Result<Call, Refusal>,
) -> Result<Reply, Refusal> {
    if matches!(path.split('/').nth(1), Some("healthz" | "livez" | "readyz")) {
        return Ok(Reply::Text("ok"));
    }
    let user = user.ok_or_else(Refusal::unauthorized)?;
    if let Some(body) = discovery::answer(path) {
        return Ok(Reply::Json(200, body));
    }
    let agent = agent.split('/').next().unwrap_or_default();
    Ok(match shared.apply(&call?, &user, agent)? {
        Answer::Object(code, body) => Reply::Json(code, body),
        Answer::Watch(start) => Reply::Watch(start),
    })
}

/// The user of the client certificate or of the bearer token, or the anonymous user if requests without a credential are
/// allowed.
fn authenticate(shared: &Shared, peer: Peer, header: &str) -> Option<User> {
    let token = header.strip_prefix("Bearer ");
    let token = match (peer, token) {
        (Peer::User(user), _) => return Some(user),
        (Peer::Unknown, None) => return shared.anonymous.clone(),
        (Peer::Refused, None) => return None,
        (Peer::Unknown | Peer::Refused, Some(token)) => token,
    };
    let now = (shared.clock)();
    let user = shared.store.lock().tokens.get(token.trim()).cloned()?;
    user.expires.is_none_or(|end| end > now).then_some(user)
}

fn header_text(headers: &HeaderMap, name: header::HeaderName) -> String {
    headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default().to_owned()
}

fn describe(
    method: &str,
    path: &str,
    query: &str,
    content_type: &str,
    user: Option<&User>,
    call: Option<&Call>,
) -> RequestInfo {
    let resource = call.map_or_else(String::new, |call| match call.subresource() {
        "" => call.resource.plural.to_owned(),
        subresource => format!("{}/{subresource}", call.resource.plural),
    });
    RequestInfo {
        method: method.to_owned(),
        path: path.to_owned(),
        query: query.to_owned(),
        user: user.map(|user| user.name.clone()).unwrap_or_default(),
        verb: call.map(|call| call.verb),
        resource,
        namespace: call.map(|call| call.namespace().to_owned()).unwrap_or_default(),
        name: call.map(|call| call.name().to_owned()).unwrap_or_default(),
        content_type: content_type.to_owned(),
    }
}

fn served(info: &RequestInfo, code: u16) -> Served {
    Served {
        user: info.user.clone(),
        verb: info.verb,
        resource: info.resource.clone(),
        namespace: info.namespace.clone(),
        name: info.name.clone(),
        path: info.path.clone(),
        code,
    }
}

/// Cuts the connection. The future of the handler is dropped with it, so this never returns.
async fn drop_connection(cut: &CancellationToken) -> Response {
    cut.cancel();
    std::future::pending().await
}

fn refuse(refusal: &Refusal) -> Response {
    let mut response = reply(refusal.code, &refusal.body());
    if let Some(seconds) = refusal.retry_after() {
        response.headers_mut().insert(header::RETRY_AFTER, seconds.into());
    }
    response
}

fn reply(code: u16, body: &Value) -> Response {
    let code = StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let text = if body.is_null() { json!({}).to_string() } else { body.to_string() };
    (code, [(header::CONTENT_TYPE, "application/json")], text).into_response()
}
