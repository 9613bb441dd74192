//! The admin endpoints of the controllers.

use std::sync::Arc;

use axum::extract::{Path, Query, State};
use axum::http::header::{ACCEPT, CONTENT_TYPE};
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use tokio::sync::watch;
use tokio::task::spawn_blocking;

use crate::actors::controllers::claim_controller::ClaimController;
use crate::actors::controllers::leader_election::Leadership;
use crate::actors::controllers::resource_claim::CONTROLLER_NAME;
use crate::actors::ports::resource_claims::ObjectKey;
use crate::actors::text::plain;
use crate::adapters::kube::WatchProblems;
use crate::agent::admin::{FormatQuery, negotiate};
use crate::agent::error_text::{MAX_ECHO_BYTES, MAX_PROBLEM_BYTES};
use crate::metrics::ControllersMetrics;

/// What the endpoints read.
#[derive(Clone)]
pub(super) struct ControllersView {
    pub(super) metrics: ControllersMetrics,
    pub(super) leadership: watch::Receiver<Leadership>,
    /// Whether replicas elect a leader.
    pub(super) is_elected: bool,
    /// The controller of the current term.
    pub(super) controller: watch::Receiver<Option<Arc<ClaimController>>>,
    pub(super) problems: WatchProblems,
}

/// The routes, without any check of the client.
pub(super) fn routes(view: ControllersView) -> Router {
    Router::new()
        .route("/healthz", get(healthz))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics))
        .route("/explain/claim/{namespace}/{name}", get(explain_claim))
        .fallback(not_found)
        .method_not_allowed_fallback(not_allowed)
        .with_state(view)
}

async fn healthz(State(view): State<ControllersView>) -> Response {
    // The election publishes until it is stopped. If its task has ended, the lease is no longer renewed.
    if view.leadership.has_changed().is_err() {
        return (StatusCode::INTERNAL_SERVER_ERROR, "the election of the leader has ended\n").into_response();
    }
    "ok\n".into_response()
}

/// A replica that follows is ready too: it takes over when the leader ends.
async fn readyz(State(view): State<ControllersView>) -> Response {
    let mut missing = Vec::new();
    let state = match &*view.leadership.borrow() {
        Leadership::Leading { .. } if view.is_elected => "leading",
        Leadership::Leading { .. } => "off",
        Leadership::Following { problem, .. } => {
            missing.extend(problem.as_ref().map(|problem| plain(problem, MAX_PROBLEM_BYTES).into_owned()));
            "following"
        }
    };
    if let Some(controller) = &*view.controller.borrow()
        && !controller.is_synced()
    {
        missing.push("the first lists of the watches are not complete".to_owned());
        missing.extend(view.problems.lines().iter().map(|line| plain(line, MAX_PROBLEM_BYTES).into_owned()));
    }
    let election = format!("leaderelection {CONTROLLER_NAME}: {state}\n");
    if missing.is_empty() {
        return format!("ok\n{election}").into_response();
    }
    (StatusCode::SERVICE_UNAVAILABLE, format!("{}\n{election}", missing.join("\n"))).into_response()
}

async fn metrics(State(view): State<ControllersView>, headers: HeaderMap) -> Response {
    let accept = headers.get(ACCEPT).and_then(|accept| accept.to_str().ok()).unwrap_or_default();
    let format = negotiate(accept);
    ([(CONTENT_TYPE, format.content_type())], view.metrics.encode(format)).into_response()
}

/// Explains a claim, also one that does not exist. Only the leader knows the claims.
async fn explain_claim(
    State(view): State<ControllersView>,
    Path((namespace, name)): Path<(String, String)>,
    Query(form): Query<FormatQuery>,
    headers: HeaderMap,
) -> Response {
    let json = match form.json(&headers) {
        Ok(json) => json,
        Err(why) => return (StatusCode::BAD_REQUEST, why).into_response(),
    };
    let Some(controller) = view.controller.borrow().clone() else {
        return (StatusCode::SERVICE_UNAVAILABLE, not_leading(&view.leadership.borrow())).into_response();
    };
    // The search for the pods of a claim takes milliseconds in a large cluster.
    match spawn_blocking(move || controller.explain(&ObjectKey::new(&namespace, &name))).await {
        Ok(explanation) if json => Json(explanation).into_response(),
        Ok(explanation) => explanation.to_string().into_response(),
        Err(_) => (StatusCode::INTERNAL_SERVER_ERROR, "the explanation panicked\n").into_response(),
    }
}

fn not_leading(leadership: &Leadership) -> String {
    let leader = match leadership {
        Leadership::Following { holder: Some(holder), .. } => format!(", which is {}", plain(holder, MAX_ECHO_BYTES)),
        Leadership::Following { holder: None, .. } | Leadership::Leading { .. } => String::new(),
    };
    format!("this replica does not lead, so it has read no claims: run the command on the leader{leader}\n")
}

async fn not_found(uri: Uri) -> Response {
    let path = plain(uri.path(), MAX_ECHO_BYTES);
    let why = format!(
        "no endpoint at {path}: the endpoints of controllers are /healthz, /readyz, /metrics and \
         /explain/claim/NAMESPACE/NAME\n"
    );
    (StatusCode::NOT_FOUND, why).into_response()
}

async fn not_allowed(uri: Uri) -> Response {
    let path = plain(uri.path(), MAX_ECHO_BYTES);
    (StatusCode::METHOD_NOT_ALLOWED, format!("{path} is read only: use GET\n")).into_response()
}
