//! Serves the admin endpoints: on a Unix socket for the agent's user, and on a TCP port for all other clients.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use axum::Router;
use axum::middleware::from_fn_with_state;
use futures_util::future::join;
use rustix::io::Errno;
use tokio::net::TcpSocket;
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use super::guard::{Guard, PUBLIC_ELSEWHERE, PUBLIC_ON_LOOPBACK, guard};
use super::{for_trusted_clients, logs, routes};
use crate::agent::client::{LINK_FILE, SOCKET_FILE, other_page_address, page_link};
use crate::agent::page::{self, AgentInfo};
use crate::agent::program::Program;
use crate::agent::view::{NodeControl, NodeView};
use podwright_http_server::{
    Authentication, Listener, SeatLimits, Seats, TimeLimits, TlsError, TlsFiles, Token, TokenError, serve,
    write_private,
};
use podwright_model::text::reason;

/// The delay after a failure to listen on the port before the agent tries again.
const RETRY: Duration = Duration::from_secs(10);
/// The seats of each listener. Each watcher and each log reader may stay for ever, and needs a token or the socket.
const SEATS: SeatLimits =
    SeatLimits { anonymous: 64, authenticated: page::MAX_WATCHERS + logs::MAX_READERS + 64, client: None };

/// Why the admin endpoints cannot be served as configured.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AdminError {
    #[error(transparent)]
    Tls(#[from] TlsError),
    #[error(transparent)]
    Token(#[from] TokenError),
}

/// The configuration of the endpoints: a Unix socket in the root directory, and a TCP address.
#[derive(Clone, Debug)]
pub(crate) struct AdminEndpoints {
    pub(crate) address: SocketAddr,
    /// The certificate and the token for a TLS listener.
    pub(crate) tls: Option<TlsSettings>,
}

/// The files of a TLS listener.
#[derive(Clone, Debug)]
pub(crate) struct TlsSettings {
    pub(crate) files: TlsFiles,
    pub(crate) token: PathBuf,
}

/// The endpoints with their files read, not yet listening.
pub(crate) struct AdminServer {
    files: AdminFiles,
    address: SocketAddr,
    tls: Option<(TlsAcceptor, Token)>,
    link: watch::Sender<Option<String>>,
}

/// The files that the endpoints have in the root directory. They are removed when this value is dropped.
struct AdminFiles {
    socket: PathBuf,
    link: PathBuf,
}

impl AdminFiles {
    fn of(root: &Path) -> Self {
        AdminFiles { socket: root.join(SOCKET_FILE), link: root.join(LINK_FILE) }
    }
}

impl Drop for AdminFiles {
    fn drop(&mut self) {
        for path in [&self.socket, &self.link] {
            // Most often there is no such file. A file that cannot be removed only names an agent that has ended.
            let _absent = fs::remove_file(path);
        }
    }
}

/// Removes the files that an earlier agent left in the root directory. Blocking.
pub(crate) fn remove_leftovers(root: &Path) {
    drop(AdminFiles::of(root));
}

impl AdminEndpoints {
    /// Reads certificate, key and token. Blocking.
    ///
    /// # Errors
    /// [`AdminError`] if one of the files cannot be used.
    pub(crate) fn open(self, root: &Path) -> Result<AdminServer, AdminError> {
        remove_leftovers(root);
        let tls = match self.tls {
            None => None,
            Some(TlsSettings { files, token }) => Some((files.load()?, Token::read(&token)?)),
        };
        Ok(AdminServer { files: AdminFiles::of(root), address: self.address, tls, link: watch::Sender::new(None) })
    }
}

impl AdminServer {
    /// The link to the page, once the endpoints are served. It contains the token.
    pub(crate) fn link(&self) -> watch::Receiver<Option<String>> {
        self.link.subscribe()
    }

    /// Serves the endpoints until `stop` is cancelled. If the agent cannot listen, it logs that once and tries again. Pods do
    /// not wait for the endpoints.
    pub(crate) async fn serve(self, view: NodeView, control: NodeControl, info: AgentInfo, stop: CancellationToken) {
        self.serve_routes(Program::Agent, routes(view, control, info), stop).await;
    }

    /// Serves routes until `stop` is cancelled, with the checks of [`AdminServer::serve`].
    pub(crate) async fn serve_routes(self, program: Program, routes: Router, stop: CancellationToken) {
        stop.run_until_cancelled(join(self.serve_socket(program, routes.clone()), self.serve_port(program, routes)))
            .await;
    }

    /// Serves everything on the Unix socket.
    async fn serve_socket(&self, program: Program, routes: Router) {
        let path = &self.files.socket;
        let bind = async || Listener::unix(path);
        let listener = bound(program, bind, &path.display(), "remove what is there").await;
        tracing::info!(path = %path.display(), "admin socket is served");
        serve(
            listener,
            Seats::new(SEATS),
            Authentication::Listener,
            TimeLimits::default(),
            for_trusted_clients(routes),
        )
        .await;
    }

    /// Serves the TCP port: everything to clients with the token, and only the public paths to others.
    async fn serve_port(&self, program: Program, routes: Router) {
        let acceptor = self.tls.as_ref().map(|(acceptor, _)| acceptor.clone());
        let bind = async || {
            let listener = Listener::tcp(self.address, acceptor.clone()).await?;
            let address = listener.address().unwrap_or(self.address);
            let other = other_page_address(address, acceptor.is_some()).map(reserve).transpose()?.flatten();
            Ok::<_, io::Error>((listener, address, other))
        };
        let remedy = "free the address, or choose another with --admin";
        let (listener, address, _reserved) = bound(program, bind, &self.address, remedy).await;
        // The token is made only after the agent owns the port. While another program listened there, the page of an
        // earlier agent may have sent that program its token.
        let token = match &self.tls {
            Some((_, token)) => Ok(token.clone()),
            None => Token::random(),
        };
        let token = match token {
            Ok(token) => token,
            Err(error) => return tracing::error!(%error, "the admin address is not served"),
        };
        let link = page_link(address, self.tls.is_some(), token.secret());
        match write_private(&self.files.link, &format!("{link}\n")) {
            Ok(()) => {
                self.link.send_replace(Some(link));
            }
            Err(error) => tracing::error!(
                "cannot write {} ({}): clients have no token until podwright is started again",
                self.files.link.display(),
                reason(&error)
            ),
        }
        tracing::info!(%address, "admin endpoints are served");
        let checks = match &self.tls {
            Some(_) => Guard { is_loopback: false, public: Some(PUBLIC_ELSEWHERE), program },
            None => Guard { is_loopback: true, public: Some(PUBLIC_ON_LOOPBACK), program },
        };
        let router = routes.layer(from_fn_with_state(checks, guard));
        serve(listener, Seats::new(SEATS), Authentication::Token(token), TimeLimits::default(), router).await;
    }
}

/// Keeps an address from other programs without listening there. A browser may try it before the address of the agent, and would send the
/// page of another program the link with the token. `None` if the machine does not have the address.
///
/// # Errors
/// The system's error, with the address, if another program has it.
fn reserve(address: SocketAddr) -> io::Result<Option<TcpSocket>> {
    let reserved = || -> io::Result<TcpSocket> {
        // Without SO_REUSEADDR, no other socket gets the address, whether one listens or not.
        let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
        socket.bind(address)?;
        Ok(socket)
    };
    match reserved() {
        Ok(socket) => Ok(Some(socket)),
        Err(error) if matches!(Errno::from_io_error(&error), Some(Errno::AFNOSUPPORT | Errno::ADDRNOTAVAIL)) => {
            Ok(None)
        }
        Err(error) => {
            let why = format!("{address}, to which browsers also connect for the page: {}", reason(&error));
            Err(io::Error::new(error.kind(), why))
        }
    }
}

/// Tries to listen until that succeeds. The first failure is logged.
async fn bound<T>(
    program: Program,
    bind: impl AsyncFn() -> io::Result<T>,
    at: &impl std::fmt::Display,
    remedy: &str,
) -> T {
    let mut logged = false;
    loop {
        match bind().await {
            Ok(listener) => return listener,
            Err(error) if !logged => {
                logged = true;
                tracing::error!(
                    "cannot listen for admin requests on {at} ({}): {remedy}; {} every {} s",
                    reason(&error),
                    program.without_listener(),
                    RETRY.as_secs()
                );
            }
            Err(_) => {}
        }
        tokio::time::sleep(RETRY).await;
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener};

    use super::*;

    #[tokio::test]
    async fn no_other_program_gets_a_reserved_address() {
        let reserved = reserve((Ipv4Addr::LOCALHOST, 0).into()).unwrap().unwrap();
        let address = reserved.local_addr().unwrap();
        assert_eq!(TcpListener::bind(address).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        let refused = reserve(address).unwrap_err();
        assert!(refused.to_string().starts_with(&format!("{address}, to which browsers")), "{refused}");
        // An address of no machine (RFC 5737).
        assert!(reserve("192.0.2.1:0".parse().unwrap()).unwrap().is_none());
    }
}
