//! Reads claims from the API server.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::resource::v1::ResourceClaim;
use podwright_kube_api::KubeError;
use podwright_kube_api::resource_api::Claims;
use podwright_model::ids::ClaimName;
use podwright_ports::{ApiError, ApiFuture, ClaimApi};
use tokio::time::timeout;

/// The timeout of one read. The node gives up a call after 45 s, and must get the cause before then.
const READ_TIMEOUT: Duration = Duration::from_secs(30);

/// Reads claims from the API server.
pub(super) struct KubeClaims(pub(super) Claims);

impl ClaimApi for KubeClaims {
    fn claim<'a>(&'a self, name: &'a ClaimName) -> ApiFuture<'a, Arc<ResourceClaim>> {
        Box::pin(async move {
            let read = timeout(READ_TIMEOUT, self.0.get(name.namespace(), name.name())).await;
            match read.map(|answer| answer.map_err(KubeError::from)) {
                Ok(Ok(claim)) => Ok(Arc::new(claim)),
                Ok(Err(error)) if error.code() == Some(404) => Err(ApiError::NotFound),
                Ok(Err(error)) => Err(ApiError::unavailable(error, None)),
                Err(elapsed) => Err(ApiError::unavailable(elapsed, None)),
            }
        })
    }
}
