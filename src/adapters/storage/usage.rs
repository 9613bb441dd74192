//! Measures the disk space of pods' volumes and logs.

use std::io;
use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use podwright_actors::pod::PodObject;
use podwright_actors::ports::{DiskMeter, FileSystemSpace, PodDiskUsage, StorageError};

use super::volume::EMPTY_DIR;
use super::{FileStorage, component, io_error};
use crate::adapters::disk_usage;

impl DiskMeter for FileStorage {
    /// The calls for a pod that change its directory do not wait for a measurement, and a measurement does not wait for them.
    fn pod_usage<'a>(&'a self, pod: &'a Arc<PodObject>) -> BoxFuture<'a, Result<PodDiskUsage, StorageError>> {
        async move {
            let volumes = self.disk.pod_dir(pod.uid())?.join("volumes").join(EMPTY_DIR);
            let mut usage = PodDiskUsage::default();
            for volume in pod.spec().volumes.iter().flatten().filter(|volume| volume.empty_dir.is_some()) {
                let path = volumes.join(component(&volume.name)?);
                let used = disk_usage::of_tree(path.clone()).await.map_err(|error| io_error(&path, error))?;
                usage.volumes.insert(volume.name.clone(), used);
            }
            let regular = pod.init_containers().iter().chain(pod.containers()).map(|container| &container.name);
            for container in regular.chain(pod.ephemeral_containers().iter().map(|container| &container.name)) {
                let path = self.log_dir(pod.full_name(), pod.uid(), container)?.path();
                let used = disk_usage::of_tree(path.clone()).await.map_err(|error| io_error(&path, error))?;
                usage.logs.insert(container.clone(), used);
            }
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
