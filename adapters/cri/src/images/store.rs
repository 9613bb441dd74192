//! The image store port: lists and removes images for the image collector.

use std::collections::HashSet;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use podwright_model::ids::ImageId;
use podwright_ports::{DiskUsage, FileSystemSpace, ImageNeed, NamedImage, RuntimeError, StoredImage};
use tokio::time::Instant;

use super::Images;
use crate::client::Client;
use crate::inspect::PodFilter;
use crate::remove::ignore_not_found;
use crate::stats::{file_system_usage, mountpoint};
use crate::tasks::blocking;
use crate::v1;
use podwright_host::disk_usage;
use podwright_host::stats::FileSystemUsage;
use podwright_host::step_error::StepError;
use podwright_model::text::error_chain;

/// How long an image is reserved for a container that is not created yet.
const RESERVATION: Duration = Duration::from_secs(120);

impl Images {
    /// Keeps an image from removal until its container is created.
    pub(super) fn reserve(&self, id: &str) {
        let mut reserved = self.reserved.lock();
        reserved.retain(|_, since| since.elapsed() < RESERVATION);
        reserved.insert(id.to_owned(), Instant::now());
    }

    fn is_reserved(&self, id: &str) -> bool {
        self.reserved.lock().get(id).is_some_and(|since| since.elapsed() < RESERVATION)
    }

    /// The names of the images that are being pulled, as written and in the normal form in which runtimes list them.
    fn being_pulled(&self) -> HashSet<String> {
        let pulls = self.pulls.lock();
        let running = pulls.iter().filter(|(_, pull)| pull.strong_count() > 0);
        running.flat_map(|((name, _), _)| [name.as_str().to_owned(), name.normal()]).collect()
    }

    /// Lists all images. An image is in use if a container or a sandbox of any user of the runtime has it, if it is reserved for
    /// a container, or if it is being pulled.
    pub(crate) async fn list(&self) -> Result<Vec<StoredImage>, RuntimeError> {
        let at = SystemTime::now();
        let images = self.inner.client.list_images(v1::ListImagesRequest { filter: None }).await?.images;
        // Containers are listed after the images, so a container that is created between the two calls keeps its image.
        let containers = self.inner.containers(PodFilter::All).await?;
        let mut needed = self.sandbox_images().await?;
        needed.extend(self.being_pulled());
        for container in containers {
            let spec = container.image.unwrap_or_default();
            needed.extend([container.image_id, container.image_ref, spec.image, spec.user_specified_image]);
        }
        let names: HashSet<String> = images
            .iter()
            .flat_map(|it| &it.repo_tags)
            .chain(images.iter().flat_map(|it| &it.repo_digests))
            .cloned()
            .collect();
        let ids: HashSet<String> = images.iter().map(|image| image.id.clone()).collect();
        let records = self.records.clone();
        blocking(move || {
            records.retain(&ids, &names, at);
            Ok(())
        })
        .await?;
        let stored = images.into_iter().map(|image| {
            let is_named = image.repo_tags.iter().chain(&image.repo_digests).any(|name| needed.contains(name));
            let need = if image.pinned {
                ImageNeed::Pinned
            } else if is_named || needed.contains(&image.id) || self.is_reserved(&image.id) {
                ImageNeed::Used
            } else {
                ImageNeed::Unused
            };
            StoredImage { id: image.id.into(), size: image.size, need }
        });
        Ok(stored.collect())
    }

    /// The names and sizes of all images.
    pub(crate) async fn named(&self) -> Result<Vec<NamedImage>, RuntimeError> {
        let images = self.inner.client.list_images(v1::ListImagesRequest { filter: None }).await?.images;
        let named = |image: v1::Image| {
            let names = image.repo_digests.into_iter().chain(image.repo_tags).collect();
            NamedImage { names, size: image.size }
        };
        Ok(images.into_iter().map(named).collect())
    }

    /// The images of sandboxes, by ID and by name. The adapter reads the status of each sandbox once.
    async fn sandbox_images(&self) -> Result<HashSet<String>, RuntimeError> {
        let sandboxes = self.inner.sandboxes(PodFilter::All).await?;
        let present: HashSet<String> = sandboxes.into_iter().map(|sandbox| sandbox.id).collect();
        let new: Vec<String> = {
            let mut known = self.sandbox_images.lock();
            known.inspected.retain(|id| present.contains(id));
            known.logged.retain(|id| present.contains(id));
            present.into_iter().filter(|id| !known.inspected.contains(id)).collect()
        };
        let mut failed = None;
        for pod_sandbox_id in new {
            let image = match sandbox_image(&self.inner.client, pod_sandbox_id.clone()).await {
                Ok(image) => image,
                Err(RuntimeError::NotFound(_)) => continue,
                Err(error @ RuntimeError::Unreachable(_)) => return Err(error),
                // One timeout may be one broken sandbox. After two in a row, the remaining calls would only take time too.
                Err(error @ RuntimeError::Timeout { .. }) if matches!(failed, Some(RuntimeError::Timeout { .. })) => {
                    return Err(error);
                }
                // The sandbox may belong to another user of the runtime, and never answer. Nearly all sandboxes have the same
                // image, which the others report.
                Err(error) => {
                    if self.sandbox_images.lock().logged.insert(pod_sandbox_id.clone()) {
                        tracing::warn!(sandbox = pod_sandbox_id, error = %error_chain(&error), "cannot read the image of a sandbox");
                    }
                    failed = Some(error);
                    continue;
                }
            };
            let mut known = self.sandbox_images.lock();
            known.images.extend(image);
            known.logged.remove(&pod_sandbox_id);
            known.inspected.insert(pod_sandbox_id);
        }
        let images = self.sandbox_images.lock().images.clone();
        // If no sandbox reported an image, any image may be in use by the sandboxes that failed.
        if let Some(error) = failed.filter(|_| images.is_empty()) {
            return Err(error);
        }
        let mut needed = images.clone();
        for image in images {
            let image = Some(v1::ImageSpec { image, ..Default::default() });
            let found = self.inner.client.image_status(v1::ImageStatusRequest { image, verbose: false }).await?.image;
            needed.extend(found.map(|image| image.id));
        }
        Ok(needed)
    }

    /// The capacity and the free space of the file system that holds the images, in bytes.
    pub(crate) async fn disk(&self) -> Result<DiskUsage, RuntimeError> {
        let FileSystemSpace { capacity, available, .. } = self.file_system().await?;
        Ok(DiskUsage { capacity, available })
    }

    /// The file system that holds the images.
    pub(crate) async fn file_system(&self) -> Result<FileSystemSpace, RuntimeError> {
        let (_, path) = self.image_usage().await?;
        blocking(move || {
            let measured = disk_usage::of_file_system(&path);
            measured.map_err(|error| RuntimeError::failed(StepError::new("cannot measure the disk of images", error)))
        })
        .await
    }

    /// The space that the images use, and the file system that holds them.
    pub(crate) async fn file_system_usage(&self) -> Result<FileSystemUsage, RuntimeError> {
        let (usage, path) = self.image_usage().await?;
        blocking(move || Ok(file_system_usage(&usage, disk_usage::of_file_system(&path).ok()))).await
    }

    /// The usage of the images, and the directory that holds them.
    async fn image_usage(&self) -> Result<(v1::FilesystemUsage, PathBuf), RuntimeError> {
        let info = self.inner.client.image_fs_info(v1::ImageFsInfoRequest {}).await?;
        let usage = info.image_filesystems.into_iter().find(|usage| mountpoint(usage).is_some());
        let path = usage.as_ref().and_then(mountpoint).map(PathBuf::from);
        usage.zip(path).ok_or_else(|| {
            RuntimeError::failed(
                "the runtime does not report the file system of images: see the log of the container runtime",
            )
        })
    }

    /// Removes an image by its ID.
    ///
    /// # Errors
    /// [`RuntimeError::Failed`] if the image is reserved for a container. The reservation may be newer than the list of images.
    pub(crate) async fn remove(&self, id: &ImageId) -> Result<(), RuntimeError> {
        if self.is_reserved(id.as_str()) {
            return Err(RuntimeError::failed(format!("image {id} is reserved for a new container")));
        }
        let image = Some(v1::ImageSpec { image: id.as_str().to_owned(), ..Default::default() });
        ignore_not_found(self.inner.client.remove_image(v1::RemoveImageRequest { image }).await.map(|_| ()))
    }
}

/// The name of the image of a sandbox; `None` if the runtime does not report it. Runtimes report it only in the verbose status.
///
/// # Errors
/// The errors of the runtime.
pub(crate) async fn sandbox_image(client: &Client, pod_sandbox_id: String) -> Result<Option<String>, RuntimeError> {
    let request = v1::PodSandboxStatusRequest { pod_sandbox_id, verbose: true };
    let info = client.pod_sandbox_status(request).await?.info;
    Ok(info.get("info").and_then(|info| image_of_sandbox(info)))
}

/// The image name in the verbose status of a sandbox. containerd and CRI-O use the same JSON field.
fn image_of_sandbox(info: &str) -> Option<String> {
    let info: serde_json::Value = serde_json::from_str(info).ok()?;
    info.get("image")?.as_str().filter(|image| !image.is_empty()).map(str::to_owned)
}
