//! What a container cannot see or reach: other containers, volumes that it does not mount, other pods, and the agent.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use k8s_openapi::api::core::v1::{Container, Volume};
use podwright_fixtures::polling::{PATIENCE, until};
use podwright_fixtures::processes::{ended, host_pod, is_alive, kill, parent, pod, run, sandbox, script, status};
use podwright_host::storage::FileStorage;
use podwright_model::ids::{ContainerId, SandboxId};
use podwright_model::pod::PodObject;
use podwright_ports::{ContainerRuntime, Mount, PodStorage, RuntimeError};
use podwright_process::ProcessRuntime;
use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::process::Signal;
use serde_json::json;

use super::settings::main_pid;
use super::unprivileged::as_nobody;
use crate::support::Root;

pub(super) fn shell(text: &str) -> [String; 3] {
    ["sh", "-c", text].map(str::to_owned)
}

/// The output of an exec command.
pub(super) async fn output(runtime: &ProcessRuntime, id: &ContainerId, text: &str) -> String {
    let done = runtime.exec(id, &shell(text), PATIENCE).await.unwrap();
    String::from_utf8(done.output).unwrap()
}

/// How many processes of the node run in the PID namespace with this link.
fn processes_in(namespace: &Path) -> usize {
    let runs = |entry: &std::fs::DirEntry| {
        let pid = entry.file_name().to_str().and_then(|name| name.parse().ok());
        std::fs::read_link(entry.path().join("ns/pid")).is_ok_and(|found| found == namespace)
            && pid.is_some_and(is_alive)
    };
    std::fs::read_dir("/proc").unwrap().flatten().filter(runs).count()
}

/// The PID namespace of a container.
fn namespace(root: &Root, id: &ContainerId) -> PathBuf {
    std::fs::read_link(format!("/proc/{}/ns/pid", main_pid(root, id))).unwrap()
}

/// The pid on the node of a process that a container knows by another pid.
pub(super) fn on_node(root: &Root, id: &ContainerId, pid: u32) -> u32 {
    let namespace = namespace(root, id);
    let is_it = |found: &u32| {
        let status = std::fs::read_to_string(format!("/proc/{found}/status")).unwrap_or_default();
        let inner = status.lines().find_map(|line| line.strip_prefix("NSpid:")?.split_ascii_whitespace().last());
        inner == Some(pid.to_string().as_str())
            && std::fs::read_link(format!("/proc/{found}/ns/pid")).is_ok_and(|found| found == namespace)
    };
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).find(is_it).expect("the process runs")
}

/// A pod whose volumes are set up, with a container `main` and a container `sibling`.
struct TwoContainers {
    pod: Arc<PodObject>,
    sandbox: SandboxId,
    volumes: BTreeMap<String, PathBuf>,
}

impl TwoContainers {
    async fn new(root: &Root, runtime: &ProcessRuntime, uid: &str) -> Self {
        let storage = FileStorage::new(root.path(), Default::default());
        let info = json!({"items": [{"path": "name", "fieldRef": {"fieldPath": "metadata.name"}}]});
        let pod = pod(uid, |spec| {
            let volume = |name: &str| Volume { name: name.into(), ..Volume::default() };
            let info = Volume { downward_api: serde_json::from_value(info).unwrap(), ..volume("info") };
            spec.volumes = Some(vec![volume("data"), info]);
            spec.containers.push(Container { name: "sibling".into(), ..Container::default() });
        });
        let volumes = storage.set_up(&pod).await.unwrap();
        let volumes = volumes.iter().map(|(name, path)| (name.to_string(), path.clone())).collect();
        TwoContainers { sandbox: sandbox(runtime, &pod).await, pod, volumes }
    }

    async fn start(&self, runtime: &ProcessRuntime, name: &str, mounts: &[(&str, &str, bool)]) -> ContainerId {
        let mounts = mounts.iter().map(|(volume, sub_path, read_only)| self.mount(volume, sub_path, *read_only));
        self.try_start(runtime, name, mounts.collect()).await.unwrap()
    }

    async fn try_start(
        &self,
        runtime: &ProcessRuntime,
        name: &str,
        mounts: Vec<Mount>,
    ) -> Result<ContainerId, RuntimeError> {
        let mut config = script(&self.pod, &self.sandbox, "exec sleep 1000");
        config.name = name.to_owned().into();
        config.env = vec![("SECRET".into(), format!("of-{name}"))];
        config.mounts = mounts;
        let id = runtime.create_container(config).await?;
        runtime.start_container(&id).await?;
        Ok(id)
    }

    fn mount(&self, volume: &str, sub_path: &str, read_only: bool) -> Mount {
        Mount {
            volume: volume.into(),
            host_path: self.volumes[volume].join(sub_path),
            sub_path: sub_path.into(),
            container_path: format!("/{volume}"),
            read_only,
            image: None,
        }
    }
}

#[tokio::test]
async fn container_reaches_neither_its_siblings_nor_their_volumes() {
    siblings_are_isolated().await;
}

#[tokio::test]
async fn siblings_are_isolated_for_an_agent_without_rights() {
    if as_nobody(concat!(module_path!(), "::siblings_are_isolated_for_an_agent_without_rights")) {
        siblings_are_isolated().await;
    }
}

async fn siblings_are_isolated() {
    let root = Root::new();
    let runtime = root.open().await;
    let two = TwoContainers::new(&root, &runtime, "u").await;
    let victim = two.start(&runtime, "main", &[("info", "", true), ("data", "", false)]).await;
    assert_eq!(output(&runtime, &victim, "cat info/name; echo mine > data/file").await, "pod-u");
    let evil = two.start(&runtime, "sibling", &[("data", "", true)]).await;

    let (data, info) = (two.volumes["data"].display(), two.volumes["info"].display());
    for (attack, text) in [
        ("enters the volume", format!("cd {info} 2>&1 && echo BAD")),
        ("replaces the data", format!("ln -sfn /etc {info}/x 2>&1; mv -T {info}/x {info}/..data 2>&1 && echo BAD")),
        (
            "finds the pod's directory",
            format!("ls -d {0}/pods/u/*/* 2>&1 | grep -v volumes/kuber", root.path().display()),
        ),
        ("writes to a read-only mount", "touch data/bad 2>&1 && echo BAD".to_owned()),
        ("writes by the path of the volume", format!("touch {data}/bad 2>&1 && echo BAD")),
        (
            "writes by the root of another process",
            format!("for p in /proc/[0-9]*; do touch $p/root{data}/bad 2>/dev/null && echo BAD $p; done"),
        ),
        (
            "reads an environment",
            "cat /proc/[0-9]*/environ 2>/dev/null | tr '\\0' '\\n' | grep -x SECRET=of-main".to_owned(),
        ),
        ("finds the agent", format!("ls {}/process 2>&1 && echo BAD", root.path().display())),
    ] {
        let found = output(&runtime, &evil, &text).await;
        let directory_of_the_container = format!("{}/pods/u/containers/sibling\n", root.path().display());
        assert!(!found.contains("BAD") && !found.contains("SECRET"), "{attack}: {found}");
        if attack.starts_with("finds the pod") {
            assert_eq!(found, directory_of_the_container, "{attack}");
        }
    }
    assert_eq!(output(&runtime, &evil, "cat data/file").await, "mine\n");
    assert_eq!(output(&runtime, &victim, "cat info/name").await, "pod-u");
    assert!(!two.volumes["data"].join("bad").exists());
}

#[tokio::test]
async fn container_sees_only_the_sub_path_of_a_volume_that_it_mounts() {
    let root = Root::new();
    let runtime = root.open().await;
    let two = TwoContainers::new(&root, &runtime, "u").await;
    let data = two.volumes["data"].clone();
    std::fs::create_dir(data.join("real")).unwrap();
    std::os::unix::fs::symlink("real", data.join("a")).unwrap();
    std::fs::write(data.join("real/file"), "in").unwrap();
    std::fs::write(data.join("outside"), "out").unwrap();
    let id = two.start(&runtime, "main", &[("data", "a", false)]).await;
    let text =
        format!("cat data/file; touch data/new && echo; cat {}/outside 2>/dev/null || echo hidden", data.display());
    assert_eq!(output(&runtime, &id, &text).await, "in\nhidden\n");
    assert!(data.join("real/new").exists());
}

#[tokio::test]
async fn sub_path_of_a_directory_above_the_root_of_the_agent_shows_no_file_of_the_agent() {
    let root = Root::new();
    let runtime = root.open().await;
    let two = TwoContainers::new(&root, &runtime, "u").await;
    let name = root.path().file_name().unwrap();
    let above = Mount { host_path: root.path().to_owned(), sub_path: name.into(), ..two.mount("data", "", false) };
    let id = two.try_start(&runtime, "main", vec![above]).await.unwrap();
    let text = "ls -d data/pods; ls data/process data/pods/u/volumes 2>/dev/null && echo BAD";
    assert_eq!(output(&runtime, &id, text).await, "data/pods\n");
}

// A directory that is a mount point cannot be moved or removed.
#[tokio::test]
async fn directory_of_a_sub_path_can_be_moved_and_removed_from_inside() {
    let root = Root::new();
    let runtime = root.open().await;
    let two = TwoContainers::new(&root, &runtime, "u").await;
    let deep = Mount { container_path: "/deep".into(), ..two.mount("data", "one/two/three", false) };
    let id = two.try_start(&runtime, "main", vec![two.mount("data", "", false), deep]).await.unwrap();
    let text = "echo x > deep/file && cat data/one/two/three/file && mv data/one/two/three data/four && rm -r data/one && \
                echo y > deep/file && cat data/four/file";
    assert_eq!(output(&runtime, &id, &format!("({text}) 2>&1")).await, "x\ny\n");
}

// A file that is a mount point can be neither renamed over nor removed.
#[tokio::test]
async fn file_of_a_sub_path_can_be_replaced_and_removed_from_inside() {
    let root = Root::new();
    let runtime = root.open().await;
    let two = TwoContainers::new(&root, &runtime, "u").await;
    let data = two.volumes["data"].clone();
    std::fs::write(data.join("file"), "old\n").unwrap();
    let file = Mount { container_path: "/one".into(), ..two.mount("data", "file", false) };
    let id = two.try_start(&runtime, "main", vec![two.mount("data", "", false), file]).await.unwrap();
    // A mount keeps the file that its name had when the container started.
    let text = "cat one && echo new > data/next && mv data/next data/file && cat data/file one && rm data/file && cat one && \
                echo again > data/file && cat data/file one && echo written > one && cat one data/file";
    let found = output(&runtime, &id, &format!("({text}) 2>&1")).await;
    assert_eq!(found, "old\nnew\nold\nold\nagain\nold\nwritten\nagain\n");
    assert_eq!(std::fs::read_to_string(data.join("file")).unwrap(), "again\n");
}

// A container that reached a directory of the node by its mount could run the node's programs with its own files in that directory.
#[tokio::test]
async fn sub_path_that_is_swapped_for_a_link_covers_no_directory_of_the_node() {
    let root = Root::new();
    let runtime = root.open().await;
    let two = TwoContainers::new(&root, &runtime, "u").await;
    let data = two.volumes["data"].clone();
    let (sub, link) = (data.join("sub"), data.join("link"));
    std::fs::create_dir(&sub).unwrap();
    std::os::unix::fs::symlink("/etc", &link).unwrap();
    let is_over = Arc::new(AtomicBool::new(false));
    let seen = is_over.clone();
    let attack = std::thread::spawn(move || {
        while !seen.load(Ordering::Relaxed) {
            renameat_with(CWD, &sub, CWD, &link, RenameFlags::EXCHANGE).unwrap();
        }
    });
    let mut started = 0;
    for _ in 0..60 {
        // The link itself is refused, because it leads out of the volume.
        let Ok(id) = two.try_start(&runtime, "main", vec![two.mount("data", "sub", false)]).await else { continue };
        let mounts = output(&runtime, &id, "cat /proc/self/mountinfo").await;
        assert!(!mounts.lines().any(|line| line.split(' ').nth(4) == Some("/etc")), "{mounts}");
        runtime.stop_container(&id, Duration::ZERO).await.unwrap();
        started += 1;
    }
    is_over.store(true, Ordering::Relaxed);
    attack.join().unwrap();
    assert!(started > 0, "no container started");
}

#[tokio::test]
async fn processes_of_a_container_are_its_own_unless_it_has_host_pid() {
    let root = Root::new();
    let runtime = root.open().await;
    let own = std::fs::read_link("/proc/self/ns/pid").unwrap();
    for (pod, is_own) in [(pod("a", |_| {}), true), (host_pod("b", |_| {}), false)] {
        let id = run(&runtime, &pod, "exec sleep 1000").await;
        assert_eq!(namespace(&root, &id) != own, is_own);
        let text = format!("test -d /proc/{} && echo sees the test; cat /proc/1/comm", std::process::id());
        let found = output(&runtime, &id, &text).await;
        assert_eq!((found.contains("sees the test"), found == "podwright-init\n"), (!is_own, is_own), "{found}");
    }
}

// The first process of a PID namespace ignores SIGTERM. The command must not be that process.
#[tokio::test]
async fn signal_without_a_handler_ends_a_command_in_its_own_namespace() {
    let root = Root::new();
    let runtime = root.open().await;
    let pod = pod("u", |_| {});
    let id = run(&runtime, &pod, "exec sleep 1000").await;
    runtime.stop_container(&id, Duration::from_secs(600)).await.unwrap();
    assert_eq!(status(&runtime, &pod).await.signal, Some(Signal::TERM.as_raw()));
}

/// Leaves processes that have no environment, no session and no parent of their container.
const HIDE: &str = "env -i setsid sh -c '(sleep 1000 &)' > /dev/null 2>&1 &";

#[tokio::test]
async fn all_processes_of_a_namespace_end_with_the_command_and_with_the_shim() {
    for end in ["command", "shim", "stop"] {
        let root = Root::new();
        let runtime = root.open_with(|config| config.cgroups = false).await;
        let pod = pod("u", |_| {});
        let id = run(&runtime, &pod, &format!("{HIDE} exec sleep 1000")).await;
        output(&runtime, &id, HIDE).await;
        let (main, namespace) = (main_pid(&root, &id), namespace(&root, &id));
        // The two hidden processes, the command, and the first process of the namespace.
        until("the hidden processes run", || processes_in(&namespace) >= 4).await;
        match end {
            "command" => kill(main, Signal::USR2),
            "shim" => kill(parent(main), Signal::KILL),
            _ => runtime.stop_container(&id, Duration::from_secs(60)).await.unwrap(),
        }
        let exit = ended(&runtime, &pod).await;
        assert_eq!(processes_in(&namespace), 0, "{end}");
        let expected = match end {
            "command" => (140, "Error"),
            "shim" => (137, "ContainerStatusUnknown"),
            _ => (143, "Error"),
        };
        assert_eq!((exit.exit_code, exit.reason.as_str()), expected, "{}", exit.message);
    }
}

#[tokio::test]
async fn exec_command_cannot_outlive_its_container_by_killing_its_keeper() {
    if as_nobody(concat!(module_path!(), "::exec_command_cannot_outlive_its_container_by_killing_its_keeper")) {
        let root = Root::new();
        let runtime = root.open().await;
        let pod = pod("u", |_| {});
        let id = run(&runtime, &pod, "exec sleep 1000").await;
        let mark = root.path().display();
        // Once the file exists, the command line of the hidden process contains the mark.
        let attack = format!(
            "env -i setsid sh -c 'echo > begun; sleep 1000; : {mark}' > /dev/null 2>&1 & \
             until [ -e begun ]; do sleep 0.1; done; kill -9 $PPID"
        );
        let _ = runtime.exec(&id, &shell(&attack), PATIENCE).await;
        let marked = || {
            let lines = std::fs::read_dir("/proc").unwrap().flatten();
            let lines = lines.filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok());
            lines.filter(|line| String::from_utf8_lossy(line).contains(&format!(": {mark}"))).count()
        };
        until("only the hidden process runs", || marked() == 1).await;
        runtime.stop_container(&id, Duration::ZERO).await.unwrap();
        assert_eq!(marked(), 0);
    }
}

#[tokio::test]
async fn container_in_its_own_namespace_is_adopted() {
    let root = Root::new();
    let pod = pod("u", |_| {});
    let first = root.open().await;
    let id = run(&first, &pod, "exec sleep 1000").await;
    let namespace = namespace(&root, &id);
    drop(first);
    let second = root.open().await;
    assert_eq!(output(&second, &id, "cat /proc/1/comm").await, "podwright-init\n");
    second.stop_container(&id, Duration::from_secs(600)).await.unwrap();
    assert_eq!(status(&second, &pod).await.exit_code, 143);
    assert_eq!(processes_in(&namespace), 0);
}

#[tokio::test]
async fn status_has_the_user_of_the_command() {
    let root = Root::new();
    let user = rustix::process::geteuid().as_raw();
    let pod = pod("u", |_| {});
    for _ in 0..2 {
        // The second runtime has it from the record.
        let runtime = root.open().await;
        if runtime.pod_status(pod.uid()).await.unwrap().containers.is_empty() {
            run(&runtime, &pod, "true").await;
        }
        let applied = ended(&runtime, &pod).await.applied.unwrap();
        let applied = applied.user.unwrap();
        assert_eq!(applied.uid, i64::from(user));
        assert!(applied.groups.contains(&applied.gid), "{applied:?}");
    }
}
