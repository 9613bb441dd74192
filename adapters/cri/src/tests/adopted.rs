//! Tests of the usage of pods that a kubelet started.

use std::sync::Arc;

use podwright_host::stats::{Depth, RuntimeStats};
use podwright_model::ids::PodUid;
use podwright_ports::ContainerRuntime;
use serde_json::json;

use super::fake::FakeRuntime;
use crate::adoption::AdoptedPods;
use crate::config::fixtures::pod_with;

#[tokio::test]
async fn usage_of_adopted_pods_is_that_of_the_containers_that_a_kubelet_started() {
    let fake = FakeRuntime::with(1, |config| config.adopted = Arc::new(AdoptedPods::of(&["adopted"]))).await;
    for uid in ["adopted", "other"] {
        fake.add_pod_of_a_kubelet(uid);
    }
    let usage = fake.runtime.usage(&[], Depth::Usage).await.unwrap();
    let containers: Vec<_> = usage.containers.iter().map(|found| found.id.as_str()).collect();
    assert_eq!(containers, ["c-adopted"]);
    let networks = fake.runtime.networks().await.unwrap();
    assert_eq!(networks.iter().map(|found| found.sandbox.as_str()).collect::<Vec<_>>(), ["s-adopted"]);
    for (uid, expected) in [("adopted", 1), ("other", 0)] {
        let uid = PodUid::new(uid);
        let layers = fake.runtime.writable_layers(&uid).await.unwrap();
        let processes = fake.runtime.process_usage(&uid).await.unwrap();
        assert_eq!((layers.len(), processes.len()), (expected, expected), "{uid}");
    }
}

#[tokio::test]
async fn network_of_the_node_is_not_that_of_an_adopted_pod_that_shares_it() {
    let fake = FakeRuntime::with(1, |config| config.adopted = Arc::new(AdoptedPods::of(&["own", "host"]))).await;
    let pods = [("own", false), ("host", true)].map(|(uid, host_network)| {
        fake.add_pod_of_a_kubelet(uid);
        pod_with(json!({"uid": uid}), json!({"hostNetwork": host_network, "containers": [{"name": "main"}]}))
    });
    let usage = fake.runtime.usage(&pods, Depth::Details).await.unwrap();
    assert_eq!(usage.networks.iter().map(|found| found.pod.to_string()).collect::<Vec<_>>(), ["own"]);
}
