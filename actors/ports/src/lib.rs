//! The ports that a node and a DRA driver share: traits for what both need from outside, with their values and errors.
//!
//! ```
//! use std::future::ready;
//! use std::sync::Arc;
//!
//! use k8s_openapi::api::resource::v1::ResourceClaim;
//! use podwright_model::ids::ClaimName;
//! use podwright_ports::{ApiError, ApiFuture, ClaimApi};
//!
//! /// An API server without claims.
//! struct NoClaims;
//!
//! impl ClaimApi for NoClaims {
//!     fn claim<'a>(&'a self, _: &'a ClaimName) -> ApiFuture<'a, Arc<ResourceClaim>> {
//!         Box::pin(ready(Err(ApiError::NotFound)))
//!     }
//! }
//! ```
//!
//! # Parts
//!
//! - [`ClaimApi`]: reads ResourceClaims, which [`ClaimRef`] and [`PreparedDevice`] name in the calls to a driver.
//! - [`ApiError`]: why an API server did not perform a call.
//! - [`ErrorSource`]: the error of a port's implementation.
//!
//! # Arrows
//!
//! The crate uses `podwright-model`. `podwright-actors` and the DRA driver use the crate. The ports that only a node needs are in
//! `podwright-actors`.

mod api_error;
mod claims;
mod error_source;

pub use api_error::{ApiError, ApiFuture};
pub use claims::{ClaimApi, ClaimRef, PreparedDevice};
pub use error_source::ErrorSource;
