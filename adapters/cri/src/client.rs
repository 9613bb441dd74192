//! The gRPC client: one method for each CRI call, with a time limit, metrics and typed errors.

mod error;

use std::fmt;
use std::future::Future;
use std::time::Duration;

use podwright_metrics::{Metrics, RuntimeOperation};
use podwright_ports::{RuntimeError, RuntimeName};
use tokio::time::{Instant, timeout};
use tonic::transport::{Channel, Uri};
use tonic::{Response, Status, Streaming};

use super::endpoint::Endpoint;
use super::v1;
use super::v1::image_service_client::ImageServiceClient;
use super::v1::runtime_service_client::RuntimeServiceClient;
use error::{classify, classify_pull};
pub(super) use error::{is_name_taken, names_running_task, pull_failure, pull_text};

/// The time limit of most calls (upstream `runtimeRequestTimeout`, kubelet 1.36).
const LIMIT: Duration = Duration::from_secs(120);
/// The time limit for the start of a sandbox, which may wait for the network (upstream: twice `runtimeRequestTimeout`).
const RUN_SANDBOX_LIMIT: Duration = Duration::from_secs(240);
/// The time limit of a pull, so that a pull that hangs does not block other pulls for ever. Runtimes end a pull without progress
/// much earlier.
const PULL_LIMIT: Duration = Duration::from_secs(2 * 60 * 60);
/// The time that a call with a time limit of the runtime may take beyond that limit.
const EXEC_MARGIN: Duration = Duration::from_secs(10);
/// The time limit of a connection attempt. The socket is on this machine.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);
/// The longest answer that is accepted, in bytes. An exec may return 16 MiB on each of two streams.
const MAX_ANSWER: usize = 64 << 20;

/// The client cannot be created for an endpoint.
#[derive(Debug, thiserror::Error)]
#[error("endpoint {endpoint} is not a valid URI: choose a socket path that can be part of a URI")]
pub struct OpenError {
    endpoint: Endpoint,
    source: tonic::transport::Error,
}

/// A client of a container runtime. Clones share one connection. The first call connects. After the connection breaks, the next
/// call connects again. A call without a connection fails with [`RuntimeError::Unreachable`], and the caller retries after its
/// own backoff.
///
/// Every call is cancel safe: a dropped call is cancelled at the runtime. The runtime may notice the cancellation late or never,
/// and complete the call.
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

/// Defines the methods for calls with a fixed time limit.
macro_rules! calls {
    ($($service:ident.$name:ident($request:ident) -> $answer:ident, $operation:ident within $limit:expr;)*) => {
        $(pub(super) async fn $name(&self, request: v1::$request) -> Result<v1::$answer, RuntimeError> {
            let mut service = self.$service.clone();
            self.call(RuntimeOperation::$operation, Some($limit), async move { service.$name(request).await }).await
        })*
    };
}

impl Client {
    /// A client for an endpoint. Does not connect yet. Must be called on the tokio runtime that is to drive the connection.
    ///
    /// # Errors
    /// [`OpenError`] if the path of the socket cannot be part of a URI.
    pub(super) fn new(endpoint: Endpoint, metrics: Metrics) -> Result<Self, OpenError> {
        let channel = tonic::transport::Endpoint::from_shared(endpoint.to_string())
            .map_err(|source| OpenError { endpoint: endpoint.clone(), source })?
            // By default the socket's path would be the authority, which is not valid, and strict servers refuse it.
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
        runtime.update_container_resources(UpdateContainerResourcesRequest) -> UpdateContainerResourcesResponse,
            UpdateContainer within LIMIT;
        runtime.list_container_stats(ListContainerStatsRequest) -> ListContainerStatsResponse,
            ListContainerStats within LIMIT;
        runtime.list_pod_sandbox_stats(ListPodSandboxStatsRequest) -> ListPodSandboxStatsResponse,
            ListPodSandboxStats within LIMIT;
        runtime.reopen_container_log(ReopenContainerLogRequest) -> ReopenContainerLogResponse,
            ReopenContainerLog within LIMIT;
        runtime.exec(ExecRequest) -> ExecResponse, Exec within LIMIT;
        runtime.attach(AttachRequest) -> AttachResponse, Attach within LIMIT;
        runtime.port_forward(PortForwardRequest) -> PortForwardResponse, PortForward within LIMIT;
        images.image_status(ImageStatusRequest) -> ImageStatusResponse, ImageStatus within LIMIT;
        images.list_images(ListImagesRequest) -> ListImagesResponse, ListImages within LIMIT;
        images.remove_image(RemoveImageRequest) -> RemoveImageResponse, RemoveImage within LIMIT;
        images.image_fs_info(ImageFsInfoRequest) -> ImageFsInfoResponse, ImageFsInfo within LIMIT;
    }

    /// The socket of the runtime.
    pub(super) fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Reads the runtime's version, and publishes the runtime's name to `name`. Does not check the reported API version, because a
    /// runtime that answers this call implements version 1 of the interface.
    pub(super) async fn report_name(&self, name: &RuntimeName) -> Result<v1::VersionResponse, RuntimeError> {
        let version = self.version(v1::VersionRequest { version: "v1".to_owned() }).await?;
        name.learn(&version.runtime_name);
        Ok(version)
    }

    /// Creates and starts a sandbox. The metrics also count it by runtime handler.
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

    /// Stops a container and waits until it has stopped. The runtime kills the container after `grace`, rounded up to whole
    /// seconds.
    pub(super) async fn stop_container(&self, container_id: String, grace: Duration) -> Result<(), RuntimeError> {
        let mut service = self.runtime.clone();
        let seconds = whole_seconds(grace);
        let request = v1::StopContainerRequest { container_id, timeout: seconds };
        let limit = grace + LIMIT;
        let call = async move { service.stop_container(request).await };
        self.call(RuntimeOperation::StopContainer, Some(limit), call).await.map(|_| ())
    }

    /// Runs a command in a container. The runtime kills the command after `limit`, rounded up to whole seconds.
    ///
    /// # Errors
    /// [`RuntimeError::Timeout`] if the runtime killed the command. [`RuntimeError::Unreachable`] if the runtime did not answer
    /// in time, because the result of the command is then unknown.
    pub(super) async fn exec_sync(
        &self,
        container_id: String,
        cmd: Vec<String>,
        limit: Duration,
    ) -> Result<v1::ExecSyncResponse, RuntimeError> {
        let mut service = self.runtime.clone();
        // Zero would mean no limit.
        let seconds = whole_seconds(limit).max(1);
        let request = v1::ExecSyncRequest { container_id, cmd, timeout: seconds };
        let within = Duration::from_secs(seconds.unsigned_abs()) + EXEC_MARGIN;
        let call = async move { service.exec_sync(request).await };
        let start = Instant::now();
        match self.call(RuntimeOperation::ExecSync, Some(within), call).await {
            Err(RuntimeError::Timeout { call, .. }) if start.elapsed() >= within => Err(RuntimeError::unreachable(
                format!("{}: no answer to {call} within {within:?}: check whether the runtime hangs", self.endpoint),
            )),
            Err(RuntimeError::Timeout { call, .. }) => Err(RuntimeError::Timeout { call, after: limit }),
            answer => answer,
        }
    }

    /// Writes a checkpoint of a container to a file. The runtime gives up after `limit`, rounded up to whole seconds, but not before the
    /// limit of other calls (upstream `remoteRuntimeService.CheckpointContainer`, kubelet 1.36).
    pub(super) async fn checkpoint_container(
        &self,
        container_id: String,
        location: String,
        limit: Duration,
    ) -> Result<(), RuntimeError> {
        let mut service = self.runtime.clone();
        let limit = limit.max(LIMIT);
        let request = v1::CheckpointContainerRequest { container_id, location, timeout: whole_seconds(limit) };
        let within = limit.saturating_add(EXEC_MARGIN);
        let call = async move { service.checkpoint_container(request).await };
        self.call(RuntimeOperation::CheckpointContainer, Some(within), call).await.map(|_| ())
    }

    /// Pulls an image and returns its reference. Dropping the call cancels the pull.
    pub(super) async fn pull_image(&self, request: v1::PullImageRequest) -> Result<String, RuntimeError> {
        let mut service = self.images.clone();
        let call = async move { service.pull_image(request).await };
        Ok(self.call(RuntimeOperation::PullImage, Some(PULL_LIMIT), call).await?.image_ref)
    }

    /// The stream of container events. There is no time limit, because a runtime answers only when the first event occurs.
    ///
    /// # Errors
    /// [`RuntimeError::Unsupported`] if the runtime does not implement the call.
    pub(super) async fn events(&self) -> Result<Streaming<v1::ContainerEventResponse>, RuntimeError> {
        let mut service = self.runtime.clone();
        let call = async move { service.get_container_events(v1::GetEventsRequest {}).await };
        self.call(RuntimeOperation::GetContainerEvents, None, call).await
    }

    /// The error of an event stream that ended with `status`.
    pub(super) fn classify(&self, status: &Status) -> RuntimeError {
        classify(&self.endpoint, RuntimeOperation::GetContainerEvents.as_str(), Duration::ZERO, status)
    }

    /// Makes one call within a time limit, and counts it.
    async fn call<T>(
        &self,
        operation: RuntimeOperation,
        limit: Option<Duration>,
        call: impl Future<Output = Result<Response<T>, Status>>,
    ) -> Result<T, RuntimeError> {
        let start = Instant::now();
        // A call that is dropped after its limit is cancelled at the runtime too, because its HTTP/2 stream is reset.
        let answer = match limit {
            Some(limit) => timeout(limit, call).await.ok(),
            None => Some(call.await),
        };
        let (name, limit) = (operation.as_str(), limit.unwrap_or_else(|| start.elapsed()));
        let answer = match answer {
            Some(Ok(answer)) => Ok(answer.into_inner()),
            Some(Err(status)) if operation == RuntimeOperation::PullImage => {
                Err(classify_pull(&self.endpoint, name, limit, &status))
            }
            Some(Err(status)) => Err(classify(&self.endpoint, name, limit, &status)),
            None => Err(RuntimeError::Timeout { call: name, after: limit }),
        };
        self.metrics.runtime.called(operation, start.elapsed(), answer.is_err());
        answer
    }
}

/// Rounds up to whole seconds, so that no container or command is killed early.
fn whole_seconds(duration: Duration) -> i64 {
    let seconds = duration.as_secs() + u64::from(duration.subsec_nanos() > 0);
    i64::try_from(seconds).unwrap_or(i64::MAX)
}
