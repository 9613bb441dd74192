//! Having images: one pull of each at a time, and not too many at once.

mod pull;
mod store;

use std::collections::{HashMap, HashSet};
use std::num::NonZeroUsize;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use podwright_actors::pod::PodObject;
use podwright_actors::ports::{EventRecorder, ImageError, PodEvent, RuntimeError};
use podwright_metrics::Metrics;
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::credentials::Login;
use super::image_name::{ImageName, PullPolicy};
use super::inner::{Inner, blocking};
use super::logins::{Candidates, Logins, PodSecrets};
use super::pull_records::PullRecords;
use super::v1;
use pull::{Pull, Pulled};

/// Images and their pulls.
pub(super) struct Images {
    inner: Arc<Inner>,
    metrics: Metrics,
    handle: Handle,
    seats: Arc<Semaphore>,
    logins: Logins,
    records: PullRecords,
    /// Held by those who wait: the last one to go away ends the pull.
    pulls: Mutex<HashMap<PullKey, Weak<Pull>>>,
    /// The images that starts were told of, and when: their containers may be about to be made.
    promised: Mutex<HashMap<String, Instant>>,
    of_sandboxes: Mutex<SandboxImages>,
}

/// What is pulled, and as whom.
type PullKey = (ImageName, Vec<Login>);

/// The images of sandboxes.
#[derive(Default)]
struct SandboxImages {
    /// The sandboxes that were asked and answered.
    asked: HashSet<String>,
    /// Those of which it was told that they cannot be described.
    told: HashSet<String>,
    /// What they said. The next sandbox will need it too, so it is kept when they go.
    images: HashSet<String>,
}

impl Images {
    /// At most `parallel` pulls at once, made from `handle`'s runtime.
    pub(super) fn new(
        inner: Arc<Inner>,
        metrics: Metrics,
        parallel: NonZeroUsize,
        handle: Handle,
        logins: Logins,
        records: PullRecords,
    ) -> Self {
        let seats = Arc::new(Semaphore::new(parallel.get().min(Semaphore::MAX_PERMITS)));
        Images {
            inner,
            metrics,
            handle,
            seats,
            logins,
            records,
            pulls: Mutex::default(),
            promised: Mutex::default(),
            of_sandboxes: Mutex::default(),
        }
    }

    /// Makes an image present as its policy says, and tells its id. Cancel safe: a pull that nobody waits for ends.
    pub(super) async fn ensure(
        &self,
        pod: &Arc<PodObject>,
        image: &str,
        policy: Option<&str>,
        cancel: &CancellationToken,
    ) -> Result<String, ImageError> {
        let Some(name) = ImageName::parse(image) else {
            return Err(ImageError::InvalidName(image.to_owned()));
        };
        let policy = PullPolicy::of(policy, &name);
        let ensure = async {
            let secrets = self.logins.of_pod(pod).await;
            if policy != PullPolicy::Always
                && let Some(id) = self.present(&name).await.map_err(|error| ImageError::Inspect(error.to_string()))?
                && self.may_use(&name, &id, &secrets).await
            {
                let message =
                    format!("Container image {image:?} already present on machine and can be accessed by the pod");
                self.tell(pod, PodEvent::normal("Pulled", message));
                return Ok(id);
            }
            match policy {
                // Whether it is there is not for those to know who may not use it.
                PullPolicy::Never => Err(ImageError::NeverPull(image.to_owned())),
                PullPolicy::Always | PullPolicy::IfNotPresent => self.pull(pod, image, &name, &secrets).await,
            }
        };
        let id = cancel.run_until_cancelled(ensure).await.unwrap_or(Err(ImageError::Cancelled))?;
        self.promise(&id);
        Ok(id)
    }

    /// The id of an image, if it is present.
    async fn present(&self, name: &ImageName) -> Result<Option<String>, RuntimeError> {
        let found =
            self.inner.client.image_status(v1::ImageStatusRequest { image: Some(spec(name)), verbose: false }).await?;
        Ok(found.image.map(|image| image.id).filter(|id| !id.is_empty()))
    }

    async fn may_use(&self, name: &ImageName, id: &str, secrets: &PodSecrets) -> bool {
        let (shown, records) = (secrets.marks(&name.repository()), self.records.clone());
        let (name, id) = (name.clone(), id.to_owned());
        blocking(move || Ok(records.may_use(&name, &id, &shown))).await.unwrap_or(false)
    }

    async fn pull(
        &self,
        pod: &Arc<PodObject>,
        image: &str,
        name: &ImageName,
        secrets: &PodSecrets,
    ) -> Result<String, ImageError> {
        let Candidates { logins, problem } = self.logins.of_image(secrets, name).await;
        self.tell(pod, PodEvent::normal("Pulling", format!("Pulling image {image:?}")));
        let start = Instant::now();
        let pull = self.shared_pull(pod, name, logins.iter().map(|it| it.login.clone()).collect());
        let pulled = pull.outcome.clone().await.map_err(|error| match problem {
            Some(problem) => ImageError::Pull(format!("{error}; {problem}")),
            None => ImageError::Pull(error.to_string()),
        })?;
        let Pulled { id, size, took, by } = pulled;
        let access = by.and_then(|by| logins.get(by)).map_or(super::access::Access::Node, |it| it.access.clone());
        let (records, of, repository) = (self.records.clone(), id.clone(), name.repository());
        let noted = blocking(move || Ok(records.grant(&of, &repository, Some(access)))).await;
        if let Ok(Err(error)) = noted {
            tracing::warn!(image, %error, "who may use the image was not noted, so it is pulled again for the next pod");
        }
        let message = format!(
            "Successfully pulled image {image:?} in {} ({} including waiting). Image size: {size} bytes.",
            go_duration(took),
            go_duration(start.elapsed())
        );
        self.tell(pod, PodEvent::normal("Pulled", message));
        Ok(id)
    }

    fn tell(&self, pod: &Arc<PodObject>, event: PodEvent) {
        let events: &dyn EventRecorder = &*self.logins.events;
        events.record(pod, event);
    }
}

fn spec(name: &ImageName) -> v1::ImageSpec {
    v1::ImageSpec { image: name.as_str().to_owned(), ..Default::default() }
}

/// A duration to the millisecond as Go writes it, which is what tools look for in the event: `1m2.345s`.
fn go_duration(duration: Duration) -> String {
    let millis = duration.as_millis();
    let (minutes, seconds) = (millis / 60_000, millis % 60_000);
    let seconds = match (seconds, minutes) {
        (0, 0) => "0s".to_owned(),
        (1..1000, 0) => format!("{seconds}ms"),
        _ => {
            let fraction = format!("{}.{:03}", seconds / 1000, seconds % 1000);
            format!("{}s", fraction.trim_end_matches('0').trim_end_matches('.'))
        }
    };
    match (minutes / 60, minutes % 60) {
        (0, 0) => seconds,
        (0, minutes) => format!("{minutes}m{seconds}"),
        (hours, minutes) => format!("{hours}h{minutes}m{seconds}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_written_as_tools_read_them() {
        for (millis, text) in [
            (0, "0s"),
            (106, "106ms"),
            (1000, "1s"),
            (2345, "2.345s"),
            (10_500, "10.5s"),
            (60_000, "1m0s"),
            (60_007, "1m0.007s"),
            (3_723_400, "1h2m3.4s"),
        ] {
            assert_eq!(go_duration(Duration::from_millis(millis)), text);
        }
    }
}
