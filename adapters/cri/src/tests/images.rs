//! Tests of pulls with logins, access to pulled images, and the image store.

use std::collections::HashMap;
use std::fs;
use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use podwright_model::pod::PodObject;
use podwright_ports::{
    ContainerRuntime, CredentialProviders, ImageError, ImageNeed, ImageStore, ProvidedCredential, ProvidedCredentials,
    PullSecret, PullSecretError, PullSecretFormat, PullSecrets, RuntimeError, ServiceAccountIdentity,
};
use serde_json::{Value, json};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tonic::Status;

use super::super::config::fixtures::{pod, pod_with};
use super::super::{VerificationPolicy, v1};
use super::fake::FakeRuntime;
use super::{PATIENCE, deadline_exceeded, request, run_sandbox};

const IMAGE: &str = "r.example/a:1";

/// Image pull secrets by name. Each has the login of one user at `r.example`.
#[derive(Default)]
struct FakeSecrets(HashMap<&'static str, Value>);

impl PullSecrets for FakeSecrets {
    fn pull_secret<'a>(
        &'a self,
        namespace: &'a str,
        name: &'a str,
    ) -> BoxFuture<'a, Result<PullSecret, PullSecretError>> {
        assert_eq!(namespace, "shop");
        let payload = self.0.get(name).map(|payload| payload.to_string().into_bytes().into());
        let format = PullSecretFormat::DockerConfigJson;
        async move { Ok(PullSecret { uid: name.into(), format, payload: payload.ok_or(PullSecretError::NotFound)? }) }
            .boxed()
    }
}

fn logins(user: &str) -> Value {
    json!({"auths": {"r.example": {"username": user, "password": format!("s3cret-{user}")}}})
}

/// A fake runtime with these secrets, and with the login of the node's user.
async fn fake_with_secrets(secrets: &[&'static str], node: Option<&str>) -> (FakeRuntime, tempfile::TempDir) {
    let secrets = secrets.iter().map(|name| (*name, logins(name))).collect();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("config.json");
    let given = node.map(|user| fs::write(&file, logins(user).to_string()).unwrap());
    let fake = FakeRuntime::with(2, |config| {
        config.pull_secrets = Arc::new(FakeSecrets(secrets));
        config.registry_config = given.map(|()| file);
    });
    (fake.await, dir)
}

/// A plugin with one login at `r.example`. It is for the service account of the pod, or for the node if the pod has none. Another plugin
/// fails.
struct FakePlugins {
    user: &'static str,
    asked: Mutex<Vec<String>>,
}

impl FakePlugins {
    fn new(user: &'static str) -> Arc<Self> {
        Arc::new(FakePlugins { user, asked: Mutex::default() })
    }

    fn take_asked(&self) -> Vec<String> {
        std::mem::take(&mut self.asked.lock())
    }
}

impl CredentialProviders for FakePlugins {
    fn credentials<'a>(&'a self, pod: &'a PodObject, repository: &'a str) -> BoxFuture<'a, ProvidedCredentials> {
        self.asked.lock().push(repository.to_owned());
        let account = pod.spec().service_account_name.clone();
        let account = account.map(|name| ServiceAccountIdentity {
            namespace: "shop".to_owned(),
            uid: format!("uid-{name}"),
            name,
        });
        let credential = ProvidedCredential {
            scope: "r.example".to_owned(),
            username: self.user.to_owned(),
            password: format!("s3cret-{}", self.user).into_bytes().into(),
            account,
        };
        let problems = vec!["credential provider broken: it failed".to_owned()];
        async move { ProvidedCredentials { credentials: vec![credential], problems } }.boxed()
    }
}

fn pod_with_account(account: &str) -> Arc<PodObject> {
    pod(json!({"containers": [], "serviceAccountName": account}))
}

fn pod_with_secrets(secrets: &[&str]) -> Arc<PodObject> {
    let secrets: Vec<_> = secrets.iter().map(|name| json!({"name": name})).collect();
    pod(json!({"containers": [], "imagePullSecrets": secrets}))
}

async fn ensure(fake: &FakeRuntime, pod: &Arc<PodObject>, policy: Option<&str>) -> Result<String, ImageError> {
    fake.runtime.ensure_image(request(pod, IMAGE, policy), &CancellationToken::new()).await
}

#[tokio::test]
async fn logins_of_pod_secrets_are_tried_before_those_of_the_node() {
    let (fake, _dir) = fake_with_secrets(&["bad-a", "bad-b"], Some("good")).await;
    fake.add_image(IMAGE);
    let pod = pod_with_secrets(&["bad-b", "missing", "bad-a"]);
    assert_eq!(ensure(&fake, &pod, Some("Always")).await.as_deref(), Ok("sha256:1"));
    assert_eq!(fake.take_pull_users(), ["bad-b", "bad-a", "good"]);
    let events = fake.recorded_events.take();
    let reasons: Vec<_> = events.iter().map(|event| &*event.reason).collect();
    assert_eq!(reasons, ["FailedToRetrieveImagePullSecret", "Pulling", "Pulled"]);
    let incomplete =
        "Unable to retrieve some image pull secrets (missing); attempting to pull the image may not succeed.";
    assert_eq!(events[0].message, incomplete);
    assert_eq!(events[1].field_path.as_deref(), Some("spec.containers{a}"));
    let pulled = &events[2].message;
    assert!(pulled.starts_with("Successfully pulled image \"r.example/a:1\" in "), "{pulled}");
    assert!(pulled.ends_with(" including waiting). Image size: 5 bytes."), "{pulled}");

    fake.add_image("q.example/a:1");
    let never = CancellationToken::new();
    fake.runtime.ensure_image(request(&pod, "q.example/a:1", Some("Always")), &never).await.unwrap();
    assert_eq!(fake.take_pull_users(), [""], "another registry gets no login");
}

#[tokio::test]
async fn errors_of_refused_logins_contain_no_password() {
    let (fake, dir) = fake_with_secrets(&["bad-a"], Some("bad-b")).await;
    let error = ensure(&fake, &pod_with_secrets(&["bad-a"]), None).await.unwrap_err().to_string();
    assert!(error.contains("bad-a: wrong password [redacted], bad-b: wrong password [redacted]"), "{error}");

    // If the file becomes invalid, its last valid logins stay, and an event after a failed pull names the file.
    fake.recorded_events.take();
    fs::write(dir.path().join("config.json"), "{").unwrap();
    let error = ensure(&fake, &pod_with_secrets(&[]), None).await.unwrap_err().to_string();
    assert!(error.contains("bad-b: wrong password") && !error.contains("s3cret"), "{error}");
    let events = fake.recorded_events.take();
    let problem = events.iter().find(|event| event.reason == "RegistryConfigProblem").unwrap();
    assert!(problem.message.contains("config.json: line 1") && !problem.message.contains("s3cret"), "{problem:?}");
}

#[tokio::test]
async fn logins_of_plugins_are_tried_last_and_their_problems_are_events() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("config.json");
    fs::write(&file, logins("bad-b").to_string()).unwrap();
    for (user, pulls) in [("good", true), ("bad-c", false)] {
        let plugins = FakePlugins::new(user);
        let fake = FakeRuntime::with(1, |config| {
            config.pull_secrets = Arc::new(FakeSecrets([("bad-a", logins("bad-a"))].into()));
            config.registry_config = Some(file.clone());
            config.credential_providers = plugins.clone();
        })
        .await;
        fake.add_image(IMAGE);
        let found = ensure(&fake, &pod_with_secrets(&["bad-a"]), Some("Always")).await;
        assert_eq!((fake.take_pull_users(), found.is_ok()), (vec!["bad-a".into(), "bad-b".into(), user.into()], pulls));
        assert_eq!(plugins.take_asked(), ["r.example/a"]);
        let events = fake.recorded_events.take();
        let problem = events.iter().find(|event| event.reason == "CredentialProviderProblem");
        match found {
            // A plugin that failed was not needed.
            Ok(_) => assert!(problem.is_none(), "{problem:?}"),
            Err(error) => {
                assert!(!error.to_string().contains("s3cret"), "{error}");
                assert_eq!(problem.unwrap().message, "credential provider broken: it failed");
            }
        }
    }
}

#[tokio::test]
async fn an_image_pulled_for_a_service_account_is_pulled_again_for_others() {
    let plugins = FakePlugins::new("a");
    let fake = FakeRuntime::with(1, |config| config.credential_providers = plugins.clone()).await;
    fake.add_image(IMAGE);
    let nobody = pod_with_secrets(&[]);
    assert!(ensure(&fake, &nobody, Some("Never")).await.is_ok(), "the agent did not pull the image");
    assert_eq!(plugins.take_asked(), [""; 0]);

    let (builder, deployer) = (pod_with_account("builder"), pod_with_account("deployer"));
    assert!(ensure(&fake, &builder, Some("Always")).await.is_ok());
    assert!(ensure(&fake, &builder, Some("Never")).await.is_ok());
    for other in [&deployer, &nobody] {
        assert_eq!(ensure(&fake, other, Some("Never")).await, Err(ImageError::NeverPull(IMAGE.into())));
    }
    assert!(ensure(&fake, &deployer, None).await.is_ok());
    assert!(ensure(&fake, &deployer, Some("Never")).await.is_ok());
    assert_eq!(fake.take_pull_users(), ["a", "a"], "the registry let the other account pull");
}

#[tokio::test]
async fn a_policy_verifies_images_that_the_agent_did_not_pull() {
    let fake = FakeRuntime::with(1, |config| config.verification = VerificationPolicy::Always).await;
    fake.add_image(IMAGE);
    let pod = pod_with_secrets(&[]);
    assert_eq!(ensure(&fake, &pod, Some("Never")).await, Err(ImageError::NeverPull(IMAGE.into())));
    assert!(ensure(&fake, &pod, None).await.is_ok());
    assert!(ensure(&fake, &pod, Some("Never")).await.is_ok(), "the pull needed no login");
    assert_eq!(fake.pull_count(), 1);
}

#[tokio::test]
async fn a_pull_request_describes_the_pod() {
    let fake = FakeRuntime::start(1).await;
    fake.add_image(IMAGE);
    let pod = pod_with(json!({"annotations": {"snapshots": "fast"}}), json!({"containers": []}));
    ensure(&fake, &pod, Some("Always")).await.unwrap();
    assert_eq!(fake.last_pull_pod(), r#"shop/web {"snapshots": "fast"}"#);
}

#[tokio::test]
async fn pods_with_the_same_logins_share_a_pull() {
    let (fake, _dir) = fake_with_secrets(&["a", "b"], None).await;
    let (a, b) = (pod_with_secrets(&["a"]), pod_with_secrets(&["b"]));
    let pulls = async { tokio::join!(ensure(&fake, &a, None), ensure(&fake, &b, None), ensure(&fake, &a, None)) };
    let act = async {
        fake.wait_for_pulls(2).await;
        fake.add_image(IMAGE);
    };
    let both = async { tokio::join!(pulls, act) };
    let ((first, second, third), ()) = timeout(PATIENCE, both).await.unwrap();
    assert!(first.is_ok() && second.is_ok() && third.is_ok());
    let mut names = fake.take_pull_users();
    names.sort();
    assert_eq!(names, ["a", "b"]);
}

#[tokio::test]
async fn an_image_pulled_with_a_secret_is_pulled_again_for_other_pods() {
    let (fake, _dir) = fake_with_secrets(&["a", "b"], None).await;
    let (a, nobody) = (pod_with_secrets(&["a"]), pod_with_secrets(&[]));
    let (pull, ()) = tokio::join!(ensure(&fake, &a, None), async {
        fake.wait_for_pulls(1).await;
        fake.add_image(IMAGE);
    });
    pull.unwrap();
    fake.recorded_events.take();
    assert!(ensure(&fake, &a, Some("Never")).await.is_ok());
    assert_eq!(fake.recorded_events.reasons(), ["Pulled"]);
    for others in [&nobody, &pod_with_secrets(&["b"])] {
        let refused = ensure(&fake, others, Some("Never")).await;
        assert_eq!(
            refused,
            Err(ImageError::NeverPull(IMAGE.into())),
            "the error does not reveal that the image is present"
        );
    }
    // A pod that has pulled the image may use it. This pull needed no login, so every pod may.
    assert!(ensure(&fake, &nobody, None).await.is_ok());
    assert_eq!(fake.take_pull_users(), ["a", ""]);
    assert!(ensure(&fake, &pod_with_secrets(&["b"]), Some("Never")).await.is_ok());
    assert_eq!(fake.pull_count(), 2);
}

#[tokio::test]
async fn every_pod_may_use_an_image_that_the_agent_did_not_pull() {
    let (fake, _dir) = fake_with_secrets(&[], None).await;
    fake.add_image(IMAGE);
    assert!(ensure(&fake, &pod_with_secrets(&[]), None).await.is_ok());
    assert_eq!((fake.pull_count(), fake.recorded_events.reasons()), (0, vec!["Pulled".to_owned()]));
    fake.fail_image_status();
    let hidden = ensure(&fake, &pod_with_secrets(&[]), None).await;
    assert_eq!(hidden, Err(ImageError::inspect("rpc error: code = Unknown desc = out of order")));
}

#[tokio::test]
async fn images_in_use_reserved_or_being_pulled_are_not_unused() {
    let (fake, _dir) = fake_with_secrets(&[], None).await;
    let image =
        |id: &str, name: &str| v1::Image { id: id.into(), repo_tags: vec![name.into()], size: 7, ..Default::default() };
    fake.add_listed_image(image("sha256:1", IMAGE));
    fake.add_listed_image(image("sha256:2", "docker.io/library/pulling:latest"));
    fake.add_listed_image(image("sha256:3", "pause.example/pause:1"));
    fake.add_listed_image(v1::Image { pinned: true, ..image("sha256:4", "r.example/pinned:1") });
    fake.add_listed_image(image("sha256:5", "r.example/spare:1"));
    let needs = || async {
        let images = fake.runtime.images().await.unwrap();
        images.into_iter().map(|image| image.need).collect::<Vec<_>>()
    };
    use ImageNeed::{Pinned, Unused, Used};
    assert_eq!(needs().await, [Unused, Unused, Unused, Pinned, Unused]);

    // The first image is reserved for a container, the second is being pulled, and the third is the image of a sandbox.
    fake.add_image(IMAGE);
    ensure(&fake, &pod_with_secrets(&[]), None).await.unwrap();
    run_sandbox(&fake).await.unwrap();
    let (pod, cancel) = (pod_with_secrets(&[]), CancellationToken::new());
    let pull = fake.runtime.ensure_image(request(&pod, "pulling", None), &cancel);
    let list = async {
        fake.wait_for_pulls(1).await;
        let needs = needs().await;
        cancel.cancel();
        needs
    };
    let (_, listed) = tokio::join!(pull, list);
    assert_eq!(listed, [Used, Used, Used, Pinned, Unused]);

    fake.runtime.remove_image(&"sha256:5".into()).await.unwrap();
    let promised = fake.runtime.remove_image(&"sha256:1".into()).await;
    assert!(
        matches!(promised, Err(RuntimeError::Failed(why)) if why.to_string().contains("reserved for a new container"))
    );
    assert_eq!(fake.removed(), ["sha256:5"]);
    let disk = fake.runtime.disk().await.unwrap();
    assert!(disk.available > 0 && disk.available <= disk.capacity);
}

#[tokio::test]
async fn a_sandbox_without_status_does_not_keep_other_images_in_use() {
    let (fake, _dir) = fake_with_secrets(&[], None).await;
    let image = |id: &str, name: &str| v1::Image { id: id.into(), repo_tags: vec![name.into()], ..Default::default() };
    fake.add_listed_image(image("sha256:1", "pause.example/pause:1"));
    fake.add_listed_image(image("sha256:2", "r.example/spare:1"));
    let broken = run_sandbox(&fake).await.unwrap();
    let needs = async || {
        let images = fake.runtime.images().await;
        images.map(|images| images.into_iter().map(|image| image.need).collect::<Vec<_>>())
    };
    fake.fail_sandbox_status(Some((&broken, Status::unknown("it has no task"))));
    for _ in 0..2 {
        let unknown = needs().await;
        assert_eq!(
            unknown,
            Err(RuntimeError::Status { code: "Unknown", message: "it has no task".into() }),
            "any image may be in use"
        );
    }
    // Another sandbox reports the image.
    run_sandbox(&fake).await.unwrap();
    for _ in 0..2 {
        assert_eq!(needs().await, Ok(vec![ImageNeed::Used, ImageNeed::Unused]));
    }
    fake.fail_sandbox_status(Some((&broken, deadline_exceeded())));
    assert_eq!(needs().await, Ok(vec![ImageNeed::Used, ImageNeed::Unused]), "one timeout is ignored");
    fake.fail_sandbox_status(None);
    assert_eq!(
        needs().await,
        Ok(vec![ImageNeed::Used, ImageNeed::Unused]),
        "the status call is retried until it succeeds"
    );
}

#[tokio::test]
async fn an_image_of_another_agents_container_is_in_use() {
    let fake = FakeRuntime::start(1).await;
    fake.add_listed_image(v1::Image { id: "sha256:theirs".into(), ..Default::default() });
    let needs = async || fake.runtime.images().await.unwrap().into_iter().map(|image| image.need).collect::<Vec<_>>();
    assert_eq!(needs().await, [ImageNeed::Unused]);
    fake.add_container_of_another_agent("sha256:theirs");
    assert_eq!(needs().await, [ImageNeed::Used]);
    assert!(fake.runtime.list_pods().await.unwrap().is_empty());
}
