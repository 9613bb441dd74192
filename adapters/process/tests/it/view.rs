//! What a container finds in its file system, and which part of it is read-only.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{SecurityContext, VolumeMount};
use podwright_fixtures::polling::PATIENCE;
use podwright_fixtures::processes::{ended, pod, run, sandbox, script};
use podwright_model::ids::ContainerId;
use podwright_model::pod::PodObject;
use podwright_ports::{ContainerRuntime, Mount};
use podwright_process::ProcessRuntime;
use rustix::mount::{MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_change, unmount};

use super::isolation::{output, shell};
use crate::support::Root;

/// A file system in memory that the node shares with new mount namespaces. Unmounted when it is dropped.
struct Tmpfs(PathBuf);

impl Tmpfs {
    /// `None` if the test may not mount.
    fn new(at: PathBuf) -> Option<Self> {
        std::fs::create_dir_all(&at).unwrap();
        mount("test", &at, "tmpfs", MountFlags::empty(), None).ok()?;
        let mounted = Tmpfs(at);
        mount_change(&mounted.0, MountPropagationFlags::SHARED).unwrap();
        Some(mounted)
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        let _ = unmount(&self.0, UnmountFlags::DETACH);
    }
}

/// A pod whose container has this mount propagation for the volume `v`.
fn pod_with(uid: &str, propagation: Option<&str>, read_only_root: bool, log: Option<&str>) -> Arc<PodObject> {
    pod(uid, |spec| {
        let main = &mut spec.containers[0];
        main.volume_mounts = Some(vec![VolumeMount {
            name: "v".into(),
            mount_path: "/v".into(),
            mount_propagation: propagation.map(str::to_owned),
            ..VolumeMount::default()
        }]);
        main.termination_message_path = log.map(str::to_owned);
        main.security_context =
            Some(SecurityContext { read_only_root_filesystem: Some(read_only_root), ..SecurityContext::default() });
    })
}

/// Starts the container of a pod with the directory `host_path` at `/v`.
async fn start(
    runtime: &ProcessRuntime,
    pod: &Arc<PodObject>,
    text: &str,
    (host_path, read_only): (&Path, bool),
) -> ContainerId {
    let mut config = script(pod, &sandbox(runtime, pod).await, text);
    config.mounts = vec![Mount {
        volume: "v".into(),
        host_path: host_path.to_owned(),
        sub_path: "".into(),
        container_path: "/v".into(),
        read_only,
        image: None,
    }];
    let id = runtime.create_container(config).await.unwrap();
    runtime.start_container(&id).await.unwrap();
    id
}

#[tokio::test]
async fn later_mounts_of_the_node_appear_only_where_the_mount_propagation_requests_them() {
    let root = Root::new();
    let runtime = root.open().await;
    let Some(shared) = Tmpfs::new(root.shared().join("shared")) else {
        return eprintln!("skipped: this process may not mount");
    };
    for (uid, propagation, appears) in
        [("none", None, false), ("slave", Some("HostToContainer"), true), ("read-only-root", None, false)]
    {
        let is_read_only_root = uid == "read-only-root";
        let dir = shared.0.join(uid);
        std::fs::create_dir_all(dir.join("late")).unwrap();
        // With a read-only root, the rest of the node is read-only, and so are mounts that come later.
        let (other, late) = (root.shared().join("other"), dir.join("late"));
        std::fs::create_dir_all(&other).unwrap();
        let pod = pod_with(uid, propagation, is_read_only_root, None);
        let volume = if is_read_only_root { (other.as_path(), false) } else { (dir.as_path(), true) };
        let id = start(&runtime, &pod, "exec sleep 1000", volume).await;
        let mounted = Tmpfs::new(late.clone()).unwrap();
        let text = format!("echo x > {}/file && echo written", late.display());
        let found = output(&runtime, &id, &format!("({text}) 2>/dev/null")).await;
        assert_eq!((found.as_str() == "written\n", mounted.0.join("file").exists()), (appears, appears), "{uid}");
        runtime.stop_container(&id, Duration::ZERO).await.unwrap();
    }
}

#[tokio::test]
async fn container_with_a_read_only_root_and_its_termination_log_in_a_volume_starts_again() {
    let root = Root::new();
    let runtime = root.open().await;
    let volume = root.path().join("volume");
    std::fs::create_dir(&volume).unwrap();
    for uid in ["first", "second"] {
        let pod = pod_with(uid, None, true, Some("/v/log"));
        start(&runtime, &pod, &format!("printf {uid} > $PODWRIGHT_TERMINATION_LOG"), (&volume, false)).await;
        let exit = ended(&runtime, &pod).await;
        assert_eq!(exit.exit_code, 0, "{uid}: {}", exit.message);
        assert_eq!(std::fs::read_to_string(volume.join("log")).unwrap(), uid);
    }
}

#[tokio::test]
async fn read_only_volume_above_the_root_of_the_agent_leaves_the_own_root_of_a_container_writable() {
    let root = Root::new();
    let runtime = root.open().await;
    let above = root.path().parent().unwrap();
    for (uid, read_only_root, expected) in [("a", false, "own"), ("b", true, "")] {
        let pod = pod_with(uid, None, read_only_root, None);
        let text = format!(
            "(echo > file) 2>/dev/null && printf own > dev/termination-log; (echo > {}/bad-{uid}) 2>/dev/null && printf bad > dev/termination-log; true",
            above.display()
        );
        start(&runtime, &pod, &text, (above, true)).await;
        assert_eq!(ended(&runtime, &pod).await.message, expected, "{uid}");
    }
}

#[tokio::test]
async fn volume_with_the_processes_of_the_node_has_the_processes_of_the_node() {
    let root = Root::new();
    let runtime = root.open().await;
    let pod = pod_with("u", None, false, None);
    let id = start(&runtime, &pod, "exec sleep 1000", (Path::new("/proc"), true)).await;
    let text = format!(
        "cat $PODWRIGHT_ROOTFS/v/{}/comm > /dev/null && echo sees; (echo 500 > $PODWRIGHT_ROOTFS/v/self/oom_score_adj) \
         2>/dev/null && echo writes",
        std::process::id()
    );
    assert_eq!(output(&runtime, &id, &text).await, "sees\n");
}

#[tokio::test]
async fn list_of_mounts_has_no_volumes_of_other_pods() {
    let root = Root::new();
    let runtime = root.open().await;
    let Some(other) = Tmpfs::new(root.path().join("pods/other/volumes/secret-name")) else {
        return eprintln!("skipped: this process may not mount");
    };
    let id = run(&runtime, &pod("u", |_| {}), "exec sleep 1000").await;
    // Other tests mount volumes too, and the output of an exec command is limited.
    let table = output(&runtime, &id, "grep -e /pods/u/ -e secret-name /proc/self/mountinfo").await;
    assert!(table.contains("/pods/u/") && !table.contains("secret-name"), "{table}");
    drop(other);
}

#[tokio::test]
async fn processes_without_the_environment_of_their_container_count_for_its_usage() {
    let root = Root::new();
    let runtime = root.open_with(|config| config.cgroups = false).await;
    let ready = root.fifo("ready");
    for uid in ["own", "node"] {
        let pod = pod(uid, |spec| spec.host_pid = Some(uid == "node"));
        let text = format!(
            "env -i sh -c 'setsid sh -c \"echo > {}; exec sleep 1000\" & exec sleep 1000' & exec sleep 1000",
            ready.path()
        );
        let id = run(&runtime, &pod, &text).await;
        ready.read().await;
        let usage = runtime.process_usage(pod.uid()).await.unwrap();
        assert_eq!(usage["main"].processes, 3, "{uid}");
        assert!(usage["main"].memory > 0, "{uid}");
        runtime.exec(&id, &shell("true"), PATIENCE).await.unwrap();
    }
}
