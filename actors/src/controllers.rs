//! The controllers of the control plane.
//!
//! The core of a controller keeps the known objects and makes all decisions. It opens no connection and reads no clock. A pass works on
//! one object: it names the next API call, and takes the answer.
//!
//! The controllers share the modules that belong to none of them: known objects, pods and pod groups as users of claims, and the retries
//! of passes.

pub mod claim_controller;
pub mod device_taint_controller;
pub mod device_taint_eviction;
mod failed_pass;
pub mod leader_election;
mod names;
mod owners;
mod ownership;
mod passes;
pub mod resource_claim;
mod table;
#[cfg(test)]
mod test_log;
