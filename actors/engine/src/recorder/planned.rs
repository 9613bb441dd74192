//! Plans of containers with their inputs, so that a replay can make them again. Pure.

use std::hash::BuildHasher;
use std::sync::{Arc, Weak};

use super::status::{ProbesData, StatusData};
use crate::codec::{Read, Reader, Uid, put};
use crate::containers::plan::{Changes, FirstStart, Kill, KillReason, Plan};
use crate::ids::{ContainerId, ContainerName, PodUid};
use crate::pod::PodObject;
use crate::ports::{ContainerState, PodRuntimeStatus};
use crate::probes::ProbeSnapshot;

/// The plan that was kept last for a pod.
#[derive(Debug)]
pub(crate) struct LastPlan {
    pub(crate) object: Weak<PodObject>,
    /// `None` if the object is too large for a frame.
    pub(crate) written: Option<WrittenPlan>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct WrittenPlan {
    /// The segment that has the object.
    pub(crate) segment: u32,
    /// The hash of the plan and its inputs.
    pub(crate) hash: u64,
}

/// Whether a plan was kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum PlanResult {
    /// Nothing is left to do.
    Done,
    /// The pod as JSON is needed.
    NeedsObject,
}

/// A plan as bytes, with its inputs except the pod.
pub(crate) struct EncodedPlan {
    pub(crate) bytes: Vec<u8>,
    pub(crate) hash: u64,
}

impl EncodedPlan {
    pub(crate) fn new(status: &PodRuntimeStatus, probes: &ProbeSnapshot, plan: &Plan) -> Self {
        let mut bytes = Vec::new();
        put(&mut bytes, &StatusData::new(status));
        put(&mut bytes, &ProbesData::new(probes));
        put(&mut bytes, &canonical(plan));
        let hash = foldhash::fast::FixedState::with_seed(0).hash_one(&bytes);
        EncodedPlan { bytes, hash }
    }
}

/// A plan of a recording, with its inputs.
pub(crate) struct Recorded {
    pub(crate) uid: PodUid,
    /// The pod, if this frame has it; an earlier frame of the segment has it otherwise.
    pub(crate) pod: Option<Arc<PodObject>>,
    pub(crate) status: PodRuntimeStatus,
    pub(crate) probes: ProbeSnapshot,
    /// The plan in its [`canonical`] form.
    pub(crate) plan: String,
}

impl Recorded {
    pub(crate) fn read(reader: &mut Reader<'_>) -> Read<Self> {
        let (uid, json) = reader.take::<(Uid<'_>, Option<&str>)>("a UID and a pod")?;
        let pod = match json {
            None => None,
            Some(json) => match serde_json::from_str(json).ok().and_then(|pod| PodObject::new(pod).ok()) {
                Some(pod) => Some(pod),
                None => return reader.missing("a pod with a name, a namespace and a UID"),
            },
        };
        let status = reader.take::<StatusData<'_>>("the status of a pod in the runtime")?.decode();
        let probes = reader.take::<ProbesData<'_>>("the results of probes")?.decode();
        Ok(Recorded { uid: uid.into(), pod, status, probes, plan: reader.take("a plan")? })
    }
}

/// A plan in a form that does not change from one version to the next, because a replay compares it.
pub(crate) fn canonical(plan: &Plan) -> String {
    let kills = |kills: &[Kill]| {
        let each = |kill: &Kill| format!("{}={}", kill.id, reason(kill.reason));
        kills.iter().map(each).collect::<Vec<_>>().join(",")
    };
    let indices = |indices: &[usize]| indices.iter().map(usize::to_string).collect::<Vec<_>>().join(",");
    match plan {
        Plan::Keep(Changes { sandbox, kill, ephemeral, init, regular }) => format!(
            "keep sandbox={sandbox} kill=[{}] ephemeral=[{}] init=[{}] regular=[{}]",
            kills(kill),
            indices(ephemeral),
            indices(init),
            indices(regular)
        ),
        Plan::NewSandbox { attempt, start: FirstStart::Init } => format!("new-sandbox attempt={attempt} init"),
        Plan::NewSandbox { attempt, start: FirstStart::Regular(list) } => {
            format!("new-sandbox attempt={attempt} regular=[{}]", indices(list))
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
        // Recordings have this word.
        KillReason::Superseded => "outlived",
        KillReason::RestartAll => "restart-all",
        KillReason::Resize => "resize",
    }
}

/// A plan for people, with the reasons that its inputs show.
pub(crate) fn describe(plan: &Plan, pod: &PodObject, status: &PodRuntimeStatus) -> String {
    let mut parts = Vec::new();
    let kill = |kill: &Kill| format!("stop container {}: {}", kill.name, reason(kill.reason).replace('-', " "));
    let start = |names: &mut dyn Iterator<Item = &str>, parts: &mut Vec<String>| {
        parts.extend(names.map(|name| start_of(name, status)));
    };
    let init: Vec<&str> = pod.init_containers().iter().map(|c| c.name.as_str()).collect();
    let regular: Vec<&str> = pod.containers().iter().map(|c| c.name.as_str()).collect();
    let ephemeral: Vec<&str> = pod.ephemeral_containers().iter().map(|c| c.name.as_str()).collect();
    let of = |names: &[&str], indices: &[usize]| -> Vec<String> {
        indices.iter().map(|index| names.get(*index).map_or_else(String::new, |name| (*name).to_owned())).collect()
    };
    match plan {
        Plan::Keep(changes) => {
            parts.extend(changes.kill.iter().map(kill));
            for (names, indices) in
                [(&ephemeral, &changes.ephemeral), (&init, &changes.init), (&regular, &changes.regular)]
            {
                start(&mut of(names, indices).iter().map(String::as_str), &mut parts);
            }
            if parts.is_empty() {
                parts.push("nothing to change".to_owned());
            }
        }
        Plan::NewSandbox { attempt, start: first } => {
            parts.push(match attempt {
                0 => "create the first sandbox".to_owned(),
                more => format!("create a sandbox, attempt {}", u64::from(*more) + 1),
            });
            match first {
                FirstStart::Init => start(&mut init.first().copied().into_iter(), &mut parts),
                FirstStart::Regular(indices) => {
                    start(&mut of(&regular, indices).iter().map(String::as_str), &mut parts)
                }
            }
        }
        Plan::StopPod { kills } => {
            parts.push("stop the pod: no container of it may run again".to_owned());
            parts.extend(kills.iter().map(kill));
        }
        Plan::RestartAll { triggers, .. } => {
            let who = triggers.iter().map(ContainerName::as_str).collect::<Vec<_>>().join(", ");
            parts.push(format!("restart every container, because {who} requires it"));
        }
    }
    parts.join("; ")
}

fn start_of(name: &str, status: &PodRuntimeStatus) -> String {
    let Some(run) = status.newest(name) else { return format!("start container {name}") };
    let why = match run.state {
        ContainerState::Created => "it was created and not started".to_owned(),
        ContainerState::Running => "its run is replaced".to_owned(),
        ContainerState::Exited => format!("it exited with {}", run.exit_code),
        ContainerState::Unknown => "the runtime does not know its state".to_owned(),
    };
    format!("start container {name}, attempt {}, because {why}", u64::from(run.restart_count) + 2)
}
