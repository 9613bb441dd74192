//! The requests about pods to an API server.

use std::sync::Arc;

use http::{Request, Response};
use kube::Client;
use kube::client::Body;
use parking_lot::Mutex;
use podwright::adapters::kube::KubePodApi;
use podwright_actors::ports::PodApi;
use serde_json::{Value, json};

use crate::support::pods::pod;

// KF13
#[tokio::test]
async fn deletion_of_a_pod_has_its_uid_and_no_grace_period() {
    let sent = Arc::new(Mutex::new(Vec::new()));
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
    let api = KubePodApi::new(Client::new(server, "default"));
    api.delete(&pod("web").uid("the-uid").build()).await.unwrap();
    let sent = std::mem::take(&mut *sent.lock());
    let [(request, body)] = &sent[..] else { panic!("{sent:?}") };
    assert_eq!(request, "DELETE /api/v1/namespaces/test/pods/web");
    assert_eq!(body["preconditions"], json!({"uid": "the-uid"}));
    assert_eq!(body["gracePeriodSeconds"], 0);
}
