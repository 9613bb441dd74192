//! The controllers of the control plane.
//!
//! The core of a controller keeps the known objects and makes all decisions. It opens no connection and reads no clock. A pass works on
//! one object: it names the next API call, and takes the answer.
//!
//! The controllers share the modules that belong to none of them: known objects, pods and pod groups as users of claims, and the retries
//! of passes.
//!
//! ```
//! use podwright_controllers::leader_election::{Call, Candidate, Event, LeaseName, Moment, Next, Timing};
//! use podwright_model::time::Time;
//!
//! let name = LeaseName { namespace: "kube-system".to_owned(), name: "resourceclaim-controller".to_owned() };
//! let mut replica = Candidate::new("replica-1", name, Timing::default());
//! let now = Moment { local: Time::from_secs(1), wall: Time::from_secs(1_800_000_000) };
//! assert_eq!(replica.step(Event::Due, now), Next::Call(Call::Read));
//! ```
//!
//! # Parts
//!
//! - [`resource_claim`] decides about ResourceClaims, and [`claim_controller`] performs its passes.
//! - [`device_taint_eviction`] decides which pods a taint evicts, and [`device_taint_controller`] performs its passes.
//! - [`leader_election`] elects one leader among the replicas of a controller.
//! - [`ports`] has the calls of both controllers to the API server.
//!
//! # Arrows
//!
//! The crate uses `podwright-model`, `podwright-ports`, `podwright-parts`, `podwright-work-queue`, `podwright-work-loop` and
//! `podwright-metrics`. It needs no actix, no engine and no node. `podwright-kube-controllers`, which watches and calls the API server,
//! uses the crate.

pub mod claim_controller;
pub mod device_taint_controller;
pub mod device_taint_eviction;
mod failed_pass;
pub mod leader_election;
mod names;
mod owners;
mod ownership;
mod passes;
pub mod ports;
pub mod resource_claim;
mod table;
#[cfg(test)]
mod test_log;
