//! The controllers of the control plane.
//!
//! A controller has a core, which keeps the known objects and decides, and which opens no connection and reads no clock. Its passes
//! name the next call of the API, and take the answer.

pub mod claim_controller;
pub mod leader_election;
pub mod resource_claim;
