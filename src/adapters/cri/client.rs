//! The calls of the interface, each with a limit, counted, and with its errors told apart.

mod error;

use std::fmt;
use std::future::Future;
use std::time::Duration;

use podwright_actors::ports::{RuntimeError, RuntimeName};
use podwright_metrics::{Metrics, RuntimeOperation};
use tokio::time::{Instant, timeout};
use tonic::transport::{Channel, Uri};
use tonic::{Response, Status, Streaming};

use super::endpoint::Endpoint;
use super::v1;
use super::v1::image_service_client::ImageServiceClient;
use super::v1::runtime_service_client::RuntimeServiceClient;
use error::classify;
pub(super) use error::is_name_taken;

/// The limit of calls that answer out of what the runtime knows (upstream `runtimeRequestTimeout`, kubelet 1.36).
pub(super) const LIMIT: Duration = Duration::from_secs(120);
/// The limit of a sandbox's start, which may wait for the network (upstream: twice the usual one).
const RUN_SANDBOX_LIMIT: Duration = Duration::from_secs(240);
/// The limit of a pull, so that one that hangs gives its place to others some day. Runtimes end pulls without progress
/// themselves, and much sooner.
const PULL_LIMIT: Duration = Duration::from_secs(2 * 60 * 60);
/// What a call that waits for something else takes at the most beyond that wait.
const MARGIN: Duration = Duration::from_secs(10);
/// How long a connection may take: the socket is on this machine.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);
/// The longest answer that is taken: an exec may bring 16 MiB on each of two streams.
const MAX_ANSWER: usize = 64 << 20;

/// A container runtime's client. Clones share one connection, which is made when it is needed and made again when it broke:
/// whoever calls meanwhile gets [`RuntimeError::Unreachable`], and his own backoff decides when it is tried again.
///
/// Every call is cancel safe for the client. For the runtime it was cancelled, which it may notice late or never.
#[derive(Clone)]
pub(super) struct Client {
    endpoint: Endpoint,
    runtime: RuntimeServiceClient<Channel>,
    images: ImageServiceClient<Channel>,
    metrics: Metrics,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Client({})", self.endpoint)
    }
}

/// The operations without a wait of their own.
macro_rules! calls {
    ($($service:ident.$name:ident($request:ident) -> $answer:ident, $operation:ident within $limit:expr;)*) => {
        $(pub(super) async fn $name(&self, request: v1::$request) -> Result<v1::$answer, RuntimeError> {
            let mut service = self.$service.clone();
            self.call(RuntimeOperation::$operation, Some($limit), async move { service.$name(request).await }).await
        })*
    };
}

impl Client {
    /// A client for an endpoint; nothing is connected yet. Must be called on the tokio runtime that is to carry the
    /// connection.
    ///
    /// # Errors
    /// The transport's, for a path that no URI can hold.
    pub(super) fn new(endpoint: Endpoint, metrics: Metrics) -> Result<Self, tonic::transport::Error> {
        let channel = tonic::transport::Endpoint::from_shared(endpoint.to_string())?
            // What the socket's path would make of it is no valid authority, and strict servers refuse it.
            .origin(Uri::from_static("http://localhost"))
            .connect_timeout(CONNECT_LIMIT)
            .connect_lazy();
        let runtime = RuntimeServiceClient::new(channel.clone()).max_decoding_message_size(MAX_ANSWER);
        let images = ImageServiceClient::new(channel).max_decoding_message_size(MAX_ANSWER);
        Ok(Client { endpoint, runtime, images, metrics })
    }

    calls! {
        runtime.version(VersionRequest) -> VersionResponse, Version within LIMIT;
        runtime.status(StatusRequest) -> StatusResponse, Status within LIMIT;
        runtime.runtime_config(RuntimeConfigRequest) -> RuntimeConfigResponse, RuntimeConfig within LIMIT;
        runtime.stop_pod_sandbox(StopPodSandboxRequest) -> StopPodSandboxResponse, StopPodSandbox within LIMIT;
        runtime.remove_pod_sandbox(RemovePodSandboxRequest) -> RemovePodSandboxResponse, RemovePodSandbox within LIMIT;
        runtime.pod_sandbox_status(PodSandboxStatusRequest) -> PodSandboxStatusResponse, PodSandboxStatus within LIMIT;
        runtime.list_pod_sandbox(ListPodSandboxRequest) -> ListPodSandboxResponse, ListPodSandbox within LIMIT;
        runtime.create_container(CreateContainerRequest) -> CreateContainerResponse, CreateContainer within LIMIT;
        runtime.start_container(StartContainerRequest) -> StartContainerResponse, StartContainer within LIMIT;
        runtime.remove_container(RemoveContainerRequest) -> RemoveContainerResponse, RemoveContainer within LIMIT;
        runtime.list_containers(ListContainersRequest) -> ListContainersResponse, ListContainers within LIMIT;
        runtime.container_status(ContainerStatusRequest) -> ContainerStatusResponse, ContainerStatus within LIMIT;
        runtime.reopen_container_log(ReopenContainerLogRequest) -> ReopenContainerLogResponse,
            ReopenContainerLog within LIMIT;
        images.image_status(ImageStatusRequest) -> ImageStatusResponse, ImageStatus within LIMIT;
        images.list_images(ListImagesRequest) -> ListImagesResponse, ListImages within LIMIT;
        images.remove_image(RemoveImageRequest) -> RemoveImageResponse, RemoveImage within LIMIT;
        images.image_fs_info(ImageFsInfoRequest) -> ImageFsInfoResponse, ImageFsInfo within LIMIT;
    }

    /// Where the runtime listens.
    pub(super) fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Asks who is there; `name` learns its name. Whoever answers speaks version 1 of the interface, whatever it calls it.
    pub(super) async fn greet(&self, name: &RuntimeName) -> Result<v1::VersionResponse, RuntimeError> {
        let version = self.version(v1::VersionRequest { version: "v1".to_owned() }).await?;
        name.learn(&version.runtime_name);
        Ok(version)
    }

    /// Makes and starts a sandbox; counted by its handler too.
    pub(super) async fn run_pod_sandbox(
        &self,
        request: v1::RunPodSandboxRequest,
    ) -> Result<v1::RunPodSandboxResponse, RuntimeError> {
        let (mut service, handler, start) = (self.runtime.clone(), request.runtime_handler.clone(), Instant::now());
        let call = async move { service.run_pod_sandbox(request).await };
        let answer = self.call(RuntimeOperation::RunPodSandbox, Some(RUN_SANDBOX_LIMIT), call).await;
        self.metrics.containers.sandbox_run(&handler, start.elapsed(), answer.is_err());
        answer
    }

    /// Asks a container to stop and waits until it has, or was killed after `grace`, in whole seconds that are rounded up.
    pub(super) async fn stop_container(&self, container_id: String, grace: Duration) -> Result<(), RuntimeError> {
        let mut service = self.runtime.clone();
        let seconds = whole_seconds(grace);
        let request = v1::StopContainerRequest { container_id, timeout: seconds };
        let limit = grace + LIMIT;
        let call = async move { service.stop_container(request).await };
        self.call(RuntimeOperation::StopContainer, Some(limit), call).await.map(|_| ())
    }

    /// Runs a command in a container. The runtime kills it after `limit`, in whole seconds that are rounded up.
    pub(super) async fn exec(
        &self,
        container_id: String,
        cmd: Vec<String>,
        limit: Duration,
    ) -> Result<v1::ExecSyncResponse, RuntimeError> {
        let mut service = self.runtime.clone();
        // Zero would mean for ever.
        let seconds = whole_seconds(limit).max(1);
        let request = v1::ExecSyncRequest { container_id, cmd, timeout: seconds };
        let within = Duration::from_secs(seconds.unsigned_abs()) + MARGIN;
        let call = async move { service.exec_sync(request).await };
        let start = Instant::now();
        match self.call(RuntimeOperation::ExecSync, Some(within), call).await {
            // Nobody knows how the command fared that a runtime should have ended and did not: it is the runtime that hangs.
            Err(RuntimeError::Timeout { call, .. }) if start.elapsed() >= within => Err(RuntimeError::Unreachable(
                format!("{}: no answer to {call} within {within:?}: see whether the runtime hangs", self.endpoint),
            )),
            Err(RuntimeError::Timeout { call, .. }) => Err(RuntimeError::Timeout { call, after: limit }),
            answer => answer,
        }
    }

    /// Pulls an image: whoever does not want it any more drops the call.
    pub(super) async fn pull_image(&self, request: v1::PullImageRequest) -> Result<String, RuntimeError> {
        let mut service = self.images.clone();
        let call = async move { service.pull_image(request).await };
        Ok(self.call(RuntimeOperation::PullImage, Some(PULL_LIMIT), call).await?.image_ref)
    }

    /// The stream of what happens to containers; an error where the runtime has none. Without a limit: runtimes answer only
    /// with the first event, which may be long in coming.
    pub(super) async fn events(&self) -> Result<Streaming<v1::ContainerEventResponse>, RuntimeError> {
        let mut service = self.runtime.clone();
        let call = async move { service.get_container_events(v1::GetEventsRequest {}).await };
        self.call(RuntimeOperation::GetContainerEvents, None, call).await
    }

    /// What an error means that ended a stream.
    pub(super) fn classify(&self, status: &Status) -> RuntimeError {
        classify(&self.endpoint, RuntimeOperation::GetContainerEvents.as_str(), Duration::ZERO, status)
    }

    /// Makes one call, counts it, and tells its errors apart.
    async fn call<T>(
        &self,
        operation: RuntimeOperation,
        limit: Option<Duration>,
        call: impl Future<Output = Result<Response<T>, Status>>,
    ) -> Result<T, RuntimeError> {
        let start = Instant::now();
        // What is dropped here is cancelled at the runtime too: its end of the stream is reset.
        let answer = match limit {
            Some(limit) => timeout(limit, call).await.ok(),
            None => Some(call.await),
        };
        let (name, limit) = (operation.as_str(), limit.unwrap_or_else(|| start.elapsed()));
        let answer = match answer {
            Some(Ok(answer)) => Ok(answer.into_inner()),
            Some(Err(status)) => Err(classify(&self.endpoint, name, limit, &status)),
            None => Err(RuntimeError::Timeout { call: name, after: limit }),
        };
        self.metrics.runtime.called(operation, start.elapsed(), answer.is_err());
        answer
    }
}

/// Rounded up: nobody is killed early.
fn whole_seconds(duration: Duration) -> i64 {
    let seconds = duration.as_secs() + u64::from(duration.subsec_nanos() > 0);
    i64::try_from(seconds).unwrap_or(i64::MAX)
}
