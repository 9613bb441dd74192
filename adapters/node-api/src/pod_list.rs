//! The answer of `/pods`: all desired and known pods, as a `v1.PodList`.

use axum::Json;
use axum::response::{IntoResponse, Response};
use k8s_openapi::api::core::v1::{PodSpec, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Serialize;

use super::served_node::ServedPod;

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct PodList<'a> {
    kind: &'static str,
    api_version: &'static str,
    metadata: EmptyObject,
    items: Vec<PodItem<'a>>,
}

#[derive(Serialize)]
struct EmptyObject {}

/// A pod with its newest status instead of the one in its object. Borrowed, so that nothing is copied.
#[derive(Serialize)]
struct PodItem<'a> {
    metadata: &'a ObjectMeta,
    spec: &'a PodSpec,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<&'a PodStatus>,
}

/// All pods with their statuses.
pub fn pod_list(pods: &[ServedPod]) -> Response {
    let items = pods
        .iter()
        .filter_map(|pod| {
            let object = pod.object.as_ref()?;
            Some(PodItem { metadata: object.metadata(), spec: object.spec(), status: pod.status.as_deref() })
        })
        .collect();
    Json(PodList { kind: "PodList", api_version: "v1", metadata: EmptyObject {}, items }).into_response()
}
