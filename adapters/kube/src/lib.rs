//! The API server: the node itself, the pods that the server binds to it, the objects that these pods refer to, and the writes of
//! their statuses, of mirror pods and of events.
//!
//! All requests use one [`Client`](kube::Client). Its credentials are those of the kubeconfig. When they change on disk, a
//! [`Connection`] replaces them.
//!
//! ```no_run
//! use std::path::Path;
//! use std::sync::Arc;
//!
//! use podwright_ports::TokioClock;
//! use podwright_kube::{KubePodApi, PodSource, connect};
//!
//! # async fn example() -> Result<(), podwright_kube::ConnectError> {
//! let client = connect(Path::new("/etc/kubernetes/kubelet.conf")).await?;
//! // The source sends the pods of the node, and the port writes their statuses.
//! let pods = PodSource::new(client.clone(), "node-1", Arc::new(TokioClock::new()));
//! let statuses = KubePodApi::new(client);
//! # let _ = (pods, statuses);
//! # Ok(())
//! # }
//! ```
//!
//! # Parts
//!
//! - [`connect`], [`Credentials`] and [`Connection`]: a client from a kubeconfig, whose credentials can be replaced; [`client_over`]: a
//!   client without a connection, for simulations.
//! - [`PodSource`]: sends the pods of the node.
//! - [`KubePodApi`], [`KubeNodeApi`], [`KubeObjects`], [`KubeClaimApi`] and [`KubeEvents`]: the ports of a node.
//! - [`watch_in_pages`], [`limited_to`] and [`EventLanes`]: the watches, the calls and the events of others, such as the controllers.
//! - [`KubeReviews`] and [`KubeSigningRequests`]: who may call the node, and the certificates of the node.
//!
//! # Arrows
//!
//! The crate uses the ports, `podwright-core`, `podwright-host` for the check of files, `podwright-kube-api`, `podwright-metrics` and
//! `podwright-parts`. It knows no node but a [`SourceInbox`](podwright_ports::SourceInbox) for its pods. The agent, the simulation and
//! `podwright-kube-controllers` use it.

mod call;
mod claims;
mod client;
mod connection;
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

pub use call::limited_to;
pub use claims::KubeClaimApi;
pub use client::{ConnectError, client_over, connect};
pub use connection::Connection;
pub use credentials::Credentials;
pub use events::{EventLanes, EventRate, KubeEvents};
pub use listing::watch_in_pages;
pub use node_api::KubeNodeApi;
pub use objects::KubeObjects;
pub use pod_api::KubePodApi;
pub use pods::PodSource;
pub use reviews::KubeReviews;
pub use signing_requests::KubeSigningRequests;
