//! What the clients of an API server share.
//!
//! ```
//! use podwright_kube_api::KubeError;
//!
//! let refused = kube::Error::Service("connection refused".into());
//! assert_eq!(KubeError::from(refused).to_string(), "connection refused");
//! ```
//!
//! # Parts
//!
//! - [`KubeError`]: an error of a client, as people read it.
//! - [`resource_api`]: the objects of `resource.k8s.io` in the version that the API server serves.
//!
//! # Arrows
//!
//! The crate uses `podwright-model`. The adapters of the API server and the publisher of slices use the crate.

mod error;
pub mod resource_api;

pub use error::KubeError;
