//! Processes with volumes and variables from the objects of an API server, with the rights of a node.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use podwright_stand_in::{Fault, Rule, Settings, StandIn, Verb};
use serde_json::{Value, json};

use super::harness::{Agent, AgentHome, eventually};
use crate::support::polling::PATIENCE;

const PODS: &str = "/api/v1/namespaces/default/pods";
const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";
const SECRETS: &str = "/api/v1/namespaces/default/secrets";

struct Cluster {
    server: StandIn,
    home: AgentHome,
}

impl Cluster {
    async fn start() -> Self {
        Self::with(|_| {}).await
    }

    /// A cluster with an API server with these settings.
    async fn with(settings: impl FnOnce(&mut Settings)) -> Self {
        let server = StandIn::builder().settings(settings).start().await.unwrap();
        server.create("/api/v1/nodes", json!({"metadata": {"name": "n1"}})).unwrap();
        let home = AgentHome::of_node(&server, "n1");
        Cluster { server, home }
    }

    async fn agent(&self) -> Agent {
        self.home.start(&["--kubeconfig", &self.home.kubeconfig()]).await
    }

    /// Creates a pod with a container that runs a script; `more` sets fields of the container and `spec` of the pod.
    fn create(&self, name: &str, script: &str, more: &Value, spec: &Value) {
        let mut container = json!({"name": "main", "image": "img", "command": ["/bin/sh", "-c", script]});
        set(&mut container, more);
        let mut pod = json!({"metadata": {"name": name}, "spec": {"nodeName": "n1", "terminationGracePeriodSeconds": 1,
            "restartPolicy": "Never", "containers": [container]}});
        set(&mut pod["spec"], spec);
        self.server.create(PODS, pod).unwrap();
    }

    fn pod(&self, name: &str) -> Value {
        self.server.get("pods", "default", name).map(|pod| Value::clone(&pod)).unwrap_or_default()
    }

    async fn wait_for_phase(&self, name: &str, phase: &str) {
        eventually(&format!("{name} is {phase}: {}", self.pod(name)["status"]), || async {
            (self.pod(name)["status"]["phase"] == phase).then_some(())
        })
        .await;
    }

    /// The directory of a volume of a pod.
    fn volume(&self, pod: &str, plugin: &str, volume: &str) -> PathBuf {
        let uid = self.pod(pod)["metadata"]["uid"].as_str().unwrap().to_owned();
        self.home.root().join("pods").join(uid).join("volumes").join(format!("kubernetes.io~{plugin}")).join(volume)
    }

    fn watches_of(&self, plural: &str) -> usize {
        let watches = self.server.requests().into_iter();
        watches.filter(|served| served.verb == Some(Verb::Watch) && served.path.contains(plural)).count()
    }
}

fn set(object: &mut Value, fields: &Value) {
    for (field, value) in fields.as_object().into_iter().flatten() {
        object[field] = value.clone();
    }
}

#[tokio::test]
async fn process_reads_the_token_the_certificates_and_the_namespace_of_its_pod() {
    let cluster = Cluster::start().await;
    let _agent = cluster.agent().await;
    let dir = "\"$PODWRIGHT_ROOTFS/var/run/secrets/kubernetes.io/serviceaccount\"";
    let shared = cluster.home.shared().display().to_string();
    let script = format!("cp {dir}/token {dir}/ca.crt {dir}/namespace {shared}/ && exec sleep 1000");
    cluster.create("web", &script, &json!({}), &json!({}));
    cluster.wait_for_phase("web", "Running").await;
    let read = |file: &str| fs::read_to_string(cluster.home.shared().join(file)).unwrap_or_default();
    eventually("the process has read the files", || async { (!read("namespace").is_empty()).then_some(()) }).await;
    assert_eq!(read("namespace"), "default");
    assert!(read("ca.crt").contains("BEGIN CERTIFICATE"), "{}", read("ca.crt"));
    let review =
        json!({"kind": "TokenReview", "apiVersion": "authentication.k8s.io/v1", "spec": {"token": read("token")}});
    let review = cluster
        .server
        .request("POST", "/apis/authentication.k8s.io/v1/tokenreviews", "application/json", &review)
        .unwrap();
    let user = &review["status"]["user"];
    assert_eq!(user["username"], "system:serviceaccount:default:default", "{review}");
    assert_eq!(user["extra"]["authentication.kubernetes.io/pod-name"], json!(["web"]), "{review}");
}

#[tokio::test]
async fn files_of_a_config_map_change_at_once_with_the_object() {
    let cluster = Cluster::start().await;
    let _agent = cluster.agent().await;
    let map = |version: &str| json!({"metadata": {"name": "settings"}, "data": {"a": version, "b": version}});
    cluster.server.create(CONFIG_MAPS, map("1")).unwrap();
    let spec =
        json!({"automountServiceAccountToken": false, "volumes": [{"name": "v", "configMap": {"name": "settings"}}]});
    cluster.create("web", "exec sleep 1000", &json!({}), &spec);
    cluster.wait_for_phase("web", "Running").await;
    let volume = cluster.volume("web", "configmap", "v");
    let read = |file: &str| fs::read_to_string(volume.join("..data").join(file)).unwrap_or_default();
    assert_eq!((read("a"), read("b")), ("1".to_owned(), "1".to_owned()));
    let first = fs::read_link(volume.join("..data")).unwrap();

    let path = format!("{CONFIG_MAPS}/settings");
    cluster.server.request("PUT", &path, "application/json", &map("2")).unwrap();
    eventually("the file changes", || async { (read("a") == "2").then_some(()) }).await;
    assert_eq!(read("b"), "2");
    assert_ne!(fs::read_link(volume.join("..data")).unwrap(), first, "both files changed in one step");

    // A removed object leaves the files of the running pod.
    cluster.server.request("DELETE", &path, "application/json", &Value::Null).unwrap();
    cluster.server.create(CONFIG_MAPS, map("3")).unwrap();
    eventually("the files come back", || async { (read("a") == "3").then_some(()) }).await;
    assert_eq!(cluster.watches_of("configmaps"), 1, "one watch");
    let grace = json!({"gracePeriodSeconds": 1});
    cluster.server.request("DELETE", &format!("{PODS}/web"), "application/json", &grace).unwrap();
    eventually("the pod is gone", || async { cluster.pod("web").is_null().then_some(()) }).await;
    assert!(!volume.exists());
}

#[tokio::test]
async fn pod_waits_for_its_secrets_and_starts_when_they_are_created() {
    let cluster = Cluster::start().await;
    let agent = cluster.agent().await;
    let env = json!({"env": [{"name": "WORD", "valueFrom": {"secretKeyRef": {"name": "login", "key": "word"}}}],
        "envFrom": [{"prefix": "ALL_", "secretRef": {"name": "login"}}]});
    let file = "\"$PODWRIGHT_ROOTFS/keys/word\"";
    let script = format!("test \"$WORD-$ALL_word-$(cat {file})-$KUBERNETES_SERVICE_HOST\" = pw-pw-pw-10.0.0.1");
    let spec = json!({"automountServiceAccountToken": false,
        "volumes": [{"name": "keys", "secret": {"secretName": "files", "defaultMode": 0o400}}]});
    let mut more = json!({"volumeMounts": [{"name": "keys", "mountPath": "/keys"}]});
    set(&mut more, &env);
    let services = "/api/v1/namespaces/default/services";
    let service = json!({"metadata": {"name": "kubernetes"}, "spec": {"clusterIP": "10.0.0.1", "ports": [{"name": "https", "port": 443}]}});
    cluster.server.create(services, service).unwrap();
    cluster.create("web", &script, &more, &spec);

    let explained = || async { agent.get("/explain/default/web", "").1 };
    eventually("the missing secret of the volume is named", || async {
        explained().await.replace('\\', "").contains("secret \"files\" not found").then_some(())
    })
    .await;
    let secret = |name: &str| json!({"metadata": {"name": name}, "data": {"word": "cHc="}});
    cluster.server.create(SECRETS, secret("files")).unwrap();
    let waiting = || {
        let pod = cluster.pod("web");
        let state = pod["status"]["containerStatuses"][0]["state"]["waiting"].clone();
        (state["reason"] == "CreateContainerConfigError").then(|| state["message"].clone())
    };
    let message = eventually("the missing secret of the variable is named", || async { waiting() }).await;
    assert_eq!(message, "secret \"login\" not found");
    cluster.server.create(SECRETS, secret("login")).unwrap();
    cluster.wait_for_phase("web", "Succeeded").await;
}

// A sync of the pod leads to the renewal of a token that is about to expire, and of no other token.
#[tokio::test]
async fn token_is_renewed_before_it_expires() {
    for (life, is_renewed) in [(3600, false), (5, true)] {
        let cluster = Cluster::with(|settings| settings.token_life = Duration::from_secs(life)).await;
        let _agent = cluster.agent().await;
        let round = json!({"path": "round", "fieldRef": {"fieldPath": "metadata.annotations['round']"}});
        let sources = json!([{"serviceAccountToken": {"path": "token", "expirationSeconds": 600}},
            {"downwardAPI": {"items": [round]}}]);
        let spec = json!({"automountServiceAccountToken": false,
            "volumes": [{"name": "v", "projected": {"sources": sources}}]});
        cluster.create("web", "exec sleep 1000", &json!({}), &spec);
        cluster.wait_for_phase("web", "Running").await;
        let volume = cluster.volume("web", "projected", "v");
        let read = |file: &str| fs::read_to_string(volume.join("..data").join(file)).unwrap_or_default();
        let first = read("token");
        assert!(!first.is_empty());
        let sync = async |round: u32| {
            let patch = json!({"metadata": {"annotations": {"round": round.to_string()}}});
            cluster.server.request("PATCH", &format!("{PODS}/web"), "application/merge-patch+json", &patch).unwrap();
            eventually("the pod is synced", || async { (read("round") == round.to_string()).then_some(()) }).await;
        };
        if is_renewed {
            let mut round = 2;
            let end = Instant::now() + PATIENCE;
            while read("token") == first {
                assert!(Instant::now() < end, "the token lives for {life} s and is not renewed");
                sync(round).await;
                round += 1;
            }
        } else {
            sync(2).await;
            sync(3).await;
            assert_eq!(read("token"), first, "the token lives for {life} s");
        }
    }
}

#[tokio::test]
async fn process_reads_the_trust_bundle_of_the_cluster() {
    let cluster = Cluster::start().await;
    let _agent = cluster.agent().await;
    let authority = cluster.server.ca_certificate();
    let bundle = json!({"metadata": {"name": "roots"}, "spec": {"trustBundle": authority}});
    cluster.server.create("/apis/certificates.k8s.io/v1beta1/clustertrustbundles", bundle).unwrap();
    let sources = json!([{"clusterTrustBundle": {"name": "roots", "path": "ca.pem"}},
        {"clusterTrustBundle": {"name": "none", "path": "none.pem", "optional": true}}]);
    let spec =
        json!({"automountServiceAccountToken": false, "volumes": [{"name": "v", "projected": {"sources": sources}}]});
    let shared = cluster.home.shared().display().to_string();
    let script = format!("cp \"$PODWRIGHT_ROOTFS/trust/ca.pem\" {shared}/");
    cluster.create("web", &script, &json!({"volumeMounts": [{"name": "v", "mountPath": "/trust"}]}), &spec);
    cluster.wait_for_phase("web", "Succeeded").await;
    assert_eq!(fs::read_to_string(cluster.home.shared().join("ca.pem")).unwrap().trim(), authority.trim());
}

// A watch that is cut is started again for an object that may change.
#[tokio::test]
async fn immutable_object_is_read_once() {
    let cluster = Cluster::start().await;
    let _agent = cluster.agent().await;
    let map = json!({"metadata": {"name": "fixed"}, "immutable": true, "data": {"a": "1"}});
    cluster.server.create(CONFIG_MAPS, map).unwrap();
    let secret = |value: &str| json!({"metadata": {"name": "free"}, "data": {"a": value}});
    cluster.server.create(SECRETS, secret("MQ==")).unwrap();
    let spec = json!({"automountServiceAccountToken": false, "volumes": [
        {"name": "fixed", "configMap": {"name": "fixed"}}, {"name": "free", "secret": {"secretName": "free"}}]});
    cluster.create("web", "exec sleep 1000", &json!({}), &spec);
    cluster.wait_for_phase("web", "Running").await;
    cluster.server.forget_requests();
    cluster.server.drop_watches();
    cluster.server.request("PUT", &format!("{SECRETS}/free"), "application/json", &secret("Mg==")).unwrap();
    let read = |plugin: &str, name: &str| {
        fs::read_to_string(cluster.volume("web", plugin, name).join("..data/a")).unwrap_or_default()
    };
    eventually("the secret changes", || async { (read("secret", "free") == "2").then_some(()) }).await;
    assert_eq!(read("configmap", "fixed"), "1");
    let reads = cluster.server.requests().into_iter().filter(|served| served.resource == "configmaps").count();
    assert_eq!(reads, 0, "the immutable config map is not read again");
}

#[tokio::test]
async fn object_that_the_node_may_not_read_is_named_in_the_event_of_the_pod() {
    let cluster = Cluster::start().await;
    let agent = cluster.agent().await;
    cluster.server.create(SECRETS, json!({"metadata": {"name": "files"}, "data": {"a": "MQ=="}})).unwrap();
    cluster.server.faults().inject(Rule::new().resource("secrets"), Fault::status(403));
    let spec = json!({"automountServiceAccountToken": false,
        "volumes": [{"name": "keys", "secret": {"secretName": "files"}}]});
    cluster.create("web", "exec sleep 1000", &json!({}), &spec);
    let event = eventually("the event names the secret", || async {
        let logged = agent.logged();
        let event = logged.lines().find(|line| line.contains("FailedMount") && line.contains("files"))?;
        Some(event.replace('\\', ""))
    })
    .await;
    assert!(event.contains("volume \"keys\""), "{event}");
    assert!(event.contains("the node may not read secret \"files\": an injected fault answers 403"), "{event}");
    assert!(!event.contains("Status {"), "{event}");
    assert!(!agent.logged().contains("Status {"), "{}", agent.logged());
    cluster.server.faults().clear();
    cluster.wait_for_phase("web", "Running").await;
}
