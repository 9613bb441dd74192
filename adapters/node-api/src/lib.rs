//! The node API: what the API server and metrics collectors request from a node, over HTTPS.
//!
//! ```text
//!  client ──TLS──> http ──> access: who sends it, what may the client do ──> routes ─┬─> container_logs, pods, health, metrics
//!                               │                                                    └─> find the container ──> streams
//!                               └── TokenReview, SubjectAccessReview ──> API server
//! ```
//!
//! Paths, parameters and texts are those of a kubelet.
//!
//! ```no_run
//! use std::path::Path;
//! use std::sync::Arc;
//!
//! use podwright_node_api::{NodeApiClients, NodeApiContent, NodeApiEndpoint, Reviews};
//! use rustls::server::ResolvesServerCert;
//! use tokio_util::sync::CancellationToken;
//!
//! # async fn example(
//! #     reviews: Arc<dyn Reviews>,
//! #     certificate: Arc<dyn ResolvesServerCert>,
//! #     content: NodeApiContent,
//! #     stop: CancellationToken,
//! # ) -> Result<(), Box<dyn std::error::Error>> {
//! let clients = NodeApiClients::new(reviews, Some(Path::new("/etc/kubernetes/pki/ca.crt")))?;
//! let endpoint = NodeApiEndpoint::bind(([0, 0, 0, 0], 10250).into()).await;
//! let threads = endpoint.start("node-1".to_owned(), clients, certificate, content, stop)?;
//! threads.ended().await;
//! # Ok(())
//! # }
//! ```
//!
//! # Parts
//!
//! - [`NodeApiEndpoint`]: the port, which serves [`NodeApiContent`] to [`NodeApiClients`] on [`NodeApiThreads`] of its own, with the
//!   versions and cipher suites of a [`TlsPolicy`].
//! - [`ServedNode`]: the queries of the node, which a user of the crate implements.
//! - [`Reviews`]: what the gatekeeper requests from the API server, which a user of the crate implements.
//! - [`Streams`]: commands, attached terminals and forwarded ports, over WebSocket and [`spdy`].
//! - [`Checkpoints`]: writes checkpoints of containers, which a user of the crate implements for a runtime that can.
//! - [`LogReaders`] and [`pod_list()`]: answers that the admin endpoints of an agent give too.
//!
//! # Arrows
//!
//! The crate uses `podwright-host` for logs, disks and usage, `podwright-http-server`, `podwright-metrics`, `podwright-core` and the
//! ports. It knows no node, no runtime and no client of an API server.

mod access;
mod attributes;
mod checkpoint;
mod client_authority;
mod container_logs;
mod endpoint;
mod expiring;
mod find;
mod health;
mod log_query;
mod log_route;
mod pod_list;
mod reviews;
mod routes;
mod served_node;
mod shares;
pub mod spdy;
mod stats;
mod stream_routes;
mod streams;
mod threads;
mod tls;
mod user;
mod web_pages;

pub use access::{ALLOWED_TTL, DENIED_TTL, Reviews, TOKEN_TTL};
pub use attributes::StreamVerb;
pub use checkpoint::Checkpoints;
pub use client_authority::ClientAuthorityError;
pub use container_logs::{LogPermit, LogReaders, LogRequest, NoRun, OpenLog, OpenLogError};
pub use endpoint::{NodeApiClients, NodeApiContent, NodeApiEndpoint};
pub use pod_list::pod_list;
pub use served_node::{ServedNode, ServedPod};
pub use shares::{FullShare, ShareLimits};
pub use streams::{IDLE_LIMIT, Stream, Streams};
pub use threads::NodeApiThreads;
pub use tls::{ParseTlsError, TlsCipherSuite, TlsPolicy, TlsVersion};
