//! The ports that a node shares with a DRA driver or with the controllers: traits for what they need from outside, with their values and
//! errors.
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
//! - [`LeaseApi`]: reads and writes the lease by which the replicas of a controller elect their leader.
//! - [`ApiError`]: why an API server did not perform a call.
//! - [`Clock`]: reads the time. [`TokioClock`], [`SystemClock`] and [`WallClock`] implement it.
//! - [`ErrorSource`]: the error of a port's implementation.
//!
//! # Arrows
//!
//! The crate uses `podwright-model`. `podwright-actors`, `podwright-controllers` and the DRA driver use the crate. The ports that only a
//! node needs are in `podwright-actors`, and those that only the controllers need are in `podwright-controllers`.

mod api_error;
mod claims;
mod clock;
mod error_source;
mod lease_api;

pub use api_error::{ApiError, ApiFuture};
pub use claims::{ClaimApi, ClaimRef, PreparedDevice};
pub use clock::{Clock, SystemClock, TokioClock, WallClock};
pub use error_source::ErrorSource;
pub use lease_api::LeaseApi;
