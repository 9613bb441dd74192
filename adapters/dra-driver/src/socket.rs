//! The Unix sockets on which the node calls the driver.

use std::io;
use std::path::Path;
use std::time::Duration;

use futures_util::stream::{self, BoxStream, StreamExt};
use podwright_grpc_socket::{AnyAuthority, SocketFile};
use podwright_model::text::error_chain;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tonic::transport::Server;

use super::routes::Routes;

/// The pause after the process or the machine has no file descriptor for a connection.
const NO_DESCRIPTOR: Duration = Duration::from_millis(100);
/// How long the stop waits for the ends of calls that it has aborted.
const AFTER_ABORT: Duration = Duration::from_millis(100);

/// The connections that a listener accepts. An error, or the end of the stream, ends the server and is a fatal
/// [`Failure`](super::Failure).
pub(super) type Connections = BoxStream<'static, io::Result<UnixStream>>;

/// Creates the listener of a socket, given its path.
pub(super) type Listen = Box<dyn FnOnce(&Path) -> io::Result<Connections> + Send>;

/// One running server.
pub(super) struct SocketServer {
    stop: CancellationToken,
    routes: Routes,
    task: JoinHandle<()>,
    /// The file of the socket, unless a custom listener owns it.
    _file: Option<SocketFile>,
}

impl SocketServer {
    /// Listens and serves. `failed` is called once if the server ends by itself.
    pub(super) fn start(
        path: &Path,
        listen: Option<Listen>,
        routes: Routes,
        failed: impl FnOnce(io::Error) + Send + 'static,
    ) -> io::Result<Self> {
        let (connections, file) = match listen {
            Some(listen) => (listen(path)?, None),
            None => bind(path).map(|(connections, file)| (connections, Some(file)))?,
        };
        let stop = CancellationToken::new();
        let task = tokio::spawn(serve(connections, routes.clone(), stop.clone(), failed));
        Ok(SocketServer { stop, routes, task, _file: file })
    }

    /// Removes the socket, and accepts no further connection and no further call. Waits at most `limit` for the running calls and
    /// for `others`, which are calls without a connection, and then aborts them.
    pub(super) async fn stop(mut self, limit: Duration, others: impl Future<Output = ()>) {
        self._file = None;
        self.stop.cancel();
        // One after the other: a call without a connection may begin as long as the server runs.
        let mut ended = std::pin::pin!(async {
            let _ended = (&mut self.task).await;
            others.await;
        });
        if timeout(limit, &mut ended).await.is_err() {
            tracing::warn!(limit.seconds = limit.as_secs(), "calls of the node did not end in time");
            self.routes.abort();
            // An idle connection may not close by itself, and it has no call to wait for.
            let _ = timeout(AFTER_ABORT, &mut ended).await;
        }
    }
}

/// A server that is dropped ends at once.
impl Drop for SocketServer {
    fn drop(&mut self) {
        self.stop.cancel();
        self.routes.abort();
    }
}

async fn serve(
    connections: Connections,
    routes: Routes,
    stop: CancellationToken,
    failed: impl FnOnce(io::Error) + Send,
) {
    let (failure, first_failure) = oneshot::channel();
    let connections = connections.map(Some).chain(stream::once(async { None }));
    let accepted = connections.scan(Some(failure), |failure, connection| {
        let connection = match (connection, failure.take()) {
            (Some(Ok(stream)), known) => {
                *failure = known;
                Some(Ok::<_, io::Error>(AnyAuthority::new(stream)))
            }
            (Some(Err(error)), failure) => {
                let _ = failure.map(|failure| failure.send(error));
                None
            }
            // The end without an error.
            (None, _) => None,
        };
        std::future::ready(connection)
    });
    // The server ends only after its last connection has closed, and the node keeps one open. So the failure is reported here, at
    // once.
    let report = async {
        // Without an error, the listener has ended by itself, or the server was stopped.
        let error = first_failure.await;
        if !stop.is_cancelled() {
            failed(error.unwrap_or_else(|_| {
                io::Error::new(io::ErrorKind::UnexpectedEof, "the listener accepts no more connections")
            }));
        }
    };
    let serve = Server::builder().serve_with_incoming_shutdown(routes, accepted, stop.cancelled());
    let (end, ()) = tokio::join!(serve, report);
    if let Err(error) = end {
        tracing::error!(error = %error_chain(&error), "a server of the driver failed");
    }
}

/// Listens on a new socket. A socket of an earlier process is replaced.
fn bind(path: &Path) -> io::Result<(Connections, SocketFile)> {
    SocketFile::remove_old(path)?;
    let listener = UnixListener::bind(path)?;
    let file = SocketFile::new(path)?;
    let connections = stream::unfold(listener, |listener| async {
        let connection = accept(&listener).await;
        Some((connection, listener))
    });
    Ok((connections.boxed(), file))
}

/// Accepts the next connection. An error means that the listener is unusable.
async fn accept(listener: &UnixListener) -> io::Result<UnixStream> {
    loop {
        let error = match listener.accept().await {
            Ok((stream, _)) => return Ok(stream),
            Err(error) => error,
        };
        match rustix::io::Errno::from_io_error(&error) {
            Some(rustix::io::Errno::CONNABORTED | rustix::io::Errno::INTR) => {}
            Some(rustix::io::Errno::MFILE | rustix::io::Errno::NFILE | rustix::io::Errno::NOMEM) => {
                tracing::warn!(%error, "cannot accept a connection of the node, trying again");
                sleep(NO_DESCRIPTOR).await;
            }
            _ => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[tokio::test]
    async fn socket_of_an_earlier_process_is_replaced_and_other_files_are_kept() {
        let folder = tempfile::tempdir().unwrap();
        let (path, regular) = (folder.path().join("dra.sock"), folder.path().join("regular"));
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        let (connections, file) = bind(&path).unwrap();
        assert!(path.exists());
        drop((connections, file));
        assert!(!path.exists());

        fs::write(&regular, "kept").unwrap();
        assert_eq!(bind(&regular).err().unwrap().kind(), io::ErrorKind::AlreadyExists);
        assert!(regular.exists());
    }

    #[tokio::test]
    async fn socket_of_a_later_process_is_not_removed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("dra.sock");
        let (_earlier, file) = bind(&path).unwrap();
        let (_later, _file) = bind(&path).unwrap();
        drop(file);
        assert!(path.exists());
    }
}
