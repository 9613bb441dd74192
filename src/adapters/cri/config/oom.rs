//! Whom the kernel kills first when the node's memory ends.

use k8s_openapi::api::core::v1::Container;
use podwright_actors::pod::{ContainerKind, PodObject, is_sidecar};
use podwright_actors::status::resources_of_containers;

use super::cgroup::Qos;
use super::error::ConfigError;
use super::resources::{Asked, bytes};

/// The values of `oom_score_adj` at both ends (upstream `pkg/kubelet/qos/policy.go`, kubelet 1.36).
const LAST: i64 = -997;
const FIRST: i64 = 1000;
/// The priority class that is killed last, whatever it asks for.
const NODE_CRITICAL: &str = "system-node-critical";

/// The `oom_score_adj` of a container on a machine with so many bytes of memory: the more of it a container asked for, the
/// later it is killed, and a sidecar no earlier than those it serves (upstream `GetContainerOOMScoreAdjust`, kubelet 1.36).
pub(super) fn score(
    pod: &PodObject,
    kind: ContainerKind,
    container: &Container,
    memory: i64,
) -> Result<i64, ConfigError> {
    let spec = pod.spec();
    if pod.is_critical() && spec.priority_class_name.as_deref() == Some(NODE_CRITICAL) {
        return Ok(LAST);
    }
    match Qos::of(pod) {
        Qos::Guaranteed => return Ok(LAST),
        Qos::BestEffort => return Ok(FIRST),
        Qos::Burstable => {}
    }
    let request = |container: &Container| {
        let asked = Asked::of(&container.name, container.resources.as_ref())?;
        Ok::<i64, ConfigError>(bytes(asked.memory_request))
    };
    let extra = extra_request(pod)?;
    let mut wanted = request(container)?;
    if kind == ContainerKind::Init && is_sidecar(container) {
        let least = pod.containers().iter().map(request).collect::<Result<Vec<_>, _>>()?;
        wanted = wanted.max(least.into_iter().min().unwrap_or(0));
    }
    let share = i128::from(wanted.saturating_add(extra)) * i128::from(FIRST) / i128::from(memory.max(1));
    let score = FIRST - i64::try_from(share).unwrap_or(i64::MAX);
    Ok(score.clamp(FIRST + LAST, FIRST - 1))
}

/// The part for each container of what the pod as a whole asks for beyond its containers (KEP-2837).
fn extra_request(pod: &PodObject) -> Result<i64, ConfigError> {
    let spec = pod.spec();
    let whole = bytes(Asked::of("spec", spec.resources.as_ref())?.memory_request);
    let containers = pod.containers().len() + pod.init_containers().len();
    let asked = bytes(Asked::of("spec", Some(&resources_of_containers(spec)))?.memory_request);
    Ok((whole - asked).max(0) / i64::try_from(containers.max(1)).unwrap_or(i64::MAX))
}
