//! Where clients connect: a Unix socket, a TCP port, or a TCP port with TLS.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

use super::socket;

/// A listening socket.
pub(crate) enum Listener {
    /// Only processes of the agent's own user and of root get an answer.
    Unix(UnixListener),
    Tcp(TcpListener),
    Tls(TcpListener, TlsAcceptor),
}

/// A connection that was accepted and has not exchanged any bytes.
pub(super) enum Accepted {
    Unix(UnixStream),
    Tcp(TcpStream),
    Tls(TcpStream, TlsAcceptor),
}

/// The bytes of a connection.
pub(super) trait Bytes: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Bytes for T {}

impl Listener {
    /// Listens on a Unix socket with mode 0600. The caller must own its directory alone.
    ///
    /// # Errors
    /// The system's error.
    pub(crate) fn unix(path: &Path) -> io::Result<Self> {
        socket::listen(path).map(Listener::Unix)
    }

    /// Listens on a TCP port, with TLS if there is an acceptor.
    ///
    /// # Errors
    /// The system's error.
    pub(crate) async fn tcp(address: SocketAddr, tls: Option<TlsAcceptor>) -> io::Result<Self> {
        let listener = TcpListener::bind(address).await?;
        Ok(match tls {
            None => Listener::Tcp(listener),
            Some(tls) => Listener::Tls(listener, tls),
        })
    }

    /// The address of a TCP port.
    pub(crate) fn address(&self) -> Option<SocketAddr> {
        match self {
            Listener::Unix(_) => None,
            Listener::Tcp(listener) | Listener::Tls(listener, _) => listener.local_addr().ok(),
        }
    }

    /// Waits for the next connection. Cancel safe.
    pub(super) async fn accept(&self) -> io::Result<Accepted> {
        Ok(match self {
            Listener::Unix(listener) => Accepted::Unix(listener.accept().await?.0),
            Listener::Tcp(listener) => Accepted::Tcp(listener.accept().await?.0),
            Listener::Tls(listener, tls) => Accepted::Tls(listener.accept().await?.0, tls.clone()),
        })
    }
}

impl Accepted {
    /// Checks the client's user, or performs the TLS handshake within `limit`. `None` if the client gets no answer.
    pub(super) async fn establish(self, limit: Duration) -> Option<Box<dyn Bytes>> {
        match self {
            Accepted::Unix(stream) => socket::is_own_user(&stream).then(|| Box::new(stream) as Box<dyn Bytes>),
            Accepted::Tcp(stream) => Some(Box::new(stream)),
            Accepted::Tls(stream, tls) => match timeout(limit, tls.accept(stream)).await {
                Ok(Ok(stream)) => Some(Box::new(stream)),
                Ok(Err(error)) => {
                    tracing::trace!(%error, "a TLS handshake failed");
                    None
                }
                Err(_) => None,
            },
        }
    }
}
