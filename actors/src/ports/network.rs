//! Outgoing network calls that probes and lifecycle hooks make.

use std::time::Duration;

use futures_util::future::BoxFuture;

/// Makes the network calls of probes and hooks. Any outcome that is not an answer is a [`NetworkError`].
pub trait NetworkClient: Send + Sync + 'static {
    /// GETs, follows redirects on the same host (at most 10), checks no certificate; answers with the status code and the
    /// first 10 KiB of the body.
    fn http_get(&self, target: HttpTarget, timeout: Duration) -> BoxFuture<'_, Result<(u16, String), NetworkError>>;

    /// Opens a connection and closes it.
    fn tcp_connect(&self, target: TcpTarget, timeout: Duration) -> BoxFuture<'_, Result<(), NetworkError>>;

    /// Asks `grpc.health.v1.Health/Check`; true for `SERVING`.
    fn grpc_check(&self, target: GrpcTarget, timeout: Duration) -> BoxFuture<'_, Result<bool, NetworkError>>;
}

/// A call got no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NetworkError {
    /// No answer in time.
    #[error("no answer within {0:?}")]
    Timeout(Duration),
    /// TLS was asked for, and the server answered in plain HTTP.
    #[error("the server speaks HTTP without TLS")]
    PlainHttp,
    /// The call failed.
    #[error("{0}")]
    Failed(String),
}

/// What to GET.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpTarget {
    /// Whether to speak TLS.
    pub https: bool,
    /// Host name or address to connect to.
    pub host: String,
    /// Its port.
    pub port: u16,
    /// Path and query, with a leading slash.
    pub path: String,
    /// Headers, in order; a `Host` header replaces the one made from `host`.
    pub headers: Vec<(String, String)>,
}

impl HttpTarget {
    /// The same call without TLS. Credentials stay behind: they were meant for an encrypted line.
    pub fn without_tls(mut self) -> Self {
        self.https = false;
        self.headers.retain(|(name, _)| !name.eq_ignore_ascii_case("authorization"));
        self
    }
}

/// Where to connect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TcpTarget {
    /// Host name or address.
    pub host: String,
    /// Its port.
    pub port: u16,
}

/// Whose health to ask.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GrpcTarget {
    /// Host name or address.
    pub host: String,
    /// Its port.
    pub port: u16,
    /// The service; empty for the whole server.
    pub service: String,
}
