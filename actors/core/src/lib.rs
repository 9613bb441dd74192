//! The pure cores: what is decided about pods and containers on a node. A core decides by its arguments alone. It performs no I/O, reads
//! no clock, starts no task and logs nothing, and time is part of each event. So the same function runs in the engine, in the tables of
//! the tests, in the model checkers, in the simulation and in the replay of a recording. Pure.
//!
//! ```
//! use std::time::Duration;
//!
//! use podwright_core::pod_worker::step::{Event, StepContext, new_record, step};
//! use podwright_core::pod_worker::{Lifecycle, Update};
//! use podwright_model::pod::PodObject;
//! use podwright_model::time::Time;
//! use podwright_ports::Observed;
//!
//! let pod = r#"{"metadata":{"name":"web","namespace":"default","uid":"1"},"spec":{"containers":[{"name":"a"}]}}"#;
//! let pod = PodObject::new(serde_json::from_str(pod)?)?;
//! let delay = Duration::from_secs(10);
//! let at = |seconds| StepContext { now: Time::from_secs(seconds), jitter: 0.0, resync: delay, error_backoff: delay };
//!
//! let (mut record, _effects) = new_record(Update::create(pod), Observed::Never, at(1));
//! assert_eq!(record.lifecycle(), Lifecycle::Waiting);
//! let _effects = step(&mut record, Event::Take { may_start: true, observed: Observed::Never }, at(2));
//! assert_eq!(record.lifecycle(), Lifecycle::Sync);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Parts
//!
//! - [`pod_worker`]: the record of one pod, and the step from one state to the next.
//! - [`containers`]: which containers of a pod start and stop, and when. [`probes`] has the state machine of a probe.
//! - [`status`]: what the status of a pod says. [`resize`]: which resources a running pod gets.
//! - [`admission`]: which pods may start beside the others. [`pod_manager`] has the desired pods.
//! - [`housekeeping`]: what is done about the differences between desired, known and running pods.
//! - [`config`]: whether a manifest is valid, and its defaults. [`objects`]: which API objects a pod needs.
//!
//! # Arrows
//!
//! The crate uses `podwright-model` and `podwright-ports`. The engine, the node and the adapters use the crate.

pub mod admission;
pub mod config;
pub mod containers;
pub mod housekeeping;
pub mod objects;
pub mod pod_manager;
pub mod pod_worker;
pub mod probes;
pub mod resize;
pub mod status;

// The modules name the values and the ports by these short paths.
#[cfg(test)]
use podwright_fixtures as testing;
use podwright_model::{ids, names, pod, quantity, text, texts, time};
use podwright_ports as ports;
