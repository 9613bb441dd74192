//! `/containerLogs/NAMESPACE/POD/CONTAINER`: the log of a container.

use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use jiff::Timestamp;

use super::container_logs::{NoRun, OpenLogError};
use super::find;
use super::log_query::{self, BadLogQuery};
use super::routes::NodeApi;
use podwright_model::texts::node_api as texts;

pub(super) async fn container_logs(
    State(api): State<NodeApi>,
    Path((namespace, name, container)): Path<(String, String, String)>,
    Query(query): Query<Vec<(String, String)>>,
) -> Response {
    let request = match log_query::parse(&query, Timestamp::now()) {
        Ok(request) => request,
        Err(BadLogQuery::Undecodable) => return (StatusCode::BAD_REQUEST, texts::UNDECODABLE_QUERY).into_response(),
        Err(BadLogQuery::Invalid) => return (StatusCode::UNPROCESSABLE_ENTITY, texts::INVALID_QUERY).into_response(),
    };
    let Some(pod) = find::pod(&*api.queries, &namespace, &name) else {
        return (StatusCode::NOT_FOUND, texts::no_pod(&name)).into_response();
    };
    if pod.has_terminal(&container).is_none() {
        return (StatusCode::NOT_FOUND, texts::no_container(&container, &name)).into_response();
    }
    let permit = match api.logs.permit(pod.object.full_name()) {
        Ok(permit) => permit,
        Err(full) => return full.into_response(),
    };
    let status = pod.status.as_deref();
    match api.logs.open(&pod.object, status, &container, request, permit).await {
        Ok(log) => ([(CONTENT_TYPE, "text/plain; charset=utf-8")], log.into_body()).into_response(),
        Err(error) => (StatusCode::BAD_REQUEST, refusal(error, &container, &name)).into_response(),
    }
}

/// The kubelet's text for a log that cannot be opened.
fn refusal(error: OpenLogError, container: &str, pod: &str) -> String {
    match error {
        OpenLogError::NoLog(why) => why,
        OpenLogError::NoRun(NoRun::NotListed { .. }) => texts::not_available(container, pod),
        OpenLogError::NoRun(NoRun::Waiting { reason, .. }) => {
            texts::waiting_to_start(container, pod, reason.as_deref())
        }
        OpenLogError::NoRun(NoRun::First | NoRun::PreviousRemoved) => texts::no_previous(container, pod),
    }
}
