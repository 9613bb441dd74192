//! The usage of containers and pods of containerd, which the kernel counts for their cgroups.

use std::time::Duration;

use podwright_containerd::Containerd;
use podwright_containerd::image::BUSYBOX;
use podwright_fixtures::processes::script;
use podwright_host::stats::{Depth, RuntimeStats, Usage};
use podwright_model::ids::ContainerId;
use podwright_model::pod::PodObject;
use podwright_ports::{ContainerConfig, ContainerRuntime, ImageRequest, PodCgroups, SandboxConfig};
use serde_json::json;
use tokio_util::sync::CancellationToken;

#[tokio::test]
async fn cri_containers_and_pods_are_measured_by_their_cgroups() {
    let Some(containerd) = Containerd::turn().await else { return };
    let root = tempfile::tempdir().unwrap();
    let runtime = containerd.open(root.path());
    let limits = json!({"limits": {"memory": "64Mi"}});
    let containers =
        json!([{"name": "free", "image": BUSYBOX}, {"name": "limited", "image": BUSYBOX, "resources": limits}]);
    let pod = json!({"metadata": {"name": "p", "namespace": "n", "uid": "measured"},
        "spec": {"hostNetwork": true, "containers": containers}});
    let pod = PodObject::new(serde_json::from_value(pod).unwrap()).unwrap();
    runtime.make(&pod).await.unwrap();
    let sandbox = runtime.run_sandbox(SandboxConfig { pod: pod.clone(), attempt: 0 }).await.unwrap();
    let request = ImageRequest { pod: &pod, container: None, image: BUSYBOX, pull_policy: None };
    let image_id = runtime.ensure_image(request, &CancellationToken::new()).await.unwrap();
    let mut ids: Vec<ContainerId> = Vec::new();
    for name in ["free", "limited"] {
        let main = script(&pod, &sandbox, "sleep 1000 & wait");
        let config = ContainerConfig { name: name.into(), image_id: image_id.clone(), ..main };
        let id = runtime.create_container(config).await.unwrap();
        runtime.start_container(&id).await.unwrap();
        // The command runs.
        runtime.exec(&id, &["true".to_owned()], Duration::from_secs(60)).await.unwrap();
        ids.push(id);
    }

    let found = runtime.usage(std::slice::from_ref(&pod), Depth::Details).await.unwrap();
    let of_container = |id: &ContainerId| found.containers.iter().find(|container| container.id == *id).unwrap();
    let [free, limited] = [&ids[0], &ids[1]].map(of_container);
    for container in [free, limited] {
        let memory = &container.usage.memory;
        assert!(container.usage.cpu > Some(0) && memory.working_set > Some(0), "{container:?}");
        assert!(memory.working_set <= memory.used && memory.faults > Some(0), "{container:?}");
        assert!(memory.resident.is_some() && memory.major_faults.is_some() && memory.swap.is_some(), "{container:?}");
        assert!(container.processes >= Some(2), "the shell and its child: {container:?}");
        let details = container.usage.details.as_ref().unwrap();
        assert!(details.path.contains(container.id.as_str()) && details.memory.cache.is_some(), "{details:?}");
        assert!(details.cpu.user.is_some() && details.cpu.system.is_some(), "{details:?}");
    }
    let limit = |usage: &Usage| usage.details.as_ref().unwrap().limits.memory;
    assert_eq!((limit(&free.usage), limit(&limited.usage)), (Some(0), Some(64 << 20)));
    assert_eq!(found.networks, [], "the pod shares the network of the node");
    assert_eq!(free.usage.memory.available, None);
    let available = limited.usage.memory.available.unwrap();
    assert_eq!(available, (64 << 20) - limited.usage.memory.working_set.unwrap());

    let of_pod = &found.pods[pod.uid()];
    let all = found.all_pods.as_ref().unwrap();
    assert!(of_pod.cpu > free.usage.cpu && all.cpu > free.usage.cpu, "{of_pod:?} {all:?}");
    assert_eq!(of_pod.memory.available, None, "one container has no limit");
    let images = runtime.image_file_system().await.unwrap().unwrap();
    assert!(images.space.is_some_and(|space| space.capacity > 0), "{images:?}");

    for id in &ids {
        runtime.stop_container(id, Duration::ZERO).await.unwrap();
        runtime.remove_container(id, false).await.unwrap();
    }
    runtime.stop_sandbox(&sandbox).await.unwrap();
    runtime.remove_sandbox(&sandbox).await.unwrap();
    PodCgroups::remove(&runtime, pod.uid(), Box::new(|| true)).await.unwrap();
}
