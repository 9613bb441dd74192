//! Liveness, readiness and startup probes.
//!
//! Each probe of each container has one state machine (`step`), which is pure:
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
//! The probe manager of the node owns the machines of all pods and the tasks that probe. A pod without probes costs nothing, and a
//! probe without work has no task. [`target`] resolves the addresses of probes and lifecycle hooks.

mod settings;
mod step;
pub mod target;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::fmt;

pub use settings::ProbeSettings;
pub use step::{Effect, Event, Outcome, ProbedRun, RunOrigin, State, step};

use serde::{Deserialize, Serialize};

use crate::ids::ContainerId;

/// The result of a probe, after its thresholds.
// A recording has the index of the variant: another order of variants is another format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ProbeResult {
    /// No result yet.
    Unknown,
    /// The probe passed.
    Success,
    /// The probe failed.
    Failure,
}

/// The probe results of one container run; `None` if no result was recorded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ContainerProbes {
    /// The result of the startup probe.
    pub startup: Option<ProbeResult>,
    /// The result of the liveness probe.
    pub liveness: Option<ProbeResult>,
    /// The result of the readiness probe.
    pub readiness: Option<ProbeResult>,
}

/// The probe results of a pod, by container run.
pub type ProbeSnapshot = HashMap<ContainerId, ContainerProbes>;

/// The kind of a probe.
// A recording has the index of the variant: another order of variants is another format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum ProbeKind {
    /// Tests whether the container has started. The other probes wait for it, so it comes first.
    Startup,
    /// Tests whether the container must be restarted.
    Liveness,
    /// Tests whether the container can serve requests.
    Readiness,
}

/// The name, as in events.
impl fmt::Display for ProbeKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ProbeKind::Startup => "Startup",
            ProbeKind::Liveness => "Liveness",
            ProbeKind::Readiness => "Readiness",
        })
    }
}
