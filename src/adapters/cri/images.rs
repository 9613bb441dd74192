//! Makes images present on the node. Pods share the pull of an image, and the number of pulls at the same time is limited.

mod pull;
mod store;

use std::collections::{HashMap, HashSet};
use std::num::NonZeroUsize;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use podwright_actors::pod::PodObject;
use podwright_actors::ports::{EventRecorder, ImageError, PodEvent, RuntimeError};
use podwright_actors::text::error_chain;
use podwright_metrics::Metrics;
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::access::Access;
use super::credentials::Login;
use super::image_name::{ImageName, PullPolicy};
use super::inner::CriRuntimeInner;
use super::logins::{LoginCandidates, LoginSources, PodPullSecrets};
use super::pull_records::PullRecords;
use super::tasks::blocking;
use super::v1;
use pull::{PullOutcome, SharedPull};

/// Pulls images, lists them and removes them.
pub(super) struct Images {
    inner: Arc<CriRuntimeInner>,
    metrics: Metrics,
    handle: Handle,
    /// One permit for each pull that may run at the same time.
    pull_permits: Arc<Semaphore>,
    logins: LoginSources,
    records: PullRecords,
    /// The running pulls. A pull is cancelled when its last caller drops it.
    pulls: Mutex<HashMap<PullKey, Weak<SharedPull>>>,
    /// The images that are reserved for a container that may not be created yet, with the time of the reservation.
    reserved: Mutex<HashMap<String, Instant>>,
    sandbox_images: Mutex<SandboxImages>,
}

/// The image to pull, and the logins to pull it with.
type PullKey = (ImageName, Vec<Login>);

/// The images of sandboxes.
#[derive(Default)]
struct SandboxImages {
    /// The sandboxes whose image is known.
    inspected: HashSet<String>,
    /// The sandboxes for which a failed status call was logged.
    logged: HashSet<String>,
    /// The names of the images. They are kept after a sandbox is removed, because the next sandbox needs the same image.
    images: HashSet<String>,
}

impl Images {
    /// Allows `parallel` pulls at the same time. Pulls run on the tokio runtime of `handle`.
    pub(super) fn new(
        inner: Arc<CriRuntimeInner>,
        metrics: Metrics,
        parallel: NonZeroUsize,
        handle: Handle,
        logins: LoginSources,
        records: PullRecords,
    ) -> Self {
        let pull_permits = Arc::new(Semaphore::new(parallel.get().min(Semaphore::MAX_PERMITS)));
        Images {
            inner,
            metrics,
            handle,
            pull_permits,
            logins,
            records,
            pulls: Mutex::default(),
            reserved: Mutex::default(),
            sandbox_images: Mutex::default(),
        }
    }

    /// Makes an image present according to its pull policy, and returns its ID.
    ///
    /// Cancel safe: a pull without callers is cancelled.
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
                && let Some(id) = self.present(&name).await.map_err(ImageError::inspect)?
                && self.may_use(&name, &id, &secrets).await
            {
                let message =
                    format!("Container image {image:?} already present on machine and can be accessed by the pod");
                self.record_event(pod, PodEvent::normal("Pulled", message));
                return Ok(id);
            }
            match policy {
                // The error is the same whether the image is absent or present for other pods only. A pod must not learn which
                // images other pods use.
                PullPolicy::Never => Err(ImageError::NeverPull(image.to_owned())),
                PullPolicy::Always | PullPolicy::IfNotPresent => self.pull(pod, image, &name, &secrets).await,
            }
        };
        let id = cancel.run_until_cancelled(ensure).await.unwrap_or(Err(ImageError::Cancelled))?;
        self.reserve(&id);
        Ok(id)
    }

    /// The ID of an image, if it is present.
    async fn present(&self, name: &ImageName) -> Result<Option<String>, RuntimeError> {
        let found =
            self.inner.client.image_status(v1::ImageStatusRequest { image: Some(spec(name)), verbose: false }).await?;
        Ok(found.image.map(|image| image.id).filter(|id| !id.is_empty()))
    }

    async fn may_use(&self, name: &ImageName, id: &str, secrets: &PodPullSecrets) -> bool {
        let (presented, records) = (secrets.identities(&name.repository()), self.records.clone());
        let (name, id) = (name.clone(), id.to_owned());
        blocking(move || Ok(records.may_use(&name, &id, &presented))).await.unwrap_or(false)
    }

    async fn pull(
        &self,
        pod: &Arc<PodObject>,
        image: &str,
        name: &ImageName,
        secrets: &PodPullSecrets,
    ) -> Result<String, ImageError> {
        let LoginCandidates { logins, problem } = self.logins.of_image(secrets, name).await;
        self.record_event(pod, PodEvent::normal("Pulling", format!("Pulling image {image:?}")));
        let start = Instant::now();
        let pull = self.shared_pull(pod, name, logins.iter().map(|it| it.login.clone()).collect());
        let outcome = pull.result.clone().await.map_err(|error| match problem {
            Some(problem) => ImageError::pull(format!("{}; {problem}", error_chain(&error))),
            None => ImageError::pull(error),
        })?;
        let PullOutcome { id, size, took, login } = outcome;
        let access = login.and_then(|login| logins.get(login)).map_or(Access::Node, |it| it.access.clone());
        let (records, image_id, repository) = (self.records.clone(), id.clone(), name.repository());
        let recorded = blocking(move || Ok(records.grant(&image_id, &repository, Some(access)))).await;
        if let Ok(Err(error)) = recorded {
            tracing::warn!(image, %error, "cannot record which pods may use the image, so the next pod pulls it again");
        }
        let message = format!(
            "Successfully pulled image {image:?} in {} ({} including waiting). Image size: {size} bytes.",
            go_duration(took),
            go_duration(start.elapsed())
        );
        self.record_event(pod, PodEvent::normal("Pulled", message));
        Ok(id)
    }

    fn record_event(&self, pod: &Arc<PodObject>, event: PodEvent) {
        let events: &dyn EventRecorder = &*self.logins.events;
        events.record(pod, event);
    }
}

fn spec(name: &ImageName) -> v1::ImageSpec {
    v1::ImageSpec { image: name.as_str().to_owned(), ..Default::default() }
}

/// A duration in Go's format with milliseconds, such as `1m2.345s`. Tools parse this text in the event.
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
    fn pull_durations_have_the_format_of_go() {
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
