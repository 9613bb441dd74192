//! Resolves the settings of a new run of a container.

use std::sync::Arc;

use crate::container_manager::{NO_CLAIMS, read_objects};
use crate::containers::definition::Definition;
use crate::containers::env::{ConfigError, EnvFiles, EnvObjects, VolumeContents, env_files, env_objects};
use crate::pod::ContainerKind;
use crate::ports::ContainerConfig;
use crate::text::error_chain;

use super::images::NeededImage;
use super::{ContainerManager, StartFailure, StartTarget, SyncWork};

impl ContainerManager {
    /// Resolves the settings of a new run.
    pub(super) async fn configure(
        &self,
        work: &SyncWork<'_>,
        target: StartTarget<'_>,
        container: &Definition<'_>,
    ) -> Result<ContainerConfig, StartFailure> {
        let images = self.image_volumes(work, container).await?;
        let image_id = self.image(work, container, NeededImage::of_container(container)).await?;
        let restart_count = self.restart_count(work, container).await;
        if work.cancel.is_cancelled() {
            return Err(StartFailure::Cancelled);
        }
        let files = self.env_files(work, container).await.ok_or(StartFailure::Cancelled)?;
        let objects = self.env_objects(work, container).await?;
        let cdi_devices = self.cdi_devices(work, container)?;
        let contents = VolumeContents { files, images, objects };
        let resolver = &self.ports.resolver;
        let resolved = resolver.resolve(work.pod, container, work.volumes, target.ips, &contents);
        let resolved = resolved.map_err(StartFailure::Config)?;
        Ok(ContainerConfig {
            pod: Arc::clone(work.pod),
            sandbox: target.sandbox.clone(),
            kind: container.kind(),
            name: container.container_name(),
            restart_count,
            image_id,
            spec_hash: container.spec_hash(),
            command: resolved.command,
            args: resolved.args,
            env: resolved.env,
            mounts: resolved.mounts,
            devices: Vec::new(),
            cdi_devices,
        })
    }

    /// The devices of the container's claims.
    fn cdi_devices(&self, work: &SyncWork<'_>, container: &Definition<'_>) -> Result<Vec<String>, StartFailure> {
        let refused = |why: String| StartFailure::Config(ConfigError::Devices(why));
        match &self.ports.resources {
            Some(resources) => {
                let devices = resources.container_devices(work.pod, container.name());
                devices.map_err(|error| refused(error_chain(&error).to_string()))
            }
            // A container that has run may be one of an agent that supports claims.
            None if work.pod.has_claims() && container.kind() != ContainerKind::Ephemeral => {
                Err(refused(NO_CLAIMS.to_owned()))
            }
            None => Ok(Vec::new()),
        }
    }

    /// Reads the files that the container's variables are taken from; `None` if the work was cancelled.
    async fn env_files(&self, work: &SyncWork<'_>, container: &Definition<'_>) -> Option<EnvFiles> {
        let mut files = EnvFiles::new();
        for (volume, path) in env_files(work.pod, container.kind(), container.name()) {
            let Some(directory) = work.volumes.get(&volume) else { continue };
            let read = self.ports.storage.read_volume_file(directory, &path);
            let read = work.cancel.run_until_cancelled(read).await?;
            if let Err(error) = &read {
                tracing::warn!(pod.uid = %work.pod.uid(), container.name = container.name(), volume, path, error = %error_chain(error), "cannot read a file of variables");
            }
            files.insert((volume, path), read.ok());
        }
        Some(files)
    }

    /// Reads the API objects that the container's variables are taken from; `None` without an API server.
    async fn env_objects(
        &self,
        work: &SyncWork<'_>,
        container: &Definition<'_>,
    ) -> Result<Option<Box<EnvObjects>>, StartFailure> {
        let Some(api) = &self.ports.objects else { return Ok(None) };
        let namespace = work.pod.full_name().namespace();
        let read = async {
            let objects = env_objects(work.pod, container.kind(), container.name());
            let ((config_maps, secrets), services) =
                tokio::join!(read_objects(&**api, namespace, objects), api.services(namespace));
            EnvObjects { config_maps, secrets, services }
        };
        let read = work.cancel.run_until_cancelled(read).await.ok_or(StartFailure::Cancelled)?;
        Ok(Some(Box::new(read)))
    }

    async fn restart_count(&self, work: &SyncWork<'_>, container: &Definition<'_>) -> u32 {
        let known = work.status.runs(container.name()).map(|run| run.restart_count).max();
        match known {
            Some(last) => last.saturating_add(1),
            None => self.ports.storage.restarts_by_log(work.pod, container.name()).await.unwrap_or(0),
        }
    }
}
