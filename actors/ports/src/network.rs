//! Outgoing network calls of probes and lifecycle hooks.

use std::error::Error;
use std::time::Duration;

use futures_util::future::BoxFuture;

use crate::{ErrorSource, is_same};
use podwright_model::texts::probes;

/// Makes the network calls of probes and lifecycle hooks. Dropping a future ends its call.
pub trait NetworkClient: Send + Sync + 'static {
    /// Sends a GET request. Follows up to 10 redirects on the same host and verifies no certificate. Returns the status
    /// code and the first 10 KiB of the body.
    ///
    /// # Errors
    /// [`NetworkError`] if no complete answer arrives within `timeout`.
    fn http_get(&self, target: HttpTarget, timeout: Duration) -> BoxFuture<'_, Result<(u16, String), NetworkError>>;

    /// Opens a TCP connection and closes it.
    ///
    /// # Errors
    /// [`NetworkError`] if the connection is not open within `timeout`.
    fn tcp_connect(&self, target: TcpTarget, timeout: Duration) -> BoxFuture<'_, Result<(), NetworkError>>;

    /// Calls `grpc.health.v1.Health/Check` and returns the status of the service.
    ///
    /// # Errors
    /// [`NetworkError`] if no answer arrives within `timeout`.
    fn grpc_check(&self, target: GrpcTarget, timeout: Duration) -> BoxFuture<'_, Result<GrpcHealth, NetworkError>>;
}

/// The health of a gRPC service (`ServingStatus` of `grpc.health.v1`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GrpcHealth {
    /// `UNKNOWN`.
    Unknown,
    /// `SERVING`: the service is healthy.
    Serving,
    /// `NOT_SERVING`.
    NotServing,
    /// `SERVICE_UNKNOWN`.
    ServiceUnknown,
}

impl GrpcHealth {
    /// The name of the status in the protocol.
    pub fn as_str(self) -> &'static str {
        match self {
            GrpcHealth::Unknown => "UNKNOWN",
            GrpcHealth::Serving => "SERVING",
            GrpcHealth::NotServing => "NOT_SERVING",
            GrpcHealth::ServiceUnknown => "SERVICE_UNKNOWN",
        }
    }
}

/// A network call got no answer. The texts of connections are those of Go, which the kubelet's events have.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NetworkError {
    /// The answer did not arrive in time.
    #[error("no answer within {0:?}")]
    Timeout(Duration),
    /// The request used TLS and the server answered in plain HTTP.
    #[error("http: server gave HTTP response to HTTPS client")]
    PlainHttp,
    /// The connection could not be opened.
    #[error("{}", probes::dial_failed(.address, .error))]
    Dial {
        /// Host and port.
        address: String,
        /// The text of the operating system, such as `connection refused`.
        error: String,
    },
    /// The server answered a gRPC call with an error.
    #[error("rpc error: code = {code} desc = {message}")]
    Grpc {
        /// The name of the gRPC code, such as `Unimplemented`.
        code: &'static str,
        /// The message of the status.
        message: String,
    },
    /// The call failed.
    #[error("{0}")]
    Failed(#[source] ErrorSource),
}

impl NetworkError {
    /// A [`NetworkError::Failed`] with this source.
    pub fn failed(source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        NetworkError::Failed(source.into().into())
    }
}

/// Two errors are equal if they have the same variant and the same text, sources included.
impl PartialEq for NetworkError {
    fn eq(&self, other: &Self) -> bool {
        is_same(self, other)
    }
}

/// The target of a GET request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpTarget {
    /// Whether to use TLS.
    pub https: bool,
    /// The host name or address to connect to.
    pub host: String,
    /// The port.
    pub port: u16,
    /// The path and query, with a leading slash.
    pub path: String,
    /// The headers, in order. A `Host` header replaces the one that is made from `host`.
    pub headers: Vec<(String, String)>,
}

/// Host and port as in a URL. An IPv6 address gets brackets.
pub fn address(host: &str, port: u16) -> String {
    let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

impl HttpTarget {
    /// The URL of the request.
    pub fn url(&self) -> String {
        let scheme = if self.https { "https" } else { "http" };
        format!("{scheme}://{}{}", address(&self.host, self.port), self.path)
    }

    /// The same request without TLS and without its `Authorization` header, because credentials must not be sent
    /// unencrypted.
    pub fn without_tls(mut self) -> Self {
        self.https = false;
        self.headers.retain(|(name, _)| !name.eq_ignore_ascii_case("authorization"));
        self
    }
}

/// The target of a TCP connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TcpTarget {
    /// The host name or address.
    pub host: String,
    /// The port.
    pub port: u16,
}

/// The target of a gRPC health check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GrpcTarget {
    /// The host name or address.
    pub host: String,
    /// The port.
    pub port: u16,
    /// The service name; empty for the server as a whole.
    pub service: String,
}
