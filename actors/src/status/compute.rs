//! The status of a pod, from what runs.

use std::collections::BTreeMap;
use std::net::IpAddr;

use k8s_openapi::api::core::v1::{HostIP, PodIP, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time as ApiTime;

use super::conditions::{self, Why, own};
use super::containers::Containers;
use super::{deadline, lost, phase, reasons, resources};
use crate::containers::plan::{SandboxNeed, sandbox_need};
use crate::containers::start_error::StartError;
use crate::ids::ContainerName;
use crate::pod::{Phase, PodObject};
use crate::ports::{ContainerState, PodRuntimeStatus, RuntimeName, SandboxState};
use crate::probes::ProbeSnapshot;
use crate::time::Time;

/// What a pod's status says of the node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeFacts {
    /// The node's name.
    pub name: String,
    /// Its addresses, the primary one first; the family of that one comes first in pods too.
    pub host_ips: Vec<IpAddr>,
    /// The runtime's name, which container ids start with (`containerd`).
    pub runtime_name: RuntimeName,
}

/// All that a status is computed from.
#[derive(Clone, Copy, Debug)]
pub struct StatusInput<'a> {
    /// The pod; its own status is the API server's copy.
    pub pod: &'a PodObject,
    /// What the runtime says.
    pub runtime: &'a PodRuntimeStatus,
    /// The status that was kept last; `None` falls back to the API server's copy.
    pub previous: Option<&'a PodStatus>,
    /// What the probes say.
    pub probes: &'a ProbeSnapshot,
    /// What keeps containers from starting.
    pub start_errors: &'a BTreeMap<ContainerName, StartError>,
    /// No container runs, and none may start again.
    pub is_terminal: bool,
    /// The pod is to stop, so no container waits for a start.
    pub termination_requested: bool,
    /// The time.
    pub now: Time,
    /// The node.
    pub node: &'a NodeFacts,
}

/// Computes a pod's status (upstream `generateAPIPodStatus`, kubelet 1.36).
///
/// A terminal phase that the API server shows, or that was kept before, stays with its reason and message. A passed
/// active deadline, or a lost sandbox that may not be replaced, makes the phase Failed even while containers run: holding
/// that back until they stopped is the task of [`merge_for_api`](super::merge_for_api).
pub fn compute(input: &StatusInput<'_>) -> PodStatus {
    let pod = input.pod;
    let nothing = PodStatus::default();
    let api = pod.status().unwrap_or(&nothing);
    let previous = input.previous.unwrap_or(api);
    let restarting_all = !input.termination_requested && conditions::is_restarting_all(pod, input.runtime, previous);

    let containers = Containers::new(input, previous, restarting_all);
    let total = resources::of_pod(pod.spec());
    let mut status = PodStatus {
        container_statuses: Some(containers.regular()),
        init_container_statuses: containers.init(),
        ephemeral_container_statuses: containers.ephemeral(),
        qos_class: Some(resources::qos_class(pod)),
        allocated_resources: total.requests.clone(),
        resources: Some(total),
        observed_generation: pod.metadata().generation,
        start_time: previous
            .start_time
            .clone()
            .or_else(|| api.start_time.clone())
            .or_else(|| found_since(input.runtime)),
        ..PodStatus::default()
    };
    addresses(input, previous, &mut status);

    let standing = [pod.phase(), Phase::parse(previous.phase.as_deref())].into_iter().find(|phase| phase.is_terminal());
    let phase = standing.unwrap_or_else(|| phase::phase(pod, &status, input.is_terminal, has_started_regular(input)));
    set_phase(&mut status, phase, previous, api);
    if standing.is_none() {
        if let Some(message) = lost::sandbox_lost(input, phase) {
            status.phase = Some(Phase::Failed.as_str().to_owned());
            status.reason = Some(reasons::SANDBOX_LOST.to_owned());
            status.message = Some(message);
        }
        let start = status.start_time.as_ref().map(|start| Time::from_timestamp(start.0));
        if let Some(exceeded) = deadline::deadline_exceeded(pod, start, input.now) {
            status.phase = Some(Phase::Failed.as_str().to_owned());
            status.reason = Some(exceeded.reason.to_owned());
            status.message = Some(exceeded.message);
        }
    }

    set_conditions(input, previous, api, restarting_all, &mut status);
    status
}

/// A pod of which no status is kept and that runs was started by an earlier agent: its age, and its active deadline,
/// count from the oldest sandbox that is left of it.
fn found_since(runtime: &PodRuntimeStatus) -> Option<ApiTime> {
    runtime.sandboxes.iter().map(|sandbox| sandbox.created_at).min().map(Time::to_api)
}

/// The status of a pod that is refused and never starts: no containers, no conditions.
pub fn rejected(pod: &PodObject, reason: &str, message: &str) -> PodStatus {
    PodStatus {
        phase: Some(Phase::Failed.as_str().to_owned()),
        reason: Some(reason.to_owned()),
        message: Some(message.to_owned()),
        qos_class: Some(resources::qos_class(pod)),
        observed_generation: pod.metadata().generation,
        ..PodStatus::default()
    }
}

/// Sets the phase. The same phase as before keeps its reason and message; where none was kept, the API server's count.
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

/// Whether a regular container was started in the newest sandbox. A created one may never start.
fn has_started_regular(input: &StatusInput<'_>) -> bool {
    let Some(sandbox) = input.runtime.sandboxes.first() else { return false };
    input.runtime.containers.iter().any(|run| {
        run.sandbox == sandbox.id
            && run.state != ContainerState::Created
            && input.pod.containers().iter().any(|container| container.name == run.name.as_str())
    })
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
    // Nothing in the containers tells of a disruption: it was noted once, when the pod was killed.
    if let Some(disruption) = conditions::find(previous, reasons::DISRUPTION_TARGET) {
        conditions::set_condition(status, disruption.clone());
    }
    let ready_to_start = matches!(sandbox_need(pod, input.runtime), SandboxNeed::Keep(_));
    let initialized = conditions::initialized(pod, status);
    let [containers_ready, ready] = conditions::readiness(pod, status);
    let phase = Phase::parse(status.phase.as_deref());
    let restarting = conditions::all_restarting(pod, input.runtime, phase, restarting_all);
    status.conditions.get_or_insert_default().extend(
        [
            own(pod, reasons::READY_TO_START, ready_to_start, Why::default()),
            initialized,
            ready,
            containers_ready,
            own(pod, reasons::SCHEDULED, true, Why::default()),
        ]
        .into_iter()
        .chain(restarting),
    );
    conditions::keep_transition_times(status, previous, input.now);
}

/// The node's addresses and the pod's. A pod keeps the addresses of a sandbox that ended; a pod on the node's network
/// keeps the first address it was given.
fn addresses(input: &StatusInput<'_>, previous: &PodStatus, status: &mut PodStatus) {
    let hosts: Vec<IpAddr> = input.node.host_ips.iter().copied().take(2).collect();
    status.host_ip = hosts.first().map(ToString::to_string);
    status.host_ips = some(hosts.iter().map(|ip| HostIP { ip: ip.to_string() }).collect());

    let kept: Vec<String> = previous.pod_ips.iter().flatten().map(|ip| ip.ip.clone()).collect();
    let ips: Vec<String> = if input.pod.is_host_network() {
        let mut ips = kept;
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
