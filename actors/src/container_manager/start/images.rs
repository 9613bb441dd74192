//! Makes the images present that a container needs.

use std::collections::BTreeMap;

use crate::container_manager::activity::Task;
use crate::containers::definition::Definition;
use crate::containers::image_backoff::PullFailure;
use crate::pod::ContainerKind;
use crate::ports::{ImageError, ImageRequest, PodEvent, VolumeImage};
use crate::texts::images;

use super::{ContainerManager, StartFailure, SyncWork};

impl ContainerManager {
    /// Makes the images present of the image volumes that a container mounts. The events of these pulls belong to the pod
    /// (upstream `getImageVolumes`, kubelet 1.36).
    pub(super) async fn image_volumes(
        &self,
        work: &SyncWork<'_>,
        container: &Definition<'_>,
    ) -> Result<BTreeMap<String, VolumeImage>, StartFailure> {
        let mut images = BTreeMap::new();
        for volume in work.pod.spec().volumes.iter().flatten() {
            let Some(source) = &volume.image else { continue };
            if !container.mounts().iter().any(|mount| mount.name == volume.name) {
                continue;
            }
            let reference = source.reference.as_deref().unwrap_or_default();
            let needed = NeededImage { image: reference, policy: source.pull_policy.as_deref(), container: None };
            match self.image(work, container, needed).await {
                Ok(id) => {
                    images.insert(volume.name.clone(), VolumeImage { id, reference: reference.to_owned() });
                }
                Err(StartFailure::Cancelled) => return Err(StartFailure::Cancelled),
                Err(failure) => {
                    if let Some(event) = image_event(reference, &failure) {
                        self.record(work.pod, event);
                    }
                    return Err(StartFailure::ImageVolume(Box::new(failure)));
                }
            }
        }
        Ok(images)
    }

    pub(super) async fn image(
        &self,
        work: &SyncWork<'_>,
        container: &Definition<'_>,
        needed: NeededImage<'_>,
    ) -> Result<String, StartFailure> {
        let (uid, image) = (work.pod.uid(), needed.image);
        let waits = self.images.lock().waits(uid, image, self.ports.clock.now()).cloned();
        let pulled = match &waits {
            None => self.ensure_image(work, container, needed).await,
            // The image may have become present without a pull. Only the policy `Always` needs the registry.
            Some(_) if needed.policy != Some("Always") => {
                self.ensure_image(work, container, NeededImage { policy: Some("Never"), ..needed }).await
            }
            Some(_) => Err(ImageError::NeverPull(image.to_owned())),
        };
        match (pulled, waits) {
            (Ok(id), _) => {
                self.images.lock().present(uid, image);
                Ok(id)
            }
            (Err(ImageError::Cancelled), _) => Err(StartFailure::Cancelled),
            (Err(_), Some(PullFailure { error, until, .. })) => {
                Err(StartFailure::ImageBackOff { image: image.to_owned(), until, last: error })
            }
            (Err(error), None) => {
                if error.is_of_pull() {
                    self.images.lock().failed(uid, image, error.clone(), self.ports.clock.now());
                }
                Err(StartFailure::Image(error))
            }
        }
    }

    async fn ensure_image(
        &self,
        work: &SyncWork<'_>,
        container: &Definition<'_>,
        needed: NeededImage<'_>,
    ) -> Result<String, ImageError> {
        let (uid, image) = (work.pod.uid(), needed.image);
        let task = Task::PullImage(image.to_owned());
        let _doing = self.activities.begin_with(uid, task, Some(container.container_name()), None);
        let _measured = self.ports.starts.pull(uid);
        let request = ImageRequest { pod: work.pod, container: needed.container, image, pull_policy: needed.policy };
        let pull = self.ports.runtime.ensure_image(request, work.cancel);
        // The token is checked here too: a runtime that reacts late to it must not delay the end of the pod (POD-S98).
        work.cancel.run_until_cancelled(pull).await.unwrap_or(Err(ImageError::Cancelled))
    }
}

/// An image that a container needs, as its own image or as a volume.
#[derive(Clone, Copy)]
pub(super) struct NeededImage<'a> {
    image: &'a str,
    policy: Option<&'a str>,
    /// The container that the events of the pull belong to. `None` if the events belong to the pod.
    container: Option<(ContainerKind, &'a str)>,
}

impl<'a> NeededImage<'a> {
    pub(super) fn of_container(container: &Definition<'a>) -> Self {
        let owner = Some((container.kind(), container.name()));
        NeededImage { image: container.image(), policy: container.pull_policy(), container: owner }
    }
}

/// The event of an image that is not present; `None` for another failure.
pub(super) fn image_event(image: &str, failure: &StartFailure) -> Option<PodEvent> {
    Some(match failure {
        StartFailure::ImageBackOff { .. } => PodEvent::normal("BackOff", images::backoff_event(image)),
        StartFailure::Image(error @ ImageError::NeverPull(_)) => {
            PodEvent::warning("ErrImageNeverPull", error.to_string())
        }
        StartFailure::Image(error @ (ImageError::InvalidName { .. } | ImageError::Inspect(_))) => {
            PodEvent::warning("InspectFailed", error.to_string())
        }
        StartFailure::Image(error) => PodEvent::warning("Failed", images::pull_failed(image, &error.of_runtime())),
        _ => return None,
    })
}
