//! What happens in a simulation: pods, what is done with them, and what goes wrong meanwhile. Values only.

use std::fmt;
use std::time::Duration;

/// Everything that a run depends on.
#[derive(Clone, Debug)]
pub(super) struct Scenario {
    pub(super) seed: u64,
    /// Whether the runtime tells of ends; else it is relisted every second.
    pub(super) with_events: bool,
    pub(super) pods: Vec<PodPlan>,
    /// In the order of time.
    pub(super) steps: Vec<Step>,
}

#[derive(Clone, Debug)]
pub(super) struct Step {
    pub(super) at: Duration,
    pub(super) what: What,
}

/// Which pod of the scenario.
pub(super) type Which = usize;

#[derive(Clone, Debug)]
pub(super) enum What {
    /// The pod comes into its source.
    Add(Which),
    /// It leaves its source at once.
    Remove(Which),
    /// It leaves and comes back with the same UID, so long after.
    Return(Which, Duration),
    /// The API server marks it for deletion, or shortens its grace.
    Delete(Which, i64),
    /// Its containers change.
    Image(Which),
    /// A label changes.
    Label(Which),
    /// A static pod's manifest changes: another UID, the same name.
    Replace(Which),
    /// Somebody in the agent stops it.
    Kill { pod: Which, evict: bool, grace: Option<i64> },
    /// Its sandbox ends, and all in it.
    SandboxEnds(Which),
    /// A source says for so long that it wants nothing.
    Empty(Source, Duration),
    /// A source says nothing for so long.
    Mute(Source, Duration),
    /// A source says again what it said.
    Repeat(Source),
    /// A source says that some place cannot be read.
    Problem(Source),
    /// Calls go wrong for a while.
    Fault(Window),
    /// The agent is killed, and another one comes after so long.
    Crash(Duration),
    /// The agent stops all pods and ends; another one comes after so long.
    Shutdown { critical: u64, total: u64, down: Duration },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    File,
    Api,
}

/// A time in which calls go wrong.
#[derive(Clone, Debug)]
pub(super) struct Window {
    pub(super) lasts: Duration,
    pub(super) op: Option<Op>,
    pub(super) pod: Option<Which>,
    pub(super) fault: Fault,
    /// Of a hundred calls.
    pub(super) percent: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// Fails and does nothing.
    Error,
    /// Does it, and says that it failed.
    ErrorAfter,
    /// Does it after a while.
    Slow(Duration),
    /// Does it, and answers after a while.
    Late(Duration),
    Panic,
    PanicAfter,
    /// For events only: is not told.
    Lost,
    /// For events only: is told twice.
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
    /// What else the simulated runtime is told of the pod.
    pub(super) settings: Vec<(&'static str, String)>,
    pub(super) containers: Vec<ContainerPlan>,
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
    /// Exit codes that a rule names, and its action.
    pub(super) rule: Option<(i32, &'static str)>,
    pub(super) probes: Vec<ProbePlan>,
    pub(super) post_start: Option<HookPlan>,
    pub(super) pre_stop: Option<HookPlan>,
    /// What the simulated runtime is told of it.
    pub(super) settings: Vec<(&'static str, String)>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct ProbePlan {
    /// The field of the container.
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

impl PodPlan {
    pub(super) fn of(&self, kind: Kind) -> impl Iterator<Item = &ContainerPlan> {
        self.containers.iter().filter(move |container| container.kind == kind)
    }
}

impl fmt::Display for Scenario {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "seed {}, {} events", self.seed, if self.with_events { "with" } else { "without" })?;
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
