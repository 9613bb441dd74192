//! The ResourceClaims of the node's pods (dynamic resource allocation, DRA).
//!
//! ```text
//!   hooks: prepare, release ---> ClaimManager --step--> ClaimTable --effects--> call a driver, write the file, answer the hook
//!   drivers: answers ------------------^
//! ```
//!
//! A claim has one record, which pods of this node refer to. Drivers prepare the claim for the first pod, and unprepare it after
//! the last one. [`ClaimTable::step`] decides what to do, without I/O. [`ClaimManager`] performs it.
//!
//! What always holds:
//! - A reference is in the file before a driver is called to prepare the claim. It stays there until all drivers have unprepared
//!   the claim.
//! - Calls for one claim never overlap, except that one operation calls several drivers at once. Calls for different claims run in
//!   parallel. When an operator gives a driver up, nobody waits for its running call any more. But no other call of that driver for the
//!   claim begins before this call has ended.
//! - A pod that is not in the record of a claim never causes a call for that claim.
//! - Each prepare of a claim replaces the devices of the one before it.

mod devices;
mod ended_pods;
mod error;
mod fault;
mod file;
mod health;
mod health_store;
mod manager;
mod record;
mod resolve;
mod status;
mod step;
mod table;
mod tasks;
#[cfg(test)]
mod tests;
mod tries;
mod writer;

pub use devices::DevicesError;
pub use error::{ClaimsError, OpenClaimsError};
pub use fault::{ClaimFault, DriverAnswer, check_answer};
pub use manager::{ClaimManager, ClaimPorts};
pub use record::{AllocatedDevice, ClaimRecord, DriverRecord, NeededClaim, ReleaseDuty};
pub use resolve::{ClaimFeatures, ClaimRefused};
pub use status::ContainerClaim;
pub use step::{Effect, Event, Method};
pub use table::{ClaimTable, OperationId};
pub use tasks::ClaimTasks;
