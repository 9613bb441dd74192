//! Makes images present on the node. Pods share the pull of an image, and the number of pulls at the same time is limited.

mod pull;
mod store;

use std::collections::{HashMap, HashSet};
use std::num::NonZeroUsize;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use podwright_metrics::{Metrics, PullCheck};
use podwright_model::pod::PodObject;
use podwright_model::texts::images as texts;
use podwright_ports::{ImageError, ImageRequest, PodEvent, RuntimeError};
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::access::{Access, Presented};
use super::client::{pull_failure, pull_text};
use super::credentials::Login;
use super::image_name::{ImageName, PullPolicy};
use super::inner::CriRuntimeInner;
use super::logins::{LoginCandidates, LoginSources, PodPullSecrets};
use super::pull_records::{PullRecords, Verdict};
use super::tasks::blocking;
use super::v1;
use pull::{PullOutcome, SharedPull};
pub(super) use store::sandbox_image;

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
        request: ImageRequest<'_>,
        cancel: &CancellationToken,
    ) -> Result<String, ImageError> {
        let ImageRequest { pod, image, pull_policy, .. } = request;
        let Some(name) = ImageName::parse(image) else {
            return Err(ImageError::InvalidName(image.to_owned()));
        };
        let policy = PullPolicy::of(pull_policy, &name);
        let ensure = async {
            let secrets = self.logins.of_pod(pod).await;
            if policy != PullPolicy::Always
                && let Some(id) = self.present(&name).await.map_err(|error| ImageError::inspect(error.of_runtime()))?
                && self.may_use(pod, &name, &id, &secrets).await
            {
                self.record(request, PodEvent::normal("Pulled", texts::present(image)));
                return Ok(id);
            }
            match policy {
                // The error is the same whether the image is absent or present for other pods only. A pod must not learn which
                // images other pods use.
                PullPolicy::Never => Err(ImageError::NeverPull(image.to_owned())),
                PullPolicy::Always | PullPolicy::IfNotPresent => self.pull(request, &name, &secrets).await,
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

    async fn may_use(&self, pod: &PodObject, name: &ImageName, id: &str, secrets: &PodPullSecrets) -> bool {
        let mut presented = secrets.presented(&name.repository());
        let mut verdict = self.verify(name, id, presented.clone()).await;
        // Plugins are called only if their logins can make a difference.
        if verdict == (Verdict::AskRegistry { of_accounts: true }) {
            presented.accounts = self.logins.accounts(pod, name).await;
            verdict = self.verify(name, id, presented).await;
        }
        self.metrics.image_credentials.checked(match verdict {
            Verdict::PolicyAllows => PullCheck::PolicyAllowed,
            Verdict::RecordAllows => PullCheck::RecordFound,
            Verdict::AskRegistry { .. } => PullCheck::MustAuthenticate,
            Verdict::Unknown => PullCheck::Error,
        });
        verdict.allows()
    }

    async fn verify(&self, name: &ImageName, id: &str, presented: Presented) -> Verdict {
        let (records, name, id) = (self.records.clone(), name.clone(), id.to_owned());
        blocking(move || Ok(records.verify(&name, &id, &presented))).await.unwrap_or(Verdict::Unknown)
    }

    async fn pull(
        &self,
        request: ImageRequest<'_>,
        name: &ImageName,
        secrets: &PodPullSecrets,
    ) -> Result<String, ImageError> {
        let ImageRequest { pod, image, .. } = request;
        let LoginCandidates { logins, problems } = self.logins.of_image(pod, secrets, name).await;
        self.record(request, PodEvent::normal("Pulling", texts::pulling(image)));
        let start = Instant::now();
        let pull = self.shared_pull(pod, name, logins.iter().map(|it| it.login.clone()).collect());
        let outcome = pull.result.clone().await.map_err(|error| {
            for problem in problems {
                self.record(request, problem);
            }
            pull_failure(image, pull_text(&error))
        })?;
        let PullOutcome { id, size, took, login } = outcome;
        let access = login.and_then(|login| logins.get(login)).map_or(Access::Node, |it| it.access.clone());
        let (records, image_id, repository) = (self.records.clone(), id.clone(), name.repository());
        let recorded = blocking(move || Ok(records.grant(&image_id, &repository, Some(access)))).await;
        if let Ok(Err(error)) = recorded {
            tracing::warn!(image, %error, "cannot record which pods may use the image, so the next pod pulls it again");
        }
        self.record(request, PodEvent::normal("Pulled", texts::pulled(image, took, start.elapsed(), size)));
        Ok(id)
    }

    fn record(&self, request: ImageRequest<'_>, event: PodEvent) {
        let event = match request.container {
            Some((kind, name)) => event.of_container(kind, name),
            None => event,
        };
        self.logins.events.record(request.pod, event);
    }
}

fn spec(name: &ImageName) -> v1::ImageSpec {
    v1::ImageSpec { image: name.as_str().to_owned(), ..Default::default() }
}
