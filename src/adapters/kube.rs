//! The API server: the pods that it binds to this node, and the writes of their statuses.
//!
//! Everything goes through one [`Client`](kube::Client), which authenticates as the kubeconfig says and reads credentials again
//! when they change on disk.

mod client;
mod pod_api;
mod pods;

pub use client::{ConnectError, connect};
pub use pod_api::KubePodApi;
pub use pods::PodSource;
