//! The API server: the node itself, the pods that the server binds to it, the objects that these pods refer to, and the writes of
//! their statuses, of mirror pods and of events.
//!
//! All requests use one [`Client`](kube::Client). It authenticates with the credentials of the kubeconfig, and reads them again when
//! they change on disk.

mod call;
mod client;
mod events;
mod listing;
mod node_api;
mod objects;
mod pod_api;
mod pods;
mod reviews;

pub use client::{ConnectError, connect};
pub use events::KubeEvents;
pub use node_api::KubeNodeApi;
pub use objects::KubeObjects;
pub use pod_api::KubePodApi;
pub use pods::PodSource;
pub use reviews::KubeReviews;
