//! The network calls of probes and lifecycle hooks: HTTP, TCP and gRPC.
//!
//! ```no_run
//! use std::time::Duration;
//!
//! use podwright_ports::{NetworkClient, TcpTarget};
//! use podwright_network::Network;
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let network = Network::new()?;
//! let target = TcpTarget { host: "127.0.0.1".to_owned(), port: 6379 };
//! network.tcp_connect(target, Duration::from_secs(1)).await?;
//! # Ok(())
//! # }
//! ```
//!
//! # Parts
//!
//! - [`Network`]: the port [`NetworkClient`] over the real network.
//! - [`BuildNetworkError`]: why its clients cannot be created.
//!
//! # Arrows
//!
//! The crate uses `podwright-ports`, for the port, `podwright-core`, and `podwright-grpc-socket`, for the names of gRPC codes. The agent
//! and embedders use the crate.

mod tls;

use std::error::Error;
use std::fmt;
use std::future::Future;
use std::io;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use podwright_core::probes::target::PROBE_USER_AGENT;
use podwright_grpc_socket::code_name;
use podwright_ports::{GrpcHealth, GrpcTarget, HttpTarget, NetworkClient, NetworkError, TcpTarget, address};
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
        let request = self.http.get(target.url()).headers(headers(&target.headers)?);
        let address = address(&target.host, target.port);
        let mut response = request.send().await.map_err(|error| failed(&address, error))?;
        let mut body = Vec::new();
        while body.len() < MAX_BODY
            && let Some(chunk) = response.chunk().await.map_err(|error| failed(&address, error))?
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
            connection.map(drop).map_err(|error| dial_failed(address(&target.host, target.port), &error))
        };
        with_timeout(timeout, connect).boxed()
    }

    fn grpc_check(&self, target: GrpcTarget, timeout: Duration) -> BoxFuture<'_, Result<GrpcHealth, NetworkError>> {
        with_timeout(timeout, check(target, timeout)).boxed()
    }
}

async fn check(target: GrpcTarget, timeout: Duration) -> Result<GrpcHealth, NetworkError> {
    let address = address(&target.host, target.port);
    let endpoint = Endpoint::from_shared(format!("http://{address}"))
        .and_then(|endpoint| endpoint.user_agent(PROBE_USER_AGENT))
        .map_err(|error| NetworkError::failed(TransportError(error)))?;
    let late = || NetworkError::Dial { address: address.clone(), error: "i/o timeout".to_owned() };
    // A little less than the limit of the whole call, so that a connection that is late is reported as such.
    let channel = tokio::time::timeout(timeout.mul_f64(0.99), endpoint.connect()).await.map_err(|_| late())?;
    let channel = channel.map_err(|error| match io_cause(&error) {
        Some(error) => dial_failed(address.clone(), error),
        None => NetworkError::failed(TransportError(error)),
    })?;
    let request = HealthCheckRequest { service: target.service };
    match HealthClient::new(channel).check(request).await {
        Ok(answer) => Ok(match answer.into_inner().status() {
            ServingStatus::Unknown => GrpcHealth::Unknown,
            ServingStatus::Serving => GrpcHealth::Serving,
            ServingStatus::NotServing => GrpcHealth::NotServing,
            ServingStatus::ServiceUnknown => GrpcHealth::ServiceUnknown,
        }),
        Err(status) => Err(NetworkError::Grpc { code: code_name(status.code()), message: status.message().to_owned() }),
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
        attempt.error(format!("stopped after {MAX_REDIRECTS} redirects"))
    } else {
        attempt.follow()
    }
}

fn headers(target: &[(String, String)]) -> Result<HeaderMap, NetworkError> {
    let mut headers = HeaderMap::with_capacity(target.len() + 1);
    headers.insert(CONNECTION, HeaderValue::from_static("close"));
    for (name, value) in target {
        // The value of a header may be a password, and the error is an event of the pod.
        let invalid = |what: &str| {
            NetworkError::failed(format!("header {name:?} cannot be sent: its {what} is not valid in HTTP"))
        };
        let key = HeaderName::from_bytes(name.as_bytes()).map_err(|_| invalid("name"))?;
        headers.append(key, HeaderValue::from_str(value).map_err(|_| invalid("value"))?);
    }
    Ok(headers)
}

/// The host without the brackets of an IPv6 address.
fn host_of(host: &str) -> &str {
    host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host)
}

fn failed(address: &str, error: reqwest::Error) -> NetworkError {
    let error = error.without_url();
    if is_plain_http(&error) {
        return NetworkError::PlainHttp;
    }
    match io_cause(&error) {
        Some(cause) if error.is_connect() && cause.raw_os_error().is_some() => dial_failed(address.to_owned(), cause),
        _ => NetworkError::failed(TransportError(error)),
    }
}

/// The error of a connection that the operating system refused. Go prints the text of the operating system in small letters.
fn dial_failed(address: String, error: &io::Error) -> NetworkError {
    let text = error.to_string();
    let text = text.split(" (os error").next().unwrap_or_default().to_lowercase();
    NetworkError::Dial { address, error: text }
}

/// The innermost I/O error among the causes of an error.
fn io_cause<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a io::Error> {
    let mut found = None;
    let mut cause = Some(error);
    while let Some(error) = cause {
        found = error.downcast_ref().or(found);
        cause = error.source();
    }
    found
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
