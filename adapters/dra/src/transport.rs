//! One connection to a Unix socket, with a gRPC channel on it.
//!
//! By itself, a channel of tonic connects again only for its next call. The agent would learn the state of a connection only from
//! calls, and each call could open another connection. So a channel here has exactly one connection. The connection reports its
//! end, and from then on every call on the channel fails.
//!
//! A server that stops, or that limits the age of connections, sends the frame `GOAWAY`: it accepts no further calls on the
//! connection. Running calls and streams may go on for a long time. The HTTP/2 library reports the frame only after the last of
//! them has ended, so this module scans the incoming bytes for the frame.

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
    #[error("{path} does not speak gRPC: check which program serves it", path = .path.display())]
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
    /// Whether it accepts no further calls.
    ended: CancellationToken,
    /// Whether it is closed.
    closed: CancellationToken,
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
        let [ended, closed, cut] = [(); 3].map(|()| CancellationToken::new());
        let stream = ReportingStream {
            stream,
            frames: Frames::default(),
            ended: ended.clone(),
            _end: [ended.clone().drop_guard(), closed.clone().drop_guard()],
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
        Ok(Connection { channel, ended, closed, _cut: cut.drop_guard() })
    }

    /// A channel on this connection.
    pub(super) fn channel(&self) -> Channel {
        self.channel.clone()
    }

    /// Waits until the connection accepts no further calls. Running calls may go on until it is [closed](Connection::is_closed).
    /// Cancel safe.
    pub(super) async fn ended(&self) {
        self.ended.cancelled().await;
    }

    /// Whether the connection is closed.
    pub(super) fn is_closed(&self) -> bool {
        self.closed.is_cancelled()
    }
}

/// A stream that reports its end, and that its owner can close.
struct ReportingStream {
    stream: UnixStream,
    frames: Frames,
    ended: CancellationToken,
    _end: [DropGuard; 2],
    cut: Pin<Box<WaitForCancellationFutureOwned>>,
}

impl AsyncRead for ReportingStream {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        // An HTTP/2 connection always reads, so it notices the close at once.
        if self.cut.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
        }
        let known = buf.filled().len();
        let this = &mut *self;
        let read = Pin::new(&mut this.stream).poll_read(cx, buf);
        if this.frames.has_goaway(&buf.filled()[known..]) {
            this.ended.cancel();
        }
        read
    }
}

/// Finds the HTTP/2 frames in the bytes from a server.
#[derive(Debug, Default)]
struct Frames {
    /// The bytes of the next header that have arrived.
    header: [u8; 9],
    header_len: usize,
    /// The bytes of the current payload that have not arrived.
    payload: usize,
}

impl Frames {
    /// The type of the frame `GOAWAY` (RFC 9113, section 6.8).
    const GOAWAY: u8 = 7;

    /// Whether one of the frames that begin with these bytes is a `GOAWAY`.
    fn has_goaway(&mut self, mut bytes: &[u8]) -> bool {
        let mut found = false;
        while !bytes.is_empty() {
            let skipped = self.payload.min(bytes.len());
            self.payload -= skipped;
            bytes = &bytes[skipped..];
            let taken = (self.header.len() - self.header_len).min(bytes.len());
            self.header[self.header_len..self.header_len + taken].copy_from_slice(&bytes[..taken]);
            self.header_len += taken;
            bytes = &bytes[taken..];
            if self.header_len == self.header.len() {
                let [a, b, c, kind, ..] = self.header;
                self.payload = usize::from(a) << 16 | usize::from(b) << 8 | usize::from(c);
                self.header_len = 0;
                found |= kind == Self::GOAWAY;
            }
        }
        found
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

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, payload: usize) -> Vec<u8> {
        let length = u32::try_from(payload).unwrap().to_be_bytes();
        // The payload looks like headers of `GOAWAY` frames.
        [&length[1..], &[kind, 0, 0, 0, 0, 0], &vec![Frames::GOAWAY; payload]].concat()
    }

    /// The frame is found however the bytes are split, and never inside a payload.
    #[test]
    fn goaway_is_found_among_the_frames() {
        let before = [frame(4, 18), frame(0, 300), frame(6, 8), frame(8, 0)].concat();
        let bytes = [before.clone(), frame(7, 8), frame(0, 3)].concat();
        for size in 1..bytes.len() {
            let mut frames = Frames::default();
            let found: Vec<_> = bytes.chunks(size).map(|chunk| frames.has_goaway(chunk)).collect();
            let at = found.iter().position(|found| *found).unwrap();
            assert_eq!(at, (before.len() + 8) / size, "in pieces of {size} bytes");
            assert_eq!(found.iter().filter(|found| **found).count(), 1);
        }
        assert!(!Frames::default().has_goaway(&before));
    }
}
