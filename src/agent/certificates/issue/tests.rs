use futures_util::FutureExt;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::time::Instant;

use super::*;

/// An API server that answers each request with the same status.
struct FakeApi {
    status: Value,
    /// The names of the requests that were created.
    created: Mutex<Vec<String>>,
}

impl FakeApi {
    fn answering(status: Value) -> Self {
        FakeApi { status, created: Mutex::default() }
    }

    fn created(&self) -> Vec<String> {
        self.created.lock().clone()
    }
}

impl SigningApi for FakeApi {
    fn create<'a>(&'a self, request: &'a CertificateSigningRequest) -> ApiFuture<'a, ()> {
        let name = request.metadata.name.clone().unwrap();
        let exists = self.created.lock().contains(&name);
        self.created.lock().push(name);
        let answer = if exists { Err(ApiError::conflict("exists")) } else { Ok(()) };
        async move { answer }.boxed()
    }

    fn decided<'a>(&'a self, name: &'a str) -> ApiFuture<'a, CertificateSigningRequest> {
        let mut request = CertificateSigningRequest::default();
        request.metadata.name = Some(name.to_owned());
        request.status = serde_json::from_value(self.status.clone()).unwrap();
        async move { if is_decided(&request) { Ok(request) } else { std::future::pending().await } }.boxed()
    }
}

fn directory() -> (TempDir, Directory) {
    let root = tempfile::tempdir().unwrap();
    let directory = Directory::of(&root.path().join("pki"), "client");
    (root, directory)
}

fn condition(kind: &str) -> Value {
    json!({"conditions": [{"type": kind, "status": "True", "reason": "R", "message": "no"}]})
}

#[tokio::test(start_paused = true)]
async fn request_that_nobody_approves_is_kept_and_continued() {
    let (_root, directory) = directory();
    let api = FakeApi::answering(Value::Null);
    let template = Template::client("n1");
    let start = Instant::now();
    for _ in 0..2 {
        let error = issue(&api, &template, &directory, |_| {}).await.unwrap_err();
        assert!(error.to_string().contains("kubectl certificate approve node-csr-"), "{error}");
    }
    assert_eq!(start.elapsed().as_secs(), 2 * 15 * 60);
    let created = api.created();
    assert_eq!(created[0], created[1], "the second attempt uses the request of the first one");
}

#[tokio::test(start_paused = true)]
async fn refused_request_is_followed_by_one_with_a_new_key() {
    for kind in ["Denied", "Failed"] {
        let (_root, directory) = directory();
        let api = FakeApi::answering(condition(kind));
        let template = Template::client("n1");
        for _ in 0..2 {
            let error = issue(&api, &template, &directory, |_| {}).await.unwrap_err();
            assert!(error.to_string().contains("(R: no)"), "{error}");
        }
        let created = api.created();
        assert_ne!(created[0], created[1], "{kind}");
    }
}

#[tokio::test(start_paused = true)]
async fn certificate_of_another_key_is_refused() {
    let (_root, directory) = directory();
    let pem = super::super::self_signed::create("n1", &["n1".to_owned()], jiff::Timestamp::now()).unwrap();
    let mut status = condition("Approved");
    status["certificate"] = json!(k8s_openapi::ByteString(pem.into_bytes()));
    let api = FakeApi::answering(status);
    let error = issue(&api, &Template::client("n1"), &directory, |_| {}).await.unwrap_err();
    assert!(matches!(error, IssueError::Unusable { source: PairError::Mismatch(_), .. }), "{error:?}");
    assert!(directory.current().is_none());
}
