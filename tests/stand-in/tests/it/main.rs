//! The stand-in from outside, over HTTP.
#![allow(missing_docs, clippy::unwrap_used, reason = "tests")]

mod behaviour;
mod certificates;
mod claim_writes;
mod credentials;
mod faults;
mod http;
mod kube;
mod kubectl;
mod nodes;
mod pods;
mod proxy;
mod replay;
mod service;
mod views;
