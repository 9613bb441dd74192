//! The real binary with real manifests and real processes, queried over its admin endpoints.

mod access;
mod bad_input;
#[cfg(all(feature = "kube", feature = "simulated"))]
mod cluster;
#[cfg(all(feature = "kube", feature = "simulated"))]
mod cluster_certificates;
#[cfg(all(feature = "kube", feature = "simulated"))]
mod cluster_events;
#[cfg(all(feature = "kube", feature = "simulated"))]
mod cluster_mirrors;
#[cfg(all(feature = "kube", feature = "simulated"))]
mod cluster_node;
#[cfg(all(feature = "kube", feature = "process"))]
mod cluster_node_api;
#[cfg(feature = "kube")]
pub(crate) mod cluster_streams;
#[cfg(feature = "kube")]
mod cluster_volumes;
#[cfg(all(feature = "kube", feature = "simulated"))]
mod cluster_watch;
mod commands;
mod final_statuses;
pub(crate) mod harness;
mod life;
pub(crate) mod logs;
mod machine_shutdown;
mod page;
mod recording;
mod requests;
mod restart;
#[cfg(feature = "simulated")]
mod simulated;
mod terminal;
mod until_finished;
