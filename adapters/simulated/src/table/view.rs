//! The table in the types of the [`ContainerRuntime`](podwright_ports::ContainerRuntime) port.

use std::net::{IpAddr, Ipv4Addr};

use podwright_model::ids::PodUid;
use podwright_ports::{
    ContainerState, ContainerStatus, PodRuntimeStatus, RuntimePod, RuntimePodContainer, RuntimePodSandbox,
    SandboxState, SandboxStatus,
};

use super::{Container, EndCause, Key, PodTable, RunEnd, RunState, Sandbox};

/// The network of the pods' addresses: 10.0.0.0/8. Its first and last addresses are not given to pods.
const NETWORK: u32 = 0x0a00_0000;
/// How many addresses there are for pods.
pub(super) const ADDRESSES: u32 = (1 << 24) - 2;

impl Key {
    /// The key of an id; `None` if this runtime did not create the id.
    pub(crate) fn parse(id: &str) -> Option<Key> {
        let (pod, serial) = id.split_at_checked(8)?;
        let key = Key { pod: u32::from_str_radix(pod, 16).ok()?, serial: u64::from_str_radix(serial, 16).ok()? };
        (key.id() == id).then_some(key)
    }

    pub(crate) fn id(self) -> String {
        format!("{:08x}{:016x}", self.pod, self.serial)
    }
}

/// The number of the pod that has an address.
pub(crate) fn pod_at(address: Ipv4Addr) -> Option<u32> {
    address.to_bits().checked_sub(NETWORK + 1).filter(|number| *number < ADDRESSES)
}

fn address(number: u32) -> IpAddr {
    Ipv4Addr::from_bits(NETWORK + 1 + number).into()
}

impl PodTable {
    pub(crate) fn list(&self) -> Vec<RuntimePod> {
        let pods = self.pods.iter().flatten();
        pods.map(|pod| RuntimePod {
            uid: pod.uid.clone(),
            full_name: pod.full_name.clone(),
            is_static: pod.is_static,
            grace: pod.grace,
            sandboxes: pod
                .sandboxes
                .iter()
                .map(|sandbox| RuntimePodSandbox {
                    id: sandbox.id.clone(),
                    state: sandbox.state(),
                    attempt: sandbox.attempt,
                    created_at: sandbox.created_at,
                })
                .collect(),
            containers: pod
                .containers
                .iter()
                .map(|container| RuntimePodContainer {
                    id: container.id.clone(),
                    sandbox: container.sandbox.clone(),
                    name: container.name.clone(),
                    state: container.state(),
                    attempt: container.restart_count,
                    created_at: container.created_at,
                })
                .collect(),
        })
        .collect()
    }

    pub(crate) fn status(&self, uid: &PodUid) -> PodRuntimeStatus {
        let Some(number) = self.by_uid.get(uid).copied() else { return PodRuntimeStatus::default() };
        let Some(Some(pod)) = self.pods.get(number as usize) else { return PodRuntimeStatus::default() };
        PodRuntimeStatus {
            sandboxes: pod.sandboxes.iter().rev().map(|sandbox| sandbox.status(number)).collect(),
            containers: pod.containers.iter().rev().map(|container| container.status()).collect(),
        }
    }
}

impl Sandbox {
    fn state(&self) -> SandboxState {
        if self.ready { SandboxState::Ready } else { SandboxState::NotReady }
    }

    fn status(&self, number: u32) -> SandboxStatus {
        let ips = if self.ready && !self.host_network { vec![address(number)] } else { Vec::new() };
        SandboxStatus {
            id: self.id.clone(),
            attempt: self.attempt,
            state: self.state(),
            created_at: self.created_at,
            host_network: self.host_network,
            ips,
        }
    }
}

impl Container {
    fn state(&self) -> ContainerState {
        match self.run_state {
            RunState::Created => ContainerState::Created,
            RunState::Running { .. } => ContainerState::Running,
            RunState::Ended { .. } => ContainerState::Exited,
        }
    }

    fn status(&self) -> ContainerStatus {
        let (started_at, end) = match self.run_state {
            RunState::Created => (None, None),
            RunState::Running { since, .. } => (Some(since), None),
            RunState::Ended { since, end } => (since, Some(end)),
        };
        let (reason, message) = end.map_or(("", ""), RunEnd::reason_and_message);
        ContainerStatus {
            id: self.id.clone(),
            sandbox: self.sandbox.clone(),
            name: self.name.clone(),
            restart_count: self.restart_count,
            state: self.state(),
            created_at: self.created_at,
            started_at,
            finished_at: end.map(|end| end.at),
            exit_code: end.map_or(0, |end| end.how.exit_code()),
            signal: end.filter(|end| end.how == EndCause::Killed).map(|_| 9),
            reason: reason.to_owned(),
            message: message.to_owned(),
            spec_hash: self.spec_hash,
            image: self.image.to_string(),
            image_id: self.image.to_string(),
            applied: None,
        }
    }
}
