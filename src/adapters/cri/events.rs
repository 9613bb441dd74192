//! What the runtime tells by itself: hints at pods in which something changed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use podwright_actors::ids::PodUid;
use podwright_actors::ports::{RuntimeError, RuntimeName};
use podwright_metrics::Metrics;

use super::client::Client;
use super::config::labels;
use super::inner::Inner;
use super::v1;
use crate::adapters::changed_pods::ChangedPods;

/// How long until the runtime is asked again, at first and at the most: whoever needs it now finds out by his own calls.
const FIRST_RETRY: Duration = Duration::from_secs(1);
const LAST_RETRY: Duration = Duration::from_secs(10);
/// How long until a runtime without events is asked for them again: another may have taken its place, or other settings.
const LOOK_AGAIN: Duration = Duration::from_secs(60);

/// Tells of the runtime's version, and follows its events where it has some.
pub(super) struct Events {
    pub(super) client: Client,
    /// What was read of the runtime before is forgotten when another may answer.
    pub(super) inner: Arc<Inner>,
    pub(super) name: RuntimeName,
    pub(super) news: Arc<ChangedPods>,
    /// Whether the present stream brings every event, and has shown that it brings some: there are runtimes that open one and
    /// stay silent.
    pub(super) flowing: Arc<AtomicBool>,
    pub(super) metrics: Metrics,
}

/// How a stream ended.
enum End {
    /// The runtime went away.
    Lost,
    /// It brought events before.
    Ended,
    /// It brought none: a runtime that has no events refuses the call, or ends it at once without a word, as CRI-O does
    /// unless it was told to have them.
    Without { why: String },
}

impl Events {
    /// Ends never.
    pub(super) async fn run(self) {
        let mut retry = FIRST_RETRY;
        // Who answered last, and whether it is known to have no events.
        let (mut known, mut told) = (None, false);
        loop {
            // Whoever lists pods says that nobody answers.
            match self.client.greet(&self.name).await {
                Err(_) => {
                    known = None;
                    retry = (retry * 2).min(LAST_RETRY);
                }
                Ok(version) => {
                    self.inner.forget_facts();
                    let tells_all = tells_every_client(&version.runtime_name, &version.runtime_version);
                    let version = format!("{} {}", version.runtime_name, version.runtime_version);
                    if known.as_ref() != Some(&version) {
                        tracing::info!(version, "container runtime answers");
                        told = false;
                    }
                    let end = self.follow(tells_all).await;
                    if self.flowing.swap(false, Ordering::Relaxed) {
                        tracing::debug!("container events ended");
                    }
                    // Another may answer from now on.
                    self.inner.forget_facts();
                    retry = FIRST_RETRY;
                    known = Some(version);
                    match end {
                        End::Lost => known = None,
                        End::Ended => {}
                        End::Without { why } => {
                            retry = LOOK_AGAIN;
                            if !std::mem::replace(&mut told, true) {
                                tracing::info!(why, "no container events: pods are listed every second instead");
                            }
                        }
                    }
                }
            }
            tokio::time::sleep(retry).await;
        }
    }

    /// Follows the stream to its end. Of one that others take events from they are hints, and lists make up for the rest.
    async fn follow(&self, tells_all: bool) -> End {
        let pleg = &self.metrics.pleg;
        let mut stream = match self.client.events().await {
            Ok(stream) => stream,
            Err(error) => {
                pleg.stream_failed();
                return match error {
                    RuntimeError::Unreachable(_) | RuntimeError::Timeout { .. } => End::Lost,
                    error => End::Without { why: error.to_string() },
                };
            }
        };
        pleg.stream_connected();
        let mut any = false;
        loop {
            match stream.message().await {
                Ok(Some(event)) => {
                    any = true;
                    self.flowing.store(tells_all, Ordering::Relaxed);
                    if let Some(age) = age(&event) {
                        pleg.stream_latency(age);
                    }
                    if let Some(uid) = pod_of(&event) {
                        self.news.mark(&uid);
                    }
                }
                Ok(None) if any => return End::Ended,
                Ok(None) => return End::Without { why: "it ends the stream without a word".to_owned() },
                Err(status) => {
                    pleg.stream_failed();
                    return match self.client.classify(&status) {
                        RuntimeError::Unreachable(_) | RuntimeError::Timeout { .. } => End::Lost,
                        _ if any => End::Ended,
                        error => End::Without { why: error.to_string() },
                    };
                }
            }
        }
    }
}

/// Whether a runtime tells each event to all who listen. containerd does from 2.0 on (its pull request 9661), CRI-O from 1.28 on
/// (its pull request 6838); before, whoever comes first takes it. Of others nothing is known.
fn tells_every_client(name: &str, version: &str) -> bool {
    let mut numbers = version.trim_start_matches('v').split(|c: char| !c.is_ascii_digit()).map(str::parse::<u32>);
    let (Some(Ok(major)), Some(Ok(minor))) = (numbers.next(), numbers.next()) else { return false };
    match name {
        "containerd" => major >= 2,
        "cri-o" => (major, minor) >= (1, 28),
        _ => false,
    }
}

/// How long ago it happened, where the clocks agree so far.
fn age(event: &v1::ContainerEventResponse) -> Option<Duration> {
    let at = Duration::from_nanos(u64::try_from(event.created_at).ok()?);
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).ok()?.checked_sub(at)
}

/// Whose event it is. One that does not say is made up for by the next list.
fn pod_of(event: &v1::ContainerEventResponse) -> Option<PodUid> {
    let of_sandbox = event.pod_sandbox_status.as_ref().map(|sandbox| &sandbox.labels);
    let mut labels = of_sandbox.into_iter().chain(event.containers_statuses.iter().map(|status| &status.labels));
    labels.find_map(|labels| labels.get(labels::POD_UID)).map(|uid| PodUid::new(uid))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_runtime_that_tells_an_event_once_is_not_relied_on() {
        for (name, version, relied_on) in [
            ("containerd", "v2.0.0", true),
            ("containerd", "2.1.4-beta.0", true),
            ("containerd", "v1.7.24", false),
            ("containerd", "1.7.24~ds1", false),
            ("containerd", "", false),
            ("cri-o", "1.28.0", true),
            ("cri-o", "1.27.9", false),
            ("cri-o", "2.0.0", true),
            ("another", "9.9.9", false),
        ] {
            assert_eq!(tells_every_client(name, version), relied_on, "{name} {version}");
        }
    }
}
