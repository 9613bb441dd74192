//! Computes a pod's status from its runtime status.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use k8s_openapi::api::core::v1::{HostIP, PodIP, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time as ApiTime;

use super::conditions::{self, ConditionReason, own};
use super::containers::ContainerStatusLists;
use super::{phase, reasons};
use crate::config::pod_resources;
use crate::containers::plan::{Plan, SandboxNeed, plan, sandbox_need};
use crate::containers::restart::RestartPolicy;
use crate::containers::start_error::StartError;
use crate::ids::ContainerName;
use crate::pod::{Phase, PodObject};
use crate::ports::HostIps;
use crate::ports::{ContainerState, PodRuntimeStatus, RuntimeName, SandboxState};
use crate::probes::ProbeSnapshot;
use crate::resize::PodResize;
use crate::texts::pods::DEADLINE_EXCEEDED;
use crate::time::Time;

/// The facts about the node in a pod's status.
#[derive(Clone, Debug, Default)]
pub struct NodeFacts {
    /// The node's name.
    pub name: String,
    /// The node's addresses, the primary one first. Its family also comes first in the pods' addresses.
    pub host_ips: HostIps,
    /// The runtime's name, the prefix of container ids (`containerd`).
    pub runtime_name: RuntimeName,
}

/// The input of [`compute`].
#[derive(Clone, Copy, Debug)]
pub struct StatusInput<'a> {
    /// The pod; its own status is the API server's copy.
    pub pod: &'a PodObject,
    /// The pod's status in the runtime, as it is shown: a container whose post-start hook has not ended does not run.
    pub runtime: &'a PodRuntimeStatus,
    /// Whether a container runs, also one that is not shown as running.
    pub runs: bool,
    /// The last kept status; `None` falls back to the API server's copy.
    pub previous: Option<&'a PodStatus>,
    /// The probe results.
    pub probes: &'a ProbeSnapshot,
    /// The start errors of the containers.
    pub start_errors: &'a BTreeMap<ContainerName, StartError>,
    /// Whether no container runs and none may start again.
    pub is_terminal: bool,
    /// Whether termination was requested, so that no container waits for a start.
    pub termination_requested: bool,
    /// The current time.
    pub now: Time,
    /// The node.
    pub node: &'a NodeFacts,
    /// The resize of the pod, if the pod is being resized.
    pub resize: Option<&'a PodResize>,
    /// Whether the runtime supports recursive read-only mounts for this pod. Read only for a pod that requests one.
    pub recursive_read_only: bool,
}

/// Computes a pod's status (the kubelet's `generateAPIPodStatus`, 1.36).
///
/// A terminal phase of the API server's copy or of the kept status stays, with its reason and message. After the active
/// deadline, or after the loss of a sandbox that may not be replaced, the phase is Failed even while containers run.
/// [`merge_for_api`](super::merge_for_api) holds that phase back until the containers have stopped.
pub fn compute(input: &StatusInput<'_>) -> PodStatus {
    let pod = input.pod;
    let nothing = PodStatus::default();
    let api = pod.status().unwrap_or(&nothing);
    let previous = input.previous.unwrap_or(api);
    let restarting_all = !input.termination_requested && conditions::is_restarting_all(pod, input.runtime, previous);

    let containers = ContainerStatusLists::new(input, previous, restarting_all);
    let total = pod_resources::of_pod(pod.spec());
    let mut status = PodStatus {
        container_statuses: Some(containers.regular()),
        init_container_statuses: containers.init(),
        ephemeral_container_statuses: containers.ephemeral(),
        qos_class: Some(pod_resources::qos_class(pod)),
        allocated_resources: total.requests.clone(),
        resources: Some(total),
        observed_generation: observed_generation(input, previous),
        start_time: previous
            .start_time
            .clone()
            .or_else(|| api.start_time.clone())
            .or_else(|| found_since(input.runtime)),
        ..PodStatus::default()
    };
    addresses(input, previous, &mut status);

    let terminal = [pod.phase(), Phase::parse(previous.phase.as_deref())].into_iter().find(|phase| phase.is_terminal());
    let phase = terminal.unwrap_or_else(|| {
        phase::phase(pod, &status, input.is_terminal, has_started_regular(input), |name| is_starting(input, name))
    });
    set_phase(&mut status, phase, previous, api);
    if terminal.is_none() {
        if let Some(message) = sandbox_lost(input, phase) {
            status.phase = Some(Phase::Failed.as_str().to_owned());
            status.reason = Some(reasons::SANDBOX_LOST.to_owned());
            status.message = Some(message);
        }
        let start = status.start_time.as_ref().map(|start| Time::from_timestamp(start.0));
        if is_deadline_exceeded(pod, start, input.now) {
            status.phase = Some(Phase::Failed.as_str().to_owned());
            status.reason = Some(reasons::DEADLINE_EXCEEDED.to_owned());
            status.message = Some(DEADLINE_EXCEEDED.to_owned());
        }
    }

    set_conditions(input, previous, api, restarting_all, &mut status);
    status
}

/// The newest generation of the pod that the status reflects in full. While the node has not decided on a resize, this is the generation of
/// the previous status.
fn observed_generation(input: &StatusInput<'_>, previous: &PodStatus) -> Option<i64> {
    let is_undecided = input.resize.is_some_and(PodResize::is_undecided);
    if is_undecided { previous.observed_generation } else { input.pod.metadata().generation }
}

/// The failure message of a pod that lost its sandbox and may not get another one. No container of the pod starts again,
/// and the phase cannot follow from containers that never ran. The kubelet leaves such a pod unchanged for ever
/// (`computePodActions` and `getPhase`, 1.36); this message is podwright's own.
fn sandbox_lost(input: &StatusInput<'_>, phase: Phase) -> Option<String> {
    let StatusInput { pod, runtime, runs, probes, termination_requested, .. } = input;
    let policy = RestartPolicy::parse(pod.spec().restart_policy.as_deref());
    if phase.is_terminal() || *termination_requested || policy != RestartPolicy::Never {
        return None;
    }
    // Running containers are stopped first. The pod has failed only after that.
    if *runs || runtime.containers.iter().any(|run| run.state == ContainerState::Unknown) {
        return None;
    }
    let lost = matches!(sandbox_need(pod, runtime), SandboxNeed::New { attempt } if attempt > 0);
    if !lost || !matches!(plan(pod, runtime, probes), Plan::StopPod { .. }) {
        return None;
    }
    let ran = |name: &str| runtime.runs(name).any(|run| run.state != ContainerState::Created);
    let never = pod.init_containers().iter().chain(pod.containers()).find(|container| !ran(&container.name));
    let what = never.map_or_else(|| "it was done".to_owned(), |it| format!("container {} was started", it.name));
    Some(format!("the sandbox ended before {what}, and restartPolicy Never forbids a new one"))
}

/// When the pod's active deadline passes: its start time plus `spec.activeDeadlineSeconds`. `None` without a deadline or
/// before the start.
///
/// The start time in a status has whole seconds, so the deadline passes up to a second early, as in the kubelet.
pub fn deadline(pod: &PodObject, status: Option<&PodStatus>) -> Option<Time> {
    let start = status.or(pod.status())?.start_time.as_ref()?;
    deadline_of_start(pod, Time::from_timestamp(start.0))
}

/// Whether the deadline of a pod that started at `start` has passed at `now`.
fn is_deadline_exceeded(pod: &PodObject, start: Option<Time>, now: Time) -> bool {
    start.and_then(|start| deadline_of_start(pod, start)).is_some_and(|deadline| now >= deadline)
}

fn deadline_of_start(pod: &PodObject, start: Time) -> Option<Time> {
    let seconds = u64::try_from(pod.spec().active_deadline_seconds?).unwrap_or(0);
    Some(start + Duration::from_secs(seconds))
}

/// The start time of a running pod without a kept status: an earlier agent started it, so its age and its active
/// deadline count from its oldest remaining sandbox.
fn found_since(runtime: &PodRuntimeStatus) -> Option<ApiTime> {
    runtime.sandboxes.iter().map(|sandbox| sandbox.created_at).min().map(Time::to_api)
}

/// The status of a rejected pod, which never starts: no containers and no conditions.
pub fn rejected(pod: &PodObject, reason: &str, message: &str) -> PodStatus {
    PodStatus {
        phase: Some(Phase::Failed.as_str().to_owned()),
        reason: Some(reason.to_owned()),
        message: Some(message.to_owned()),
        qos_class: Some(pod_resources::qos_class(pod)),
        observed_generation: pod.metadata().generation,
        ..PodStatus::default()
    }
}

/// Sets the phase. An unchanged phase keeps its reason and message, from the kept status or else from the API server's
/// copy.
fn set_phase(status: &mut PodStatus, phase: Phase, previous: &PodStatus, api: &PodStatus) {
    let text = |of: fn(&PodStatus) -> Option<&String>| {
        [previous, api]
            .into_iter()
            .filter(|from| Phase::parse(from.phase.as_deref()) == phase)
            .find_map(|from| of(from).filter(|text| !text.is_empty()))
            .cloned()
    };
    status.reason = text(|from| from.reason.as_ref());
    status.message = text(|from| from.message.as_ref());
    status.phase = Some(phase.as_str().to_owned());
}

/// Whether a regular container was started in the newest sandbox. A created container may never start.
fn has_started_regular(input: &StatusInput<'_>) -> bool {
    let Some(sandbox) = input.runtime.sandboxes.first() else { return false };
    input.runtime.containers.iter().any(|run| {
        run.sandbox == sandbox.id
            && run.state != ContainerState::Created
            && input.pod.containers().iter().any(|container| container.name == run.name.as_str())
    })
}

/// Whether the newest run of a container has not started, and the [`plan`] starts it: it is in a usable sandbox.
fn is_starting(input: &StatusInput<'_>, name: &str) -> bool {
    let Some(run) = input.runtime.newest(name).filter(|run| run.state == ContainerState::Created) else { return false };
    let is_usable = || sandbox_need(input.pod, input.runtime) == SandboxNeed::Keep(run.sandbox.clone());
    !input.termination_requested && is_usable()
}

fn set_conditions(
    input: &StatusInput<'_>,
    previous: &PodStatus,
    api: &PodStatus,
    restarting_all: bool,
    status: &mut PodStatus,
) {
    let pod = input.pod;
    let foreign = api.conditions.iter().flatten().filter(|condition| !reasons::is_owned(&condition.type_));
    status.conditions = Some(foreign.cloned().collect());
    if !Phase::parse(status.phase.as_deref()).is_terminal() {
        conditions::resize(input.resize, previous).for_each(|condition| conditions::set_condition(status, condition));
    }
    // The containers do not show a disruption. The condition was set once, when the pod was killed.
    if let Some(disruption) = conditions::find(previous, reasons::DISRUPTION_TARGET) {
        conditions::set_condition(status, disruption.clone());
    }
    let ready_to_start = matches!(sandbox_need(pod, input.runtime), SandboxNeed::Keep(_));
    let initialized = conditions::initialized(pod, status);
    let [containers_ready, ready] = conditions::readiness(pod, status);
    let restarting = conditions::all_restarting(pod, input.runtime, status, restarting_all);
    let observed = status.observed_generation;
    status.conditions.get_or_insert_default().extend(
        [
            own(observed, reasons::READY_TO_START, ready_to_start, ConditionReason::default()),
            initialized,
            ready,
            containers_ready,
            own(observed, reasons::SCHEDULED, true, ConditionReason::default()),
        ]
        .into_iter()
        .chain(restarting),
    );
    conditions::keep_transition_times(status, previous, |_| input.now.to_api());
}

/// The addresses of the node and of the pod. A pod keeps the addresses of a sandbox that ended. A pod on the node's
/// network keeps its first address, unless the machine had no network at that time.
fn addresses(input: &StatusInput<'_>, previous: &PodStatus, status: &mut PodStatus) {
    let hosts: Vec<IpAddr> = input.node.host_ips.get().into_iter().take(2).collect();
    status.host_ip = hosts.first().map(ToString::to_string);
    status.host_ips = some(hosts.iter().map(|ip| HostIP { ip: ip.to_string() }).collect());

    let kept: Vec<String> = previous.pod_ips.iter().flatten().map(|ip| ip.ip.clone()).collect();
    let ips: Vec<String> = if input.pod.is_host_network() {
        let mut ips = kept;
        ips.retain(|ip| ip.parse().is_ok_and(|ip: IpAddr| !ip.is_loopback()));
        for host in &hosts {
            let have = ips.iter().any(|ip| ip.parse::<IpAddr>().is_ok_and(|ip| ip.is_ipv4() == host.is_ipv4()));
            if !have {
                ips.push(host.to_string());
            }
        }
        ips
    } else {
        let sandboxes = &input.runtime.sandboxes;
        let current = sandboxes.first().map(|newest| newest.ips.as_slice()).unwrap_or_default();
        if current.is_empty() && !sandboxes.iter().any(|sandbox| sandbox.state == SandboxState::Ready) {
            kept
        } else {
            one_of_each_family(current, hosts.first().is_none_or(IpAddr::is_ipv4))
        }
    };
    status.pod_ip = ips.first().cloned();
    status.pod_ips = some(ips.into_iter().map(|ip| PodIP { ip }).collect());
}

fn one_of_each_family(ips: &[IpAddr], v4_first: bool) -> Vec<String> {
    [v4_first, !v4_first]
        .into_iter()
        .filter_map(|v4| ips.iter().find(|ip| ip.is_ipv4() == v4))
        .map(ToString::to_string)
        .collect()
}

fn some<T>(list: Vec<T>) -> Option<Vec<T>> {
    (!list.is_empty()).then_some(list)
}
