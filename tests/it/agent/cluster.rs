//! The agent with the API server that the stand-in serves over HTTP, with the rights of a node.

use podwright_stand_in::{Fault, Rule, StandIn, Verb};
use serde_json::{Value, json};

use super::harness::{Agent, AgentHome, eventually, phase};

pub(super) const PODS: &str = "/api/v1/namespaces/default/pods";

pub(super) struct Cluster {
    pub(super) server: StandIn,
    pub(super) home: AgentHome,
}

impl Cluster {
    pub(super) async fn start() -> Self {
        Cluster::of(StandIn::start().await.unwrap())
    }

    pub(super) fn of(server: StandIn) -> Self {
        server.create("/api/v1/nodes", json!({"metadata": {"name": "n1"}})).unwrap();
        let home = AgentHome::of_node(&server, "n1");
        Cluster { server, home }
    }

    /// An agent whose pods exist only in memory.
    pub(super) async fn agent(&self) -> Agent {
        self.agent_with(&[]).await
    }

    /// An agent with more flags, whose pods exist only in memory.
    pub(super) async fn agent_with(&self, flags: &[&str]) -> Agent {
        let kubeconfig = self.home.kubeconfig();
        self.home.start(&[&["--runtime", "simulated", "--kubeconfig", &kubeconfig], flags].concat()).await
    }

    pub(super) fn create(&self, name: &str, annotations: &Value, spec: &Value) {
        let mut pod = json!({
            "metadata": {"name": name, "annotations": annotations},
            "spec": {"nodeName": "n1", "automountServiceAccountToken": false, "terminationGracePeriodSeconds": 1,
                "containers": [{"name": "main", "image": "img"}]}});
        for (field, value) in spec.as_object().into_iter().flatten() {
            pod["spec"][field] = value.clone();
        }
        self.server.create(PODS, pod).unwrap();
    }

    pub(super) fn phase(&self, name: &str) -> Option<String> {
        let pod = self.server.get("pods", "default", name)?;
        Some(pod["status"]["phase"].as_str().unwrap_or_default().to_owned())
    }

    pub(super) async fn wait_for_phase(&self, name: &str, phase: &str) {
        eventually(&format!("{name} is {phase}"), || async { (self.phase(name)? == phase).then_some(()) }).await;
    }

    pub(super) async fn is_gone(&self, name: &str) {
        eventually(&format!("{name} is gone"), || async { self.phase(name).is_none().then_some(()) }).await;
    }

    pub(super) fn delete(&self, name: &str) {
        self.server.request("DELETE", &format!("{PODS}/{name}"), "application/json", &Value::Null).unwrap();
    }
}

#[tokio::test]
async fn pod_of_an_api_server_runs_and_is_deleted() {
    let cluster = Cluster::start().await;
    let _agent = cluster.agent().await;
    cluster.create("web", &json!({}), &json!({}));
    cluster.wait_for_phase("web", "Running").await;
    cluster.server.forget_requests();
    cluster.delete("web");
    cluster.is_gone("web").await;
    let reads = cluster.server.requests().into_iter().filter(|served| served.verb == Some(Verb::Get)).count();
    assert_eq!(reads, 0, "no pod is read before it is written");
}

#[tokio::test]
async fn pods_start_end_and_are_deleted_while_the_watch_is_lost_repeatedly() {
    let cluster = Cluster::start().await;
    let _agent = cluster.agent().await;
    for round in 0..5 {
        let name = format!("web-{round}");
        cluster.create(&name, &json!({}), &json!({}));
        cluster.server.drop_watches();
        cluster.wait_for_phase(&name, "Running").await;
        cluster.server.drop_watches();
        cluster.delete(&name);
        cluster.server.drop_watches();
        cluster.is_gone(&name).await;
    }
}

// A list after an expired watch reports no deletions.
#[tokio::test]
async fn pod_that_was_removed_during_an_outage_of_the_api_server_is_stopped() {
    let cluster = Cluster::start().await;
    let agent = cluster.agent().await;
    cluster.create("gone", &json!({}), &json!({}));
    cluster.create("stays", &json!({}), &json!({}));
    cluster.wait_for_phase("gone", "Running").await;
    cluster.wait_for_phase("stays", "Running").await;
    cluster.server.stop().await;
    let options = json!({"gracePeriodSeconds": 0});
    cluster.server.request("DELETE", &format!("{PODS}/gone"), "application/json", &options).unwrap();
    cluster.create("new", &json!({}), &json!({}));
    cluster.server.compact();
    cluster.server.resume().await.unwrap();
    cluster.wait_for_phase("new", "Running").await;
    let is_stopped =
        || async { agent.pods().iter().all(|pod| pod.metadata.name.as_deref() != Some("gone")).then_some(()) };
    eventually("the removed pod is stopped", is_stopped).await;
    assert_eq!(cluster.phase("stays").as_deref(), Some("Running"));
}

#[tokio::test]
async fn status_that_a_killed_agent_did_not_write_is_written_by_the_next_one() {
    let cluster = Cluster::start().await;
    let agent = cluster.agent().await;
    let ends = json!({"simulated.podwright.dev/run-for": "300ms", "simulated.podwright.dev/exit-code": "3"});
    let statuses = Rule::new().verb(Verb::Patch).resource("pods/status");
    cluster.server.faults().inject(statuses, Fault::status(503));
    cluster.create("job", &ends, &json!({"restartPolicy": "Never"}));
    agent.until("job", "has failed", |pod| phase(pod) == "Failed").await;
    agent.wait_for_line("cannot write the status of the pod").await;
    agent.crash().await;
    cluster.server.faults().clear();
    assert_ne!(cluster.phase("job").as_deref(), Some("Failed"));
    // An earlier write would have stored this status.
    let running = json!({"status": {"phase": "Running"}});
    let path = format!("{PODS}/job/status");
    cluster.server.request("PATCH", &path, "application/merge-patch+json", &running).unwrap();
    let _agent = cluster.agent().await;
    cluster.wait_for_phase("job", "Failed").await;
    let pod = cluster.server.get("pods", "default", "job").unwrap();
    assert_eq!(pod["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"], 3);
    assert_eq!(pod["status"]["containerStatuses"][0]["restartCount"], 0);
}

#[tokio::test]
async fn unusable_kubeconfig_ends_the_agent_with_the_remedy() {
    let home = AgentHome::new();
    let output = home.run(&["--runtime", "simulated", "--kubeconfig", "/nowhere/kubeconfig"]).await;
    let text = super::harness::text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("cannot use the kubeconfig /nowhere/kubeconfig: correct the file or --kubeconfig"), "{text}");
}
