//! One HTTP request.

use std::sync::Arc;

use axum::Extension;
use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures_util::StreamExt;
use hyper::upgrade::OnUpgrade;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::tls::Peer;
use super::{Served, ServerState, proxy, watches};
use crate::access::{self, User};
use crate::call::{Call, Verb};
use crate::discovery;
use crate::faults::{Fault, RequestInfo};
use crate::openapi;
use crate::protobuf;
use crate::raw;
use crate::refusal::Refusal;
use crate::store::{Answer, WatchStart};
use crate::table::Form;
use crate::validate;

/// The limit of a body, as on a real server.
const LARGEST_BODY: usize = 3 * 1024 * 1024;

const JSON: &str = "application/json";

/// Answers a request, or drops its connection.
pub(super) async fn handle(
    State(shared): State<Arc<ServerState>>,
    Extension(cut): Extension<CancellationToken>,
    Extension(peer): Extension<Peer>,
    mut request: Request,
) -> Response {
    let upgrade = request.extensions_mut().remove::<OnUpgrade>();
    let (parts, body) = request.into_parts();
    let text = |name: header::HeaderName| header_text(&parts.headers, name);
    let user = authenticate(&shared, peer, &text(header::AUTHORIZATION));
    let body = read(body, &text(header::CONTENT_LENGTH)).await;
    let content_type = text(header::CONTENT_TYPE);
    let (method, path, query) = (parts.method.as_str(), parts.uri.path(), parts.uri.query().unwrap_or_default());
    let call = match &body {
        Some(body) => Call::parse(method, path, query, &content_type, body),
        None => {
            let message = format!("Request entity too large: limit is {LARGEST_BODY}");
            Err(Refusal::plain(413, "RequestEntityTooLarge", message))
        }
    };
    let warnings = call.as_ref().map(warnings).unwrap_or_default();
    let encoding = Encoding::of(&text(header::ACCEPT), call.as_ref().ok());
    let info = describe(method, path, query, &content_type, user.as_ref(), call.as_ref().ok());
    let mut received = Received { shared: &shared, info: &info, headers: &parts.headers, request: Some((user, call)) };
    tokio::time::sleep(shared.faults.latency()).await;
    let fault = shared.faults.decide(&info);
    let record = |code: u16| shared.served.lock().push(served(&info, code));
    match &fault {
        Some(Fault::Stall) => shared.faults.stall().await,
        Some(Fault::Delay(time)) => tokio::time::sleep(*time).await,
        Some(Fault::DropBefore) => {
            received.discard();
            record(0);
            return drop_connection(&cut).await;
        }
        Some(Fault::Refuse(refusal)) => {
            received.discard();
            record(refusal.code);
            return refuse(refusal, encoding);
        }
        Some(Fault::DropAfter | Fault::RefuseAfter(_) | Fault::DelayAfter(_)) | None => {}
    }
    let answer = received.process();
    if matches!(fault, Some(Fault::DropAfter)) {
        record(0);
        return drop_connection(&cut).await;
    }
    if let Some(Fault::RefuseAfter(refusal)) = &fault {
        record(refusal.code);
        return refuse(refusal, encoding);
    }
    if let Some(Fault::DelayAfter(time)) = fault {
        tokio::time::sleep(time).await;
    }
    match answer {
        Ok(Reply::Json(code, media_type, body)) => {
            record(code);
            let mut response = reply(code, media_type, &body, encoding);
            response.headers_mut().extend(warnings.into_iter().map(|warning| (header::WARNING, warning)));
            response
        }
        Ok(Reply::Bytes(media_type, bytes)) => {
            record(200);
            ([(header::CONTENT_TYPE, media_type)], bytes).into_response()
        }
        Ok(Reply::Watch(start, form)) => {
            record(200);
            let stream = watches::stream(shared.clone(), start, form, cut);
            ([(header::CONTENT_TYPE, JSON)], Body::from_stream(stream)).into_response()
        }
        Ok(Reply::Kubelet(target)) => {
            let found = shared.kubelets.pass_on(&target, method, &parts.headers, upgrade, cut).await;
            let response = found.unwrap_or_else(|refusal| refuse(&refusal, encoding));
            record(response.status().as_u16());
            response
        }
        Err(refusal) => {
            record(refusal.code);
            refuse(&refusal, encoding)
        }
    }
}

/// The body of a request; none if it is larger than the limit. The rest of such a body is read too, because the client sends it before it
/// reads the answer.
async fn read(body: Body, length: &str) -> Option<Bytes> {
    if length.parse().is_ok_and(|length: usize| length > LARGEST_BODY) {
        let mut rest = body.into_data_stream();
        while let Some(Ok(_)) = rest.next().await {}
        return None;
    }
    axum::body::to_bytes(body, LARGEST_BODY).await.ok()
}

/// The warnings about fields of the body that the server drops.
fn warnings(call: &Call) -> Vec<HeaderValue> {
    let is_write = matches!(call.verb, Verb::Create | Verb::Update) && !call.resource.review;
    if !is_write || !matches!(call.query.get("fieldValidation"), "" | "Warn") {
        return Vec::new();
    }
    let faults = validate::unknown_fields(call).into_iter().map(|field| format!("unknown field {field:?}"));
    faults.filter_map(|fault| format!("299 - {fault:?}").parse().ok()).collect()
}

/// The encoding of objects and failures in an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Encoding {
    Json,
    Protobuf,
}

impl Encoding {
    /// The encoding that a client prefers. The server has the protobuf encoding of claims only.
    fn of(accept: &str, call: Option<&Call>) -> Self {
        let is_claim = call.is_some_and(|call| call.resource.kind == "ResourceClaim");
        if is_claim && accept.starts_with(protobuf::MEDIA_TYPE) { Self::Protobuf } else { Self::Json }
    }
}

/// A request that the server has received.
struct Received<'a> {
    shared: &'a ServerState,
    info: &'a RequestInfo,
    headers: &'a HeaderMap,
    /// The user and the call. `None` once the request is processed or discarded.
    request: Option<(Option<User>, Result<Call, Refusal>)>,
}

impl Received<'_> {
    fn process(&mut self) -> Result<Reply, Refusal> {
        let (user, call) = self.request.take().expect("a request is processed once");
        answer(self.shared, &self.info.path, self.headers, user, call)
    }

    fn discard(&mut self) {
        self.request = None;
    }
}

impl Drop for Received<'_> {
    /// The client has gone before the request was processed.
    fn drop(&mut self) {
        let is_write = self.info.verb.is_some_and(Verb::is_write);
        if self.request.is_some() && is_write && self.shared.faults.outlives_client(self.info) {
            // Nobody gets the answer.
            let _answer = self.process();
            self.shared.served.lock().push(served(self.info, 0));
        }
    }
}

enum Reply {
    /// The code, the media type and the body.
    Json(u16, &'static str, Value),
    /// A media type and a body.
    Bytes(&'static str, &'static [u8]),
    Watch(WatchStart, Form),
    /// The node of a pod answers.
    Kubelet(proxy::Target),
}

fn answer(
    shared: &ServerState,
    path: &str,
    headers: &HeaderMap,
    user: Option<User>,
    call: Result<Call, Refusal>,
) -> Result<Reply, Refusal> {
    if matches!(path.split('/').nth(1), Some("healthz" | "livez" | "readyz")) {
        return Ok(Reply::Bytes("text/plain; charset=utf-8", b"ok"));
    }
    let user = user.ok_or_else(Refusal::unauthorized)?;
    let accept = header_text(headers, header::ACCEPT);
    if path == "/openapi/v2" && accept.contains(openapi::V2_PROTOBUF) {
        return Ok(Reply::Bytes(openapi::V2_PROTOBUF, openapi::V2));
    }
    if let Some(body) = discovery::aggregated(path, &accept) {
        return Ok(Reply::Json(200, discovery::AGGREGATED, body));
    }
    if let Some(body) = discovery::answer(path) {
        return Ok(Reply::Json(200, JSON, body));
    }
    let call = call?;
    if call.resource.kind == "Pod" && proxy::PATHS.contains(&call.subresource()) {
        let (store, now) = (shared.store.lock(), (shared.clock)());
        access::check(&store, &user, &call, now)?;
        if call.subresource() != "log" {
            // WebSocket starts with GET, but a stream changes the pod. Since 1.35 it needs the permission to create, too.
            access::check(&store, &user, &Call { verb: Verb::Create, ..call.clone() }, now)?;
        }
        let target = proxy::target(&store, &call)?;
        return Ok(target.map_or(Reply::Bytes("text/plain", b""), Reply::Kubelet));
    }
    let form = Form::parse(&accept, call.query.get("includeObject"));
    let agent = header_text(headers, header::USER_AGENT);
    Ok(match shared.apply(&call, &user, agent.split('/').next().unwrap_or_default())? {
        Answer::Object(code, body) => Reply::Json(code, JSON, form.render(call.resource, body, (shared.clock)())),
        Answer::Watch(start) => Reply::Watch(start, form),
    })
}

/// The user of the client certificate or of the bearer token, or the anonymous user if requests without a credential are
/// allowed.
fn authenticate(shared: &ServerState, peer: Peer, header: &str) -> Option<User> {
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

fn refuse(refusal: &Refusal, encoding: Encoding) -> Response {
    let mut response = reply(refusal.code, JSON, &refusal.body(), encoding);
    if let Some(seconds) = refusal.retry_after() {
        response.headers_mut().insert(header::RETRY_AFTER, seconds.into());
    }
    response
}

fn reply(code: u16, media_type: &'static str, body: &Value, encoding: Encoding) -> Response {
    let code = StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    if encoding == Encoding::Protobuf
        && let Some(bytes) = protobuf::encode(body)
    {
        return (code, [(header::CONTENT_TYPE, protobuf::MEDIA_TYPE)], bytes).into_response();
    }
    let text = if body.is_null() { json!({}).to_string() } else { raw::text(body) };
    (code, [(header::CONTENT_TYPE, media_type)], text).into_response()
}
