//! CDI devices of containers of the process runtime.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use podwright_fixtures::processes::{ended, pod, sandbox, script};
use podwright_model::pod::PodObject;
use podwright_model::text::error_chain;
use podwright_ports::{ContainerConfig, ContainerRuntime, RuntimeError};
use podwright_process::ProcessRuntime;
use serde_json::{Value, json};

use crate::support::Root;

/// The name of the device of [`Node::write`].
const DEVICE: &str = "vendor.example/gpu=g0";

/// A directory of specifications, and the files of a device.
struct Node {
    dir: tempfile::TempDir,
}

impl Node {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        // Containers of other users must reach the files.
        fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).unwrap();
        for name in ["cdi", "lib"] {
            fs::create_dir(dir.path().join(name)).unwrap();
        }
        fs::write(dir.path().join("lib/file"), "of the vendor\n").unwrap();
        Node { dir }
    }

    fn lib(&self) -> PathBuf {
        self.dir.path().join("lib")
    }

    fn specs(&self) -> PathBuf {
        self.dir.path().join("cdi")
    }

    /// Writes the specification of a device with these edits.
    fn write(&self, edits: Value) {
        let devices = json!([{"name": "g0", "containerEdits": edits}]);
        let spec = json!({"cdiVersion": "1.1.0", "kind": "vendor.example/gpu", "devices": devices,
            "containerEdits": {"env": ["ALL=yes"]}});
        fs::write(self.specs().join("vendor.json"), spec.to_string()).unwrap();
    }

    async fn open(&self, root: &Root) -> ProcessRuntime {
        root.open_with(|config| config.cdi_directories = vec![self.specs()]).await
    }
}

/// A container with the device that runs a script.
fn with_device(pod: &Arc<PodObject>, sandbox: &podwright_model::ids::SandboxId, text: &str) -> ContainerConfig {
    ContainerConfig { cdi_devices: vec![DEVICE.into()], ..script(pod, sandbox, text) }
}

async fn refusal(runtime: &ProcessRuntime, config: ContainerConfig) -> String {
    match runtime.create_container(config).await {
        Err(error @ (RuntimeError::Config(_) | RuntimeError::MissingDevice(_))) => error_chain(&error).to_string(),
        other => panic!("not refused: {other:?}"),
    }
}

fn log(runtime: &ProcessRuntime, id: &podwright_model::ids::ContainerId) -> Vec<String> {
    let log = fs::read_to_string(runtime.log_path(id).unwrap()).unwrap();
    log.lines().map(|line| line.splitn(4, ' ').nth(3).unwrap().to_owned()).collect()
}

#[tokio::test]
async fn a_container_sees_the_variables_mounts_and_device_nodes_of_its_device() {
    let (root, node) = (Root::new(), Node::new());
    node.write(json!({
        "env": ["GPU=g0", "MINE=device"],
        "mounts": [{"hostPath": node.lib(), "containerPath": "/opt/vendor", "options": ["ro", "nosuid", "rbind"]}],
        "deviceNodes": [{"path": "/dev/gpu0", "hostPath": "/dev/null"}],
    }));
    let runtime = node.open(&root).await;
    // A container as root, and one of a user who may not use the node's device unless the runtime gives it to the user.
    for user in [None, rustix::process::geteuid().is_root().then_some(12345)] {
        let uid = format!("u{}", user.unwrap_or(0));
        let pod = pod(&uid, |spec| {
            spec.containers[0].security_context = user.map(|user| k8s_openapi::api::core::v1::SecurityContext {
                run_as_user: Some(user),
                ..Default::default()
            });
        });
        let sandbox = sandbox(&runtime, &pod).await;
        let text = "echo $GPU $MINE $ALL; cd $PODWRIGHT_ROOTFS; cat opt/vendor/file; cat $PODWRIGHT_MOUNT_CDI_OPT_VENDOR/file; \
                    test -c dev/gpu0 && echo x > dev/gpu0 && echo \"[$(cat dev/gpu0)]\"; \
                    (echo y > opt/vendor/file) 2>/dev/null || echo read-only";
        let mut config = with_device(&pod, &sandbox, text);
        config.env.push(("MINE".into(), "pod".into()));
        let id = runtime.create_container(config).await.unwrap();
        runtime.start_container(&id).await.unwrap();
        assert_eq!(ended(&runtime, &pod).await.exit_code, 0);
        let lines = log(&runtime, &id);
        assert_eq!(lines, ["g0 device yes", "of the vendor", "of the vendor", "[]", "read-only"], "{user:?}");
        // The device node is removed with the container, and the device of the node stays.
        let node_path = root.rootfs(&pod, &id).join("dev/gpu0");
        assert!(node_path.exists());
        runtime.remove_container(&id, false).await.unwrap();
        assert!(!node_path.exists() && Path::new("/dev/null").exists());
    }
}

#[tokio::test]
async fn a_device_that_cannot_be_resolved_stops_the_start() {
    let (root, node) = (Root::new(), Node::new());
    let runtime = node.open(&root).await;
    let pod = pod("u", |_| {});
    let sandbox = sandbox(&runtime, &pod).await;
    let config = || with_device(&pod, &sandbox, "exit 0");
    let lost = runtime.create_container(config()).await;
    assert!(matches!(lost, Err(RuntimeError::MissingDevice(_))), "the claim can be prepared again: {lost:?}");
    let unknown = refusal(&runtime, config()).await;
    assert!(unknown.contains("no CDI specification has device vendor.example/gpu=g0"), "{unknown}");
    assert!(unknown.contains(node.specs().to_str().unwrap()), "{unknown}");

    // A later specification is read without a restart, and the retry succeeds.
    node.write(json!({"env": ["A=1"]}));
    runtime.create_container(config()).await.unwrap();
    fs::set_permissions(node.specs(), Permissions::from_mode(0o777)).unwrap();
    let untrusted = refusal(&runtime, config()).await;
    assert!(untrusted.contains("other users can write to") && untrusted.contains("chmod go-w"), "{untrusted}");
}

#[tokio::test]
async fn edits_that_processes_cannot_get_stop_the_start() {
    let (root, node) = (Root::new(), Node::new());
    let runtime = node.open(&root).await;
    let pod = pod("u", |_| {});
    let sandbox = sandbox(&runtime, &pod).await;
    let mount = |host: &str, at: &str, options: Value| json!({"mounts": [{"hostPath": host, "containerPath": at, "options": options}]});
    let lib = node.lib().to_str().unwrap().to_owned();
    let device = |more: Value| {
        let mut device = json!({"path": "/dev/gpu0", "hostPath": "/dev/null"});
        device.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        json!({"deviceNodes": [device]})
    };
    let mut both = device(json!({"path": "/opt/vendor/gpu0"}));
    both.as_object_mut().unwrap().extend(mount(&lib, "/opt/vendor", json!([])).as_object().unwrap().clone());
    for (edits, expected) in [
        (
            json!({"hooks": [{"hookName": "createContainer", "path": "/bin/hook"}]}),
            "CDI hook createContainer \"/bin/hook\" cannot be applied",
        ),
        (json!({"intelRdt": {"closID": "x"}}), "CDI intelRdt cannot be applied"),
        (
            json!({"netDevices": [{"hostInterfaceName": "eth1", "name": "eth0"}]}),
            "CDI netDevices \"eth1\" cannot be applied",
        ),
        (mount("/nowhere/at/all", "/opt/v", json!(["ro"])), "mount of \"/nowhere/at/all\" at \"/opt/v\""),
        (mount(&lib, "/opt/v", json!(["rshared"])), "later mounts"),
        (mount(&lib, "/opt/../..", json!([])), "without `..`"),
        (device(json!({"permissions": "r"})), "its permissions are \"r\""),
        (device(json!({"permissions": "none"})), "its permissions are \"none\""),
        (device(json!({"hostPath": "/nowhere/gpu0"})), "check that the device exists"),
        (device(json!({"path": "/dev/termination-log"})), "overlaps a mount or the termination log"),
        (both, "overlaps a mount or the termination log"),
        (json!({"additionalGids": [1879048192]}), "additionalGids 1879048192"),
    ] {
        node.write(edits);
        let text = refusal(&runtime, with_device(&pod, &sandbox, "exit 0")).await;
        assert!(text.contains(expected), "{text}: {expected}");
    }
    assert!(runtime.pod_status(pod.uid()).await.unwrap().containers.is_empty());
    assert!(!node.lib().join("gpu0").exists(), "no device node is created in a mount");
}

#[tokio::test]
async fn device_nodes_and_groups_are_those_of_the_specification() {
    if !rustix::process::geteuid().is_root() {
        return eprintln!("skipped: only root creates device nodes and changes groups");
    }
    let (root, node) = (Root::new(), Node::new());
    node.write(json!({
        "deviceNodes": [
            {"path": "/dev/own", "hostPath": "/dev/null", "fileMode": 0o640, "uid": 12345, "gid": 23456},
            {"path": "/dev/pipe", "type": "p"},
        ],
        "additionalGids": [34567, 0],
    }));
    let runtime = node.open(&root).await;
    let pod = pod("u", |_| {});
    let sandbox = sandbox(&runtime, &pod).await;
    let text = "id -G; stat -c '%F %a %u %g' dev/pipe; stat -c '%F %a %u %g %t:%T' dev/own";
    let id = match runtime.create_container(with_device(&pod, &sandbox, text)).await {
        Ok(id) => id,
        // Without the right to create device nodes, the difference from the node's own device is an error.
        Err(error) => {
            return assert!(error_chain(&error).to_string().contains("its fileMode is not that of"), "{error}");
        }
    };
    runtime.start_container(&id).await.unwrap();
    assert_eq!(ended(&runtime, &pod).await.exit_code, 0);
    let expected = ["0 34567", "fifo 666 0 0", "character special file 640 12345 23456 1:3"];
    assert_eq!(log(&runtime, &id), expected);
}
