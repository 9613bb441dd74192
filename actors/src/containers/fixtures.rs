//! Pods and container runs for tests.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{
    Container, ContainerRestartRule, ContainerRestartRuleOnExitCodes, EphemeralContainer, Pod, PodSpec, Probe,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::pod::{ContainerKind, PodObject};
use crate::ports::{ContainerState, ContainerStatus, PodRuntimeStatus, SandboxState, SandboxStatus};
use crate::probes::{ContainerProbes, ProbeResult, ProbeSnapshot};
use crate::testing::created;
use crate::time::Time;

use super::definition::Definition;

pub(crate) const IMAGE: &str = "busybox";

pub(crate) fn named(name: &str) -> Container {
    Container { name: name.into(), image: Some(IMAGE.into()), ..Container::default() }
}

/// A container with its own restart policy; in the list of init containers, `Always` makes a sidecar.
pub(crate) fn with_policy(name: &str, policy: &str) -> Container {
    Container { restart_policy: Some(policy.into()), ..named(name) }
}

/// A sidecar with a startup and a liveness probe.
pub(crate) fn sidecar(name: &str) -> Container {
    Container {
        startup_probe: Some(Probe::default()),
        liveness_probe: Some(Probe::default()),
        ..with_policy(name, "Always")
    }
}

pub(crate) fn with_rule(container: Container, codes: &[i32], action: &str) -> Container {
    let exit_codes = ContainerRestartRuleOnExitCodes { operator: "In".into(), values: Some(codes.to_vec()) };
    let rule = ContainerRestartRule { action: action.into(), exit_codes: Some(exit_codes) };
    Container { restart_policy_rules: Some(vec![rule]), ..container }
}

/// A pod with a restart policy; `edit` changes it at the end.
pub(crate) fn pod_with(
    policy: &str,
    init: Vec<Container>,
    regular: Vec<Container>,
    edit: impl FnOnce(&mut Pod),
) -> Arc<PodObject> {
    let mut pod = Pod {
        metadata: ObjectMeta {
            name: Some("p".into()),
            namespace: Some("n".into()),
            uid: Some("u".into()),
            ..ObjectMeta::default()
        },
        spec: Some(PodSpec {
            restart_policy: Some(policy.into()),
            termination_grace_period_seconds: Some(30),
            init_containers: Some(init),
            containers: regular,
            ..PodSpec::default()
        }),
        status: None,
    };
    edit(&mut pod);
    PodObject::new(pod).unwrap()
}

pub(crate) fn pod(policy: &str, init: Vec<Container>, regular: Vec<Container>) -> Arc<PodObject> {
    pod_with(policy, init, regular, |_| {})
}

/// A pod with the regular containers `a`, `b` and `c`.
pub(crate) fn three(policy: &str) -> Arc<PodObject> {
    pod(policy, Vec::new(), vec![named("a"), named("b"), named("c")])
}

pub(crate) fn spec_mut(pod: &mut Pod) -> &mut PodSpec {
    pod.spec.as_mut().unwrap()
}

pub(crate) fn ephemeral(name: &str) -> EphemeralContainer {
    EphemeralContainer { name: name.into(), image: Some(IMAGE.into()), ..EphemeralContainer::default() }
}

/// The state of a run, in the short form of the tables.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Is {
    Created,
    Running,
    Exited(i32),
    Unknown,
}

pub(crate) use Is::*;

/// The newest run of a container; its id is the container's name.
pub(crate) fn run(name: &str, is: Is) -> ContainerStatus {
    let container = named(name);
    let (state, exit_code) = match is {
        Created => (ContainerState::Created, 0),
        Running => (ContainerState::Running, 0),
        Exited(code) => (ContainerState::Exited, code),
        Unknown => (ContainerState::Unknown, 0),
    };
    let time = Time::from_secs(1_000_000);
    ContainerStatus {
        sandbox: "s0".into(),
        state,
        created_at: time,
        started_at: (state != ContainerState::Created).then_some(time),
        finished_at: (state == ContainerState::Exited).then_some(time),
        exit_code,
        spec_hash: Definition::new(ContainerKind::Regular, &container).spec_hash(),
        image: IMAGE.into(),
        ..created(name)
    }
}

pub(crate) fn sandbox(attempt: u32, state: SandboxState) -> SandboxStatus {
    SandboxStatus {
        id: format!("s{attempt}").as_str().into(),
        attempt,
        state,
        created_at: Time::from_secs(1_000_000),
        host_network: false,
        ips: vec![[10, 0, 0, 1].into()],
    }
}

/// A pod in one usable sandbox.
pub(crate) fn status(runs: &[(&str, Is)]) -> PodRuntimeStatus {
    PodRuntimeStatus {
        sandboxes: vec![sandbox(0, SandboxState::Ready)],
        containers: runs.iter().map(|(name, is)| run(name, *is)).collect(),
    }
}

/// A pod whose sandbox has ended.
pub(crate) fn lost(runs: &[(&str, Is)]) -> PodRuntimeStatus {
    PodRuntimeStatus { sandboxes: vec![sandbox(0, SandboxState::NotReady)], ..status(runs) }
}

pub(crate) fn probes(of: &[(&str, Option<ProbeResult>, Option<ProbeResult>)]) -> ProbeSnapshot {
    of.iter()
        .map(|(id, startup, liveness)| {
            ((*id).into(), ContainerProbes { startup: *startup, liveness: *liveness, readiness: None })
        })
        .collect()
}
