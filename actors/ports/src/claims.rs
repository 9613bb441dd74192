//! ResourceClaims: the objects in the API server, and what a driver prepares for them.

use std::sync::Arc;

use k8s_openapi::api::resource::v1::ResourceClaim;
use podwright_model::ids::{ClaimName, ClaimUid};

use crate::ApiFuture;

/// Reads ResourceClaims from the API server. A node may only read the claims of its own pods, each by its name.
pub trait ClaimApi: Send + Sync + 'static {
    /// Reads a claim from the API server, never from a cache.
    ///
    /// # Errors
    /// [`ApiError`](crate::ApiError).
    fn claim<'a>(&'a self, name: &'a ClaimName) -> ApiFuture<'a, Arc<ResourceClaim>>;
}

/// A claim in a call to a driver.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClaimRef {
    /// The namespace and name.
    pub name: ClaimName,
    /// The UID.
    pub uid: ClaimUid,
}

/// A device that a driver prepared for a claim.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct PreparedDevice {
    /// The pool of the device.
    pub pool: String,
    /// The name of the device in its pool.
    pub device: String,
    /// Distinguishes several allocations of one device.
    pub share_id: Option<String>,
    /// The requests of the claim that the device serves. Empty if it serves all of them.
    pub requests: Vec<String>,
    /// The names of CDI devices (`VENDOR/CLASS=NAME`).
    pub cdi_devices: Vec<String>,
}
