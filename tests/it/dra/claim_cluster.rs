//! An API server and the home of an agent, for tests that allocate claims by hand and use the driver of `examples/`.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use podwright::adapters::checkpoint::ClaimCheckpoint;
use podwright_ports::Checkpoint;
use podwright_stand_in::{Settings, StandIn, User};
use rustix::process::Signal;
use serde_json::{Value, json};
use tokio::process::{Child, Command};
use tokio::time::timeout;

use crate::agent::harness::{Agent, AgentHome, eventually, text};
use crate::support::processes::{PATIENCE, kill};

/// The name of the driver.
pub(crate) const DRIVER: &str = "simulated.example.com";
const PODS: &str = "/api/v1/namespaces/default/pods";
const CLAIMS: &str = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims";
const MERGE: &str = "application/merge-patch+json";

/// An API server and the home of an agent.
pub(crate) struct ClaimCluster {
    pub(crate) server: StandIn,
    pub(crate) home: AgentHome,
    /// The directory of CDI files.
    pub(crate) cdi: PathBuf,
    pub(crate) image: &'static str,
}

impl ClaimCluster {
    pub(crate) async fn start() -> Self {
        Self::with(|_| {}).await
    }

    /// A cluster with an API server with these settings.
    pub(crate) async fn with(settings: impl FnOnce(&mut Settings)) -> Self {
        let server = StandIn::builder().settings(settings).start().await.unwrap();
        server.create("/api/v1/nodes", json!({"metadata": {"name": "n1"}})).unwrap();
        let home = AgentHome::of_node(&server, "n1");
        let cdi = home.root().join("cdi");
        ClaimCluster { server, home, cdi, image: "img" }
    }

    /// The flags with which an agent uses the API server and the CDI files.
    pub(crate) fn flags(&self) -> Vec<String> {
        let cdi = self.cdi.to_str().unwrap().to_owned();
        vec!["--kubeconfig".to_owned(), self.home.kubeconfig(), "--cdi-spec-dirs".to_owned(), cdi]
    }

    /// An agent that runs pods as processes.
    pub(crate) async fn agent(&self) -> Agent {
        let flags = self.flags();
        self.home.start(&flags.iter().map(String::as_str).collect::<Vec<_>>()).await
    }

    /// Starts the driver of `examples/`, and waits until it serves.
    pub(crate) async fn driver(&self, flags: &[&str]) -> ExampleDriver {
        let root = self.home.root();
        let kubeconfig = root.join("driver.kubeconfig");
        fs::write(&kubeconfig, self.server.kubeconfig(&User::admin())).unwrap();
        let mut command = Command::new(example("dra_driver"));
        command.args(["--name", DRIVER, "--node-name", "n1"]);
        command.arg("--plugins-dir").arg(root.join("plugins"));
        command.arg("--registry-dir").arg(root.join("plugins_registry"));
        command.arg("--cdi-dir").arg(&self.cdi).arg("--kubeconfig").arg(kubeconfig).args(flags);
        let log = (0..).map(|n| root.join(format!("driver-{n}"))).find(|path| !path.exists()).unwrap();
        let file = File::create(&log).unwrap();
        command.stderr(file.try_clone().unwrap()).stdout(file).kill_on_drop(true);
        let driver = ExampleDriver { child: command.spawn().unwrap(), log };
        eventually("the driver serves", || async { (driver.count("serves on") == 1).then_some(()) }).await;
        driver
    }

    /// Creates a claim.
    pub(crate) fn claim(&self, name: &str) {
        let spec = json!({"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "c"}}]}});
        self.server.create(CLAIMS, json!({"metadata": {"name": name}, "spec": spec})).unwrap();
    }

    /// Allocates a device to a claim, and reserves the claim for these pods.
    pub(crate) fn allocate(&self, claim: &str, device: &str, driver: &str, pods: &[&str]) {
        let results = json!([{"request": "r", "driver": driver, "pool": "n1", "device": device}]);
        let reserved =
            |name: &&str| json!({"resource": "pods", "name": name, "uid": self.pod(name)["metadata"]["uid"]});
        let status = json!({"status": {"allocation": {"devices": {"results": results}},
            "reservedFor": pods.iter().map(reserved).collect::<Vec<_>>()}});
        self.server.request("PATCH", &format!("{CLAIMS}/{claim}/status"), MERGE, &status).unwrap();
    }

    /// Creates a pod that prints its device and runs until the test ends it. No node runs it yet.
    pub(crate) fn create_pod(&self, name: &str, claim: &str) {
        let script =
            format!("echo device $DEVICE_0; until [ -e \"$PODWRIGHT_ROOTFS/shared/end-{name}\" ]; do sleep 0.1; done");
        self.create_pod_with(name, claim, &script);
    }

    /// Creates a pod that runs a shell script. No node runs it yet.
    pub(crate) fn create_pod_with(&self, name: &str, claim: &str, script: &str) {
        let pod = json!({"metadata": {"name": name}, "spec": {
            "automountServiceAccountToken": false, "restartPolicy": "Never", "terminationGracePeriodSeconds": 1,
            "resourceClaims": [{"name": "gpu", "resourceClaimName": claim}],
            "volumes": [{"name": "shared", "hostPath": {"path": self.home.shared()}}],
            "containers": [{"name": "main", "image": self.image, "command": ["/bin/sh", "-c", script],
                "resources": {"claims": [{"name": "gpu"}]},
                "volumeMounts": [{"name": "shared", "mountPath": "/shared"}]}]}});
        self.server.create(PODS, pod).unwrap();
    }

    /// Binds a pod to the node.
    pub(crate) fn bind(&self, pod: &str) {
        let binding = json!({"metadata": {"name": pod}, "target": {"kind": "Node", "name": "n1"}});
        self.server.request("POST", &format!("{PODS}/{pod}/binding"), "application/json", &binding).unwrap();
    }

    /// Creates pods and their claim with the device `device-0`, and binds the pods.
    pub(crate) fn run(&self, claim: &str, pods: &[&str]) {
        if self.server.get("resourceclaims", "default", claim).is_none() {
            self.claim(claim);
        }
        pods.iter().for_each(|pod| self.create_pod(pod, claim));
        self.allocate(claim, "device-0", DRIVER, pods);
        pods.iter().for_each(|pod| self.bind(pod));
    }

    /// Lets the container of a pod end.
    pub(crate) fn end(&self, pod: &str) {
        fs::write(self.home.shared().join(format!("end-{pod}")), "").unwrap();
    }

    pub(crate) fn delete(&self, pod: &str) {
        self.server.request("DELETE", &format!("{PODS}/{pod}"), "application/json", &Value::Null).unwrap();
    }

    pub(crate) fn pod(&self, name: &str) -> Value {
        self.server.get("pods", "default", name).map(|pod| Value::clone(&pod)).unwrap_or_default()
    }

    pub(crate) fn phase(&self, pod: &str) -> String {
        self.pod(pod)["status"]["phase"].as_str().unwrap_or_default().to_owned()
    }

    pub(crate) async fn wait_for_phase(&self, pod: &str, phase: &str) {
        eventually(&format!("{pod} is {phase}"), || async { (self.phase(pod) == phase).then_some(()) }).await;
    }

    pub(crate) async fn is_gone(&self, pod: &str) {
        eventually(&format!("{pod} is gone"), || async { self.pod(pod).is_null().then_some(()) }).await;
    }

    /// The event of a pod with this reason.
    pub(crate) async fn event(&self, pod: &str, reason: &str) -> Arc<Value> {
        self.event_with(pod, reason, "").await
    }

    /// Waits for an event whose message contains a text.
    pub(crate) async fn event_with(&self, pod: &str, reason: &str, text: &str) -> Arc<Value> {
        let is_it = |event: &&Arc<Value>| {
            let message = event["message"].as_str().unwrap_or_default();
            event["involvedObject"]["name"] == pod && event["reason"] == reason && message.contains(text)
        };
        let find = || async { self.server.all("events").iter().find(is_it).cloned() };
        eventually(&format!("{pod} has the event {reason}"), find).await
    }

    /// The names of the CDI files.
    pub(crate) fn cdi_files(&self) -> Vec<String> {
        let files = fs::read_dir(&self.cdi).into_iter().flatten().flatten();
        files.map(|file| file.file_name().into_string().unwrap()).filter(|name| name.starts_with(DRIVER)).collect()
    }

    /// The claims in the file of the agent, each with the UIDs of its pods.
    pub(crate) fn recorded(&self) -> Vec<(String, Vec<String>)> {
        recorded(self.home.root())
    }
}

/// The claims in the file of an agent that has this root directory, each with the UIDs of its pods.
pub(crate) fn recorded(root: &Path) -> Vec<(String, Vec<String>)> {
    let records = ClaimCheckpoint::new(root.to_owned()).open().unwrap().records;
    let mut claims = std::collections::BTreeMap::new();
    for record in records {
        let record: Value = serde_json::from_str(&record).unwrap();
        let name = record["ClaimName"].as_str().unwrap().to_owned();
        let pods = record["PodUIDs"].as_object().map(|pods| pods.keys().cloned().collect::<Vec<_>>());
        if record["Removed"] == true {
            claims.remove(&name)
        } else {
            claims.insert(name, pods.unwrap_or_default())
        };
    }
    claims.into_iter().collect()
}

/// The output of a pod, from its log.
pub(crate) async fn log_of(agent: &Agent, pod: &str) -> String {
    eventually(&format!("{pod} has printed a line"), || async {
        let output = agent.run_client(&["logs", &format!("default/{pod}")]).await;
        (output.status.success() && output.stdout.ends_with(b"\n")).then(|| text(&output.stdout))
    })
    .await
}

/// The path of a program of `examples/`. Cargo builds examples beside the tests.
fn example(name: &str) -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let example = test.parent().unwrap().parent().unwrap().join("examples").join(name);
    assert!(example.exists(), "{example:?} is missing: run `cargo build --examples` first");
    example
}

/// A process of the driver of `examples/`. It is killed when dropped.
pub(crate) struct ExampleDriver {
    child: Child,
    log: PathBuf,
}

impl ExampleDriver {
    /// How many lines of its output contain a text.
    pub(crate) fn count(&self, text: &str) -> usize {
        fs::read_to_string(&self.log).unwrap().lines().filter(|line| line.contains(text)).count()
    }

    /// Ends the driver by SIGTERM.
    pub(crate) async fn stop(mut self) {
        kill(self.child.id().expect("the driver runs"), Signal::TERM);
        let ended = timeout(PATIENCE + Duration::from_secs(20), self.child.wait()).await;
        assert!(ended.expect("the driver does not end").unwrap().success());
    }
}
