//! Liveness, readiness and startup probes.

use std::collections::HashMap;

use crate::ids::ContainerId;

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
