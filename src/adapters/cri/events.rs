//! What the runtime tells by itself: hints at pods in which something changed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use podwright_actors::ids::PodUid;
use podwright_actors::ports::{RuntimeError, RuntimeName};
use tonic::Streaming;

use super::client::Client;
use super::config::labels;
use super::inner::Inner;
use super::v1;
use crate::adapters::news::News;

/// How long until the runtime is asked again, at first and at the most: whoever needs it now finds out by his own calls.
const FIRST_RETRY: Duration = Duration::from_secs(1);
const LAST_RETRY: Duration = Duration::from_secs(10);
/// How long until a runtime without events is asked whether it was replaced by one that has some.
const LOOK_AGAIN: Duration = Duration::from_secs(60);

/// Tells of the runtime's version, and follows its events where it has some.
pub(super) struct Events {
    pub(super) client: Client,
    /// What was read of the runtime before is forgotten when another may answer.
    pub(super) inner: Arc<Inner>,
    pub(super) name: RuntimeName,
    pub(super) news: Arc<News>,
    /// Whether the present stream has shown that it brings something: some runtimes open one and stay silent.
    pub(super) flowing: Arc<AtomicBool>,
}

impl Events {
    /// Ends never.
    pub(super) async fn run(self) {
        let mut retry = FIRST_RETRY;
        let mut without_events = String::new();
        loop {
            // Whoever lists pods says that nobody answers.
            if let Ok(version) = self.client.greet(&self.name).await {
                self.inner.forget_facts();
                let version = format!("{} {}", version.runtime_name, version.runtime_version);
                if without_events != version {
                    self.tell(&version).await;
                    match self.client.events().await {
                        Ok(stream) => {
                            retry = FIRST_RETRY;
                            self.follow(stream).await;
                        }
                        Err(RuntimeError::Failed(why)) => {
                            tracing::info!(version, why, "no container events: pods are listed every second instead");
                            without_events = version;
                        }
                        Err(_) => {}
                    }
                }
                if !without_events.is_empty() {
                    retry = LOOK_AGAIN;
                }
            }
            tokio::time::sleep(retry).await;
            retry = (retry * 2).min(LAST_RETRY.max(retry));
        }
    }

    /// Who answers, and what is wrong there.
    async fn tell(&self, version: &str) {
        tracing::info!(version, "container runtime answers");
        let status = self.client.status(v1::StatusRequest { verbose: false }).await;
        let conditions = status.ok().and_then(|status| status.status).unwrap_or_default().conditions;
        for unmet in conditions.iter().filter(|condition| !condition.status) {
            let (condition, reason, message) = (&unmet.r#type, &unmet.reason, &unmet.message);
            tracing::warn!(condition, reason, message, "container runtime is not ready, pods may fail to start");
        }
    }

    /// Follows the stream to its end.
    async fn follow(&self, mut stream: Streaming<v1::ContainerEventResponse>) {
        while let Ok(Some(event)) = stream.message().await {
            self.flowing.store(true, Ordering::Relaxed);
            if let Some(uid) = pod_of(&event) {
                self.news.mark(&uid);
            }
        }
        self.flowing.store(false, Ordering::Relaxed);
        tracing::debug!("container events ended");
    }
}

/// Whose event it is. One that does not say is made up for by the next list.
fn pod_of(event: &v1::ContainerEventResponse) -> Option<PodUid> {
    let of_sandbox = event.pod_sandbox_status.as_ref().map(|sandbox| &sandbox.labels);
    let mut labels = of_sandbox.into_iter().chain(event.containers_statuses.iter().map(|status| &status.labels));
    labels.find_map(|labels| labels.get(labels::POD_UID)).map(|uid| PodUid::new(uid))
}
