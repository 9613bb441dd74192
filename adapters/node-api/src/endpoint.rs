//! The endpoint of the node API: a TCP port with TLS.

use std::io;
use std::net::{self, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::NodeSystemInfo;
use rustls::ServerConfig;
use rustls::server::ResolvesServerCert;
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::time::sleep;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use super::access::{Gatekeeper, Reviews};
use super::attributes::StreamVerb;
use super::checkpoint::Checkpoints;
use super::client_authority::{AnyClientVerifier, ClientAuthority, ClientAuthorityError};
use super::container_logs::LogReaders;
use super::routes::{NodeApi, router};
use super::served_node::ServedNode;
use super::shares::ShareLimits;
use super::stats::VolumeMeter;
use super::streams::Streams;
use super::threads::NodeApiThreads;
use super::tls::TlsPolicy;
use podwright_host::stats::RuntimeStats;
use podwright_host::storage::FileStorage;
use podwright_host::streaming::StreamingRuntime;
use podwright_http_server::{
    Authentication, BlockingAnswers, ClientLimits, Listener, Rate, SeatLimits, Seats, TimeLimits,
};
use podwright_metrics::Metrics;
use podwright_model::text::reason;
use podwright_ports::Clock;

/// The delay after a failure to listen on the port before the agent tries again.
const RETRY: Duration = Duration::from_secs(10);
/// How many logs may be read at a time. `kubectl logs` and collectors read each container of a pod.
const LOG_SHARES: ShareLimits = ShareLimits { pod: 32, namespace: 96, node: 256, reserve: 64 };
/// The seats of the listener. Authenticated clients have more seats: the API server opens one connection for each stream and each
/// followed log, and such a connection may stay open for hours.
const SEATS: SeatLimits = SeatLimits { anonymous: 256, authenticated: 1024, client: Some(CLIENT) };
/// What one address may have before it authenticates itself. The API server connects once for each stream and each log, all at once if
/// a client follows the logs of a whole deployment.
const CLIENT: ClientLimits =
    ClientLimits { open: 128, connects: Rate { burst: 512, every: Duration::from_millis(10) } };
/// The time limits of a kubelet (`ListenAndServeKubeletServer`, `pkg/kubelet/server/server.go`, 1.36): clients keep idle connections for
/// 90 s, and an answer may take four hours.
const LIMITS: TimeLimits =
    TimeLimits { request: Duration::from_secs(90), stream: Some(Duration::from_secs(4 * 60 * 60)) };

/// The port of the node API.
pub struct NodeApiEndpoint {
    address: SocketAddr,
    /// `None` if the address was in use at the start. The agent then tries again.
    listener: Option<net::TcpListener>,
    tls: TlsPolicy,
}

/// Finds the clients that may use the node API.
pub struct NodeApiClients {
    authority: Option<Arc<ClientAuthority>>,
    reviews: Arc<dyn Reviews>,
    streams: StreamVerb,
}

/// The data that the node API serves.
pub struct NodeApiContent {
    /// The node.
    pub node: Arc<dyn ServedNode>,
    /// The node's clock.
    pub clock: Arc<dyn Clock>,
    /// The node's metrics.
    pub metrics: Metrics,
    /// The directories of the pods and of their logs.
    pub storage: FileStorage,
    /// Whether plugins can register.
    pub can_register_plugins: Arc<dyn Fn() -> bool + Send + Sync>,
    /// Opens the streams of containers.
    pub streams: Arc<dyn StreamingRuntime>,
    /// Measures the containers.
    pub stats: Arc<dyn RuntimeStats>,
    /// The machine and its software, as the status of the node has them.
    pub system_info: NodeSystemInfo,
    /// Writes checkpoints of containers. `None` if the runtime cannot.
    pub checkpoints: Option<Arc<dyn Checkpoints>>,
    /// The answer of `/configz`.
    pub config: Value,
}

impl NodeApiClients {
    /// Clients whose tokens and permissions the API server reviews, or whose certificates an authority of this file signs. Blocking.
    ///
    /// # Errors
    /// [`ClientAuthorityError`] if the file cannot be used.
    pub fn new(reviews: Arc<dyn Reviews>, authority: Option<&Path>) -> Result<Self, ClientAuthorityError> {
        if authority.is_none() {
            tracing::warn!(
                "the API server cannot read logs and run commands without a token: name the authority of its client certificate with \
                 --client-ca-file"
            );
        }
        let authority = authority.map(ClientAuthority::open).transpose()?;
        Ok(NodeApiClients { authority, reviews, streams: StreamVerb::default() })
    }

    /// The same clients, with this verb for streams.
    #[must_use]
    pub fn stream_verb(self, streams: StreamVerb) -> Self {
        NodeApiClients { streams, ..self }
    }
}

impl NodeApiEndpoint {
    /// Listens on an address. If that fails, the server tries again.
    pub async fn bind(address: SocketAddr) -> Self {
        let listener = match TcpListener::bind(address).await.and_then(TcpListener::into_std) {
            Ok(listener) => Some(listener),
            Err(error) => {
                tracing::error!(
                    "cannot listen for the node API on {address} ({}): stop the program that uses the address, such as a kubelet, or \
                     choose another one with --node-api; pods keep running, and the agent tries again every {} s",
                    reason(&error),
                    RETRY.as_secs()
                );
                None
            }
        };
        NodeApiEndpoint { address, listener, tls: TlsPolicy::default() }
    }

    /// Offers only these versions and cipher suites of TLS.
    #[must_use]
    pub fn tls(self, tls: TlsPolicy) -> Self {
        NodeApiEndpoint { tls, ..self }
    }

    /// The port that the status of the node reports.
    pub fn port(&self) -> u16 {
        let bound = self.listener.as_ref().and_then(|listener| listener.local_addr().ok());
        bound.unwrap_or(self.address).port()
    }

    /// Serves the node API with this certificate until `stop` is cancelled, on threads of its own.
    ///
    /// # Errors
    /// The system's error if it gives no thread.
    pub fn start(
        self,
        node: String,
        clients: NodeApiClients,
        certificate: Arc<dyn ResolvesServerCert>,
        parts: NodeApiContent,
        stop: CancellationToken,
    ) -> io::Result<NodeApiThreads> {
        NodeApiThreads::start(self.serve(node, clients, certificate, parts, stop))
    }

    async fn serve(
        self,
        node: String,
        clients: NodeApiClients,
        certificate: Arc<dyn ResolvesServerCert>,
        parts: NodeApiContent,
        stop: CancellationToken,
    ) {
        let acceptor = match acceptor(&self.tls, certificate) {
            Ok(acceptor) => acceptor,
            Err(error) => return tracing::error!(%error, "the node API is not served"),
        };
        let api = NodeApi {
            streams: Arc::new(Streams::new(parts.streams).metrics(&parts.metrics)),
            meters: Arc::default(),
            volumes: Arc::new(VolumeMeter::new(parts.storage.clone())),
            rates: Arc::default(),
            started: parts.clock.now(),
            logs: LogReaders::new(parts.node.clone(), parts.storage.clone(), LOG_SHARES.node, stop.clone())
                .shares(LOG_SHARES, parts.metrics.node_api.clone()),
            queries: parts.node,
            clock: parts.clock,
            metrics: parts.metrics,
            storage: parts.storage,
            can_register_plugins: parts.can_register_plugins,
            stats: parts.stats,
            checkpoints: parts.checkpoints,
            node: node.as_str().into(),
            blocking: BlockingAnswers::default(),
            system_info: Arc::new(parts.system_info),
            config: Arc::new(parts.config),
        };
        let refusals = api.metrics.node_api.clone();
        let NodeApiClients { authority, reviews, streams } = clients;
        let gatekeeper = Arc::new(Gatekeeper::new(&node, reviews, authority.clone(), streams, &refusals));
        let router = router(api, gatekeeper);
        let follow = async {
            match authority {
                Some(authority) => authority.follow_file().await,
                None => std::future::pending().await,
            }
        };
        let serve = async {
            // The listener belongs to the runtime that accepts its connections.
            let listener = match self.listener.map(TcpListener::from_std) {
                Some(Ok(listener)) => listener,
                Some(Err(_)) | None => bound(self.address).await,
            };
            tracing::info!(address = %listener.local_addr().unwrap_or(self.address), "the node API is served");
            let listener = Listener::Tls(listener, acceptor);
            let seats = Seats::counted(SEATS, refusals);
            podwright_http_server::serve(listener, seats, Authentication::Router, LIMITS, router).await;
        };
        tokio::select! {
            () = serve => {}
            () = follow => {}
            () = stop.cancelled() => {}
        }
    }
}

/// Tries to listen until that succeeds.
async fn bound(address: SocketAddr) -> TcpListener {
    loop {
        sleep(RETRY).await;
        if let Ok(listener) = TcpListener::bind(address).await {
            return listener;
        }
    }
}

fn acceptor(tls: &TlsPolicy, certificate: Arc<dyn ResolvesServerCert>) -> Result<TlsAcceptor, rustls::Error> {
    let mut config = ServerConfig::builder_with_provider(Arc::new(tls.provider()))
        .with_protocol_versions(tls.versions())?
        .with_client_cert_verifier(Arc::new(AnyClientVerifier::new()))
        .with_cert_resolver(certificate);
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}
