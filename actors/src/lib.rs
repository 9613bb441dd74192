//! The node: what runs pods on a machine. Its actors and managers perform what the cores decide, through the engine and the ports. It
//! opens no socket and no file.
//!
//! ```
//! use podwright_actors::eviction::EvictionThresholds;
//!
//! let thresholds: EvictionThresholds = "memory.available<100Mi".parse()?;
//! assert_eq!(thresholds.iter().next(), Some(("memory.available", "100Mi".to_owned())));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Parts
//!
//! - [`node`]: builds a node from its ports, and the handle of a running node.
//! - [`container_manager`], [`observer`], [`housekeeping`], [`image_gc`] and [`eviction`]: start, watch, stop and remove what runs.
//! - [`desired`], [`statuses`] and [`final_statuses`]: what the node knows of its pods.
//! - [`claims`]: prepares and releases the ResourceClaims of pods.
//! - [`explain`]: what a pod waits for. [`health`]: whether the node works.
//! - [`shutdown`]: stops the pods in groups.
//!
//! # Arrows
//!
//! The crate uses `podwright-engine`, `podwright-core`, `podwright-ports`, `podwright-model`, `podwright-parts`, `podwright-work-loop`,
//! `podwright-work-queue` and `podwright-metrics`. The agent uses the crate, and no adapter does.

mod active_pods;
pub mod claims;
pub mod container_manager;
pub mod desired;
mod dispatcher;
pub mod eviction;
pub mod explain;
pub mod final_statuses;
pub mod health;
pub mod housekeeping;
pub mod image_gc;
mod journal;
mod mailbox;
mod metered;
mod mirrors;
pub mod node;
mod node_status;
pub mod observer;
mod probe_manager;
mod resizes;
mod run_facts;
pub mod shutdown;
mod starts;
mod status_writer;
pub mod statuses;
mod sync;

pub use node_status::{NodeRegistration, Registration};

// The modules name the values, the ports, the cores and the engine by these short paths.
use podwright_core::{admission, config, containers, objects, pod_manager, pod_worker, probes, resize, status};
use podwright_engine::{self as engine, recorder};
#[cfg(test)]
use podwright_fixtures as testing;
use podwright_model::{ids, pod, quantity, text, texts, time};
use podwright_ports as ports;
