//! The runs of a container.

use k8s_openapi::api::core::v1::ContainerState;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time as ApiTime;
use serde::Serialize;

use super::wait::optional_time;
use crate::time::Time;

/// A run of a container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
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

/// The run that a container state describes; `None` for a waiting container.
pub(super) fn run(state: &ContainerState) -> Option<ContainerRun> {
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
