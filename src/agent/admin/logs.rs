//! `/logs/NAMESPACE/NAME`: the log of a container, with the query parameters of the Kubernetes API's `pods/log`.

mod selection;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::http::header::{CONTENT_TYPE, RETRY_AFTER};
use axum::response::{IntoResponse, Response};
use futures_util::stream::unfold;
use jiff::Timestamp;
use serde::Deserialize;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::spawn_blocking;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::actors::explain::PodFacts;
use crate::actors::ids::{FullName, PodUid};
use crate::actors::pod::PodObject;
use crate::actors::text::{error_chain, plain};
use crate::adapters::log::LogDir;
use crate::adapters::log::reader::{LogRead, ReadOptions, Reader, runs};
use crate::agent::error_text::{MAX_PROBLEM_BYTES, reason};
use crate::agent::unknown_pod::unknown_pod;
use crate::agent::view::NodeView;
use selection::{is_running, select_container, select_run};

/// How many logs may be read at a time. Each one holds open files and a buffer.
pub(super) const MAX_READERS: usize = 64;
/// How often a followed log is read again at its end.
const FOLLOW_INTERVAL: Duration = Duration::from_millis(200);

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

/// Limits how many logs are read at a time.
#[derive(Clone)]
pub(super) struct LogsEndpoint {
    readers: Arc<Semaphore>,
    /// Cancelled when the agent stops. It ends the answers that follow a log.
    stopping: CancellationToken,
}

impl LogsEndpoint {
    pub(super) fn new(stopping: CancellationToken) -> Self {
        LogsEndpoint { readers: Arc::new(Semaphore::new(MAX_READERS)), stopping }
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
        let Ok(permit) = self.readers.clone().try_acquire_owned() else {
            let why = format!(
                "{MAX_READERS} logs are being read, which is the limit: close one of them, or try again later\n"
            );
            return (StatusCode::TOO_MANY_REQUESTS, [(RETRY_AFTER, "1")], why).into_response();
        };
        match self.open(view, &FullName::new(&namespace, &name), query, permit).await {
            Ok(log) => {
                let text = unfold(log, async |mut log: OpenLog| log.next().await.map(|text| (text, log)));
                ([(CONTENT_TYPE, "text/plain; charset=utf-8")], Body::from_stream(text)).into_response()
            }
            Err(refusal) => refusal.into_response(),
        }
    }

    async fn open(
        self,
        view: NodeView,
        name: &FullName,
        query: LogQuery,
        permit: OwnedSemaphorePermit,
    ) -> Result<OpenLog, LogRefusal> {
        let Some(PodFacts { uid, object: Some(pod), status, .. }) =
            view.node.explainer().named(name).into_iter().next()
        else {
            let name = name.clone();
            let why = spawn_blocking(move || unknown_pod(view.node.explainer(), &name, None)).await;
            return Err(LogRefusal::NotFound(why.unwrap_or_else(|error| error.to_string())));
        };
        let container = select_container(&pod, query.container.as_deref())?;
        let dir = log_dir(&view, &pod, &container)?;
        let listed = dir.clone();
        let found = blocking(move || runs(&listed)).await.map_err(|error| unreadable(&dir, &error))?;
        let run = select_run(&pod, status.as_deref(), &container, query.previous, &found)?;
        let since = query.since_seconds.map(|seconds| {
            let ago = Timestamp::now().checked_sub(Duration::from_secs(seconds));
            ago.unwrap_or(Timestamp::MIN)
        });
        let options = ReadOptions { tail: query.tail_lines, since, timestamps: query.timestamps };
        let opened = dir.clone();
        let reader =
            blocking(move || Reader::open(&opened, run, options)).await.map_err(|error| unreadable(&dir, &error))?;
        let follow = query.follow.then_some(FollowedContainer { view, uid, container, run, stopping: self.stopping });
        Ok(OpenLog { reader: Some(reader), follow, is_last_read: false, _permit: permit })
    }
}

fn log_dir(view: &NodeView, pod: &PodObject, container: &str) -> Result<LogDir, LogRefusal> {
    let dir = view.logs.log_dir(pod.full_name(), pod.uid(), container);
    dir.map_err(|error| LogRefusal::NotFound(format!("there is no log: {}", error_chain(&error))))
}

fn unreadable(dir: &LogDir, error: &io::Error) -> LogRefusal {
    let dir = dir.path();
    let dir = dir.display();
    LogRefusal::NotFound(match error.kind() {
        io::ErrorKind::NotFound => {
            format!("there is no log in {dir}: it was removed, or this agent's runtime writes no logs")
        }
        _ => format!("the log in {dir} cannot be read: {}", reason(error)),
    })
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<T> {
    spawn_blocking(work).await.unwrap_or_else(|error| Err(io::Error::other(error)))
}

/// A log that a client reads. The next part is read only when the client has taken the part before.
struct OpenLog {
    /// `None` after the end of the answer.
    reader: Option<Reader>,
    /// Present if the answer follows the log.
    follow: Option<FollowedContainer>,
    /// The container has ended. One more read returns the rest of its output.
    is_last_read: bool,
    _permit: OwnedSemaphorePermit,
}

/// The container whose log is followed.
struct FollowedContainer {
    view: NodeView,
    uid: PodUid,
    container: String,
    run: u32,
    stopping: CancellationToken,
}

impl FollowedContainer {
    /// Whether the container's run has ended, or the agent stops.
    fn has_ended(&self) -> bool {
        let status = self.view.node.statuses().get(&self.uid);
        self.stopping.is_cancelled() || !status.is_some_and(|status| is_running(&status, &self.container, self.run))
    }
}

impl OpenLog {
    async fn next(&mut self) -> Option<io::Result<Bytes>> {
        loop {
            let mut reader = self.reader.take()?;
            // This is checked before the read, so that the last read includes everything that the container wrote before
            // it ended.
            let ended = self.follow.as_ref().is_none_or(FollowedContainer::has_ended);
            let read = spawn_blocking(move || (reader.read(), reader)).await;
            let (read, reader) = match read {
                Ok(read) => read,
                Err(error) => return Some(Err(io::Error::other(error))),
            };
            match read {
                Err(error) => {
                    tracing::warn!(%error, "cannot read the rest of a container's log");
                    return Some(Err(error));
                }
                Ok(LogRead::Text(text)) => {
                    self.reader = Some(reader);
                    if !text.is_empty() {
                        return Some(Ok(text.into()));
                    }
                }
                Ok(LogRead::End) if ended && (self.is_last_read || self.follow.is_none()) => {
                    let text = reader.finish();
                    return (!text.is_empty()).then(|| Ok(text.into()));
                }
                Ok(LogRead::End) => {
                    self.is_last_read = ended;
                    self.reader = Some(reader);
                    sleep(FOLLOW_INTERVAL).await;
                }
            }
        }
    }
}
