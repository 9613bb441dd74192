//! The pod-resources socket: monitoring agents read from it which devices the pods have (service `v1.PodResourcesLister`, KEP-606
//! and KEP-3695).
//!
//! ```text
//!   Listener ──> Seats ──> AnyAuthority ──> Lister ──> CallRate, then the answer on a blocking thread
//! ```

mod answer;
mod rate;

use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use parking_lot::Mutex;
use podwright_dra_api::pod_resources::pod_resources_lister_server::{PodResourcesLister, PodResourcesListerServer};
use podwright_dra_api::pod_resources::{
    AllocatableResourcesRequest, AllocatableResourcesResponse, GetPodResourcesRequest, GetPodResourcesResponse,
    ListPodResourcesRequest, ListPodResourcesResponse,
};
use podwright_grpc_socket::{AnyAuthority, SocketFile};
use podwright_model::text::reason;
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use tonic::transport::Server;
use tonic::{Request, Response, Status};

use self::rate::CallRate;
use super::view::NodeView;
use podwright_host::trusted_dir;
use podwright_http_server::{Listener, SeatLimits, Seats, connections};
use podwright_metrics::PodResourcesMethod;

/// The delay after a failure to listen before the agent tries again.
const RETRY: Duration = Duration::from_secs(10);
/// The limit of open connections. A new connection beyond it closes the oldest one.
const SEATS: SeatLimits = SeatLimits { anonymous: 64, authenticated: 0, client: None };
/// The limit of open calls on one connection.
const MAX_STREAMS: u32 = 16;
/// The largest request in bytes. A request has at most a namespace and a name, with 316 bytes together.
const MAX_REQUEST: usize = 4096;
/// The number of answers that are computed at the same time. The limit leaves CPU time for pods.
const MAX_COMPUTING: usize = 2;

/// The socket, not yet listening.
pub(crate) struct PodResourcesEndpoint {
    /// The absolute path of the socket.
    pub(crate) path: PathBuf,
}

impl PodResourcesEndpoint {
    /// Serves until `stop` is cancelled, then removes the socket. If the agent cannot listen, it logs that once and tries again.
    /// Pods do not wait for the socket.
    pub(crate) async fn serve(self, view: NodeView, stop: CancellationToken) {
        let lister = Lister {
            view,
            rate: Arc::new(Mutex::new(CallRate::new())),
            computing: Arc::new(Semaphore::new(MAX_COMPUTING)),
        };
        stop.run_until_cancelled(self.serve_always(|listener| lister.clone().serve(listener))).await;
    }

    /// Opens the socket and serves it. If the socket is closed, or its file is removed, opens it again.
    async fn serve_always<F: Future<Output = io::Result<()>>>(&self, serve: impl Fn(Listener) -> F) {
        loop {
            let (listener, file) = self.bound().await;
            tracing::info!(path = %self.path.display(), "pod-resources socket is open");
            let removed = async {
                while !file.is_removed() {
                    sleep(RETRY).await;
                }
            };
            tokio::select! {
                ended = serve(listener) => {
                    let error = ended.err().map(|error| error.to_string()).unwrap_or_default();
                    tracing::error!(error, "the pod-resources socket was closed: it is opened again in {} s", RETRY.as_secs());
                    sleep(RETRY).await;
                }
                () = removed => tracing::error!("the file of the pod-resources socket was removed: the socket is opened again"),
            }
        }
    }

    /// Tries to listen until that succeeds. The first failure is logged.
    async fn bound(&self) -> (Listener, SocketFile) {
        let mut logged = false;
        loop {
            match bind(&self.path) {
                Ok(bound) => return bound,
                Err(error) if !logged => {
                    logged = true;
                    tracing::error!(
                        "cannot listen on {} ({}): remove what is there, or choose another socket with --pod-resources PATH, or \
                         off; pods keep running, and the agent tries again every {} s",
                        self.path.display(),
                        reason(&error),
                        RETRY.as_secs()
                    );
                }
                Err(_) => {}
            }
            sleep(RETRY).await;
        }
    }
}

/// Creates the directory, and listens. Blocking.
fn bind(path: &Path) -> io::Result<(Listener, SocketFile)> {
    if let Some(dir) = path.parent() {
        // The mode of the kubelet's directory.
        std::fs::DirBuilder::new().recursive(true).mode(0o750).create(dir)?;
        // Otherwise another user could put a socket at the path.
        trusted_dir::open(dir)?;
    }
    SocketFile::remove_old(path)?;
    let listener = Listener::unix(path)?;
    Ok((listener, SocketFile::new(path)?))
}

/// Answers the calls.
#[derive(Clone)]
struct Lister {
    view: NodeView,
    rate: Arc<Mutex<CallRate>>,
    computing: Arc<Semaphore>,
}

impl Lister {
    /// Serves the connections of a listener until it fails.
    async fn serve(self, listener: Listener) -> io::Result<()> {
        let lister = PodResourcesListerServer::new(self).max_decoding_message_size(MAX_REQUEST);
        let connections =
            connections(listener, Seats::new(SEATS)).map(|bytes| Ok::<_, io::Error>(AnyAuthority::new(bytes)));
        let server = Server::builder().max_concurrent_streams(MAX_STREAMS);
        server.serve_with_incoming(lister, connections).await.map_err(io::Error::other)
    }

    /// Counts a call, and computes its answer on a blocking thread. A call over the rate is refused and not counted, as in the
    /// kubelet.
    async fn answer<T: Send + 'static>(
        &self,
        method: PodResourcesMethod,
        compute: impl FnOnce(&NodeView) -> Result<T, Status> + Send + 'static,
    ) -> Result<Response<T>, Status> {
        if !self.rate.lock().admit(Instant::now()) {
            return Err(Status::resource_exhausted("rejected by rate limit"));
        }
        let permit = self.computing.clone().acquire_owned().await.expect("the semaphore is never closed");
        let view = self.view.clone();
        let answer = spawn_blocking(move || {
            let _permit = permit;
            compute(&view)
        });
        let answer = answer.await.unwrap_or_else(|_| Err(Status::internal("the answer could not be computed")));
        self.view.metrics.pod_resources.answered(method, answer.is_ok());
        answer.map(Response::new)
    }
}

#[tonic::async_trait]
impl PodResourcesLister for Lister {
    async fn list(&self, _: Request<ListPodResourcesRequest>) -> Result<Response<ListPodResourcesResponse>, Status> {
        self.answer(PodResourcesMethod::List, |view| Ok(answer::list(view))).await
    }

    async fn get(&self, request: Request<GetPodResourcesRequest>) -> Result<Response<GetPodResourcesResponse>, Status> {
        let GetPodResourcesRequest { pod_name, pod_namespace } = request.into_inner();
        self.answer(PodResourcesMethod::Get, move |view| answer::get(view, &pod_namespace, &pod_name)).await
    }

    /// The node has no device manager, and binds no CPUs or memory to containers, so it can give out none of them (upstream answers
    /// the same with the policies `none`).
    async fn get_allocatable_resources(
        &self,
        _: Request<AllocatableResourcesRequest>,
    ) -> Result<Response<AllocatableResourcesResponse>, Status> {
        self.answer(PodResourcesMethod::GetAllocatable, |_| Ok(AllocatableResourcesResponse::default())).await
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::time::timeout;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn socket_that_was_closed_or_removed_is_opened_again() {
        let dir = tempfile::tempdir().unwrap();
        let endpoint = PodResourcesEndpoint { path: dir.path().join("kubelet.sock") };
        let openings = AtomicUsize::new(0);
        let serve = |listener: Listener| {
            let is_first = openings.fetch_add(1, Ordering::Relaxed) == 0;
            async move {
                let _listener = listener;
                if is_first { Err(io::Error::from(io::ErrorKind::NotConnected)) } else { std::future::pending().await }
            }
        };
        let opened = async |count| {
            while openings.load(Ordering::Relaxed) < count {
                sleep(RETRY).await;
            }
            assert!(endpoint.path.exists());
        };
        let test = async {
            opened(2).await;
            std::fs::remove_file(&endpoint.path).unwrap();
            opened(3).await;
        };
        tokio::select! {
            () = endpoint.serve_always(serve) => {}
            tested = timeout(10 * RETRY, test) => tested.expect("the socket is opened again"),
        }
        assert!(!endpoint.path.exists(), "it is removed at the end");
    }
}
