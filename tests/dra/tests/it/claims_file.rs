//! The file of claims when an agent stops.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use podwright_actors::claims::{ClaimFeatures, ClaimManager, ClaimPorts};
use podwright_checkpoint::ClaimCheckpoint;
use podwright_fixtures::api_pods::pod;
use podwright_fixtures::fake_claims::{FakeClaims, FakeDrivers};
use podwright_metrics::Metrics;
use podwright_model::pod::PodObject;
use podwright_model::time::Time;
use podwright_ports::{ResourcePhase, TokioClock};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

fn with_claim(name: &str, claim: &str) -> Arc<PodObject> {
    let claims = json!([{"name": "gpu", "resourceClaimName": claim}]);
    pod(name).spec("resourceClaims", claims).build()
}

/// The claims that a kubelet reads, with their pods. It reads only this file.
fn of_kubelet(root: &Path) -> Vec<(String, Vec<String>)> {
    let file: Value = serde_json::from_str(&fs::read_to_string(root.join("dra_manager_state")).unwrap()).unwrap();
    let data: Value = serde_json::from_str(file["Data"].as_str().unwrap()).unwrap();
    let claims = data["ClaimInfoStateList"].as_array().into_iter().flatten();
    let pods = |claim: &Value| claim["PodUIDs"].as_object().unwrap().keys().cloned().collect();
    claims.map(|claim| (claim["ClaimName"].as_str().unwrap().to_owned(), pods(claim))).collect()
}

/// A kubelet can take the node over from an agent that was stopped: the file has every claim that a driver may have prepared, and no
/// other one.
#[actix::test]
async fn stopped_agent_leaves_all_claims_in_the_file_of_the_kubelet() {
    let root = tempfile::tempdir().unwrap();
    let (drivers, claims) = (FakeDrivers::of(&["gpu"]), Arc::<FakeClaims>::default());
    let clock = TokioClock::starting_at(Time::from_secs(1_800_000_000));
    let open = || {
        let ports = ClaimPorts {
            api: Some(claims.clone()),
            drivers: drivers.clone(),
            checkpoint: Arc::new(ClaimCheckpoint::new(root.path().to_owned())),
            clock: Arc::new(clock),
            metrics: Metrics::new().dra.clone(),
        };
        let (manager, tasks) = ClaimManager::open(ports, ClaimFeatures::default()).unwrap();
        let stop = CancellationToken::new();
        actix::spawn(tasks.run(stop.clone()));
        (manager, stop)
    };
    let (manager, stop) = open();
    for (claim, pod) in [("cam", "a"), ("mic", "b"), ("gone", "c"), ("called", "d")] {
        claims.put(claim, &["gpu"], &[pod]);
    }
    for (claim, name) in [("cam", "a"), ("mic", "b"), ("gone", "c")] {
        manager.prepare(&with_claim(name, claim)).await.unwrap();
    }
    manager.release(&"c".into()).await.unwrap();
    // The agent stops while a driver works.
    drivers.withhold_answers(true);
    let called = async {
        while drivers.calls().len() < 5 {
            tokio::task::yield_now().await;
        }
    };
    let pod = with_claim("d", "called");
    tokio::select! {
        _ = manager.prepare(&pod) => panic!("the driver keeps its answer"),
        () = called => {}
    }
    stop.cancel();
    manager.stopped().await;
    let expected =
        [("called", "d"), ("cam", "a"), ("mic", "b")].map(|(claim, pod)| (claim.to_owned(), vec![pod.to_owned()]));
    assert_eq!(of_kubelet(root.path()), expected);
    let journal = fs::read_to_string(root.path().join("dra_manager_state.journal")).unwrap();
    assert_eq!(journal.lines().count(), 1, "only the header: {journal}");

    // The next agent knows them too, and a stop without any change keeps them.
    drivers.withhold_answers(false);
    let (manager, stop) = open();
    assert_eq!(manager.read(|table| table.records().len()), 3);
    stop.cancel();
    manager.stopped().await;
    assert_eq!(of_kubelet(root.path()), expected);
}
