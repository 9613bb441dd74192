//! Removes sandboxes and containers, with their logs and other files.

use std::sync::Arc;
use std::time::Duration;

use podwright_core::containers::stop::SHORTEST_STOP;
use podwright_model::ids::{ContainerId, SandboxId};
use podwright_ports::RuntimeError;

use super::client::names_running_task;
use super::config::labels;
use super::inner::CriRuntimeInner;
use super::inspect::PodFilter;
use super::tasks::blocking;
use super::{files, v1};

impl CriRuntimeInner {
    /// Removes a sandbox. If it was the pod's last one, also removes the pod's log directory and cgroups.
    pub(super) async fn remove_sandbox_with_logs(self: &Arc<Self>, id: &SandboxId) -> Result<(), RuntimeError> {
        let request = v1::PodSandboxStatusRequest { pod_sandbox_id: id.as_str().to_owned(), verbose: false };
        let status = match self.client.pod_sandbox_status(request).await {
            Err(RuntimeError::NotFound(_)) => return Ok(()),
            answer => answer?.status.unwrap_or_default(),
        };
        self.remove_sandbox(id).await?;
        let Some(uid) = status.labels.get(labels::POD_UID).cloned() else { return Ok(()) };
        // The log directory also has the logs of the pod's other sandboxes.
        if !self.sandboxes(PodFilter::OfPod(&uid)).await?.is_empty() {
            return Ok(());
        }
        let facts = self.facts.cached().await?;
        let inner = Arc::clone(self);
        blocking(move || {
            files::remove_log_dir(&facts.layout, &status.labels);
            inner.cgroups.remove_empty(&facts.cgroups, &uid);
            Ok(())
        })
        .await
    }

    /// Removes a container that is not running. Also removes its log, unless `keep_log` is set.
    ///
    /// # Errors
    /// [`RuntimeError::Failed`] if the container is running.
    pub(super) async fn remove_stopped_container(&self, id: &ContainerId, keep_log: bool) -> Result<(), RuntimeError> {
        let request = v1::ContainerStatusRequest { container_id: id.as_str().to_owned(), verbose: false };
        let status = match self.client.container_status(request).await {
            Err(RuntimeError::NotFound(_)) => return Ok(()),
            answer => answer?.status.unwrap_or_default(),
        };
        match status.state() {
            // The runtime would kill the container without a grace period.
            v1::ContainerState::ContainerRunning => {
                return Err(RuntimeError::failed(format!("container {id} is running: stop it first")));
            }
            // The container may be running, so it is stopped first. The pod's spec may be gone, so the grace period comes
            // from the container's annotations.
            v1::ContainerState::ContainerUnknown => {
                let grace = labels::grace(|name| status.annotations.get(name).map(String::as_str));
                let grace = grace.map_or(SHORTEST_STOP, Duration::from_secs);
                ignore_not_found(self.stops.stop(id, grace.max(SHORTEST_STOP)).await)?;
            }
            v1::ContainerState::ContainerCreated | v1::ContainerState::ContainerExited => {}
        }
        self.remove_container(id.as_str().to_owned()).await.map_err(|error| with_remedy(error, id))?;
        if keep_log {
            return Ok(());
        }
        let layout = self.facts.layout().clone();
        blocking(move || {
            if status.state() == v1::ContainerState::ContainerCreated {
                // The container never ran, so it did not write the log. If its creation timed out, the agent created a second
                // container for the same run, which has the same log file and may be running.
                files::unlink_log(&layout, &status);
            } else {
                files::remove_log(&layout, &status);
            }
            Ok(())
        })
        .await
    }

    /// Stops a sandbox and the containers in it. A sandbox that does not exist is not an error.
    pub(super) async fn stop_sandbox(&self, id: &SandboxId) -> Result<(), RuntimeError> {
        let request = v1::StopPodSandboxRequest { pod_sandbox_id: id.as_str().to_owned() };
        ignore_not_found(self.client.stop_pod_sandbox(request).await.map(|_| ()))
    }

    /// Stops and removes a sandbox and the containers in it. A sandbox that does not exist is not an error.
    pub(super) async fn remove_sandbox(&self, id: &SandboxId) -> Result<(), RuntimeError> {
        // The stop releases the sandbox's network.
        self.stop_sandbox(id).await?;
        let request = v1::RemovePodSandboxRequest { pod_sandbox_id: id.as_str().to_owned() };
        ignore_not_found(self.client.remove_pod_sandbox(request).await.map(|_| ()))
    }

    /// Removes a container. A container that does not exist is not an error.
    pub(super) async fn remove_container(&self, container_id: String) -> Result<(), RuntimeError> {
        let request = v1::RemoveContainerRequest { container_id: container_id.clone() };
        ignore_not_found(self.client.remove_container(request).await.map(|_| ()))?;
        self.stopped.lock().remove(&container_id);
        Ok(())
    }
}

/// Turns [`RuntimeError::NotFound`] into success.
pub(super) fn ignore_not_found(result: Result<(), RuntimeError>) -> Result<(), RuntimeError> {
    match result {
        Err(RuntimeError::NotFound(_)) => Ok(()),
        result => result,
    }
}

/// Adds a remedy to an error that only an operator can resolve. If a create call is cancelled, containerd 1.6 may keep the
/// container's task. It then refuses to remove the container.
fn with_remedy(error: RuntimeError, id: &ContainerId) -> RuntimeError {
    match error {
        RuntimeError::Status { message: why, .. } if names_running_task(&why) => {
            RuntimeError::failed(format!("{why}: end it with `ctr --namespace k8s.io tasks delete --force {id}`"))
        }
        error => error,
    }
}
