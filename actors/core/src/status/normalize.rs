//! Normalizes statuses, so that a difference means a change.

use k8s_openapi::api::core::v1::{ContainerState, ContainerStatus, PodCondition, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time as ApiTime;

use super::reasons;
use crate::pod::PodObject;

/// The total length of the termination messages of one pod, in bytes (the kubelet's
/// `MaxPodTerminationMessageLogLength`).
const MAX_TERMINATION_MESSAGES: usize = 12 * 1024;

/// Converts a status to the form that the API server stores: times in whole seconds, container statuses in a fixed
/// order (init containers in spec order, others by name), no empty last state, and each termination message cut to its share of
/// 12 KiB.
pub fn normalize(pod: &PodObject, status: &mut PodStatus) {
    let containers = pod.containers().len() + pod.init_containers().len() + pod.ephemeral_containers().len();
    let share = MAX_TERMINATION_MESSAGES / containers.max(1);
    status.start_time.iter_mut().for_each(whole_seconds);
    for condition in status.conditions.iter_mut().flatten() {
        condition.last_probe_time.iter_mut().for_each(whole_seconds);
        condition.last_transition_time.iter_mut().for_each(whole_seconds);
    }
    let lists =
        [&mut status.container_statuses, &mut status.init_container_statuses, &mut status.ephemeral_container_statuses];
    for container in lists.into_iter().flatten().flatten() {
        container.state.iter_mut().for_each(|state| normalize_state(state, share));
        container.last_state.iter_mut().for_each(|state| normalize_state(state, share));
        // The API server stores `{}` for a container without an earlier run.
        container.last_state = container.last_state.take().filter(|state| *state != ContainerState::default());
    }
    let by_name = |a: &ContainerStatus, b: &ContainerStatus| a.name.cmp(&b.name);
    status.container_statuses.iter_mut().for_each(|list| list.sort_by(by_name));
    status.ephemeral_container_statuses.iter_mut().for_each(|list| list.sort_by(by_name));
    let place = |status: &ContainerStatus| pod.init_containers().iter().position(|init| init.name == status.name);
    status.init_container_statuses.iter_mut().for_each(|list| list.sort_by_key(place));
}

/// Whether two normalized statuses are equal in the fields that the node sets. Conditions of other programs, claim
/// statuses and the order of conditions do not count.
pub fn same_for_node(a: &PodStatus, b: &PodStatus) -> bool {
    // Destructured in full, so that a new field of the API fails to compile until it is handled here.
    let PodStatus {
        allocated_resources,
        conditions,
        container_statuses,
        ephemeral_container_statuses,
        extended_resource_claim_status: _,
        host_ip,
        host_ips,
        init_container_statuses,
        message,
        node_allocatable_resource_claim_statuses: _,
        nominated_node_name: _,
        observed_generation,
        phase,
        pod_ip,
        pod_ips,
        qos_class,
        reason,
        resize,
        resource_claim_statuses: _,
        resources,
        start_time,
    } = a;
    *phase == b.phase
        && *container_statuses == b.container_statuses
        && *init_container_statuses == b.init_container_statuses
        && *ephemeral_container_statuses == b.ephemeral_container_statuses
        && *reason == b.reason
        && *message == b.message
        && *host_ip == b.host_ip
        && *host_ips == b.host_ips
        && *pod_ip == b.pod_ip
        && *pod_ips == b.pod_ips
        && *qos_class == b.qos_class
        && *resize == b.resize
        && *resources == b.resources
        && *allocated_resources == b.allocated_resources
        && *observed_generation == b.observed_generation
        && *start_time == b.start_time
        && owned(conditions) == owned(&b.conditions)
}

fn owned(conditions: &Option<Vec<PodCondition>>) -> Vec<&PodCondition> {
    let mut owned: Vec<_> = conditions.iter().flatten().filter(|have| reasons::is_owned(&have.type_)).collect();
    owned.sort_by(|a, b| a.type_.cmp(&b.type_));
    owned
}

fn normalize_state(state: &mut ContainerState, share: usize) {
    if let Some(running) = &mut state.running {
        running.started_at.iter_mut().for_each(whole_seconds);
    }
    if let Some(ended) = &mut state.terminated {
        ended.started_at.iter_mut().for_each(whole_seconds);
        ended.finished_at.iter_mut().for_each(whole_seconds);
        if let Some(message) = ended.message.as_mut().filter(|message| message.len() > share) {
            message.truncate(message.floor_char_boundary(share));
        }
    }
}

fn whole_seconds(time: &mut ApiTime) {
    if let Ok(whole) = jiff::Timestamp::from_second(time.0.as_second()) {
        time.0 = whole;
    }
}
