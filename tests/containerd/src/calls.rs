//! Direct calls to the runtime, for any pod.

use std::path::Path;

use podwright_cri::v1;
use podwright_cri::v1::runtime_service_client::RuntimeServiceClient;
use tonic::transport::{Channel, Endpoint, Error, Uri};
use tonic::{Code, Status};

/// A client that connects with its first call.
pub fn connect(socket: &Path) -> Result<RuntimeServiceClient<Channel>, Error> {
    let endpoint = Endpoint::from_shared(format!("unix://{}", socket.display()))?;
    Ok(RuntimeServiceClient::new(endpoint.origin(Uri::from_static("http://localhost")).connect_lazy()))
}

/// Whether the CRI plugin has started.
pub async fn is_ready(runtime: &RuntimeServiceClient<Channel>) -> bool {
    runtime.clone().version(v1::VersionRequest::default()).await.is_ok()
}

/// Removes all sandboxes.
pub async fn empty(runtime: &RuntimeServiceClient<Channel>) -> Result<(), Status> {
    let list = runtime.clone().list_pod_sandbox(v1::ListPodSandboxRequest::default()).await?;
    for sandbox in list.into_inner().items {
        remove_sandbox(runtime.clone(), sandbox.id).await?;
    }
    Ok(())
}

/// Stops a sandbox with all that runs in it, and removes it.
pub async fn remove_sandbox(mut runtime: RuntimeServiceClient<Channel>, id: String) -> Result<(), Status> {
    let gone_is_fine = |error: Status| if error.code() == Code::NotFound { Ok(()) } else { Err(error) };
    let stop = v1::StopPodSandboxRequest { pod_sandbox_id: id.clone() };
    runtime.stop_pod_sandbox(stop).await.map(|_| ()).or_else(gone_is_fine)?;
    let remove = v1::RemovePodSandboxRequest { pod_sandbox_id: id };
    runtime.remove_pod_sandbox(remove).await.map(|_| ()).or_else(gone_is_fine)
}
