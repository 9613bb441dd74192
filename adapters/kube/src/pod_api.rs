//! Writes pods to the API server.

use std::sync::Arc;

use futures_util::FutureExt;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use kube::{Api, Client};
use podwright_model::pod::PodObject;
use podwright_ports::{ApiError, ApiFuture, PodApi};
use serde_json::Value;

use super::call::limited;
use super::pods::object;

/// The [`PodApi`] of an API server.
#[derive(Clone)]
pub struct KubePodApi {
    client: Client,
}

impl KubePodApi {
    /// A [`PodApi`] that makes its calls with `client`.
    pub fn new(client: Client) -> Self {
        KubePodApi { client }
    }

    fn of(&self, namespace: &str) -> Api<Pod> {
        Api::namespaced(self.client.clone(), namespace)
    }
}

impl PodApi for KubePodApi {
    fn patch_status<'a>(&'a self, pod: &'a PodObject, status: Value) -> ApiFuture<'a, Arc<PodObject>> {
        async move {
            let (pods, name) = (self.of(pod.full_name().namespace()), pod.full_name().name());
            let (params, patch) = (PatchParams::default(), Patch::Strategic(status));
            let answer = limited(pods.patch_status(name, &params, &patch)).await?;
            object(answer).map_err(|invalid| ApiError::unavailable(invalid, None))
        }
        .boxed()
    }

    fn delete<'a>(&'a self, pod: &'a PodObject) -> ApiFuture<'a, ()> {
        async move {
            let preconditions = Preconditions { uid: Some(pod.uid().to_string()), ..Preconditions::default() };
            let params = DeleteParams::default().grace_period(0).preconditions(preconditions);
            limited(self.of(pod.full_name().namespace()).delete(pod.full_name().name(), &params)).await.map(drop)
        }
        .boxed()
    }

    fn create<'a>(&'a self, pod: &'a Pod) -> ApiFuture<'a, Arc<PodObject>> {
        async move {
            let namespace = pod.metadata.namespace.as_deref().unwrap_or("default");
            let answer = limited(self.of(namespace).create(&PostParams::default(), pod)).await?;
            object(answer).map_err(|invalid| ApiError::unavailable(invalid, None))
        }
        .boxed()
    }
}
