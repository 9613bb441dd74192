//! The containers of a pod: what each does now, and what it did before.

use k8s_openapi::api::core::v1::{Container, ContainerState, ContainerStatus};
use podwright::actors::pod::is_sidecar;
use podwright::actors::time::Time;
use serde::Serialize;

use super::optional_time;
use crate::agent::view::PodFacts;

/// One container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ContainerView {
    pub(crate) name: String,
    /// `init`, `sidecar` or `regular`.
    pub(crate) kind: &'static str,
    /// `waiting`, `running`, `terminated`, or `unknown` before anything is known of it.
    pub(crate) state: &'static str,
    /// Why it waits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reason: Option<String>,
    pub(crate) ready: bool,
    /// How often it was started again.
    pub(crate) restarts: i32,
    /// The run that goes on, or that was the last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) run: Option<Run>,
    /// The run before that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) last: Option<Run>,
}

/// One run of a container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Run {
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "optional_time")]
    pub(crate) started_at: Option<Time>,
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "optional_time")]
    pub(crate) finished_at: Option<Time>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) exit_code: Option<i32>,
    /// Why it ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reason: Option<String>,
}

/// The containers, init containers first.
pub(super) fn containers(pod: &PodFacts) -> Vec<ContainerView> {
    let Some(object) = &pod.object else { return vec![] };
    let status = pod.status.as_deref();
    let init = status.and_then(|status| status.init_container_statuses.as_deref()).unwrap_or_default();
    let regular = status.and_then(|status| status.container_statuses.as_deref()).unwrap_or_default();
    let inits = object.init_containers().iter().map(|container| {
        let kind = if is_sidecar(container) { "sidecar" } else { "init" };
        view(container, kind, init)
    });
    inits.chain(object.containers().iter().map(|container| view(container, "regular", regular))).collect()
}

fn view(container: &Container, kind: &'static str, statuses: &[ContainerStatus]) -> ContainerView {
    let have = statuses.iter().find(|have| have.name == container.name);
    let state = have.and_then(|have| have.state.as_ref());
    let waiting = state.and_then(|state| state.waiting.as_ref());
    let now = state.and_then(run);
    ContainerView {
        name: container.name.clone(),
        kind,
        state: match (waiting, &now) {
            (Some(_), _) => "waiting",
            (None, Some(Run { exit_code: Some(_), .. })) => "terminated",
            (None, Some(_)) => "running",
            (None, None) => "unknown",
        },
        reason: waiting.and_then(|waiting| waiting.reason.clone()),
        ready: have.is_some_and(|have| have.ready),
        restarts: have.map_or(0, |have| have.restart_count),
        run: now,
        last: have.and_then(|have| have.last_state.as_ref()).and_then(run),
    }
}

/// The run that a state tells of.
fn run(state: &ContainerState) -> Option<Run> {
    let time = |at: &Option<k8s_openapi::apimachinery::pkg::apis::meta::v1::Time>| {
        at.as_ref().map(|at| Time::from_timestamp(at.0))
    };
    if let Some(end) = &state.terminated {
        return Some(Run {
            started_at: time(&end.started_at),
            finished_at: time(&end.finished_at),
            exit_code: Some(end.exit_code),
            reason: end.reason.clone(),
        });
    }
    let running = state.running.as_ref()?;
    Some(Run { started_at: time(&running.started_at), finished_at: None, exit_code: None, reason: None })
}
