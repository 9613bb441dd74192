//! Reads ResourceClaims.

use std::sync::Arc;

use futures_util::FutureExt;
use k8s_openapi::api::resource::v1::ResourceClaim;
use kube::Client;
use podwright_kube_api::resource_api::Claims;
use podwright_model::ids::ClaimName;
use podwright_ports::{ApiFuture, ClaimApi};

use super::call::limited;
use super::node_authorizer::until_related;

/// The [`ClaimApi`] of an API server with `resource.k8s.io` in version `v1`, `v1beta2` or `v1beta1`. It finds the version with the first
/// call, and keeps it.
#[derive(Clone)]
pub struct KubeClaimApi {
    claims: Claims,
}

impl KubeClaimApi {
    /// A [`ClaimApi`] that makes its calls with `client`.
    pub fn new(client: Client) -> Self {
        KubeClaimApi { claims: Claims::new(client) }
    }
}

impl ClaimApi for KubeClaimApi {
    fn claim<'a>(&'a self, name: &'a ClaimName) -> ApiFuture<'a, Arc<ResourceClaim>> {
        async move {
            let read = || self.claims.get(name.namespace(), name.name());
            limited(until_related(read)).await.map(Arc::new)
        }
        .boxed()
    }
}
