//! The agent as a node of a cluster that runs pods as processes, with its default flags.

use podwright_stand_in::StandIn;
use serde_json::{Value, json};

use super::harness::{AgentHome, eventually, manifest};

const PODS: &str = "/api/v1/namespaces/default/pods";

/// An API server with the node of an agent.
async fn cluster() -> (StandIn, AgentHome) {
    let server = StandIn::start().await.unwrap();
    server.create("/api/v1/nodes", json!({"metadata": {"name": "n1"}})).unwrap();
    let home = AgentHome::of_node(&server, "n1");
    (server, home)
}

/// Creates a pod that runs a script.
fn create(server: &StandIn, name: &str, script: &str, security: &Value) {
    let container =
        json!({"name": "main", "image": "img", "command": ["/bin/sh", "-c", script], "securityContext": security});
    let spec = json!({"nodeName": "n1", "automountServiceAccountToken": false, "terminationGracePeriodSeconds": 1,
        "containers": [container]});
    server.create(PODS, json!({"metadata": {"name": name}, "spec": spec})).unwrap();
}

/// Waits until a pod has this phase, and returns its status.
async fn until_phase(server: &StandIn, name: &str, phase: &str) -> Value {
    eventually(&format!("{name} is {phase}"), || async {
        let pod = server.get("pods", "default", name)?;
        (pod["status"]["phase"] == phase).then(|| pod["status"].clone())
    })
    .await
}

#[tokio::test]
async fn pods_of_the_api_server_that_would_be_root_fail_and_restricted_and_static_ones_run() {
    let (server, home) = cluster().await;
    home.put("own.yaml", &manifest("own", "exec sleep 1000", "terminationGracePeriodSeconds: 1"));
    // With this flag, which is the default, the agent of a test gets no flag that permits pods of root.
    let agent = home.start(&["--runtime", "process", "--kubeconfig", &home.kubeconfig()]).await;
    let mut restricted = json!({"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}, "runAsNonRoot": true,
        "seccompProfile": {"type": "RuntimeDefault"}});
    if rustix::process::geteuid().is_root() {
        restricted["runAsUser"] = 1000.into();
    }
    create(&server, "restricted", "exec sleep 1000", &restricted);
    create(&server, "root", "exec sleep 1000", &json!({}));
    let refused = until_phase(&server, "root", "Failed").await;
    assert_eq!(refused["reason"], "RootPodForbidden", "{refused}");
    let message = refused["message"].as_str().unwrap();
    assert!(message.starts_with("Pod was rejected: container main "), "{message}");
    assert!(message.contains("--process-root-pods allow"), "{message}");
    until_phase(&server, "restricted", "Running").await;
    agent.ready("own-n1").await;
}

// An update of the agent must not end the work of a node.
#[tokio::test]
async fn pod_that_ran_before_the_rule_runs_on_and_its_container_starts_again() {
    let (server, home) = cluster().await;
    let kubeconfig = home.kubeconfig();
    let earlier = home.start(&["--kubeconfig", &kubeconfig, "--process-root-pods", "allow"]).await;
    let end = home.shared().join("end");
    let script = format!("until [ -e {0} ]; do sleep 0.1; done; rm {0}", end.display());
    create(&server, "old", &script, &json!({}));
    until_phase(&server, "old", "Running").await;
    earlier.crash().await;

    let _agent = home.start(&["--runtime", "process", "--kubeconfig", &kubeconfig]).await;
    create(&server, "new", "exec sleep 1000", &json!({}));
    until_phase(&server, "new", "Failed").await;
    std::fs::write(&end, "").unwrap();
    eventually("the container starts again", || async {
        let pod = server.get("pods", "default", "old")?;
        let container = &pod["status"]["containerStatuses"][0];
        (container["restartCount"] == 1 && container["state"]["running"].is_object()).then_some(())
    })
    .await;
}
