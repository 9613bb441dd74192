//! A process runtime on a directory of its own, and pods for it.

use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Container, Pod, PodSpec};
use podwright::adapters::process::{OpenError, ProcessConfig, ProcessRuntime};
use podwright_actors::ids::{ContainerId, SandboxId};
use podwright_actors::pod::{ContainerKind, PodObject};
use podwright_actors::ports::{ContainerConfig, ContainerRuntime, ContainerState, ContainerStatus, SandboxConfig};
use rustix::fs::{CWD, FileType, Mode, OFlags, mknodat};
use tempfile::TempDir;

use super::disks::unmount_below;
pub(crate) use super::polling::PATIENCE;

/// The settings of every test. The shim is the real binary.
pub(crate) fn config(root: &Path) -> ProcessConfig {
    let mut config = ProcessConfig::new(root);
    config.shim[0] = env!("CARGO_BIN_EXE_podwright").into();
    config
}

/// A root directory. When it is dropped, its containers are killed and the volumes in it are unmounted.
pub(crate) struct Root {
    root: TempDir,
    shared: TempDir,
}

impl Root {
    pub(crate) fn new() -> Self {
        Root { root: tempfile::tempdir().unwrap(), shared: tempfile::tempdir().unwrap() }
    }

    pub(crate) fn path(&self) -> &Path {
        self.root.path()
    }

    /// A directory for files that containers share with the test. They do not see the root directory.
    pub(crate) fn shared(&self) -> &Path {
        self.shared.path()
    }

    pub(crate) async fn open(&self) -> ProcessRuntime {
        self.try_open().await.unwrap()
    }

    pub(crate) async fn open_with(&self, edit: impl FnOnce(&mut ProcessConfig)) -> ProcessRuntime {
        let mut config = config(self.path());
        edit(&mut config);
        ProcessRuntime::open(config).await.unwrap()
    }

    pub(crate) async fn try_open(&self) -> Result<ProcessRuntime, OpenError> {
        ProcessRuntime::open(config(self.path())).await
    }

    /// The directory of a container's records.
    pub(crate) fn records(&self, id: &ContainerId) -> PathBuf {
        self.path().join("process/containers").join(id.as_str())
    }

    /// The root directory of a container.
    pub(crate) fn rootfs(&self, pod: &PodObject, id: &ContainerId) -> PathBuf {
        self.path().join("pods").join(pod.uid().to_string()).join("containers/main").join(id.as_str())
    }

    /// A FIFO on which a container sends a line to the test.
    pub(crate) fn fifo(&self, name: &str) -> Fifo {
        let path = self.shared().join(name);
        mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        Fifo(path)
    }
}

impl Drop for Root {
    fn drop(&mut self) {
        for dir in std::fs::read_dir(self.path().join("process/containers")).into_iter().flatten().flatten() {
            let flags = OFlags::NONBLOCK.bits().cast_signed();
            if let Ok(mut fifo) = OpenOptions::new().write(true).custom_flags(flags).open(dir.path().join("control")) {
                let _ = fifo.write_all(b"KILL\n");
            }
        }
        unmount_below(self.path());
    }
}

/// See [`Root::fifo`].
pub(crate) struct Fifo(PathBuf);

impl Fifo {
    pub(crate) fn path(&self) -> String {
        self.0.to_str().unwrap().to_owned()
    }

    /// The text of the next writer, trimmed.
    pub(crate) async fn read(&self) -> String {
        let path = self.0.clone();
        let read = tokio::task::spawn_blocking(move || std::fs::read_to_string(path).unwrap());
        tokio::time::timeout(PATIENCE, read).await.expect("nobody writes").unwrap().trim().to_owned()
    }

    /// A process id that the next writer writes.
    pub(crate) async fn pid(&self) -> u32 {
        self.read().await.parse().unwrap()
    }
}

/// A pod with one container, `main`.
pub(crate) fn pod(uid: &str, edit: impl FnOnce(&mut PodSpec)) -> Arc<PodObject> {
    let container = Container { name: "main".into(), image: Some("busybox:1".into()), ..Container::default() };
    let mut spec = PodSpec { containers: vec![container], ..PodSpec::default() };
    edit(&mut spec);
    let mut pod = Pod { spec: Some(spec), ..Pod::default() };
    pod.metadata.name = Some(format!("pod-{uid}"));
    pod.metadata.namespace = Some("default".into());
    pod.metadata.uid = Some(uid.into());
    PodObject::new(pod).unwrap()
}

/// A pod like that of [`pod`], whose containers see the processes of the node. A pid in their output is a pid of the node.
pub(crate) fn host_pod(uid: &str, edit: impl FnOnce(&mut PodSpec)) -> Arc<PodObject> {
    pod(uid, |spec| {
        spec.host_pid = Some(true);
        edit(spec);
    })
}

/// A container that runs a shell script.
pub(crate) fn script(pod: &Arc<PodObject>, sandbox: &SandboxId, script: &str) -> ContainerConfig {
    ContainerConfig {
        pod: Arc::clone(pod),
        sandbox: sandbox.clone(),
        kind: ContainerKind::Regular,
        name: "main".to_owned().into(),
        restart_count: 0,
        image_id: "none".into(),
        spec_hash: 42,
        command: ["/bin/sh", "-c", script].map(str::to_owned).into(),
        args: Vec::new(),
        env: Vec::new(),
        mounts: Vec::new(),
        devices: vec![],
        cdi_devices: vec![],
    }
}

pub(crate) async fn sandbox(runtime: &ProcessRuntime, pod: &Arc<PodObject>) -> SandboxId {
    runtime.run_sandbox(SandboxConfig { pod: Arc::clone(pod), attempt: 0 }).await.unwrap()
}

/// Creates and starts `main` of a pod as a shell script, in a sandbox of its own.
pub(crate) async fn run(runtime: &ProcessRuntime, pod: &Arc<PodObject>, text: &str) -> ContainerId {
    let sandbox = sandbox(runtime, pod).await;
    let id = runtime.create_container(script(pod, &sandbox, text)).await.unwrap();
    runtime.start_container(&id).await.unwrap();
    id
}

pub(crate) async fn status(runtime: &ProcessRuntime, pod: &PodObject) -> ContainerStatus {
    runtime.pod_status(pod.uid()).await.unwrap().containers.into_iter().next().expect("the pod has a container")
}

/// Waits until the container of a pod has ended, by the runtime's events.
pub(crate) async fn ended(runtime: &ProcessRuntime, pod: &PodObject) -> ContainerStatus {
    let wait = async {
        loop {
            let status = status(runtime, pod).await;
            if status.state == ContainerState::Exited {
                return status;
            }
            runtime.next_event().await;
        }
    };
    tokio::time::timeout(PATIENCE, wait).await.expect("the container does not end")
}

/// Whether a process runs; a zombie does not.
pub(crate) fn is_alive(pid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat"))
        .is_ok_and(|stat| !stat[stat.rfind(')').unwrap()..].starts_with(") Z"))
}

/// The parent of a process.
pub(crate) fn parent(pid: u32) -> u32 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    stat[stat.rfind(')').unwrap()..].split(' ').nth(2).unwrap().parse().unwrap()
}

/// Sends a signal.
pub(crate) fn kill(pid: u32, signal: rustix::process::Signal) {
    rustix::process::kill_process(rustix::process::Pid::from_raw(pid.cast_signed()).unwrap(), signal).unwrap();
}

#[tokio::test]
async fn root_directory_leaves_no_mount_behind() {
    let root = Root::new();
    let dir = root.path().canonicalize().unwrap();
    let mounts = || std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let at = |name: &str| {
        let path = dir.join(name);
        std::fs::create_dir_all(&path).unwrap();
        path
    };
    let (outer, inner) = (at("pods/u/volumes/ram"), "below");
    let Some(disk) = super::disks::SmallDisk::new(&outer) else { return };
    std::fs::create_dir(outer.join(inner)).unwrap();
    let (below, open) = (outer.join(inner), std::fs::File::create(outer.join("open")).unwrap());
    let nested = super::disks::SmallDisk::new(&below).unwrap();
    std::mem::forget((disk, nested));
    assert_eq!(mounts().matches(dir.to_str().unwrap()).count(), 2);
    drop(root);
    assert!(!mounts().contains(dir.to_str().unwrap()), "{}", mounts());
    assert!(!dir.exists());
    drop(open);
}
