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

/// The query parameters, by their names in the Kubernetes API. Another parameter is refused: a client that selects lines with it would get
/// the whole log.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub(super) struct LogQuery {
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
        let since = query.since(Timestamp::now())?;
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

#[cfg(test)]
mod tests {
    use super::*;

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
