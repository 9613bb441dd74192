//! Liveness, readiness and startup probes.
//!
//! One machine ([`step`]) for each probe of each container, pure:
//!
//! ```text
//!            a run appears            runs, startup passed           startup passed;
//!   Absent ----------------> Waiting ----------------------> Probing liveness, startup failed  ---> Settled
//!     ^                       ^   ^                             |                                     |
//!     | the run is removed    |   +------ no longer runs -------+                                     |
//!     +-- (from any)          +------------------------ another run appears --------------------------+
//!
//!   any ---- stop ----> Stopped, which keeps the last result
//! ```
//!
//! [`ProbeManager`] owns the machines of all pods and the tasks that ask. A pod without probes costs nothing, a probe
//! that has nothing to ask has no task. [`target`] makes the addresses that probes and lifecycle hooks call.

mod attempt;
mod manager;
mod settings;
mod step;
pub mod target;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::fmt;

pub use manager::{ProbeManager, ProbePorts, ProbeSink};
pub use settings::ProbeSettings;
pub use step::{Effect, Event, Found, Outcome, Run, State, Streak, step};

use crate::ids::{ContainerId, ContainerName, PodUid};

/// What a probe last said, thresholds applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ProbeResult {
    /// Not decided yet.
    Unknown,
    /// It passed.
    Success,
    /// It failed.
    Failure,
}

/// What the probes of one container run say; `None` where no result was recorded (no such probe, or none that ran).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ContainerProbes {
    /// The startup probe.
    pub startup: Option<ProbeResult>,
    /// The liveness probe.
    pub liveness: Option<ProbeResult>,
    /// The readiness probe.
    pub readiness: Option<ProbeResult>,
}

/// What the probes of a pod say, by container run.
pub type ProbeSnapshot = HashMap<ContainerId, ContainerProbes>;

/// What a probe is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ProbeKind {
    /// Whether the container has started; the other two wait for it. Comes first, because it gates the others.
    Startup,
    /// Whether the container should be started again.
    Liveness,
    /// Whether the container can serve.
    Readiness,
}

/// As events spell it.
impl fmt::Display for ProbeKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ProbeKind::Startup => "Startup",
            ProbeKind::Liveness => "Liveness",
            ProbeKind::Readiness => "Readiness",
        })
    }
}

/// A probe decided something new.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProbeChange {
    /// The pod.
    pub uid: PodUid,
    /// The container run that was asked.
    pub id: ContainerId,
    /// The container's name.
    pub name: ContainerName,
    /// Which probe.
    pub kind: ProbeKind,
    /// What it says now.
    pub result: ProbeResult,
}
