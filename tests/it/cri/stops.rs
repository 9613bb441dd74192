//! Stops of CRI containers by an agent.

use std::fs;
use std::path::Path;
use std::time::Duration;

use podwright_containerd::until_logged;
use rustix::process::Signal;
use tokio::time::Instant;

use super::containerd::Containerd;
use super::image::BUSYBOX;
use crate::agent::harness::{AgentHome, eventually, manifest};

#[tokio::test]
async fn cri_container_ignoring_sigterm_is_killed_after_its_grace_period() {
    let Some(containerd) = Containerd::turn().await else { return };
    let home = AgentHome::new();
    // The agent may remove the log of the pod before the test has read it. It does not remove a file of the test.
    let said = home.shared().join("said");
    let volumes = format!("volumes: [{{name: shared, hostPath: {{path: {}}}}}]", home.shared().display());
    let script = "trap 'echo no >> /shared/said' TERM; echo ready >> /shared/said; while true; do sleep 0.1; done";
    let text = manifest("stubborn", script, &format!("terminationGracePeriodSeconds: 10\n  {volumes}"));
    let text = text.replace("image: i", &format!("image: {BUSYBOX}"));
    home.put("stubborn.yaml", &format!("{text}    volumeMounts: [{{name: shared, mountPath: /shared}}]\n"));
    let agent = containerd.agent(&home).await;
    agent.ready("stubborn-n1").await;
    until_logged(&said, "ready").await;
    let begin = Instant::now();
    home.remove("stubborn.yaml");
    eventually("the pod is gone", || async { agent.pods().is_empty().then_some(()) }).await;
    assert!(begin.elapsed() >= Duration::from_secs(10), "{:?}", begin.elapsed());
    let said = fs::read_to_string(said).unwrap();
    assert!(said.starts_with("ready\nno\n"), "the container gets SIGTERM first: {said:?}");
}

#[tokio::test]
async fn agent_with_pods_on_exit_stop_stops_the_containers_in_their_groups() {
    let Some(containerd) = Containerd::turn().await else { return };
    let home = AgentHome::new();
    let stops = "trap 'echo stops; sleep 1; echo ends; exit 0' TERM; echo ready; while true; do sleep 0.1; done";
    for (name, spec) in [("usual", "priority: 0"), ("vital", "priority: 2000000000")] {
        let text = manifest(name, stops, spec);
        home.put(&format!("{name}.yaml"), &text.replace("image: i", &format!("image: {BUSYBOX}")));
    }
    let mut agent = containerd.agent_with(&home, &["--pods-on-exit", "stop", "--shutdown-grace", "120,60"]).await;
    let mut logs = Vec::new();
    for name in ["usual-n1", "vital-n1"] {
        let uid = agent.ready(name).await.metadata.uid.unwrap();
        logs.push(home.root().join("log/pods").join(format!("default_{name}_{uid}/main/0.log")));
    }
    for log in &logs {
        until_logged(log, "ready").await;
    }
    agent.signal(Signal::TERM);
    assert_eq!(agent.ended().await, Some(0));
    assert!(!containerd.ctr(&["tasks", "list"]).contains("RUNNING"), "{}", containerd.ctr(&["tasks", "list"]));
    // Each line of a log begins with its time.
    let time_of = |log: &Path, what: &str| {
        let text = fs::read_to_string(log).unwrap();
        text.lines().find(|line| line.ends_with(what)).map(|line| line.split(' ').next().unwrap().to_owned())
    };
    let ended = time_of(&logs[0], "ends").expect("the normal pod has its grace period");
    let stopped = time_of(&logs[1], "stops").expect("the critical pod gets SIGTERM");
    assert!(time_of(&logs[1], "ends").is_some(), "the critical pod has its grace period");
    assert!(ended < stopped, "the critical pod stops after the normal one: {ended} {stopped}");
}
