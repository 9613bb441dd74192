//! The ResourceClaim controller: makes ResourceClaims from ResourceClaimTemplates for pods and pod groups, removes consumers that have
//! ended, deallocates a claim when it removes the last consumer, and deletes the generated claims of pods that have ended.
//! Pure.
//!
//! ```text
//!   watches --WatchEvent--> Core --keys--> queue --key--> Core::begin --> Pass
//!                            ^                                             |  step: Request
//!                            |                                             v
//!                            `----- step: Answer <------------------- API server
//! ```
//!
//! [`Core`] has the known objects with their indexes, and remembers what the watches have not shown yet. [`Pass::step`] decides, without
//! I/O; an adapter performs each [`Request`] and gives the answer to the next step.
//!
//! What always holds:
//! - One process generates at most one claim for an entry of a pod or group, even if the answer to a create was lost, as long as the
//!   server performs each create within 10 s after its answer was lost.
//! - A write of a status keeps the entries of all other claims of the spec that exist, even while the watches lag.
//! - An entry of `status.reservedFor` is dropped only if its consumer has ended or does not exist.
//! - No claim is generated or reserved for a pod that has ended or is being deleted.
//! - Known objects are never edited; requests carry copies.

mod api;
mod cache;
mod claim_pass;
mod counts;
mod events;
mod explain;
mod features;
mod generate;
mod keys;
mod memory;
mod owner_pass;
mod pass;
mod reserve;
#[cfg(test)]
mod tests;
mod unanswered;
mod written;

use super::{names, owners, ownership, table};
pub use api::{
    Answer, ApiError, ApiErrorKind, COMPONENT, CONTROLLER_NAME, EVENT_REASON, FIELD_MANAGER, OwnerWarning,
    POD_GROUP_API_VERSION, QUEUE_NAME, Request, StatusApply, StatusEntry,
};
pub use cache::Core;
pub use counts::{ClaimCounts, ClaimLabels, ClaimSource, has_admin_access};
pub use explain::{ClaimConsumer, ClaimExplanation, ClaimReason, ClaimState, FailedPass, ReasonKind};
pub use features::Features;
pub use generate::TemplateRefused;
pub use keys::{Key, ObjectKey, ParseKeyError};
pub use names::{ClaimEntry, NameError, Named, generate_name};
pub use owners::{Owner, OwnerId, OwnerKind};
pub use ownership::{BindTarget, BindTargetError, MAX_CONSUMERS, NotOwned};
pub use pass::{ClaimWrite, Fact, Fault, Pass, PassError, Report, Step};
pub use table::WatchEvent;
pub use unanswered::UnansweredCreates;
