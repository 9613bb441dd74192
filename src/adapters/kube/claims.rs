//! Reads ResourceClaims.

use std::sync::Arc;

use futures_util::FutureExt;
use k8s_openapi::api::resource::v1::ResourceClaim;
use kube::{Api, Client};
use podwright_actors::ids::ClaimName;
use podwright_actors::ports::{ApiFuture, ClaimApi};

use super::call::limited;

/// The [`ClaimApi`] of an API server (`resource.k8s.io/v1`, Kubernetes 1.34 and later).
#[derive(Clone)]
pub struct KubeClaimApi {
    client: Client,
}

impl KubeClaimApi {
    /// A [`ClaimApi`] that makes its calls with `client`.
    pub fn new(client: Client) -> Self {
        KubeClaimApi { client }
    }
}

impl ClaimApi for KubeClaimApi {
    fn claim<'a>(&'a self, name: &'a ClaimName) -> ApiFuture<'a, Arc<ResourceClaim>> {
        let claims: Api<ResourceClaim> = Api::namespaced(self.client.clone(), name.namespace());
        async move { limited(claims.get(name.name())).await.map(Arc::new) }.boxed()
    }
}
