//! The API server: the pods that it binds to this node, the objects that these pods refer to, and the writes of their statuses.
//!
//! All requests use one [`Client`](kube::Client). It authenticates with the credentials of the kubeconfig, and reads them again when
//! they change on disk.

mod client;
mod objects;
mod pod_api;
mod pods;

pub use client::{ConnectError, connect};
pub use objects::KubeObjects;
pub use pod_api::KubePodApi;
pub use pods::PodSource;
