//! A node that changes from a kubelet to the agent.

use std::collections::HashMap;
use std::path::Path;

use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use podwright_cri::v1;
use podwright_cri::v1::runtime_service_client::RuntimeServiceClient;
use tonic::transport::Channel;

use super::containerd::Containerd;
use super::{calls, image};
use crate::agent::harness::{AgentHome, container, eventually, is_ready, manifest};

/// The hash that kubelet 1.36 computes for a container `main` of the image `docker.io/library/busybox:stable`.
const HASH: &str = "c7bba485";

/// Makes a static pod as a kubelet does: with its labels and annotations, and its log directory. Returns the ID of the
/// container.
async fn kubelet_pod(
    containerd: &Containerd,
    mut runtime: RuntimeServiceClient<Channel>,
    name: &str,
    uid: &str,
    logs: &Path,
) -> Result<String, tonic::Status> {
    let of_pod = [("name", name), ("namespace", "default"), ("uid", uid)];
    let labels: HashMap<_, _> =
        of_pod.iter().map(|(key, value)| (format!("io.kubernetes.pod.{key}"), (*value).to_owned())).collect();
    let source = [("source", "file"), ("hash", uid), ("seen", "2026-11-01T10:00:00.000000000Z")];
    let log_directory = logs.join(format!("default_{name}_{uid}"));
    std::fs::create_dir_all(log_directory.join("main"))?;
    let sandbox = v1::PodSandboxConfig {
        metadata: Some(v1::PodSandboxMetadata {
            name: name.into(),
            uid: uid.into(),
            namespace: "default".into(),
            attempt: 0,
        }),
        hostname: name.into(),
        log_directory: log_directory.display().to_string(),
        labels: labels.clone(),
        annotations: source
            .iter()
            .map(|(key, value)| (format!("kubernetes.io/config.{key}"), (*value).to_owned()))
            .collect(),
        linux: Some(v1::LinuxPodSandboxConfig { cgroup_parent: containerd.cgroup_root(), ..Default::default() }),
        ..Default::default()
    };
    let request = v1::RunPodSandboxRequest { config: Some(sandbox.clone()), ..Default::default() };
    let pod_sandbox_id = runtime.run_pod_sandbox(request).await?.into_inner().pod_sandbox_id;
    let mut labels = labels;
    labels.insert("io.kubernetes.container.name".into(), "main".into());
    let annotations = [
        ("hash", HASH),
        ("restartCount", "0"),
        ("terminationMessagePath", "/dev/termination-log"),
        ("terminationMessagePolicy", "File"),
    ];
    let config = v1::ContainerConfig {
        metadata: Some(v1::ContainerMetadata { name: "main".into(), attempt: 0 }),
        image: Some(v1::ImageSpec { image: image::BUSYBOX.into(), ..Default::default() }),
        command: ["/bin/sh", "-c", "trap exit TERM; while true; do sleep 0.2; done"].map(str::to_owned).into(),
        labels,
        annotations: annotations
            .iter()
            .map(|(key, value)| (format!("io.kubernetes.container.{key}"), (*value).to_owned()))
            .chain([("io.kubernetes.pod.terminationGracePeriod".to_owned(), "2".to_owned())])
            .collect(),
        log_path: "main/0.log".into(),
        linux: Some(v1::LinuxContainerConfig::default()),
        ..Default::default()
    };
    let request = v1::CreateContainerRequest { pod_sandbox_id, config: Some(config), sandbox_config: Some(sandbox) };
    let container_id = runtime.create_container(request).await?.into_inner().container_id;
    runtime.start_container(v1::StartContainerRequest { container_id: container_id.clone() }).await?;
    Ok(container_id)
}

/// The process of a running container.
fn pid(containerd: &Containerd, container: &str) -> Option<String> {
    let tasks = containerd.ctr(&["tasks", "list"]);
    let line = tasks.lines().find(|line| line.starts_with(container) && line.contains("RUNNING"))?;
    line.split_whitespace().nth(1).map(str::to_owned)
}

#[tokio::test]
async fn kubelet_pods_are_adopted_without_a_restart_and_stop_with_their_manifests() {
    let Some(containerd) = Containerd::turn().await else { return };
    let home = AgentHome::new();
    let runtime = calls::connect(&containerd.socket()).unwrap();
    let logs = home.root().join("kubelet-logs");
    let web = "0123456789abcdef0123456789abcdef";
    let id = kubelet_pod(&containerd, runtime.clone(), "web-n1", web, &logs).await.unwrap();
    let other =
        kubelet_pod(&containerd, runtime.clone(), "other-n1", "fedcba9876543210fedcba9876543210", &logs).await.unwrap();
    let pids = |containerd: &Containerd| [pid(containerd, &id), pid(containerd, &other)];
    let before = pids(&containerd);
    assert!(before.iter().all(Option::is_some), "{before:?}");

    let put = |name: &str| {
        let text = manifest(name, "while true; do sleep 1; done", "terminationGracePeriodSeconds: 1");
        home.put(&format!("{name}.yaml"), &text.replace("image: i\n", &format!("image: {}\n", image::BUSYBOX)));
    };
    put("web");
    put("new");
    let is_adopted = |pod: &Pod| {
        let is_it = |run: &ContainerStatus| {
            run.container_id.as_deref() == Some(&*format!("containerd://{id}")) && run.restart_count == 0
        };
        is_ready(pod) && container(pod).is_some_and(is_it)
    };
    let agent = containerd.agent_with(&home, &["--adopt-kubelet-pods"]).await;
    let pod = agent.until("web-n1", "continues to run", is_adopted).await;
    assert_eq!(pod.metadata.uid.as_deref(), Some(web));
    agent.wait_for_line("left running").await;
    // By the time that another pod is ready, the adopted one was synced.
    agent.ready("new-n1").await;
    assert!(!agent.explain("web-n1").contains("Killing"), "{}", agent.explain("web-n1"));
    assert_eq!(pids(&containerd), before);
    agent.crash().await;

    // An adopted pod stays adopted.
    let agent = containerd.agent(&home).await;
    agent.until("web-n1", "continues to run", is_adopted).await;
    assert_eq!(pids(&containerd), before);

    home.remove("web.yaml");
    eventually("the adopted container is stopped", || async { pid(&containerd, &id).is_none().then_some(()) }).await;
    assert_eq!(pid(&containerd, &other), before[1], "a pod that no manifest names is left alone");
}
