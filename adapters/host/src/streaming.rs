//! Streams between a client and a pod: commands, attached containers and forwarded ports. A runtime that offers them implements
//! `StreamingRuntime`.

use std::fmt;
use std::future::Future;
use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use podwright_model::ids::{ContainerId, SandboxId};
use podwright_ports::RuntimeError;
use tokio::net::TcpStream;
use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::task::AbortOnDropHandle;

/// A runtime that opens streams to its containers.
pub trait StreamingRuntime: Send + Sync + 'static {
    /// Opens a stream. The caller has authorized the client and has selected the container or the sandbox.
    ///
    /// # Errors
    /// [`StreamError`] if the runtime does not open the stream.
    fn open(&self, stream: StreamRequest) -> BoxFuture<'_, Result<Opened, StreamError>>;
}

/// The stream that a client requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StreamRequest {
    /// Run a command in a container.
    Exec {
        /// The container.
        container: ContainerId,
        /// The command and its arguments. The client may have sent none.
        command: Vec<String>,
        /// Whether the client sends standard input.
        stdin: bool,
        /// Whether the client receives standard output.
        stdout: bool,
        /// Whether the client receives standard error. False with `tty`.
        stderr: bool,
        /// Whether the command gets a terminal.
        tty: bool,
    },
    /// Connect the client to the main process of a container.
    Attach {
        /// The container.
        container: ContainerId,
        /// Whether the client sends standard input.
        stdin: bool,
        /// Whether the client receives standard output.
        stdout: bool,
        /// Whether the client receives standard error. False with `tty`.
        stderr: bool,
        /// Whether the container has a terminal. This is the container's setting, not the client's.
        tty: bool,
    },
    /// Forward connections of the client to ports of a pod.
    PortForward {
        /// The sandbox of the pod.
        sandbox: SandboxId,
        /// The ports in the path of the request. Empty if the client names the ports in each of its streams.
        ports: Vec<u16>,
    },
}

/// An open stream.
#[derive(Debug)]
pub enum Opened {
    /// The container runtime serves the stream at this URL.
    Url(String),
    /// The agent itself serves the stream.
    Local(LocalSession),
}

/// A stream that the agent itself serves.
pub enum LocalSession {
    /// A command, or the main process of a container. Nothing happens before the client has created its streams.
    Command(StartCommand),
    /// Connections to the ports of a pod.
    Ports(PodPorts),
}

impl fmt::Debug for LocalSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LocalSession::Command(_) => f.write_str("Command"),
            LocalSession::Ports(_) => f.write_str("Ports"),
        }
    }
}

/// Connects to the ports of a pod.
#[derive(Clone)]
pub struct PodPorts(Arc<Connect>);

type Connect = dyn Fn(u16) -> BoxFuture<'static, Result<TcpStream, String>> + Send + Sync;

impl PodPorts {
    /// The ports to which the function connects. The error of its future is the reason why it cannot connect to one.
    pub fn new<F>(connect: impl Fn(u16) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Result<TcpStream, String>> + Send + 'static,
    {
        PodPorts(Arc::new(move |port| connect(port).boxed()))
    }

    /// Connects to a port. Cancel safe.
    ///
    /// # Errors
    /// The reason why it cannot connect, in one sentence.
    pub async fn connect(&self, port: u16) -> Result<TcpStream, String> {
        (self.0)(port).await
    }
}

/// A command that has not started yet.
pub struct StartCommand(BoxFuture<'static, Result<LocalCommand, String>>);

impl StartCommand {
    /// A command that the future starts. The error of the future is the reason why the command cannot start.
    pub fn new(start: impl Future<Output = Result<LocalCommand, String>> + Send + 'static) -> Self {
        StartCommand(Box::pin(start))
    }

    /// Starts the command.
    ///
    /// # Errors
    /// The reason why the command cannot start.
    pub async fn start(self) -> Result<LocalCommand, String> {
        self.0.await
    }
}

/// A running command and its streams. Dropping this value kills the command. For an attached client, dropping it only ends the
/// copies.
///
/// All channels are bounded, so a side that does not read slows the other side down.
#[derive(Debug)]
pub struct LocalCommand {
    /// Standard input. It ends when the sender is dropped.
    pub stdin: Option<mpsc::Sender<Vec<u8>>>,
    /// Standard output, or the output of the terminal.
    pub stdout: Option<mpsc::Receiver<Vec<u8>>>,
    /// Standard error.
    pub stderr: Option<mpsc::Receiver<Vec<u8>>>,
    /// The size of the client's terminal window. Only the newest size matters.
    pub resize: Option<watch::Sender<Option<WindowSize>>>,
    /// How the command ended. The sender is dropped without a value if the runtime is closed.
    pub ended: oneshot::Receiver<CommandEnd>,
    /// The tasks that copy the streams.
    pub tasks: Vec<AbortOnDropHandle<()>>,
}

/// How a command ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CommandEnd {
    /// The command ended with this exit code. An attached stream ends with code 0.
    Exited(i32),
    /// The runtime lost the command, for this reason.
    Failed(String),
    /// The runtime has written this `metav1.Status` in JSON.
    Status(Vec<u8>),
}

/// The size of a terminal window in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowSize {
    /// Columns.
    pub width: u16,
    /// Rows.
    pub height: u16,
}

/// How many chunks a channel of a [`LocalCommand`] buffers.
pub const CHUNKS: usize = 4;
/// The most bytes in a chunk of output.
pub const CHUNK_BYTES: usize = 32 << 10;

/// A runtime does not open a stream.
#[derive(Debug, thiserror::Error)]
pub enum StreamError {
    /// The runtime has no streams.
    #[error("this runtime offers no commands, attached containers and forwarded ports: use another --runtime")]
    Unsupported,
    /// The runtime does not offer what the client requests.
    #[error("{0}")]
    Refused(String),
    /// The call to the runtime fails.
    #[error(transparent)]
    Runtime(#[from] RuntimeError),
}

/// A runtime without streams.
#[derive(Clone, Copy, Debug)]
pub struct NoStreams;

impl StreamingRuntime for NoStreams {
    fn open(&self, _: StreamRequest) -> BoxFuture<'_, Result<Opened, StreamError>> {
        Box::pin(std::future::ready(Err(StreamError::Unsupported)))
    }
}
