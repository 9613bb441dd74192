//! The runtime service of the fake runtime.

use std::collections::HashMap;

use futures_util::StreamExt;
use futures_util::stream::{self, BoxStream};
use tonic::{Request, Response, Status};

use super::FakeService;
use crate::v1;
use crate::v1::runtime_service_server::RuntimeService;

#[tonic::async_trait]
impl RuntimeService for FakeService {
    async fn version(&self, _: Request<v1::VersionRequest>) -> Result<Response<v1::VersionResponse>, Status> {
        let version = v1::VersionResponse {
            runtime_name: "containerd".into(),
            runtime_version: "v2.0.0".into(),
            ..Default::default()
        };
        Ok(Response::new(version))
    }

    async fn update_container_resources(
        &self,
        request: Request<v1::UpdateContainerResourcesRequest>,
    ) -> Result<Response<v1::UpdateContainerResourcesResponse>, Status> {
        let request = request.into_inner();
        self.change(|state| state.updates.push(request));
        Ok(Response::new(v1::UpdateContainerResourcesResponse {}))
    }

    async fn checkpoint_container(
        &self,
        request: Request<v1::CheckpointContainerRequest>,
    ) -> Result<Response<v1::CheckpointContainerResponse>, Status> {
        let request = request.into_inner();
        self.change(|state| state.checkpoints.push(request));
        Ok(Response::new(v1::CheckpointContainerResponse {}))
    }

    async fn status(&self, request: Request<v1::StatusRequest>) -> Result<Response<v1::StatusResponse>, Status> {
        let state = self.state.lock();
        let config = state.verbose_config.clone().filter(|_| request.into_inner().verbose);
        let info = config.map(|config| ("config".to_owned(), config)).into_iter().collect();
        Ok(Response::new(v1::StatusResponse { features: Some(state.features), info, ..Default::default() }))
    }

    async fn run_pod_sandbox(
        &self,
        request: Request<v1::RunPodSandboxRequest>,
    ) -> Result<Response<v1::RunPodSandboxResponse>, Status> {
        let config = request.into_inner().config.unwrap();
        let metadata = config.metadata.unwrap();
        self.change(|state| {
            state.attempts.push(metadata.attempt);
            state.cgroup_parents.extend(config.linux.map(|linux| linux.cgroup_parent));
        });
        let (made, status) = self.answer("s");
        let id = made.as_ref().map(|(id, _)| id.clone()).unwrap_or_default();
        if let Some((id, works)) = made {
            let state = i32::from(!works);
            let labels = v1::entries(config.labels);
            let sandbox = v1::PodSandbox { id, metadata: Some(metadata), state, labels, ..Default::default() };
            self.change(|state| state.sandboxes.push(sandbox));
        }
        status.map_or(Ok(Response::new(v1::RunPodSandboxResponse { pod_sandbox_id: id })), Err)
    }

    async fn list_pod_sandbox(
        &self,
        _: Request<v1::ListPodSandboxRequest>,
    ) -> Result<Response<v1::ListPodSandboxResponse>, Status> {
        Ok(Response::new(v1::ListPodSandboxResponse { items: self.state.lock().sandboxes.clone() }))
    }

    async fn pod_sandbox_status(
        &self,
        request: Request<v1::PodSandboxStatusRequest>,
    ) -> Result<Response<v1::PodSandboxStatusResponse>, Status> {
        let request = request.into_inner();
        if let Some((id, why)) = &self.state.lock().failing_sandbox
            && *id == request.pod_sandbox_id
        {
            return Err(why.clone());
        }
        let status = Some(v1::PodSandboxStatus::default());
        let mut answer = v1::PodSandboxStatusResponse { status, ..Default::default() };
        if request.verbose {
            answer.info.insert("info".to_owned(), r#"{"image": "pause.example/pause:1"}"#.to_owned());
        }
        Ok(Response::new(answer))
    }

    async fn stop_pod_sandbox(
        &self,
        _: Request<v1::StopPodSandboxRequest>,
    ) -> Result<Response<v1::StopPodSandboxResponse>, Status> {
        Ok(Response::new(v1::StopPodSandboxResponse {}))
    }

    async fn remove_pod_sandbox(
        &self,
        request: Request<v1::RemovePodSandboxRequest>,
    ) -> Result<Response<v1::RemovePodSandboxResponse>, Status> {
        self.change(|state| state.removed.push(request.into_inner().pod_sandbox_id));
        Ok(Response::new(v1::RemovePodSandboxResponse {}))
    }

    async fn create_container(
        &self,
        request: Request<v1::CreateContainerRequest>,
    ) -> Result<Response<v1::CreateContainerResponse>, Status> {
        let request = request.into_inner();
        let (made, status) = self.answer("c");
        let config = request.config.unwrap();
        let logs = request.sandbox_config.unwrap().log_directory;
        let id = made.as_ref().map(|(id, _)| id.clone()).unwrap_or_default();
        let devices = config.cdi_devices.iter().map(|device| device.name.clone()).collect();
        let variables = config.envs.iter().map(|env| format!("{}={}", env.key, env.value)).collect();
        self.change(|state| state.cdi = (devices, variables));
        if made.is_some() {
            let container = v1::Container {
                id: id.clone(),
                pod_sandbox_id: request.pod_sandbox_id,
                metadata: config.metadata,
                annotations: v1::entries(config.annotations),
                labels: v1::entries(config.labels),
                ..Default::default()
            };
            let files = (format!("{logs}/{}", config.log_path), config.mounts);
            self.change(|state| {
                state.files.insert(id.clone(), files);
                state.containers.push(container);
            });
        }
        status.map_or(Ok(Response::new(v1::CreateContainerResponse { container_id: id })), Err)
    }

    async fn container_status(
        &self,
        request: Request<v1::ContainerStatusRequest>,
    ) -> Result<Response<v1::ContainerStatusResponse>, Status> {
        let v1::ContainerStatusRequest { container_id: id, verbose } = request.into_inner();
        let (found, files, pid) = {
            let state = self.state.lock();
            let found = state.containers.iter().find(|container| container.id == id).cloned();
            (found, state.files.get(&id).cloned(), state.pid.filter(|_| verbose))
        };
        let v1::Container { id, state, labels, annotations, .. } = found.ok_or_else(|| Status::not_found(id))?;
        let (labels, annotations) = (map(labels), map(annotations));
        let (log_path, mounts) = files.unwrap_or_default();
        let status = v1::ContainerStatus { id, state, labels, annotations, log_path, mounts, ..Default::default() };
        let info = pid.map(|pid| ("info".to_owned(), format!("{{\"pid\":{pid}}}"))).into_iter().collect();
        Ok(Response::new(v1::ContainerStatusResponse { status: Some(status), info }))
    }

    async fn stop_container(
        &self,
        request: Request<v1::StopContainerRequest>,
    ) -> Result<Response<v1::StopContainerResponse>, Status> {
        let v1::StopContainerRequest { container_id, timeout } = request.into_inner();
        if !self.state.lock().containers.iter().any(|container| container.id == container_id) {
            return Err(Status::unknown("it cannot be stopped"));
        }
        self.change(|state| state.stops.push((container_id, timeout)));
        Ok(Response::new(v1::StopContainerResponse {}))
    }

    async fn list_containers(
        &self,
        request: Request<v1::ListContainersRequest>,
    ) -> Result<Response<v1::ListContainersResponse>, Status> {
        let selector = request.into_inner().filter.unwrap_or_default().label_selector;
        let mut containers = self.state.lock().containers.clone();
        containers.retain(|container| has_labels(&container.labels, &selector));
        Ok(Response::new(v1::ListContainersResponse { containers }))
    }

    async fn list_container_stats(
        &self,
        request: Request<v1::ListContainerStatsRequest>,
    ) -> Result<Response<v1::ListContainerStatsResponse>, Status> {
        let selector = request.into_inner().filter.unwrap_or_default().label_selector;
        let number = Some(v1::UInt64Value { value: 7 });
        let stats = |v1::Container { id, metadata, labels, .. }: v1::Container| v1::ContainerStats {
            attributes: Some(v1::ContainerAttributes { id, metadata, labels }),
            memory: Some(v1::MemoryUsage { timestamp: 1, working_set_bytes: number, ..Default::default() }),
            writable_layer: Some(v1::FilesystemUsage { used_bytes: number, ..Default::default() }),
            ..Default::default()
        };
        let mut containers = self.state.lock().containers.clone();
        containers.retain(|container| has_labels(&container.labels, &selector));
        Ok(Response::new(v1::ListContainerStatsResponse { stats: containers.into_iter().map(stats).collect() }))
    }

    async fn list_pod_sandbox_stats(
        &self,
        request: Request<v1::ListPodSandboxStatsRequest>,
    ) -> Result<Response<v1::ListPodSandboxStatsResponse>, Status> {
        let selector = request.into_inner().filter.unwrap_or_default().label_selector;
        let stats = |v1::PodSandbox { id, metadata, labels, .. }: v1::PodSandbox| {
            let default_interface = Some(v1::NetworkInterfaceUsage { name: "eth0".into(), ..Default::default() });
            let network = Some(v1::NetworkUsage { timestamp: 1, default_interface, interfaces: vec![] });
            let attributes = Some(v1::PodSandboxAttributes { id, metadata, labels });
            v1::PodSandboxStats { attributes, linux: Some(v1::LinuxPodSandboxStats { network }) }
        };
        let mut sandboxes = self.state.lock().sandboxes.clone();
        sandboxes.retain(|sandbox| has_labels(&sandbox.labels, &selector));
        Ok(Response::new(v1::ListPodSandboxStatsResponse { stats: sandboxes.into_iter().map(stats).collect() }))
    }

    async fn remove_container(
        &self,
        request: Request<v1::RemoveContainerRequest>,
    ) -> Result<Response<v1::RemoveContainerResponse>, Status> {
        let id = request.into_inner().container_id;
        self.change(|state| {
            state.containers.retain(|container| container.id != id);
            state.removed.push(id);
        });
        Ok(Response::new(v1::RemoveContainerResponse {}))
    }

    async fn get_container_events(
        &self,
        _: Request<v1::GetEventsRequest>,
    ) -> Result<Response<BoxStream<'static, Result<v1::ContainerEventResponse, Status>>>, Status> {
        self.change(|state| state.event_calls += 1);
        let Some(events) = self.events.lock().take() else { return Err(Status::unimplemented("no more")) };
        let events = stream::unfold(events, |mut events| async { Some((Ok(events.recv().await?), events)) });
        Ok(Response::new(events.boxed()))
    }
}

/// Whether a selector selects an object with these labels.
fn has_labels(labels: &[v1::LabelEntry], selector: &HashMap<String, String>) -> bool {
    selector.iter().all(|(key, value)| v1::value(labels, key) == Some(value))
}

fn map(entries: Vec<v1::LabelEntry>) -> HashMap<String, String> {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    entries.iter().map(|entry| (text(&entry.key), text(&entry.value))).collect()
}
