//! The HTTP server. An idle or slow client is disconnected, because its connection uses a file descriptor that pods may need.

use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::HttpBody;
use futures_util::Stream;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until};

use super::authentication::{Access, Authentication};
use super::clients::ClientAddress;
use super::listener::{Accepted, Listener, PeerCertificates};
use super::seated::SeatedBytes;
use super::seats::{Seat, Seats};

/// How long a client may take for the TLS handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a client may take to read an answer of known length: this, plus one second for each
/// [`MIN_BYTES_PER_SECOND`] bytes. The limit is needed because an answer stays in memory until it is read.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
const MIN_BYTES_PER_SECOND: u64 = 64 << 10;
/// How long the server waits after `accept` failed. The usual cause is that no file descriptors are left.
const RETRY: Duration = Duration::from_secs(1);

/// The time limits of a listener.
#[derive(Clone, Copy, Debug)]
pub struct TimeLimits {
    /// How long a client may take to send a whole request after it connects and after each answer.
    pub request: Duration,
    /// How long an answer of unknown length may take. An upgraded connection has no limit.
    pub stream: Option<Duration>,
}

impl Default for TimeLimits {
    fn default() -> Self {
        TimeLimits { request: Duration::from_secs(10), stream: None }
    }
}

/// The connection of a request, as an extension of the request.
#[derive(Clone, Debug)]
pub struct Connection {
    seat: Arc<Seat>,
    /// The certificates of the client.
    pub peer: PeerCertificates,
    /// The address of the client. `None` over a Unix socket.
    pub client: Option<ClientAddress>,
}

impl Connection {
    /// Records that the client has authenticated itself. Returns false if all seats for such clients are taken: a new connection can
    /// then displace this one.
    pub fn authenticate(&self) -> bool {
        self.seat.authenticate()
    }
}

/// Accepts connections and answers requests. Each request carries its [`Access`] and its [`Connection`] as extensions. Never returns.
pub async fn serve(
    listener: Listener,
    seats: Arc<Seats>,
    authentication: Authentication,
    limits: TimeLimits,
    router: Router,
) {
    let mut accepting = Accepting::new(listener);
    loop {
        let accepted = accepting.next().await;
        let client = accepted.client();
        if !seats.admits(client) {
            continue;
        }
        let seat = seats.take(client).await;
        tokio::spawn(connection(accepted, seat, authentication.clone(), limits, router.clone()));
    }
}

/// The connections of a listener whose clients may use it, each with a seat. For servers of another protocol than HTTP/1. A client that
/// needs a TLS handshake delays the next one. Never ends.
pub fn connections(listener: Listener, seats: Arc<Seats>) -> impl Stream<Item = SeatedBytes> {
    futures_util::stream::unfold((Accepting::new(listener), seats), async |(mut accepting, seats)| {
        loop {
            let accepted = accepting.next().await;
            let client = accepted.client();
            if let Some((bytes, _)) = accepted.establish(HANDSHAKE_TIMEOUT).await {
                let seat = Arc::new(seats.take(client).await);
                return Some((SeatedBytes::new(bytes, seat), (accepting, seats)));
            }
        }
    })
}

/// A listener that accepts connections for as long as it exists.
struct Accepting {
    listener: Listener,
    /// Whether the current failure is logged.
    logged: bool,
}

impl Accepting {
    fn new(listener: Listener) -> Self {
        Accepting { listener, logged: false }
    }

    /// Waits for the next connection. A failure is logged once, and tried again. Cancel safe.
    async fn next(&mut self) -> Accepted {
        loop {
            match self.listener.accept().await {
                Ok(accepted) => {
                    self.logged = false;
                    return accepted;
                }
                // The client closed the connection before it was accepted.
                Err(error) if concerns_one_connection(&error) => {}
                Err(error) => {
                    if !self.logged {
                        tracing::error!(%error, "cannot accept connections; the agent tries again every second");
                    }
                    self.logged = true;
                    sleep(RETRY).await;
                }
            }
        }
    }
}

fn concerns_one_connection(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}

/// Answers the requests of one connection until the client closes it, exceeds a time limit, or loses its seat. An upgraded connection
/// continues without this task.
async fn connection(
    accepted: Accepted,
    seat: Seat,
    authentication: Authentication,
    limits: TimeLimits,
    router: Router,
) {
    let (seat, client) = (Arc::new(seat), accepted.client());
    let served = async {
        if let Some((bytes, peer)) = accepted.establish(HANDSHAKE_TIMEOUT).await {
            let bytes = SeatedBytes::new(bytes, seat.clone());
            let connection = Connection { seat: seat.clone(), peer, client };
            answer_requests(bytes, connection, authentication, limits, router).await;
        }
    };
    tokio::select! {
        () = served => {}
        () = seat.lost() => {}
    }
}

async fn answer_requests(
    bytes: SeatedBytes,
    connection: Connection,
    authentication: Authentication,
    limits: TimeLimits,
    router: Router,
) {
    let router = TowerToHyperService::new(router);
    // The deadline for reading the current answer.
    let (deadlines, mut deadline) = watch::channel(None);
    let service = service_fn(move |mut request: hyper::Request<Incoming>| {
        // The client has read the previous answer, because hyper reads the next request only after that.
        deadlines.send_replace(None);
        let access = authentication.access(request.headers());
        if access == Access::Full {
            connection.seat.authenticate();
        }
        request.extensions_mut().insert(access);
        request.extensions_mut().insert(connection.clone());
        let (deadlines, response) = (deadlines.clone(), router.call(request));
        async move {
            let response = response.await?;
            let limit = match response.body().size_hint().exact() {
                Some(bytes) => Some(ANSWER_TIMEOUT + Duration::from_secs(bytes / MIN_BYTES_PER_SECOND)),
                None => limits.stream,
            };
            deadlines.send_replace(limit.map(|limit| Instant::now() + limit));
            Ok::<_, std::convert::Infallible>(response)
        }
    });
    let mut server = http1::Builder::new();
    server.timer(TokioTimer::new()).header_read_timeout(limits.request);
    let mut connection = pin!(server.serve_connection(TokioIo::new(bytes), service).with_upgrades());
    loop {
        let current = *deadline.borrow_and_update();
        let late = async {
            match current {
                Some(deadline) => sleep_until(deadline).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            ended = &mut connection => {
                if let Err(error) = ended {
                    tracing::trace!(%error, "a connection ended early");
                }
                return;
            }
            () = late => return,
            _ = deadline.changed() => {}
        }
    }
}

#[cfg(test)]
mod tests;
