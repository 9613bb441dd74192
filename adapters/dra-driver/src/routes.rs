//! The services of one socket.

use std::convert::Infallible;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio_util::sync::CancellationToken;
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::{Service, http};
use tonic::server::NamedService;

type Answer = BoxFuture<'static, http::Response<Body>>;
type Call = Box<dyn Fn(http::Request<Body>) -> Answer + Send + Sync>;

/// Finds the service of a call. A panic of a service becomes the answer `Internal`.
#[derive(Clone)]
pub(super) struct Routes {
    services: Arc<Vec<(&'static str, Call)>>,
    aborted: CancellationToken,
}

impl Routes {
    /// Routes without a service. When `aborted` is cancelled, running calls end, and new ones are refused.
    pub(super) fn new(aborted: CancellationToken) -> Self {
        Routes { services: Arc::default(), aborted }
    }

    /// Adds a service before the first call.
    pub(super) fn with<S>(mut self, service: S) -> Self
    where
        S: NamedService + Clone + Send + Sync + 'static,
        S: Service<http::Request<Body>, Response = http::Response<Body>, Error = Infallible>,
        S::Future: Send,
    {
        let call: Call = Box::new(move |request| {
            let mut service = service.clone();
            Box::pin(async move { service.call(request).await.unwrap_or_else(|never| match never {}) })
        });
        Arc::get_mut(&mut self.services)
            .expect("the routes are not shared before they are complete")
            .push((S::NAME, call));
        self
    }

    /// Ends running calls and refuses new ones.
    pub(super) fn abort(&self) {
        self.aborted.cancel();
    }
}

impl Service<http::Request<Body>> for Routes {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let this = self.clone();
        Box::pin(async move {
            let name = request.uri().path().split('/').nth(1).unwrap_or_default();
            let Some((_, call)) = this.services.iter().find(|(service, _)| *service == name) else {
                return Ok(Status::unimplemented("the driver does not serve this service").into_http());
            };
            let answer = AssertUnwindSafe(call(request)).catch_unwind();
            Ok(tokio::select! {
                answer = answer => answer.unwrap_or_else(|_| Status::internal("the call panicked").into_http()),
                () = this.aborted.cancelled() => Status::unavailable("the driver stops").into_http(),
            })
        })
    }
}
