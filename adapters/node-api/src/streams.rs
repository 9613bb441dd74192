//! The answers to `/exec`, `/attach` and `/portForward`, after the request was authorized and its container was found.
//!
//! | runtime | client | served by |
//! |---|---|---|
//! | with a streaming server | SPDY, or WebSocket of version 4 | `tunnel`: forwards the request and copies bytes |
//! | with a streaming server | WebSocket of version 5, or SPDY in WebSocket | `websocket` here, and SPDY to the runtime (`remote`) |
//! | without one | SPDY or WebSocket | `command`, `ports` |
//!
//! A kubelet of 1.36 does the same (KEP-4006): streaming servers of runtimes speak no WebSocket of version 5.

mod command;
mod ports;
mod remote;
mod run;
mod runtime_connection;
mod tunnel;
mod upgrade;
mod websocket;

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::Request;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

use super::shares::{FullShare, Share, ShareLimits, Shares};
use super::spdy::{self, Frame};
use command::CommandStreams;
use podwright_host::streaming::{LocalSession, Opened, StreamError, StreamingRuntime};
use podwright_metrics::{Metrics, NodeApiMetrics, NodeApiResource, StreamSubresource, StreamingMetrics};
use podwright_model::ids::FullName;
use podwright_model::text::{error_chain, plain};
use podwright_model::texts::streams::UPGRADE_REQUIRED;
use podwright_ports::RuntimeError;
use upgrade::Upgrade;

/// The stream that a client requests.
pub use podwright_host::streaming::StreamRequest as Stream;

/// How many streams may be open at once. Each one holds a few buffers and, for a command of the process runtime, a process.
const SHARES: ShareLimits = ShareLimits { pod: 16, namespace: 64, node: 256, reserve: 64 };
/// How long a stream may have data in neither direction (`streamingConnectionIdleTimeout`, kubelet 1.36). Pings are not data.
pub const IDLE_LIMIT: Duration = Duration::from_secs(4 * 60 * 60);
/// How long a client may take to create its streams (`DefaultStreamCreationTimeout`, kubelet 1.36).
const CREATION_LIMIT: Duration = Duration::from_secs(30);
/// How long the agent waits for the client to close a connection that has ended.
pub(super) const LINGER: Duration = Duration::from_secs(5);
/// The longest error text in an answer.
const MAX_ERROR_BYTES: usize = 4 << 10;

/// Serves the streams of one runtime.
pub struct Streams {
    runtime: Arc<dyn StreamingRuntime>,
    sessions: Shares,
    metrics: StreamingMetrics,
}

impl Streams {
    /// Serves the streams of this runtime. The number of open streams is limited, for each pod, each namespace and the node.
    pub fn new(runtime: Arc<dyn StreamingRuntime>) -> Self {
        let sessions = Shares::new(NodeApiResource::Stream, SHARES, NodeApiMetrics::default());
        Streams { runtime, sessions, metrics: StreamingMetrics::default() }
    }

    /// Counts the requests in these metrics.
    #[must_use]
    pub fn metrics(self, metrics: &Metrics) -> Self {
        let sessions = Shares::new(NodeApiResource::Stream, SHARES, metrics.node_api.clone());
        Streams { sessions, metrics: metrics.streaming.clone(), ..self }
    }

    /// Opens the stream of a pod at the runtime and upgrades the connection of the client. The server of the connection must support
    /// upgrades.
    pub async fn serve(&self, request: Request, pod: &FullName, stream: Stream) -> Response {
        let upgrade = match Upgrade::of(request) {
            Ok(upgrade) => upgrade,
            Err(refusal) => return refusal.into_response(),
        };
        if upgrade.is_translated(&stream) {
            self.metrics.websocket_request(subresource(&stream));
        }
        let permit = match self.sessions.take(pod) {
            Ok(permit) => permit,
            Err(full) => return Refusal::Busy(full).into_response(),
        };
        let streams = CommandStreams::of(&stream);
        let target = SessionTarget::of(&stream);
        let opened = match self.runtime.open(stream).await {
            Ok(opened) => opened,
            Err(error) => return Refusal::from(error).into_response(),
        };
        let answer = match opened {
            Opened::Url(url) => remote::serve(upgrade, &url, streams, permit).await,
            Opened::Local(LocalSession::Command(start)) => {
                command::serve(upgrade, start, streams, target, permit).await
            }
            Opened::Local(LocalSession::Ports(pod)) => ports::serve(upgrade, pod, target, permit).await,
        };
        answer.unwrap_or_else(IntoResponse::into_response)
    }
}

fn subresource(stream: &Stream) -> StreamSubresource {
    match stream {
        Stream::Exec { .. } => StreamSubresource::Exec,
        Stream::Attach { .. } => StreamSubresource::Attach,
        Stream::PortForward { .. } => StreamSubresource::PortForward,
    }
}

/// The command or the port that the texts of errors name.
#[derive(Clone, Debug)]
enum SessionTarget {
    Exec(Vec<String>),
    Attach,
    Ports { sandbox: String, ports: Vec<u16> },
}

impl SessionTarget {
    fn of(stream: &Stream) -> Self {
        match stream {
            Stream::Exec { command, .. } => SessionTarget::Exec(command.clone()),
            Stream::Attach { .. } => SessionTarget::Attach,
            Stream::PortForward { sandbox, ports } => {
                SessionTarget::Ports { sandbox: sandbox.as_str().to_owned(), ports: ports.clone() }
            }
        }
    }
}

/// Why a request is not upgraded.
#[derive(Debug)]
enum Refusal {
    /// The request has no upgrade.
    UpgradeRequired,
    /// The client speaks no protocol of the agent. The text names the protocols of both sides.
    Protocol(String),
    /// Too many streams are open.
    Busy(FullShare),
    /// The runtime does not open the stream.
    Runtime(StreamError),
    /// The streaming server of the runtime cannot be used.
    Server(String),
    /// The streaming server of the runtime refused the request.
    Answered(Box<Response>),
}

impl From<StreamError> for Refusal {
    fn from(error: StreamError) -> Self {
        Refusal::Runtime(error)
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let text = |text: &str| plain(text, MAX_ERROR_BYTES).to_string();
        match self {
            Refusal::UpgradeRequired => (StatusCode::BAD_REQUEST, UPGRADE_REQUIRED).into_response(),
            Refusal::Protocol(why) => (StatusCode::FORBIDDEN, text(&why)).into_response(),
            Refusal::Busy(full) => full.into_response(),
            Refusal::Runtime(error) => {
                let code = match &error {
                    StreamError::Runtime(RuntimeError::NotFound(_)) => StatusCode::NOT_FOUND,
                    StreamError::Refused(_) => StatusCode::BAD_REQUEST,
                    StreamError::Unsupported => StatusCode::NOT_IMPLEMENTED,
                    StreamError::Runtime(_) => StatusCode::INTERNAL_SERVER_ERROR,
                };
                (code, text(&error_chain(&error).to_string())).into_response()
            }
            Refusal::Server(why) => (StatusCode::INTERNAL_SERVER_ERROR, text(&why)).into_response(),
            Refusal::Answered(answer) => *answer,
        }
    }
}

/// Sends the bytes of one stream to the client. A WebSocket connection uses the same frames; its channels have the numbers of the
/// streams.
#[derive(Clone, Debug)]
pub(super) struct Writer {
    stream: u32,
    frames: mpsc::Sender<Frame>,
}

impl Writer {
    pub(super) fn new(stream: u32, frames: mpsc::Sender<Frame>) -> Self {
        Writer { stream, frames }
    }

    /// Queues bytes. Waits while the queue is full. Does nothing if the connection has ended.
    pub(super) async fn write(&self, bytes: Vec<u8>) {
        let _ = self.frames.send(Frame::Data { stream: self.stream, bytes, fin: false }).await;
    }

    /// Queues a reset, which ends the stream in both directions.
    pub(super) async fn reset(&self) {
        let _ = self.frames.send(Frame::Reset { stream: self.stream, status: spdy::CANCEL }).await;
    }

    /// Queues the end of the stream.
    pub(super) async fn finish(&self) {
        let _ = self.frames.send(Frame::Data { stream: self.stream, bytes: Vec::new(), fin: true }).await;
    }
}

/// The time at which a connection last had data.
#[derive(Debug)]
pub(super) struct Activity(Mutex<Instant>);

impl Activity {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Activity(Mutex::new(Instant::now())))
    }

    /// Records that the connection has data now.
    pub(super) fn record_data(&self) {
        *self.0.lock() = Instant::now();
    }

    /// Waits until the connection had no data for `limit`.
    async fn idle(&self, limit: Duration) {
        loop {
            let deadline = *self.0.lock() + limit;
            if deadline <= Instant::now() {
                return;
            }
            sleep_until(deadline).await;
        }
    }
}

/// Runs a session over a connection, and ends it when the client has gone or the connection is idle for too long. `copied` is the
/// future that copies the bytes of the connection. It ends after the session has dropped its writers.
async fn drive(
    session: impl Future<Output = ()>,
    copied: impl Future<Output = ()>,
    activity: &Activity,
    _permit: Share,
) {
    let mut copied = pin!(copied);
    let whole = async {
        tokio::select! {
            () = &mut copied => return,
            () = session => {}
        }
        copied.await;
    };
    tokio::select! {
        () = whole => {}
        () = activity.idle(IDLE_LIMIT) => tracing::debug!("a stream of the node API was idle for too long"),
    }
}

#[cfg(test)]
mod tests;
