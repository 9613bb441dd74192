//! Pods, container runs and statuses for tests.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{ContainerStatus as ApiStatus, PodStatus};
use serde_json::{Value, json};

use super::{NodeFacts, StatusInput, compute};
use crate::containers::restart::STOPPED_FOR_RESIZE;
use crate::containers::start_error::StartError;
use crate::ids::ContainerName;
use crate::pod::PodObject;
use crate::ports::{ContainerState, ContainerStatus, PodRuntimeStatus, SandboxState, SandboxStatus};
use crate::probes::{ContainerProbes, ProbeResult, ProbeSnapshot};
use crate::testing::created;
use crate::time::Time;

/// The time at which the tests' pods begin.
pub(super) const START: u64 = 1_000_000;

pub(super) fn at(seconds: u64) -> Time {
    Time::from_secs(START + seconds)
}

/// A pod; `more` overwrites parts of it.
pub(super) fn pod(more: Value) -> Arc<PodObject> {
    let mut pod = json!({
        "metadata": {"name": "p", "namespace": "n", "uid": "u", "generation": 1},
        "spec": {"hostNetwork": true, "containers": [{"name": "a", "image": "img"}]},
    });
    merge(&mut pod, more);
    PodObject::new(serde_json::from_value(pod).unwrap()).unwrap()
}

pub(super) fn pod_with(policy: &str, init: Value, containers: Value) -> Arc<PodObject> {
    pod(json!({"spec": {"restartPolicy": policy, "initContainers": init, "containers": containers}}))
}

fn merge(into: &mut Value, more: Value) {
    match (into, more) {
        (Value::Object(into), Value::Object(more)) => {
            for (key, value) in more {
                merge(into.entry(key).or_insert(Value::Null), value);
            }
        }
        (into, more) => *into = more,
    }
}

/// A sandbox on the node's network.
pub(super) fn sandbox(attempt: u32, state: SandboxState) -> SandboxStatus {
    SandboxStatus {
        id: format!("s{attempt}").into(),
        attempt,
        state,
        created_at: at(0),
        host_network: true,
        ips: Vec::new(),
    }
}

/// A run of a container in sandbox `s0`, with the id `name-restarts`.
pub(super) fn run(name: &str, restarts: u32, state: ContainerState) -> ContainerStatus {
    let ended = state == ContainerState::Exited;
    ContainerStatus {
        id: format!("{name}-{restarts}").into(),
        sandbox: "s0".into(),
        restart_count: restarts,
        state,
        created_at: at(u64::from(restarts) * 10 + 1),
        started_at: (state != ContainerState::Created).then(|| at(u64::from(restarts) * 10 + 2)),
        finished_at: ended.then(|| at(u64::from(restarts) * 10 + 3)),
        image: "img:resolved".into(),
        image_id: "sha256:1".into(),
        ..created(name)
    }
}

pub(super) fn running(name: &str, restarts: u32) -> ContainerStatus {
    run(name, restarts, ContainerState::Running)
}

pub(super) fn exited(name: &str, restarts: u32, exit_code: i32) -> ContainerStatus {
    ContainerStatus { exit_code, ..run(name, restarts, ContainerState::Exited) }
}

/// A run that the agent stopped to start its container again with other resources.
pub(super) fn stopped_for_resize(name: &str, exit_code: i32) -> ContainerStatus {
    ContainerStatus { reason: STOPPED_FOR_RESIZE.to_owned(), ..exited(name, 0, exit_code) }
}

/// The inputs of one pod's status.
pub(super) struct World {
    pub(super) pod: Arc<PodObject>,
    pub(super) runtime: PodRuntimeStatus,
    /// Whether one of the created runs runs its post-start hook.
    pub(super) hides_running: bool,
    pub(super) previous: Option<PodStatus>,
    pub(super) probes: ProbeSnapshot,
    pub(super) errors: BTreeMap<ContainerName, StartError>,
    pub(super) is_terminal: bool,
    pub(super) termination_requested: bool,
    pub(super) now: Time,
    pub(super) node: NodeFacts,
    pub(super) recursive_read_only: bool,
    pub(super) resize: Option<crate::resize::PodResize>,
}

impl World {
    /// Inputs with a ready sandbox and no containers.
    pub(super) fn new(pod: Arc<PodObject>) -> Self {
        World {
            pod,
            runtime: PodRuntimeStatus { sandboxes: vec![sandbox(0, SandboxState::Ready)], containers: Vec::new() },
            hides_running: false,
            previous: None,
            probes: ProbeSnapshot::new(),
            errors: BTreeMap::new(),
            is_terminal: false,
            termination_requested: false,
            now: at(5),
            node: NodeFacts {
                name: "node1".into(),
                host_ips: vec!["192.0.2.1".parse().unwrap()].into(),
                runtime_name: "rt".into(),
            },
            recursive_read_only: false,
            resize: None,
        }
    }

    /// Sets the runs in the runtime, newest first.
    pub(super) fn runs(mut self, containers: impl IntoIterator<Item = ContainerStatus>) -> Self {
        self.runtime.containers = containers.into_iter().collect();
        self
    }

    pub(super) fn after(mut self, previous: PodStatus) -> Self {
        self.previous = Some(previous);
        self
    }

    pub(super) fn terminal(mut self) -> Self {
        self.is_terminal = true;
        self
    }

    pub(super) fn error(mut self, name: &str, reason: &'static str) -> Self {
        self.errors.insert(
            name.into(),
            StartError { reason, message: "why".into(), since: Time::ZERO, until: None, refused: None },
        );
        self
    }

    pub(super) fn readiness(mut self, id: &str, result: ProbeResult) -> Self {
        self.probes.insert(id.into(), ContainerProbes { readiness: Some(result), ..ContainerProbes::default() });
        self
    }

    pub(super) fn status(&self) -> PodStatus {
        compute(&StatusInput {
            pod: &self.pod,
            runtime: &self.runtime,
            runs: self.hides_running || self.runtime.has_running_container(),
            previous: self.previous.as_ref(),
            probes: &self.probes,
            start_errors: &self.errors,
            is_terminal: self.is_terminal,
            termination_requested: self.termination_requested,
            now: self.now,
            node: &self.node,
            resize: self.resize.as_ref(),
            recursive_read_only: self.recursive_read_only,
        })
    }
}

/// The phase of a status.
pub(super) fn phase_of(status: &PodStatus) -> &str {
    status.phase.as_deref().unwrap_or("")
}

/// A condition as `True`, `False Reason`, or `-`.
pub(super) fn condition(status: &PodStatus, kind: &str) -> String {
    let found = status.conditions.iter().flatten().find(|condition| condition.type_ == kind);
    found.map_or("-".into(), |condition| match &condition.reason {
        Some(reason) => format!("{} {reason}", condition.status),
        None => condition.status.clone(),
    })
}

/// The status of a container of any kind.
pub(super) fn container<'a>(status: &'a PodStatus, name: &str) -> &'a ApiStatus {
    let lists = [&status.init_container_statuses, &status.container_statuses, &status.ephemeral_container_statuses];
    lists.into_iter().flatten().flatten().find(|have| have.name == name).unwrap()
}

/// A container as `name state last ready started restarts`, with states as `w:Reason`, `r`, `t:Reason:code` and `-`.
pub(super) fn line(status: &PodStatus, name: &str) -> String {
    let c = container(status, name);
    let state = |state: &Option<k8s_openapi::api::core::v1::ContainerState>| {
        let Some(state) = state else { return "-".to_owned() };
        if let Some(waiting) = &state.waiting {
            format!("w:{}", waiting.reason.as_deref().unwrap_or("?"))
        } else if let Some(end) = &state.terminated {
            format!("t:{}:{}", end.reason.as_deref().unwrap_or("?"), end.exit_code)
        } else {
            "r".to_owned()
        }
    };
    let flag = |is: bool| if is { "yes" } else { "no" };
    format!(
        "{name} {} {} ready={} started={} {}",
        state(&c.state),
        state(&c.last_state),
        flag(c.ready),
        flag(c.started == Some(true)),
        c.restart_count
    )
}
