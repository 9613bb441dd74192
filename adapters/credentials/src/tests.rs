//! Tests with real plugins: scripts of a shell.

use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use podwright_fixtures::api_pods::pod;
use podwright_metrics::{Format, Metrics};
use podwright_model::time::Time;
use podwright_ports::{Confidential, ObjectError, ObjectFuture, ObjectKind, ServiceAccountFacts};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::*;

const MINUTE: Duration = Duration::from_secs(60);

/// A clock that the test moves.
#[derive(Default)]
struct TestClock(AtomicU64);

impl TestClock {
    fn advance(&self, by: Duration) {
        self.0.fetch_add(u64::try_from(by.as_nanos()).unwrap(), Ordering::SeqCst);
    }
}

impl Clock for TestClock {
    fn now(&self) -> Time {
        Time::from_secs(1_800_000_000) + Duration::from_nanos(self.0.load(Ordering::SeqCst))
    }
}

/// The service account `builder`. Each pod has a token of its own.
struct Accounts {
    annotations: Mutex<BTreeMap<String, String>>,
}

impl ServiceAccounts for Accounts {
    fn service_account<'a>(&'a self, namespace: &'a str, name: &'a str) -> ObjectFuture<'a, ServiceAccountFacts> {
        assert_eq!(namespace, "test");
        async move {
            if name != "builder" {
                return Err(ObjectError::missing(ObjectKind::ServiceAccount, name));
            }
            Ok(ServiceAccountFacts { uid: "u-builder".into(), annotations: self.annotations.lock().clone() })
        }
        .boxed()
    }

    fn account_token<'a>(&'a self, pod: &'a PodObject, audience: &'a str) -> ObjectFuture<'a, Confidential> {
        let token = format!("token of {} for {audience}", pod.full_name().name());
        async move { Ok(Confidential::from(token.into_bytes())) }.boxed()
    }
}

/// Plugins in a directory. Each call of a plugin adds a line to the file `calls`: its name and its request.
struct Rig {
    dir: TempDir,
    clock: Arc<TestClock>,
    accounts: Arc<Accounts>,
    metrics: Metrics,
    providers: Vec<Value>,
}

impl Rig {
    fn new() -> Self {
        Rig {
            dir: tempfile::tempdir().unwrap(),
            clock: Arc::default(),
            accounts: Arc::new(Accounts { annotations: Mutex::default() }),
            metrics: Metrics::new(),
            providers: Vec::new(),
        }
    }

    /// Adds a plugin that runs a script, with more fields of its configuration. The plugin is a link to the shell: a file that was just
    /// written cannot be executed while another thread starts a process.
    fn plugin(&mut self, name: &str, script: &str, fields: Value) {
        symlink("/bin/sh", self.dir.path().join(name)).unwrap();
        let file = self.script(name, script);
        let mut provider = json!({
            "name": name, "matchImages": ["*.example"], "defaultCacheDuration": "1m", "args": [file],
            "apiVersion": "credentialprovider.kubelet.k8s.io/v1",
        });
        for (field, value) in fields.as_object().unwrap() {
            provider[field] = value.clone();
        }
        self.providers.push(provider);
    }

    /// Writes the script of a plugin.
    fn script(&self, name: &str, script: &str) -> PathBuf {
        let (file, calls) = (self.dir.path().join(format!("{name}.sh")), self.dir.path().join("calls"));
        let record = format!("request=$(cat)\nprintf '%s\\n' \"{name} $request\" >> {}", calls.display());
        fs::write(&file, format!("{record}\n{script}\n")).unwrap();
        file
    }

    async fn open(&self) -> Result<CredentialPlugins, OpenPluginsError> {
        let configuration = self.dir.path().join("config.json");
        let config = json!({
            "apiVersion": "kubelet.config.k8s.io/v1", "kind": "CredentialProviderConfig", "providers": self.providers,
        });
        put(&configuration, &config.to_string(), 0o644);
        CredentialPlugins::open(PluginsConfig {
            configuration,
            directory: self.dir.path().to_owned(),
            accounts: Some(self.accounts.clone()),
            clock: self.clock.clone(),
            metrics: self.metrics.image_credentials.clone(),
        })
        .await
    }

    /// The requests since the last call, with the names of the plugins.
    fn take_calls(&self) -> Vec<(String, Value)> {
        let calls = self.dir.path().join("calls");
        let text = fs::read_to_string(&calls).unwrap_or_default();
        let _ = fs::remove_file(&calls);
        let call = |line: &str| {
            let (name, request) = line.split_once(' ').unwrap();
            (name.to_owned(), serde_json::from_str(request).unwrap())
        };
        text.lines().map(call).collect()
    }

    fn callers(&self) -> Vec<String> {
        self.take_calls().into_iter().map(|(name, _)| name).collect()
    }
}

fn put(path: &Path, text: &str, mode: u32) {
    fs::write(path, text).unwrap();
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

/// A script that answers with one credential for a scope.
fn answering(scope: &str, user: &str, fields: Value) -> String {
    let mut answer = json!({
        "kind": "CredentialProviderResponse", "apiVersion": "credentialprovider.kubelet.k8s.io/v1",
        "cacheKeyType": "Registry", "auth": {scope: {"username": user, "password": format!("s3cret-{user}")}},
    });
    for (field, value) in fields.as_object().unwrap() {
        answer[field] = value.clone();
    }
    format!("cat <<'EOF'\n{answer}\nEOF")
}

fn users(found: &ProvidedCredentials) -> Vec<&str> {
    found.credentials.iter().map(|credential| credential.username.as_str()).collect()
}

fn token_attributes(cache_type: &str, requires: bool) -> Value {
    json!({"tokenAttributes": {
        "serviceAccountTokenAudience": "registry", "cacheType": cache_type, "requireServiceAccount": requires,
        "optionalServiceAccountAnnotationKeys": ["example.com/role"],
    }})
}

fn pod_of(name: &str, account: &str) -> Arc<PodObject> {
    pod(name).uid(&format!("uid-{name}")).spec("serviceAccountName", account).build()
}

#[tokio::test]
async fn plugins_are_called_for_their_images_and_answer_in_their_order() {
    let mut rig = Rig::new();
    rig.plugin("first", &answering("r.example", "a", json!({})), json!({}));
    rig.plugin(
        "second",
        &answering("*.example", "b", json!({})),
        json!({"matchImages": ["r.example/team", "q.example"]}),
    );
    let plugins = rig.open().await.unwrap();
    let pod = pod("web").build();
    let found = plugins.credentials(&pod, "r.example/team/app").await;
    assert_eq!((users(&found), found.problems.len()), (vec!["a", "b"], 0));
    let credential = &found.credentials[0];
    assert_eq!(
        (credential.scope.as_str(), credential.password.expose(), &credential.account),
        ("r.example", &b"s3cret-a"[..], &None)
    );
    assert!(!format!("{found:?}").contains("s3cret"));
    let mut calls = rig.take_calls();
    calls.sort_by(|a, b| a.0.cmp(&b.0));
    let request = json!({
        "kind": "CredentialProviderRequest", "apiVersion": "credentialprovider.kubelet.k8s.io/v1",
        "image": "r.example/team/app",
    });
    assert_eq!(calls, [("first".to_owned(), request.clone()), ("second".to_owned(), request)]);

    assert_eq!(users(&plugins.credentials(&pod, "r.example/other").await), ["a"]);
    assert_eq!(plugins.credentials(&pod, "docker.io/library/busybox").await, ProvidedCredentials::default());
    assert_eq!(
        rig.callers(),
        [""; 0],
        "the first answer is for the whole registry, and no plugin is for the other image"
    );
}

#[tokio::test]
async fn an_answer_is_kept_for_its_own_time_or_for_the_default() {
    for (fields, kept) in [
        (json!({}), Some(MINUTE)),
        (json!({"cacheDuration": "10m"}), Some(10 * MINUTE)),
        (json!({"cacheDuration": "0s"}), None),
    ] {
        let mut rig = Rig::new();
        rig.plugin("p", &answering("r.example", "a", fields.clone()), json!({}));
        let (plugins, pod) = (rig.open().await.unwrap(), pod("web").build());
        let calls = async || {
            assert_eq!(users(&plugins.credentials(&pod, "r.example/a").await), ["a"]);
            rig.callers().len()
        };
        assert_eq!(calls().await, 1);
        let Some(kept) = kept else {
            assert_eq!(calls().await, 1, "{fields}");
            continue;
        };
        rig.clock.advance(kept - Duration::from_secs(1));
        assert_eq!(calls().await, 0, "{fields}");
        rig.clock.advance(Duration::from_secs(1));
        assert_eq!(calls().await, 1, "{fields}");
    }
}

#[tokio::test]
async fn callers_with_one_question_share_a_call() {
    let mut rig = Rig::new();
    rig.plugin("p", &answering("r.example", "a", json!({"cacheDuration": "0s"})), json!({}));
    let (plugins, pod) = (rig.open().await.unwrap(), pod("web").build());
    let ask = || plugins.credentials(&pod, "r.example/a");
    let (one, two, three) = tokio::join!(ask(), ask(), ask());
    for found in [one, two, three] {
        assert_eq!(users(&found), ["a"]);
    }
    assert_eq!(rig.callers(), ["p"]);
    // A caller that does not wait does not end the call.
    assert!(ask().now_or_never().is_none());
    assert_eq!(users(&ask().await), ["a"]);
    assert_eq!(rig.callers(), ["p"]);
}

#[tokio::test]
async fn a_plugin_that_fails_takes_nothing_from_the_others_and_shows_no_secret() {
    let mut rig = Rig::new();
    let version = json!({"apiVersion": "credentialprovider.kubelet.k8s.io/v1beta1"});
    rig.plugin("exits", "echo s3cret; echo s3cret >&2; exit 3", json!({}));
    rig.plugin("babbles", "echo s3cret", json!({}));
    rig.plugin("outdated", &answering("r.example", "x", version), json!({}));
    rig.plugin("works", &answering("r.example", "a", json!({})), json!({}));
    let (plugins, pod) = (rig.open().await.unwrap(), pod("web").build());
    let found = plugins.credentials(&pod, "r.example/a").await;
    assert_eq!(users(&found), ["a"]);
    let problems = &found.problems;
    let begins = [
        "credential provider exits: it failed (exit status: 3)",
        "credential provider babbles: its answer cannot be used: ",
        "credential provider outdated: ",
    ];
    assert!(problems.iter().zip(begins).all(|(problem, begin)| problem.starts_with(begin)), "{problems:?}");
    assert!(problems[0].ends_with("the level debug") && !problems.concat().contains("s3cret"), "{problems:?}");
    let metrics = rig.metrics.encode(Format::Classic);
    assert!(
        metrics.contains("kubelet_credential_provider_plugin_errors_total{plugin_name=\"exits\"} 1\n"),
        "{metrics}"
    );
    assert!(metrics.contains("kubelet_credential_provider_plugin_duration_count{plugin_name=\"works\"} 1\n"));
    assert!(metrics.contains("kubelet_credential_provider_config_info{hash=\"sha256:"));

    // A failure is not kept.
    rig.take_calls();
    rig.script("exits", &answering("r.example", "again", json!({})));
    assert_eq!(users(&plugins.credentials(&pod, "r.example/a").await), ["again", "a"]);
}

#[tokio::test]
async fn a_plugin_gets_the_token_and_the_annotations_of_the_service_account() {
    let mut rig = Rig::new();
    let mut attributes = token_attributes("ServiceAccount", true);
    attributes["tokenAttributes"]["requiredServiceAccountAnnotationKeys"] = json!(["example.com/id"]);
    rig.plugin("p", &answering("r.example", "a", json!({})), attributes);
    let (plugins, web) = (rig.open().await.unwrap(), pod_of("web", "builder"));
    assert_eq!(
        plugins.credentials(&web, "r.example/a").await,
        ProvidedCredentials::default(),
        "the annotation is missing"
    );
    let annotations = [("example.com/id", "7"), ("example.com/role", "pull"), ("example.com/other", "x")];
    *rig.accounts.annotations.lock() = annotations.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
    let found = plugins.credentials(&web, "r.example/a").await;
    let account = found.credentials[0].account.clone().unwrap();
    assert_eq!(
        (account.namespace.as_str(), account.name.as_str(), account.uid.as_str()),
        ("test", "builder", "u-builder")
    );
    let calls = rig.take_calls();
    assert_eq!(calls[0].1["serviceAccountToken"], "token of web for registry");
    assert_eq!(calls[0].1["serviceAccountAnnotations"], json!({"example.com/id": "7", "example.com/role": "pull"}));

    assert_eq!(users(&plugins.credentials(&pod_of("api", "builder"), "r.example/a").await), ["a"]);
    assert_eq!(rig.callers(), [""; 0], "the pods of an account share the answer");
    rig.accounts.annotations.lock().insert("example.com/role".into(), "push".into());
    assert_eq!(users(&plugins.credentials(&web, "r.example/a").await), ["a"]);
    assert_eq!(rig.callers(), ["p"], "the plugin has not answered for these annotations");

    let without = plugins.credentials(&pod_of("static", ""), "r.example/a").await;
    assert_eq!(without, ProvidedCredentials::default(), "the plugin needs an account");
    let absent = plugins.credentials(&pod_of("web", "absent"), "r.example/a").await;
    assert!(absent.problems[0].contains("\"absent\" not found"), "{:?}", absent.problems);
    assert_eq!(rig.callers(), [""; 0]);
}

#[tokio::test]
async fn a_pod_without_an_account_gets_node_credentials_if_the_plugin_needs_none() {
    let mut rig = Rig::new();
    rig.plugin("p", &answering("r.example", "a", json!({})), token_attributes("ServiceAccount", false));
    let plugins = rig.open().await.unwrap();
    let found = plugins.credentials(&pod_of("static", ""), "r.example/a").await;
    assert_eq!((users(&found), &found.credentials[0].account), (vec!["a"], &None));
    assert_eq!(rig.take_calls()[0].1.get("serviceAccountToken"), None);
    let found = plugins.credentials(&pod_of("web", "builder"), "r.example/a").await;
    assert!(found.credentials[0].account.is_some());
    assert_eq!(rig.callers(), ["p"], "the answer for no account is not that of an account");
}

#[tokio::test]
async fn a_token_is_a_password_only_if_no_two_pods_share_the_answer() {
    const ECHO: &str = r#"token=$(printf '%s' "$request" | sed 's/.*"serviceAccountToken":"\([^"]*\)".*/\1/')
printf '{"kind":"CredentialProviderResponse","apiVersion":"credentialprovider.kubelet.k8s.io/v1","cacheKeyType":"Global",'
printf '"auth":{"r.example":{"username":"t","password":"%s"}}}' "$token""#;
    let (web, api) = (pod_of("web", "builder"), pod_of("api", "builder"));
    let mut rig = Rig::new();
    rig.plugin("p", ECHO, token_attributes("Token", true));
    let plugins = rig.open().await.unwrap();
    for pod in [&web, &api, &web] {
        let found = plugins.credentials(pod, "r.example/a").await;
        let expected = format!("token of {} for registry", pod.full_name().name());
        assert_eq!(found.credentials[0].password.expose(), expected.as_bytes());
    }
    assert_eq!(rig.callers(), ["p", "p"], "each pod has an answer of its own");

    let mut rig = Rig::new();
    rig.plugin("p", ECHO, token_attributes("ServiceAccount", true));
    let found = rig.open().await.unwrap().credentials(&web, "r.example/a").await;
    assert!(
        found.credentials.is_empty() && found.problems[0].contains("needs cacheType: Token"),
        "{:?}",
        found.problems
    );
}

#[tokio::test]
async fn a_plugin_that_others_can_change_is_not_called() {
    let mut rig = Rig::new();
    rig.plugin("p", "", json!({}));
    // No link to the shell, whose mode must not change.
    let path = rig.dir.path().join("p");
    fs::remove_file(&path).unwrap();
    let set = |mode| put(&path, "#!/bin/sh\n", mode);
    set(0o755);
    let plugins = rig.open().await.unwrap();
    set(0o777);
    let found = plugins.credentials(&pod("web").build(), "r.example/a").await;
    assert!(found.credentials.is_empty() && found.problems[0].contains("chmod go-w"), "{:?}", found.problems);
    assert!(matches!(rig.open().await, Err(OpenPluginsError::Plugin { source: UntrustedFile::Mode { .. }, .. })));
    set(0o644);
    assert!(matches!(rig.open().await, Err(OpenPluginsError::Plugin { source: UntrustedFile::NotExecutable(_), .. })));
    fs::remove_file(&path).unwrap();
    assert!(matches!(rig.open().await, Err(OpenPluginsError::Plugin { source: UntrustedFile::Io { .. }, .. })));
    fs::create_dir(&path).unwrap();
    assert!(matches!(rig.open().await, Err(OpenPluginsError::Plugin { source: UntrustedFile::NotRegular(_), .. })));
}
