//! The pod conditions that the node sets.

use k8s_openapi::api::core::v1::{Container, PodCondition, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time as ApiTime;

use super::reasons;
use crate::containers::restart::{OnExit, may_restart_all, on_exit};
use crate::pod::{Phase, PodObject, is_sidecar};
use crate::ports::{ContainerState, PodRuntimeStatus};
use crate::resize::PodResize;
use crate::texts::pods as texts;
use crate::time::Time;

/// Adds a condition, or replaces the one of its type.
pub(super) fn set_condition(status: &mut PodStatus, condition: PodCondition) {
    let conditions = status.conditions.get_or_insert_default();
    match conditions.iter_mut().find(|have| have.type_ == condition.type_) {
        Some(have) => *have = condition,
        None => conditions.push(condition),
    }
}

/// Sets the condition `DisruptionTarget` of a pod that the node stops before its end.
pub fn set_disruption_target(status: &mut PodStatus, message: &str, now: Time) {
    set_condition(
        status,
        PodCondition {
            type_: reasons::DISRUPTION_TARGET.to_owned(),
            status: "True".to_owned(),
            reason: Some("TerminationByKubelet".to_owned()),
            message: Some(message.to_owned()),
            last_transition_time: Some(now.to_api()),
            ..PodCondition::default()
        },
    );
}

/// Finds the condition of a type.
pub(super) fn find<'a>(status: &'a PodStatus, condition_type: &str) -> Option<&'a PodCondition> {
    status.conditions.as_deref().unwrap_or_default().iter().find(|have| have.type_ == condition_type)
}

/// Whether the status has the condition Ready.
pub fn is_ready(status: &PodStatus) -> bool {
    is_true(status, reasons::READY)
}

/// Whether the condition of a type is True.
pub(super) fn is_true(status: &PodStatus, condition_type: &str) -> bool {
    find(status, condition_type).is_some_and(|condition| condition.status == "True")
}

/// A condition of the node, without a transition time. `observed` is the generation of the pod in the status.
pub(super) fn own(observed: Option<i64>, condition_type: &str, value: bool, why: ConditionReason) -> PodCondition {
    PodCondition {
        type_: condition_type.to_owned(),
        status: if value { "True" } else { "False" }.to_owned(),
        reason: why.reason.map(str::to_owned),
        message: why.message,
        observed_generation: observed,
        ..PodCondition::default()
    }
}

/// The conditions of a pod that is being resized. A pod without a resize has neither of them. Until the node has decided on the newest
/// resize, the conditions of `previous` stay: an earlier agent may have set them.
pub(super) fn resize(resize: Option<&PodResize>, previous: &PodStatus) -> impl Iterator<Item = PodCondition> + use<> {
    let pending = resize.and_then(|resize| resize.pending.as_ref()).map(|pending| {
        let why = ConditionReason::text(pending.condition_reason(), pending.message.clone());
        own(pending.generation, reasons::RESIZE_PENDING, true, why)
    });
    let progress = resize.and_then(|resize| resize.progress.as_ref()).map(|progress| {
        let why = progress.error.clone().map(|error| ConditionReason::text(reasons::ERROR, error)).unwrap_or_default();
        own(progress.generation, reasons::RESIZE_IN_PROGRESS, true, why)
    });
    let is_undecided = resize.is_some_and(PodResize::is_undecided);
    let kept = |kind| find(previous, kind).filter(|_| is_undecided).cloned();
    let pending = pending.or_else(|| kept(reasons::RESIZE_PENDING));
    let progress = progress.or_else(|| kept(reasons::RESIZE_IN_PROGRESS));
    pending.into_iter().chain(progress)
}

/// The reason and message of a condition.
#[derive(Clone, Default)]
pub(super) struct ConditionReason {
    reason: Option<&'static str>,
    message: Option<String>,
}

impl ConditionReason {
    pub(super) fn reason(reason: &'static str) -> Self {
        ConditionReason { reason: Some(reason), message: None }
    }

    fn text(reason: &'static str, message: String) -> Self {
        ConditionReason { reason: Some(reason), message: Some(message) }
    }
}

/// Computes Initialized.
pub(super) fn initialized(pod: &PodObject, status: &PodStatus) -> PodCondition {
    let known = status.init_container_statuses.as_deref().unwrap_or_default();
    let mut lists = NameLists::default();
    for init in pod.init_containers() {
        match known.iter().find(|have| have.name == init.name) {
            None => lists.unknown.push(&init.name),
            Some(have) if is_sidecar(init) => lists.check(&init.name, have.started == Some(true)),
            Some(have) => lists.check(&init.name, have.ready),
        }
    }
    let regular_ran = status.container_statuses.as_deref().unwrap_or_default().iter().any(|have| {
        have.state.as_ref().is_some_and(|state| state.running.is_some() || state.terminated.is_some())
            || have.last_state.as_ref().is_some_and(|last| last.terminated.is_some())
    });
    let (value, why) = if Phase::parse(status.phase.as_deref()) == Phase::Succeeded && lists.unknown.is_empty() {
        (true, ConditionReason::reason(reasons::POD_COMPLETED))
    } else if regular_ran || lists.is_empty() {
        (true, ConditionReason::default())
    } else if known.is_empty() {
        (false, ConditionReason::reason(reasons::UNKNOWN_CONTAINER_STATUSES))
    } else {
        (false, ConditionReason::text(reasons::CONTAINERS_NOT_INITIALIZED, lists.message("incomplete")))
    };
    own(status.observed_generation, reasons::INITIALIZED, value, why)
}

/// Computes ContainersReady and Ready, in this order. Ready considers the readiness gates in the conditions of
/// `status`.
pub(super) fn readiness(pod: &PodObject, status: &PodStatus) -> [PodCondition; 2] {
    let (containers_ready, why) = containers_ready(pod, status);
    let own = |kind, value, why| own(status.observed_generation, kind, value, why);
    let containers = own(reasons::CONTAINERS_READY, containers_ready, why.clone());
    if !containers_ready {
        return [containers, own(reasons::READY, false, why)];
    }
    let gates = pod.spec().readiness_gates.as_deref().unwrap_or_default();
    let closed: Vec<String> = gates
        .iter()
        .filter_map(|gate| match find(status, &gate.condition_type) {
            Some(condition) if condition.status == "True" => None,
            Some(condition) => Some(texts::closed_gate(&gate.condition_type, &condition.status)),
            None => Some(texts::no_gate(&gate.condition_type)),
        })
        .collect();
    let ready = if closed.is_empty() {
        own(reasons::READY, true, ConditionReason::default())
    } else {
        let message = closed.join(", ");
        own(reasons::READY, false, ConditionReason::text(reasons::READINESS_GATES_NOT_READY, message))
    };
    [containers, ready]
}

fn containers_ready(pod: &PodObject, status: &PodStatus) -> (bool, ConditionReason) {
    if status.container_statuses.is_none() {
        return (false, ConditionReason::reason(reasons::UNKNOWN_CONTAINER_STATUSES));
    }
    let inits = status.init_container_statuses.as_deref().unwrap_or_default();
    let regulars = status.container_statuses.as_deref().unwrap_or_default();
    let sidecars = pod.init_containers().iter().filter(|init| is_sidecar(init)).map(|init| (&init.name, inits));
    let mut lists = NameLists::default();
    for (name, known) in sidecars.chain(pod.containers().iter().map(|container| (&container.name, regulars))) {
        match known.iter().find(|have| have.name == *name) {
            None => lists.unknown.push(name),
            Some(have) => lists.check(name, have.ready),
        }
    }
    match Phase::parse(status.phase.as_deref()) {
        Phase::Succeeded if lists.unknown.is_empty() => (false, ConditionReason::reason(reasons::POD_COMPLETED)),
        Phase::Failed => (false, ConditionReason::reason(reasons::POD_FAILED)),
        _ if lists.is_empty() => (true, ConditionReason::default()),
        _ => (false, ConditionReason::text(reasons::CONTAINERS_NOT_READY, lists.message("unready"))),
    }
}

/// The conditions of a pod that ended: neither its containers nor the pod are ready.
pub(super) fn readiness_of_ended(observed: Option<i64>, phase: Phase) -> [PodCondition; 2] {
    let reason = if phase == Phase::Failed { reasons::POD_FAILED } else { reasons::POD_COMPLETED };
    [reasons::CONTAINERS_READY, reasons::READY].map(|kind| own(observed, kind, false, ConditionReason::reason(reason)))
}

/// The names of the containers that keep a condition from being True.
#[derive(Default)]
struct NameLists<'a> {
    unknown: Vec<&'a str>,
    wanting: Vec<&'a str>,
}

impl<'a> NameLists<'a> {
    fn check(&mut self, name: &'a str, fine: bool) {
        if !fine {
            self.wanting.push(name);
        }
    }

    fn is_empty(&self) -> bool {
        self.unknown.is_empty() && self.wanting.is_empty()
    }

    fn message(&self, unmet: &str) -> String {
        texts::waits_for_containers(&self.unknown, unmet, &self.wanting)
    }
}

/// Whether all containers are being restarted and not all runs are removed yet (KEP-5532). This lasts from the exit
/// that triggered the restart until no run is left, even after the trigger's own run is removed.
pub(super) fn is_restarting_all(pod: &PodObject, runtime: &PodRuntimeStatus, previous: &PodStatus) -> bool {
    if pod.is_deleting() || !may_restart_all(pod.spec()) {
        return false;
    }
    is_true(previous, reasons::ALL_RESTARTING)
        || inits_and_regulars(pod).any(|(container, init)| {
            runtime.newest(&container.name).is_some_and(|run| {
                run.state == ContainerState::Exited
                    && on_exit(pod.spec(), container, run, init) == OnExit::RestartAllContainers
            })
        })
}

/// Computes AllContainersRestarting; `None` for a pod without such an exit rule.
pub(super) fn all_restarting(
    pod: &PodObject,
    runtime: &PodRuntimeStatus,
    status: &PodStatus,
    asked: bool,
) -> Option<PodCondition> {
    if !may_restart_all(pod.spec()) {
        return None;
    }
    let left = inits_and_regulars(pod).any(|(container, _)| runtime.newest(&container.name).is_some());
    let (value, why) = match Phase::parse(status.phase.as_deref()) {
        Phase::Succeeded => (false, ConditionReason::reason(reasons::POD_COMPLETED)),
        Phase::Failed => (false, ConditionReason::reason(reasons::POD_FAILED)),
        _ if asked && left => {
            (true, ConditionReason::text(reasons::RESTART_ALL_STARTED, texts::RESTART_ALL_STARTED.to_owned()))
        }
        _ => (false, ConditionReason::default()),
    };
    Some(own(status.observed_generation, reasons::ALL_RESTARTING, value, why))
}

fn inits_and_regulars(pod: &PodObject) -> impl Iterator<Item = (&Container, bool)> {
    let inits = pod.init_containers().iter().map(|container| (container, true));
    inits.chain(pod.containers().iter().map(|container| (container, false)))
}

/// Sets the transition times of the node's conditions: the old time if the status is unchanged, else the time that `changed` returns for the
/// condition's own time.
pub(super) fn keep_transition_times(
    new: &mut PodStatus,
    old: &PodStatus,
    changed: impl Fn(Option<ApiTime>) -> ApiTime,
) {
    for condition in new.conditions.iter_mut().flatten() {
        if !reasons::is_owned(&condition.type_) && condition.type_ != reasons::DISRUPTION_TARGET {
            continue;
        }
        let same = find(old, &condition.type_).filter(|before| before.status == condition.status);
        let (kept, own) =
            (same.and_then(|before| before.last_transition_time.clone()), condition.last_transition_time.take());
        condition.last_transition_time = Some(kept.unwrap_or_else(|| changed(own)));
    }
}
