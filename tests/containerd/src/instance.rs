//! The containerds of all tests and benches of this checkout, each with its own root, state, socket, cgroups and network.
//!
//! A node agent stops pods that it does not know, so only one test at a time may use a containerd. It holds a file lock, which
//! the kernel releases if the test is killed. The first test starts containerd, and a watcher process
//! ends it with all its containers when no test has held the lock for some seconds.

use std::fs::{self, File, OpenOptions};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use crate::image;

/// The paths of programs that must be installed.
const BUSYBOX: &str = "/bin/busybox";
const PLUGINS: [&str; 2] = ["/usr/lib/cni", "/opt/cni/bin"];
const STOP: &str = include_str!("stop.sh");

/// The number of containerds. At most this many tests use containerd at a time: `.config/nextest.toml` has the same number.
const INSTANCES: u32 = 3;

/// A containerd, while this value holds its lock.
pub struct Instance {
    number: u32,
    base: PathBuf,
    /// The lock. It is released when the process ends.
    turn: File,
}

impl Instance {
    /// Takes a containerd that nothing uses, or waits for one. Blocks the thread.
    ///
    /// # Errors
    /// Why containerd cannot be run here.
    pub fn turn() -> Result<Self, String> {
        can_run()?;
        let lock = |number| {
            let base = base(number);
            fs::create_dir_all(&base).unwrap();
            let turn = OpenOptions::new().create(true).append(true).open(base.with_extension("turn")).unwrap();
            Instance { number, base, turn }
        };
        if let Some(free) = (0..INSTANCES).map(lock).find(|instance| instance.turn.try_lock().is_ok()) {
            return Ok(free);
        }
        // More tests run at a time than there are containerds, for example with `cargo test`.
        let waiting = lock(std::process::id() % INSTANCES);
        waiting.turn.lock().unwrap();
        Ok(waiting)
    }

    /// The root of the cgroups of its pods, which are apart from those of a node on the same machine.
    pub fn cgroup_root(&self) -> String {
        format!("/podwright-tests-{:x}-{}", checkout(), self.number)
    }

    /// Whether containerd runs. An earlier test may have started it.
    pub fn runs(&self) -> bool {
        UnixStream::connect(self.socket()).is_ok()
    }

    /// The socket on which it answers.
    pub fn socket(&self) -> PathBuf {
        self.base.join("c.sock")
    }

    /// The directory of its files and of the test's files.
    pub fn directory(&self) -> PathBuf {
        self.base.join("run")
    }

    /// Runs `ctr` and returns its output.
    pub fn ctr(&self, args: &[&str]) -> String {
        let output = self.try_ctr(args);
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// Runs `ctr`, which may fail.
    pub fn try_ctr(&self, args: &[&str]) -> Output {
        let mut command = Command::new("ctr");
        command.arg("--address").arg(self.socket()).args(["--namespace", "k8s.io"]).args(args).output().unwrap()
    }

    /// Kills containerd. Its containers continue.
    pub fn crash(&self) {
        let pid = fs::read_to_string(self.base.join("run/pid")).unwrap().parse().unwrap();
        kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
    }

    /// Starts containerd on its present state. It answers some time later.
    pub fn start(&self) {
        let run = self.directory();
        let log = OpenOptions::new().create(true).append(true).open(run.join("log")).unwrap();
        let mut command = Command::new("containerd");
        command.arg("--config").arg(run.join("config.toml")).stdin(Stdio::null());
        // Its own group: a terminal's interrupt is for its users, and the watcher ends it.
        let child = command.stdout(log.try_clone().unwrap()).stderr(log).process_group(0).spawn().unwrap();
        fs::write(run.join("pid"), child.id().to_string()).unwrap();
        reap(child);
    }

    /// Ends everything that an earlier run left, and creates the directory again.
    pub fn prepare(&self) {
        assert!(self.stop().arg("now").status().unwrap().success());
        let run = self.base.join("run");
        fs::create_dir_all(run.join("cni")).unwrap();
        fs::create_dir_all(run.join("cdi")).unwrap();
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
  enable_cdi = true
  cdi_spec_dirs = ["{run}/cdi"]
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "{snapshotter}"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{plugins}"
    conf_dir = "{run}/cni"
"#,
            socket = socket.display(),
            // overlayfs cannot be mounted on overlayfs.
            snapshotter = if is_overlay(&self.base) { "native" } else { "overlayfs" },
        );
        fs::write(self.base.join("run/config.toml"), config).unwrap();
        let network = format!(
            r#"{{"cniVersion": "0.4.0", "name": "podwright", "plugins": [{{"type": "ptp",
"ipam": {{"type": "host-local", "dataDir": "{run}/ipam", "subnet": "10.{}.{}.0/18"}}}}]}}"#,
            128 + checkout() % 64,
            64 * self.number,
        );
        fs::write(self.base.join("run/cni/10-podwright.conflist"), network).unwrap();
    }

    /// The cgroups of the containers and sandboxes that run.
    pub fn cgroups(&self) -> Vec<String> {
        let tasks = self.directory().join("state/io.containerd.runtime.v2.task/k8s.io");
        let specs = fs::read_dir(tasks).into_iter().flatten().flatten().map(|task| task.path().join("config.json"));
        // A task may end meanwhile.
        let specs = specs.filter_map(|path| serde_json::from_slice::<serde_json::Value>(&fs::read(path).ok()?).ok());
        specs.filter_map(|spec| Some(spec["linux"]["cgroupsPath"].as_str()?.to_owned())).collect()
    }

    /// Imports the images. containerd must answer.
    pub fn import(&self, images: &[&str]) {
        let archive = self.base.join("run/images.tar");
        image::write(Path::new(BUSYBOX), images, &archive);
        self.ctr(&["images", "import", archive.to_str().unwrap()]);
    }

    /// Starts the watcher, which ends containerd when no test uses it.
    pub fn watch(&self) {
        let mut command = self.stop();
        command.process_group(0).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        reap(command.spawn().unwrap());
    }

    /// The script that ends this containerd.
    fn stop(&self) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", STOP, "stop.sh"]).arg(&self.base).arg(self.cgroup_root());
        command
    }
}

/// Reaps a child process that may end before this process.
fn reap(mut child: std::process::Child) {
    std::thread::spawn(move || child.wait());
}

/// The base path. It is short, because the path of a socket is limited, and equal for all tests of this checkout.
fn base(number: u32) -> PathBuf {
    std::env::temp_dir().join(format!("podwright-cri-{:x}-{number}", checkout()))
}

/// A number that identifies this checkout.
fn checkout() -> u32 {
    crc32fast::hash(env!("CARGO_MANIFEST_DIR").as_bytes())
}

fn is_overlay(path: &Path) -> bool {
    // Linux `OVERLAYFS_SUPER_MAGIC`.
    rustix::fs::statfs(path).is_ok_and(|found| found.f_type == 0x794c_7630)
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
