//! The agent requests, renews and reloads its credentials at the API server that the stand-in serves over HTTP.

use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::PathBuf;

use jiff::{SignedDuration, Timestamp};
use podwright_stand_in::{Approval, Settings, StandIn, User, Verb};
use serde_json::{Value, json};

use super::harness::{Agent, AgentHome, eventually, text};

const REQUESTS: &str = "/apis/certificates.k8s.io/v1/certificatesigningrequests";
const PODS: &str = "/api/v1/namespaces/default/pods";
const BOOTSTRAP: &str = "system:bootstrap:abcdef";

struct Cluster {
    server: StandIn,
    home: AgentHome,
}

impl Cluster {
    /// An API server, and a machine with a bootstrap token.
    async fn start(settings: impl FnOnce(&mut Settings)) -> Self {
        let server = StandIn::builder().settings(settings).start().await.unwrap();
        let home = AgentHome::new();
        let cluster = Cluster { server, home };
        let token = cluster.server.token(User::bootstrap("abcdef"));
        fs::write(cluster.bootstrap(), cluster.server.kubeconfig(&token)).unwrap();
        cluster
    }

    fn bootstrap(&self) -> PathBuf {
        self.home.root().join("bootstrap-kubeconfig")
    }

    fn pki(&self, file: &str) -> PathBuf {
        self.home.root().join("pki").join(file)
    }

    async fn agent(&self) -> Agent {
        let bootstrap = self.bootstrap();
        let kubeconfig = self.home.kubeconfig();
        let flags = ["--kubeconfig", &kubeconfig, "--bootstrap-kubeconfig", bootstrap.to_str().unwrap()];
        self.home.start(&[&["--runtime", "simulated"], &flags[..]].concat()).await
    }

    fn requests(&self) -> Vec<Value> {
        self.server.all("certificatesigningrequests").iter().map(|request| Value::clone(request)).collect()
    }

    /// Adds a condition to a certificate signing request, as `kubectl certificate` does.
    fn decide(&self, request: &Value, condition: &str) {
        let name = request["metadata"]["name"].as_str().unwrap();
        let conditions = json!([{"type": condition, "status": "True", "reason": "Test", "message": "by the test"}]);
        let patch = json!({"status": {"conditions": conditions}});
        let path = format!("{REQUESTS}/{name}/approval");
        self.server.request("PATCH", &path, "application/merge-patch+json", &patch).unwrap();
    }

    /// Waits until there are this many certificate signing requests. Returns the last one.
    async fn has_requests(&self, count: usize) -> Value {
        let what = format!("there are {count} certificate signing requests");
        eventually(&what, || async {
            let mut requests = self.requests();
            requests
                .sort_by_key(|request| request["metadata"]["resourceVersion"].as_str().unwrap().parse::<u64>().ok());
            (requests.len() >= count).then(|| requests.pop()).flatten()
        })
        .await
    }

    async fn is_registered(&self) {
        eventually("the node is ready", || async {
            let node = self.server.get("nodes", "", "n1")?;
            let conditions = node["status"]["conditions"].as_array()?;
            conditions.iter().any(|it| it["type"] == "Ready" && it["status"] == "True").then_some(())
        })
        .await;
    }

    async fn runs_a_pod(&self, name: &str) {
        let pod = json!({"metadata": {"name": name}, "spec": {"nodeName": "n1", "automountServiceAccountToken": false,
            "containers": [{"name": "main", "image": "img"}]}});
        self.server.create(PODS, pod).unwrap();
        eventually(&format!("{name} runs"), || async {
            (self.server.get("pods", "default", name)?["status"]["phase"] == "Running").then_some(())
        })
        .await;
    }
}

#[tokio::test]
async fn new_node_gets_a_certificate_with_a_bootstrap_token_and_keeps_it() {
    let cluster = Cluster::start(|_| {}).await;
    let agent = cluster.agent().await;
    cluster.is_registered().await;
    cluster.runs_a_pod("one").await;
    let requests = cluster.requests();
    assert_eq!(requests.len(), 1);
    assert_eq!(requests[0]["spec"]["username"], BOOTSTRAP);
    assert_eq!(requests[0]["spec"]["signerName"], "kubernetes.io/kube-apiserver-client-kubelet");
    for file in [PathBuf::from(cluster.home.kubeconfig()), cluster.pki("client-current.pem")] {
        assert_eq!(fs::metadata(&file).unwrap().mode() & 0o777, 0o600, "{}", file.display());
    }
    assert!(!cluster.pki("client-pending.pem").exists());
    let written = fs::read_to_string(cluster.home.kubeconfig()).unwrap();
    assert!(!written.contains("token-of-"), "the bootstrap token is not in the kubeconfig of the node: {written}");

    // The next agent needs no bootstrap token.
    agent.crash().await;
    fs::remove_file(cluster.bootstrap()).unwrap();
    let agent = cluster.agent().await;
    cluster.runs_a_pod("two").await;
    assert_eq!(cluster.requests().len(), 1, "{}", agent.logged());
}

#[tokio::test]
async fn agent_that_was_killed_continues_its_certificate_signing_request() {
    let cluster = Cluster::start(|settings| settings.approval = Approval::Nothing).await;
    let agent = cluster.agent().await;
    let request = cluster.has_requests(1).await;
    let key = fs::read(cluster.pki("client-pending.pem")).unwrap();
    agent.crash().await;
    let agent = cluster.agent().await;
    let line = agent.wait_for_line("waiting until the certificate signing request is approved").await;
    assert!(line.contains(request["metadata"]["name"].as_str().unwrap()), "{line}");
    agent.wait_for_line("kubectl certificate approve").await;
    assert_eq!(fs::read(cluster.pki("client-pending.pem")).unwrap(), key);
    cluster.decide(&request, "Approved");
    cluster.is_registered().await;
    assert_eq!(cluster.requests().len(), 1);

    // The agent is killed after it stored the certificate and before it wrote the kubeconfig.
    agent.crash().await;
    fs::write(cluster.pki("client-pending.pem"), key).unwrap();
    fs::remove_file(cluster.home.kubeconfig()).unwrap();
    let _agent = cluster.agent().await;
    cluster.runs_a_pod("web").await;
    assert_eq!(cluster.requests().len(), 1, "the stored certificate is used");
}

#[tokio::test]
async fn denied_certificate_signing_request_is_reported_and_repeated_with_a_new_key() {
    let cluster = Cluster::start(|settings| settings.approval = Approval::Nothing).await;
    let agent = cluster.agent().await;
    let request = cluster.has_requests(1).await;
    cluster.decide(&request, "Denied");
    let line = agent.wait_for_line("cannot get a client certificate").await;
    assert!(line.contains("an approver denied the certificate signing request"), "{line}");
    assert!(line.contains("(Test: by the test)"), "{line}");
    let second = cluster.has_requests(2).await;
    assert_ne!(second["spec"]["request"], request["spec"]["request"]);
    cluster.decide(&second, "Approved");
    cluster.is_registered().await;
    let (_, metrics) = agent.get("/metrics", "");
    assert!(metrics.contains("kubelet_certificate_manager_client_expiration_renew_errors 1\n"), "{metrics}");
    assert!(metrics.contains("\nkubelet_certificate_manager_client_ttl_seconds 3"), "about a year: {metrics}");
}

// The first certificate was issued in 2020 and expires in an hour, so its renewal is due at once.
#[tokio::test]
async fn certificate_is_renewed_before_it_expires_and_replaces_the_old_one_at_once() {
    let cluster = Cluster::start(|settings| settings.approval = Approval::Nothing).await;
    let mut old = User::node("n1");
    old.issued = Some("2020-01-01T00:00:00Z".parse().unwrap());
    old.expires = Some(Timestamp::now() + SignedDuration::from_hours(1));
    fs::write(cluster.home.kubeconfig(), cluster.server.kubeconfig(&old)).unwrap();
    let agent = cluster.agent().await;
    cluster.is_registered().await;
    let request = cluster.has_requests(1).await;
    assert_eq!(request["spec"]["username"], "system:node:n1", "the node renews its own certificate");
    let watches = || {
        let served = cluster.server.requests().into_iter();
        served.filter(|served| served.verb == Some(Verb::Watch) && served.resource == "pods").count()
    };
    eventually("the agent watches its pods", || async { (watches() > 0).then_some(()) }).await;
    let before = watches();
    cluster.decide(&request, "Approved");
    agent.wait_for_line("the agent uses a new client certificate").await;
    let is_watched = || async { (watches() > before).then_some(()) };
    eventually("the agent watches its pods with the new certificate", is_watched).await;
    let written = fs::read_to_string(cluster.home.kubeconfig()).unwrap();
    assert!(written.contains("client-current.pem"), "{written}");
    cluster.runs_a_pod("web").await;
    assert_eq!(cluster.requests().len(), 1, "the new certificate is not renewed yet");
    assert!(!agent.logged().contains("cannot get a client certificate"), "{}", agent.logged());
}

#[tokio::test]
async fn expired_certificate_is_replaced_with_the_bootstrap_token() {
    let cluster = Cluster::start(|_| {}).await;
    let mut expired = User::node("n1");
    expired.expires = Some("2020-01-01T00:00:00Z".parse().unwrap());
    fs::write(cluster.home.kubeconfig(), cluster.server.kubeconfig(&expired)).unwrap();
    let _agent = cluster.agent().await;
    cluster.is_registered().await;
    assert_eq!(cluster.requests()[0]["spec"]["username"], BOOTSTRAP);
    let written = fs::read_to_string(cluster.home.kubeconfig()).unwrap();
    assert!(written.contains("client-current.pem"), "{written}");
}

// The first credentials are those of another node, which may not register this one.
#[tokio::test]
async fn replaced_files_of_a_kubeconfig_are_used_without_a_restart() {
    let cluster = Cluster::start(|_| {}).await;
    for (dir, node) in [("one", "n2"), ("two", "n1")] {
        fs::create_dir(cluster.home.shared().join(dir)).unwrap();
        fs::write(cluster.home.shared().join(dir).join("token"), cluster.server.node_token(node) + "\n").unwrap();
    }
    let (link, next) = (cluster.home.shared().join("current"), cluster.home.shared().join("next"));
    symlink("one", &link).unwrap();
    let mut kubeconfig: Value = serde_json::from_str(&cluster.server.kubeconfig("")).unwrap();
    kubeconfig["users"][0]["user"] = json!({"tokenFile": link.join("token")});
    fs::write(cluster.home.kubeconfig(), kubeconfig.to_string()).unwrap();
    let agent = cluster.home.start(&["--runtime", "simulated", "--kubeconfig", &cluster.home.kubeconfig()]).await;
    agent.wait_for_line("cannot register the node").await;

    // A broken kubeconfig changes nothing.
    fs::write(cluster.home.kubeconfig(), "{").unwrap();
    agent.wait_for_line("cannot use the changed kubeconfig; the old credentials stay in use").await;
    fs::write(cluster.home.kubeconfig(), kubeconfig.to_string()).unwrap();
    symlink("two", &next).unwrap();
    fs::rename(&next, &link).unwrap();
    cluster.is_registered().await;
    assert!(agent.logged().contains("the changed credentials of the kubeconfig are in use"), "{}", agent.logged());
}

#[tokio::test]
async fn agent_without_any_credentials_ends_and_names_the_files() {
    let cluster = Cluster::start(|_| {}).await;
    fs::remove_file(cluster.bootstrap()).unwrap();
    let (kubeconfig, bootstrap) = (cluster.home.kubeconfig(), cluster.bootstrap());
    let flags = ["--kubeconfig", &kubeconfig, "--bootstrap-kubeconfig", bootstrap.to_str().unwrap()];
    let output = cluster.home.run(&[&["--runtime", "simulated"], &flags[..]].concat()).await;
    let error = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert!(error.contains("has no valid client certificate") && error.contains("--bootstrap-kubeconfig"), "{error}");
    assert!(error.contains("bootstrap-kubeconfig: correct the file"), "{error}");

    // The agent does not overwrite a file that is no kubeconfig.
    fs::write(&kubeconfig, "key: [").unwrap();
    let output = cluster.home.run(&[&["--runtime", "simulated"], &flags[..]].concat()).await;
    let error = text(&output.stderr);
    assert!(error.contains(&format!("cannot use the kubeconfig {kubeconfig}: correct the file")), "{error}");
    assert_eq!(fs::read_to_string(&kubeconfig).unwrap(), "key: [");
}
