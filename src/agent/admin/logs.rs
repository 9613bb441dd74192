//! `/logs/NAMESPACE/NAME`: the log of a container, with the query parameters of the Kubernetes API's `pods/log`.

mod selection;

use std::sync::Arc;
use std::time::Duration;

use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::PodStatus;
use serde::Deserialize;
use tokio::task::spawn_blocking;
use tokio_util::sync::CancellationToken;

use crate::adapters::log::reader::ReadOptions;
use crate::agent::error_text::MAX_PROBLEM_BYTES;
use crate::agent::unknown_pod::unknown_pod;
use crate::agent::view::NodeView;
use podwright_actors::explain::PodFacts;
use podwright_core::pod_worker::Lifecycle;
use podwright_model::ids::{FullName, PodUid};
use podwright_model::pod::PodObject;
use podwright_model::text::plain;
use podwright_node_api::{LogPermit, LogReaders, LogRequest, OpenLog, OpenLogError};
use selection::{no_run, select_container};

/// How many logs may be read at a time.
pub(super) const MAX_READERS: usize = 64;

/// The query parameters, by their names in the Kubernetes API. Another parameter is refused: a client that selects lines with it would get
/// the whole log.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub(super) struct LogQuery {
    /// Selects a pod among those of one name. The Kubernetes API does not have this parameter.
    uid: Option<String>,
    container: Option<String>,
    follow: bool,
    previous: bool,
    timestamps: bool,
    tail_lines: Option<u64>,
    since_seconds: Option<u64>,
    since_time: Option<String>,
}

impl LogQuery {
    /// The time from which on lines are printed.
    fn since(&self, now: Timestamp) -> Result<Option<Timestamp>, LogRefusal> {
        match (self.since_seconds, self.since_time.as_deref()) {
            (None, None) => Ok(None),
            (Some(seconds), None) => Ok(Some(now.checked_sub(Duration::from_secs(seconds)).unwrap_or(Timestamp::MIN))),
            (None, Some(time)) => time.parse().map(Some).map_err(|_| {
                LogRefusal::Bad(format!(
                    "bad query parameter: sinceTime: {time:?} is not a time: write one such as 2026-11-21T20:30:00Z"
                ))
            }),
            (Some(_), Some(_)) => {
                Err(LogRefusal::Bad("sinceSeconds and sinceTime exclude each other: leave out one of them".into()))
            }
        }
    }
}

/// Why a log cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
enum LogRefusal {
    /// The pod, the container or the log does not exist.
    NotFound(String),
    /// The request is wrong, or the container has not started.
    Bad(String),
}

impl IntoResponse for LogRefusal {
    fn into_response(self) -> Response {
        let (status, why) = match self {
            LogRefusal::NotFound(why) => (StatusCode::NOT_FOUND, why),
            LogRefusal::Bad(why) => (StatusCode::BAD_REQUEST, why),
        };
        let why: String = why.trim_end().lines().map(|line| format!("{}\n", plain(line, MAX_PROBLEM_BYTES))).collect();
        (status, why).into_response()
    }
}

/// Answers requests for logs. Clones share the limit on readers.
#[derive(Clone)]
pub(super) struct LogsEndpoint {
    readers: LogReaders,
}

impl LogsEndpoint {
    pub(super) fn new(view: &NodeView, stopping: CancellationToken) -> Self {
        LogsEndpoint { readers: LogReaders::new(Arc::new(view.clone()), view.logs.clone(), MAX_READERS, stopping) }
    }

    pub(super) async fn answer(
        self,
        State(view): State<NodeView>,
        Path((namespace, name)): Path<(String, String)>,
        query: Result<Query<LogQuery>, QueryRejection>,
    ) -> Response {
        let query = match query {
            Ok(Query(query)) => query,
            Err(error) => {
                let text = error.body_text();
                let cause = text.strip_prefix("Failed to deserialize query string: ").unwrap_or(&text);
                return LogRefusal::Bad(format!("bad query parameter: {cause}")).into_response();
            }
        };
        let name = FullName::new(&namespace, &name);
        let permit = match self.readers.permit(&name) {
            Ok(permit) => permit,
            Err(full) => return full.into_response(),
        };
        match self.open(view, &name, query, permit).await {
            Ok(log) => ([(CONTENT_TYPE, "text/plain; charset=utf-8")], log.into_body()).into_response(),
            Err(refusal) => refusal.into_response(),
        }
    }

    async fn open(
        self,
        view: NodeView,
        name: &FullName,
        query: LogQuery,
        permit: LogPermit,
    ) -> Result<OpenLog, LogRefusal> {
        let (name, uid) = (name.clone(), query.uid.as_deref().map(PodUid::new));
        let found = spawn_blocking(move || find(&view, name, uid.as_ref())).await;
        let (pod, status) = found.unwrap_or_else(|error| Err(LogRefusal::NotFound(error.to_string())))?;
        let container = select_container(&pod, query.container.as_deref())?;
        let since = query.since(Timestamp::now())?;
        let options =
            ReadOptions { tail: query.tail_lines, since, timestamps: query.timestamps, ..ReadOptions::default() };
        let request = LogRequest { previous: query.previous, follow: query.follow, options, limit: None };
        let opened = self.readers.open(&pod, status.as_deref(), &container, request, permit).await;
        opened.map_err(|error| match error {
            OpenLogError::NoRun(why) => no_run(&pod, &container, &why),
            OpenLogError::NoLog(why) => LogRefusal::NotFound(why),
        })
    }
}

/// The pod of a request, and its status. Blocks.
fn find(view: &NodeView, name: FullName, uid: Option<&PodUid>) -> Result<FoundPod, LogRefusal> {
    let name = view.meant(name);
    let mut named = view.node.explainer().named(&name).into_iter();
    match named.find(|pod| uid.is_none_or(|uid| pod.uid == *uid)) {
        Some(PodFacts { object: Some(pod), status, .. }) => Ok((pod, status)),
        Some(pod) => Err(LogRefusal::NotFound(without_object(&pod))),
        None => Err(LogRefusal::NotFound(unknown_pod(view.node.explainer(), &name, uid))),
    }
}

type FoundPod = (Arc<PodObject>, Option<Arc<PodStatus>>);

/// Why a pod of which the agent has no object has no logs.
fn without_object(pod: &PodFacts) -> String {
    let why = match pod.lifecycle() {
        Some(Lifecycle::Waiting | Lifecycle::Sync | Lifecycle::Terminating) => {
            "is known to the container runtime only: the agent stops it, and does not know its containers by name"
        }
        Some(Lifecycle::Terminated | Lifecycle::Finished) | None => {
            "was removed and has ended: its logs are removed too"
        }
    };
    format!("pod {} with UID {} {why}", pod.full_name, pod.uid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn removed_pod_is_no_unknown_pod() {
        let pod = PodFacts::named(PodUid::new("u"), FullName::new("default", "web"));
        assert_eq!(
            without_object(&pod),
            "pod default/web with UID u was removed and has ended: its logs are removed too"
        );
    }

    #[test]
    fn lines_are_selected_by_age_or_by_time() {
        let since = |query: &str| {
            let Query(query) = Query::<LogQuery>::try_from_uri(&format!("/?{query}").parse().unwrap()).unwrap();
            query.since(Timestamp::from_second(1000).unwrap())
        };
        for (query, second) in [
            ("sinceSeconds=100", 900),
            ("sinceTime=1970-01-01T00:00:05Z", 5),
            ("sinceTime=1970-01-01T01:00:05%2B01:00", 5),
        ] {
            assert_eq!(since(query), Ok(Some(Timestamp::from_second(second).unwrap())), "{query}");
        }
        assert_eq!(since("tailLines=1"), Ok(None));
        assert_eq!(since("sinceSeconds=18446744073709551615"), Ok(Some(Timestamp::MIN)));
        for query in ["sinceTime=5m", "sinceTime=", "sinceSeconds=1&sinceTime=1970-01-01T00:00:05Z"] {
            assert!(matches!(since(query), Err(LogRefusal::Bad(why)) if why.contains("sinceTime")), "{query}");
        }
    }
}
