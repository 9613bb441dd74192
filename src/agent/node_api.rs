//! The node API: what the API server and metrics collectors request from a node, over HTTPS.
//!
//! ```text
//!  client ──TLS──> http ──> access: who sends it, what may the client do ──> routes ─┬─> container_logs, pods, health, metrics
//!                               │                                                    └─> find the container ──> streams
//!                               └── TokenReview, SubjectAccessReview ──> API server
//! ```
//!
//! Paths, parameters and texts are those of a kubelet.

mod access;
mod attributes;
mod client_authority;
mod container_logs;
mod endpoint;
mod expiring;
mod find;
mod health;
mod log_query;
mod log_route;
mod pod_list;
mod routes;
pub mod spdy;
mod stats;
mod stream_routes;
mod streams;
mod user;

pub(crate) use access::{ALLOWED_TTL, DENIED_TTL, Reviews, TOKEN_TTL};
pub(crate) use client_authority::ClientAuthorityError;
pub(crate) use container_logs::{LogPermit, LogReaders, LogRequest, NoRun, OpenLog, OpenLogError};
pub(crate) use endpoint::{NodeApiClients, NodeApiContent, NodeApiEndpoint};
pub(crate) use pod_list::pod_list;
pub(crate) use streams::IDLE_LIMIT;
pub use streams::{Stream, Streams};
