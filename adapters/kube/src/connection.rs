//! A client whose credentials are replaced while the client is in use.

use std::sync::Arc;

use futures_util::StreamExt;
use http::Request;
use http_body_util::{BodyExt, BodyStream, StreamBody};
use kube::Client;
use kube::client::Body;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// Gives credentials to a client. Clones give them to the same client.
#[derive(Clone)]
pub struct Connection(watch::Sender<Result<CurrentClient, Arc<str>>>);

/// The client that sends the requests now.
#[derive(Clone)]
struct CurrentClient {
    client: Client,
    /// Cancelled when another client takes the requests.
    replaced: CancellationToken,
}

/// The client has no credentials yet.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct NoCredentials(Arc<str>);

impl Connection {
    /// A client without credentials, and the connection that gives credentials to the client. Until then, watches wait, and other
    /// requests fail with `problem`.
    /// Must be called in a tokio runtime.
    pub fn new(problem: &str) -> (Client, Self) {
        let connection = Connection(watch::Sender::new(Err(problem.into())));
        let shared = connection.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let mut current = shared.0.subscribe();
            async move {
                let is_watch =
                    request.uri().query().is_some_and(|query| query.split('&').any(|part| part == "watch=true"));
                if is_watch {
                    // A watch that failed would be started again after a backoff of up to 30 s. The sender exists as long as the
                    // service.
                    let _given = current.wait_for(Result::is_ok).await;
                }
                let found = current.borrow().clone();
                let CurrentClient { client, replaced } =
                    found.map_err(|problem| kube::Error::Service(Box::new(NoCredentials(problem))))?;
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
        let next = CurrentClient { client, replaced: CancellationToken::new() };
        if let Ok(earlier) = self.0.send_replace(Ok(next)) {
            earlier.replaced.cancel();
        }
    }

    /// Changes the error of requests, if the client has no credentials yet.
    pub fn set_problem(&self, problem: &str) {
        self.0.send_if_modified(|current| {
            let Err(current) = current else { return false };
            *current = problem.into();
            true
        });
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures_util::TryStreamExt;
    use k8s_openapi::api::core::v1::Node;
    use kube::Api;
    use kube::api::{ListParams, WatchParams};
    use podwright_stand_in::{StandIn, Verb};
    use tokio::time::timeout;

    use super::super::Credentials;
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(180);

    #[tokio::test]
    async fn watches_wait_for_credentials_and_end_when_they_are_replaced() {
        let server = StandIn::start().await.unwrap();
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("kubeconfig");
        server.write_kubeconfig(&path, &server.admin_token()).unwrap();
        let (client, connection) = Connection::new("approve the request");
        let nodes = Api::<Node>::all(client);
        connection.set_problem("approve the second request");
        let error = nodes.list(&ListParams::default()).await.unwrap_err();
        assert!(error.to_string().contains("approve the second request"), "{error}");

        let params = WatchParams::default().timeout(290);
        let watched = tokio::spawn({
            let nodes = nodes.clone();
            async move { nodes.watch(&params, "0").await.unwrap().try_collect::<Vec<_>>().await.unwrap() }
        });
        connection.replace(Credentials::read(&path).unwrap().client().await.unwrap());
        nodes.list(&ListParams::default()).await.unwrap();
        let is_watched = || server.requests().iter().any(|served| served.verb == Some(Verb::Watch));
        let started = async {
            while !is_watched() {
                tokio::task::yield_now().await;
            }
        };
        timeout(PATIENCE, started).await.expect("the watch starts when the client has credentials");
        assert!(!watched.is_finished(), "the watch goes on with its credentials");
        connection.replace(Credentials::read(&path).unwrap().client().await.unwrap());
        timeout(PATIENCE, watched).await.expect("the watch ends before its timeout of 290 s").unwrap();
        nodes.list(&ListParams::default()).await.unwrap();
    }
}
