//! The endpoints of the node API, and the check of each request before it is routed.

use std::sync::Arc;

use axum::extract::{Path, Query, Request, State};
use axum::http::header::{ACCEPT, CONTENT_LENGTH, CONTENT_TYPE, RETRY_AFTER, X_CONTENT_TYPE_OPTIONS};
use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get, post};
use axum::{Extension, Json, Router};
use k8s_openapi::api::core::v1::NodeSystemInfo;
use serde_json::{Value, json};

use super::access::{Gatekeeper, Refusal};
use super::checkpoint::{Checkpoints, checkpoint};
use super::container_logs::LogReaders;
use super::log_route::container_logs;
use super::pod_list::pod_list;
use super::served_node::ServedNode;
use super::streams::Streams;
use super::{health, stats, stream_routes, web_pages};
use podwright_host::stats::RuntimeStats;
use podwright_host::storage::FileStorage;
use podwright_http_server::{BlockingAnswers, Connection, MAX_ECHO_BYTES, negotiate};
use podwright_metrics::{Format, Metrics};
use podwright_model::text::plain;
use podwright_model::texts::node_api as texts;
use podwright_model::time::Time;
use podwright_ports::{Clock, ContainerState};

/// The largest body of a request. No endpoint reads a body.
const MAX_BODY_BYTES: u64 = 1 << 20;
/// Paths whose answers may take hours.
const LONG_LIVED: &[&str] = &["/exec/", "/attach/", "/portForward/", "/run/", "/containerLogs/", "/checkpoint/"];

/// The ports and the data of the endpoints. Clones share them.
#[derive(Clone)]
pub(super) struct NodeApi {
    pub(super) queries: Arc<dyn ServedNode>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) metrics: Metrics,
    pub(super) storage: FileStorage,
    pub(super) can_register_plugins: Arc<dyn Fn() -> bool + Send + Sync>,
    pub(super) streams: Arc<Streams>,
    pub(super) stats: Arc<dyn RuntimeStats>,
    pub(super) checkpoints: Option<Arc<dyn Checkpoints>>,
    pub(super) meters: Arc<stats::Meters>,
    pub(super) volumes: Arc<stats::VolumeMeter>,
    pub(super) rates: Arc<stats::CpuRates>,
    /// When the agent started to serve the node API.
    pub(super) started: Time,
    /// The name of the node.
    pub(super) node: Arc<str>,
    /// The machine and its software.
    pub(super) system_info: Arc<NodeSystemInfo>,
    pub(super) logs: LogReaders,
    pub(super) blocking: BlockingAnswers,
    /// The answer of `/configz`.
    pub(super) config: Arc<Value>,
}

/// All endpoints, for clients that the gatekeeper admits.
pub(super) fn router(api: NodeApi, gatekeeper: Arc<Gatekeeper>) -> Router {
    let stream = |path: &str| [format!("{path}/{{container}}"), format!("{path}/{{uid}}/{{container}}")];
    let [exec, exec_uid] = stream("/exec/{namespace}/{pod}");
    let [attach, attach_uid] = stream("/attach/{namespace}/{pod}");
    let [run, run_uid] = stream("/run/{namespace}/{pod}");
    let exec_handler = get(stream_routes::exec).post(stream_routes::exec);
    let attach_handler = get(stream_routes::attach).post(stream_routes::attach);
    let forward_handler = get(stream_routes::port_forward).post(stream_routes::port_forward);
    Router::new()
        .route("/healthz", get(healthz))
        .route("/healthz/{check}", get(healthz_check))
        .route("/pods", get(pods))
        .route("/pods/", get(pods))
        .route("/runningpods", get(running_pods))
        .route("/runningpods/", get(running_pods))
        .route("/containerLogs/{namespace}/{pod}/{container}", get(container_logs))
        .route("/checkpoint/{namespace}/{pod}/{container}", post(checkpoint))
        .route("/metrics", get(metrics))
        .route("/metrics/probes", get(probe_metrics))
        .route("/metrics/resource", get(stats::resource_metrics))
        .route("/metrics/cadvisor", get(stats::cadvisor_metrics))
        .route("/stats/summary", get(stats::summary).post(stats::summary))
        .route("/configz", get(configz))
        .route(&exec, exec_handler.clone())
        .route(&exec_uid, exec_handler)
        .route(&attach, attach_handler.clone())
        .route(&attach_uid, attach_handler)
        .route("/portForward/{namespace}/{pod}", forward_handler.clone())
        .route("/portForward/{namespace}/{pod}/{uid}", forward_handler)
        .route(&run, post(stream_routes::run))
        .route(&run_uid, post(stream_routes::run))
        .route("/logs", any(disabled(texts::LOGS_DISABLED)))
        .route("/logs/", any(disabled(texts::LOGS_DISABLED)))
        .route("/logs/{*path}", any(disabled(texts::LOGS_DISABLED)))
        .route("/debug/pprof/", any(disabled(texts::PROFILING_DISABLED)))
        .route("/debug/pprof/{*path}", any(disabled(texts::PROFILING_DISABLED)))
        .route("/debug/flags/v", any(disabled(texts::FLAGS_DISABLED)))
        .fallback(not_found)
        .method_not_allowed_fallback(async || (StatusCode::METHOD_NOT_ALLOWED, "Method Not Allowed"))
        .with_state(api)
        .layer(from_fn_with_state(gatekeeper, check))
}

/// Answers a request only if its user may send it.
async fn check(
    State(gatekeeper): State<Arc<Gatekeeper>>,
    Extension(connection): Extension<Connection>,
    request: Request,
    next: Next,
) -> Response {
    if let Some(refusal) = web_pages::refusal(request.headers()) {
        return refusal;
    }
    let (headers, path) = (request.headers(), request.uri().path());
    let admitted = gatekeeper.admit(connection.client, &connection.peer.0, headers, request.method(), path).await;
    let has_seat = admitted.is_ok() && connection.authenticate();
    let mut response = match refusal(admitted, headers, path, has_seat) {
        Some(refusal) => refusal,
        None => next.run(request).await,
    };
    response.headers_mut().insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

/// The answer to a request that is not routed. A connection without a seat may be closed for a new one, so it gets only short answers.
fn refusal<T>(admitted: Result<T, Refusal>, headers: &HeaderMap, path: &str, has_seat: bool) -> Option<Response> {
    match admitted {
        Err(refusal) => Some(refused(refusal)),
        Ok(_) if body_length(headers) > MAX_BODY_BYTES => {
            let why = format!("the body of the request is larger than {MAX_BODY_BYTES} bytes: send no body\n");
            Some((StatusCode::PAYLOAD_TOO_LARGE, why).into_response())
        }
        Ok(_) if !has_seat && LONG_LIVED.iter().any(|prefix| path.starts_with(prefix)) => {
            let why = "all connections of the node API are in use: close one of them, or try again later\n";
            Some((StatusCode::TOO_MANY_REQUESTS, [(RETRY_AFTER, "1")], why).into_response())
        }
        Ok(_) => None,
    }
}

fn body_length(headers: &HeaderMap) -> u64 {
    headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok()).unwrap_or(0)
}

fn refused(refusal: Refusal) -> Response {
    match refusal {
        Refusal::Unauthorized => (StatusCode::UNAUTHORIZED, texts::UNAUTHORIZED).into_response(),
        Refusal::Forbidden { user, verb, subresources } => {
            (StatusCode::FORBIDDEN, texts::forbidden(&user, verb, &subresources)).into_response()
        }
        Refusal::Undecided { user, verb, subresource } => {
            (StatusCode::INTERNAL_SERVER_ERROR, texts::authorization_error(&user, verb, subresource)).into_response()
        }
        Refusal::Busy => {
            let why =
                "too many clients wait for the API server to review their tokens and permissions: try again later\n";
            (StatusCode::TOO_MANY_REQUESTS, [(RETRY_AFTER, "1")], why).into_response()
        }
    }
}

async fn healthz(State(api): State<NodeApi>, Query(query): Query<Vec<(String, String)>>) -> Response {
    let is_verbose = query.iter().any(|(name, _)| name == "verbose");
    health::all(&health_checks(&api), is_verbose)
}

fn health_checks(api: &NodeApi) -> [health::Check; 4] {
    health::checks(api.queries.is_housekeeping_late(), (api.can_register_plugins)())
}

async fn healthz_check(State(api): State<NodeApi>, Path(name): Path<String>, uri: Uri) -> Response {
    match health::one(&health_checks(&api), &name) {
        Some(answer) => answer,
        None => not_found(uri).await,
    }
}

async fn pods(State(api): State<NodeApi>) -> Response {
    api.queries.adopted().await;
    api.blocking.answer(api.queries, |node| pod_list(&node.pods())).await
}

/// The pods with a container that runs, as the runtime reports them.
async fn running_pods(State(api): State<NodeApi>) -> Response {
    api.blocking.answer(api.queries, |node| Json(running(&**node))).await
}

fn running(node: &dyn ServedNode) -> Value {
    let items = node.pods().into_iter().filter_map(|pod| {
        let status = node.runtime_status(&pod.uid)?;
        let running = status.containers.iter().filter(|run| run.state == ContainerState::Running);
        let containers: Vec<Value> =
            running.map(|run| json!({"name": run.name.as_str(), "image": run.image, "resources": {}})).collect();
        let metadata = json!({"name": pod.full_name.name(), "namespace": pod.full_name.namespace(),
            "uid": pod.uid.to_string()});
        (!containers.is_empty())
            .then(|| json!({"metadata": metadata, "spec": {"containers": containers}, "status": {}}))
    });
    json!({"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": items.collect::<Vec<_>>()})
}

async fn metrics(State(api): State<NodeApi>, headers: HeaderMap) -> Response {
    encoded(&api, &headers, |text, _| text)
}

/// The metrics of probes.
async fn probe_metrics(State(api): State<NodeApi>, headers: HeaderMap) -> Response {
    encoded(&api, &headers, |text, format| families_of(&text, "prober_", format))
}

fn encoded(api: &NodeApi, headers: &HeaderMap, select: impl Fn(String, Format) -> String) -> Response {
    let accept = headers.get(ACCEPT).and_then(|accept| accept.to_str().ok()).unwrap_or_default();
    let format = negotiate(accept);
    ([(CONTENT_TYPE, format.content_type())], select(api.metrics.encode(format), format)).into_response()
}

/// The metrics whose names begin with a prefix.
fn families_of(text: &str, prefix: &str, format: Format) -> String {
    let name = |line: &str| {
        let rest = line.strip_prefix("# ").and_then(|comment| comment.split_once(' ')).map(|(_, rest)| rest.to_owned());
        rest.unwrap_or_else(|| line.to_owned())
    };
    let mut found: String =
        text.lines().filter(|line| name(line).starts_with(prefix)).map(|line| format!("{line}\n")).collect();
    if format == Format::OpenMetrics {
        found.push_str("# EOF\n");
    }
    found
}

async fn configz(State(api): State<NodeApi>) -> Response {
    Json(&*api.config).into_response()
}

/// Refuses every request, as a kubelet whose configuration turns this endpoint off.
fn disabled(why: &'static str) -> (StatusCode, &'static str) {
    (StatusCode::METHOD_NOT_ALLOWED, why)
}

async fn not_found(uri: Uri) -> Response {
    let why = format!("the node API has no endpoint {}\n", plain(uri.path(), MAX_ECHO_BYTES));
    (StatusCode::NOT_FOUND, why).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_without_a_seat_gets_only_short_answers() {
        let code = |path: &str, has_seat| {
            refusal(Ok(()), &HeaderMap::new(), path, has_seat).map(|answer| {
                let retry = answer.headers().get(RETRY_AFTER).map(|after| after.to_str().unwrap().to_owned());
                (answer.status(), retry)
            })
        };
        let busy = Some((StatusCode::TOO_MANY_REQUESTS, Some("1".to_owned())));
        for path in [
            "/exec/n/p/c",
            "/attach/n/p/c",
            "/portForward/n/p",
            "/run/n/p/c",
            "/containerLogs/n/p/c",
            "/checkpoint/n/p/c",
        ] {
            assert_eq!((code(path, false), code(path, true)), (busy.clone(), None), "{path}");
        }
        for path in ["/pods", "/metrics", "/healthz", "/runningpods/"] {
            assert_eq!((code(path, false), code(path, true)), (None, None), "{path}");
        }
        let refused = refusal::<()>(Err(Refusal::Unauthorized), &HeaderMap::new(), "/pods", true);
        assert_eq!(refused.unwrap().status(), StatusCode::UNAUTHORIZED);
    }

    #[test]
    fn metrics_of_probes_are_selected_by_their_names() {
        let text = "# HELP a_prober_ x\n# TYPE a_prober_ counter\na_prober_ 1\n# HELP prober_probe_total y\n\
                    # TYPE prober_probe_total counter\nprober_probe_total{result=\"successful\"} 1\n# EOF\n";
        let classic = families_of(text, "prober_", Format::Classic);
        let expected = "# HELP prober_probe_total y\n# TYPE prober_probe_total counter\n\
                        prober_probe_total{result=\"successful\"} 1\n";
        assert_eq!(classic, expected);
        assert_eq!(families_of(text, "prober_", Format::OpenMetrics), format!("{expected}# EOF\n"));
    }
}
