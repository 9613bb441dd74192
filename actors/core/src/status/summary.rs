//! A summary of a pod, for tables.

use std::time::Duration;

use k8s_openapi::api::core::v1::{ContainerState, ContainerStateTerminated, ContainerStatus, PodStatus};

use super::{conditions, reasons};
use crate::containers::restart::Exit;
use crate::pod::{Phase, PodObject, is_sidecar};
use crate::time::Time;

/// The columns of a pod in a table, as in `kubectl get pods`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodSummary {
    /// `Running`, `Init:0/1`, `CrashLoopBackOff`, `Completed`, `Terminating`.
    pub state: String,
    /// The number of ready regular containers and sidecars.
    pub ready: usize,
    /// The number of regular containers and sidecars.
    pub containers: usize,
    /// The number of restarts.
    pub restarts: u32,
    /// How long ago the last restarted run ended, if known.
    pub last_restart: Option<Duration>,
    /// The pod's age; for a static pod, the time since the node first saw it.
    pub age: Option<Duration>,
}

impl PodSummary {
    /// Summarizes a pod whose newest status is `status`.
    pub fn new(pod: &PodObject, status: &PodStatus, now: Time) -> Self {
        let sidecars = pod.init_containers().iter().filter(|init| is_sidecar(init)).count();
        let created = pod.metadata().creation_timestamp.as_ref().map(|at| Time::from_timestamp(at.0));
        let started = status.start_time.as_ref().map(|at| Time::from_timestamp(at.0));
        let mut counts = ContainerCounts::default();
        let state = state(pod, status, &mut counts);
        PodSummary {
            state,
            ready: counts.ready,
            containers: pod.containers().len() + sidecars,
            restarts: counts.restarts,
            last_restart: counts.last_end.filter(|_| counts.restarts > 0).map(|end| now.since(end)),
            // The first-seen time of a static pod is that of this agent, but an earlier agent may have started the pod.
            age: created.or_else(|| pod.first_seen().into_iter().chain(started).min()).map(|since| now.since(since)),
        }
    }

    /// `1/2`.
    pub fn ready_column(&self) -> String {
        format!("{}/{}", self.ready, self.containers)
    }

    /// `3 (20s ago)`, or `3` if the time is not known.
    pub fn restarts_column(&self) -> String {
        match self.last_restart {
            Some(ago) => format!("{} ({} ago)", self.restarts, short_age(ago)),
            None => self.restarts.to_string(),
        }
    }

    /// `5m20s`, or `<unknown>`.
    pub fn age_column(&self) -> String {
        self.age.map_or_else(|| "<unknown>".to_owned(), short_age)
    }
}

/// A duration in at most two units (`90s`, `5m20s`, `4h3m`, `5d`).
pub fn short_age(age: Duration) -> String {
    let seconds = age.as_secs();
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    let two = |large: u64, large_unit: &str, small: u64, small_unit: &str| match small {
        0 => format!("{large}{large_unit}"),
        _ => format!("{large}{large_unit}{small}{small_unit}"),
    };
    match () {
        () if seconds < 120 => format!("{seconds}s"),
        () if minutes < 10 => two(minutes, "m", seconds % 60, "s"),
        () if minutes < 180 => format!("{minutes}m"),
        () if hours < 8 => two(hours, "h", minutes % 60, "m"),
        () if hours < 48 => format!("{hours}h"),
        () if days < 8 => two(days, "d", hours % 24, "h"),
        () if days < 730 => format!("{days}d"),
        () if days < 2920 => two(days / 365, "y", days % 365, "d"),
        () => format!("{}y", days / 365),
    }
}

#[derive(Default)]
struct ContainerCounts {
    ready: usize,
    restarts: u32,
    last_end: Option<Time>,
}

impl ContainerCounts {
    fn count(&mut self, status: &ContainerStatus) {
        self.restarts = self.restarts.saturating_add(u32::try_from(status.restart_count).unwrap_or(0));
        let end = terminated(&status.last_state).and_then(|end| end.finished_at.as_ref());
        self.last_end = self.last_end.max(end.map(|at| Time::from_timestamp(at.0)));
    }
}

fn state(pod: &PodObject, status: &PodStatus, counts: &mut ContainerCounts) -> String {
    let phase = Phase::parse(status.phase.as_deref());
    let reason = text(&status.reason).unwrap_or(phase.as_str());
    let state = match initialising(pod, status, counts) {
        Some(state) if !conditions::is_true(status, reasons::INITIALIZED) => {
            for init in status.init_container_statuses.iter().flatten() {
                counts.count(init);
            }
            state
        }
        initialising => {
            let sidecars = status
                .init_container_statuses
                .iter()
                .flatten()
                .filter(|have| pod.init_containers().iter().any(|init| init.name == have.name && is_sidecar(init)));
            sidecars.for_each(|sidecar| counts.count(sidecar));
            regular(status, initialising.as_deref().unwrap_or(reason), counts)
        }
    };
    if pod.is_deleting() && reason == "NodeLost" {
        Phase::Unknown.as_str().to_owned()
    } else if pod.is_deleting() && !phase.is_terminal() {
        "Terminating".to_owned()
    } else {
        state
    }
}

/// The state of a pod whose init containers have not all completed; `None` once they have.
fn initialising(pod: &PodObject, status: &PodStatus, counts: &mut ContainerCounts) -> Option<String> {
    for (index, have) in status.init_container_statuses.iter().flatten().enumerate() {
        let sidecar = pod.init_containers().iter().any(|init| init.name == have.name && is_sidecar(init));
        if sidecar && have.started == Some(true) {
            counts.ready += usize::from(have.ready);
            continue;
        }
        let waits = waiting_reason(have).filter(|reason| *reason != reasons::POD_INITIALIZING);
        match terminated(&have.state) {
            Some(end) if Exit::from(end).is_success() => continue,
            Some(end) => return Some(format!("Init:{}", end_text(end))),
            None => {
                let progress = || format!("{index}/{}", pod.init_containers().len());
                return Some(format!("Init:{}", waits.map_or_else(progress, str::to_owned)));
            }
        }
    }
    None
}

/// The state of a pod by its regular containers: the first one that does not run gives the state.
fn regular(status: &PodStatus, reason: &str, counts: &mut ContainerCounts) -> String {
    let mut state = reason.to_owned();
    let mut one_runs = false;
    for have in status.container_statuses.iter().flatten().rev() {
        counts.count(have);
        if let Some(reason) = waiting_reason(have) {
            state = reason.to_owned();
        } else if let Some(end) = terminated(&have.state) {
            state = end_text(end);
        } else if have.ready && have.state.as_ref().is_some_and(|state| state.running.is_some()) {
            one_runs = true;
            counts.ready += 1;
        }
    }
    if state == reasons::COMPLETED && one_runs {
        let ready = conditions::is_true(status, reasons::READY);
        return if ready { Phase::Running.as_str() } else { "NotReady" }.to_owned();
    }
    state
}

fn end_text(end: &ContainerStateTerminated) -> String {
    match (text(&end.reason), end.signal) {
        (Some(reason), _) => reason.to_owned(),
        (None, Some(signal)) if signal != 0 => format!("Signal:{signal}"),
        (None, _) => format!("ExitCode:{}", end.exit_code),
    }
}

fn waiting_reason(status: &ContainerStatus) -> Option<&str> {
    text(&status.state.as_ref()?.waiting.as_ref()?.reason)
}

fn terminated(state: &Option<ContainerState>) -> Option<&ContainerStateTerminated> {
    state.as_ref()?.terminated.as_ref()
}

fn text(text: &Option<String>) -> Option<&str> {
    text.as_deref().filter(|text| !text.is_empty())
}
