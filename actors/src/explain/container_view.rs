//! The containers in an explanation, with their runs. Pure.

use k8s_openapi::api::core::v1::{Container, ContainerState};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time as ApiTime;
use serde::Serialize;

use super::facts::PodFacts;
use super::health::Health;
use super::wait::{Wait, WaitKind, optional_time};
use crate::time::Time;

/// The explanation of a container's state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct ContainerView {
    /// The container's name.
    pub name: String,
    /// `init`, `regular` or `ephemeral`.
    pub kind: &'static str,
    /// `waiting`, `running`, `terminated`, or `unknown` before the first status.
    pub state: &'static str,
    /// The container's health; `standing` in JSON.
    #[serde(rename = "standing")]
    pub health: Health,
    /// Why the container waits or ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Whether the container is ready.
    pub ready: bool,
    /// The number of restarts.
    pub restarts: i32,
    /// The current run, or the last one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run: Option<ContainerRun>,
    /// The run before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last: Option<ContainerRun>,
    /// The container's waits.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub waits: Vec<Wait>,
}

/// A run of a container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct ContainerRun {
    /// When the run started, if known.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "optional_time")]
    pub started_at: Option<Time>,
    /// When the run ended.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "optional_time")]
    pub finished_at: Option<Time>,
    /// The exit code; absent while the run continues.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// Why the run ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// The containers of a pod: init, regular, ephemeral.
pub(super) fn views(pod: &PodFacts, chain: &[Wait]) -> Vec<ContainerView> {
    let Some(object) = &pod.object else { return vec![] };
    let status = pod.status.as_deref();
    let init = status.and_then(|status| status.init_container_statuses.as_deref()).unwrap_or_default();
    let regular = status.and_then(|status| status.container_statuses.as_deref()).unwrap_or_default();
    let ephemeral = status.and_then(|status| status.ephemeral_container_statuses.as_deref()).unwrap_or_default();
    let names =
        |containers: &[Container]| containers.iter().map(|container| container.name.clone()).collect::<Vec<_>>();
    let debugging = object.ephemeral_containers().iter().map(|container| container.name.clone()).collect();
    let lists = [
        (names(object.init_containers()), init, "init"),
        (names(object.containers()), regular, "regular"),
        (debugging, ephemeral, "ephemeral"),
    ];
    let mut views = Vec::new();
    for (names, statuses, kind) in lists {
        for name in names {
            let have = statuses.iter().find(|have| have.name == name);
            let state = have.and_then(|have| have.state.as_ref());
            let waiting = state.and_then(|state| state.waiting.as_ref());
            let ended = state.and_then(|state| state.terminated.as_ref());
            let running = state.and_then(|state| state.running.as_ref());
            views.push(ContainerView {
                kind,
                state: match (waiting, running, ended) {
                    (Some(_), ..) => "waiting",
                    (_, Some(_), _) => "running",
                    (.., Some(_)) => "terminated",
                    (None, None, None) => "unknown",
                },
                health: have.map_or(Health::Waiting, |have| Health::of(have, kind == "ephemeral")),
                reason: waiting.and_then(|w| w.reason.clone()).or_else(|| ended.and_then(|end| end.reason.clone())),
                ready: have.is_some_and(|have| have.ready),
                restarts: have.map_or(0, |have| have.restart_count),
                run: state.and_then(run),
                last: have.and_then(|have| have.last_state.as_ref()).and_then(run),
                // The waits of other pods in the chain are not this pod's.
                waits: own(chain).filter(|wait| wait.container.as_ref() == Some(&name)).cloned().collect(),
                name,
            });
        }
    }
    views
}

/// The part of a chain about the pod itself.
fn own(chain: &[Wait]) -> impl Iterator<Item = &Wait> {
    chain.iter().take_while(|wait| wait.what != WaitKind::FullName)
}

/// The run that a container state describes; `None` for a waiting container.
fn run(state: &ContainerState) -> Option<ContainerRun> {
    let time = |at: &Option<ApiTime>| at.as_ref().map(|at| Time::from_timestamp(at.0));
    if let Some(end) = &state.terminated {
        return Some(ContainerRun {
            started_at: time(&end.started_at),
            finished_at: time(&end.finished_at),
            exit_code: Some(end.exit_code),
            reason: end.reason.clone(),
        });
    }
    let running = state.running.as_ref()?;
    Some(ContainerRun { started_at: time(&running.started_at), finished_at: None, exit_code: None, reason: None })
}
