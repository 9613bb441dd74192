//! Having images: one pull of each at a time, and not too many at once.

use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use podwright_actors::ports::{ImageError, RuntimeError};
use podwright_metrics::Metrics;
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::client::Client;
use super::flights::{Flight, flight};
use super::image_name::{ImageName, PullPolicy};
use super::v1;

/// Images and their pulls.
pub(super) struct Images {
    client: Client,
    metrics: Metrics,
    handle: Handle,
    seats: Arc<Semaphore>,
    /// By what is pulled. Held by those who wait: the last one to go away ends the pull.
    pulls: Mutex<HashMap<ImageName, Weak<Pull>>>,
}

/// A pull that is under way, or waits for its turn.
struct Pull {
    outcome: Flight<String>,
}

impl Images {
    /// At most `parallel` pulls at once, made from `handle`'s runtime.
    pub(super) fn new(client: Client, metrics: Metrics, parallel: NonZeroUsize, handle: Handle) -> Self {
        let seats = Arc::new(Semaphore::new(parallel.get().min(Semaphore::MAX_PERMITS)));
        Images { client, metrics, handle, seats, pulls: Mutex::default() }
    }

    /// Makes an image present as its policy says, and tells its id. Cancel safe: a pull that nobody waits for ends.
    pub(super) async fn ensure(
        &self,
        image: &str,
        policy: Option<&str>,
        cancel: &CancellationToken,
    ) -> Result<String, ImageError> {
        let Some(name) = ImageName::parse(image) else {
            return Err(ImageError::InvalidName(image.to_owned()));
        };
        let policy = PullPolicy::of(policy, &name);
        let ensure = async {
            if policy != PullPolicy::Always
                && let Some(id) = self.present(&name).await.map_err(failed)?
            {
                return Ok(id);
            }
            match policy {
                PullPolicy::Never => Err(ImageError::NeverPull(image.to_owned())),
                PullPolicy::Always | PullPolicy::IfNotPresent => {
                    let pull = self.pull(&name);
                    pull.outcome.clone().await.map_err(failed)
                }
            }
        };
        cancel.run_until_cancelled(ensure).await.unwrap_or(Err(ImageError::Cancelled))
    }

    /// The id of an image, if it is present.
    async fn present(&self, name: &ImageName) -> Result<Option<String>, RuntimeError> {
        let found =
            self.client.image_status(v1::ImageStatusRequest { image: Some(spec(name)), verbose: false }).await?;
        Ok(found.image.map(|image| image.id).filter(|id| !id.is_empty()))
    }

    /// The pull of an image that is under way, or a new one.
    fn pull(&self, name: &ImageName) -> Arc<Pull> {
        let mut pulls = self.pulls.lock();
        if let Some(pull) = pulls.get(name).and_then(Weak::upgrade)
            && pull.outcome.peek().is_none()
        {
            return pull;
        }
        pulls.retain(|_, pull| pull.strong_count() > 0);
        let (client, metrics, seats, name_of) =
            (self.client.clone(), self.metrics.clone(), Arc::clone(&self.seats), name.clone());
        let task = AbortOnDropHandle::new(self.handle.spawn(async move {
            // It is never closed.
            let _seat = seats.acquire_owned().await;
            let start = Instant::now();
            let request = v1::PullImageRequest { image: Some(spec(&name_of)), auth: None, sandbox_config: None };
            let id = client.pull_image(request).await?;
            // Its size is known only now, and counts nothing but the pulls of its class.
            let status = v1::ImageStatusRequest { image: Some(spec(&name_of)), verbose: false };
            let size =
                client.image_status(status).await.ok().and_then(|found| found.image).map_or(0, |image| image.size);
            metrics.containers.image_pulled(size, start.elapsed());
            Ok(id)
        }));
        let pull = Arc::new(Pull { outcome: flight(task) });
        pulls.insert(name.clone(), Arc::downgrade(&pull));
        pull
    }
}

fn spec(name: &ImageName) -> v1::ImageSpec {
    v1::ImageSpec { image: name.as_str().to_owned(), ..Default::default() }
}

fn failed(error: RuntimeError) -> ImageError {
    ImageError::Pull(error.to_string())
}
