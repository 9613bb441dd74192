//! Reads the log of one run of a container for a client, and follows it until the run ends.

mod selection;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use futures_util::stream::unfold;
use k8s_openapi::api::core::v1::PodStatus;
use tokio::task::spawn_blocking;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::shares::{FullShare, Share, ShareLimits, Shares};
use podwright_host::log::LogDir;
use podwright_host::log::reader::{LogRead, ReadOptions, Reader, runs};
use podwright_host::storage::FileStorage;
use podwright_metrics::{NodeApiMetrics, NodeApiResource};
use podwright_model::ids::{FullName, PodUid};
use podwright_model::pod::PodObject;
use podwright_model::text::{error_chain, reason};
pub use selection::NoRun;
use selection::{is_running, select_run};

use super::served_node::ServedNode;

/// How often a followed log is read again at its end.
const FOLLOW_INTERVAL: Duration = Duration::from_millis(200);

/// Reads the logs of a node's containers, and limits how many are read at a time. Each one holds open files and a buffer. Clones share
/// the limit.
#[derive(Clone)]
pub struct LogReaders {
    node: Arc<dyn ServedNode>,
    /// Finds the log directories of containers.
    storage: FileStorage,
    readers: Shares,
    /// Cancelled when the agent stops. It ends the answers that follow a log.
    stopping: CancellationToken,
}

/// Which run and which part of its log to read.
#[derive(Clone, Copy, Debug, Default)]
pub struct LogRequest {
    /// Whether to read the run before the newest one.
    pub previous: bool,
    /// Whether the answer continues until the run ends.
    pub follow: bool,
    /// Which lines of the log to read.
    pub options: ReadOptions,
    /// The most bytes that are sent.
    pub limit: Option<u64>,
}

/// Why a log cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OpenLogError {
    /// The container has no such run.
    NoRun(NoRun),
    /// The log does not exist, or cannot be read.
    NoLog(String),
}

/// The right to read one log. Other clients can read again when it is dropped.
#[derive(Debug)]
pub struct LogPermit(Share);

impl LogReaders {
    /// At most `most` readers of the logs of this node. Answers that follow a log end when `stopping` is cancelled.
    pub fn new(node: Arc<dyn ServedNode>, storage: FileStorage, most: usize, stopping: CancellationToken) -> Self {
        let readers = Shares::new(NodeApiResource::Log, ShareLimits::of_node(most), NodeApiMetrics::default());
        LogReaders { node, storage, readers, stopping }
    }

    /// Also limits the readers of each pod and of each namespace. Refusals are counted in these metrics.
    #[must_use]
    pub fn shares(self, limits: ShareLimits, metrics: NodeApiMetrics) -> Self {
        LogReaders { readers: Shares::new(NodeApiResource::Log, limits, metrics), ..self }
    }

    /// Takes the right to read one log of a pod.
    ///
    /// # Errors
    /// [`FullShare`] if too many logs are being read.
    pub fn permit(&self, pod: &FullName) -> Result<LogPermit, FullShare> {
        self.readers.take(pod).map(LogPermit)
    }

    /// Opens the log of a container.
    ///
    /// # Errors
    /// [`OpenLogError`] if there is no log to read.
    pub async fn open(
        &self,
        pod: &PodObject,
        status: Option<&PodStatus>,
        container: &str,
        request: LogRequest,
        LogPermit(permit): LogPermit,
    ) -> Result<OpenLog, OpenLogError> {
        let dir = log_dir(&self.storage, pod, container)?;
        let listed = dir.clone();
        let found = blocking(move || runs(&listed)).await.map_err(|error| unreadable(&dir, &error))?;
        let run = select_run(status, container, request.previous, &found).map_err(OpenLogError::NoRun)?;
        let opened = dir.clone();
        let opened = blocking(move || Reader::open(&opened, run, request.options)).await;
        let reader = opened.map_err(|error| unreadable(&dir, &error))?;
        let follow = request.follow.then(|| FollowedContainer {
            node: self.node.clone(),
            uid: pod.uid().clone(),
            container: container.to_owned(),
            run,
            stopping: self.stopping.clone(),
        });
        let left = request.limit.unwrap_or(u64::MAX);
        Ok(OpenLog { reader: Some(reader), follow, is_last_read: false, left, _permit: permit })
    }
}

fn log_dir(storage: &FileStorage, pod: &PodObject, container: &str) -> Result<LogDir, OpenLogError> {
    let dir = storage.log_dir(pod.full_name(), pod.uid(), container);
    dir.map_err(|error| OpenLogError::NoLog(format!("there is no log: {}", error_chain(&error))))
}

fn unreadable(dir: &LogDir, error: &io::Error) -> OpenLogError {
    let dir = dir.path();
    let dir = dir.display();
    OpenLogError::NoLog(match error.kind() {
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
pub struct OpenLog {
    /// `None` after the end of the answer.
    reader: Option<Reader>,
    /// Present if the answer follows the log.
    follow: Option<FollowedContainer>,
    /// The container has ended. One more read returns the rest of its output.
    is_last_read: bool,
    /// The number of bytes that may still be sent.
    left: u64,
    _permit: Share,
}

/// The container whose log is followed.
struct FollowedContainer {
    node: Arc<dyn ServedNode>,
    uid: PodUid,
    container: String,
    run: u32,
    stopping: CancellationToken,
}

impl FollowedContainer {
    /// Whether the container's run has ended, or the agent stops.
    fn has_ended(&self) -> bool {
        let status = self.node.status(&self.uid);
        self.stopping.is_cancelled() || !status.is_some_and(|status| is_running(&status, &self.container, self.run))
    }
}

impl OpenLog {
    /// The body of the answer.
    pub fn into_body(self) -> Body {
        Body::from_stream(unfold(self, async |mut log: OpenLog| log.next().await.map(|text| (text, log))))
    }

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
                    let text = self.within_limit(text);
                    if self.left > 0 {
                        self.reader = Some(reader);
                    }
                    if !text.is_empty() {
                        return Some(Ok(text.into()));
                    }
                }
                Ok(LogRead::End) if ended && (self.is_last_read || self.follow.is_none()) => {
                    let text = self.within_limit(reader.finish());
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

    fn within_limit(&mut self, mut text: Vec<u8>) -> Vec<u8> {
        text.truncate(usize::try_from(self.left).unwrap_or(usize::MAX));
        self.left -= text.len() as u64;
        text
    }
}
