//! Agents and runtimes that die, and the ones that come after them.

use std::fs;

use k8s_openapi::api::core::v1::Pod;
use rustix::process::Signal;

use super::containerd::Containerd;
use crate::agent::harness::{Place, container, eventually, manifest, phase};

/// A pod that notes each of its runs in a file of the place.
fn put(place: &Place, name: &str, then: &str) {
    let script = format!("echo run >> /runs/{name}; {then}");
    let volumes = format!("volumes: [{{name: runs, hostPath: {{path: {}}}}}]", place.root().join("runs").display());
    let text = manifest(name, &script, &format!("terminationGracePeriodSeconds: 1\n  {volumes}"));
    let text = text.replace("image: i", &format!("image: {}", super::image::BUSYBOX));
    place.put(&format!("{name}.yaml"), &format!("{text}    volumeMounts: [{{name: runs, mountPath: /runs}}]\n"));
}

fn runs(place: &Place, name: &str) -> usize {
    fs::read_to_string(place.root().join("runs").join(name)).unwrap_or_default().lines().count()
}

fn identity(pod: &Pod) -> (Option<String>, i32) {
    let container = container(pod).unwrap();
    (container.container_id.clone(), container.restart_count)
}

fn place() -> Place {
    let place = Place::new();
    fs::create_dir(place.root().join("runs")).unwrap();
    place
}

#[tokio::test]
async fn next_agent_adopts_running_cri_containers() {
    let Some(containerd) = Containerd::turn().await else { return };
    let place = place();
    for n in 0..5 {
        put(&place, &format!("p{n}"), "exec sleep 1000");
    }
    put(&place, "ends", "while [ ! -e /runs/go ]; do sleep 0.1; done; exit 7");
    place.put(
        "ends.yaml",
        &fs::read_to_string(place.manifests().join("ends.yaml"))
            .unwrap()
            .replace("spec:\n", "spec:\n  restartPolicy: Never\n"),
    );
    let mut agent = containerd.agent(&place).await;
    let mut before = vec![];
    for n in 0..5 {
        before.push(identity(&agent.ready(&format!("p{n}-n1")).await));
    }
    agent.ready("ends-n1").await;

    // Once as a crash, while a container ends, and once as it should be.
    agent.crash().await;
    fs::write(place.root().join("runs/go"), "").unwrap();
    agent = containerd.agent(&place).await;
    let ended = agent.until("ends-n1", "has failed", |pod| phase(pod) == "Failed").await;
    let end = container(&ended).unwrap().state.as_ref().unwrap().terminated.clone().unwrap();
    assert_eq!(end.exit_code, 7);
    agent.signal(Signal::TERM);
    assert_eq!(agent.ended().await, Some(0));
    agent = containerd.agent(&place).await;

    for (n, before) in before.iter().enumerate() {
        let name = format!("p{n}");
        assert_eq!(identity(&agent.ready(&format!("{name}-n1")).await), *before);
        assert_eq!(runs(&place, &name), 1);
    }
    assert_eq!(runs(&place, "ends"), 1);
}

#[tokio::test]
async fn runtime_crash_loses_and_duplicates_no_container() {
    let Some(containerd) = Containerd::turn().await else { return };
    let place = place();
    put(&place, "steady", "exec sleep 1000");
    let agent = containerd.agent(&place).await;
    let before = identity(&agent.ready("steady-n1").await);
    assert_eq!(agent.get("/readyz", "").0, 200);

    // In the middle of a start.
    put(&place, "starts", "exec sleep 1000");
    agent.says("Started container main pod=default/steady-n1").await;
    agent.until("starts-n1", "is wanted", |_| true).await;
    containerd.crash();
    let answer = eventually("it is told", || async {
        let (code, body) = agent.get("/readyz", "");
        (code == 503).then_some(body)
    })
    .await;
    assert!(
        answer.contains(containerd.socket().to_str().unwrap()) && answer.contains("start the container runtime"),
        "{answer}"
    );
    let told = agent.explain("steady-n1");
    assert!(told.contains("the container runtime does not answer") && told.contains("correct --runtime"), "{told}");
    assert_eq!(identity(&agent.named("steady-n1")[0]), before, "what runs is taken to run on");

    containerd.start().await;
    eventually("it is well again", || async { (agent.get("/readyz", "").0 == 200).then_some(()) }).await;
    agent.ready("starts-n1").await;
    assert_eq!(identity(&agent.ready("steady-n1").await), before);
    assert_eq!((runs(&place, "steady"), runs(&place, "starts")), (1, 1));
}

#[tokio::test]
async fn agents_sharing_a_runtime_do_not_stop_each_others_pods() {
    let Some(containerd) = Containerd::turn().await else { return };
    let (place, elsewhere) = (place(), place());
    put(&place, "mine", "exec sleep 1000");
    put(&elsewhere, "theirs", "exec sleep 1000");
    let agent = containerd.agent(&place).await;
    let before = identity(&agent.ready("mine-n1").await);
    let other = containerd.agent(&elsewhere).await;
    let theirs = identity(&other.ready("theirs-n1").await);
    // One pass of each is known to be over once what it was to stop is gone.
    for (agent, place, name) in [(&agent, &place, "passes"), (&other, &elsewhere, "passes-too")] {
        put(place, name, "exec sleep 1000");
        agent.ready(&format!("{name}-n1")).await;
        place.remove(&format!("{name}.yaml"));
        eventually("it is gone", || async { agent.named(&format!("{name}-n1")).is_empty().then_some(()) }).await;
    }
    assert_eq!((identity(&agent.ready("mine-n1").await), runs(&place, "mine")), (before, 1));
    assert_eq!((identity(&other.ready("theirs-n1").await), runs(&elsewhere, "theirs")), (theirs, 1));
}

#[tokio::test]
async fn agent_waits_for_a_runtime_socket_that_does_not_exist_yet() {
    let place = place();
    put(&place, "early", "exec sleep 1000");
    let socket = place.root().join("no.sock");
    let agent = place.start(&[&format!("--runtime=cri={}", socket.display())]).await;
    let answer = eventually("it is told", || async {
        let (code, body) = agent.get("/readyz", "");
        (code == 503 && body.contains("no.sock")).then_some(body)
    })
    .await;
    assert!(answer.contains("No such file") && answer.contains("correct --runtime"), "{answer}");
    let told = String::from_utf8(agent.ask(&["explain"]).await.stdout).unwrap();
    assert!(told.contains("the container runtime does not answer"), "{told}");
}
