//! Processes with volumes and variables from the objects of an API server, with the rights of a node.

use std::fs;
use std::path::PathBuf;

use podwright_stand_in::{StandIn, Verb};
use serde_json::{Value, json};

use super::harness::{Agent, AgentHome, eventually};

const PODS: &str = "/api/v1/namespaces/default/pods";
const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";
const SECRETS: &str = "/api/v1/namespaces/default/secrets";

struct Cluster {
    server: StandIn,
    home: AgentHome,
}

impl Cluster {
    async fn start() -> Self {
        let server = StandIn::start().await.unwrap();
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

    async fn reaches(&self, name: &str, phase: &str) {
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
    cluster.reaches("web", "Running").await;
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
    cluster.reaches("web", "Running").await;
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
    cluster.reaches("web", "Succeeded").await;
}
