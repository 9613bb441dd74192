//! Many pods that exhaust the memory of a node together.

use podwright_fixtures::api_pods::{PodBuilder, pod};
use podwright_fixtures::scripted_runtime::Script;

use crate::support::fake_disks::FakeMeter;
use crate::support::test_node::Setup;

/// The memory of the node in mebibytes. The default threshold requires that 100 MiB are available.
const MEMORY: u64 = 1000;
const PODS: usize = 30;

/// The memory of each pod in mebibytes after so many seconds. At the end, 22 pods fit.
fn leaked(seconds: f64) -> u64 {
    25 + (seconds as u64 / 10).min(15)
}

#[actix::test]
async fn storm_evicts_one_pod_after_the_other_until_the_rest_fits_and_starts_no_replacement() {
    let meter = FakeMeter::new(MEMORY);
    let node = Setup { meter: Some(meter.clone()), ..Setup::new(true) }.start();
    node.runtime.script("main", Script::stubborn());
    let mut pods: Vec<PodBuilder> = (0..PODS).map(|number| pod(&format!("p{number}"))).collect();
    node.deliver(&pods).await;
    let mut changes = node.node.pressure_changes();
    changes.mark_unchanged();
    let (mut conditions, mut replaced) = (Vec::new(), 0);
    while node.now() < 350.0 {
        let memory = leaked(node.now());
        let running: Vec<String> = (0..PODS)
            .map(|number| format!("p{number}"))
            .filter(|name| !node.runtime.running(name).is_empty())
            .collect();
        running.iter().for_each(|name| node.runtime.uses_memory(name, memory));
        meter.set_available(MEMORY.saturating_sub(running.len() as u64 * memory));
        if changes.has_changed().unwrap() {
            conditions.push(changes.borrow_and_update().clone());
        }
        // A controller replaces each pod that has failed, also a replacement.
        let failed = pods.iter().filter(|pod| node.phase(&pod.build().uid().to_string()) == "Failed").count();
        if failed > replaced && replaced < 100 {
            replaced += 1;
            pods.push(pod(&format!("r{replaced}")));
            node.deliver(&pods).await;
        }
        node.wait(0.2).await;
    }
    let stays = (0..PODS).filter(|number| node.phase(&format!("p{number}")) == "Running").count();
    assert_eq!(stays, 22, "each eviction was needed");
    assert_eq!(node.metric("kubelet_evictions{eviction_signal=\"memory.available\"}"), 8.0);
    assert!(replaced >= 50, "{replaced} replacements");
    assert_eq!(node.runtime.times_of("start main").len(), PODS, "no replacement starts while the node lacks memory");
    assert_eq!(conditions.len(), 1, "the condition begins once: {conditions:?}");
}
