//! The runtime status and the probe results of a pod as bytes, and back. Times are absolute, so that the same status is the
//! same bytes.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::codec::Text;
use crate::ids::{ContainerId, ContainerName, SandboxId};
use crate::ports::{ContainerState, ContainerStatus, PodRuntimeStatus, SandboxState, SandboxStatus};
use crate::probes::{ContainerProbes, ProbeResult, ProbeSnapshot};
use crate::time::Time;

/// A [`PodRuntimeStatus`] in a recording.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct StatusData<'a> {
    #[serde(borrow)]
    sandboxes: Vec<SandboxData<'a>>,
    containers: Vec<ContainerData<'a>>,
}

#[derive(Debug, Serialize, Deserialize)]
struct SandboxData<'a> {
    #[serde(borrow)]
    id: Text<'a>,
    attempt: u32,
    is_ready: bool,
    created_at: u64,
    host_network: bool,
    ips: Vec<IpAddr>,
}

#[derive(Debug, Serialize, Deserialize)]
struct ContainerData<'a> {
    #[serde(borrow)]
    id: Text<'a>,
    sandbox: Text<'a>,
    name: Text<'a>,
    restart_count: u32,
    state: ContainerState,
    created_at: u64,
    started_at: Option<u64>,
    finished_at: Option<u64>,
    exit_code: i32,
    signal: Option<i32>,
    reason: Text<'a>,
    message: Text<'a>,
    spec_hash: u64,
    image: Text<'a>,
    image_id: Text<'a>,
}

impl<'a> StatusData<'a> {
    pub(crate) fn new(status: &'a PodRuntimeStatus) -> Self {
        StatusData {
            sandboxes: status.sandboxes.iter().map(SandboxData::new).collect(),
            containers: status.containers.iter().map(ContainerData::new).collect(),
        }
    }

    pub(crate) fn decode(self) -> PodRuntimeStatus {
        PodRuntimeStatus {
            sandboxes: self.sandboxes.into_iter().map(SandboxData::decode).collect(),
            containers: self.containers.into_iter().map(ContainerData::decode).collect(),
        }
    }
}

impl<'a> SandboxData<'a> {
    fn new(sandbox: &'a SandboxStatus) -> Self {
        SandboxData {
            id: Text::new(sandbox.id.as_str()),
            attempt: sandbox.attempt,
            is_ready: sandbox.state == SandboxState::Ready,
            created_at: sandbox.created_at.as_nanos(),
            host_network: sandbox.host_network,
            ips: sandbox.ips.clone(),
        }
    }

    fn decode(self) -> SandboxStatus {
        SandboxStatus {
            id: SandboxId::from(self.id.as_str()),
            attempt: self.attempt,
            state: if self.is_ready { SandboxState::Ready } else { SandboxState::NotReady },
            created_at: Time::from_nanos(self.created_at),
            host_network: self.host_network,
            ips: self.ips,
        }
    }
}

impl<'a> ContainerData<'a> {
    fn new(run: &'a ContainerStatus) -> Self {
        ContainerData {
            id: Text::new(run.id.as_str()),
            sandbox: Text::new(run.sandbox.as_str()),
            name: Text::new(run.name.as_str()),
            restart_count: run.restart_count,
            state: run.state,
            created_at: run.created_at.as_nanos(),
            started_at: run.started_at.map(Time::as_nanos),
            finished_at: run.finished_at.map(Time::as_nanos),
            exit_code: run.exit_code,
            signal: run.signal,
            reason: Text::new(&run.reason),
            message: Text::new(&run.message),
            spec_hash: run.spec_hash,
            image: Text::new(&run.image),
            image_id: Text::new(&run.image_id),
        }
    }

    fn decode(self) -> ContainerStatus {
        ContainerStatus {
            id: ContainerId::from(self.id.as_str()),
            sandbox: SandboxId::from(self.sandbox.as_str()),
            name: ContainerName::from(self.name.as_str()),
            restart_count: self.restart_count,
            state: self.state,
            created_at: Time::from_nanos(self.created_at),
            started_at: self.started_at.map(Time::from_nanos),
            finished_at: self.finished_at.map(Time::from_nanos),
            exit_code: self.exit_code,
            signal: self.signal,
            reason: self.reason.as_str().to_owned(),
            message: self.message.as_str().to_owned(),
            spec_hash: self.spec_hash,
            image: self.image.as_str().to_owned(),
            image_id: self.image_id.as_str().to_owned(),
            applied: None,
        }
    }
}

/// A [`ProbeSnapshot`] in a recording, by container.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct ProbesData<'a>(#[serde(borrow)] Vec<ContainerProbesData<'a>>);

#[derive(Debug, Serialize, Deserialize)]
struct ContainerProbesData<'a> {
    #[serde(borrow)]
    container: Text<'a>,
    startup: Option<ProbeResult>,
    liveness: Option<ProbeResult>,
    readiness: Option<ProbeResult>,
}

impl<'a> ProbesData<'a> {
    pub(crate) fn new(probes: &'a ProbeSnapshot) -> Self {
        let mut all: Vec<_> = probes.iter().collect();
        all.sort_by_key(|(container, _)| *container);
        let data = all.into_iter().map(|(container, results)| ContainerProbesData {
            container: Text::new(container.as_str()),
            startup: results.startup,
            liveness: results.liveness,
            readiness: results.readiness,
        });
        ProbesData(data.collect())
    }

    pub(crate) fn decode(self) -> ProbeSnapshot {
        let results = |data: &ContainerProbesData<'_>| ContainerProbes {
            startup: data.startup,
            liveness: data.liveness,
            readiness: data.readiness,
        };
        self.0.iter().map(|data| (ContainerId::from(data.container.as_str()), results(data))).collect()
    }
}
