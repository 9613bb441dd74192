//! Container events of the runtime. An event is a hint that its pod has changed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use podwright_metrics::Metrics;
use podwright_model::ids::PodUid;
use podwright_ports::{RuntimeError, RuntimeName};

use super::client::Client;
use super::config::labels;
use super::node_facts::NodeFactsCache;
use super::v1;
use podwright_host::changed_pods::ChangedPods;
use podwright_model::text::error_chain;

/// The first and the longest interval between two connection attempts. A pod worker that needs the runtime now makes its own
/// call, which connects too.
const FIRST_RETRY: Duration = Duration::from_secs(1);
const LAST_RETRY: Duration = Duration::from_secs(10);
/// The interval at which the event stream of a runtime without events is requested again. The runtime may have been upgraded or
/// reconfigured.
const NO_EVENTS_RETRY: Duration = Duration::from_secs(60);

/// Follows the runtime's container events, and logs the runtime's version.
pub(super) struct EventStream {
    pub(super) client: Client,
    /// The cache is emptied when the runtime may have restarted as another version.
    pub(super) facts: Arc<NodeFactsCache>,
    pub(super) name: RuntimeName,
    /// Receives the pods that have changed.
    pub(super) changed_pods: Arc<ChangedPods>,
    /// Whether the open stream delivers every event. The first event of a stream sets it, because some runtimes accept the
    /// call and never send an event.
    pub(super) has_events: Arc<AtomicBool>,
    pub(super) metrics: Metrics,
}

/// Why a stream ended.
enum StreamEnd {
    /// The connection to the runtime broke.
    ConnectionLost,
    /// The runtime ended a stream that had delivered events.
    Closed,
    /// The runtime has no events: it refused the call, or ended the stream without an event. CRI-O does the latter unless its
    /// setting `enable_pod_events` is on.
    NoEvents { why: String },
}

impl EventStream {
    /// Follows the events of the runtime, one stream after the other. Never returns.
    pub(super) async fn run(self) {
        let mut retry = FIRST_RETRY;
        // The runtime version that answered last, and whether the lack of events of this version was logged.
        let (mut last_version, mut logged) = (None, false);
        loop {
            // A failed call is not logged here: the relist reports a runtime that does not answer.
            match self.client.report_name(&self.name).await {
                Err(_) => {
                    last_version = None;
                    retry = (retry * 2).min(LAST_RETRY);
                }
                Ok(version) => {
                    self.facts.forget();
                    let is_complete = sends_events_to_all(&version.runtime_name, &version.runtime_version);
                    let version = format!("{} {}", version.runtime_name, version.runtime_version);
                    if last_version.as_ref() != Some(&version) {
                        tracing::info!(version, "container runtime answers");
                        logged = false;
                    }
                    let end = self.follow(is_complete).await;
                    if self.has_events.swap(false, Ordering::Relaxed) {
                        tracing::debug!("container event stream ended");
                    }
                    // The runtime may have restarted as another version.
                    self.facts.forget();
                    retry = FIRST_RETRY;
                    last_version = Some(version);
                    match end {
                        StreamEnd::ConnectionLost => last_version = None,
                        StreamEnd::Closed => {}
                        StreamEnd::NoEvents { why } => {
                            retry = NO_EVENTS_RETRY;
                            if !std::mem::replace(&mut logged, true) {
                                tracing::info!(why, "no container events: pods are listed every second instead");
                            }
                        }
                    }
                }
            }
            tokio::time::sleep(retry).await;
        }
    }

    /// Follows one stream to its end. `is_complete` says whether the runtime sends each event to every client. If it does not,
    /// the events are only hints, and the periodic relist finds the other changes.
    async fn follow(&self, is_complete: bool) -> StreamEnd {
        let pleg = &self.metrics.pleg;
        let mut stream = match self.client.events().await {
            Ok(stream) => stream,
            Err(error) => {
                pleg.stream_failed();
                return match error {
                    RuntimeError::Unreachable(_) | RuntimeError::Timeout { .. } => StreamEnd::ConnectionLost,
                    error => StreamEnd::NoEvents { why: error_chain(&error).to_string() },
                };
            }
        };
        pleg.stream_connected();
        let mut any = false;
        loop {
            match stream.message().await {
                Ok(Some(event)) => {
                    any = true;
                    self.has_events.store(is_complete, Ordering::Relaxed);
                    if let Some(age) = age(&event) {
                        pleg.stream_latency(age);
                    }
                    if let Some(uid) = pod_of(&event) {
                        self.changed_pods.mark(&uid);
                    }
                }
                Ok(None) if any => return StreamEnd::Closed,
                Ok(None) => {
                    return StreamEnd::NoEvents { why: "the runtime ended the stream without an event".to_owned() };
                }
                Err(status) => {
                    pleg.stream_failed();
                    return match self.client.classify(&status) {
                        RuntimeError::Unreachable(_) | RuntimeError::Timeout { .. } => StreamEnd::ConnectionLost,
                        _ if any => StreamEnd::Closed,
                        error => StreamEnd::NoEvents { why: error_chain(&error).to_string() },
                    };
                }
            }
        }
    }
}

/// Whether a runtime sends each event to every client. containerd does since 2.0 (pull request 9661) and CRI-O since 1.28 (pull
/// request 6838). Older versions send each event to one client only. Other runtimes are assumed to do the same.
fn sends_events_to_all(name: &str, version: &str) -> bool {
    let mut numbers = version.trim_start_matches('v').split(|c: char| !c.is_ascii_digit()).map(str::parse::<u32>);
    let (Some(Ok(major)), Some(Ok(minor))) = (numbers.next(), numbers.next()) else { return false };
    match name {
        "containerd" => major >= 2,
        "cri-o" => (major, minor) >= (1, 28),
        _ => false,
    }
}

/// The age of an event. `None` if the event's time is in the future of this node's clock.
fn age(event: &v1::ContainerEventResponse) -> Option<Duration> {
    let at = Duration::from_nanos(u64::try_from(event.created_at).ok()?);
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).ok()?.checked_sub(at)
}

/// The pod of an event. `None` if the event names none; the next relist finds the change.
fn pod_of(event: &v1::ContainerEventResponse) -> Option<PodUid> {
    let of_sandbox = event.pod_sandbox_status.as_ref().map(|sandbox| &sandbox.labels);
    let mut labels = of_sandbox.into_iter().chain(event.containers_statuses.iter().map(|status| &status.labels));
    labels.find_map(|labels| labels.get(labels::POD_UID)).map(|uid| PodUid::new(uid))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_complete_only_if_the_runtime_sends_them_to_all_clients() {
        for (name, version, expected) in [
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
            assert_eq!(sends_events_to_all(name, version), expected, "{name} {version}");
        }
    }
}
