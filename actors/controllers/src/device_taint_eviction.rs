//! The device taint eviction controller: deletes pods that use devices with a NoExecute taint that their claims do not tolerate, and
//! keeps the status of DeviceTaintRules. Pure.
//!
//! ```text
//!   watches --WatchEvent--> Core --pods to evaluate--> Core::evaluate_next --Effects--> queue, events
//!                            ^                                                          |
//!                            |                                                          v item
//!                            `--- step: Answer, from the API server --- Pass <--- Core::begin
//! ```
//!
//! [`Core`] has the known objects, the eviction of each claim, and the pods that wait for their eviction. An event of a watch marks pods
//! that must be evaluated again; [`Core::evaluate_next`] evaluates one of them. [`Pass::step`] decides on one item of the queue, without
//! I/O; an adapter performs each [`Request`] and gives the answer to the next step.
//!
//! What always holds:
//! - A pending eviction has a time and at least one reason, and belongs to one UID.
//! - When no pod is marked, the pending evictions follow from the known objects, whatever the order of the events was. A taint without
//!   `timeAdded` counts from the time at which it was first received.
//! - A pod is deleted only with its UID as precondition, and only while its eviction is pending and due.
//! - A pod that this controller has deleted is never pending again.
//! - Known objects are never edited.

mod api;
mod cache;
mod changes;
mod effects;
mod evaluate;
mod eviction;
mod explain;
mod item;
mod limit;
mod pass;
mod pending;
mod pod_pass;
mod pools;
mod preview;
mod rule_pass;
mod rules;
mod status;
mod taints;
#[cfg(test)]
mod tests;

pub use super::failed_pass::FailedPass;
pub use api::{
    Answer, ApiError, ApiErrorKind, CONTROLLER_NAME, EvictionEvent, EvictionEventKind, ObjectKey, PodCondition, PodId,
    QUEUE_NAME, Request, RuleConditions, RuleId,
};
pub use cache::{Core, Settings};
pub use effects::Effects;
pub use eviction::{Eviction, Reason, Reasons, SliceTaint};
pub use explain::{ClaimTaints, DeviceTaintEffect, PodTaintExplanation, PodTaintState, RuleExplanation, RuleState};
pub use item::Item;
pub use limit::{CONTINUE_ANNOTATION, LIMIT_CONDITION};
pub use pass::{Evicted, Fault, Outcome, Pass, Report, Step};
pub use pools::PoolKey;
pub use preview::{ObjectName, PreviewedDevice, PreviewedPod, RulePreview};
pub use status::{IN_PROGRESS_CONDITION, RuleCounts};
