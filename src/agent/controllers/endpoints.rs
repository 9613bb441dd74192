//! The admin endpoints of the controllers.

use std::fmt;
use std::sync::Arc;

use axum::extract::{Path, Query, State};
use axum::http::header::{ACCEPT, CONTENT_TYPE};
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use podwright_controllers::claim_controller::ClaimController;
use podwright_controllers::device_taint_controller::DeviceTaintController;
use podwright_controllers::leader_election::Leadership;
use podwright_controllers::ports::resource_claims::ObjectKey;
use podwright_parts::StoppedPart;
use serde::Serialize;
use tokio::sync::watch;
use tokio::task::spawn_blocking;

use crate::adapters::kube::WatchProblems;
use crate::agent::admin::FormatQuery;
use crate::agent::cli::ControllerKind;
use crate::agent::error_text::MAX_PROBLEM_BYTES;
use podwright_http_server::{MAX_ECHO_BYTES, negotiate};
use podwright_metrics::ControllersMetrics;
use podwright_model::text::plain;

/// Why a leader without a controller is not ready: the events of its last term are written first.
const STARTING: &str = "the controller is starting";

/// What the endpoints read.
#[derive(Clone)]
pub(super) struct ControllersView {
    pub(super) metrics: ControllersMetrics,
    /// The controllers that this process runs.
    pub(super) controllers: Arc<[ControllerView]>,
}

/// What the endpoints read of one controller.
#[derive(Clone)]
pub(super) struct ControllerView {
    pub(super) kind: ControllerKind,
    pub(super) leadership: watch::Receiver<Leadership>,
    /// Whether replicas elect a leader.
    pub(super) is_elected: bool,
    pub(super) current: CurrentController,
    pub(super) problems: WatchProblems,
}

/// The controller of the current term. There is none while this replica does not lead, and before the term has begun.
#[derive(Clone)]
pub(super) enum CurrentController {
    Claims(watch::Receiver<Option<Arc<ClaimController>>>),
    Taints(watch::Receiver<Option<Arc<DeviceTaintController>>>),
}

impl CurrentController {
    /// Whether the controller has listed all objects. `None` if there is no controller.
    fn is_synced(&self) -> Option<bool> {
        match self {
            CurrentController::Claims(current) => current.borrow().as_ref().map(|controller| controller.is_synced()),
            CurrentController::Taints(current) => current.borrow().as_ref().map(|controller| controller.is_synced()),
        }
    }

    /// The parts of the controller that do not run.
    fn stopped_parts(&self) -> Vec<StoppedPart> {
        match self {
            CurrentController::Claims(current) => {
                current.borrow().as_ref().map(|controller| controller.stopped_parts()).unwrap_or_default()
            }
            CurrentController::Taints(current) => {
                current.borrow().as_ref().map(|controller| controller.stopped_parts()).unwrap_or_default()
            }
        }
    }

    /// Whether a task of the controller has ended, although nobody has stopped it.
    fn has_ended(&self) -> bool {
        match self {
            // The task that runs the terms has the sender.
            CurrentController::Claims(current) => {
                current.has_changed().is_err()
                    || current.borrow().as_ref().is_some_and(|controller| controller.has_ended())
            }
            CurrentController::Taints(current) => {
                current.has_changed().is_err()
                    || current.borrow().as_ref().is_some_and(|controller| controller.has_ended())
            }
        }
    }
}

impl ControllerView {
    /// Why the controller is not ready.
    fn missing(&self) -> Vec<String> {
        let mut missing = Vec::new();
        if let Leadership::Following { problem: Some(problem), .. } = &*self.leadership.borrow() {
            missing.push(plain(problem, MAX_PROBLEM_BYTES).into_owned());
        }
        match self.current.is_synced() {
            Some(false) => missing.push("the first lists of the watches are not complete".to_owned()),
            None if self.leadership.borrow().is_leading() => missing.push(STARTING.to_owned()),
            None | Some(true) => {}
        }
        let stopped = self.current.stopped_parts();
        missing.extend(stopped.iter().map(|part| plain(&part.to_string(), MAX_PROBLEM_BYTES).into_owned()));
        missing.extend(self.problems.lines().iter().map(|line| plain(line, MAX_PROBLEM_BYTES).into_owned()));
        missing
    }

    /// The state of the election in one line.
    fn election(&self) -> String {
        let state = match &*self.leadership.borrow() {
            Leadership::Leading { .. } if self.is_elected => "leading".to_owned(),
            Leadership::Leading { .. } => "off".to_owned(),
            Leadership::Following { holder: Some(holder), .. } => {
                format!("following {}", plain(holder, MAX_ECHO_BYTES))
            }
            Leadership::Following { holder: None, .. } => "following, and no leader is known".to_owned(),
        };
        format!("leaderelection {}: {state}", self.kind.name())
    }

    /// The answer while there is no controller.
    fn not_leading(&self, objects: &str) -> Response {
        let why = match &*self.leadership.borrow() {
            Leadership::Leading { .. } => {
                format!("{STARTING}, so it has read no {objects}: run the command again in a few seconds\n")
            }
            Leadership::Following { holder, address, .. } => {
                let leader = holder.as_ref().map(|holder| format!(", which is {}", leader(holder, address.as_deref())));
                let leader = leader.unwrap_or_default();
                format!(
                    "this replica does not lead, so it has read no {objects}: run the command on the leader{leader}\n"
                )
            }
        };
        (StatusCode::SERVICE_UNAVAILABLE, why).into_response()
    }
}

/// The leader, and where to run a command on it. The identity of a replica begins with the name of its machine or pod.
fn leader(identity: &str, address: Option<&str>) -> String {
    let mut text = plain(identity, MAX_ECHO_BYTES).into_owned();
    if let Some((host, _)) = identity.rsplit_once('_') {
        text.push_str(&format!(", on the machine or in the pod {}", plain(host, MAX_ECHO_BYTES)));
    }
    if let Some(address) = address {
        let address = plain(address, MAX_ECHO_BYTES);
        text.push_str(&format!(
            ", or from here with --admin {address} --admin-ca FILE --admin-token-file FILE, if its certificate has this address"
        ));
    }
    text
}

/// The routes, without any check of the client.
pub(super) fn routes(view: ControllersView) -> Router {
    Router::new()
        .route("/healthz", get(healthz))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics))
        .route("/explain/claim/{namespace}/{name}", get(explain_claim))
        .route("/explain/pod/{namespace}/{name}", get(explain_pod))
        .route("/explain/rule/{name}", get(explain_rule))
        .fallback(not_found)
        .method_not_allowed_fallback(not_allowed)
        .with_state(view)
}

async fn healthz(State(view): State<ControllersView>) -> Response {
    // An election publishes until it is stopped. If its task has ended, the lease is no longer renewed.
    if view.controllers.iter().any(|controller| controller.leadership.has_changed().is_err()) {
        return (StatusCode::INTERNAL_SERVER_ERROR, "the election of the leader has ended\n").into_response();
    }
    // A liveness probe then restarts the process, and another replica leads meanwhile.
    if let Some(ended) = view.controllers.iter().find(|controller| controller.current.has_ended()) {
        let why = format!("the {} has ended\n", ended.kind.name());
        return (StatusCode::INTERNAL_SERVER_ERROR, why).into_response();
    }
    "ok\n".into_response()
}

/// A replica that follows is ready too: it takes over when the leader ends. The problems of each controller come before the state of its
/// election.
async fn readyz(State(view): State<ControllersView>) -> Response {
    let mut is_ready = true;
    let mut lines = Vec::new();
    for controller in view.controllers.iter() {
        let missing = controller.missing();
        is_ready &= missing.is_empty();
        lines.extend(missing);
        lines.push(controller.election());
    }
    let lines = lines.join("\n");
    if is_ready {
        return format!("ok\n{lines}\n").into_response();
    }
    (StatusCode::SERVICE_UNAVAILABLE, format!("{lines}\n")).into_response()
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
    let controller = match view.claims() {
        Ok(controller) => controller,
        Err(refusal) => return refusal,
    };
    explain(&form, &headers, move || controller.explain(&ObjectKey::new(&namespace, &name))).await
}

/// Explains which device taints evict a pod. Only the leader knows them.
async fn explain_pod(
    State(view): State<ControllersView>,
    Path((namespace, name)): Path<(String, String)>,
    Query(form): Query<FormatQuery>,
    headers: HeaderMap,
) -> Response {
    let controller = match view.taints() {
        Ok(controller) => controller,
        Err(refusal) => return refusal,
    };
    explain(&form, &headers, move || controller.explain_pod(&ObjectKey::new(&namespace, &name))).await
}

/// Explains which pods a rule evicts. Only the leader knows them.
async fn explain_rule(
    State(view): State<ControllersView>,
    Path(name): Path<String>,
    Query(form): Query<FormatQuery>,
    headers: HeaderMap,
) -> Response {
    let controller = match view.taints() {
        Ok(controller) => controller,
        Err(refusal) => return refusal,
    };
    explain(&form, &headers, move || controller.explain_rule(&name)).await
}

impl ControllersView {
    /// The ResourceClaim controller, if this replica leads. Otherwise the answer.
    #[expect(clippy::result_large_err, reason = "the error is the answer of the endpoint")]
    fn claims(&self) -> Result<Arc<ClaimController>, Response> {
        let view = self.controller(ControllerKind::Resourceclaim)?;
        let current = match &view.current {
            CurrentController::Claims(current) => current.borrow().clone(),
            CurrentController::Taints(_) => None,
        };
        current.ok_or_else(|| view.not_leading("claims"))
    }

    /// The device taint eviction controller, if this replica leads. Otherwise the answer.
    #[expect(clippy::result_large_err, reason = "the error is the answer of the endpoint")]
    fn taints(&self) -> Result<Arc<DeviceTaintController>, Response> {
        let view = self.controller(ControllerKind::DeviceTaintEviction)?;
        let current = match &view.current {
            CurrentController::Taints(current) => current.borrow().clone(),
            CurrentController::Claims(_) => None,
        };
        current.ok_or_else(|| view.not_leading("taints"))
    }

    #[expect(clippy::result_large_err, reason = "the error is the answer of the endpoint")]
    fn controller(&self, kind: ControllerKind) -> Result<&ControllerView, Response> {
        self.controllers.iter().find(|controller| controller.kind == kind).ok_or_else(|| {
            let why = format!(
                "the {} does not run in this process: use the process that runs it, or add {} to --controllers\n",
                kind.name(),
                kind.flag()
            );
            (StatusCode::NOT_FOUND, why).into_response()
        })
    }
}

/// Answers with an explanation, as text or as JSON. Runs on a blocking thread, because the search for
/// the pods of an object takes milliseconds in a large cluster.
async fn explain<E>(form: &FormatQuery, headers: &HeaderMap, explain: impl FnOnce() -> E + Send + 'static) -> Response
where
    E: Serialize + fmt::Display + Send + 'static,
{
    let json = match form.json(headers) {
        Ok(json) => json,
        Err(why) => return (StatusCode::BAD_REQUEST, why).into_response(),
    };
    match spawn_blocking(explain).await {
        Ok(explanation) if json => Json(explanation).into_response(),
        Ok(explanation) => explanation.to_string().into_response(),
        Err(_) => (StatusCode::INTERNAL_SERVER_ERROR, "the explanation panicked\n").into_response(),
    }
}

async fn not_found(uri: Uri) -> Response {
    let path = plain(uri.path(), MAX_ECHO_BYTES);
    let why = format!(
        "no endpoint at {path}: the endpoints of controllers are /healthz, /readyz, /metrics, /explain/claim/NAMESPACE/NAME, \
         /explain/pod/NAMESPACE/NAME and /explain/rule/NAME\n"
    );
    (StatusCode::NOT_FOUND, why).into_response()
}

async fn not_allowed(uri: Uri) -> Response {
    let path = plain(uri.path(), MAX_ECHO_BYTES);
    (StatusCode::METHOD_NOT_ALLOWED, format!("{path} is read only: use GET\n")).into_response()
}

#[cfg(test)]
mod tests {
    use axum::body::to_bytes;
    use axum::http::Request;
    use kube::Client;
    use kube::client::Body;
    use podwright_controllers::claim_controller::{ClaimControllerConfig, ClaimControllerPorts};
    use podwright_controllers::leader_election::LeaseGuard;

    use super::*;
    use crate::adapters::kube::{ClaimTerms, KubeResourceClaims};
    use podwright_ports::{SystemClock, TokioClock};

    /// After a lost lease, the next term begins when the events of the last one are written.
    #[tokio::test]
    async fn leader_without_a_controller_is_not_ready() {
        let no_server = tower::service_fn(|_: Request<Body>| {
            std::future::pending::<Result<axum::http::Response<Body>, std::io::Error>>()
        });
        let (client, metrics) = (Client::new(no_server, "default"), ControllersMetrics::new());
        let wall = Arc::new(SystemClock::new());
        let api = Arc::new(KubeResourceClaims::new(client.clone(), wall, metrics.events.clone()));
        let (clock, lease) = (Arc::new(TokioClock::new()), LeaseGuard::without_election());
        let ports = ClaimControllerPorts { api, clock, metrics, lease };
        let terms = ClaimTerms::new(client, ClaimControllerConfig::default(), ports);
        let follows = Leadership::Following { holder: Some("other_1".to_owned()), address: None, problem: None };
        for (leadership, missing, answer) in [
            (Leadership::Leading { term: 1 }, &[STARTING][..], "the controller is starting, so it has read no claims"),
            (
                follows,
                &[][..],
                "this replica does not lead, so it has read no claims: run the command on the leader, which is other_1",
            ),
        ] {
            let (_leads, leadership) = watch::channel(leadership);
            let view = ControllerView {
                kind: ControllerKind::Resourceclaim,
                leadership,
                is_elected: true,
                current: CurrentController::Claims(terms.current()),
                problems: terms.problems(),
            };
            assert_eq!(view.missing(), missing);
            let body = to_bytes(view.not_leading("claims").into_body(), 4096).await.unwrap();
            let body = String::from_utf8_lossy(&body);
            assert!(body.starts_with(answer), "{body}");
        }
    }
}
