//! The lease by which the replicas of a controller elect their leader.

use k8s_openapi::api::coordination::v1::Lease;

use crate::ApiFuture;

/// Reads and writes one lease. An implementation knows its namespace and its name. Each call has a timeout of its own. If a future is
/// dropped, the server may still perform the call.
pub trait LeaseApi: Send + Sync + 'static {
    /// Reads the lease from the server, and not from a cache.
    ///
    /// # Errors
    /// [`ApiError`](crate::ApiError).
    fn read(&self) -> ApiFuture<'_, Lease>;

    /// Creates the lease. Returns it as the server stored it.
    ///
    /// # Errors
    /// [`ApiError`](crate::ApiError). [`Conflict`](crate::ApiError::Conflict) if the lease exists.
    fn create<'a>(&'a self, lease: &'a Lease) -> ApiFuture<'a, Lease>;

    /// Replaces the lease that has the resource version of `lease`. Returns it as the server stored it.
    ///
    /// # Errors
    /// [`ApiError`](crate::ApiError). [`Conflict`](crate::ApiError::Conflict) if the lease has another resource version.
    fn replace<'a>(&'a self, lease: &'a Lease) -> ApiFuture<'a, Lease>;
}
