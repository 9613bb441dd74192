//! The images that are there, for whoever makes room among them.

use std::collections::HashSet;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use podwright_actors::ids::ImageId;
use podwright_actors::ports::{DiskUsage, ImageNeed, RuntimeError, StoredImage};
use rustix::fs::statvfs;
use tokio::time::Instant;

use super::Images;
use crate::adapters::cri::inner::{Whose, blocking, gone_is_fine};
use crate::adapters::cri::v1;

/// How long an image is kept for the container that is to be made of it.
const PROMISE: Duration = Duration::from_secs(120);

impl Images {
    /// Lets an image stay until its container is there.
    pub(super) fn promise(&self, id: &str) {
        let mut promised = self.promised.lock();
        promised.retain(|_, since| since.elapsed() < PROMISE);
        promised.insert(id.to_owned(), Instant::now());
    }

    fn is_promised(&self, id: &str) -> bool {
        self.promised.lock().get(id).is_some_and(|since| since.elapsed() < PROMISE)
    }

    /// The repositories and tags that are being pulled, in the normal form in which runtimes list them.
    fn being_pulled(&self) -> HashSet<String> {
        let pulls = self.pulls.lock();
        let live = pulls.iter().filter(|(_, pull)| pull.strong_count() > 0);
        live.flat_map(|((name, _), _)| [name.as_str().to_owned(), name.normal()]).collect()
    }

    /// Every image. Needed are those of all containers that exist, whoever made them, of all sandboxes that were seen, and
    /// those that a start was told of or that are being pulled.
    pub(in crate::adapters::cri) async fn list(&self) -> Result<Vec<StoredImage>, RuntimeError> {
        let at = SystemTime::now();
        let images = self.inner.client.list_images(v1::ListImagesRequest { filter: None }).await?.images;
        // Asked after the images: what is made of one meanwhile is seen.
        let containers = self.inner.containers(Whose::Anybody).await?;
        let mut needed = self.of_sandboxes().await?;
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
            } else if is_named || needed.contains(&image.id) || self.is_promised(&image.id) {
                ImageNeed::Used
            } else {
                ImageNeed::Unused
            };
            StoredImage { id: image.id.into(), size: image.size, need }
        });
        Ok(stored.collect())
    }

    /// The images of sandboxes, by id and by name. Runtimes tell them only when they are asked for everything, so each
    /// sandbox is asked once.
    async fn of_sandboxes(&self) -> Result<HashSet<String>, RuntimeError> {
        let sandboxes = self.inner.sandboxes(Whose::Anybody).await?;
        let there: HashSet<String> = sandboxes.into_iter().map(|sandbox| sandbox.id).collect();
        let new: Vec<String> = {
            let mut known = self.of_sandboxes.lock();
            known.asked.retain(|id| there.contains(id));
            known.told.retain(|id| there.contains(id));
            there.into_iter().filter(|id| !known.asked.contains(id)).collect()
        };
        let mut failed = None;
        for pod_sandbox_id in new {
            let request = v1::PodSandboxStatusRequest { pod_sandbox_id: pod_sandbox_id.clone(), verbose: true };
            let info = match self.inner.client.pod_sandbox_status(request).await {
                Ok(answer) => answer.info,
                Err(RuntimeError::NotFound(_)) => continue,
                Err(error @ RuntimeError::Unreachable(_)) => return Err(error),
                // One may hang; after two the others would be asked in vain for as long.
                Err(error @ RuntimeError::Timeout { .. }) if matches!(failed, Some(RuntimeError::Timeout { .. })) => {
                    return Err(error);
                }
                // It may be anybody's, and broken for good. Most have the same image, which the others tell.
                Err(error) => {
                    if self.of_sandboxes.lock().told.insert(pod_sandbox_id.clone()) {
                        tracing::warn!(sandbox = pod_sandbox_id, %error, "the image of a sandbox cannot be told");
                    }
                    failed = Some(error);
                    continue;
                }
            };
            let mut known = self.of_sandboxes.lock();
            known.images.extend(info.get("info").and_then(|info| image_of_sandbox(info)));
            known.told.remove(&pod_sandbox_id);
            known.asked.insert(pod_sandbox_id);
        }
        let images = self.of_sandboxes.lock().images.clone();
        // No other told it: any image may be that of the ones that failed.
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

    /// How full the file system of the images is.
    pub(in crate::adapters::cri) async fn disk(&self) -> Result<DiskUsage, RuntimeError> {
        let info = self.inner.client.image_fs_info(v1::ImageFsInfoRequest {}).await?;
        let place = info.image_filesystems.into_iter().find_map(|usage| usage.fs_id.map(|id| id.mountpoint));
        let place = place.filter(|place| !place.is_empty());
        let place =
            place.ok_or_else(|| RuntimeError::Failed("the runtime does not say where images are".to_owned()))?;
        blocking(move || {
            let place = PathBuf::from(place);
            let stat =
                statvfs(&place).map_err(|error| RuntimeError::Failed(format!("{}: {error}", place.display())))?;
            let bytes = |blocks: u64| blocks.saturating_mul(stat.f_frsize);
            Ok(DiskUsage { capacity: bytes(stat.f_blocks), available: bytes(stat.f_bavail) })
        })
        .await
    }

    /// Removes an image by its id, unless somebody was promised it since it was listed.
    pub(in crate::adapters::cri) async fn remove(&self, id: &ImageId) -> Result<(), RuntimeError> {
        if self.is_promised(id.as_str()) {
            return Err(RuntimeError::Failed(format!("image {id} is about to be used")));
        }
        let image = Some(v1::ImageSpec { image: id.as_str().to_owned(), ..Default::default() });
        gone_is_fine(self.inner.client.remove_image(v1::RemoveImageRequest { image }).await.map(|_| ()))
    }
}

/// The image in what containerd and CRI-O tell of a sandbox.
fn image_of_sandbox(info: &str) -> Option<String> {
    let info: serde_json::Value = serde_json::from_str(info).ok()?;
    info.get("image")?.as_str().filter(|image| !image.is_empty()).map(str::to_owned)
}
