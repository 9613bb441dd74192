//! The deletions that the adapters request from an API server.

use std::sync::Arc;

use http::{Request, Response};
use k8s_openapi::api::coordination::v1::Lease;
use kube::Client;
use kube::client::Body;
use parking_lot::Mutex;
use podwright_fixtures::api_pods::pod;
use podwright_kube::{KubeNodeApi, KubePodApi};
use podwright_ports::{NodeApi, PodApi};
use serde_json::{Value, json};

/// The requests with their bodies.
type Sent = Arc<Mutex<Vec<(String, Value)>>>;

/// A client of a server that answers each request with a success.
fn client() -> (Client, Sent) {
    let sent = Sent::default();
    let kept = sent.clone();
    let server = tower::service_fn(move |request: Request<Body>| {
        let kept = kept.clone();
        async move {
            let (parts, body) = request.into_parts();
            let body: Value = serde_json::from_slice(&body.collect_bytes().await.unwrap()).unwrap();
            kept.lock().push((format!("{} {}", parts.method, parts.uri.path()), body));
            let answer = json!({"kind": "Status", "apiVersion": "v1", "status": "Success"});
            Ok::<_, std::io::Error>(Response::new(Body::from(answer.to_string().into_bytes())))
        }
    });
    (Client::new(server, "default"), sent)
}

// KF13
#[tokio::test]
async fn deletion_of_a_pod_has_its_uid_and_no_grace_period() {
    let (client, sent) = client();
    KubePodApi::new(client).delete(&pod("web").uid("the-uid").build()).await.unwrap();
    let sent = std::mem::take(&mut *sent.lock());
    let [(request, body)] = &sent[..] else { panic!("{sent:?}") };
    assert_eq!(request, "DELETE /api/v1/namespaces/test/pods/web");
    assert_eq!(body["preconditions"], json!({"uid": "the-uid"}));
    assert_eq!(body["gracePeriodSeconds"], 0);
}

// Another agent may have renewed it.
#[tokio::test]
async fn deletion_of_a_lease_has_its_resource_version() {
    let (client, sent) = client();
    let lease: Lease = serde_json::from_value(json!({"metadata": {"name": "n1", "resourceVersion": "7"}})).unwrap();
    KubeNodeApi::new(client, "n1").delete_lease(&lease).await.unwrap();
    let sent = std::mem::take(&mut *sent.lock());
    let [(request, body)] = &sent[..] else { panic!("{sent:?}") };
    assert_eq!(request, "DELETE /apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/n1");
    assert_eq!(body["preconditions"], json!({"resourceVersion": "7"}));
}
