//! `/pods`: every pod that is wanted or still known, as a `v1.PodList`.

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use k8s_openapi::api::core::v1::{PodSpec, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Serialize;

use super::apart::Apart;
use crate::agent::view::View;

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct PodList<'a> {
    kind: &'static str,
    api_version: &'static str,
    metadata: Empty,
    items: Vec<Item<'a>>,
}

#[derive(Serialize)]
struct Empty {}

/// A pod with its newest status in place of the one that its object carries; nothing is copied.
#[derive(Serialize)]
struct Item<'a> {
    metadata: &'a ObjectMeta,
    spec: &'a PodSpec,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<&'a PodStatus>,
}

pub(super) async fn pods(State(view): State<View>, State(apart): State<Apart>) -> Response {
    apart.answer(view, list).await
}

fn list(view: &View) -> Response {
    let pods = view.pods();
    let items = pods
        .iter()
        .filter_map(|pod| {
            let object = pod.object.as_ref()?;
            Some(Item { metadata: object.metadata(), spec: object.spec(), status: pod.status.as_deref() })
        })
        .collect();
    Json(PodList { kind: "PodList", api_version: "v1", metadata: Empty {}, items }).into_response()
}
