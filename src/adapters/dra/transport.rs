//! One connection to a Unix socket, with a gRPC channel on it.
//!
//! A channel of tonic connects again by itself, and only with its next call. The state of a connection would be known from calls
//! only, and each call could open one more. So a channel here has exactly one connection: it reports its end, and a channel whose
//! connection has ended fails every call.

use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::task::{Context, Poll};

use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::UnixStream;
use tokio_util::sync::{CancellationToken, DropGuard, WaitForCancellationFutureOwned};
use tonic::transport::{Channel, Endpoint, Uri};

use super::trust::{self, Distrust, UntrustedSocket};

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The system refused the connection.
    #[error("cannot connect to {path}", path = .path.display())]
    Connect {
        /// The socket.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// Another user may have put the socket there.
    #[error(transparent)]
    Untrusted(#[from] UntrustedSocket),
    /// The socket does not accept HTTP/2.
    #[error("{path} does not speak gRPC", path = .path.display())]
    Handshake {
        /// The socket.
        path: PathBuf,
        /// The error of the gRPC library.
        source: tonic::transport::Error,
    },
}

/// A connection. It is closed when this value is dropped, and calls on its channel then fail.
#[derive(Debug)]
pub(super) struct Connection {
    channel: Channel,
    ended: CancellationToken,
    _cut: DropGuard,
}

impl Connection {
    /// Connects to a socket. The caller limits the time.
    pub(super) async fn open(path: &Path) -> Result<Self, ConnectError> {
        let failed = |source| ConnectError::Connect { path: path.to_owned(), source };
        let user = rustix::process::geteuid().as_raw();
        trust::check_socket(path, user).map_err(|error| match error {
            // The socket may appear later.
            UntrustedSocket::Check { source, .. } if source.kind() == io::ErrorKind::NotFound => failed(source),
            error => error.into(),
        })?;
        let stream = UnixStream::connect(path).await.map_err(failed)?;
        // The file may have changed since the check.
        let peer = stream.peer_cred().map_err(failed)?.uid();
        if peer != 0 && peer != user {
            return Err(UntrustedSocket::Untrusted { path: path.to_owned(), why: Distrust::Peer(peer) }.into());
        }
        let (ended, cut) = (CancellationToken::new(), CancellationToken::new());
        let stream = ReportingStream {
            stream,
            _ended: ended.clone().drop_guard(),
            cut: Box::pin(cut.clone().cancelled_owned()),
        };
        let once = Mutex::new(Some(TokioIo::new(stream)));
        let connector = tower::service_fn(move |_: Uri| {
            let stream = once.lock().take().ok_or_else(|| io::Error::from(io::ErrorKind::NotConnected));
            std::future::ready(stream)
        });
        // The URI becomes the `:authority` of calls. The path of a socket is no valid authority, and strict servers refuse it.
        let channel = Endpoint::from_static("http://localhost").connect_with_connector(connector).await;
        let channel = channel.map_err(|source| ConnectError::Handshake { path: path.to_owned(), source })?;
        Ok(Connection { channel, ended, _cut: cut.drop_guard() })
    }

    /// A channel on this connection.
    pub(super) fn channel(&self) -> Channel {
        self.channel.clone()
    }

    /// Waits until the connection has ended. Cancel safe.
    pub(super) async fn ended(&self) {
        self.ended.cancelled().await;
    }
}

/// A stream that reports its end, and that its owner can cut.
struct ReportingStream {
    stream: UnixStream,
    _ended: DropGuard,
    cut: Pin<Box<WaitForCancellationFutureOwned>>,
}

impl AsyncRead for ReportingStream {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        // An HTTP/2 connection always reads, so it notices the cut at once.
        if self.cut.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
        }
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for ReportingStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
