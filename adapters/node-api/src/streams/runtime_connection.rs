//! A connection to the streaming server of a container runtime, which fails once the server reads no more.
//!
//! A server may leave the input of a command unread after the command has ended, and then it sends no end either (containerd 1.6).
//! Its client would wait for ever.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep};

/// How long a server may leave input unread while it sends nothing. A command that computes for a time before it reads on is not
/// known from one that has ended, so the limit is long.
pub(super) const STALL_LIMIT: Duration = Duration::from_secs(60 * 60);

/// A connection `T` whose writes fail with [`TimedOut`](io::ErrorKind::TimedOut) when the peer has neither read nor sent a byte for
/// [`STALL_LIMIT`]. Dropping a read or a write has the effects that it has for `T`.
#[derive(Debug)]
pub(super) struct RuntimeConnection<T> {
    connection: T,
    /// Since when a write waits, plus the limit. A byte from the peer begins the wait again.
    limit: Option<Pin<Box<Sleep>>>,
}

impl<T> RuntimeConnection<T> {
    pub(super) fn new(connection: T) -> Self {
        RuntimeConnection { connection, limit: None }
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for RuntimeConnection<T> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buffer.filled().len();
        ready!(Pin::new(&mut this.connection).poll_read(cx, buffer))?;
        if let Some(limit) = this.limit.as_mut().filter(|_| buffer.filled().len() > before) {
            limit.as_mut().reset(Instant::now() + STALL_LIMIT);
        }
        Poll::Ready(Ok(()))
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for RuntimeConnection<T> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.connection).poll_write(cx, bytes);
        this.limited(written, cx)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let flushed = Pin::new(&mut this.connection).poll_flush(cx);
        this.limited(flushed, cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().connection).poll_shutdown(cx)
    }
}

impl<T> RuntimeConnection<T> {
    /// The outcome of a write, or the error when it waits for too long.
    fn limited<V>(&mut self, outcome: Poll<io::Result<V>>, cx: &mut Context<'_>) -> Poll<io::Result<V>> {
        if outcome.is_ready() {
            self.limit = None;
            return outcome;
        }
        let limit = self.limit.get_or_insert_with(|| Box::pin(sleep(STALL_LIMIT)));
        ready!(limit.as_mut().poll(cx));
        let why = "the streaming server of the container runtime reads no more of the input";
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, why)))
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex, split};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn write_that_the_server_does_not_read_fails_after_the_limit() {
        let (runtime, server) = duplex(16);
        let mut runtime = RuntimeConnection::new(runtime);
        let begin = Instant::now();
        let error = runtime.write_all(&[0; 17]).await.unwrap_err();
        assert_eq!((error.kind(), begin.elapsed().as_secs()), (io::ErrorKind::TimedOut, STALL_LIMIT.as_secs()));
        drop(server);
    }

    #[tokio::test(start_paused = true)]
    async fn slow_server_is_not_stalled() {
        let (runtime, server) = duplex(16);
        let ((mut from_runtime, mut to_runtime), (mut from_server, mut to_server)) =
            (split(RuntimeConnection::new(runtime)), split(server));
        let write = async { to_runtime.write_all(&[0; 33]).await };
        let read = async { from_runtime.read_exact(&mut [0; 2]).await };
        let serve = async {
            let pause = STALL_LIMIT - Duration::from_secs(1);
            for _ in 0..2 {
                tokio::time::sleep(pause).await;
                to_server.write_all(b"x").await.unwrap();
                tokio::time::sleep(pause).await;
                from_server.read_exact(&mut [0; 16]).await.unwrap();
            }
        };
        let (written, read, ()) = tokio::join!(write, read, serve);
        written.unwrap();
        read.unwrap();
    }
}
