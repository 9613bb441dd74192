//! One containerd for the tests of a run, with root, state, socket and network of its own.
//!
//! A node agent owns its runtime: it stops what it does not know. So a test holds the containerd's turn, a lock that the
//! kernel takes back from a test that was killed. The first one starts the containerd, every one finds it without pods, and
//! a watcher that outlives the tests ends it with all that it runs once nobody has held the turn for some seconds.

use std::fs::{self, File, OpenOptions};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use podwright::adapters::cri::{CriConfig, CriRuntime};
use podwright_actors::ports::{ContainerRuntime, NoPullSecrets, RuntimeName, SandboxState};
use podwright_metrics::Metrics;
use rustix::process::{Pid, Signal, kill_process};
use tokio::net::UnixStream;

use super::image;
use crate::agent::harness::{Agent, Place, eventually};
use crate::support::fake_ports::Events;

/// What has to be installed.
const BUSYBOX: &str = "/bin/busybox";
const PLUGINS: [&str; 2] = ["/usr/lib/cni", "/opt/cni/bin"];

/// The containerd, for as long as a test has its turn.
pub(super) struct Containerd {
    base: PathBuf,
    /// Given back when the test ends, however it ends.
    _turn: File,
}

impl Containerd {
    /// Waits for the turn. `None`, with a line that says why, where containerd cannot be run.
    pub(super) async fn turn() -> Option<Self> {
        if let Err(missing) = can_run() {
            eprintln!("skipped: pods are not run as containers: {missing}");
            return None;
        }
        let base = base();
        fs::create_dir_all(&base).unwrap();
        let turn = OpenOptions::new().create(true).append(true).open(base.with_extension("turn")).unwrap();
        let turn = tokio::task::spawn_blocking(move || turn.lock().map(|()| turn)).await.unwrap().unwrap();
        let containerd = Containerd { base, _turn: turn };
        if UnixStream::connect(containerd.socket()).await.is_err() {
            containerd.clean();
            containerd.prepare();
            containerd.start().await;
            containerd.import(&[image::BUSYBOX, image::PAUSE]);
            containerd.watch();
        }
        containerd.empty().await;
        Some(containerd)
    }

    pub(super) fn socket(&self) -> PathBuf {
        self.base.join("c.sock")
    }

    /// The flag of an agent that uses it.
    pub(super) fn runtime(&self) -> String {
        format!("--runtime=cri=unix://{}", self.socket().display())
    }

    /// Starts an agent that uses it.
    pub(super) async fn agent(&self, place: &Place) -> Agent {
        place.start(&[&self.runtime()]).await
    }

    /// A client of it.
    pub(super) fn open(&self, root: &Path) -> CriRuntime {
        let config = CriConfig {
            endpoint: self.socket().to_str().unwrap().parse().unwrap(),
            root: root.to_owned(),
            logs: root.join("log/pods"),
            log_links: root.join("log/containers"),
            registry_config: None,
            pull_secrets: Arc::new(NoPullSecrets),
            parallel_pulls: 5.try_into().unwrap(),
            name: RuntimeName::default(),
            metrics: Metrics::new(),
            events: Arc::new(Events::default()),
        };
        CriRuntime::open(config).unwrap()
    }

    /// What `ctr` says.
    pub(super) fn ctr(&self, args: &[&str]) -> String {
        let socket = self.socket();
        let output =
            Command::new("ctr").arg("--address").arg(socket).args(["--namespace", "k8s.io"]).args(args).output();
        let output = output.unwrap();
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// Kills it as a crash would. What it runs goes on.
    pub(super) fn crash(&self) {
        let pid = fs::read_to_string(self.base.join("run/pid")).unwrap().parse().unwrap();
        kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
    }

    /// Starts it on what is there.
    pub(super) async fn start(&self) {
        let log = OpenOptions::new().create(true).append(true).open(self.base.join("run/log")).unwrap();
        let mut command = Command::new("containerd");
        command.arg("--config").arg(self.base.join("run/config.toml")).stdin(Stdio::null());
        // Its own group: a terminal's interrupt is for the tests, and the watcher ends it.
        let child = command.stdout(log.try_clone().unwrap()).stderr(log).process_group(0).spawn().unwrap();
        fs::write(self.base.join("run/pid"), child.id().to_string()).unwrap();
        reap(child);
        let socket = self.socket();
        eventually("containerd answers", || async { UnixStream::connect(&socket).await.ok() }).await;
        let runtime = self.open(&self.base.join("run"));
        eventually("its plugins are there", || async { runtime.version().await.ok() }).await;
    }

    fn prepare(&self) {
        let run = self.base.join("run");
        fs::create_dir_all(run.join("cni")).unwrap();
        let plugins = PLUGINS.into_iter().find(|dir| Path::new(dir).is_dir()).unwrap();
        let (run, socket, pause) = (run.display(), self.socket(), image::PAUSE);
        let config = format!(
            r#"version = 2
root = "{run}/root"
state = "{run}/state"
[grpc]
  address = "{socket}"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{pause}"
  restrict_oom_score_adj = true
  disable_tcp_service = true
  netns_mounts_under_state_dir = true
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "native"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{plugins}"
    conf_dir = "{run}/cni"
"#,
            socket = socket.display()
        );
        fs::write(self.base.join("run/config.toml"), config).unwrap();
        let network = format!(
            r#"{{"cniVersion": "0.4.0", "name": "podwright", "plugins": [{{"type": "ptp",
"ipam": {{"type": "host-local", "dataDir": "{run}/ipam", "subnet": "10.{}.0.0/16"}}}}]}}"#,
            128 + number(&self.base) % 64
        );
        fs::write(self.base.join("run/cni/10-podwright.conflist"), network).unwrap();
    }

    /// Brings images.
    pub(super) fn import(&self, images: &[&str]) {
        let archive = self.base.join("run/images.tar");
        image::write(Path::new(BUSYBOX), images, &archive);
        self.ctr(&["images", "import", archive.to_str().unwrap()]);
    }

    /// Ends what an earlier run left.
    fn clean(&self) {
        assert!(
            Command::new("sh").args(["-c", STOP, "stop.sh"]).arg(&self.base).arg("now").status().unwrap().success()
        );
    }

    /// Starts who ends it when nobody needs it any more.
    fn watch(&self) {
        let mut command = Command::new("sh");
        command.args(["-c", STOP, "stop.sh"]).arg(&self.base).process_group(0);
        reap(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
    }

    /// Removes every pod that an earlier test left.
    async fn empty(&self) {
        let runtime = Arc::new(self.open(&self.base.join("run")));
        for pod in runtime.list_pods().await.unwrap() {
            for container in &pod.containers {
                runtime.stop_container(&container.id, Duration::ZERO).await.unwrap();
                runtime.remove_container(&container.id, false).await.unwrap();
            }
            for sandbox in &pod.sandboxes {
                if sandbox.state == SandboxState::Ready {
                    runtime.stop_sandbox(&sandbox.id).await.unwrap();
                }
                runtime.remove_sandbox(&sandbox.id).await.unwrap();
            }
        }
    }
}

const STOP: &str = include_str!("stop.sh");

/// Waits for a child that outlives the test, should it end before.
fn reap(mut child: std::process::Child) {
    std::thread::spawn(move || child.wait());
}

/// Where it is: short, because the path of a socket is, and the same for all tests of this checkout.
fn base() -> PathBuf {
    std::env::temp_dir().join(format!("podwright-cri-{:x}", number(Path::new(env!("CARGO_MANIFEST_DIR")))))
}

fn number(path: &Path) -> u32 {
    crc32fast::hash(path.to_str().unwrap().as_bytes())
}

fn can_run() -> Result<(), String> {
    if !rustix::process::geteuid().is_root() {
        return Err("containerd needs root".to_owned());
    }
    let on_path = |name: &str| {
        std::env::var_os("PATH").is_some_and(|path| std::env::split_paths(&path).any(|dir| dir.join(name).exists()))
    };
    if let Some(missing) = ["containerd", "ctr", "runc", "flock"].into_iter().find(|name| !on_path(name)) {
        return Err(format!("{missing} is not installed (apt-get install containerd runc util-linux)"));
    }
    if !PLUGINS.iter().any(|dir| Path::new(dir).join("ptp").exists()) {
        return Err("the CNI plugins are not installed (apt-get install containernetworking-plugins)".to_owned());
    }
    if !Path::new(BUSYBOX).exists() {
        return Err(format!("{BUSYBOX} is not installed (apt-get install busybox-static)"));
    }
    Ok(())
}
