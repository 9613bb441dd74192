//! The controllers of the control plane.
//!
//! The core of a controller keeps the known objects and makes all decisions. It opens no connection and reads no clock. A pass works on
//! one object: it names the next API call, and takes the answer.
//!
//! The controllers share the modules that belong to none of them: known objects, and pods and pod groups as users of claims.

pub mod claim_controller;
pub mod device_taint_controller;
pub mod device_taint_eviction;
mod failed_pass;
pub mod leader_election;
mod names;
mod owners;
mod ownership;
mod pass_errors;
pub mod resource_claim;
mod table;
#[cfg(test)]
mod test_log;
