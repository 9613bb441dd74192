//! The HTTP server of the admin endpoints. Any process of this machine may connect, so connections are limited in number
//! and in time: an idle client must not use up the file descriptors that pods need.

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
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::time::{Instant, sleep, sleep_until};

use super::logs;
use crate::agent::page;

/// How many connections may be open: one for each watcher and each log reader, which may stay for ever, and 64 for other
/// requests. Further connections wait in the backlog of the listening socket.
const MAX_CONNECTIONS: usize = page::MAX_WATCHERS + logs::MAX_READERS + 64;
/// How long a client may take to send a whole request, after it connects and after each answer.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a client may take to read an answer of known length: this, plus one second for each
/// [`MIN_BYTES_PER_SECOND`] bytes. The limit is needed because an answer stays in memory until it is read.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
const MIN_BYTES_PER_SECOND: u64 = 64 << 10;
/// How long the server waits after `accept` failed. The usual cause is that no file descriptors are left.
const RETRY: Duration = Duration::from_secs(1);

/// Accepts connections and answers requests. Never returns.
pub(super) async fn serve(listener: TcpListener, router: Router) {
    let permits = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let mut logged = false;
    loop {
        let Ok(permit) = permits.clone().acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, _)) => {
                logged = false;
                let router = router.clone();
                tokio::spawn(async move {
                    let _permit = permit;
                    connection(stream, router).await;
                });
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

/// Answers the requests of one connection until the client closes it or exceeds a timeout.
async fn connection(stream: TcpStream, router: Router) {
    let router = TowerToHyperService::new(router);
    // The deadline for reading the current answer. An answer of unknown length, such as a stream, has none.
    let (deadlines, mut deadline) = watch::channel(None);
    let service = service_fn(move |request: hyper::Request<Incoming>| {
        // The client has read the previous answer, because hyper reads the next request only after that.
        deadlines.send_replace(None);
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
    let mut connection = pin!(server.serve_connection(TokioIo::new(stream), service));
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
