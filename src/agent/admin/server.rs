//! Answering on a socket, to anybody on this machine: whoever only sits there costs the agent a bounded number of
//! descriptors and goes away in time, so that pods never want for what the page takes.

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

/// How many connections there are at a time: one for each that watches or reads a log, which may go on for ever, and some
/// for all else. Who comes when all are taken waits in the system's queue until one ends.
const CONNECTIONS: usize = page::SEATS + logs::SEATS + 64;
/// How long a connection may be without a whole request, before the first one and after each answer.
const REQUEST: Duration = Duration::from_secs(10);
/// How long an answer of known length may be on its way, and how many bytes of it are taken each second at the least.
/// Answers are kept whole until they were taken.
const ANSWER: (Duration, u64) = (Duration::from_secs(30), 64 << 10);
/// How long until a socket that cannot be accepted is tried again: most likely there are no descriptors left.
const RETRY: Duration = Duration::from_secs(1);

/// Accepts and answers, for ever.
pub(super) async fn serve(listener: TcpListener, router: Router) {
    let seats = Arc::new(Semaphore::new(CONNECTIONS));
    let mut told = false;
    loop {
        let Ok(seat) = seats.clone().acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, _)) => {
                told = false;
                let router = router.clone();
                tokio::spawn(async move {
                    let _seat = seat;
                    connection(stream, router).await;
                });
            }
            // It was gone before we came to it.
            Err(error) if is_of_one(&error) => {}
            Err(error) => {
                if !told {
                    tracing::error!(%error, "admin endpoints take no connection; it is tried again every second");
                }
                told = true;
                sleep(RETRY).await;
            }
        }
    }
}

fn is_of_one(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}

/// Answers until either side has enough.
async fn connection(stream: TcpStream, router: Router) {
    let router = TowerToHyperService::new(router);
    // Until when the answer under way is to be taken; one without end may go on.
    let (answers, mut answer) = watch::channel(None);
    let service = service_fn(move |request: hyper::Request<Incoming>| {
        // The answer before was taken, or this request would not have been read.
        answers.send_replace(None);
        let (answered, response) = (answers.clone(), router.call(request));
        async move {
            let response = response.await?;
            let length = response.body().size_hint().exact();
            answered
                .send_replace(length.map(|bytes| Instant::now() + ANSWER.0 + Duration::from_secs(bytes / ANSWER.1)));
            Ok::<_, std::convert::Infallible>(response)
        }
    });
    let mut server = http1::Builder::new();
    server.timer(TokioTimer::new()).header_read_timeout(REQUEST);
    let mut connection = pin!(server.serve_connection(TokioIo::new(stream), service));
    loop {
        let until = *answer.borrow_and_update();
        let late = async {
            match until {
                Some(until) => sleep_until(until).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            ended = &mut connection => {
                if let Err(error) = ended {
                    tracing::trace!(%error, "a connection to the admin endpoints ended early");
                }
                return;
            }
            () = late => return,
            _ = answer.changed() => {}
        }
    }
}

#[cfg(test)]
mod tests;
