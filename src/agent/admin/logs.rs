//! `/logs/NAMESPACE/NAME`: the log of a container, with the query parameters of the Kubernetes API's `pods/log`.

mod selection;

use std::time::Duration;

use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use jiff::Timestamp;
use serde::Deserialize;
use tokio::task::spawn_blocking;
use tokio_util::sync::CancellationToken;

use crate::actors::explain::PodFacts;
use crate::actors::ids::FullName;
use crate::actors::text::plain;
use crate::adapters::log::reader::ReadOptions;
use crate::agent::container_logs::{LogPermit, LogReaders, LogRequest, OpenLog, OpenLogError};
use crate::agent::error_text::MAX_PROBLEM_BYTES;
use crate::agent::unknown_pod::unknown_pod;
use crate::agent::view::NodeView;
use selection::{no_run, select_container};

/// How many logs may be read at a time.
pub(super) const MAX_READERS: usize = 64;

/// The query parameters, by their names in the Kubernetes API.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct LogQuery {
    container: Option<String>,
    follow: bool,
    previous: bool,
    timestamps: bool,
    tail_lines: Option<u64>,
    since_seconds: Option<u64>,
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
    pub(super) fn new(stopping: CancellationToken) -> Self {
        LogsEndpoint { readers: LogReaders::new(MAX_READERS, stopping) }
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
        let Some(permit) = self.readers.permit() else { return self.readers.busy() };
        match self.open(view, &FullName::new(&namespace, &name), query, permit).await {
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
        let Some(PodFacts { object: Some(pod), status, .. }) = view.node.explainer().named(name).into_iter().next()
        else {
            let name = name.clone();
            let why = spawn_blocking(move || unknown_pod(view.node.explainer(), &name, None)).await;
            return Err(LogRefusal::NotFound(why.unwrap_or_else(|error| error.to_string())));
        };
        let container = select_container(&pod, query.container.as_deref())?;
        let since = query.since_seconds.map(|seconds| {
            let ago = Timestamp::now().checked_sub(Duration::from_secs(seconds));
            ago.unwrap_or(Timestamp::MIN)
        });
        let options =
            ReadOptions { tail: query.tail_lines, since, timestamps: query.timestamps, ..ReadOptions::default() };
        let request = LogRequest { previous: query.previous, follow: query.follow, options, limit: None };
        let opened = self.readers.open(view, &pod, status.as_deref(), &container, request, permit).await;
        opened.map_err(|error| match error {
            OpenLogError::NoRun(why) => no_run(&pod, &container, &why),
            OpenLogError::NoLog(why) => LogRefusal::NotFound(why),
        })
    }
}
