//! What is left of containers and pods, and images that nobody uses.

use std::fs;
use std::path::Path;

use podwright_actors::ids::PodUid;
use podwright_actors::ports::{ContainerRuntime, ContainerState};

use super::containerd::Containerd;
use super::image::{BUSYBOX, PAUSE, SPARE};
use crate::agent::harness::{Place, container, eventually, manifest};

fn put(place: &Place, name: &str, script: &str) {
    let text = manifest(name, script, "terminationGracePeriodSeconds: 1");
    place.put(&format!("{name}.yaml"), &text.replace("image: i", &format!("image: {BUSYBOX}")));
}

fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().into_string().unwrap()).collect()
}

#[tokio::test]
async fn one_exited_container_is_kept_until_its_pod_is_removed() {
    let Some(containerd) = Containerd::turn().await else { return };
    let place = Place::new();
    put(&place, "ends", "echo run; exit 3");
    let agent = containerd.agent(&place).await;
    let pod =
        agent.until("ends-n1", "ran three times", |pod| container(pod).is_some_and(|it| it.restart_count == 2)).await;
    let uid = PodUid::new(pod.metadata.uid.as_ref().unwrap());
    let runtime = containerd.open(place.root());
    let kept = eventually("older runs are removed", || async {
        let runs = runtime.pod_status(&uid).await.unwrap().containers;
        (runs.len() == 1 && runs[0].state == ContainerState::Exited).then(|| runs[0].clone())
    });
    let kept = kept.await;
    assert_eq!((kept.restart_count, kept.exit_code), (2, 3));
    let last = |pod| container(pod).unwrap().last_state.as_ref()?.terminated.as_ref().map(|end| end.exit_code);
    assert_eq!(last(&agent.named("ends-n1")[0]), Some(3), "the end of the run before is still told");
    let logs = place.root().join("log");
    let dir = logs.join("pods").join(names(&logs.join("pods")).pop().unwrap()).join("main");
    eventually("their logs are removed after them, and the links", || async {
        (names(&dir) == ["2.log"] && names(&logs.join("containers")).len() == 1).then_some(())
    })
    .await;

    // An agent that died in between has left the first; a kubelet has the second.
    for (dir, link) in [("default_gone_u-1", "gone.log"), ("default_other_u-2", "other.log")] {
        fs::create_dir_all(logs.join("pods").join(dir).join("main")).unwrap();
        let log = logs.join("pods").join(dir).join("main/0.log");
        std::os::unix::fs::symlink(log, logs.join("containers").join(link)).unwrap();
    }
    fs::create_dir(place.root().join("pods/u-1")).unwrap();
    place.remove("ends.yaml");
    eventually("nothing is left of it", || async {
        let gone = runtime.list_pods().await.unwrap().is_empty() && names(&place.root().join("pods")).is_empty();
        gone.then_some(())
    })
    .await;
    assert_eq!(names(&logs.join("pods")), ["default_other_u-2"]);
    assert_eq!(names(&logs.join("containers")), ["other.log"]);
}

#[tokio::test]
async fn image_garbage_collection_removes_only_unused_images() {
    let Some(containerd) = Containerd::turn().await else { return };
    let place = Place::new();
    put(&place, "runs", "exec sleep 1000");
    let agent = containerd.agent(&place).await;
    let before = agent.ready("runs-n1").await;
    agent.crash().await;

    containerd.import(&[SPARE]);
    let images = || containerd.ctr(&["images", "list", "--quiet"]);
    assert!(images().contains(SPARE));
    let runtime = containerd.runtime();
    let now = ["--image-gc-high-threshold=1", "--image-gc-low-threshold=0", "--image-minimum-gc-age=0"];
    let agent = place.start(&[&[runtime.as_str()], &now[..]].concat()).await;
    eventually("the image is removed", || async { (!images().contains(SPARE)).then_some(()) }).await;
    assert!(images().contains(BUSYBOX) && images().contains(PAUSE), "{}", images());
    // There is more on this disk than images.
    agent.says("FreeDiskSpaceFailed").await;
    let (_, metrics) = agent.get("/metrics", "");
    let removed = "kubelet_image_garbage_collected_total{reason=\"space\"} 1\n";
    assert!(metrics.contains(removed) && metrics.contains("operation_type=\"remove_image\""), "{metrics}");

    let after = agent.ready("runs-n1").await;
    assert_eq!(container(&after).unwrap().container_id, container(&before).unwrap().container_id);
    put(&place, "another", "exec sleep 1000");
    agent.ready("another-n1").await;
}
