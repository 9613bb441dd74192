//! Names of the API, and the calls of the port.

use crate::ports::device_taints::COMPONENT;
pub use crate::ports::device_taints::{
    Answer, ApiError, ApiErrorKind, EvictionEvent, EvictionEventKind, ObjectKey, PodCondition, PodId, Request,
    RuleConditions, RuleId,
};

/// The name of the controller in logs and leases.
pub const CONTROLLER_NAME: &str = COMPONENT;
/// The name of the work queue in metrics.
pub const QUEUE_NAME: &str = COMPONENT;

/// The effect that evicts pods. Each other effect, also an unknown one, evicts nothing.
pub(super) const NO_EXECUTE: &str = "NoExecute";
/// The effect that only informs.
pub(super) const NO_EFFECT: &str = "None";
