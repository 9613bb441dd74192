//! The names of log files, links and labels by which other tools find pods.

use std::fs;
use std::path::Path;

use super::containerd::Containerd;
use crate::agent::harness::{AgentHome, container, eventually, manifest};

/// The content of a directory.
fn entries(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().into_string().unwrap()).collect()
}

#[tokio::test]
async fn cri_labels_log_paths_and_links_are_those_of_a_kubelet() {
    let Some(containerd) = Containerd::turn().await else { return };
    let home = AgentHome::new();
    let script = "echo to the log; hostname; grep $(hostname) /etc/hosts; exec sleep 1000";
    let manifest = manifest("web", script, "terminationGracePeriodSeconds: 1");
    home.put("web.yaml", &manifest.replace("image: i", &format!("image: {}", super::image::BUSYBOX)));
    let agent = containerd.agent(&home).await;
    let pod = agent.ready("web-n1").await;

    let uid = pod.metadata.uid.clone().unwrap();
    let id = container(&pod).unwrap().container_id.clone().unwrap();
    let id = id.strip_prefix("containerd://").unwrap();
    for (label, value) in [
        ("io.kubernetes.pod.name", "web-n1"),
        ("io.kubernetes.pod.namespace", "default"),
        ("io.kubernetes.pod.uid", &uid),
        ("io.kubernetes.container.name", "main"),
    ] {
        let found = containerd.ctr(&["containers", "ls", "-q", &format!("labels.\"{label}\"=={value}")]);
        assert!(found.lines().any(|line| line == id), "{label}: {found}");
    }
    let logs = home.root().join("log/pods").join(format!("default_web-n1_{uid}"));
    let ip = pod.status.unwrap().pod_ip.unwrap();
    let log = eventually("the container has logged", || async {
        fs::read_to_string(logs.join("main/0.log")).ok().filter(|log| log.lines().count() == 3)
    })
    .await;
    let texts: Vec<_> = log.lines().map(|line| line.split_once(" stdout F ").unwrap().1.to_owned()).collect();
    assert_eq!(texts, ["to the log", "web-n1", &format!("{ip}\tweb-n1")]);
    let links = home.root().join("log/containers");
    let link = links.join(format!("web-n1_default_main-{id}.log"));
    assert_eq!(fs::read_to_string(link).unwrap(), log);

    let metrics = agent.get("/metrics", "").1;
    for operation in ["run_podsandbox", "create_container", "start_container", "image_status", "list_containers"] {
        let line = format!("kubelet_runtime_operations_total{{operation_type=\"{operation}\"}}");
        assert!(metrics.contains(&line), "{line}");
    }
    assert!(
        metrics.contains("kubelet_runtime_operations_total{operation_type=\"run_podsandbox\"} 1\n"),
        "counted once"
    );

    // A file that someone added to the log directory is removed with the pod.
    fs::write(logs.join("main/0.log-kept.gz"), "").unwrap();
    home.remove("web.yaml");
    let gone = || async { (agent.pods().is_empty() && entries(&links).is_empty()).then_some(()) };
    eventually("the directories of the pod are gone", gone).await;
    let left = || async { (!logs.exists() && containerd.ctr(&["containers", "ls", "-q"]).is_empty()).then_some(()) };
    eventually("the runtime has no container or sandbox left", left).await;
}
