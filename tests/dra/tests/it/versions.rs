//! An API server of Kubernetes 1.32, which serves `resource.k8s.io` only in version `v1beta1`.

use std::sync::Arc;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::{Request, State};
use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use k8s_openapi::api::resource::v1::Device;
use podwright_dra::{DraPlugins, PluginsConfig, SlicesConfig};
use podwright_kube::KubeClaimApi;
use podwright_metrics::Metrics;
use podwright_model::ids::ClaimName;
use podwright_ports::{ApiError, ClaimApi};
use podwright_slices::{DriverResources, Owner, SliceEngine, SliceOptions};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

const DRIVER: &str = "gpu.acme.test";
const BETA: &str = "/apis/resource.k8s.io/v1beta1";

/// Reports each request of another path than the watch: its method, its path and its body.
type Requests = mpsc::UnboundedSender<(String, Value)>;

async fn answer(State(requests): State<Requests>, request: Request) -> Response {
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let is_watch = request.uri().query().is_some_and(|query| query.contains("watch=true"));
    let body = to_bytes(request.into_body(), usize::MAX).await.unwrap();
    let body: Value = serde_json::from_slice(&body).unwrap_or_default();
    if path == "/api/v1/nodes/n7" {
        return json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n7"}}).to_string().into_response();
    }
    let Some(beta) = path.strip_prefix(BETA) else {
        requests.send((format!("{method} {path}"), body)).unwrap();
        return (StatusCode::NOT_FOUND, "404 page not found\n").into_response();
    };
    if is_watch {
        return Body::from_stream(stream::pending::<Result<Vec<u8>, std::io::Error>>()).into_response();
    }
    requests.send((format!("{method} {path}"), body.clone())).unwrap();
    let api_version = "resource.k8s.io/v1beta1";
    let text = match (method, beta) {
        (Method::GET, "/namespaces/shop/resourceclaims/cam") => json!({
            "apiVersion": api_version, "kind": "ResourceClaim",
            "metadata": {"name": "cam", "namespace": "shop", "uid": "c-1"},
            "spec": {"devices": {"requests": [{"name": "r", "deviceClassName": "gpu"}]}},
            "status": {"allocation": {"devices": {"results": [
                {"request": "r", "driver": DRIVER, "pool": "n7", "device": "g0"}]}}},
        }),
        (Method::GET | Method::DELETE, "/resourceslices") => json!({
            "apiVersion": api_version, "kind": "ResourceSliceList", "metadata": {"resourceVersion": "1"}, "items": [],
        }),
        (Method::POST, "/resourceslices") => {
            let mut stored = body;
            stored["metadata"]["name"] = json!("a");
            stored["metadata"]["resourceVersion"] = json!("2");
            stored
        }
        _ => {
            let details = json!({"name": "gone", "group": "resource.k8s.io", "kind": "resourceclaims"});
            let status = json!({"apiVersion": "v1", "kind": "Status", "status": "Failure", "reason": "NotFound",
                "message": "not found", "details": details, "code": 404});
            return (StatusCode::NOT_FOUND, status.to_string()).into_response();
        }
    };
    text.to_string().into_response()
}

async fn old_server() -> (kube::Client, mpsc::UnboundedReceiver<(String, Value)>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (requests, received) = mpsc::unbounded_channel();
    tokio::spawn(axum::serve(listener, Router::new().fallback(answer).with_state(requests)).into_future());
    let config = kube::Config::new(format!("http://{address}").parse().unwrap());
    (kube::Client::try_from(config).unwrap(), received)
}

#[tokio::test]
async fn claims_are_read_in_the_version_that_the_server_serves() {
    let (client, mut requests) = old_server().await;
    let api: Arc<dyn ClaimApi> = Arc::new(KubeClaimApi::new(client));
    let (cam, gone) = (ClaimName::new("shop", "cam"), ClaimName::new("shop", "gone"));
    let claim = api.claim(&cam).await.unwrap();
    assert_eq!(claim.metadata.uid.as_deref(), Some("c-1"));
    let [request] = claim.spec.devices.as_ref().unwrap().requests.as_deref().unwrap() else { panic!("{claim:?}") };
    assert_eq!(request.exactly.as_ref().unwrap().device_class_name, "gpu");
    let status = claim.status.as_ref().unwrap();
    let results = status.allocation.as_ref().unwrap().devices.as_ref().unwrap().results.as_ref().unwrap();
    assert_eq!(results[0].device, "g0");
    assert!(matches!(api.claim(&gone).await, Err(ApiError::NotFound)));

    let of = |version: &str, name: &str| {
        format!("GET /apis/resource.k8s.io/{version}/namespaces/shop/resourceclaims/{name}")
    };
    for expected in [of("v1", "cam"), of("v1beta2", "cam"), of("v1beta1", "cam"), of("v1beta1", "gone")] {
        assert_eq!(requests.try_recv().unwrap().0, expected);
    }
    assert!(requests.try_recv().is_err());
}

#[tokio::test]
async fn slices_are_deleted_in_the_version_that_the_server_serves() {
    let (client, mut requests) = old_server().await;
    let (dir, stop) = (tempfile::tempdir().unwrap(), CancellationToken::new());
    let plugins = DraPlugins::start(PluginsConfig::new(dir.path()), &Metrics::new(), &stop).unwrap();
    plugins.manage_slices(SlicesConfig::new(client, "n7"));
    for version in ["v1", "v1beta2", "v1beta1"] {
        let deleted = format!("DELETE /apis/resource.k8s.io/{version}/resourceslices");
        assert_eq!(requests.recv().await.unwrap().0, deleted);
    }
    stop.cancel();
    plugins.stopped().await;
}

#[tokio::test]
async fn slices_are_published_in_the_version_that_the_server_serves() {
    let (client, mut requests) = old_server().await;
    let (report, mut errors) = mpsc::unbounded_channel();
    let options = SliceOptions::new(DRIVER, move |error| report.send(error).unwrap());
    let engine = SliceEngine::start(client, options.owner(Owner::node("n7", Some("n-uid".to_owned()))));
    let attributes = serde_json::from_value(json!({"model": {"string": "x"}})).unwrap();
    let device = Device { name: "g0".to_owned(), attributes: Some(attributes), ..Device::default() };
    engine.update(DriverResources::one_slice("n7", vec![device])).unwrap();
    for version in ["v1", "v1beta2", "v1beta1"] {
        let listed = format!("GET /apis/resource.k8s.io/{version}/resourceslices");
        assert_eq!(requests.recv().await.unwrap().0, listed);
    }
    let (created, body) = requests.recv().await.unwrap();
    assert_eq!(created, format!("POST {BETA}/resourceslices"));
    assert_eq!(body["apiVersion"], "resource.k8s.io/v1beta1");
    let attributes = json!({"attributes": {"model": {"string": "x"}}});
    assert_eq!(body["spec"]["devices"], json!([{"name": "g0", "basic": attributes}]));
    engine.stop().await;
    // The server stored what was offered, and an unknown version is no failure.
    assert!(errors.try_recv().is_err());
}
