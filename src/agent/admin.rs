//! The admin endpoints, which are read-only but for the one that gives a DRA driver up.
//!
//! ```text
//!  ROOT/admin.sock, mode 0600 ───────────────> every endpoint
//!  127.0.0.1:10255 ──> without a token ──────> / /healthz /readyz /metrics
//!                  └─> with the page's token ─> every endpoint
//!  other addresses, TLS and a token ─────────> every endpoint
//! ```
//!
//! [`endpoints`] listens, [`guard`] checks each request before it is routed, and the rest answers.

mod claims;
mod endpoints;
mod guard;
mod logs;
mod recording;

use axum::extract::{FromRef, Path, Query, State};
use axum::http::header::{ACCEPT, CONTENT_TYPE};
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::middleware::from_fn_with_state;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Extension, Json, Router};
use podwright_actors::desired::MissingSource;
use podwright_model::ids::{FullName, PodUid};
use podwright_model::text::plain;
use podwright_parts::StoppedPart;
use serde::Deserialize;

use super::error_text::MAX_PROBLEM_BYTES;
use super::page::{self, AgentInfo};
use super::program::Program;
use super::table;
use super::unknown_pod::unknown_pod;
use super::view::{NodeControl, NodeView};
pub(crate) use endpoints::{AdminEndpoints, AdminError, AdminServer, TlsSettings, remove_leftovers};
use guard::{Guard, guard};
use podwright_http_server::{Access, BlockingAnswers, MAX_ECHO_BYTES, negotiate};
use podwright_metrics::Metrics;
use podwright_node_api::{ServedNode, pod_list};
use recording::RecordingEndpoint;

/// The state that handlers share.
#[derive(Clone)]
struct AdminState {
    view: NodeView,
    control: NodeControl,
    blocking: BlockingAnswers,
}

impl FromRef<AdminState> for NodeView {
    fn from_ref(state: &AdminState) -> Self {
        state.view.clone()
    }
}

impl FromRef<AdminState> for NodeControl {
    fn from_ref(state: &AdminState) -> Self {
        state.control.clone()
    }
}

impl FromRef<AdminState> for BlockingAnswers {
    fn from_ref(state: &AdminState) -> Self {
        state.blocking.clone()
    }
}

/// All admin endpoints, for clients that may read everything. Requests of pages of other sites and for host names other than
/// loopback names are refused.
pub fn router(view: NodeView, control: NodeControl, info: AgentInfo) -> Router {
    for_trusted_clients(routes(view, control, info))
}

fn for_trusted_clients(routes: Router) -> Router {
    routes.layer(from_fn_with_state(Guard { is_loopback: true, public: None, program: Program::Agent }, guard))
}

/// The routes of all admin endpoints, without any check of the client.
fn routes(view: NodeView, control: NodeControl, info: AgentInfo) -> Router {
    let logs = logs::LogsEndpoint::new(&view, info.stopping.clone());
    let page = page::router(view.clone(), info);
    let recording = RecordingEndpoint::default();
    Router::new()
        .route("/claims/{namespace}/{name}/give-up", post(claims::give_up))
        .route("/healthz", get(healthz))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics))
        .route("/pods", get(pods))
        .route("/explain", get(explain_all))
        .route("/explain/{namespace}/{name}", get(explain_pod))
        .route("/logs/{namespace}/{name}", get(move |state, path, query| logs.answer(state, path, query)))
        .route("/recording", get(async move |State(view): State<NodeView>| recording.recording(view.node).await))
        .fallback(not_found)
        .method_not_allowed_fallback(not_allowed)
        .with_state(AdminState { view, control, blocking: BlockingAnswers::default() })
        .merge(page)
}

async fn healthz(State(view): State<NodeView>) -> Response {
    if view.node.is_housekeeping_late() {
        let why = format!("no housekeeping pass has ended within {} s\n", view.node.housekeeping_limit().as_secs());
        return (StatusCode::INTERNAL_SERVER_ERROR, why).into_response();
    }
    if let Some(problem) = view.plugins_problem() {
        let why = format!("no plugin can register: {}\n", plain(&problem, MAX_PROBLEM_BYTES));
        return (StatusCode::INTERNAL_SERVER_ERROR, why).into_response();
    }
    "ok\n".into_response()
}

/// The reason of a source may quote a manifest, so only authenticated clients get it.
async fn readyz(State(view): State<NodeView>, access: Option<Extension<Access>>) -> Response {
    let is_public = is_public(access);
    let reason = |source: &MissingSource| {
        let why = if is_public { String::new() } else { source.reason() };
        format!("source {} has not delivered{}", source.kind, plain(&why, MAX_PROBLEM_BYTES))
    };
    let sources = view.node.missing_sources();
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
    // The text of a panic may quote what the part has read.
    let stopped = |part: StoppedPart| {
        if is_public {
            format!("the part {} does not run", part.name)
        } else {
            plain(&part.to_string(), MAX_PROBLEM_BYTES).into_owned()
        }
    };
    missing.extend(view.stopped_parts().into_iter().map(stopped));
    if missing.is_empty() {
        return "ok\n".into_response();
    }
    (StatusCode::SERVICE_UNAVAILABLE, missing.join("\n") + "\n").into_response()
}

async fn pods(State(view): State<NodeView>, State(blocking): State<BlockingAnswers>) -> Response {
    view.node.explainer().adopted().await;
    blocking.answer(view, |view| pod_list(&ServedNode::pods(view))).await
}

/// The labels of probes name the pods of the node, so only authenticated clients get them.
async fn metrics(
    State(view): State<NodeView>,
    State(blocking): State<BlockingAnswers>,
    access: Option<Extension<Access>>,
    headers: HeaderMap,
) -> Response {
    let (format, is_public) = (negotiate(accept(&headers)), is_public(access));
    let answer = move |metrics: &Metrics| {
        let text = if is_public { metrics.encode_without_names(format) } else { metrics.encode(format) };
        ([(CONTENT_TYPE, format.content_type())], text)
    };
    blocking.answer(view.metrics, answer).await
}

/// Whether the client of a request may not read everything.
fn is_public(access: Option<Extension<Access>>) -> bool {
    access.is_some_and(|Extension(access)| access != Access::Full)
}

/// The query parameter that chooses the form of the answer. `output` is an alias of `format`.
#[derive(Deserialize)]
pub(super) struct FormatQuery {
    #[serde(alias = "output")]
    format: Option<String>,
}

impl FormatQuery {
    /// Whether to answer in JSON. Without the parameter, the `Accept` header decides.
    ///
    /// # Errors
    /// The error text for an unknown format.
    pub(super) fn json(&self, headers: &HeaderMap) -> Result<bool, String> {
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
    let answer = move |view: &NodeView| {
        let full_name = view.meant(full_name);
        match view.explain(&full_name, uid.as_ref()) {
            None => {
                (StatusCode::NOT_FOUND, unknown_pod(view.node.explainer(), &full_name, uid.as_ref())).into_response()
            }
            Some(explanation) if json => Json(explanation).into_response(),
            Some(explanation) => explanation.to_string().into_response(),
        }
    };
    view.node.explainer().adopted().await;
    blocking.answer(view, answer).await
}

/// One line for each pod, then the problems of the node, the state of the DRA drivers, and the problems of the manifests.
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
    view.node.explainer().adopted().await;
    blocking.answer(view, answer).await
}

fn explain_text(view: &NodeView) -> String {
    let lines = view.node.explainer().lines();
    let mut text = table::explain_table(&lines, view.now()).join("\n");
    text.push('\n');
    for problem in view.node.explainer().node_problems() {
        text.push_str(&format!("{}\n", plain(&problem.detail, MAX_PROBLEM_BYTES)));
    }
    if let Some(problem) = view.plugins_problem() {
        text.push_str(&format!("no plugin can register: {}\n", plain(&problem, MAX_PROBLEM_BYTES)));
    }
    for line in view.failed_plugins() {
        text.push_str(&format!("{}\n", plain(&line, MAX_PROBLEM_BYTES)));
    }
    for line in view.drivers() {
        text.push_str(&format!("{}\n", plain(&line, MAX_PROBLEM_BYTES)));
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
