//! The server as a service that a client calls directly.

use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::Router;
use axum::body::{Body, Bytes, HttpBody};
use axum::http::Request;
use axum::response::Response;
use futures_util::future::BoxFuture;
use futures_util::stream::{self, Stream, StreamExt};
use tokio_util::sync::CancellationToken;
use tower_service::Service;

use super::ServerState;
use super::tls::Peer;
use crate::access::User;

/// A service with the rights of a user. See [`StandIn::service`](super::StandIn::service).
#[derive(Clone)]
pub struct StandInService {
    router: Router,
    user: User,
}

impl std::fmt::Debug for StandInService {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StandInService").field("user", &self.user.name).finish_non_exhaustive()
    }
}

impl StandInService {
    pub(super) fn new(shared: &Arc<ServerState>, user: User) -> Self {
        Self { router: shared.router(), user }
    }
}

impl<B> Service<Request<B>> for StandInService
where
    B: HttpBody<Data = Bytes> + Send + 'static,
    B::Error: Into<axum::BoxError>,
{
    type Response = Response;
    type Error = io::Error;
    type Future = BoxFuture<'static, io::Result<Response>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        let cut = CancellationToken::new();
        request.extensions_mut().insert(cut.clone());
        request.extensions_mut().insert(Peer::User(self.user.clone()));
        let answer = self.router.call(request);
        Box::pin(async move {
            tokio::select! {
                // The handler cuts the connection.
                biased;
                answer = answer => {
                    let answer: Result<Response, Infallible> = answer;
                    let Ok(answer) = answer;
                    Ok(answer.map(|body| Body::from_stream(until_cut(body, cut))))
                }
                () = cut.cancelled() => Err(reset()),
            }
        })
    }
}

/// The parts of a body until the connection is cut.
fn until_cut(body: Body, cut: CancellationToken) -> impl Stream<Item = io::Result<Bytes>> + Send {
    stream::unfold(Some((body.into_data_stream(), cut)), |connection| async move {
        let (mut parts, cut) = connection?;
        tokio::select! {
            biased;
            () = cut.cancelled() => Some((Err(reset()), None)),
            part = parts.next() => {
                let part = part?.map_err(io::Error::other);
                Some((part, Some((parts, cut))))
            }
        }
    })
}

fn reset() -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionReset, "the server has closed the connection")
}
