//! A pull that several pods share.

use std::sync::Arc;
use std::time::Duration;

use podwright_host::step_error::StepError;
use podwright_model::pod::PodObject;
use podwright_model::text::error_chain;
use podwright_model::texts::format::aggregate;
use podwright_ports::RuntimeError;
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use super::{Images, spec};
use crate::client::{Client, pull_text};
use crate::create;
use crate::credentials::Login;
use crate::image_name::ImageName;
use crate::inner::CriRuntimeInner;
use crate::tasks::{SharedResult, blocking, shared_result};
use crate::v1;

/// A pull that runs, or waits for a permit.
pub(super) struct SharedPull {
    pub(super) result: SharedResult<PullOutcome>,
}

/// The outcome of a successful pull.
#[derive(Clone, Debug)]
pub(super) struct PullOutcome {
    /// The image's ID.
    pub(super) id: String,
    /// The image's size in bytes. Zero if the runtime does not report it.
    pub(super) size: u64,
    /// The duration of the pull, without the wait for a permit.
    pub(super) took: Duration,
    /// The index of the login that succeeded. `None` if the pull used no login.
    pub(super) login: Option<usize>,
}

impl Images {
    /// The running pull of the image with the same logins. If there is none, starts a pull for this pod.
    pub(super) fn shared_pull(&self, pod: &Arc<PodObject>, name: &ImageName, logins: Vec<Login>) -> Arc<SharedPull> {
        let mut pulls = self.pulls.lock();
        let key = (name.clone(), logins);
        if let Some(pull) = pulls.get(&key).and_then(std::sync::Weak::upgrade)
            && pull.result.peek().is_none()
        {
            return pull;
        }
        pulls.retain(|_, pull| pull.strong_count() > 0);
        let (inner, metrics, permits) = (Arc::clone(&self.inner), self.metrics.clone(), Arc::clone(&self.pull_permits));
        let pod = Arc::clone(pod);
        let (records, (name, logins)) = (self.records.clone(), key.clone());
        let task = AbortOnDropHandle::new(self.handle.spawn(async move {
            let start = Instant::now();
            // The request is built before the wait for a permit, because the pod may be removed during the wait.
            let request = request(&inner, &pod, &name).await;
            // This fails only if the semaphore is closed, which never happens.
            let _permit = permits.acquire_owned().await;
            let (records_of_intent, image) = (records.clone(), name.clone());
            let intent = blocking(move || {
                let failed = |error: std::io::Error| {
                    RuntimeError::failed(StepError::new(
                        format!("cannot record the pull of image {}", image.as_str()),
                        error,
                    ))
                };
                records_of_intent.intend(&image).map_err(failed)
            });
            let intent = intent.await?;
            let pull_start = Instant::now();
            let result = pull_with_logins(&inner.client, request, &logins).await;
            let took = pull_start.elapsed();
            let (id, login) = match result {
                Ok(pulled) => pulled,
                Err(error) => {
                    blocking(move || {
                        intent.end();
                        Ok(())
                    })
                    .await?;
                    return Err(error);
                }
            };
            // The status has the image's size, which the metrics use, and the ID that containers of the image will have.
            let status = v1::ImageStatusRequest { image: Some(spec(&name)), verbose: false };
            let image = inner.client.image_status(status).await.ok().and_then(|found| found.image).unwrap_or_default();
            let id = if image.id.is_empty() { id } else { image.id };
            metrics.containers.image_pulled(image.size, start.elapsed());
            // Records the image as pulled by the agent, so that other pods may not use it. Each caller then records the access of
            // its own pod.
            let (image_id, repository) = (id.clone(), name.repository());
            blocking(move || {
                match records.grant(&image_id, &repository, None) {
                    Ok(()) => intent.end(),
                    // The file of the intent stays, and has the same effect.
                    Err(error) => tracing::warn!(image = image_id, %error, "cannot record the pull of the image"),
                }
                Ok(())
            })
            .await?;
            Ok(PullOutcome { id, size: image.size, took, login })
        }));
        let pull = Arc::new(SharedPull { result: shared_result(task) });
        pulls.insert(key, Arc::downgrade(&pull));
        pull
    }
}

/// The pull request. It also describes the pod, because a runtime may choose by the pod where it unpacks the image. If several
/// pods share the pull, it is the first pod.
async fn request(inner: &Arc<CriRuntimeInner>, pod: &Arc<PodObject>, name: &ImageName) -> v1::PullImageRequest {
    let annotations = pod.metadata().annotations.clone().unwrap_or_default().into_iter().collect();
    let image = Some(v1::ImageSpec { annotations, ..spec(name) });
    let sandbox_config = create::first_sandbox_config(inner, pod).await;
    let sandbox_config = sandbox_config
        .inspect_err(|error| tracing::debug!(error = %error_chain(error), "cannot describe the pod, so the pull request omits it"))
        .ok();
    v1::PullImageRequest { image, auth: None, sandbox_config }
}

/// Pulls with one login after the other until a pull succeeds. Without logins pulls anonymously. Returns the image reference and
/// the index of the login.
async fn pull_with_logins(
    client: &Client,
    request: v1::PullImageRequest,
    logins: &[Login],
) -> Result<(String, Option<usize>), RuntimeError> {
    let request = |auth| v1::PullImageRequest { auth, ..request.clone() };
    if logins.is_empty() {
        return Ok((client.pull_image(request(None)).await?, None));
    }
    let mut errors: Vec<String> = Vec::new();
    for (index, login) in logins.iter().enumerate() {
        match client.pull_image(request(Some(login.auth()))).await {
            Ok(id) => return Ok((id, Some(index))),
            // The runtime would not answer the next call either.
            Err(error @ RuntimeError::Unreachable(_)) => return Err(error),
            Err(error) => {
                errors.push(logins.iter().fold(pull_text(&error), |text, login| login.redact(&text)));
            }
        }
    }
    Err(RuntimeError::failed(aggregate(&errors)))
}
