//! Where clients connect: a Unix socket, a TCP port, or a TCP port with TLS.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustix::net::sockopt::{set_socket_keepalive, set_tcp_keepcnt, set_tcp_keepidle, set_tcp_keepintvl};
use rustls::pki_types::CertificateDer;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

use super::clients::ClientAddress;
use super::socket;

/// A listening socket.
pub enum Listener {
    /// Only processes of the agent's own user and of root get an answer.
    Unix(UnixListener),
    /// A TCP port without TLS.
    Tcp(TcpListener),
    /// A TCP port with TLS.
    Tls(TcpListener, TlsAcceptor),
}

/// A connection that was accepted and has not exchanged any bytes.
pub(super) enum Accepted {
    Unix(UnixStream),
    Tcp(TcpStream, ClientAddress),
    Tls(TcpStream, ClientAddress, TlsAcceptor),
}

/// How long a TCP connection may be silent before the kernel checks whether the client still exists, and how often it checks. The
/// connection of a client that has vanished ends after 90 s.
const KEEPALIVE: Duration = Duration::from_secs(30);
const KEEPALIVE_CHECKS: u32 = 3;
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(20);

/// The certificates that a client presented, its own one first. Empty without TLS. The listener does not check who signed them.
#[derive(Clone, Debug, Default)]
pub struct PeerCertificates(pub Arc<[CertificateDer<'static>]>);

/// The bytes of a connection.
pub(super) trait Bytes: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Bytes for T {}

impl Listener {
    /// Listens on a Unix socket with mode 0600. The caller must own its directory alone.
    ///
    /// # Errors
    /// The system's error.
    pub fn unix(path: &Path) -> io::Result<Self> {
        socket::listen(path).map(Listener::Unix)
    }

    /// Listens on a TCP port, with TLS if there is an acceptor.
    ///
    /// # Errors
    /// The system's error.
    pub async fn tcp(address: SocketAddr, tls: Option<TlsAcceptor>) -> io::Result<Self> {
        let listener = TcpListener::bind(address).await?;
        Ok(match tls {
            None => Listener::Tcp(listener),
            Some(tls) => Listener::Tls(listener, tls),
        })
    }

    /// The address of a TCP port.
    pub fn address(&self) -> Option<SocketAddr> {
        match self {
            Listener::Unix(_) => None,
            Listener::Tcp(listener) | Listener::Tls(listener, _) => listener.local_addr().ok(),
        }
    }

    /// Waits for the next connection. Cancel safe.
    pub(super) async fn accept(&self) -> io::Result<Accepted> {
        Ok(match self {
            Listener::Unix(listener) => Accepted::Unix(listener.accept().await?.0),
            Listener::Tcp(listener) => {
                let (stream, peer) = listener.accept().await?;
                Accepted::Tcp(stream, peer.ip().into())
            }
            Listener::Tls(listener, tls) => {
                let (stream, peer) = listener.accept().await?;
                Accepted::Tls(stream, peer.ip().into(), tls.clone())
            }
        })
    }
}

impl Accepted {
    /// The address of the client. `None` for a Unix socket.
    pub(super) fn client(&self) -> Option<ClientAddress> {
        match self {
            Accepted::Unix(_) => None,
            Accepted::Tcp(_, client) | Accepted::Tls(_, client, _) => Some(*client),
        }
    }

    /// Checks the client's user, or performs the TLS handshake within `limit`. `None` if the client gets no answer.
    pub(super) async fn establish(self, limit: Duration) -> Option<(Box<dyn Bytes>, PeerCertificates)> {
        let without = |stream: Box<dyn Bytes>| Some((stream, PeerCertificates::default()));
        match self {
            Accepted::Unix(stream) if socket::is_own_user(&stream) => without(Box::new(stream)),
            Accepted::Unix(_) => None,
            Accepted::Tcp(stream, _) => {
                configure(&stream);
                without(Box::new(stream))
            }
            Accepted::Tls(stream, _, tls) => match timeout(limit, tls.accept(stream)).await {
                Ok(Ok(stream)) => {
                    let (socket, session) = stream.get_ref();
                    configure(socket);
                    let peer: Vec<_> = session
                        .peer_certificates()
                        .unwrap_or_default()
                        .iter()
                        .map(|one| one.clone().into_owned())
                        .collect();
                    Some((Box::new(stream), PeerCertificates(peer.into())))
                }
                Ok(Err(error)) => {
                    tracing::trace!(%error, "a TLS handshake failed");
                    None
                }
                Err(_) => None,
            },
        }
    }
}

/// Sends small parts of an answer at once, and detects that the client has vanished.
fn configure(stream: &TcpStream) {
    let configured = stream.set_nodelay(true).and_then(|()| {
        set_tcp_keepidle(stream, KEEPALIVE)?;
        set_tcp_keepintvl(stream, KEEPALIVE_INTERVAL)?;
        set_tcp_keepcnt(stream, KEEPALIVE_CHECKS)?;
        Ok(set_socket_keepalive(stream, true)?)
    });
    if let Err(error) = configured {
        tracing::trace!(%error, "cannot configure a connection");
    }
}
