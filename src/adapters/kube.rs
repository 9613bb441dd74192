//! The API server: the node itself, the pods that the server binds to it, the objects that these pods refer to, and the writes of
//! their statuses, of mirror pods and of events. Also the watches and the calls of the controllers.
//!
//! All requests use one [`Client`](kube::Client). Its credentials are those of the kubeconfig. When they change on disk, a
//! [`Connection`] replaces them.

mod call;
#[cfg(feature = "dra")]
mod claims;
pub(crate) mod client;
mod connection;
#[cfg(feature = "controllers")]
mod controllers;
mod credentials;
mod events;
mod listing;
mod node_api;
mod node_authorizer;
mod objects;
mod pod_api;
mod pods;
mod reviews;
mod signing_requests;
mod streaming_lists;

#[cfg(feature = "dra")]
pub use claims::KubeClaimApi;
pub use client::{ConnectError, connect};
pub use connection::Connection;
#[cfg(feature = "controllers")]
pub use controllers::{
    ClaimTerms, DeviceTaintTerms, KubeDeviceTaints, KubeLeases, KubeResourceClaims, ListError, PreviewedCluster,
    WatchProblems,
};
pub use credentials::Credentials;
pub use events::KubeEvents;
pub use node_api::KubeNodeApi;
pub use objects::KubeObjects;
pub use pod_api::KubePodApi;
pub use pods::PodSource;
pub use reviews::KubeReviews;
pub use signing_requests::KubeSigningRequests;
