//! Computes the status of each container.

use k8s_openapi::api::core::v1::{
    ContainerState as ApiState, ContainerStateRunning, ContainerStateTerminated, ContainerStateWaiting,
    ContainerStatus as ApiStatus, PodStatus, ResourceRequirements,
};

use super::compute::StatusInput;
use super::{reasons, settings};
use crate::containers::definition::Definition;
use crate::containers::restart::{Exit, OnExit, on_exit};
use crate::ids::ContainerName;
use crate::pod::ContainerKind;
use crate::ports::{ContainerState, ContainerStatus};
use crate::probes::{ContainerProbes, ProbeResult};
use crate::texts::containers as texts;

/// Computes the container statuses of one pod.
pub(super) struct ContainerStatusLists<'a> {
    input: &'a StatusInput<'a>,
    previous: &'a PodStatus,
    restarting_all: bool,
    /// Whether the runtime has a regular container, which means that the init containers have completed.
    regular_seen: bool,
}

impl<'a> ContainerStatusLists<'a> {
    pub(super) fn new(input: &'a StatusInput<'a>, previous: &'a PodStatus, restarting_all: bool) -> Self {
        let regular_seen = input.pod.containers().iter().any(|c| input.runtime.newest(&c.name).is_some());
        ContainerStatusLists { input, previous, restarting_all, regular_seen }
    }

    pub(super) fn regular(&self) -> Vec<ApiStatus> {
        let specs = self.input.pod.containers().iter().map(Definition::Regular);
        self.all(specs, self.previous.container_statuses.as_deref())
    }

    pub(super) fn init(&self) -> Option<Vec<ApiStatus>> {
        let specs = self.input.pod.init_containers().iter().map(Definition::Init);
        let all = self.all(specs, self.previous.init_container_statuses.as_deref());
        (!all.is_empty()).then_some(all)
    }

    pub(super) fn ephemeral(&self) -> Option<Vec<ApiStatus>> {
        let specs = self.input.pod.ephemeral_containers().iter().map(Definition::Ephemeral);
        let all = self.all(specs, self.previous.ephemeral_container_statuses.as_deref());
        (!all.is_empty()).then_some(all)
    }

    fn all(&self, specs: impl Iterator<Item = Definition<'a>>, old: Option<&[ApiStatus]>) -> Vec<ApiStatus> {
        let old = old.unwrap_or_default();
        specs.map(|spec| self.one(&spec, old.iter().find(|have| have.name == spec.name()))).collect()
    }

    fn one(&self, spec: &Definition<'_>, old: Option<&ApiStatus>) -> ApiStatus {
        let mut runs = self.input.runtime.runs(spec.name());
        let newest = runs.next();
        let mut status = match newest {
            Some(run) => self.known(spec, run, runs.next(), old),
            None => self.missing(spec, old),
        };
        self.show_start_error(spec, newest, &mut status);
        self.show_readiness(spec, newest, old, &mut status);
        // A container's mounts never change. Those of an earlier status are what the runtime supported when the pod started.
        status.volume_mounts = old
            .and_then(|old| old.volume_mounts.clone())
            .or_else(|| settings::volume_mounts(spec.mounts(), self.input.recursive_read_only));
        status
    }

    /// The status of a container that the runtime has.
    fn known(
        &self,
        spec: &Definition<'_>,
        run: &ContainerStatus,
        before: Option<&ContainerStatus>,
        old: Option<&ApiStatus>,
    ) -> ApiStatus {
        let id = self.api_id(run);
        let same_run = old.is_some_and(|old| old.container_id.as_deref() == Some(&id));
        let was_running = old.and_then(|old| old.state.as_ref()).is_some_and(|state| state.running.is_some());
        let mut restarts = i32::try_from(run.restart_count).unwrap_or(i32::MAX);
        if let Some(old) = old {
            // If all earlier runs were removed, the runtime counts restarts from 0.
            let again = !same_run && old_exit(old).is_some();
            restarts =
                restarts.max(old.restart_count.saturating_add(i32::from(again && restarts <= old.restart_count)));
        }
        let state = match run.state {
            ContainerState::Running => ApiState {
                running: Some(ContainerStateRunning { started_at: run.started_at.map(|at| at.to_api()) }),
                ..ApiState::default()
            },
            ContainerState::Exited => exited(run, id.clone()),
            ContainerState::Unknown if was_running => {
                restarts = old.map_or(restarts, |old| old.restart_count).saturating_add(1);
                self.vanished(texts::NOT_LOCATED)
            }
            ContainerState::Created | ContainerState::Unknown => self.waiting(),
        };
        let last_state = match before {
            Some(before) if before.state == ContainerState::Exited => Some(exited(before, self.api_id(before))),
            // The earlier run was removed from the runtime; its kept state remains valid.
            _ => old.and_then(
                |old| if same_run { old.last_state.clone() } else { old_exit(old).or(old.last_state.clone()) },
            ),
        };
        let image = if run.image.is_empty() { spec.image() } else { &run.image };
        ApiStatus {
            name: spec.name().to_owned(),
            state: Some(state),
            last_state,
            restart_count: restarts,
            image: image.to_owned(),
            image_id: run.image_id.clone(),
            container_id: Some(id),
            resources: Some(settings::resources(spec.resources(), run, self.resources_in_use(spec.name()))),
            user: settings::user(run),
            allocated_resources: spec.resources().and_then(|resources| resources.requests.clone()),
            ..ApiStatus::default()
        }
    }

    /// The resources that a container still has of an earlier allocation.
    fn resources_in_use(&self, name: &str) -> Option<&ResourceRequirements> {
        Some(&self.input.resize?.actuated.as_ref()?.containers.get(name)?.known)
    }

    /// The status of a container that the runtime does not have: it has not started, or it was removed.
    fn missing(&self, spec: &Definition<'_>, old: Option<&ApiStatus>) -> ApiStatus {
        let mut status = ApiStatus {
            name: spec.name().to_owned(),
            image: spec.image().to_owned(),
            state: Some(self.waiting()),
            ..ApiStatus::default()
        };
        let old_state = old.and_then(|old| old.state.as_ref());
        let was_running = old_state.is_some_and(|state| state.running.is_some());
        if let Some(old) = old {
            status.restart_count = old.restart_count;
            status.last_state = old.last_state.clone();
            if self.restarting_all && old_state.is_some_and(|state| state.waiting.is_none()) {
                status.state = Some(waiting(reasons::RESTARTING_ALL, Some(texts::RESTARTING_ALL)));
                status.last_state = Some(killed(reasons::RESTARTING_ALL, texts::RESTARTING_ALL));
                status.restart_count = old.restart_count.saturating_add(1);
                return status;
            }
            if old_exit(old).is_some() {
                return old.clone();
            }
        }
        if spec.is_plain_init() && self.regular_seen {
            // The container was removed after it completed; otherwise no regular container would have started.
            status.state = Some(ApiState {
                terminated: Some(ContainerStateTerminated {
                    reason: Some(reasons::COMPLETED.to_owned()),
                    message: Some(texts::INIT_EXITED.to_owned()),
                    ..ContainerStateTerminated::default()
                }),
                ..ApiState::default()
            });
        } else if was_running && status.last_state.as_ref().is_none_or(|last| last.terminated.is_none()) {
            status.last_state = Some(self.vanished(texts::NOT_LOCATED_WAS_RUNNING));
            if !self.input.pod.is_deleting() {
                status.restart_count = status.restart_count.saturating_add(1);
            }
        }
        status
    }

    /// Sets the waiting state of a container that should run and cannot start.
    fn show_start_error(&self, spec: &Definition<'_>, newest: Option<&ContainerStatus>, status: &mut ApiStatus) {
        let name = ContainerName::from(spec.name());
        let Some(error) = self.input.start_errors.get(&name).filter(|_| self.will_start(spec, newest)) else {
            return;
        };
        let state = waiting(error.reason, Some(&error.message));
        if let Some(ended) = status.state.replace(state).filter(|state| state.terminated.is_some()) {
            status.last_state = Some(ended);
        }
    }

    fn will_start(&self, spec: &Definition<'_>, newest: Option<&ContainerStatus>) -> bool {
        if self.input.pod.is_deleting() || self.input.termination_requested {
            return false;
        }
        let Some(run) = newest else { return true };
        match (run.state, spec.container()) {
            (_, None) | (ContainerState::Running, _) => false,
            (ContainerState::Created | ContainerState::Unknown, _) => true,
            (ContainerState::Exited, Some(container)) => {
                let init = spec.kind() == ContainerKind::Init;
                on_exit(self.input.pod.spec(), container, run, init) != OnExit::Stay
            }
        }
    }

    /// Whether the container has started and whether it is ready. Until a probe has a result for a run, the kept values
    /// of the same run apply. The results of an earlier agent count as results.
    fn show_readiness(
        &self,
        spec: &Definition<'_>,
        newest: Option<&ContainerStatus>,
        old: Option<&ApiStatus>,
        status: &mut ApiStatus,
    ) {
        if spec.kind() == ContainerKind::Ephemeral {
            return;
        }
        let state = status.state.as_ref();
        let running = newest.filter(|_| state.is_some_and(|state| state.running.is_some()));
        let end = state.and_then(|state| state.terminated.as_ref());
        let exited_well = end.is_some_and(|end| Exit::from(end).is_success());
        let before = old.filter(|old| old.container_id == status.container_id);
        let probes =
            running.and_then(|run| self.input.probes.get(&run.id)).copied().unwrap_or(ContainerProbes::default());
        let passes = |has_probe: bool, result: Option<ProbeResult>, before: bool| match result {
            _ if !has_probe => true,
            Some(ProbeResult::Success) => true,
            Some(ProbeResult::Failure) => false,
            Some(ProbeResult::Unknown) | None => before,
        };
        let started = running.is_some()
            && passes(
                !spec.is_plain_init() && spec.startup().is_some(),
                probes.startup,
                before.is_some_and(|before| before.started == Some(true)),
            );
        status.started = Some(started);
        status.ready = if spec.is_plain_init() {
            exited_well
        } else {
            started && passes(spec.readiness().is_some(), probes.readiness, before.is_some_and(|before| before.ready))
        };
    }

    fn waiting(&self) -> ApiState {
        let inits = !self.input.pod.init_containers().is_empty();
        waiting(if inits { reasons::POD_INITIALIZING } else { reasons::CONTAINER_CREATING }, None)
    }

    fn vanished(&self, message: &str) -> ApiState {
        killed(if self.restarting_all { reasons::RESTARTING_ALL } else { reasons::STATUS_UNKNOWN }, message)
    }

    fn api_id(&self, run: &ContainerStatus) -> String {
        format!("{}://{}", self.input.node.runtime_name, run.id)
    }
}

fn waiting(reason: &str, message: Option<&str>) -> ApiState {
    ApiState {
        waiting: Some(ContainerStateWaiting {
            reason: Some(reason.to_owned()),
            message: message.filter(|message| !message.is_empty()).map(str::to_owned),
        }),
        ..ApiState::default()
    }
}

/// The terminated state of an exit that was not observed.
pub(super) fn killed(reason: &str, message: &str) -> ApiState {
    ApiState {
        terminated: Some(ContainerStateTerminated {
            exit_code: reasons::UNKNOWN_EXIT,
            reason: Some(reason.to_owned()),
            message: Some(message.to_owned()),
            ..ContainerStateTerminated::default()
        }),
        ..ApiState::default()
    }
}

fn exited(run: &ContainerStatus, id: String) -> ApiState {
    let reason = match run.reason.as_str() {
        "" if run.exit_code == 0 => reasons::COMPLETED,
        "" => reasons::ERROR,
        reason => reason,
    };
    ApiState {
        terminated: Some(ContainerStateTerminated {
            container_id: Some(id),
            exit_code: run.exit_code,
            signal: run.signal,
            reason: Some(reason.to_owned()),
            message: Some(run.message.clone()).filter(|message| !message.is_empty()),
            started_at: run.started_at.map(|at| at.to_api()),
            finished_at: run.finished_at.map(|at| at.to_api()),
        }),
        ..ApiState::default()
    }
}

/// The terminated state of a container status, if any.
fn old_exit(status: &ApiStatus) -> Option<ApiState> {
    status.state.clone().filter(|state| state.terminated.is_some())
}
