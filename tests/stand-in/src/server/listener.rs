//! The port of the server, and the connections that it accepts.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use axum::{Extension, Router};
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::ServerState;
use super::tls::{Peer, Tls};

/// The tasks of a server that accepts connections.
pub(super) struct Running {
    stop: CancellationToken,
    tasks: TaskTracker,
}

impl Running {
    pub(super) fn start(listener: TcpListener, shared: Arc<ServerState>) -> Self {
        let (stop, tasks) = (CancellationToken::new(), TaskTracker::new());
        let router = shared.router();
        let (accept_stop, connections) = (stop.clone(), tasks.clone());
        tasks.spawn(async move {
            loop {
                let accepted = tokio::select! {
                    () = accept_stop.cancelled() => return,
                    accepted = listener.accept() => accepted,
                };
                if let Ok((stream, _)) = accepted {
                    let (shared, router, cut) = (shared.clone(), router.clone(), accept_stop.child_token());
                    connections.spawn(async move {
                        tokio::select! {
                            // A client that breaks its connection off is no fault of the server.
                            _ = connection(stream, &shared, router, cut.clone()) => {}
                            () = cut.cancelled() => {}
                        }
                    });
                }
            }
        });
        Self { stop, tasks }
    }

    pub(super) async fn stop(self) {
        self.stop.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }
}

/// Serves one connection until the client closes it. The first byte says whether the client speaks TLS.
async fn connection(stream: TcpStream, shared: &ServerState, router: Router, cut: CancellationToken) -> io::Result<()> {
    stream.set_nodelay(true)?;
    if Tls::is_started(&stream).await? {
        let (stream, peer) = shared.tls.accept(stream).await?;
        serve(stream, peer, router, cut).await
    } else {
        serve(stream, Peer::Unknown, router, cut).await
    }
}

/// Serves the requests of one connection. A request cancels `cut` to end the connection without an answer.
async fn serve(
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    peer: Peer,
    router: Router,
    cut: CancellationToken,
) -> io::Result<()> {
    let service = TowerToHyperService::new(router.layer(Extension(cut)).layer(Extension(peer)));
    let connection = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service);
    connection.with_upgrades().await.map_err(io::Error::other)
}

/// The connections that wait for the server.
pub(super) const BACKLOG: u32 = 1024;

/// A socket with an address that other sockets of this kind may have too.
pub(super) fn reserve(address: SocketAddr) -> io::Result<TcpSocket> {
    let socket = TcpSocket::new_v4()?;
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    Ok(socket)
}

/// The address of a server, and the tasks that accept its connections.
pub(super) struct Listener {
    pub(super) address: SocketAddr,
    /// Keeps the port while the server is stopped. Otherwise the system gives it to another server, or to the client that connects to it.
    pub(super) _reserved: TcpSocket,
    pub(super) running: Mutex<Option<Running>>,
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Some(running) = self.running.get_mut() {
            running.stop.cancel();
        }
    }
}
