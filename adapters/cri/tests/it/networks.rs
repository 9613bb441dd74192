//! The networks of pods, as containerd measures them.

use podwright_containerd::Containerd;
use podwright_fixtures::polling::eventually;
use podwright_host::stats::{Depth, RuntimeStats};
use podwright_model::pod::PodObject;
use podwright_ports::{ContainerRuntime, SandboxConfig};
use serde_json::json;

#[tokio::test]
async fn cri_pods_with_a_network_of_their_own_are_measured() {
    let Some(containerd) = Containerd::turn().await else { return };
    let root = tempfile::tempdir().unwrap();
    let runtime = containerd.open(root.path());
    let (mut pods, mut sandboxes) = (Vec::new(), Vec::new());
    for (uid, host_network) in [("own", false), ("shared", true)] {
        let pod = json!({
            "metadata": {"name": uid, "namespace": "n", "uid": uid},
            "spec": {"hostNetwork": host_network, "containers": [{"name": "main"}]},
        });
        let pod = PodObject::new(serde_json::from_value(pod).unwrap()).unwrap();
        sandboxes.push(runtime.run_sandbox(SandboxConfig { pod: pod.clone(), attempt: 0 }).await.unwrap());
        pods.push(pod);
    }
    // The interface of a new pod announces itself.
    let network = eventually("the pod has sent bytes", || async {
        let networks = runtime.networks().await.unwrap();
        let uids: Vec<String> = networks.iter().map(|network| network.pod.to_string()).collect();
        assert!(uids.iter().all(|uid| uid == "own"), "{uids:?}");
        let network = networks.into_iter().next()?;
        (network.default.as_ref()?.tx_bytes > Some(0)).then_some(network)
    })
    .await;
    let names: Vec<_> = network.interfaces.iter().map(|interface| interface.name.as_str()).collect();
    assert_eq!(names, ["eth0"]);
    assert_eq!(network.default.as_ref(), network.interfaces.first());
    // The kernel counts more than the runtime reports.
    let counted = runtime.usage(&pods, Depth::Details).await.unwrap().networks;
    let [network] = &counted[..] else { panic!("{counted:?}") };
    let [eth0] = &network.interfaces[..] else { panic!("{network:?}") };
    assert_eq!((network.pod.to_string().as_str(), eth0.name.as_str()), ("own", "eth0"));
    assert_eq!((&network.sandbox, network.image.is_some()), (&sandboxes[0], true), "{network:?}");
    assert!(network.cgroup.as_ref().is_some_and(|path| path.contains(sandboxes[0].as_str())), "{network:?}");
    assert!(eth0.tx_bytes > Some(0) && eth0.tx_packets > Some(0) && eth0.rx_dropped.is_some(), "{eth0:?}");
    for sandbox in &sandboxes {
        runtime.stop_sandbox(sandbox).await.unwrap();
        runtime.remove_sandbox(sandbox).await.unwrap();
    }
}
