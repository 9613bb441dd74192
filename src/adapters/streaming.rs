//! Streams between a client and a pod: commands, attached containers and forwarded ports. A runtime that offers them implements
//! [`StreamingRuntime`].

use futures_util::future::BoxFuture;
use podwright_actors::ids::{ContainerId, SandboxId};
use podwright_actors::ports::RuntimeError;

/// A runtime that opens streams to its containers.
pub trait StreamingRuntime: Send + Sync + 'static {
    /// Opens a stream. The caller has authorized the client and has selected the container or the sandbox.
    ///
    /// # Errors
    /// [`StreamError`] if the runtime does not open the stream.
    fn open(&self, stream: StreamRequest) -> BoxFuture<'_, Result<Opened, StreamError>>;
}

/// What a client requests.
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
#[derive(Debug)]
pub struct LocalSession {}

/// A runtime does not open a stream.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StreamError {
    /// The runtime has no streams.
    #[error("this runtime offers no commands, attached containers and forwarded ports: use another --runtime")]
    Unsupported,
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
