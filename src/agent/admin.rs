//! The admin endpoints: read only, on a loopback address.

mod pods;

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use axum::extract::{Path, Query, Request, State};
use axum::http::header::{ACCEPT, CONTENT_DISPOSITION, CONTENT_TYPE, HOST};
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use podwright::actors::ids::FullName;
use podwright::metrics::Format;
use serde::Deserialize;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::explain::{Facts, explain, mentions, nearest};
use super::view::View;

/// How long until an address that is taken is tried again.
const RETRY: Duration = Duration::from_secs(10);
/// How old the last housekeeping pass may be, at the least, before the agent counts as ill.
const OLDEST_PASS: Duration = Duration::from_secs(300);

/// Serves until told to stop. An address that cannot be had is told once and tried again: pods do not wait for it.
pub(crate) async fn serve(address: SocketAddr, view: View, stop: CancellationToken) {
    let mut told = false;
    let attempts = async {
        loop {
            match TcpListener::bind(address).await {
                Ok(listener) => {
                    let address = listener.local_addr().unwrap_or(address);
                    tracing::info!(%address, "admin endpoints are served");
                    told = false;
                    if let Err(error) = axum::serve(listener, router(view.clone())).await {
                        tracing::error!(%error, "admin endpoints ended");
                    }
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

fn router(view: View) -> Router {
    Router::new()
        .route("/healthz", get(healthz))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics))
        .route("/pods", get(pods::pods))
        .route("/explain/{namespace}/{name}", get(explain_pod))
        .route("/recording", get(recording))
        .fallback(not_found)
        .method_not_allowed_fallback(not_allowed)
        .layer(from_fn(local_names_only))
        .with_state(view)
}

/// A page in a browser may make its own host name point here; what it asks then carries that name.
async fn local_names_only(request: Request, next: Next) -> Response {
    let host = request.headers().get(HOST).map(|host| host.to_str().unwrap_or_default());
    match host {
        Some(host) if !is_local(host) => {
            let why = format!("{host:?} is not a name of this machine's loopback address: ask by 127.0.0.1\n");
            (StatusCode::FORBIDDEN, why).into_response()
        }
        _ => next.run(request).await,
    }
}

fn is_local(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => host.split(':').next().unwrap_or_default(),
    };
    name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
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
    let mut missing: Vec<String> =
        view.node.desired.missing_sources().iter().map(|source| format!("source {source} has not delivered")).collect();
    if !*view.node.healthy.borrow() {
        missing.push("the container runtime does not answer".to_owned());
    }
    if missing.is_empty() {
        return "ok\n".into_response();
    }
    (StatusCode::SERVICE_UNAVAILABLE, missing.join("\n") + "\n").into_response()
}

async fn metrics(State(view): State<View>, headers: HeaderMap) -> Response {
    let format = Format::from_accept(accept(&headers));
    ([(CONTENT_TYPE, format.content_type())], view.metrics.encode(format)).into_response()
}

#[derive(Deserialize)]
struct Output {
    output: Option<String>,
}

async fn explain_pod(
    State(view): State<View>,
    Path((namespace, name)): Path<(String, String)>,
    Query(Output { output }): Query<Output>,
    headers: HeaderMap,
) -> Response {
    let full_name = FullName::new(&namespace, &name);
    let found = view.named(&full_name);
    let Some((pod, others)) = found.split_first() else {
        return (StatusCode::NOT_FOUND, unknown(&view, &full_name)).into_response();
    };
    let explanation = explain(&Facts {
        now: view.now(),
        pod,
        others,
        find: &|uid| view.pod(uid),
        events: &view.events(&pod.uid),
        problems: &view.problems(),
    });
    match output.as_deref() {
        Some("json") => Json(explanation).into_response(),
        Some("text") => explanation.to_string().into_response(),
        None if accept(&headers).contains("application/json") => Json(explanation).into_response(),
        None => explanation.to_string().into_response(),
        Some(other) => {
            (StatusCode::BAD_REQUEST, format!("there is no output {other:?}: ask for text or json\n")).into_response()
        }
    }
}

/// The flight recorder's memory, as a file.
async fn recording(State(view): State<View>) -> Response {
    let engine = view.node.engine.clone();
    // Sums over megabytes: other requests need not wait for them.
    let Ok(saved) = tokio::task::spawn_blocking(move || engine.recording()).await else {
        return (StatusCode::INTERNAL_SERVER_ERROR, "the recording could not be saved: see the log\n").into_response();
    };
    match saved {
        Some(file) => {
            let name = "attachment; filename=\"podwright.podrec\"";
            ([(CONTENT_TYPE, "application/octet-stream"), (CONTENT_DISPOSITION, name)], file).into_response()
        }
        None => {
            let why = "nothing is recorded: start the agent with a --recording-size other than 0\n";
            (StatusCode::NOT_FOUND, why).into_response()
        }
    }
}

/// Why there is no such pod, as far as can be told.
fn unknown(view: &View, wanted: &FullName) -> String {
    let mut why = format!("there is no pod {wanted}\n");
    for problem in mentions(&view.problems(), wanted.name()) {
        why.push_str(&format!("a manifest that names it cannot be used: {problem}\n"));
    }
    let near = nearest(wanted, view.pods().into_iter().map(|pod| pod.full_name));
    if !near.is_empty() {
        let near: Vec<String> = near.iter().map(ToString::to_string).collect();
        why.push_str(&format!("near to it: {}\n", near.join(", ")));
    }
    why
}

async fn not_found(uri: Uri) -> Response {
    let why = format!(
        "there is nothing at {}: /healthz, /readyz, /metrics, /pods, /explain/NAMESPACE/NAME and /recording are here\n",
        uri.path()
    );
    (StatusCode::NOT_FOUND, why).into_response()
}

async fn not_allowed(uri: Uri) -> Response {
    (StatusCode::METHOD_NOT_ALLOWED, format!("{} can only be read: ask with GET\n", uri.path())).into_response()
}

fn accept(headers: &HeaderMap) -> &str {
    headers.get(ACCEPT).and_then(|accept| accept.to_str().ok()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_loopback_names_are_local() {
        for host in ["127.0.0.1:10255", "localhost:80", "LOCALHOST", "[::1]:80", "127.1.2.3"] {
            assert!(is_local(host), "{host}");
        }
        for host in ["evil.example:10255", "", "10.0.0.1", "[fe80::1]:80", "localhost.evil.example", "127.0.0.1.nip.io"]
        {
            assert!(!is_local(host), "{host}");
        }
    }
}
