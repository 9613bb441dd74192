//! CDI devices of containers of containerd. containerd 1.6 has no CDI, so the agent applies them. A later one applies them itself.

use std::fs;
use std::time::Duration;

use podwright_containerd::Containerd;
use podwright_containerd::image::BUSYBOX;
use podwright_fixtures::processes::script;
use podwright_model::pod::PodObject;
use podwright_ports::{ContainerConfig, ContainerRuntime, ContainerState, ImageRequest, SandboxConfig};
use serde_json::json;
use tokio_util::sync::CancellationToken;

/// Prints what the device has given to the container.
const SCRIPT: &str = "echo $GPU $MINE $ALL; cat /opt/vendor/file; test -c /dev/gpu0 && echo x > /dev/gpu0 && \
                      echo \"[$(cat /dev/gpu0)]\"; (echo y > /opt/vendor/file) 2>/dev/null || echo read-only; id -G";

#[tokio::test]
async fn a_container_of_containerd_has_the_edits_of_its_cdi_device() {
    let Some(containerd) = Containerd::turn().await else { return };
    let root = tempfile::tempdir().unwrap();
    let runtime = containerd.open(root.path());
    let lib = root.path().join("lib");
    fs::create_dir(&lib).unwrap();
    fs::write(lib.join("file"), "of the vendor\n").unwrap();
    let edits = json!({
        "env": ["GPU=g0", "MINE=device"],
        "mounts": [{"hostPath": lib, "containerPath": "/opt/vendor", "options": ["ro", "nosuid", "bind"]}],
        "deviceNodes": [{"path": "/dev/gpu0", "hostPath": "/dev/null"}],
        "additionalGids": [34567],
    });
    let spec = json!({"cdiVersion": "0.7.0", "kind": "vendor.example/gpu", "containerEdits": {"env": ["ALL=yes"]},
        "devices": [{"name": "g0", "containerEdits": edits}]});
    let file = containerd.cdi_directory().join("vendor.json");
    fs::write(&file, spec.to_string()).unwrap();

    let containers = json!([{"name": "main", "image": BUSYBOX}]);
    let pod = json!({"metadata": {"name": "p", "namespace": "n", "uid": "u"}, "spec": {"containers": containers}});
    let pod = PodObject::new(serde_json::from_value(pod).unwrap()).unwrap();
    let sandbox = runtime.run_sandbox(SandboxConfig { pod: pod.clone(), attempt: 0 }).await.unwrap();
    let request = ImageRequest { pod: &pod, container: None, image: BUSYBOX, pull_policy: None };
    let image_id = runtime.ensure_image(request, &CancellationToken::new()).await.unwrap();
    let config = |restart_count, device: &str| ContainerConfig {
        restart_count,
        image_id: image_id.clone(),
        env: vec![("MINE".into(), "pod".into())],
        cdi_devices: vec![device.into()],
        ..script(&pod, &sandbox, "exec sleep 1000")
    };
    // A device that does not exist stops the start, whoever looks for it.
    let error = runtime.create_container(config(0, "vendor.example/gpu=g1")).await.unwrap_err();
    assert!(podwright_model::text::error_chain(&error).to_string().contains("vendor.example/gpu=g1"), "{error}");

    let id = runtime.create_container(config(1, "vendor.example/gpu=g0")).await.unwrap();
    runtime.start_container(&id).await.unwrap();
    let command = ["/bin/sh", "-c", SCRIPT].map(str::to_owned);
    let output = runtime.exec(&id, &command, Duration::from_secs(60)).await.unwrap();
    let text = String::from_utf8(output.output).unwrap();
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines[..4], ["g0 device yes", "of the vendor", "[]", "read-only"], "{text}");
    assert!(lines[4].split(' ').any(|group| group == "34567"), "{text}");

    runtime.stop_container(&id, Duration::ZERO).await.unwrap();
    let status = runtime.pod_status(pod.uid()).await.unwrap();
    assert!(status.containers.iter().all(|container| container.state == ContainerState::Exited));
    fs::remove_file(file).unwrap();
}
