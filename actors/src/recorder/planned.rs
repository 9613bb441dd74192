//! Plans of containers with what they were made from, so that they can be made again.

use std::hash::BuildHasher;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::{Arc, Weak};

use crate::containers::plan::{Changes, FirstStart, Kill, KillReason, Plan};
use crate::ids::{ContainerId, ContainerName, PodUid, SandboxId};
use crate::pod::PodObject;
use crate::ports::{ContainerState, ContainerStatus, PodRuntimeStatus, SandboxState, SandboxStatus};
use crate::probes::{ContainerProbes, ProbeResult, ProbeSnapshot};
use crate::time::Time;

use crate::codec::{Coded, Put, Read, Reader, coded};

coded!(ContainerState: Created, Running, Exited, Unknown);

/// The plan that was written last for a pod.
#[derive(Debug)]
pub(crate) struct Planned {
    pub(crate) object: Weak<PodObject>,
    /// Nothing for an object that is too large to be written.
    pub(crate) kept: Option<Kept>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Kept {
    /// The segment that has the object.
    pub(crate) segment: u32,
    /// Of what the runtime and the probes said and of the plan.
    pub(crate) hash: u64,
}

/// A plan with what it was made from besides the pod.
pub(crate) struct Body {
    pub(crate) bytes: Vec<u8>,
    pub(crate) hash: u64,
}

/// What is still missing for a plan to be kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum Missing {
    Nothing,
    /// The pod as JSON.
    Object,
}

impl Body {
    pub(crate) fn new(seen: &PodRuntimeStatus, probes: &ProbeSnapshot, plan: &Plan) -> Self {
        let mut bytes = Vec::new();
        put_status(&mut bytes, seen);
        put_probes(&mut bytes, probes);
        bytes.long_text(&canonical(plan));
        let hash = foldhash::fast::FixedState::with_seed(0).hash_one(&bytes);
        Body { bytes, hash }
    }
}

/// A plan that was written, and its inputs.
pub(crate) struct Recorded {
    pub(crate) uid: PodUid,
    /// The pod, where it was written with this plan; else it is the one that came with an earlier one.
    pub(crate) pod: Option<Arc<PodObject>>,
    pub(crate) seen: PodRuntimeStatus,
    pub(crate) probes: ProbeSnapshot,
    /// In the form of [`canonical`].
    pub(crate) plan: String,
}

impl Recorded {
    pub(crate) fn read(reader: &mut Reader<'_>) -> Read<Self> {
        let uid = reader.uid("a UID")?;
        let json = reader.long_text("a pod")?;
        let pod = match json {
            "" => None,
            json => match serde_json::from_str(json).ok().and_then(|pod| PodObject::new(pod).ok()) {
                Some(pod) => Some(pod),
                None => return reader.missing("a pod that can be used"),
            },
        };
        let seen = read_status(reader)?;
        let probes = read_probes(reader)?;
        Ok(Recorded { uid, pod, seen, probes, plan: reader.long_text("a plan")?.to_owned() })
    }
}

/// A plan in a form that stays the same from one version to the next: a replay compares it.
pub(crate) fn canonical(plan: &Plan) -> String {
    let kills = |kills: &[Kill]| {
        let each = |kill: &Kill| format!("{}={}", kill.id, reason(kill.reason));
        kills.iter().map(each).collect::<Vec<_>>().join(",")
    };
    let places = |places: &[usize]| places.iter().map(usize::to_string).collect::<Vec<_>>().join(",");
    match plan {
        Plan::Keep(Changes { sandbox, kill, ephemeral, init, regular }) => format!(
            "keep sandbox={sandbox} kill=[{}] ephemeral=[{}] init=[{}] regular=[{}]",
            kills(kill),
            places(ephemeral),
            places(init),
            places(regular)
        ),
        Plan::NewSandbox { attempt, start: FirstStart::Init } => format!("new-sandbox attempt={attempt} init"),
        Plan::NewSandbox { attempt, start: FirstStart::Regular(list) } => {
            format!("new-sandbox attempt={attempt} regular=[{}]", places(list))
        }
        Plan::StopPod { kills: list } => format!("stop-pod kill=[{}]", kills(list)),
        Plan::RestartAll { kills: list, remove, triggers } => {
            let remove = remove.iter().map(ContainerId::as_str).collect::<Vec<_>>().join(",");
            let triggers = triggers.iter().map(ContainerName::as_str).collect::<Vec<_>>().join(",");
            format!("restart-all kill=[{}] remove=[{remove}] triggers=[{triggers}]", kills(list))
        }
    }
}

fn reason(reason: KillReason) -> &'static str {
    match reason {
        KillReason::PodStops => "pod-stops",
        KillReason::HashChanged => "definition-changed",
        KillReason::LivenessFailed => "liveness-failed",
        KillReason::StartupFailed => "startup-failed",
        KillReason::StateUnknown => "state-unknown",
        KillReason::PostStartFailed => "post-start-failed",
        KillReason::Outlived => "outlived",
        KillReason::RestartAll => "restart-all",
    }
}

/// A plan for people, with the reasons that are to be seen in what it was made from.
pub(crate) fn describe(plan: &Plan, pod: &PodObject, seen: &PodRuntimeStatus) -> String {
    let mut parts = Vec::new();
    let kill = |kill: &Kill| format!("stop container {}: {}", kill.name, reason(kill.reason).replace('-', " "));
    let start = |names: &mut dyn Iterator<Item = &str>, parts: &mut Vec<String>| {
        parts.extend(names.map(|name| start_of(name, seen)));
    };
    let init: Vec<&str> = pod.init_containers().iter().map(|c| c.name.as_str()).collect();
    let regular: Vec<&str> = pod.containers().iter().map(|c| c.name.as_str()).collect();
    let ephemeral: Vec<&str> = pod.ephemeral_containers().iter().map(|c| c.name.as_str()).collect();
    let of = |names: &[&str], places: &[usize]| -> Vec<String> {
        places.iter().map(|place| names.get(*place).map_or_else(String::new, |name| (*name).to_owned())).collect()
    };
    match plan {
        Plan::Keep(changes) => {
            parts.extend(changes.kill.iter().map(kill));
            for (names, places) in
                [(&ephemeral, &changes.ephemeral), (&init, &changes.init), (&regular, &changes.regular)]
            {
                start(&mut of(names, places).iter().map(String::as_str), &mut parts);
            }
            if parts.is_empty() {
                parts.push("nothing to change".to_owned());
            }
        }
        Plan::NewSandbox { attempt, start: first } => {
            parts.push(match attempt {
                0 => "make the first sandbox".to_owned(),
                more => format!("make a sandbox, after {more} before it"),
            });
            match first {
                FirstStart::Init => start(&mut init.first().copied().into_iter(), &mut parts),
                FirstStart::Regular(places) => start(&mut of(&regular, places).iter().map(String::as_str), &mut parts),
            }
        }
        Plan::StopPod { kills } => {
            parts.push("stop the pod: nothing of it may run again".to_owned());
            parts.extend(kills.iter().map(kill));
        }
        Plan::RestartAll { triggers, .. } => {
            let who = triggers.iter().map(ContainerName::as_str).collect::<Vec<_>>().join(", ");
            parts.push(format!("restart every container, because {who} asks for it"));
        }
    }
    parts.join("; ")
}

fn start_of(name: &str, seen: &PodRuntimeStatus) -> String {
    let Some(run) = seen.newest(name) else { return format!("start container {name}") };
    let why = match run.state {
        ContainerState::Created => "it was made and not started".to_owned(),
        ContainerState::Running => "its run is replaced".to_owned(),
        ContainerState::Exited => format!("it exited with {}", run.exit_code),
        ContainerState::Unknown => "the runtime does not know what it does".to_owned(),
    };
    format!("start container {name}, attempt {}, because {why}", u64::from(run.restart_count) + 2)
}

/// Its times are absolute, so that the same status is the same bytes.
fn put_status(bytes: &mut Vec<u8>, seen: &PodRuntimeStatus) {
    let at = Time::ZERO;
    bytes.number(seen.sandboxes.len() as u64);
    for sandbox in &seen.sandboxes {
        bytes.text(sandbox.id.as_str());
        bytes.number(sandbox.attempt.into());
        bytes.flag(sandbox.state == SandboxState::Ready);
        bytes.time(at, sandbox.created_at);
        bytes.flag(sandbox.host_network);
        bytes.number(sandbox.ips.len() as u64);
        for ip in &sandbox.ips {
            match ip {
                IpAddr::V4(ip) => {
                    bytes.byte(4);
                    bytes.raw(&ip.octets());
                }
                IpAddr::V6(ip) => {
                    bytes.byte(6);
                    bytes.raw(&ip.octets());
                }
            }
        }
    }
    bytes.number(seen.containers.len() as u64);
    for run in &seen.containers {
        bytes.text(run.id.as_str());
        bytes.text(run.sandbox.as_str());
        bytes.text(run.name.as_str());
        bytes.number(run.restart_count.into());
        bytes.coded(run.state);
        bytes.time(at, run.created_at);
        bytes.some_time(at, run.started_at);
        bytes.some_time(at, run.finished_at);
        bytes.signed(run.exit_code.into());
        bytes.flag(run.signal.is_some());
        run.signal.iter().for_each(|signal| bytes.signed((*signal).into()));
        bytes.text(&run.reason);
        bytes.text(&run.message);
        bytes.raw(&run.spec_hash.to_le_bytes());
        bytes.text(&run.image);
        bytes.text(&run.image_id);
    }
}

fn read_status(reader: &mut Reader<'_>) -> Read<PodRuntimeStatus> {
    let mut seen = PodRuntimeStatus::default();
    // Nothing is reserved by a count: what it promises has to be there.
    for _ in 0..reader.number("a count of sandboxes")? {
        seen.sandboxes.push(read_sandbox(reader)?);
    }
    for _ in 0..reader.number("a count of containers")? {
        seen.containers.push(read_run(reader)?);
    }
    Ok(seen)
}

fn read_sandbox(reader: &mut Reader<'_>) -> Read<SandboxStatus> {
    let id = SandboxId::from(reader.text("a sandbox's id")?);
    let attempt = reader.small("a sandbox's attempt")?;
    let state = match reader.flag("a sandbox's state")? {
        true => SandboxState::Ready,
        false => SandboxState::NotReady,
    };
    let created_at = reader.time(Time::ZERO, "when a sandbox was made")?;
    let host_network = reader.flag("whether a sandbox has the node's network")?;
    let mut ips = Vec::new();
    for _ in 0..reader.number("a count of addresses")? {
        ips.push(match reader.byte("an address")? {
            4 => IpAddr::V4(Ipv4Addr::from(reader.array::<4>("an address")?)),
            6 => IpAddr::V6(Ipv6Addr::from(reader.array::<16>("an address")?)),
            _ => return reader.missing("an address"),
        });
    }
    Ok(SandboxStatus { id, attempt, state, created_at, host_network, ips })
}

fn read_run(reader: &mut Reader<'_>) -> Read<ContainerStatus> {
    let at = Time::ZERO;
    let whole = |reader: &mut Reader<'_>, what| {
        let number = reader.signed(what)?;
        i32::try_from(number).or_else(|_| reader.missing(what))
    };
    Ok(ContainerStatus {
        id: ContainerId::from(reader.text("a container's id")?),
        sandbox: SandboxId::from(reader.text("a container's sandbox")?),
        name: ContainerName::from(reader.text("a container's name")?),
        restart_count: reader.small("a restart count")?,
        state: reader.coded("a container's state")?,
        created_at: reader.time(at, "when a container was made")?,
        started_at: reader.some_time(at, "when a container was started")?,
        finished_at: reader.some_time(at, "when a container ended")?,
        exit_code: whole(reader, "an exit code")?,
        signal: match reader.flag("whether a signal ended a container")? {
            true => Some(whole(reader, "a signal")?),
            false => None,
        },
        reason: reader.text("a reason")?.to_owned(),
        message: reader.text("a message")?.to_owned(),
        spec_hash: u64::from_le_bytes(reader.array("a hash")?),
        image: reader.text("an image")?.to_owned(),
        image_id: reader.text("an image's id")?.to_owned(),
    })
}

fn put_probes(bytes: &mut Vec<u8>, probes: &ProbeSnapshot) {
    let mut all: Vec<_> = probes.iter().collect();
    all.sort_by_key(|(id, _)| *id);
    bytes.number(all.len() as u64);
    for (id, said) in all {
        bytes.text(id.as_str());
        for result in [said.startup, said.liveness, said.readiness] {
            bytes.byte(result.map_or(0, |result: ProbeResult| result.code() + 1));
        }
    }
}

/// Zero for nothing, or the place of what was said and one more.
fn said(reader: &mut Reader<'_>, what: &'static str) -> Read<Option<ProbeResult>> {
    let place = reader.byte(what)?;
    let Some(place) = place.checked_sub(1) else { return Ok(None) };
    ProbeResult::ALL.get(usize::from(place)).copied().map_or_else(|| reader.missing(what), |said| Ok(Some(said)))
}

fn read_probes(reader: &mut Reader<'_>) -> Read<ProbeSnapshot> {
    let mut probes = ProbeSnapshot::new();
    for _ in 0..reader.number("a count of probes")? {
        let id = ContainerId::from(reader.text("a container's id")?);
        let said = ContainerProbes {
            startup: said(reader, "what a startup probe said")?,
            liveness: said(reader, "what a liveness probe said")?,
            readiness: said(reader, "what a readiness probe said")?,
        };
        probes.insert(id, said);
    }
    Ok(probes)
}
