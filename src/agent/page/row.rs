//! The row of one pod on the page. Pure.

use std::time::Duration;

use k8s_openapi::api::core::v1::PodStatus;
use podwright_actors::explain::{Health, PodFacts, Wait, WaitKind, is_stuck};
use podwright_core::pod_worker::{Hook, Lifecycle, WaitFor};
use podwright_core::status::PodSummary;
use podwright_model::pod::Phase;
use podwright_model::time::Time;
use serde::Serialize;

/// The page shows a hook call as a wait only after this time. The regular sync of a healthy pod takes milliseconds, and its
/// row would flicker.
const LONG_CALL: Duration = Duration::from_secs(2);

/// Milliseconds since the Unix epoch, as JavaScript counts time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub(super) struct Millis(u64);

impl From<Time> for Millis {
    fn from(time: Time) -> Self {
        Millis(time.as_nanos() / 1_000_000)
    }
}

/// The row of one pod. It contains times and no ages, so it does not change unless the pod changes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct PodRow {
    uid: String,
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) health: Health,
    phase: &'static str,
    /// The status column of the tables.
    state: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    lifecycle: Option<&'static str>,
    ready: usize,
    containers: usize,
    restarts: u32,
    /// When the container that was restarted last had ended before that restart.
    #[serde(skip_serializing_if = "Option::is_none")]
    restarted: Option<Millis>,
    /// When the pod started.
    #[serde(skip_serializing_if = "Option::is_none")]
    started: Option<Millis>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) wait: Option<RowWait>,
}

/// The nearest wait of a pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct RowWait {
    /// What the pod waits for, in a few words.
    short: String,
    /// What the pod waits for, in a sentence.
    what: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    since: Option<Millis>,
    #[serde(skip_serializing_if = "Option::is_none")]
    until: Option<Millis>,
    /// Whether the wait changes only when the facts of this pod change.
    #[serde(skip)]
    pub(super) depends_only_on_pod: bool,
    /// Whether the wait should have ended by itself before now.
    #[serde(skip)]
    overdue: bool,
}

impl PodRow {
    pub(super) fn new(pod: &PodFacts, now: Time, wait: Option<RowWait>) -> Self {
        let summary = pod.summary(now);
        let time_before_now = |age: Option<Duration>| {
            let nanos = age.map(|age| u64::try_from(age.as_nanos()).unwrap_or(u64::MAX));
            nanos.map(|nanos| Millis::from(Time::from_nanos(now.as_nanos().saturating_sub(nanos))))
        };
        let count = |count: fn(&PodSummary) -> usize| summary.as_ref().map_or(0, count);
        PodRow {
            uid: pod.uid.to_string(),
            namespace: pod.full_name.namespace().to_owned(),
            name: pod.full_name.name().to_owned(),
            health: health(pod, wait.as_ref()),
            phase: pod.phase().as_str(),
            state: summary.as_ref().map_or_else(|| "Terminating".to_owned(), |summary| pod.state(summary)),
            lifecycle: pod.lifecycle().map(Lifecycle::as_str),
            ready: count(|summary| summary.ready),
            containers: count(|summary| summary.containers),
            restarts: summary.as_ref().map_or(0, |summary| summary.restarts),
            restarted: time_before_now(summary.as_ref().and_then(|summary| summary.last_restart)),
            started: time_before_now(summary.as_ref().and_then(|summary| summary.age)),
            wait,
        }
    }
}

impl RowWait {
    /// The nearest wait of a pod, or `None` if the page shows no wait. `short` is the wait in a few words.
    pub(super) fn new(pod: &PodFacts, wait: Wait, short: String, now: Time) -> Option<Self> {
        let is_short = wait.since.is_none_or(|since| now.since(since) <= LONG_CALL);
        let is_shown = match wait.what {
            WaitKind::Nothing => false,
            WaitKind::HookCall(_) | WaitKind::Runtime => !(is_short && is_syncing(pod)),
            _ => true,
        };
        is_shown.then(|| RowWait {
            short,
            depends_only_on_pod: depends_only_on_pod(&wait, now),
            overdue: wait.is_overdue(now),
            since: wait.since.map(Millis::from),
            until: wait.next.map(Millis::from),
            what: wait.detail,
        })
    }
}

/// Whether a wait changes only when the facts of its pod change.
fn depends_only_on_pod(wait: &Wait, now: Time) -> bool {
    match wait.what {
        // Before the grace period ends, the wait still depends on time: it becomes overdue.
        WaitKind::Grace => wait.is_overdue(now),
        WaitKind::Rejected
        | WaitKind::Network
        | WaitKind::Volume
        | WaitKind::Image
        | WaitKind::CrashBackoff
        | WaitKind::ContainerStart
        | WaitKind::InitContainer
        | WaitKind::Probe
        | WaitKind::ReadinessGate => true,
        _ => false,
    }
}

/// Whether the pod's sync hook is being called now.
pub(super) fn is_syncing(pod: &PodFacts) -> bool {
    pod.snapshot.as_ref().is_some_and(|snapshot| snapshot.wait.what == WaitFor::HookCall(Hook::Sync))
}

fn health(pod: &PodFacts, wait: Option<&RowWait>) -> Health {
    // The failure of a hook stays in the record while the hook is retried.
    let hook_fails = pod.snapshot.as_ref().is_some_and(|snapshot| snapshot.failure.is_some());
    let finished = pod.phase().is_terminal() || pod.lifecycle() == Some(Lifecycle::Finished);
    let overdue = wait.is_some_and(|wait| wait.overdue);
    let stuck = !finished && pod.status.as_deref().is_some_and(has_stuck_container);
    if hook_fails || overdue || pod.phase() == Phase::Failed || stuck {
        Health::Failing
    } else if wait.is_some() {
        Health::Waiting
    } else if finished {
        Health::Finished
    } else {
        Health::Healthy
    }
}

/// Whether a container waits because something failed.
fn has_stuck_container(status: &PodStatus) -> bool {
    let inits = status.init_container_statuses.iter().flatten();
    inits.chain(status.container_statuses.iter().flatten()).any(is_stuck)
}
