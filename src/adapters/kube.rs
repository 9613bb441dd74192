//! The API server: the pods that it binds to this node, and the writes of their statuses.
//!
//! All requests use one [`Client`](kube::Client). It authenticates with the credentials of the kubeconfig, and reads them again when
//! they change on disk.

mod client;
mod pod_api;
mod pods;

pub use client::{ConnectError, connect};
pub use pod_api::KubePodApi;
pub use pods::PodSource;
