//! The network calls of probes and lifecycle hooks: HTTP, TCP and gRPC.

mod tls;

use std::error::Error;
use std::fmt;
use std::future::Future;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use podwright_actors::ports::{GrpcTarget, HttpTarget, NetworkClient, NetworkError, TcpTarget};
use podwright_actors::probes::target::PROBE_USER_AGENT;
use reqwest::header::{CONNECTION, HeaderMap, HeaderName, HeaderValue};
use reqwest::redirect;
use tokio::net::TcpStream;
use tonic::transport::Endpoint;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

/// How many redirects are followed.
const MAX_REDIRECTS: usize = 10;
/// How many bytes of a response body are read (upstream `maxRespBodyLength`, kubelet 1.36).
const MAX_BODY: usize = 10 << 10;

/// Calls over the real network. Every call opens a new connection, because a call on a kept connection would succeed even
/// if the server accepted no new ones. No call uses a proxy, and certificates are not verified.
#[derive(Clone, Debug)]
pub struct Network {
    http: reqwest::Client,
}

/// The HTTP client could not be created.
#[derive(Debug, thiserror::Error)]
#[error("cannot create the HTTP client of probes")]
pub struct BuildNetworkError(#[source] Box<dyn Error + Send + Sync>);

impl Network {
    /// Creates the clients for all calls.
    ///
    /// # Errors
    /// [`BuildNetworkError`] if the TLS library refuses its configuration.
    pub fn new() -> Result<Self, BuildNetworkError> {
        let tls = tls::trusting().map_err(|error| BuildNetworkError(error.into()))?;
        let http = reqwest::Client::builder()
            .tls_backend_preconfigured(tls)
            .no_proxy()
            .pool_max_idle_per_host(0)
            .http1_only()
            .redirect(redirect::Policy::custom(same_host))
            .build()
            .map_err(|error| BuildNetworkError(error.into()))?;
        Ok(Network { http })
    }

    async fn get(&self, target: HttpTarget) -> Result<(u16, String), NetworkError> {
        let scheme = if target.https { "https" } else { "http" };
        let url = format!("{scheme}://{}{}", authority(&target.host, target.port), target.path);
        let request = self.http.get(url).headers(headers(&target.headers)?);
        let mut response = request.send().await.map_err(failed)?;
        let mut body = Vec::new();
        while body.len() < MAX_BODY
            && let Some(chunk) = response.chunk().await.map_err(failed)?
        {
            body.extend_from_slice(&chunk[..chunk.len().min(MAX_BODY - body.len())]);
        }
        Ok((response.status().as_u16(), String::from_utf8_lossy(&body).into_owned()))
    }
}

impl NetworkClient for Network {
    fn http_get(&self, target: HttpTarget, timeout: Duration) -> BoxFuture<'_, Result<(u16, String), NetworkError>> {
        with_timeout(timeout, self.get(target)).boxed()
    }

    fn tcp_connect(&self, target: TcpTarget, timeout: Duration) -> BoxFuture<'_, Result<(), NetworkError>> {
        let connect = async move {
            let connection = TcpStream::connect((host_of(&target.host), target.port)).await;
            connection.map(drop).map_err(NetworkError::failed)
        };
        with_timeout(timeout, connect).boxed()
    }

    fn grpc_check(&self, target: GrpcTarget, timeout: Duration) -> BoxFuture<'_, Result<bool, NetworkError>> {
        with_timeout(timeout, check(target)).boxed()
    }
}

async fn check(target: GrpcTarget) -> Result<bool, NetworkError> {
    let endpoint = Endpoint::from_shared(format!("http://{}", authority(&target.host, target.port)))
        .and_then(|endpoint| endpoint.user_agent(PROBE_USER_AGENT))
        .map_err(|error| NetworkError::failed(TransportError(error)))?;
    let channel = endpoint.connect().await.map_err(|error| NetworkError::failed(TransportError(error)))?;
    let request = HealthCheckRequest { service: target.service };
    match HealthClient::new(channel).check(request).await {
        Ok(answer) => Ok(answer.into_inner().status() == ServingStatus::Serving),
        Err(status) => Err(NetworkError::failed(format!("{:?}: {}", status.code(), status.message()))),
    }
}

async fn with_timeout<T>(
    timeout: Duration,
    call: impl Future<Output = Result<T, NetworkError>>,
) -> Result<T, NetworkError> {
    tokio::time::timeout(timeout, call).await.unwrap_or(Err(NetworkError::Timeout(timeout)))
}

/// Follows redirects to the host of the first request. A redirect to another host is returned as the response, and the caller
/// decides what it means (upstream `RedirectChecker`, kubelet 1.36).
fn same_host(attempt: redirect::Attempt<'_>) -> redirect::Action {
    if attempt.previous().first().and_then(|first| first.host_str()) != attempt.url().host_str() {
        attempt.stop()
    } else if attempt.previous().len() > MAX_REDIRECTS {
        attempt.error(format!("more than {MAX_REDIRECTS} redirects"))
    } else {
        attempt.follow()
    }
}

fn headers(target: &[(String, String)]) -> Result<HeaderMap, NetworkError> {
    let mut headers = HeaderMap::with_capacity(target.len() + 1);
    headers.insert(CONNECTION, HeaderValue::from_static("close"));
    for (name, value) in target {
        let invalid = || NetworkError::failed(format!("header {name:?} cannot be sent: {value:?}"));
        let key = HeaderName::from_bytes(name.as_bytes()).map_err(|_| invalid())?;
        headers.append(key, HeaderValue::from_str(value).map_err(|_| invalid())?);
    }
    Ok(headers)
}

/// Host and port in the form of a URL.
fn authority(host: &str, port: u16) -> String {
    let host = host_of(host);
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

/// The host without the brackets of an IPv6 address.
fn host_of(host: &str) -> &str {
    host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host)
}

fn failed(error: reqwest::Error) -> NetworkError {
    let error = error.without_url();
    if is_plain_http(&error) { NetworkError::PlainHttp } else { NetworkError::failed(TransportError(error)) }
}

/// Whether the server answered a TLS handshake with bytes that are not a TLS record, as a server of plain HTTP does.
fn is_plain_http(error: &(dyn Error + 'static)) -> bool {
    let no_record = rustls::Error::InvalidMessage(rustls::InvalidMessage::InvalidContentType);
    if error.downcast_ref() == Some(&no_record) {
        return true;
    }
    // An I/O error does not list the error that it wraps among its sources.
    match error.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref) {
        Some(wrapped) => is_plain_http(wrapped),
        None => error.source().is_some_and(is_plain_http),
    }
}

/// The error of a transport library. The library's own text says only that the transport failed, so the text is that of the
/// error's source.
#[derive(Debug)]
struct TransportError<E>(E);

impl<E: Error> fmt::Display for TransportError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.source() {
            Some(source) => fmt::Display::fmt(source, f),
            None => fmt::Display::fmt(&self.0, f),
        }
    }
}

impl<E: Error> Error for TransportError<E> {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.0.source()?.source()
    }
}
