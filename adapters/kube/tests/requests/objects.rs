//! The tokens and trust bundles of pods, from an API server that may not answer. In paused time.

use std::sync::Arc;
use std::time::Duration;

use http::{Request, Response};
use kube::Client;
use kube::client::Body;
use parking_lot::Mutex;
use podwright_fixtures::api_pods::pod;
use podwright_kube::KubeObjects;
use podwright_model::pod::PodObject;
use podwright_model::time::Time;
use podwright_ports::{ApiObjects, Clock, ObjectError, ServiceAccounts, TokenNeed, TokioClock, TrustBundleNeed};
use serde_json::{Value, json};
use tokio::time::{Instant, advance, sleep};

const MINUTE: Duration = Duration::from_secs(60);

/// An API server that issues tokens for an hour, and has at most one trust bundle.
#[derive(Default)]
struct Server {
    /// Whether the server answers no request.
    is_away: bool,
    issued: u32,
    bundle: Option<String>,
}

impl Server {
    /// The answer to a request; `None` if there is none.
    fn answer(&mut self, path: &str, now: Time) -> Option<(u16, Value)> {
        if self.is_away {
            return None;
        }
        if path.ends_with("/serviceaccounts/default/token") {
            self.issued += 1;
            let (token, expires) = (format!("token-{}", self.issued), (now + 60 * MINUTE).to_timestamp().to_string());
            let status = json!({"token": token, "expirationTimestamp": expires});
            return Some((
                201,
                json!({"metadata": {}, "spec": {"audiences": [], "expirationSeconds": 3600}, "status": status}),
            ));
        }
        if path.ends_with("/namespaces/default/serviceaccounts/builder") {
            let meta = json!({"name": "builder", "uid": "u-1", "annotations": {"registry.example/role": "pull"}});
            return Some((200, json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": meta})));
        }
        if path.ends_with("/serviceaccounts/absent") {
            let absent = json!({"status": "Failure", "reason": "NotFound", "code": 404, "message": "not found"});
            return Some((404, absent));
        }
        if path.ends_with("/clustertrustbundles/roots") {
            return Some(match &self.bundle {
                Some(pem) => (200, json!({"metadata": {"name": "roots"}, "spec": {"trustBundle": pem}})),
                None => (404, json!({"status": "Failure", "reason": "NotFound", "code": 404, "message": "not found"})),
            });
        }
        None
    }
}

/// A pod with its server.
struct Rig {
    server: Arc<Mutex<Server>>,
    objects: KubeObjects,
    web: Arc<PodObject>,
}

impl Rig {
    fn new() -> Self {
        let clock = TokioClock::starting_at(Time::from_secs(1_800_000_000));
        let server = Arc::new(Mutex::new(Server::default()));
        let asked = server.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let answer = asked.lock().answer(request.uri().path(), clock.now());
            async move {
                let Some((code, body)) = answer else { return std::future::pending().await };
                let answer = Response::builder().status(code).body(Body::from(body.to_string().into_bytes()));
                Ok::<_, std::io::Error>(answer.unwrap())
            }
        });
        let objects = KubeObjects::new(Client::new(service, "default"), Arc::new(clock));
        Rig { server, objects, web: pod("web").build() }
    }

    async fn token(&self) -> Result<String, ObjectError> {
        let need = TokenNeed { audience: String::new(), expiration_seconds: 3600 };
        let token = self.objects.token(&self.web, &need).await?;
        Ok(String::from_utf8(token.expose().to_vec()).unwrap())
    }

    async fn bundle(&self) -> Result<String, ObjectError> {
        let need = TrustBundleNeed::Name("roots".to_owned());
        self.objects.trust_bundle(&self.web, &need).await
    }

    /// Waits until the objects of the pod have changed.
    async fn changed(&self) {
        assert_eq!(self.objects.changed().await, [self.web.uid().clone()]);
    }
}

#[tokio::test(start_paused = true)]
async fn pod_keeps_its_token_and_waits_for_no_renewal() {
    let rig = Rig::new();
    assert_eq!(rig.token().await.unwrap(), "token-1");
    rig.server.lock().is_away = true;
    advance(50 * MINUTE).await;
    let begin = Instant::now();
    for _ in 0..3 {
        assert_eq!(rig.token().await.unwrap(), "token-1");
    }
    assert_eq!(begin.elapsed(), Duration::ZERO, "the API server does not answer");
    // The request fails after 30 s, and is sent again by a read after the pause.
    sleep(MINUTE).await;
    rig.server.lock().is_away = false;
    assert_eq!(rig.token().await.unwrap(), "token-1");
    rig.changed().await;
    assert_eq!(rig.token().await.unwrap(), "token-2");
    assert_eq!(rig.server.lock().issued, 2);
}

#[tokio::test(start_paused = true)]
async fn expired_token_is_not_used_and_delays_no_sync() {
    let rig = Rig::new();
    assert_eq!(rig.token().await.unwrap(), "token-1");
    rig.server.lock().is_away = true;
    advance(50 * MINUTE).await;
    assert_eq!(rig.token().await.unwrap(), "token-1");
    sleep(11 * MINUTE).await;
    let begin = Instant::now();
    let error = rig.token().await.unwrap_err();
    assert!(matches!(error, ObjectError::Unavailable { .. }), "{error:?}");
    assert_eq!(begin.elapsed(), Duration::ZERO);
    sleep(MINUTE).await;
    rig.server.lock().is_away = false;
    rig.token().await.unwrap_err();
    rig.changed().await;
    assert_eq!(rig.token().await.unwrap(), "token-2");
}

#[tokio::test(start_paused = true)]
async fn pods_of_a_trust_bundle_are_notified_of_its_changes() {
    let pem = |text: &str| format!("-----BEGIN CERTIFICATE-----\n{text}\n-----END CERTIFICATE-----\n");
    let rig = Rig::new();
    assert!(rig.bundle().await.unwrap_err().is_missing());
    for text in ["a", "b"] {
        rig.server.lock().bundle = Some(pem(text));
        if text == "b" {
            assert_eq!(rig.bundle().await.unwrap(), pem("a"));
            rig.changed().await;
        }
        assert_eq!(rig.bundle().await.unwrap(), pem(text));
        advance(2 * MINUTE).await;
    }
    rig.server.lock().is_away = true;
    let begin = Instant::now();
    assert_eq!(rig.bundle().await.unwrap(), pem("b"));
    assert_eq!(begin.elapsed(), Duration::ZERO, "the API server does not answer");
    sleep(MINUTE).await;
    *rig.server.lock() = Server::default();
    assert_eq!(rig.bundle().await.unwrap(), pem("b"));
    rig.changed().await;
    assert!(rig.bundle().await.unwrap_err().is_missing(), "the bundle was removed");
}

#[tokio::test(start_paused = true)]
async fn service_account_of_a_pull_has_its_annotations_and_a_token_of_the_pod() {
    let rig = Rig::new();
    let account = rig.objects.service_account("default", "builder").await.unwrap();
    assert_eq!(account.uid, "u-1");
    assert_eq!(account.annotations["registry.example/role"], "pull");
    assert!(rig.objects.service_account("default", "absent").await.unwrap_err().is_missing());

    for _ in 0..2 {
        let token = rig.objects.account_token(&rig.web, "registry.example").await.unwrap();
        assert_eq!(token.expose(), b"token-1", "the token is kept");
    }
    assert_eq!(rig.token().await.unwrap(), "token-2", "another audience has another token");
    rig.server.lock().is_away = true;
    let error = rig.objects.service_account("default", "builder").await.unwrap_err();
    assert!(matches!(error, ObjectError::Unavailable { .. }), "{error}");
}
