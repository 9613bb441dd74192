//! An agent that is killed, and the one that comes after it.

use std::collections::BTreeMap;
use std::fs;

use k8s_openapi::api::core::v1::Pod;

use super::harness::{Place, container, eventually, manifest, phase};

/// What must not change: container id, restart count, when it was started.
fn identity(pod: &Pod) -> (Option<String>, i32, String) {
    let container = container(pod).expect("it has a container");
    let running = container.state.as_ref().and_then(|state| state.running.as_ref());
    (
        container.container_id.clone(),
        container.restart_count,
        format!("{:?}", running.map(|running| &running.started_at)),
    )
}

#[tokio::test]
async fn twenty_pods_outlive_a_killed_agent_and_none_is_restarted_or_lost() {
    let place = Place::new();
    for n in 0..19 {
        place.put(&format!("{n}.yaml"), &manifest(&format!("pod-{n}"), "exec sleep 1000", ""));
    }
    let go = place.root().join("go");
    let waits = format!("while [ ! -e {} ]; do sleep 0.05; done; exit 7", go.display());
    place.put("ends.yaml", &manifest("ends", &waits, "restartPolicy: Never"));
    let agent = place.start(&[]).await;
    let before = eventually("20 pods run", || async {
        let pods = agent.pods();
        let run = pods.len() == 20 && pods.iter().all(|pod| phase(pod) == "Running");
        run.then_some(pods)
    })
    .await;
    agent.crash().await;

    fs::write(&go, "").unwrap();
    eventually("one ends while no agent is there", || async {
        let containers = fs::read_dir(place.root().join("process/containers")).unwrap().flatten();
        containers.into_iter().any(|container| container.path().join("exit").exists()).then_some(())
    })
    .await;

    let agent = place.start(&[]).await;
    let ended = agent.until("ends-n1", "has failed", |pod| phase(pod) == "Failed").await;
    let end = container(&ended).unwrap().state.as_ref().unwrap().terminated.as_ref().unwrap();
    assert_eq!(end.exit_code, 7);
    let after = eventually("19 pods run", || async {
        let pods = agent.pods();
        (pods.iter().filter(|pod| phase(pod) == "Running").count() == 19).then_some(pods)
    })
    .await;
    let identities = |pods: &[Pod]| -> BTreeMap<String, _> {
        let running = pods.iter().filter(|pod| pod.metadata.name.as_deref() != Some("ends-n1"));
        running.map(|pod| (pod.metadata.name.clone().unwrap(), identity(pod))).collect()
    };
    assert_eq!(identities(&after), identities(&before));
}
