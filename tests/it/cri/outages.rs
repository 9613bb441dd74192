//! Crashes and restarts of agents and of the runtime.

use std::fs;

use k8s_openapi::api::core::v1::Pod;
use rustix::process::Signal;

use super::containerd::Containerd;
use super::crowd::start_cut_off;
use crate::agent::harness::{AgentHome, container, eventually, manifest, phase};

/// Puts a pod that appends a line to a file for each of its runs.
fn put(home: &AgentHome, name: &str, then: &str) {
    let script = format!("echo run >> /runs/{name}; {then}");
    let volumes = format!("volumes: [{{name: runs, hostPath: {{path: {}}}}}]", home.root().join("runs").display());
    let text = manifest(name, &script, &format!("terminationGracePeriodSeconds: 1\n  {volumes}"));
    let text = text.replace("image: i", &format!("image: {}", super::image::BUSYBOX));
    home.put(&format!("{name}.yaml"), &format!("{text}    volumeMounts: [{{name: runs, mountPath: /runs}}]\n"));
}

fn runs(home: &AgentHome, name: &str) -> usize {
    fs::read_to_string(home.root().join("runs").join(name)).unwrap_or_default().lines().count()
}

/// Waits until the command of a pod has begun, and returns how often it has begun. A pod is ready before its shell has run the first
/// command.
async fn begun(home: &AgentHome, name: &str) -> usize {
    eventually(&format!("the command of {name} has begun"), || async {
        let runs = runs(home, name);
        (runs > 0).then_some(runs)
    })
    .await
}

fn identity(pod: &Pod) -> (Option<String>, i32) {
    let container = container(pod).unwrap();
    (container.container_id.clone(), container.restart_count)
}

fn home() -> AgentHome {
    let home = AgentHome::new();
    fs::create_dir(home.root().join("runs")).unwrap();
    home
}

#[tokio::test]
async fn next_agent_adopts_running_cri_containers() {
    let Some(containerd) = Containerd::turn().await else { return };
    let home = home();
    for n in 0..5 {
        put(&home, &format!("p{n}"), "exec sleep 1000");
    }
    put(&home, "ends", "while [ ! -e /runs/go ]; do sleep 0.1; done; exit 7");
    home.put(
        "ends.yaml",
        &fs::read_to_string(home.manifests().join("ends.yaml"))
            .unwrap()
            .replace("spec:\n", "spec:\n  restartPolicy: Never\n"),
    );
    let mut agent = containerd.agent(&home).await;
    let mut before = vec![];
    for n in 0..5 {
        before.push(identity(&agent.ready(&format!("p{n}-n1")).await));
    }
    agent.ready("ends-n1").await;

    // The first agent crashes, and a container ends before the next one starts. The second agent ends by SIGTERM.
    agent.crash().await;
    fs::write(home.root().join("runs/go"), "").unwrap();
    agent = containerd.agent(&home).await;
    let ended = agent.until("ends-n1", "has failed", |pod| phase(pod) == "Failed").await;
    let end = container(&ended).unwrap().state.as_ref().unwrap().terminated.clone().unwrap();
    assert_eq!(end.exit_code, 7);
    agent.signal(Signal::TERM);
    assert_eq!(agent.ended().await, Some(0));
    agent = containerd.agent(&home).await;

    for (n, before) in before.iter().enumerate() {
        let name = format!("p{n}");
        assert_eq!(identity(&agent.ready(&format!("{name}-n1")).await), *before);
        assert_eq!(begun(&home, &name).await, 1);
    }
    assert_eq!(begun(&home, "ends").await, 1);
}

#[tokio::test]
async fn runtime_crash_loses_and_duplicates_no_container() {
    let Some(containerd) = Containerd::turn().await else { return };
    let home = home();
    put(&home, "steady", "exec sleep 1000");
    let agent = containerd.agent(&home).await;
    let before = identity(&agent.ready("steady-n1").await);
    assert_eq!(agent.get("/readyz", "").0, 200);

    // The runtime crashes while a container starts.
    put(&home, "starts", "exec sleep 1000");
    agent.wait_for_line("Container started pod=default/steady-n1").await;
    agent.until("starts-n1", "is known", |_| true).await;
    containerd.crash();
    let answer = eventually("/readyz reports the outage", || async {
        let (code, body) = agent.get("/readyz", "");
        (code == 503).then_some(body)
    })
    .await;
    assert!(
        answer.contains(containerd.socket().to_str().unwrap()) && answer.contains("start the container runtime"),
        "{answer}"
    );
    let answer = agent.explain("steady-n1");
    assert!(
        answer.contains("the container runtime does not answer") && answer.contains("correct --runtime"),
        "{answer}"
    );
    assert_eq!(identity(&agent.named("steady-n1")[0]), before, "containers are assumed to keep running");

    containerd.start().await;
    eventually("the agent is ready again", || async { (agent.get("/readyz", "").0 == 200).then_some(()) }).await;
    agent.ready("starts-n1").await;
    assert_eq!(identity(&agent.ready("steady-n1").await), before);
    assert_eq!(begun(&home, "steady").await, 1);
    let (starts, most) = (begun(&home, "starts").await, if start_cut_off(&agent, "starts-n1") { 2 } else { 1 });
    assert!(starts <= most, "{starts} runs");
}

#[tokio::test]
async fn agents_sharing_a_runtime_do_not_stop_each_others_pods() {
    let Some(containerd) = Containerd::turn().await else { return };
    let (home, elsewhere) = (home(), home());
    put(&home, "mine", "exec sleep 1000");
    put(&elsewhere, "theirs", "exec sleep 1000");
    let agent = containerd.agent(&home).await;
    let before = identity(&agent.ready("mine-n1").await);
    let other = containerd.agent(&elsewhere).await;
    let theirs = identity(&other.ready("theirs-n1").await);
    // When its removed pod is gone, an agent has completed a housekeeping pass.
    for (agent, home, name) in [(&agent, &home, "passes"), (&other, &elsewhere, "passes-too")] {
        put(home, name, "exec sleep 1000");
        agent.ready(&format!("{name}-n1")).await;
        home.remove(&format!("{name}.yaml"));
        eventually("the removed pod is gone", || async { agent.named(&format!("{name}-n1")).is_empty().then_some(()) })
            .await;
    }
    assert_eq!((identity(&agent.ready("mine-n1").await), begun(&home, "mine").await), (before, 1));
    assert_eq!((identity(&other.ready("theirs-n1").await), begun(&elsewhere, "theirs").await), (theirs, 1));
}

#[tokio::test]
async fn agent_waits_for_a_runtime_socket_that_does_not_exist_yet() {
    let home = home();
    put(&home, "early", "exec sleep 1000");
    let socket = home.root().join("no.sock");
    let agent = home.start(&[&format!("--runtime=cri={}", socket.display())]).await;
    let answer = eventually("/readyz reports the outage", || async {
        let (code, body) = agent.get("/readyz", "");
        (code == 503 && body.contains("no.sock")).then_some(body)
    })
    .await;
    assert!(answer.contains("No such file") && answer.contains("correct --runtime"), "{answer}");
    let answer = String::from_utf8(agent.run_client(&["explain"]).await.stdout).unwrap();
    assert!(answer.contains("the container runtime does not answer"), "{answer}");
}
