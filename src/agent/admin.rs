//! The admin endpoints: read only, on a loopback address.

mod apart;
mod logs;
mod pods;
mod recording;
mod server;

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use crate::actors::desired::MissingSource;
use crate::actors::ids::{FullName, PodUid};
use crate::actors::text::plain;
use crate::metrics::Format;
use axum::extract::{FromRef, Path, Query, Request, State};
use axum::http::header::{ACCEPT, CONTENT_TYPE, HOST, X_CONTENT_TYPE_OPTIONS};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Uri};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use serde::Deserialize;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::explain::{PROBLEM, unknown};
use super::page::{self, About};
use super::table;
use super::view::View;
use apart::Apart;
use recording::Seat;

/// How long until an address that is taken is tried again.
const RETRY: Duration = Duration::from_secs(10);
/// How old the last housekeeping pass may be, at the least, before the agent counts as ill.
pub(super) const OLDEST_PASS: Duration = Duration::from_secs(300);
/// How many bytes of what was asked for stand in an answer that says what is wrong with it. It may be read on a terminal.
pub(super) const ECHO: usize = 300;

/// Serves until told to stop. An address that cannot be had is told once and tried again: pods do not wait for it.
pub(crate) async fn serve(address: SocketAddr, view: View, about: About, stop: CancellationToken) {
    let mut told = false;
    let router = router(view, about);
    let attempts = async {
        loop {
            match TcpListener::bind(address).await {
                Ok(listener) => {
                    let address = listener.local_addr().unwrap_or(address);
                    tracing::info!(%address, "admin endpoints are served");
                    told = false;
                    server::serve(listener, router.clone()).await;
                }
                Err(error) if !told => {
                    told = true;
                    tracing::error!(
                        "admin endpoints cannot be served at {address} ({}): free it, or choose another with --admin; \
                         pods run meanwhile, and it is tried again every {} s",
                        super::root::reason(&error),
                        RETRY.as_secs()
                    );
                }
                Err(_) => {}
            }
            tokio::time::sleep(RETRY).await;
        }
    };
    stop.run_until_cancelled(attempts).await;
}

/// What answers are made of.
#[derive(Clone)]
struct Shared {
    view: View,
    apart: Apart,
}

impl FromRef<Shared> for View {
    fn from_ref(shared: &Shared) -> Self {
        shared.view.clone()
    }
}

impl FromRef<Shared> for Apart {
    fn from_ref(shared: &Shared) -> Self {
        shared.apart.clone()
    }
}

pub fn router(view: View, about: About) -> Router {
    let logs = logs::Logs::new(about.stopping.clone());
    let page = page::router(view.clone(), about);
    let seat = Seat::default();
    Router::new()
        .route("/healthz", get(healthz))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics))
        .route("/pods", get(pods::pods))
        .route("/explain", get(explain_all))
        .route("/explain/{namespace}/{name}", get(explain_pod))
        .route("/logs/{namespace}/{name}", get(move |state, path, query| logs.answer(state, path, query)))
        .route("/recording", get(async move |State(view): State<View>| seat.recording(&view.node.engine).await))
        .fallback(not_found)
        .method_not_allowed_fallback(not_allowed)
        .with_state(Shared { view, apart: Apart::default() })
        .merge(page)
        .layer(from_fn(ours_only))
}

/// Tells a page of another site from our own: a browser says which of them asks.
const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
/// And whether somebody goes somewhere, or a page wants to have it for itself.
const SEC_FETCH_MODE: HeaderName = HeaderName::from_static("sec-fetch-mode");
/// And where it is to be shown: `document` is a tab or a window, which a frame within another page is not.
const SEC_FETCH_DEST: HeaderName = HeaderName::from_static("sec-fetch-dest");

/// Refuses what pages of others ask for in a browser of this machine. They could not read the answer, but they could take
/// every seat of `/watch` and the one of `/recording`; and a page whose own host name points here could read. Links lead to
/// the page at `/` alone, because frames and windows that a page opens are links too (W3C Fetch Metadata).
async fn ours_only(request: Request, next: Next) -> Response {
    let headers = request.headers();
    let is = |name: &HeaderName, word: &str| headers.get(name).is_some_and(|value| value == word);
    let stranger = is(&SEC_FETCH_SITE, "cross-site") || is(&SEC_FETCH_SITE, "same-site");
    let link = is(&SEC_FETCH_MODE, "navigate") && is(&SEC_FETCH_DEST, "document");
    if stranger && !(link && request.uri().path() == "/") {
        return (StatusCode::FORBIDDEN, "in a browser only the page at / may ask\n").into_response();
    }
    let mut response = local_names_only(request, next).await;
    // What a pod says is never taken for a page or a script.
    response.headers_mut().insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

/// A page in a browser may make its own host name point here; what it asks then carries that name.
async fn local_names_only(request: Request, next: Next) -> Response {
    let mut hosts = request.headers().get_all(HOST).iter().map(|host| host.to_str().unwrap_or_default());
    match hosts.find(|host| !is_local(host)) {
        Some(host) => {
            let host = plain(host, ECHO);
            let why = format!("{host:?} is not a name of this machine's loopback address: ask by 127.0.0.1\n");
            (StatusCode::FORBIDDEN, why).into_response()
        }
        None => next.run(request).await,
    }
}

/// A name or an address, with a port or without (RFC 3986, section 3.2: a port is digits, or nothing behind the colon).
fn is_local(host: &str) -> bool {
    let (name, port) = match host.strip_prefix('[') {
        Some(rest) => rest.split_once(']').unwrap_or_default(),
        None => host.split_at(host.find(':').unwrap_or(host.len())),
    };
    let port = port.is_empty() || port.strip_prefix(':').is_some_and(|port| port.bytes().all(|b| b.is_ascii_digit()));
    port && (name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback()))
}

async fn healthz(State(view): State<View>) -> Response {
    let limit = OLDEST_PASS.max(2 * view.resync);
    if view.node.housekeeping.is_late(limit) {
        let why = format!("housekeeping did not pass within {} s\n", limit.as_secs());
        return (StatusCode::INTERNAL_SERVER_ERROR, why).into_response();
    }
    "ok\n".into_response()
}

async fn readyz(State(view): State<View>) -> Response {
    let told = |source: &MissingSource| {
        let why = source.why();
        format!("source {} has not delivered{}", source.kind, plain(&why, PROBLEM))
    };
    let sources = view.node.desired.missing_sources();
    // What a source wants may wait for the runtime, which is told apart.
    let mut missing: Vec<String> = sources.iter().filter(|source| !source.held).map(told).collect();
    match view.node.observer.outage() {
        Some(outage) => {
            missing.push(format!("the container runtime does not answer: {}", plain(&outage.error, PROBLEM)))
        }
        None if !*view.node.healthy.borrow() => missing.push("the container runtime was not listed yet".to_owned()),
        None => {}
    }
    // A node without a network for pods has work for those that need none.
    missing.extend(view.node.observer.unready().runtime.map(|why| plain(&why, PROBLEM).into_owned()));
    if missing.is_empty() {
        return "ok\n".into_response();
    }
    (StatusCode::SERVICE_UNAVAILABLE, missing.join("\n") + "\n").into_response()
}

async fn metrics(State(view): State<View>, headers: HeaderMap) -> Response {
    let format = Format::from_accept(accept(&headers));
    ([(CONTENT_TYPE, format.content_type())], view.metrics.encode(format)).into_response()
}

/// In which form to answer. `output` is another word for `format`.
#[derive(Deserialize)]
struct Form {
    #[serde(alias = "output")]
    format: Option<String>,
}

impl Form {
    /// Whether to answer in JSON, or why not at all.
    fn json(&self, headers: &HeaderMap) -> Result<bool, String> {
        match self.format.as_deref() {
            Some("json") => Ok(true),
            Some("text") => Ok(false),
            None => Ok(accept(headers).contains("application/json")),
            Some(other) => Err(format!("there is no format {:?}: ask for text or json\n", plain(other, ECHO))),
        }
    }
}

/// Which of the pods of one name: without a UID the wanted one.
#[derive(Deserialize)]
struct Which {
    uid: Option<String>,
}

async fn explain_pod(
    State(view): State<View>,
    State(apart): State<Apart>,
    Path((namespace, name)): Path<(String, String)>,
    Query(Which { uid }): Query<Which>,
    Query(form): Query<Form>,
    headers: HeaderMap,
) -> Response {
    let (full_name, uid) = (FullName::new(&namespace, &name), uid.as_deref().map(PodUid::new));
    let json = match form.json(&headers) {
        Ok(json) => json,
        Err(why) => return (StatusCode::BAD_REQUEST, why).into_response(),
    };
    let explained = apart.answer(view, move |view| match view.explain(&full_name, uid.as_ref()) {
        None => (StatusCode::NOT_FOUND, unknown(&view.node.explainer, &full_name, uid.as_ref())).into_response(),
        Some(explanation) if json => Json(explanation).into_response(),
        Some(explanation) => explanation.to_string().into_response(),
    });
    explained.await
}

/// All pods, a line each, and what of the sources cannot be used.
async fn explain_all(
    State(view): State<View>,
    State(apart): State<Apart>,
    Query(form): Query<Form>,
    headers: HeaderMap,
) -> Response {
    let json = match form.json(&headers) {
        Ok(json) => json,
        Err(why) => return (StatusCode::BAD_REQUEST, why).into_response(),
    };
    let answer = move |view: &View| {
        if json { Json(view.node.explainer.lines()).into_response() } else { lines(view).into_response() }
    };
    apart.answer(view, answer).await
}

fn lines(view: &View) -> String {
    let lines = view.node.explainer.lines();
    let mut text = table::explained(&lines, view.now()).join("\n");
    text.push('\n');
    for trouble in view.node.explainer.troubles() {
        text.push_str(&format!("{}\n", plain(&trouble.detail, PROBLEM)));
    }
    for problem in view.problems() {
        text.push_str(&format!("cannot be used: {}\n", plain(&problem.to_string(), PROBLEM)));
    }
    text
}

async fn not_found(uri: Uri) -> Response {
    let why = format!(
        "there is nothing at {}: /, /healthz, /readyz, /metrics, /pods, /explain, /explain/NAMESPACE/NAME, \
         /logs/NAMESPACE/NAME and /recording are here\n",
        plain(uri.path(), ECHO)
    );
    (StatusCode::NOT_FOUND, why).into_response()
}

async fn not_allowed(uri: Uri) -> Response {
    let why = format!("{} can only be read: ask with GET\n", plain(uri.path(), ECHO));
    (StatusCode::METHOD_NOT_ALLOWED, why).into_response()
}

fn accept(headers: &HeaderMap) -> &str {
    headers.get(ACCEPT).and_then(|accept| accept.to_str().ok()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_loopback_names_are_local() {
        for host in ["127.0.0.1:10255", "localhost:80", "LOCALHOST", "[::1]:80", "[::1]", "127.1.2.3", "localhost:"] {
            assert!(is_local(host), "{host}");
        }
        let foreign =
            ["evil.example:10255", "", "10.0.0.1", "[fe80::1]:80", "localhost.evil.example", "127.0.0.1.nip.io"];
        let junk =
            ["127.0.0.1:junk", "127.0.0.1:80:80", "localhost:80.evil.example", "[::1]80", "[::1", "[::1].evil.example"];
        for host in foreign.into_iter().chain(junk) {
            assert!(!is_local(host), "{host}");
        }
    }
}
