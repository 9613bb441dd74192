//! A pod lifecycle engine for node agents: one actor for each pod UID drives setup, termination and cleanup over hooks
//! that the embedder brings.
//!
//! ```
//! use std::sync::Arc;
//! use podwright::{
//!     Engine, HookContext, PodObject, PodSyncer, RunningPod, SyncError, SyncOutcome, SyncPod, TerminatingPod, Update,
//! };
//!
//! struct MyNode;
//!
//! impl PodSyncer for MyNode {
//!     async fn sync_pod(&self, _: &HookContext, work: &SyncPod) -> Result<SyncOutcome, SyncError> {
//!         println!("{} should run", work.pod.full_name());
//!         Ok(SyncOutcome::Continue { check_at: None })
//!     }
//!     async fn sync_terminating_pod(&self, _: &HookContext, work: &TerminatingPod) -> Result<(), SyncError> {
//!         println!("{} must stop within {}", work.pod.full_name(), work.grace);
//!         Ok(())
//!     }
//!     async fn sync_terminating_runtime_pod(&self, _: &HookContext, _: &RunningPod) -> Result<(), SyncError> {
//!         Ok(())
//!     }
//!     async fn sync_terminated_pod(&self, _: &HookContext, _: &Arc<PodObject>) -> Result<(), SyncError> {
//!         Ok(())
//!     }
//! }
//!
//! let engine = Engine::start(MyNode)?;
//! let pod = serde_json::from_str(
//!     r#"{"metadata":{"name":"web","namespace":"default","uid":"1"},"spec":{"containers":[{"name":"a"}]}}"#,
//! )?;
//! let pod = PodObject::new(pod)?;
//! engine.update_pod(Update::create(pod.clone()));
//! assert!(engine.could_have_running_containers(pod.uid()));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Parts
//!
//! - [`actors`]: who decides. The engine, housekeeping, probes, statuses; pure cores, thin actors, and the ports that they
//!   need. [`actors::node::Node`] puts all of it together over a
//!   [`ContainerRuntime`](actors::ports::ContainerRuntime).
//! - [`metrics`]: what is counted, by the names that node dashboards know.
//! - [`adapters`]: the ports on a real machine, each behind a cargo feature: `process` (pods as process groups), `cri`
//!   (pods as containers of containerd or CRI-O), `simulated` (pods in memory), `agent` (manifests from files and URLs,
//!   network calls of probes, and the binary `podwright`). Without features this crate is the engine and its ports.
//!
//! # What always holds
//!
//! - Arrows point one way: `metrics` knows no pod, `actors` opens no socket and no file, adapters know the ports and not
//!   each other's insides.
//! - [`Engine::update_pod`] and every question to the engine may be called from any thread and never wait. There is no
//!   queue before the door and no lock that all pods share.
//! - The hooks of one UID never overlap. A burst of updates costs one call and keeps the newest; a stop is never lost, and
//!   a grace period only gets shorter. A hook that fails or panics is called again after a backoff.
//! - A pod's life goes one way: waiting, sync, terminating, terminated, finished. Whether its containers may be started
//!   is known by its record alone.
//! - A static pod does not start while another UID of its full name is not finished.
//! - What a pod waits for is a value that can be asked for at any moment ([`Engine::snapshot`]).
//!
//! # What is deliberately absent
//!
//! - No call to an API server on the way of a pod's life: statuses are kept, and written by whoever wants to.
//! - No opinion that is stored twice: nobody but a pod's record remembers where the pod stands, and an actor that is lost is
//!   rebuilt from it.
//! - No global state: metrics, clocks and settings are handed in, so that two engines may live in one process.
//! - No clock in what decides: time comes in with each event, and the same steps can be run again.

pub mod adapters;
/// What the binary `podwright` is made of, here so that its request handling can be searched for faults. No part of the API.
#[cfg(feature = "agent")]
#[doc(hidden)]
pub mod agent;

pub use podwright_actors as actors;
pub use podwright_metrics as metrics;

pub use podwright_actors::engine::{Engine, EngineConfig, EngineParts, PodSnapshot, Threads};
pub use podwright_actors::ids::{FullName, PodUid};
pub use podwright_actors::node::{Node, NodeConfig, NodePorts, StartNodeError};
pub use podwright_actors::pod::{Phase, PodObject};
pub use podwright_actors::pod_worker::{KillOptions, Lifecycle, Update, Wait, WaitFor};
pub use podwright_actors::ports::{
    HookContext, PodSyncer, RunningPod, SyncError, SyncKind, SyncOutcome, SyncPod, TerminatingPod,
};
pub use podwright_actors::time::{Grace, Time};

/// Compiles the example of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
