//! What the demonstrations of dynamic resource allocation share: an API server in memory with the node demo, the agent, the driver of the
//! example `dra_driver`, and the pod web with a claim of one device.

use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use podwright_stand_in::{Refusal, StandIn, User};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::process::{Child, Command};
use tokio::time::{Instant, sleep};

pub(crate) const DRIVER: &str = "simulated.example.com";
const PODS: &str = "/api/v1/namespaces/default/pods";
const CLAIMS: &str = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims";
/// The time limit of one step.
const LIMIT: Duration = Duration::from_secs(180);

pub(crate) type Result<T, E = Box<dyn Error>> = std::result::Result<T, E>;

/// The parts that run. They end with this value, in the order of its fields.
pub(crate) struct Demo {
    _driver: Child,
    _agent: Child,
    pub(crate) server: StandIn,
    folder: TempDir,
}

impl Demo {
    /// Starts the API server, the agent and the driver.
    pub(crate) async fn start() -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let root = folder.path();
        let server = StandIn::start().await?;
        request(&server, "POST", "/api/v1/nodes", &json!({"metadata": {"name": "demo"}}))?;
        println!("1. An API server in memory serves on {}. It has one node, demo.", server.url());
        let agent = agent(&server, root)?;
        println!("2. The agent runs pods of this node as processes.");
        let driver = driver(&server, root)?;
        until("the driver serves", || read(&root.join("driver.log")).contains("serves on")).await?;
        println!("3. The driver {DRIVER} registered in {}.", root.join("plugins_registry").display());
        Ok(Demo { _driver: driver, _agent: agent, server, folder })
    }

    /// The root directory of the agent.
    pub(crate) fn root(&self) -> &Path {
        self.folder.path()
    }

    /// Creates the claim and the pod, which runs until the file `end` exists. Waits until the driver has prepared the claim.
    pub(crate) async fn run_pod(&self, end: &Path) -> Result<()> {
        request(&self.server, "POST", CLAIMS, &claim())?;
        let pod = request(&self.server, "POST", PODS, &pod(end))?;
        let status = allocation(&pod["metadata"]["uid"]);
        request(&self.server, "PATCH", &format!("{CLAIMS}/camera/status"), &status)?;
        println!(
            "4. ResourceClaim camera got the device device-0 and is reserved for the pod web. In a cluster, the scheduler does this."
        );
        let binding = json!({"metadata": {"name": "web"}, "target": {"kind": "Node", "name": "demo"}});
        request(&self.server, "POST", &format!("{PODS}/web/binding"), &binding)?;
        until("the driver prepares the claim", || self.cdi_file().is_some()).await
    }

    /// The CDI file of the claim, as long as the claim is prepared.
    pub(crate) fn cdi_file(&self) -> Option<PathBuf> {
        let mut files = fs::read_dir(self.root().join("cdi")).ok()?.flatten().map(|file| file.path());
        files.find(|path| path.extension().is_some_and(|end| end == "json"))
    }

    /// The log of the pod, empty as long as it has none.
    pub(crate) fn log(&self) -> Result<String> {
        let mut logs = std::process::Command::new(program("podwright")?);
        Ok(String::from_utf8(logs.args(["logs", "default/web", "--root"]).arg(self.root()).output()?.stdout)?)
    }

    /// Waits until the pod has printed the name of its device.
    pub(crate) async fn until_device_is_used(&self) -> Result<()> {
        until("the pod prints its device", || self.log().is_ok_and(|text| text.contains("DEVICE_0="))).await
    }

    /// Prints the calls that the driver has received.
    pub(crate) fn print_calls_of_driver(&self) {
        println!("   The calls, as the driver printed them:");
        read(&self.root().join("driver.log")).lines().for_each(|line| println!("     {line}"));
    }
}

fn agent(server: &StandIn, root: &Path) -> Result<Child> {
    let kubeconfig = root.join("agent.kubeconfig");
    server.write_kubeconfig(&kubeconfig, &User::node("demo"))?;
    let manifests = root.join("manifests");
    fs::create_dir(&manifests)?;
    let mut agent = Command::new(program("podwright")?);
    agent.args(["run", "--node-name", "demo", "--node-api", "off", "--admin", "127.0.0.1:0", "--eviction-hard", ""]);
    agent.arg("--root").arg(root).arg("--manifests").arg(manifests).arg("--kubeconfig").arg(kubeconfig);
    agent.arg("--cdi-spec-dirs").arg(root.join("cdi"));
    // The pods of the demo run as the user of the demo, who may be root.
    agent.args(["--process-root-pods", "allow"]);
    start(agent, &root.join("agent.log"))
}

fn driver(server: &StandIn, root: &Path) -> Result<Child> {
    let kubeconfig = root.join("driver.kubeconfig");
    server.write_kubeconfig(&kubeconfig, &User::admin())?;
    let mut driver = Command::new(program("examples/dra_driver")?);
    driver.args(["--name", DRIVER, "--node-name", "demo"]).arg("--kubeconfig").arg(kubeconfig);
    driver.arg("--plugins-dir").arg(root.join("plugins")).arg("--registry-dir").arg(root.join("plugins_registry"));
    driver.arg("--cdi-dir").arg(root.join("cdi"));
    start(driver, &root.join("driver.log"))
}

/// Starts a program that ends with this one.
pub(crate) fn start(mut command: Command, log: &Path) -> Result<Child> {
    let log = fs::File::create(log)?;
    command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log).kill_on_drop(true);
    Ok(command.spawn()?)
}

/// A program that Cargo builds beside this one.
pub(crate) fn program(name: &str) -> Result<PathBuf> {
    let this = std::env::current_exe()?;
    let path = this.parent().and_then(Path::parent).ok_or("the path of this program has no directory")?.join(name);
    if path.exists() { Ok(path) } else { Err(format!("{} is missing: use make to run this", path.display()).into()) }
}

pub(crate) fn request(server: &StandIn, method: &str, path: &str, body: &Value) -> Result<Value> {
    let content_type = if method == "PATCH" { "application/merge-patch+json" } else { "application/json" };
    server.request(method, path, content_type, body).map_err(|refusal: Refusal| refusal.message.into())
}

fn claim() -> Value {
    let requests = json!([{"name": "camera", "exactly": {"deviceClassName": "cameras"}}]);
    json!({"metadata": {"name": "camera"}, "spec": {"devices": {"requests": requests}}})
}

fn allocation(pod: &Value) -> Value {
    let results = json!([{"request": "camera", "driver": DRIVER, "pool": "demo", "device": "device-0"}]);
    let reserved_for = json!([{"resource": "pods", "name": "web", "uid": pod}]);
    json!({"status": {"allocation": {"devices": {"results": results}}, "reservedFor": reserved_for}})
}

/// A pod that prints its device, and runs until the file `end` exists.
fn pod(end: &Path) -> Value {
    let script = format!("echo \"my device: DEVICE_0=$DEVICE_0\"; until [ -e {} ]; do sleep 0.1; done", end.display());
    let command = ["/bin/sh", "-c", script.as_str()];
    json!({"metadata": {"name": "web"}, "spec": {
        "restartPolicy": "Never", "automountServiceAccountToken": false, "terminationGracePeriodSeconds": 2,
        "resourceClaims": [{"name": "camera", "resourceClaimName": "camera"}],
        "containers": [{"name": "main", "image": "none", "command": command,
            "resources": {"claims": [{"name": "camera"}]}}]}})
}

pub(crate) fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

pub(crate) async fn until(what: &str, holds: impl Fn() -> bool) -> Result<()> {
    let limit = Instant::now() + LIMIT;
    while !holds() {
        if Instant::now() > limit {
            return Err(format!("not reached within {} s: {what}", LIMIT.as_secs()).into());
        }
        sleep(Duration::from_millis(50)).await;
    }
    Ok(())
}
