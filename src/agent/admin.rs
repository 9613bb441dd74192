//! The admin endpoints: read only, on a loopback address.
//!
//! Each request is checked before it is routed, because any page in a browser on this machine can send one.

mod blocking;
mod logs;
mod negotiation;
mod pods;
mod recording;
mod server;

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use crate::actors::desired::MissingSource;
use crate::actors::ids::{FullName, PodUid};
use crate::actors::text::plain;
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

use super::error_text::{MAX_ECHO_BYTES, MAX_PROBLEM_BYTES, reason};
use super::page::{self, AgentInfo};
use super::table;
use super::unknown_pod::unknown_pod;
use super::view::NodeView;
use blocking::BlockingAnswers;
use recording::RecordingEndpoint;

/// How long after a failure the agent tries again to listen.
const RETRY: Duration = Duration::from_secs(10);

/// Serves the endpoints until `stop` is cancelled. If the agent cannot listen on the address, it logs that once and tries
/// again. Pods do not wait for the endpoints.
pub(crate) async fn serve(address: SocketAddr, view: NodeView, info: AgentInfo, stop: CancellationToken) {
    let mut logged = false;
    let router = router(view, info);
    let attempts = async {
        loop {
            match TcpListener::bind(address).await {
                Ok(listener) => {
                    let address = listener.local_addr().unwrap_or(address);
                    tracing::info!(%address, "admin endpoints are served");
                    logged = false;
                    server::serve(listener, router.clone()).await;
                }
                Err(error) if !logged => {
                    logged = true;
                    tracing::error!(
                        "cannot listen for admin requests on {address} ({}): free the address, or choose another with --admin; \
                         pods keep running, and the agent tries again every {} s",
                        reason(&error),
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

/// The state that handlers share.
#[derive(Clone)]
struct AdminState {
    view: NodeView,
    blocking: BlockingAnswers,
}

impl FromRef<AdminState> for NodeView {
    fn from_ref(state: &AdminState) -> Self {
        state.view.clone()
    }
}

impl FromRef<AdminState> for BlockingAnswers {
    fn from_ref(state: &AdminState) -> Self {
        state.blocking.clone()
    }
}

/// The routes of all admin endpoints.
pub fn router(view: NodeView, info: AgentInfo) -> Router {
    let logs = logs::LogsEndpoint::new(info.stopping.clone());
    let page = page::router(view.clone(), info);
    let recording = RecordingEndpoint::default();
    Router::new()
        .route("/healthz", get(healthz))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics))
        .route("/pods", get(pods::pods))
        .route("/explain", get(explain_all))
        .route("/explain/{namespace}/{name}", get(explain_pod))
        .route("/logs/{namespace}/{name}", get(move |state, path, query| logs.answer(state, path, query)))
        .route(
            "/recording",
            get(async move |State(view): State<NodeView>| recording.recording(view.node.engine()).await),
        )
        .fallback(not_found)
        .method_not_allowed_fallback(not_allowed)
        .with_state(AdminState { view, blocking: BlockingAnswers::default() })
        .merge(page)
        .layer(from_fn(refuse_other_sites))
}

/// Whether the page of this agent or a page of another site sent the request (W3C Fetch Metadata).
const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
/// Whether the request is a navigation by the user or a fetch by a script.
const SEC_FETCH_MODE: HeaderName = HeaderName::from_static("sec-fetch-mode");
/// Where the browser shows the answer: `document` is a tab or a window, and a frame in another page is not.
const SEC_FETCH_DEST: HeaderName = HeaderName::from_static("sec-fetch-dest");

/// Refuses requests that pages of other sites send from a browser on this machine. Such a page cannot read the answer, but
/// it could occupy every stream of `/watch` and the one download of `/recording`. A link may lead to the page at `/` only,
/// because a frame or window that another page opens also counts as navigation (W3C Fetch Metadata).
async fn refuse_other_sites(request: Request, next: Next) -> Response {
    let headers = request.headers();
    let is = |name: &HeaderName, word: &str| headers.get(name).is_some_and(|value| value == word);
    let other_site = is(&SEC_FETCH_SITE, "cross-site") || is(&SEC_FETCH_SITE, "same-site");
    let link = is(&SEC_FETCH_MODE, "navigate") && is(&SEC_FETCH_DEST, "document");
    if other_site && !(link && request.uri().path() == "/") {
        return (
            StatusCode::FORBIDDEN,
            "requests from pages of other sites are refused: open the page at / of this agent\n",
        )
            .into_response();
    }
    let mut response = refuse_foreign_hosts(request, next).await;
    // A browser must not interpret the text of a pod as a page or a script.
    response.headers_mut().insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

/// Refuses requests whose `Host` is not a loopback name. A page of another site can make its own host name resolve to this
/// machine (DNS rebinding) and then read answers; such requests carry that host name.
async fn refuse_foreign_hosts(request: Request, next: Next) -> Response {
    let mut hosts = request.headers().get_all(HOST).iter().map(|host| host.to_str().unwrap_or_default());
    match hosts.find(|host| !is_local(host)) {
        Some(host) => {
            let host = plain(host, MAX_ECHO_BYTES);
            let why = format!("host {host:?} is not a loopback name: use 127.0.0.1 or localhost\n");
            (StatusCode::FORBIDDEN, why).into_response()
        }
        None => next.run(request).await,
    }
}

/// Whether a host, with or without a port, is a loopback name or address. A port is digits, or nothing after the colon
/// (RFC 3986, section 3.2).
fn is_local(host: &str) -> bool {
    let (name, port) = match host.strip_prefix('[') {
        Some(rest) => rest.split_once(']').unwrap_or_default(),
        None => host.split_at(host.find(':').unwrap_or(host.len())),
    };
    let port = port.is_empty() || port.strip_prefix(':').is_some_and(|port| port.bytes().all(|b| b.is_ascii_digit()));
    port && (name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback()))
}

async fn healthz(State(view): State<NodeView>) -> Response {
    if view.node.is_housekeeping_late() {
        let why = format!("no housekeeping pass has ended within {} s\n", view.node.housekeeping_limit().as_secs());
        return (StatusCode::INTERNAL_SERVER_ERROR, why).into_response();
    }
    "ok\n".into_response()
}

async fn readyz(State(view): State<NodeView>) -> Response {
    let reason = |source: &MissingSource| {
        let why = source.reason();
        format!("source {} has not delivered{}", source.kind, plain(&why, MAX_PROBLEM_BYTES))
    };
    let sources = view.node.desired().missing_sources();
    // A source that is held waits for the runtime. The state of the runtime is reported below.
    let mut missing: Vec<String> = sources.iter().filter(|source| !source.held).map(reason).collect();
    match view.node.observer().outage() {
        Some(outage) => {
            missing.push(format!("the container runtime does not answer: {}", plain(&outage.error, MAX_PROBLEM_BYTES)))
        }
        None if !*view.node.healthy().borrow() => {
            missing.push("the containers of the runtime have not been listed yet".to_owned())
        }
        None => {}
    }
    // Only the runtime condition counts: without a pod network, pods of the host network still run.
    missing.extend(view.node.observer().unready().runtime.map(|why| plain(&why, MAX_PROBLEM_BYTES).into_owned()));
    if missing.is_empty() {
        return "ok\n".into_response();
    }
    (StatusCode::SERVICE_UNAVAILABLE, missing.join("\n") + "\n").into_response()
}

async fn metrics(State(view): State<NodeView>, headers: HeaderMap) -> Response {
    let format = negotiation::negotiate(accept(&headers));
    ([(CONTENT_TYPE, format.content_type())], view.metrics.encode(format)).into_response()
}

/// The query parameter that chooses the form of the answer. `output` is an alias of `format`.
#[derive(Deserialize)]
struct FormatQuery {
    #[serde(alias = "output")]
    format: Option<String>,
}

impl FormatQuery {
    /// Whether to answer in JSON. Without the parameter, the `Accept` header decides.
    ///
    /// # Errors
    /// The error text for an unknown format.
    fn json(&self, headers: &HeaderMap) -> Result<bool, String> {
        match self.format.as_deref() {
            Some("json") => Ok(true),
            Some("text") => Ok(false),
            None => Ok(accept(headers).contains("application/json")),
            Some(other) => Err(format!("unknown format {:?}: request text or json\n", plain(other, MAX_ECHO_BYTES))),
        }
    }
}

/// The query parameter that chooses between pods of one full name. Without it, the desired pod is used.
#[derive(Deserialize)]
struct UidQuery {
    uid: Option<String>,
}

async fn explain_pod(
    State(view): State<NodeView>,
    State(blocking): State<BlockingAnswers>,
    Path((namespace, name)): Path<(String, String)>,
    Query(UidQuery { uid }): Query<UidQuery>,
    Query(form): Query<FormatQuery>,
    headers: HeaderMap,
) -> Response {
    let (full_name, uid) = (FullName::new(&namespace, &name), uid.as_deref().map(PodUid::new));
    let json = match form.json(&headers) {
        Ok(json) => json,
        Err(why) => return (StatusCode::BAD_REQUEST, why).into_response(),
    };
    let answer = blocking.answer(view, move |view| match view.explain(&full_name, uid.as_ref()) {
        None => (StatusCode::NOT_FOUND, unknown_pod(view.node.explainer(), &full_name, uid.as_ref())).into_response(),
        Some(explanation) if json => Json(explanation).into_response(),
        Some(explanation) => explanation.to_string().into_response(),
    });
    answer.await
}

/// One line for each pod, then the problems of the node and of the manifests.
async fn explain_all(
    State(view): State<NodeView>,
    State(blocking): State<BlockingAnswers>,
    Query(form): Query<FormatQuery>,
    headers: HeaderMap,
) -> Response {
    let json = match form.json(&headers) {
        Ok(json) => json,
        Err(why) => return (StatusCode::BAD_REQUEST, why).into_response(),
    };
    let answer = move |view: &NodeView| {
        if json { Json(view.node.explainer().lines()).into_response() } else { explain_text(view).into_response() }
    };
    blocking.answer(view, answer).await
}

fn explain_text(view: &NodeView) -> String {
    let lines = view.node.explainer().lines();
    let mut text = table::explain_table(&lines, view.now()).join("\n");
    text.push('\n');
    for problem in view.node.explainer().node_problems() {
        text.push_str(&format!("{}\n", plain(&problem.detail, MAX_PROBLEM_BYTES)));
    }
    for problem in view.problems() {
        text.push_str(&format!("cannot be used: {}\n", plain(&problem.to_string(), MAX_PROBLEM_BYTES)));
    }
    text
}

async fn not_found(uri: Uri) -> Response {
    let why = format!(
        "no endpoint at {}: the endpoints are /, /healthz, /readyz, /metrics, /pods, /explain, \
         /explain/NAMESPACE/NAME, /logs/NAMESPACE/NAME and /recording\n",
        plain(uri.path(), MAX_ECHO_BYTES)
    );
    (StatusCode::NOT_FOUND, why).into_response()
}

async fn not_allowed(uri: Uri) -> Response {
    let why = format!("{} is read only: use GET\n", plain(uri.path(), MAX_ECHO_BYTES));
    (StatusCode::METHOD_NOT_ALLOWED, why).into_response()
}

fn accept(headers: &HeaderMap) -> &str {
    headers.get(ACCEPT).and_then(|accept| accept.to_str().ok()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_loopback_hosts_are_accepted() {
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
