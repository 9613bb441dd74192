//! Changes the resources of running containers.

use k8s_openapi::api::core::v1::Container;
use podwright_core::containers::definition::Definition;
use podwright_model::ids::ContainerId;
use podwright_model::pod::ContainerKind;
use podwright_ports::{ContainerUpdate, RuntimeError};

use super::config::updated_resources;
use super::inner::CriRuntimeInner;
use super::v1;

impl CriRuntimeInner {
    /// Changes the CPU and the memory of a running container.
    pub(super) async fn update_container(
        &self,
        id: &ContainerId,
        update: &ContainerUpdate,
    ) -> Result<(), RuntimeError> {
        let facts = self.facts.cached().await?;
        let ContainerUpdate { pod, kind, name, resources, .. } = update;
        let list = if *kind == ContainerKind::Init { pod.init_containers() } else { pod.containers() };
        let spec = list.iter().find(|container| container.name == name.as_str());
        let spec = spec.ok_or_else(|| RuntimeError::NotFound(format!("container {name} in the spec of the pod")))?;
        let container = Container { resources: Some(resources.clone()), ..spec.clone() };
        let container = match kind {
            ContainerKind::Init => Definition::Init(&container),
            ContainerKind::Regular | ContainerKind::Ephemeral => Definition::Regular(&container),
        };
        let linux = updated_resources(&facts, pod, container).map_err(RuntimeError::config)?;
        let container_id = id.as_str().to_owned();
        let request = v1::UpdateContainerResourcesRequest { container_id, linux: Some(linux), ..Default::default() };
        self.client.update_container_resources(request).await.map(drop)
    }
}
