//! Stops of CRI containers.

use std::fs;
use std::path::Path;
use std::time::Duration;

use futures_util::FutureExt as _;
use podwright_actors::pod::PodObject;
use podwright_actors::ports::{ContainerConfig, ContainerRuntime, ContainerState, ImageRequest, SandboxConfig};
use rustix::process::Signal;
use serde_json::json;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use super::containerd::Containerd;
use super::image::BUSYBOX;
use crate::agent::harness::{AgentHome, eventually, manifest};
use crate::support::processes::{PATIENCE, script};

const STUBBORN: &str = "trap 'echo no' TERM; echo ready; while true; do sleep 0.1; done";

/// Waits until the log of a container has a line that ends with this word. A container runs before its shell has set its traps, so a test
/// waits for the line `ready` before it stops the container.
async fn until_logged(log: &Path, word: &str) {
    let has_line =
        || async { fs::read_to_string(log).unwrap_or_default().lines().any(|line| line.ends_with(word)).then_some(()) };
    eventually(&format!("{} has the line {word:?}", log.display()), has_line).await;
}

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

#[tokio::test]
async fn cri_creation_is_idempotent_and_a_shorter_grace_period_applies() {
    let Some(containerd) = Containerd::turn().await else { return };
    let root = tempfile::tempdir().unwrap();
    let runtime = containerd.open(root.path());
    let containers = json!([{"name": "main", "image": BUSYBOX}]);
    let pod = json!({"metadata": {"name": "p", "namespace": "n", "uid": "u"}, "spec": {"containers": containers}});
    let pod = PodObject::new(serde_json::from_value(pod).unwrap()).unwrap();

    // A dropped call does not interrupt the creation, and a repeated call returns the created sandbox.
    let config = || SandboxConfig { pod: pod.clone(), attempt: 0 };
    assert!(runtime.run_sandbox(config()).now_or_never().is_none());
    let sandbox = runtime.run_sandbox(config()).await.unwrap();
    let again = containerd.open(root.path());
    assert_eq!(again.run_sandbox(config()).await.unwrap(), sandbox, "a second agent gets the same sandbox");

    let never = CancellationToken::new();
    let request = ImageRequest { pod: &pod, container: None, image: BUSYBOX, pull_policy: None };
    let image_id = runtime.ensure_image(request, &never).await.unwrap();
    let config = || ContainerConfig { image_id: image_id.clone(), ..script(&pod, &sandbox, STUBBORN) };
    let id = runtime.create_container(config()).await.unwrap();
    assert_eq!(again.create_container(config()).await.unwrap(), id);
    let changed = again.create_container(ContainerConfig { spec_hash: 2, ..config() }).await.unwrap();
    assert_ne!(changed, id, "a container with another definition is replaced");
    runtime.start_container(&changed).await.unwrap();
    assert!(runtime.remove_container(&changed, false).await.is_err(), "a running container is not removed");
    let late = runtime.exec(&changed, &["sleep".into(), "100".into()], Duration::from_secs(1)).await;
    assert!(matches!(late, Err(podwright_actors::ports::RuntimeError::Timeout { .. })), "{late:?}");

    let log = root.path().join("log/pods/n_p_u/main/0.log");
    until_logged(&log, "ready").await;
    let slow = runtime.stop_container(&changed, Duration::from_secs(600));
    let fast = async {
        // Waits until the slow stop has sent its signal.
        until_logged(&log, "no").await;
        runtime.stop_container(&changed, Duration::from_secs(1)).await
    };
    // Without the shorter grace period both would wait for ten minutes.
    let both = timeout(PATIENCE, async { tokio::join!(slow, fast) }).await;
    assert_eq!(both, Ok((Ok(()), Ok(()))));
    let status = runtime.pod_status(pod.uid()).await.unwrap();
    assert_eq!(status.containers.len(), 1);
    assert_eq!((status.containers[0].state, status.containers[0].exit_code), (ContainerState::Exited, 137));
}
