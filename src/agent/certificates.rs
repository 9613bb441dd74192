//! The certificates of the node: the one that it shows to the clients of the node API, and the one that it shows to the API server.
//!
//! ```text
//!  serving ──┬─ self-signed: made in the directory of certificates
//!            ├─ files: --tls-cert-file, --tls-private-key-file
//!            └─ signed: --rotate-server-certificates ──┐
//!                                                      ├──> issue: a CertificateSigningRequest ──> API server
//!  client ───── --bootstrap-kubeconfig ────────────────┘
//! ```
//!
//! A certificate is replaced while the agent runs. New connections use the new certificate.

mod blocking;
mod client;
mod directory;
mod issue;
mod pair;
mod renewal;
mod request;
mod schedule;
mod self_signed;
mod serving;

pub(crate) use client::{ClientCredentials, ClientError, ClientSettings};
pub(crate) use directory::DIRECTORY;
pub(crate) use serving::{ServingError, ServingNode, ServingSource, serving};
