//! Pulls with logins, who may use what they bring, and what may go.

use std::collections::HashMap;
use std::fs;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use podwright_actors::pod::PodObject;
use podwright_actors::ports::{
    ContainerRuntime, ImageError, ImageNeed, ImageStore, PullSecret, PullSecretError, PullSecretFormat, PullSecrets,
    RuntimeError,
};
use serde_json::{Value, json};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tonic::Status;

use super::super::config::fixtures::{pod, pod_with};
use super::super::v1;
use super::fake::Fake;
use super::{late, run};

const IMAGE: &str = "r.example/a:1";

/// Secrets by name, each with the logins of one user at `r.example`.
#[derive(Default)]
struct Secrets(HashMap<&'static str, Value>);

impl PullSecrets for Secrets {
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

/// A runtime where these secrets are known.
async fn with(secrets: &[&'static str], node: Option<&str>) -> (Fake, tempfile::TempDir) {
    let secrets = secrets.iter().map(|name| (*name, logins(name))).collect();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("config.json");
    let given = node.map(|user| fs::write(&file, logins(user).to_string()).unwrap());
    let fake = Fake::with(2, |config| {
        config.pull_secrets = Arc::new(Secrets(secrets));
        config.registry_config = given.map(|()| file);
    });
    (fake.await, dir)
}

fn naming(secrets: &[&str]) -> Arc<PodObject> {
    let secrets: Vec<_> = secrets.iter().map(|name| json!({"name": name})).collect();
    pod(json!({"containers": [], "imagePullSecrets": secrets}))
}

async fn ensure(fake: &Fake, pod: &Arc<PodObject>, policy: Option<&str>) -> Result<String, ImageError> {
    fake.runtime.ensure_image(pod, IMAGE, policy, &CancellationToken::new()).await
}

#[tokio::test]
async fn the_logins_of_a_pod_are_tried_and_then_those_of_the_node() {
    let (fake, _dir) = with(&["bad-a", "bad-b"], Some("good")).await;
    fake.pulled(IMAGE);
    let pod = naming(&["bad-b", "missing", "bad-a"]);
    assert_eq!(ensure(&fake, &pod, Some("Always")).await.as_deref(), Ok("sha256:1"));
    assert_eq!(fake.pulled_as(), ["bad-b", "bad-a", "good"]);
    let told = fake.told.take();
    let reasons: Vec<_> = told.iter().map(|event| &*event.reason).collect();
    assert_eq!(reasons, ["FailedToRetrieveImagePullSecret", "Pulling", "Pulled"]);
    assert!(told[0].message.contains("\"missing\": not found"), "{}", told[0].message);
    let pulled = &told[2].message;
    assert!(pulled.starts_with("Successfully pulled image \"r.example/a:1\" in "), "{pulled}");
    assert!(pulled.ends_with(" including waiting). Image size: 5 bytes."), "{pulled}");

    fake.pulled("q.example/a:1");
    let never = CancellationToken::new();
    fake.runtime.ensure_image(&pod, "q.example/a:1", Some("Always"), &never).await.unwrap();
    assert_eq!(fake.pulled_as(), [""], "another registry is told nothing");
}

#[tokio::test]
async fn a_login_that_is_refused_is_told_without_its_password() {
    let (fake, dir) = with(&["bad-a"], Some("bad-b")).await;
    let error = ensure(&fake, &naming(&["bad-a"]), None).await.unwrap_err().to_string();
    assert!(error.contains("bad-a: wrong password [redacted]; bad-b: wrong password [redacted]"), "{error}");

    // A file that is bad keeps what was good, and whoever is refused learns of it.
    fs::write(dir.path().join("config.json"), "{").unwrap();
    let error = ensure(&fake, &naming(&[]), None).await.unwrap_err().to_string();
    assert!(error.contains("bad-b: wrong password") && error.contains("config.json: line 1"), "{error}");
    assert!(!error.contains("s3cret"), "{error}");
}

#[tokio::test]
async fn a_pull_tells_for_whom_it_is() {
    let fake = Fake::start(1).await;
    fake.pulled(IMAGE);
    let pod = pod_with(json!({"annotations": {"snapshots": "fast"}}), json!({"containers": []}));
    ensure(&fake, &pod, Some("Always")).await.unwrap();
    assert_eq!(fake.pulled_for(), r#"shop/web {"snapshots": "fast"}"#);
}

#[tokio::test]
async fn pulls_are_shared_by_those_who_show_the_same_logins() {
    let (fake, _dir) = with(&["a", "b"], None).await;
    let (a, b) = (naming(&["a"]), naming(&["b"]));
    let pulls = async { tokio::join!(ensure(&fake, &a, None), ensure(&fake, &b, None), ensure(&fake, &a, None)) };
    let act = async {
        fake.pulls(2).await;
        fake.pulled(IMAGE);
    };
    let both = async { tokio::join!(pulls, act) };
    let ((first, second, third), ()) = timeout(Duration::from_secs(10), both).await.unwrap();
    assert!(first.is_ok() && second.is_ok() && third.is_ok());
    let mut names = fake.pulled_as();
    names.sort();
    assert_eq!(names, ["a", "b"]);
}

#[tokio::test]
async fn what_was_pulled_with_a_secret_is_for_those_who_show_it() {
    let (fake, _dir) = with(&["a", "b"], None).await;
    let (a, nobody) = (naming(&["a"]), naming(&[]));
    let (pull, ()) = tokio::join!(ensure(&fake, &a, None), async {
        fake.pulls(1).await;
        fake.pulled(IMAGE);
    });
    pull.unwrap();
    fake.told.take();
    assert!(ensure(&fake, &a, Some("Never")).await.is_ok());
    assert_eq!(fake.told.reasons(), ["Pulled"]);
    for others in [&nobody, &naming(&["b"])] {
        let refused = ensure(&fake, others, Some("Never")).await;
        assert_eq!(refused, Err(ImageError::NeverPull(IMAGE.into())), "it is not even said to be there");
    }
    // Who can pull it has it too from then on; here nobody needs to log in.
    assert!(ensure(&fake, &nobody, None).await.is_ok());
    assert_eq!(fake.pulled_as(), ["a", ""]);
    assert!(ensure(&fake, &naming(&["b"]), Some("Never")).await.is_ok());
    assert_eq!(fake.pull_count(), 2);
}

#[tokio::test]
async fn what_was_there_before_is_for_everybody() {
    let (fake, _dir) = with(&[], None).await;
    fake.pulled(IMAGE);
    assert!(ensure(&fake, &naming(&[]), None).await.is_ok());
    assert_eq!((fake.pull_count(), fake.told.reasons()), (0, vec!["Pulled".to_owned()]));
    fake.hides_images();
    let hidden = ensure(&fake, &naming(&[]), None).await;
    assert_eq!(hidden, Err(ImageError::Inspect("out of order".into())));
}

#[tokio::test]
async fn images_that_somebody_needs_are_not_spare() {
    let (fake, _dir) = with(&[], None).await;
    let image =
        |id: &str, name: &str| v1::Image { id: id.into(), repo_tags: vec![name.into()], size: 7, ..Default::default() };
    fake.lists(image("sha256:1", IMAGE));
    fake.lists(image("sha256:2", "docker.io/library/pulling:latest"));
    fake.lists(image("sha256:3", "pause.example/pause:1"));
    fake.lists(v1::Image { pinned: true, ..image("sha256:4", "r.example/pinned:1") });
    fake.lists(image("sha256:5", "r.example/spare:1"));
    let needs = || async {
        let images = fake.runtime.images().await.unwrap();
        images.into_iter().map(|image| image.need).collect::<Vec<_>>()
    };
    use ImageNeed::{Pinned, Unused, Used};
    assert_eq!(needs().await, [Unused, Unused, Unused, Pinned, Unused]);

    // A start was told of one, another one is being pulled, and a sandbox runs a third.
    fake.pulled(IMAGE);
    ensure(&fake, &naming(&[]), None).await.unwrap();
    run(&fake).await.unwrap();
    let (pod, cancel) = (naming(&[]), CancellationToken::new());
    let pull = fake.runtime.ensure_image(&pod, "pulling", None, &cancel);
    let look = async {
        fake.pulls(1).await;
        let needs = needs().await;
        cancel.cancel();
        needs
    };
    let (_, seen) = tokio::join!(pull, look);
    assert_eq!(seen, [Used, Used, Used, Pinned, Unused]);

    fake.runtime.remove_image(&"sha256:5".into()).await.unwrap();
    let promised = fake.runtime.remove_image(&"sha256:1".into()).await;
    assert!(matches!(promised, Err(RuntimeError::Failed(why)) if why.contains("about to be used")));
    assert_eq!(fake.removed(), ["sha256:5"]);
    let disk = fake.runtime.disk().await.unwrap();
    assert!(disk.available > 0 && disk.available <= disk.capacity);
}

#[tokio::test]
async fn a_sandbox_that_cannot_be_described_keeps_no_other_image() {
    let (fake, _dir) = with(&[], None).await;
    let image = |id: &str, name: &str| v1::Image { id: id.into(), repo_tags: vec![name.into()], ..Default::default() };
    fake.lists(image("sha256:1", "pause.example/pause:1"));
    fake.lists(image("sha256:2", "r.example/spare:1"));
    let broken = run(&fake).await.unwrap();
    let needs = async || {
        let images = fake.runtime.images().await;
        images.map(|images| images.into_iter().map(|image| image.need).collect::<Vec<_>>())
    };
    fake.breaks(Some((&broken, Status::unknown("it has no task"))));
    for _ in 0..2 {
        let unknown = needs().await;
        assert_eq!(unknown, Err(RuntimeError::Failed("it has no task".into())), "which image it has nobody tells");
    }
    // Another one tells it.
    run(&fake).await.unwrap();
    for _ in 0..2 {
        assert_eq!(needs().await, Ok(vec![ImageNeed::Used, ImageNeed::Unused]));
    }
    fake.breaks(Some((&broken, late())));
    assert_eq!(needs().await, Ok(vec![ImageNeed::Used, ImageNeed::Unused]), "one may hang");
    fake.breaks(None);
    assert_eq!(needs().await, Ok(vec![ImageNeed::Used, ImageNeed::Unused]), "it is asked until it answers");
}

#[tokio::test]
async fn an_image_that_another_agent_uses_stays_though_its_containers_are_not_ours() {
    let fake = Fake::start(1).await;
    fake.lists(v1::Image { id: "sha256:theirs".into(), ..Default::default() });
    let needs = async || fake.runtime.images().await.unwrap().into_iter().map(|image| image.need).collect::<Vec<_>>();
    assert_eq!(needs().await, [ImageNeed::Unused]);
    fake.runs_for_another("sha256:theirs");
    assert_eq!(needs().await, [ImageNeed::Used]);
    assert!(fake.runtime.list_pods().await.unwrap().is_empty());
}
