//! The HTTP server. An idle or slow client is disconnected, because its connection uses a file descriptor that pods may need.

use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::HttpBody;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until};

use super::authentication::{Access, Authentication};
use super::listener::{Accepted, Listener};
use super::seats::{Seat, Seats};

/// How long a client may take for the TLS handshake, and to send a whole request after it connects and after each answer.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a client may take to read an answer of known length: this, plus one second for each
/// [`MIN_BYTES_PER_SECOND`] bytes. The limit is needed because an answer stays in memory until it is read.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
const MIN_BYTES_PER_SECOND: u64 = 64 << 10;
/// How long the server waits after `accept` failed. The usual cause is that no file descriptors are left.
const RETRY: Duration = Duration::from_secs(1);

/// Accepts connections and answers requests. Each request carries its [`Access`] as an extension. Never returns.
pub(crate) async fn serve(listener: Listener, seats: Arc<Seats>, authentication: Authentication, router: Router) {
    let mut logged = false;
    loop {
        match listener.accept().await {
            Ok(accepted) => {
                logged = false;
                let seat = seats.take().await;
                tokio::spawn(connection(accepted, seat, authentication.clone(), router.clone()));
            }
            // The client closed the connection before it was accepted.
            Err(error) if concerns_one_connection(&error) => {}
            Err(error) => {
                if !logged {
                    tracing::error!(%error, "cannot accept admin connections; the agent tries again every second");
                }
                logged = true;
                sleep(RETRY).await;
            }
        }
    }
}

fn concerns_one_connection(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}

/// Answers the requests of one connection until the client closes it, exceeds a time limit, or loses its seat.
async fn connection(accepted: Accepted, seat: Seat, authentication: Authentication, router: Router) {
    let seat = Arc::new(seat);
    let served = async {
        if let Some(bytes) = accepted.establish(REQUEST_TIMEOUT).await {
            answer_requests(TokioIo::new(bytes), seat.clone(), authentication, router).await;
        }
    };
    tokio::select! {
        () = served => {}
        () = seat.lost() => {}
    }
}

async fn answer_requests(
    bytes: impl hyper::rt::Read + hyper::rt::Write + Unpin,
    seat: Arc<Seat>,
    authentication: Authentication,
    router: Router,
) {
    let router = TowerToHyperService::new(router);
    // The deadline for reading the current answer. An answer of unknown length, such as a stream, has none.
    let (deadlines, mut deadline) = watch::channel(None);
    let service = service_fn(move |mut request: hyper::Request<Incoming>| {
        // The client has read the previous answer, because hyper reads the next request only after that.
        deadlines.send_replace(None);
        let access = authentication.access(request.headers());
        if access == Access::Full {
            seat.authenticate();
        }
        request.extensions_mut().insert(access);
        let (deadlines, response) = (deadlines.clone(), router.call(request));
        async move {
            let response = response.await?;
            let length = response.body().size_hint().exact();
            deadlines.send_replace(
                length.map(|bytes| Instant::now() + ANSWER_TIMEOUT + Duration::from_secs(bytes / MIN_BYTES_PER_SECOND)),
            );
            Ok::<_, std::convert::Infallible>(response)
        }
    });
    let mut server = http1::Builder::new();
    server.timer(TokioTimer::new()).header_read_timeout(REQUEST_TIMEOUT);
    let mut connection = pin!(server.serve_connection(bytes, service));
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
                    tracing::trace!(%error, "an admin connection ended early");
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
