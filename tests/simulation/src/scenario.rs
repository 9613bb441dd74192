//! Scenarios: the pods, the steps that change them, and the faults. Plain values.

use std::fmt;
use std::time::Duration;

use clap::ValueEnum;

use super::devices::{Absence, driver_name};

/// What a simulated agent uses as its API server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Api {
    /// A server that implements the ports of the node. It costs the least time.
    Ports,
    /// The adapters of the API server, over a server in memory.
    Adapters,
}

impl Api {
    /// The value of the flag `--api`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Api::Ports => "ports",
            Api::Adapters => "adapters",
        }
    }
}

/// Everything that a simulation depends on.
#[derive(Clone, Debug)]
pub(super) struct Scenario {
    pub(super) api: Api,
    pub(super) seed: u64,
    /// Whether the runtime publishes events. If not, the agent relists it every second.
    pub(super) with_events: bool,
    pub(super) pods: Vec<PodPlan>,
    pub(super) claims: Vec<ClaimPlan>,
    /// Sorted by time.
    pub(super) steps: Vec<Step>,
}

#[derive(Clone, Debug)]
pub(super) struct Step {
    pub(super) at: Duration,
    pub(super) what: StepAction,
}

/// The index of a pod in the scenario.
pub(super) type PodIndex = usize;

#[derive(Clone, Debug)]
pub(super) enum StepAction {
    /// Adds the pod to its source.
    Add(PodIndex),
    /// Removes the pod from its source.
    Remove(PodIndex),
    /// Removes the pod and adds it again with the same UID after this time.
    Return(PodIndex, Duration),
    /// The API server marks the pod for deletion, or shortens its grace period, in seconds.
    Delete(PodIndex, i64),
    /// Changes the image of the pod's containers.
    Image(PodIndex),
    /// Changes a label of the pod.
    Label(PodIndex),
    /// Changes a static pod's manifest: another UID, the same name.
    Replace(PodIndex),
    /// A user deletes the pod from the API server without a grace period and creates it again: another UID, the same name.
    Recreate(PodIndex),
    /// The API server is away for this time: it delivers no pods and accepts no statuses.
    Away(Duration),
    /// Kills the pod from inside the agent.
    Kill { pod: PodIndex, evict: bool, grace: Option<i64> },
    /// Ends the pod's sandbox with all its containers.
    SandboxEnds(PodIndex),
    /// A source delivers empty sets for this time.
    Empty(Source, Duration),
    /// A source delivers nothing for this time.
    Mute(Source, Duration),
    /// A source delivers its last set again.
    Repeat(Source),
    /// A source lists its pods again, because the API server no longer has the version that the watch would go on from. Each pod is
    /// delivered anew.
    Relist(Source),
    /// The watch loses all changes of the pod for this time. The list after it has them.
    LoseChanges(PodIndex, Duration),
    /// The clock of the machine is set ahead by this time.
    ClockJump(Duration),
    /// The agent is killed. The next one starts after the time `down`, and reads a clock that was set back meanwhile. The runtime plans the
    /// ends of runs by the clock, so the runs that it has planned last longer.
    SetBack { by: Duration, down: Duration },
    /// A user deletes the mirror pod of a static pod.
    DeleteMirror(PodIndex),
    /// A user changes the resources of the pod's containers.
    Resize(PodIndex, Resources),
    /// A source reports a problem.
    Problem(Source),
    /// Calls fail for a while.
    Fault(Window),
    /// The agent is killed. The next one starts after this time.
    Crash(Duration),
    /// The agent is killed at this moment of its next call of a kind.
    CrashIn { op: Op, moment: Moment, down: Duration },
    /// A DRA driver is away for this time.
    DriverLeaves { driver: usize, lasts: Duration, absence: Absence },
    /// The agent stops all pods and ends. The next one starts after `down`.
    Shutdown { critical: u64, total: u64, down: Duration },
    /// The agent begins to stop all pods. The shutdown is cancelled after this time.
    CancelledShutdown { critical: u64, total: u64, after: Duration },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Source {
    File,
    Api,
}

/// A time in which calls get a fault.
#[derive(Clone, Debug)]
pub(super) struct Window {
    pub(super) lasts: Duration,
    pub(super) op: Option<Op>,
    pub(super) pod: Option<PodIndex>,
    pub(super) fault: Fault,
    /// How many of a hundred calls get the fault.
    pub(super) percent: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// The call fails and has no effect.
    Error,
    /// The call has its effect and returns an error.
    ErrorAfter,
    /// The call has its effect after a delay.
    Slow(Duration),
    /// The call has its effect and returns after a delay.
    Late(Duration),
    /// The call panics. The connection of a request to the stand-in breaks.
    Panic,
    /// The same, after the call has had its effect.
    PanicAfter,
    /// For DRA drivers only: the answer lacks a claim.
    Omits,
    /// For DRA drivers only: the answer has a claim that was not in the call.
    OtherClaim,
    /// For DRA drivers only: the answer has devices that are not allocated.
    OtherDevices,
    /// For DRA drivers, the driver refuses one claim. For updates of containers, the runtime does not have the call. For requests to the
    /// stand-in, there are too many.
    Refuses,
    /// For events only: the event is lost.
    Lost,
    /// For events only: the event is delivered twice.
    Twice,
}

/// A call to a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Op {
    List,
    Status,
    RunSandbox,
    StopSandbox,
    RemoveSandbox,
    Pull,
    Create,
    Start,
    Stop,
    Remove,
    Exec,
    Event,
    Network,
    SetUp,
    TearDown,
    RemoveDirectory,
    ListDirectories,
    Append,
    ReadClaim,
    Prepare,
    Unprepare,
    AppendClaims,
    UpdateContainer,
    SaveAllocations,
    PatchStatus,
    DeletePod,
    CreatePod,
    NodeApi,
    ReadPods,
    WriteEvent,
    SaveRunFacts,
}

/// A moment of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Moment {
    /// Before the call has an effect.
    Begin,
    /// For writes only: after the first half of the records.
    Middle,
    /// After the effect, and before the answer.
    End,
}

#[derive(Clone, Debug)]
pub(super) struct PodPlan {
    pub(super) name: String,
    pub(super) source: Source,
    pub(super) policy: Option<&'static str>,
    pub(super) grace: Option<i64>,
    pub(super) deadline: Option<i64>,
    pub(super) priority: Option<i32>,
    pub(super) host_network: bool,
    pub(super) cpu: Option<&'static str>,
    /// The resources of a pod that a user may resize. They replace `cpu`.
    pub(super) resize: Option<ResizePlan>,
    /// The claims of the pod, as indices in the scenario. Its first container has their devices.
    pub(super) claims: Vec<usize>,
    /// Settings of the simulated runtime for the pod.
    pub(super) settings: Vec<(&'static str, String)>,
    pub(super) containers: Vec<ContainerPlan>,
}

/// The requests of each container that has resources: thousandths of a CPU, and MiB of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Resources {
    pub(super) cpu: u32,
    pub(super) memory: u32,
}

/// How a pod can be resized.
#[derive(Clone, Copy, Debug)]
pub(super) struct ResizePlan {
    /// The resources at the beginning.
    pub(super) first: Resources,
    /// Whether a change of the CPU restarts a container.
    pub(super) cpu_restarts: bool,
    pub(super) memory_restarts: bool,
    /// Whether the pod also has resources as a whole. Containers without resources inherit the limits of the pod.
    pub(super) is_whole: bool,
    /// Whether the init containers, which include the sidecars, have the same resources and the same resize policy as the regular containers.
    pub(super) has_init: bool,
}

/// A ResourceClaim.
#[derive(Clone, Debug)]
pub(super) struct ClaimPlan {
    pub(super) name: String,
    /// The drivers of its devices, in ascending order.
    pub(super) drivers: Vec<usize>,
    /// The pod whose claim it is. It is replaced together with the pod. Other claims are shared.
    pub(super) owner: Option<PodIndex>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    Init,
    Sidecar,
    Regular,
}

#[derive(Clone, Debug)]
pub(super) struct ContainerPlan {
    pub(super) name: String,
    pub(super) kind: Kind,
    pub(super) policy: Option<&'static str>,
    /// The exit code of a restart rule, and the rule's action.
    pub(super) rule: Option<(i32, &'static str)>,
    pub(super) probes: Vec<ProbePlan>,
    pub(super) post_start: Option<HookPlan>,
    pub(super) pre_stop: Option<HookPlan>,
    /// Settings of the simulated runtime for the container.
    pub(super) settings: Vec<(&'static str, String)>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct ProbePlan {
    /// The field of the container that holds the probe.
    pub(super) field: &'static str,
    pub(super) exec: bool,
    pub(super) period: i64,
    pub(super) failures: i64,
    pub(super) grace: Option<i64>,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum HookPlan {
    Exec,
    Http,
    Sleep(i64),
}

impl StepAction {
    /// Whether the source of a pod gets another version of it.
    pub(super) fn changes(&self, pod: PodIndex) -> bool {
        use StepAction::*;
        match self {
            Add(which)
            | Remove(which)
            | Return(which, _)
            | Delete(which, _)
            | Image(which)
            | Label(which)
            | Replace(which)
            | Recreate(which) => *which == pod,
            _ => false,
        }
    }
}

impl PodPlan {
    pub(super) fn of(&self, kind: Kind) -> impl Iterator<Item = &ContainerPlan> {
        self.containers.iter().filter(move |container| container.kind == kind)
    }

    /// The grace period in the spec of the pod.
    pub(super) fn grace_period(&self) -> Duration {
        Duration::from_secs(self.grace.map_or(30, |seconds| u64::try_from(seconds).unwrap_or(0)))
    }
}

impl fmt::Display for Scenario {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (api, with) = (self.api.as_str(), if self.with_events { "with" } else { "without" });
        writeln!(f, "seed {}, {with} events, over the {api}", self.seed)?;
        for (which, claim) in self.claims.iter().enumerate() {
            let ClaimPlan { name, owner, .. } = claim;
            let drivers: Vec<_> = claim.drivers.iter().map(|driver| driver_name(*driver).to_string()).collect();
            writeln!(f, "claim {which} {name} owner={owner:?} {drivers:?}")?;
        }
        for (which, pod) in self.pods.iter().enumerate() {
            let PodPlan { name, source, policy, grace, deadline, priority, host_network, cpu, settings, .. } = pod;
            write!(f, "pod {which} {name} {source:?}")?;
            write!(f, " policy={} grace={grace:?}", policy.unwrap_or("-"))?;
            if let Some(deadline) = deadline {
                write!(f, " deadline={deadline}")?;
            }
            if let Some(priority) = priority {
                write!(f, " priority={priority}")?;
            }
            if let Some(resize) = pod.resize {
                write!(f, " {resize:?}")?;
            }
            if !pod.claims.is_empty() {
                write!(f, " claims={:?}", pod.claims)?;
            }
            if *host_network {
                f.write_str(" host-network")?;
            }
            writeln!(f, " cpu={} {settings:?}", cpu.unwrap_or("-"))?;
            for c in &pod.containers {
                write!(f, "    {:?} {} {:?}", c.kind, c.name, c.settings)?;
                if let Some(policy) = c.policy {
                    write!(f, " policy={policy}")?;
                }
                if let Some(rule) = c.rule {
                    write!(f, " rule={rule:?}")?;
                }
                for probe in &c.probes {
                    write!(f, " {probe:?}")?;
                }
                if let Some(hook) = c.post_start {
                    write!(f, " post-start={hook:?}")?;
                }
                if let Some(hook) = c.pre_stop {
                    write!(f, " pre-stop={hook:?}")?;
                }
                writeln!(f)?;
            }
        }
        for step in &self.steps {
            writeln!(f, "{:9.3} {:?}", step.at.as_secs_f64(), step.what)?;
        }
        Ok(())
    }
}
