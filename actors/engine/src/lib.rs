//! The engine: one record for each pod UID, updates and queries that do not wait, and the threads of the pod workers. It calls the hooks
//! of an embedder, and its recorder keeps what happened, so that a replay can run it again.
//!
//! ```
//! use std::sync::Arc;
//!
//! use podwright_core::pod_worker::Update;
//! use podwright_engine::Engine;
//! use podwright_model::pod::PodObject;
//! use podwright_model::time::Grace;
//! use podwright_ports::{HookContext, PodSyncer, RunningPod, SyncError, SyncOutcome, SyncPod, TerminatingPod};
//!
//! struct MyNode;
//!
//! impl PodSyncer for MyNode {
//!     async fn sync_pod(&self, _: &HookContext, _: &SyncPod) -> Result<SyncOutcome, SyncError> {
//!         Ok(SyncOutcome::Continue { check_at: None })
//!     }
//!     async fn sync_terminating_pod(&self, _: &HookContext, _: &TerminatingPod) -> Result<(), SyncError> {
//!         Ok(())
//!     }
//!     async fn sync_terminating_runtime_pod(&self, _: &HookContext, _: &RunningPod, _: Grace) -> Result<(), SyncError> {
//!         Ok(())
//!     }
//!     async fn sync_terminated_pod(&self, _: &HookContext, _: &Arc<PodObject>) -> Result<(), SyncError> {
//!         Ok(())
//!     }
//! }
//!
//! let engine = Engine::start(MyNode)?;
//! let pod = r#"{"metadata":{"name":"web","namespace":"default","uid":"1"},"spec":{"containers":[{"name":"a"}]}}"#;
//! let pod = PodObject::new(serde_json::from_str(pod)?)?;
//! engine.update_pod(Update::create(pod.clone()));
//! assert!(engine.could_have_running_containers(pod.uid()));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Parts
//!
//! - [`Engine`]: the records, and the workers that call the hooks.
//! - [`recorder`]: keeps the events of the workers in a bounded memory.
//! - [`replay`]: runs a recording through the cores again. `codec` reads and writes the values of a recording.
//!
//! # Arrows
//!
//! The crate uses `podwright-core`, `podwright-ports`, `podwright-model` and `podwright-metrics`. The node uses the crate.

mod codec;
mod engine;
pub mod recorder;
pub mod replay;
#[cfg(test)]
mod testing;

pub use engine::{
    Engine, EngineBuilder, EngineConfig, Hold, KillNow, KillPodError, PodSnapshot, RecordSummary, StartEngineError,
    Threads,
};

// The modules name the values, the ports and the cores by these short paths.
use podwright_core::{admission, containers, pod_worker, probes};
use podwright_model::{ids, pod, text, texts, time};
use podwright_ports as ports;
