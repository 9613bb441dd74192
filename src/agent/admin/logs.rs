//! `/logs/NAMESPACE/NAME`: what a container wrote, with the parameters of the API's `pods/log`.

mod choice;

use std::io;
use std::path::PathBuf;
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
use crate::actors::text::plain;
use crate::adapters::log::reader::{LogRead, ReadOptions, Reader, runs};
use crate::agent::explain::{PROBLEM, unknown};
use crate::agent::root::reason;
use crate::agent::view::View;
use choice::{container_of, is_running, run_of};

/// How many logs may be read at a time: each holds files open and a buffer.
pub(super) const SEATS: usize = 64;
/// How often a log that is followed is looked at.
const LOOK: Duration = Duration::from_millis(200);

/// What is asked for, by the names of the API.
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

/// Why there is nothing to read.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Refusal {
    /// It is not there.
    NotFound(String),
    /// It cannot be asked for like this, or not now.
    Bad(String),
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let (status, why) = match self {
            Refusal::NotFound(why) => (StatusCode::NOT_FOUND, why),
            Refusal::Bad(why) => (StatusCode::BAD_REQUEST, why),
        };
        let why: String = why.trim_end().lines().map(|line| format!("{}\n", plain(line, PROBLEM))).collect();
        (status, why).into_response()
    }
}

/// Who reads logs.
#[derive(Clone)]
pub(super) struct Logs {
    seats: Arc<Semaphore>,
    /// The end of the agent ends who follows.
    stopping: CancellationToken,
}

impl Logs {
    pub(super) fn new(stopping: CancellationToken) -> Self {
        Logs { seats: Arc::new(Semaphore::new(SEATS)), stopping }
    }

    pub(super) async fn answer(
        self,
        State(view): State<View>,
        Path((namespace, name)): Path<(String, String)>,
        query: Result<Query<LogQuery>, QueryRejection>,
    ) -> Response {
        let query = match query {
            Ok(Query(query)) => query,
            Err(error) => return Refusal::Bad(error.body_text()).into_response(),
        };
        let Ok(seat) = self.seats.clone().try_acquire_owned() else {
            let why = format!("{SEATS} logs are being read: end one of them, or ask again when one is done\n");
            return (StatusCode::TOO_MANY_REQUESTS, [(RETRY_AFTER, "1")], why).into_response();
        };
        match self.open(view, &FullName::new(&namespace, &name), query, seat).await {
            Ok(open) => {
                let text = unfold(open, async |mut open: Open| open.next().await.map(|text| (text, open)));
                ([(CONTENT_TYPE, "text/plain; charset=utf-8")], Body::from_stream(text)).into_response()
            }
            Err(refusal) => refusal.into_response(),
        }
    }

    async fn open(
        self,
        view: View,
        name: &FullName,
        query: LogQuery,
        seat: OwnedSemaphorePermit,
    ) -> Result<Open, Refusal> {
        let Some(PodFacts { uid, object: Some(pod), status, .. }) = view.node.explainer.named(name).into_iter().next()
        else {
            let name = name.clone();
            let why = spawn_blocking(move || unknown(&view.node.explainer, &name, None)).await;
            return Err(Refusal::NotFound(why.unwrap_or_else(|error| error.to_string())));
        };
        let container = container_of(&pod, query.container.as_deref())?;
        let dir = place(&view, &pod, &container)?;
        let there = dir.clone();
        let found = blocking(move || runs(&there)).await.map_err(|error| unreadable(&dir, &error))?;
        let run = run_of(&pod, status.as_deref(), &container, query.previous, &found)?;
        let since = query.since_seconds.map(|seconds| {
            let ago = Timestamp::now().checked_sub(Duration::from_secs(seconds));
            ago.unwrap_or(Timestamp::MIN)
        });
        let ask = ReadOptions { tail: query.tail_lines, since, timestamps: query.timestamps };
        let there = dir.clone();
        let reader = blocking(move || Reader::open(there, run, ask)).await.map_err(|error| unreadable(&dir, &error))?;
        let until = query.follow.then_some(Until { view, uid, container, run, stopping: self.stopping });
        Ok(Open { reader: Some(reader), until, is_last_look: false, _seat: seat })
    }
}

fn place(view: &View, pod: &PodObject, container: &str) -> Result<PathBuf, Refusal> {
    let dir = view.logs.log_dir(pod.full_name(), pod.uid(), container);
    dir.map_err(|error| Refusal::NotFound(format!("there is no log: {error}")))
}

fn unreadable(dir: &std::path::Path, error: &io::Error) -> Refusal {
    let dir = dir.display();
    Refusal::NotFound(match error.kind() {
        io::ErrorKind::NotFound => {
            format!("there is no log in {dir}: it was removed, or the runtime of this agent writes none")
        }
        _ => format!("the log in {dir} cannot be read: {}", reason(error)),
    })
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<T> {
    spawn_blocking(work).await.unwrap_or_else(|error| Err(io::Error::other(error)))
}

/// A log that is being read. Nothing is read that nobody takes.
struct Open {
    /// None once its end was told.
    reader: Option<Reader>,
    /// For how long to go on at its end; not at all if absent.
    until: Option<Until>,
    /// The container has ended: what it wrote before is there, or all but.
    is_last_look: bool,
    _seat: OwnedSemaphorePermit,
}

struct Until {
    view: View,
    uid: PodUid,
    container: String,
    run: u32,
    stopping: CancellationToken,
}

impl Until {
    fn is_over(&self) -> bool {
        let status = self.view.node.statuses.get(&self.uid);
        self.stopping.is_cancelled() || !status.is_some_and(|status| is_running(&status, &self.container, self.run))
    }
}

impl Open {
    async fn next(&mut self) -> Option<io::Result<Bytes>> {
        loop {
            let mut reader = self.reader.take()?;
            // Asked before the look: what was written until then is seen by it.
            let over = self.until.as_ref().is_none_or(Until::is_over);
            let read = spawn_blocking(move || (reader.read(), reader)).await;
            let (read, reader) = match read {
                Ok(read) => read,
                Err(error) => return Some(Err(io::Error::other(error))),
            };
            match read {
                Err(error) => {
                    tracing::warn!(%error, "reading a container's log ended early");
                    return Some(Err(error));
                }
                Ok(LogRead::Text(text)) => {
                    self.reader = Some(reader);
                    if !text.is_empty() {
                        return Some(Ok(text.into()));
                    }
                }
                Ok(LogRead::End) if over && (self.is_last_look || self.until.is_none()) => {
                    let text = reader.finish();
                    return (!text.is_empty()).then(|| Ok(text.into()));
                }
                Ok(LogRead::End) => {
                    self.is_last_look = over;
                    self.reader = Some(reader);
                    sleep(LOOK).await;
                }
            }
        }
    }
}
