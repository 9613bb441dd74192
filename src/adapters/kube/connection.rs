//! A client whose credentials are replaced while the client is in use.

use std::sync::Arc;

use futures_util::StreamExt;
use http::Request;
use http_body_util::{BodyExt, BodyStream, StreamBody};
use kube::Client;
use kube::client::Body;
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

/// The credentials of a client. Clones share the credentials.
#[derive(Clone)]
pub struct Connection(Arc<Mutex<Result<Current, Arc<str>>>>);

/// The client that sends the requests now.
#[derive(Clone)]
struct Current {
    client: Client,
    /// Cancelled when another client takes the requests.
    replaced: CancellationToken,
}

/// The client has no credentials yet.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct NoCredentials(Arc<str>);

impl Connection {
    /// A client without credentials, and what gives it credentials. Each request fails with `problem` until then. Must be called in a
    /// tokio runtime.
    pub fn new(problem: &str) -> (Client, Self) {
        let connection = Connection(Arc::new(Mutex::new(Err(problem.into()))));
        let shared = connection.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let current = shared.0.lock().clone();
            async move {
                let Current { client, replaced } =
                    current.map_err(|problem| kube::Error::Service(Box::new(NoCredentials(problem))))?;
                let is_watch =
                    request.uri().query().is_some_and(|query| query.split('&').any(|part| part == "watch=true"));
                let response = client.send(request).await?;
                Ok::<_, kube::Error>(response.map(|body| {
                    if !is_watch {
                        return body.boxed_unsync();
                    }
                    // A connection without a reader is closed.
                    StreamBody::new(BodyStream::new(body).take_until(replaced.cancelled_owned())).boxed_unsync()
                }))
            }
        });
        (Client::new(service, "default"), connection)
    }

    /// Sends all further requests with another client. Watches of the earlier client end, and their users start them again with the
    /// new client. Other requests of the earlier client get their answers.
    pub fn replace(&self, client: Client) {
        let next = Current { client, replaced: CancellationToken::new() };
        let earlier = std::mem::replace(&mut *self.0.lock(), Ok(next));
        if let Ok(earlier) = earlier {
            earlier.replaced.cancel();
        }
    }

    /// Changes the error of requests, if the client has no credentials yet.
    pub fn explain(&self, problem: &str) {
        if let Err(current) = &mut *self.0.lock() {
            *current = problem.into();
        }
    }
}
