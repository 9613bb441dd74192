//! The agent registers its node at the API server that the stand-in serves over HTTP.

use podwright_stand_in::{Fault, Grant, Rule, StandIn, Verb};
use rustix::process::Signal;
use serde_json::{Value, json};

use super::harness::{Agent, AgentHome, eventually, text};

const PODS: &str = "/api/v1/namespaces/default/pods";

fn flags<'a>(kubeconfig: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    [&["--runtime", "simulated", "--kubeconfig", kubeconfig], more].concat()
}

async fn start(home: &AgentHome, more: &[&str]) -> Agent {
    home.start(&flags(&home.kubeconfig(), more)).await
}

async fn is_ready(server: &StandIn) -> Value {
    eventually("the node is ready", || async {
        let node = server.get("nodes", "", "n1")?;
        let conditions = node["status"]["conditions"].as_array()?;
        let is_ready = conditions.iter().any(|it| it["type"] == "Ready" && it["status"] == "True");
        is_ready.then(|| Value::clone(&node))
    })
    .await
}

#[tokio::test]
async fn agent_registers_its_node_and_runs_pods() {
    let server = StandIn::start().await.unwrap();
    let home = AgentHome::of_node(&server, "n1");
    let _agent = start(&home, &["--node-labels", "disk=ssd", "--register-with-taints", "drain=now:NoSchedule"]).await;
    let node = is_ready(&server).await;
    assert_eq!(node["metadata"]["labels"]["disk"], "ssd");
    assert!(node["spec"]["taints"].as_array().unwrap().iter().any(|taint| taint["key"] == "drain"), "{node}");
    let info = &node["status"]["nodeInfo"];
    assert!(info["kubeletVersion"].as_str().unwrap().starts_with("v1.36."), "{info}");
    assert!(info["containerRuntimeVersion"].as_str().unwrap().starts_with("simulated://"), "{info}");
    assert_eq!(node["status"]["allocatable"]["pods"], "110");
    // The node is created, with its conditions, before its lease.
    let lease = eventually("the lease exists", || async { server.get("leases", "kube-node-lease", "n1") }).await;
    assert_eq!(lease["spec"]["holderIdentity"], "n1");

    let pod = json!({"metadata": {"name": "web"}, "spec": {"nodeName": "n1", "automountServiceAccountToken": false,
        "containers": [{"name": "main", "image": "img"}]}});
    server.create(PODS, pod).unwrap();
    eventually("web runs", || async {
        let pod = server.get("pods", "default", "web")?;
        (pod["status"]["phase"] == "Running").then_some(())
    })
    .await;
}

// Pods that do not expect to be processes of the node are not scheduled to it.
#[tokio::test]
async fn node_that_runs_pods_as_processes_says_so_with_a_label_and_a_taint() {
    for (flags, is_tainted) in [(&[][..], true), (&["--register-runtime-taint=false"][..], false)] {
        let server = StandIn::start().await.unwrap();
        let home = AgentHome::of_node(&server, "n1");
        let kubeconfig = home.kubeconfig();
        let _agent = home.start(&[&["--kubeconfig", &*kubeconfig][..], flags].concat()).await;
        let node = is_ready(&server).await;
        assert_eq!(node["metadata"]["labels"]["podwright.dev/runtime"], "process", "{node}");
        let taint = json!({"key": "podwright.dev/runtime", "value": "process", "effect": "NoSchedule"});
        let mut taints = node["spec"]["taints"].as_array().into_iter().flatten();
        assert_eq!(taints.any(|found| *found == taint), is_tainted, "{flags:?}: {node}");
    }
}

// The scheduler knows labels that an administrator gave to the node.
#[tokio::test]
async fn pod_that_selects_a_label_of_the_api_server_runs() {
    let server = StandIn::start().await.unwrap();
    server.create("/api/v1/nodes", json!({"metadata": {"name": "n1", "labels": {"team": "a"}}})).unwrap();
    let home = AgentHome::of_node(&server, "n1");
    let _agent = start(&home, &[]).await;
    let pod = json!({"metadata": {"name": "web"}, "spec": {"nodeName": "n1", "nodeSelector": {"team": "a"},
        "automountServiceAccountToken": false, "containers": [{"name": "main", "image": "img"}]}});
    server.create(PODS, pod).unwrap();
    let phase = eventually("web is admitted", || async {
        let pod = server.get("pods", "default", "web")?;
        let phase = pod["status"]["phase"].as_str()?.to_owned();
        (phase != "Pending").then_some(phase)
    })
    .await;
    assert_eq!(phase, "Running");
}

#[tokio::test]
async fn agent_with_the_credentials_of_another_node_logs_the_remedy() {
    let server = StandIn::start().await.unwrap();
    let home = AgentHome::of_node(&server, "n2");
    let agent = start(&home, &[]).await;
    let line = agent.wait_for_line("cannot register the node").await;
    assert!(line.contains("use the credentials of this node, or correct --node-name"), "{line}");
    assert!(line.contains("is not allowed to modify node"), "{line}");
    assert!(server.all("nodes").is_empty());
}

#[tokio::test]
async fn second_agent_with_the_name_of_a_node_ends_and_names_the_reason() {
    let server = StandIn::start().await.unwrap();
    let (home, other) = (AgentHome::of_node(&server, "n1"), AgentHome::of_node(&server, "n1"));
    let first = start(&home, &[]).await;
    is_ready(&server).await;
    let output = other.run(&flags(&other.kubeconfig(), &[])).await;
    let error = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert!(error.contains("another agent or a kubelet runs as the node n1 and renews its lease: stop it"), "{error}");

    // The first agent is killed and starts again with its root directory.
    first.crash().await;
    let again = start(&home, &[]).await;
    again.wait_for_line("the node is registered").await;
}

#[tokio::test]
async fn one_of_two_agents_that_register_a_node_at_once_ends_and_names_the_reason() {
    let server = StandIn::start().await.unwrap();
    // Each agent finds no lease, in whatever order they start.
    let first_reads = Rule::new().verb(Verb::Get).resource("leases").times(2);
    server.faults().inject(first_reads, Fault::status(404));
    let homes = [(); 2].map(|()| AgentHome::of_node(&server, "n1"));
    let [mut one, mut other] = homes.each_ref().map(|home| home.start_without_waiting(&flags(&home.kubeconfig(), &[])));
    let (code, winner, loser) = tokio::select! {
        code = one.ended() => (code, other, one),
        code = other.ended() => (code, one, other),
    };
    assert_eq!(code, Some(1), "{}", loser.logged());
    assert!(
        loser.logged().contains("another agent or a kubelet runs with the name of this node"),
        "{}",
        loser.logged()
    );
    assert!(loser.line("the node is registered").is_none(), "it starts no pod of the API server");
    winner.wait_for_line("the node is registered").await;
    is_ready(&server).await;
}

#[tokio::test]
async fn agent_deletes_its_node_if_its_credentials_permit_that() {
    let server = StandIn::start().await.unwrap();
    let home = AgentHome::of_node(&server, "n1");
    let mut agent = start(&home, &["--deregister-on-exit"]).await;
    is_ready(&server).await;
    agent.signal(Signal::TERM);
    assert_eq!(agent.ended().await, Some(0));
    assert!(agent.logged().contains("grant the verb delete on nodes"), "{}", agent.logged());
    assert!(server.get("nodes", "", "n1").is_some());

    server.grant(Grant::new("system:node:n1", "delete", "nodes"));
    let mut agent = start(&home, &["--deregister-on-exit"]).await;
    agent.wait_for_line("the node is registered").await;
    agent.signal(Signal::TERM);
    assert_eq!(agent.ended().await, Some(0));
    assert!(server.get("nodes", "", "n1").is_none(), "{}", agent.logged());
    assert!(server.get("leases", "kube-node-lease", "n1").is_none());
}

/// An agent that has registered its node, may delete it at its end, and cannot renew its lease.
async fn agent_without_lease(server: &StandIn, home: &AgentHome) -> Agent {
    server.grant(Grant::new("system:node:n1", "delete", "nodes"));
    let agent = start(home, &["--deregister-on-exit"]).await;
    agent.wait_for_line("the node is registered").await;
    server.faults().inject(Rule::new().verb(Verb::Update).resource("leases"), Fault::status(503));
    agent
}

#[tokio::test]
async fn agent_that_ends_does_not_ask_to_delete_a_node_that_somebody_created_again() {
    let server = StandIn::start().await.unwrap();
    let home = AgentHome::of_node(&server, "n1");
    let mut agent = agent_without_lease(&server, &home).await;
    server.edit_unchecked("nodes", "", "n1", |node| node["metadata"]["uid"] = "created-again".into());
    agent.signal(Signal::TERM);
    assert_eq!(agent.ended().await, Some(0));
    let logged = agent.logged();
    assert!(logged.contains("another node of this name exists and is left"), "{logged}");
    assert!(!logged.contains("by hand"), "{logged}");
    assert_eq!(server.get("nodes", "", "n1").unwrap()["metadata"]["uid"], "created-again");
}

#[tokio::test]
async fn agent_that_ends_leaves_a_node_that_another_agent_has_claimed() {
    let server = StandIn::start().await.unwrap();
    let home = AgentHome::of_node(&server, "n1");
    let mut agent = agent_without_lease(&server, &home).await;
    server.edit_unchecked("leases", "kube-node-lease", "n1", |lease| {
        lease["metadata"]["annotations"]["podwright.dev/instance"] = "another".into();
    });
    agent.signal(Signal::TERM);
    assert_eq!(agent.ended().await, Some(0));
    let logged = agent.logged();
    assert!(
        logged.contains("this agent has not registered it, or another agent or a kubelet has claimed it"),
        "{logged}"
    );
    assert!(server.get("nodes", "", "n1").is_some());
}
