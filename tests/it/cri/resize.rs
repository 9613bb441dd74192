//! In-place resizes of containers of a real containerd, requested of the stand-in API server. The limits are read from the kernel.

use std::fs;
use std::path::PathBuf;

use podwright_stand_in::StandIn;
use serde_json::{Value, json};

use super::containerd::Containerd;
use super::image::BUSYBOX;
use crate::agent::harness::{AgentHome, eventually};

const PODS: &str = "/api/v1/namespaces/default/pods";

/// The limits of a guaranteed pod's cgroup and of its containers, by file name, for cgroup v1 and v2. The sandbox has no limits of its
/// own.
fn limits(containerd: &Containerd, uid: &str) -> Vec<String> {
    let mut found = vec![];
    for pod in containerd.cgroups_of(uid) {
        let children = fs::read_dir(&pod).into_iter().flatten().flatten().map(|entry| entry.path());
        let containers: Vec<PathBuf> = children.filter(|path| path.is_dir()).collect();
        for file in ["cpu.cfs_quota_us", "memory.limit_in_bytes", "cpu.max", "memory.max"] {
            let read = |dir: &PathBuf| Some(fs::read_to_string(dir.join(file)).ok()?.trim_end().to_owned());
            found.extend(read(&pod).map(|value| format!("pod {file}={value}")));
            found.extend(containers.iter().filter_map(read).map(|value| format!("{file}={value}")));
        }
    }
    found
}

struct Cluster {
    server: StandIn,
    home: AgentHome,
}

impl Cluster {
    async fn start() -> Self {
        // Pods of two tests with one UID would share a cgroup.
        let server = StandIn::builder().seed(std::process::id().into()).start().await.unwrap();
        server.create("/api/v1/nodes", json!({"metadata": {"name": "n1"}})).unwrap();
        let home = AgentHome::of_node(&server, "n1");
        Cluster { server, home }
    }

    /// A container whose memory changes with this restart policy.
    fn container(memory_policy: &str) -> Value {
        json!({"name": "main", "image": BUSYBOX, "imagePullPolicy": "Never", "command": ["/bin/sleep", "1000"],
            "resources": {"limits": {"cpu": "500m", "memory": "64Mi"}},
            "resizePolicy": [{"resourceName": "cpu", "restartPolicy": "NotRequired"},
                {"resourceName": "memory", "restartPolicy": memory_policy}]})
    }

    fn create(&self, name: &str, memory_policy: &str) {
        let spec = json!({"nodeName": "n1", "hostNetwork": true, "automountServiceAccountToken": false,
            "terminationGracePeriodSeconds": 1, "containers": [Cluster::container(memory_policy)]});
        self.server.create(PODS, json!({"metadata": {"name": name}, "spec": spec})).unwrap();
    }

    fn pod(&self, name: &str) -> Value {
        self.server.get("pods", "default", name).unwrap().as_ref().clone()
    }

    fn uid(&self, name: &str) -> String {
        self.pod(name)["metadata"]["uid"].as_str().unwrap().to_owned()
    }

    fn resize(&self, name: &str, cpu: &str, memory: &str) {
        let amounts = json!({"cpu": cpu, "memory": memory});
        let resources = json!({"limits": amounts, "requests": amounts});
        let patch = json!({"spec": {"containers": [{"name": "main", "resources": resources}]}});
        let path = format!("{PODS}/{name}/resize");
        self.server.request("PATCH", &path, "application/strategic-merge-patch+json", &patch).unwrap();
    }

    /// Waits until the status has these limits and no resize is in progress. Returns the container's status.
    async fn has(&self, name: &str, cpu: &str, memory: &str) -> Value {
        let expected = json!({"cpu": cpu, "memory": memory});
        let resized = || async {
            let status = self.pod(name)["status"].clone();
            let container = status["containerStatuses"][0].clone();
            let is_resizing = status["conditions"]
                .as_array()
                .is_some_and(|all| all.iter().any(|it| it["type"].as_str().unwrap_or("").starts_with("PodResize")));
            (container["resources"]["limits"] == expected && !is_resizing && container["state"]["running"].is_object())
                .then_some(container)
        };
        eventually(&format!("the container has {cpu} and {memory}"), resized).await
    }
}

/// Fails unless the kernel has these limits for a pod and for its container.
fn assert_limits(containerd: &Containerd, uid: &str, quota: i64, mebibytes: i64) {
    let found = limits(containerd, uid);
    let memory = mebibytes << 20;
    for values in [
        [format!("cpu.cfs_quota_us={quota}"), format!("cpu.max={quota} 100000")],
        [format!("memory.limit_in_bytes={memory}"), format!("memory.max={memory}")],
    ] {
        let of_pod = found.iter().filter_map(|line| line.strip_prefix("pod "));
        assert!(of_pod.into_iter().any(|line| values.iter().any(|it| it == line)), "{values:?}: {found:?}");
        assert!(found.iter().any(|line| values.contains(line)), "{values:?}: {found:?}");
    }
}

#[tokio::test]
async fn cri_limits_of_a_running_container_change_without_a_restart() {
    let Some(containerd) = Containerd::turn().await else { return };
    let cluster = Cluster::start().await;
    let kubeconfig = cluster.home.kubeconfig();
    let agent = containerd.agent_with(&cluster.home, &["--kubeconfig", &kubeconfig]).await;
    cluster.create("web", "NotRequired");
    let before = cluster.has("web", "500m", "64Mi").await;
    let uid = cluster.uid("web");
    assert_limits(&containerd, &uid, 50_000, 64);

    cluster.resize("web", "1", "128Mi");
    let resized = cluster.has("web", "1", "128Mi").await;
    assert_limits(&containerd, &uid, 100_000, 128);
    assert_eq!(resized["containerID"], before["containerID"], "the container was not restarted");
    assert_eq!(resized["allocatedResources"], json!({"cpu": "1", "memory": "128Mi"}));

    cluster.resize("web", "250m", "32Mi");
    let resized = cluster.has("web", "250m", "32Mi").await;
    assert_limits(&containerd, &uid, 25_000, 32);
    assert_eq!(resized["containerID"], before["containerID"]);

    // The next agent knows the allocation.
    agent.crash().await;
    let _agent = containerd.agent_with(&cluster.home, &["--kubeconfig", &kubeconfig]).await;
    cluster.resize("web", "500m", "64Mi");
    let resized = cluster.has("web", "500m", "64Mi").await;
    assert_limits(&containerd, &uid, 50_000, 64);
    assert_eq!((&resized["containerID"], &resized["restartCount"]), (&before["containerID"], &json!(0)));
}

#[tokio::test]
async fn cri_container_restarts_once_with_its_new_limits_if_its_resize_policy_requires_that() {
    let Some(containerd) = Containerd::turn().await else { return };
    let cluster = Cluster::start().await;
    let _agent = containerd.agent_with(&cluster.home, &["--kubeconfig", &cluster.home.kubeconfig()]).await;
    cluster.create("web", "RestartContainer");
    let before = cluster.has("web", "500m", "64Mi").await;
    cluster.resize("web", "1", "32Mi");
    let resized = cluster.has("web", "1", "32Mi").await;
    assert_limits(&containerd, &cluster.uid("web"), 100_000, 32);
    assert_ne!(resized["containerID"], before["containerID"]);
    assert_eq!(resized["restartCount"], json!(1));
}
