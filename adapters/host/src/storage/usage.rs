//! Measures the disk space of pods' volumes and logs.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use k8s_openapi::api::core::v1::Volume;
use podwright_model::pod::PodObject;
use podwright_ports::{DiskMeter, FileSystemSpace, PodDiskUsage, StorageError, UsedSpace};

use super::{FileStorage, component, io_error, volume};
use crate::disk_usage;

/// The space of a pod's volumes and logs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodSpace {
    /// The volumes that have a directory of the pod, in the order of the spec.
    pub volumes: Vec<VolumeSpace>,
    /// The logs of all runs of each container, by container name.
    pub logs: BTreeMap<String, UsedSpace>,
}

/// The space of one volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeSpace {
    /// The volume's name.
    pub name: String,
    /// The space that the volume's files use.
    pub used: UsedSpace,
    /// The file system that holds the volume.
    pub file_system: FileSystemSpace,
    /// Whether the volume uses the local storage of the pod (upstream `IsLocalEphemeralVolume`, kubelet 1.36).
    pub is_local_storage: bool,
}

impl FileStorage {
    /// Measures the volumes and the logs of a pod. A volume that does not exist is left out. Takes long for a pod with many files, and
    /// never blocks the calling thread. A call for the pod that changes its directory does not wait for a measurement.
    ///
    /// # Errors
    /// [`StorageError`] if a volume or a log directory cannot be read.
    pub async fn pod_space(&self, pod: &Arc<PodObject>) -> Result<PodSpace, StorageError> {
        let mut volumes = Vec::new();
        for volume in pod.spec().volumes.iter().flatten() {
            let Some(path) = self.volume_dir(pod, volume)? else { continue };
            let at = path.clone();
            let file_system = match disk_usage::blocking(move || disk_usage::of_file_system(&at)).await {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                measured => measured.map_err(|error| io_error(&path, error))?,
            };
            volumes.push(VolumeSpace {
                name: volume.name.clone(),
                used: used_by(path).await?,
                file_system,
                is_local_storage: volume::is_local_storage(volume),
            });
        }
        Ok(PodSpace { volumes, logs: self.log_space(pod).await? })
    }

    /// The directory of a volume. `None` for a volume outside the pod's directory.
    fn volume_dir(&self, pod: &PodObject, volume: &Volume) -> Result<Option<PathBuf>, StorageError> {
        let Some(plugin) = volume::plugin(volume) else { return Ok(None) };
        let name = component(&volume.name)?;
        Ok(Some(self.disk.pod_dir(pod.uid())?.join("volumes").join(plugin).join(name)))
    }

    async fn log_space(&self, pod: &PodObject) -> Result<BTreeMap<String, UsedSpace>, StorageError> {
        let mut logs = BTreeMap::new();
        let regular = pod.init_containers().iter().chain(pod.containers()).map(|container| &container.name);
        for container in regular.chain(pod.ephemeral_containers().iter().map(|container| &container.name)) {
            let path = self.log_dir(pod.full_name(), pod.uid(), container)?.path();
            logs.insert(container.clone(), used_by(path).await?);
        }
        Ok(logs)
    }
}

async fn used_by(path: PathBuf) -> Result<UsedSpace, StorageError> {
    disk_usage::of_tree(path.clone()).await.map_err(|error| io_error(&path, error))
}

impl DiskMeter for FileStorage {
    /// The calls for a pod that change its directory do not wait for a measurement, and a measurement does not wait for them.
    fn pod_usage<'a>(&'a self, pod: &'a Arc<PodObject>) -> BoxFuture<'a, Result<PodDiskUsage, StorageError>> {
        async move {
            let mut usage = PodDiskUsage::default();
            for volume in pod.spec().volumes.iter().flatten().filter(|volume| volume.empty_dir.is_some()) {
                if let Some(path) = self.volume_dir(pod, volume)? {
                    usage.volumes.insert(volume.name.clone(), used_by(path).await?);
                }
            }
            usage.logs = self.log_space(pod).await?;
            Ok(usage)
        }
        .boxed()
    }

    fn node_file_system(&self) -> BoxFuture<'_, Result<FileSystemSpace, StorageError>> {
        let pods = self.disk.pods.clone();
        async move {
            let path = pods.clone();
            let measured = disk_usage::blocking(move || match (disk_usage::of_file_system(&path), path.parent()) {
                // The directory of the pods is created with the first pod.
                (Err(error), Some(root)) if error.kind() == io::ErrorKind::NotFound => disk_usage::of_file_system(root),
                (measured, _) => measured,
            })
            .await;
            measured.map_err(|error| io_error(&pods, error))
        }
        .boxed()
    }
}

#[cfg(test)]
mod tests;
