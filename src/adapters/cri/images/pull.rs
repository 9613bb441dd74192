//! One pull, for as many as wait for it.

use std::sync::Arc;
use std::time::Duration;

use podwright_actors::pod::PodObject;
use podwright_actors::ports::RuntimeError;
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use super::{Images, spec};
use crate::adapters::cri::client::Client;
use crate::adapters::cri::create;
use crate::adapters::cri::credentials::Login;
use crate::adapters::cri::flights::{Flight, flight};
use crate::adapters::cri::image_name::ImageName;
use crate::adapters::cri::inner::{Inner, blocking};
use crate::adapters::cri::v1;

/// A pull that is under way, or waits for its turn.
pub(super) struct Pull {
    pub(super) outcome: Flight<Pulled>,
}

/// What a pull brought.
#[derive(Clone, Debug)]
pub(super) struct Pulled {
    pub(super) id: String,
    /// In bytes; zero if the runtime does not tell.
    pub(super) size: u64,
    /// Without the wait for its turn.
    pub(super) took: Duration,
    /// Which of the logins it was; `None` if there was none.
    pub(super) by: Option<usize>,
}

impl Images {
    /// The pull of an image with the same logins that is under way, or a new one, for this pod.
    pub(super) fn shared_pull(&self, pod: &Arc<PodObject>, name: &ImageName, logins: Vec<Login>) -> Arc<Pull> {
        let mut pulls = self.pulls.lock();
        let key = (name.clone(), logins);
        if let Some(pull) = pulls.get(&key).and_then(std::sync::Weak::upgrade)
            && pull.outcome.peek().is_none()
        {
            return pull;
        }
        pulls.retain(|_, pull| pull.strong_count() > 0);
        let (inner, metrics, seats) = (Arc::clone(&self.inner), self.metrics.clone(), Arc::clone(&self.seats));
        let pod = Arc::clone(pod);
        let (records, (name, logins)) = (self.records.clone(), key.clone());
        let task = AbortOnDropHandle::new(self.handle.spawn(async move {
            let start = Instant::now();
            // While the pod is sure to be there.
            let request = request(&inner, &pod, &name).await;
            // It is never closed.
            let _seat = seats.acquire_owned().await;
            let (notes, image) = (records.clone(), name.clone());
            let intent = blocking(move || {
                let failed = |error| {
                    RuntimeError::Failed(format!("cannot note that image {} is pulled: {error}", image.as_str()))
                };
                notes.intend(&image).map_err(failed)
            });
            let intent = intent.await?;
            let began = Instant::now();
            let result = as_somebody(&inner.client, request, &logins).await;
            let took = began.elapsed();
            let (id, by) = match result {
                Ok(found) => found,
                Err(error) => {
                    blocking(move || {
                        intent.end();
                        Ok(())
                    })
                    .await?;
                    return Err(error);
                }
            };
            // Its size is known only now, and counts nothing but the pulls of its class. It is also asked by what id
            // its containers will show it.
            let status = v1::ImageStatusRequest { image: Some(spec(&name)), verbose: false };
            let image = inner.client.image_status(status).await.ok().and_then(|found| found.image).unwrap_or_default();
            let id = if image.id.is_empty() { id } else { image.id };
            metrics.containers.image_pulled(image.size, start.elapsed());
            // Who may use it is for each to note who waits; from now on it is known that others may not.
            let (of, repository) = (id.clone(), name.repository());
            blocking(move || {
                match records.grant(&of, &repository, None) {
                    Ok(()) => intent.end(),
                    // The file of its intent stays in its place.
                    Err(error) => tracing::warn!(image = of, %error, "the pull was not noted"),
                }
                Ok(())
            })
            .await?;
            Ok(Pulled { id, size: image.size, took, by })
        }));
        let pull = Arc::new(Pull { outcome: flight(task) });
        pulls.insert(key, Arc::downgrade(&pull));
        pull
    }
}

/// What to pull, and for whom: runtimes may choose by that where an image is unpacked, and whose the work is. Of those who
/// share a pull it is the first.
async fn request(inner: &Arc<Inner>, pod: &Arc<PodObject>, name: &ImageName) -> v1::PullImageRequest {
    let annotations = pod.metadata().annotations.clone().unwrap_or_default().into_iter().collect();
    let image = Some(v1::ImageSpec { annotations, ..spec(name) });
    let description = create::description(inner, pod).await;
    // For whom it is is no reason not to pull.
    let sandbox_config =
        description.inspect_err(|error| tracing::debug!(%error, "a pull does not tell for which pod it is")).ok();
    v1::PullImageRequest { image, auth: None, sandbox_config }
}

/// Pulls with one login after the other until one is good; without any as nobody.
async fn as_somebody(
    client: &Client,
    request: v1::PullImageRequest,
    logins: &[Login],
) -> Result<(String, Option<usize>), RuntimeError> {
    let request = |auth| v1::PullImageRequest { auth, ..request.clone() };
    if logins.is_empty() {
        return Ok((client.pull_image(request(None)).await?, None));
    }
    let mut said: Vec<String> = Vec::new();
    for (by, login) in logins.iter().enumerate() {
        match client.pull_image(request(Some(login.auth()))).await {
            Ok(id) => return Ok((id, Some(by))),
            // Nobody answers the next one either.
            Err(error @ RuntimeError::Unreachable(_)) => return Err(error),
            Err(error) => {
                let error = logins.iter().fold(error.to_string(), |text, login| login.redact(&text));
                if !said.contains(&error) {
                    said.push(error);
                }
            }
        }
    }
    Err(RuntimeError::Failed(said.join("; ")))
}
