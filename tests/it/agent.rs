//! The real binary with real manifests and real processes, queried over its admin endpoints.

mod access;
mod bad_input;
mod cluster;
mod cluster_certificates;
mod cluster_events;
mod cluster_mirrors;
mod cluster_node;
mod cluster_node_api;
mod cluster_root_pods;
pub(crate) mod cluster_streams;
mod cluster_volumes;
mod cluster_watch;
mod commands;
mod final_statuses;
pub(crate) mod harness;
mod kubelet;
mod life;
pub(crate) mod logs;
mod machine_shutdown;
mod page;
mod recording;
mod requests;
mod restart;
mod simulated;
mod terminal;
mod until_finished;
