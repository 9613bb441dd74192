//! Mirror pods of manifests, in the API server that the stand-in serves over HTTP.

use std::sync::Arc;

use serde_json::{Value, json};

use super::cluster::{Cluster, PODS};
use super::harness::{Agent, eventually, is_ready, manifest};

/// A manifest of a pod that stops within a second. Another `label` makes another pod of the same name.
fn web(label: &str) -> String {
    let pod = manifest("web", "sleep 100", "terminationGracePeriodSeconds: 1");
    pod.replace("metadata:\n", &format!("metadata:\n  labels: {{v: {label:?}}}\n"))
}

impl Cluster {
    fn mirror(&self, name: &str) -> Option<Arc<Value>> {
        self.server.get("pods", "default", name)
    }

    async fn mirror_has(&self, name: &str, label: &str) {
        let has = || async { (self.mirror(name)?["metadata"]["labels"]["v"] == label).then_some(()) };
        eventually(&format!("the mirror pod {name} has the label {label}"), has).await;
    }
}

fn hash(pod: &Value) -> String {
    pod["metadata"]["annotations"]["kubernetes.io/config.mirror"].as_str().unwrap().to_owned()
}

async fn runs(agent: &Agent, name: &str, label: &str) {
    let has = |pod: &k8s_openapi::api::core::v1::Pod| {
        is_ready(pod) && pod.metadata.labels.as_ref().and_then(|all| all.get("v")).is_some_and(|value| value == label)
    };
    agent.until(name, &format!("runs with the label {label}"), has).await;
}

#[tokio::test]
async fn manifest_has_a_mirror_pod_in_the_api_server_until_its_file_goes() {
    let cluster = Cluster::start().await;
    let agent = cluster.agent().await;
    cluster.home.put("web.yaml", &web("1"));
    cluster.wait_for_phase("web-n1", "Running").await;
    let mirror = cluster.mirror("web-n1").unwrap();
    let node = cluster.server.get("nodes", "", "n1").unwrap();
    let owner = &mirror["metadata"]["ownerReferences"][0];
    assert_eq!((&owner["kind"], &owner["uid"]), (&json!("Node"), &node["metadata"]["uid"]));
    let pod = agent.ready("web-n1").await;
    assert_eq!(Some(hash(&mirror)), pod.metadata.uid);

    cluster.home.put("web.yaml", &web("2"));
    cluster.mirror_has("web-n1", "2").await;
    cluster.wait_for_phase("web-n1", "Running").await;
    cluster.home.remove("web.yaml");
    cluster.is_gone("web-n1").await;
}

#[tokio::test]
async fn mirror_pod_that_a_user_deletes_comes_back_and_its_containers_run_on() {
    let cluster = Cluster::start().await;
    let agent = cluster.agent().await;
    cluster.home.put("web.yaml", &web("1"));
    cluster.wait_for_phase("web-n1", "Running").await;
    let before = agent.ready("web-n1").await.status.unwrap().container_statuses;
    let first = cluster.mirror("web-n1").unwrap()["metadata"]["uid"].clone();
    for options in [Value::Null, json!({"gracePeriodSeconds": 0})] {
        let old = cluster.mirror("web-n1").unwrap()["metadata"]["uid"].clone();
        cluster.server.request("DELETE", &format!("{PODS}/web-n1"), "application/json", &options).unwrap();
        let is_new = || async { (cluster.mirror("web-n1")?["metadata"]["uid"] != old).then_some(()) };
        eventually("there is another mirror pod", is_new).await;
        cluster.wait_for_phase("web-n1", "Running").await;
    }
    assert_ne!(cluster.mirror("web-n1").unwrap()["metadata"]["uid"], first);
    assert_eq!(agent.ready("web-n1").await.status.unwrap().container_statuses, before);
}

// KF6, KF7, KF8
#[tokio::test]
async fn containers_follow_the_manifests_while_the_api_server_is_away() {
    let cluster = Cluster::start().await;
    let agent = cluster.agent().await;
    cluster.home.put("web.yaml", &web("1"));
    cluster.wait_for_phase("web-n1", "Running").await;
    cluster.server.stop().await;
    cluster.home.put("web.yaml", &web("2"));
    runs(&agent, "web-n1", "2").await;
    cluster.home.put("new.yaml", &web("1").replace("name: web", "name: new"));
    runs(&agent, "new-n1", "1").await;

    // The next agent has never listed the pods of the API server.
    agent.crash().await;
    let agent = cluster.agent().await;
    runs(&agent, "web-n1", "2").await;
    cluster.home.put("web.yaml", &web("3"));
    runs(&agent, "web-n1", "3").await;
    cluster.home.remove("new.yaml");
    eventually("the pod is stopped", || async { agent.named("new-n1").is_empty().then_some(()) }).await;

    cluster.server.resume().await.unwrap();
    cluster.mirror_has("web-n1", "3").await;
    cluster.wait_for_phase("web-n1", "Running").await;
    assert!(cluster.mirror("new-n1").is_none());
}

// POD-K8
#[tokio::test]
async fn mirror_pod_of_a_manifest_that_was_removed_while_no_agent_ran_is_deleted() {
    let cluster = Cluster::start().await;
    let agent = cluster.agent().await;
    cluster.home.put("web.yaml", &web("1"));
    cluster.home.put("stays.yaml", &web("1").replace("name: web", "name: stays"));
    cluster.wait_for_phase("web-n1", "Running").await;
    cluster.wait_for_phase("stays-n1", "Running").await;
    let stays = cluster.mirror("stays-n1").unwrap()["metadata"]["uid"].clone();
    agent.crash().await;
    cluster.home.remove("web.yaml");
    let _agent = cluster.agent().await;
    cluster.is_gone("web-n1").await;
    assert_eq!(cluster.mirror("stays-n1").unwrap()["metadata"]["uid"], stays);
}
