//! Removal of exited containers, pod directories, logs and unused images.

use std::fs;
use std::path::Path;

use podwright_model::ids::PodUid;
use podwright_ports::{ContainerRuntime, ContainerState};

use super::containerd::Containerd;
use super::image::{BUSYBOX, PAUSE, SPARE};
use crate::agent::harness::{AgentHome, container, eventually, manifest};

fn put(home: &AgentHome, name: &str, script: &str) {
    let text = manifest(name, script, "terminationGracePeriodSeconds: 1");
    home.put(&format!("{name}.yaml"), &text.replace("image: i", &format!("image: {BUSYBOX}")));
}

fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().into_string().unwrap()).collect()
}

// Takes about 20 s: the container runs three times, after a backoff of 10 s, and containerd starts and removes each run.
#[tokio::test]
async fn one_exited_container_is_kept_until_its_pod_is_removed() {
    let Some(containerd) = Containerd::turn().await else { return };
    let home = AgentHome::new();
    put(&home, "ends", "echo run; exit 3");
    let agent = containerd.agent(&home).await;
    let pod = agent
        .until("ends-n1", "has run three times", |pod| container(pod).is_some_and(|it| it.restart_count == 2))
        .await;
    let uid = PodUid::new(pod.metadata.uid.as_ref().unwrap());
    let runtime = containerd.open(home.root());
    let kept = eventually("older runs are removed", || async {
        let runs = runtime.pod_status(&uid).await.unwrap().containers;
        (runs.len() == 1 && runs[0].state == ContainerState::Exited).then(|| runs[0].clone())
    });
    let kept = kept.await;
    assert_eq!((kept.restart_count, kept.exit_code), (2, 3));
    let last = |pod| container(pod).unwrap().last_state.as_ref()?.terminated.as_ref().map(|end| end.exit_code);
    assert_eq!(last(&agent.named("ends-n1")[0]), Some(3), "the exit of the previous run is still reported");
    let logs = home.root().join("log");
    let dir = logs.join("pods").join(names(&logs.join("pods")).pop().unwrap()).join("main");
    eventually("logs and links of older runs are removed", || async {
        (names(&dir) == ["2.log"] && names(&logs.join("containers")).len() == 1).then_some(())
    })
    .await;

    // An agent that died during the removal left the first directory. The second one belongs to a kubelet.
    for (dir, link) in [("default_gone_u-1", "gone.log"), ("default_other_u-2", "other.log")] {
        fs::create_dir_all(logs.join("pods").join(dir).join("main")).unwrap();
        let log = logs.join("pods").join(dir).join("main/0.log");
        std::os::unix::fs::symlink(log, logs.join("containers").join(link)).unwrap();
    }
    fs::create_dir(home.root().join("pods/u-1")).unwrap();
    home.remove("ends.yaml");
    eventually("the pod and its directory are removed", || async {
        let gone = runtime.list_pods().await.unwrap().is_empty() && names(&home.root().join("pods")).is_empty();
        gone.then_some(())
    })
    .await;
    assert_eq!(names(&logs.join("pods")), ["default_other_u-2"]);
    assert_eq!(names(&logs.join("containers")), ["other.log"]);
}

#[tokio::test]
async fn image_garbage_collection_removes_only_unused_images() {
    let Some(containerd) = Containerd::turn().await else { return };
    let home = AgentHome::new();
    put(&home, "runs", "exec sleep 1000");
    let agent = containerd.agent(&home).await;
    let before = agent.ready("runs-n1").await;
    agent.crash().await;

    containerd.import(&[SPARE]);
    let images = || containerd.ctr(&["images", "list", "--quiet"]);
    assert!(images().contains(SPARE));
    let now = ["--image-gc-high-threshold=1", "--image-gc-low-threshold=0", "--image-minimum-gc-age=0"];
    let agent = containerd.agent_with(&home, &now).await;
    eventually("the image is removed", || async { (!images().contains(SPARE)).then_some(()) }).await;
    assert!(images().contains(BUSYBOX) && images().contains(PAUSE), "{}", images());
    // The disk also contains other files than images.
    agent.wait_for_line("FreeDiskSpaceFailed").await;
    let (_, metrics) = agent.get("/metrics", "");
    let removed = "kubelet_image_garbage_collected_total{reason=\"space\"} 1\n";
    assert!(metrics.contains(removed) && metrics.contains("operation_type=\"remove_image\""), "{metrics}");

    let after = agent.ready("runs-n1").await;
    assert_eq!(container(&after).unwrap().container_id, container(&before).unwrap().container_id);
    put(&home, "another", "exec sleep 1000");
    agent.ready("another-n1").await;
}
