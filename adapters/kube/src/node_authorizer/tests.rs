use std::cell::Cell;
use std::future::{pending, ready};
use std::io;
use std::sync::Arc;

use http::{Request, Response};
use kube::Client;
use kube::client::Body;
use podwright_model::pod::PodObject;
use podwright_model::text::error_chain;
use podwright_ports::{ApiObjects, TokenNeed, TokioClock};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::*;
use crate::KubeObjects;
use crate::pods::object;

const UNRELATED: &str = "configmaps \"settings\" is forbidden: User \"system:node:n1\" cannot list resource \"configmaps\" in \
                         API group \"\" in the namespace \"default\": no relationship found between node 'n1' and this object";

fn refusal(code: u16, message: &str) -> Value {
    json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": "Forbidden",
        "message": message})
}

/// The object at a path, or the list of the only object.
fn stored(path: &str) -> Value {
    let list = |kind: &str, name: &str| {
        json!({"apiVersion": "v1", "kind": kind, "metadata": {"resourceVersion": "1"},
            "items": [{"metadata": {"name": name, "namespace": "default", "uid": "u", "resourceVersion": "1"}}]})
    };
    match path.rsplit('/').next().unwrap() {
        "configmaps" => list("ConfigMapList", "settings"),
        "secrets" => list("SecretList", "login"),
        "token" => json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "metadata": {},
            "spec": {"audiences": [], "expirationSeconds": 3600},
            "status": {"token": "abc", "expirationTimestamp": "2100-01-01T00:00:00Z"}}),
        "gpu" => json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
            "metadata": {"name": "gpu", "namespace": "default"}, "spec": {}}),
        _ => panic!("{path}"),
    }
}

/// A client of a server that refuses all requests with `message` until `delay` has passed. Watches, and the list of services, get no
/// answer. The client needs no connection, so that time can be paused.
fn client(delay: Duration, message: &'static str) -> Client {
    let started = Instant::now();
    let service = tower::service_fn(move |request: Request<Body>| {
        let path = request.uri().path().to_owned();
        let is_watch = request.uri().query().is_some_and(|query| query.contains("watch=true"));
        async move {
            if is_watch || path.ends_with("/services") {
                pending::<()>().await;
            }
            let is_early = started.elapsed() < delay;
            let (code, body) = if is_early { (403, refusal(403, message)) } else { (200, stored(&path)) };
            let body = Body::from(body.to_string().into_bytes());
            Ok::<_, io::Error>(Response::builder().status(code).body(body).unwrap())
        }
    });
    Client::new(service, "default")
}

/// A pod with variables from a config map and a secret.
fn pod() -> Arc<PodObject> {
    let variables = json!([{"configMapRef": {"name": "settings"}}, {"secretRef": {"name": "login"}}]);
    let pod = json!({"metadata": {"name": "web", "namespace": "default", "uid": "u"},
        "spec": {"containers": [{"name": "main", "image": "i", "envFrom": variables}]}});
    object(serde_json::from_value(pod).unwrap()).unwrap()
}

#[tokio::test(start_paused = true)]
async fn only_an_unknown_relation_is_repeated_and_for_little_more_than_a_second() {
    let cases = [
        (403, UNRELATED, 0, true, 1, 0),
        (403, UNRELATED, 2, true, 3, 350),
        (403, UNRELATED, 4, true, 5, 1050),
        (403, UNRELATED, 9, false, 5, 1050),
        (403, "can only read namespaced object of this type", 1, false, 1, 0),
        (404, UNRELATED, 1, false, 1, 0),
    ];
    for (code, message, refusals, succeeds, expected, millis) in cases {
        let (started, calls) = (Instant::now(), Cell::new(0));
        let call = || {
            calls.set(calls.get() + 1);
            let status = serde_json::from_value(refusal(code, message)).unwrap();
            ready(if calls.get() > refusals { Ok(()) } else { Err(kube::Error::Api(Box::new(status))) })
        };
        let answer = until_related(call).await;
        let took = started.elapsed().as_millis();
        assert_eq!((answer.is_ok(), calls.get()), (succeeds, expected), "{code} {message} {refusals}");
        assert!((millis..millis + 10).contains(&took), "{code} {message} {refusals}: {took} ms");
    }
}

#[tokio::test(start_paused = true)]
async fn objects_of_a_new_pod_are_read_soon_after_the_authorizer_knows_it() {
    let client = client(Duration::from_millis(300), UNRELATED);
    let (objects, pod) = (KubeObjects::new(client, Arc::new(TokioClock::new())), pod());
    let need = TokenNeed { audience: String::new(), expiration_seconds: 3600 };
    let started = Instant::now();
    objects.register(&pod);
    let (config_map, secret, token) = tokio::join!(
        objects.config_map("default", "settings"),
        objects.secret("default", "login"),
        objects.token(&pod, &need)
    );
    let took = started.elapsed().as_millis();
    assert_eq!(config_map.unwrap().metadata.name.as_deref(), Some("settings"));
    assert_eq!(secret.unwrap().metadata.name.as_deref(), Some("login"));
    assert_eq!(token.unwrap().expose(), b"abc");
    assert!((350..400).contains(&took), "{took} ms");
}

#[tokio::test(start_paused = true)]
async fn object_that_stays_refused_is_named_with_the_sentence_of_the_server() {
    let objects = KubeObjects::new(client(Duration::MAX, UNRELATED), Arc::new(TokioClock::new()));
    objects.register(&pod());
    let error = objects.config_map("default", "settings").await.unwrap_err();
    assert_eq!(error_chain(&error).to_string(), format!("the node may not read configmap \"settings\": {UNRELATED}"));
}

#[tokio::test(start_paused = true)]
async fn claim_of_a_new_pod_is_read_soon_after_the_authorizer_knows_it() {
    use podwright_model::ids::ClaimName;
    use podwright_ports::ClaimApi;

    use crate::KubeClaimApi;

    let name = ClaimName::new("default", "gpu");
    let started = Instant::now();
    let claim = KubeClaimApi::new(client(Duration::from_millis(300), UNRELATED)).claim(&name).await.unwrap();
    let took = started.elapsed().as_millis();
    assert_eq!(claim.metadata.name.as_deref(), Some("gpu"));
    assert!((350..400).contains(&took), "{took} ms");

    let refused = KubeClaimApi::new(client(Duration::MAX, UNRELATED)).claim(&name).await.unwrap_err();
    assert_eq!(error_chain(&refused).to_string(), format!("the API server refused the call: {UNRELATED}"));
}
