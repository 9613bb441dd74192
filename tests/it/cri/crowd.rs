//! Many pods at once, with crashes of agent and runtime.

use std::fs;

use k8s_openapi::api::core::v1::Pod;

use super::containerd::Containerd;
use super::image::BUSYBOX;
use crate::agent::harness::{Agent, Place, container, eventually, is_ready, phase};

/// A pod on the node's network that notes each of its runs in a file of the place.
fn put(place: &Place, name: &str) {
    let runs = place.root().join("runs");
    fs::create_dir_all(&runs).unwrap();
    let text = format!(
        "apiVersion: v1\nkind: Pod\nmetadata:\n  name: {name}\nspec:\n  hostNetwork: true\n  \
         terminationGracePeriodSeconds: 1\n  volumes: [{{name: runs, hostPath: {{path: {}}}}}]\n  containers:\n  \
         - name: main\n    image: {BUSYBOX}\n    command: [/bin/sh, -c, 'echo run >> /runs/{name}; exec sleep 1000']\n    \
         volumeMounts: [{{name: runs, mountPath: /runs}}]\n",
        runs.display()
    );
    place.put(&format!("{name}.yaml"), &text);
}

fn runs(place: &Place, name: &str) -> usize {
    fs::read_to_string(place.root().join("runs").join(name)).unwrap_or_default().lines().count()
}

/// Waits until so many pods are ready.
async fn all_ready(agent: &Agent, count: usize) -> Vec<Pod> {
    eventually(&format!("{count} pods are ready"), || async {
        let pods = agent.pods();
        (pods.iter().filter(|pod| is_ready(pod)).count() == count).then_some(pods)
    })
    .await
}

/// The number of earlier runs that a crash cut off: containerd kills a process that it starts for an agent that dies
/// during the start, with exit code 128, and that process may have run for a while.
fn cut_off(pod: &Pod) -> usize {
    let last = container(pod).and_then(|container| container.last_state.as_ref()?.terminated.as_ref());
    usize::from(last.is_some_and(|last| last.exit_code == 128 && last.reason.as_deref() == Some("StartError")))
}

/// The ids of all containers and sandboxes of the runtime.
fn left(containerd: &Containerd) -> Vec<String> {
    containerd.ctr(&["containers", "list", "--quiet"]).lines().map(str::to_owned).collect()
}

#[tokio::test]
async fn hundred_cri_pods_survive_a_runtime_crash_and_are_removed() {
    const PODS: usize = 100;
    let Some(containerd) = Containerd::turn().await else { return };
    let place = Place::new();
    let agent = containerd.agent(&place).await;
    (0..PODS).for_each(|n| put(&place, &format!("p{n}")));
    let some = |least: usize| move |pods: &[Pod]| pods.iter().filter(|pod| phase(pod) == "Running").count() >= least;
    eventually("some run", || async { some(20)(&agent.pods()).then_some(()) }).await;
    containerd.crash();
    eventually("it is told", || async { (agent.get("/readyz", "").0 == 503).then_some(()) }).await;
    containerd.start().await;
    let pods = all_ready(&agent, PODS).await;
    assert_eq!(pods.len(), PODS);
    // A container that the runtime did not come to start counts as a restart, but nothing of it ran.
    for n in 0..PODS {
        assert_eq!(runs(&place, &format!("p{n}")), 1, "p{n}");
    }

    (0..PODS).for_each(|n| place.remove(&format!("p{n}.yaml")));
    eventually("all are gone", || async { agent.pods().is_empty().then_some(()) }).await;
    eventually("the runtime has nothing left", || async { left(&containerd).is_empty().then_some(()) }).await;
    let pods = place.root().join("pods");
    eventually("nothing is left of them", || async { (fs::read_dir(&pods).unwrap().count() == 0).then_some(()) }).await;
}

// The agents die while other pods' sandboxes and containers are created and started, and while they stop and are removed.
#[tokio::test]
async fn cri_agent_killed_in_any_phase_loses_and_duplicates_no_container() {
    const PODS: usize = 5;
    let Some(containerd) = Containerd::turn().await else { return };
    for lines in [0, 1, 6, 11] {
        let place = Place::new();
        (0..PODS).for_each(|n| put(&place, &format!("p{n}")));
        let first = containerd.agent(&place).await;
        first.says_times("pod=default/p", lines).await;
        first.crash().await;
        let second = containerd.agent(&place).await;
        for pod in all_ready(&second, PODS).await {
            let name = pod.metadata.name.as_deref().unwrap().strip_suffix("-n1").unwrap();
            let runs = runs(&place, name);
            assert!((1..=1 + cut_off(&pod)).contains(&runs), "killed after {lines} log lines, {runs} runs: {pod:?}");
        }

        let before = second.logged().lines().filter(|line| line.contains("pod=default/p")).count();
        (0..PODS).for_each(|n| place.remove(&format!("p{n}.yaml")));
        second.says_times("pod=default/p", before + lines).await;
        second.crash().await;
        nothing_is_left(&containerd, &place).await;
    }
}

/// Starts another agent and waits until it has removed all pods.
async fn nothing_is_left(containerd: &Containerd, place: &Place) {
    let agent = containerd.agent(place).await;
    eventually("what nobody wants is gone", || async {
        containerd.end_stray_tasks();
        left(containerd).is_empty().then_some(())
    })
    .await;
    eventually("nothing is known of it", || async { agent.pods().is_empty().then_some(()) }).await;
    let pods = place.root().join("pods");
    eventually("nothing is left of it", || async { (fs::read_dir(&pods).unwrap().count() == 0).then_some(()) }).await;
}

/// A pod with init container, sidecar and hooks.
const RICH: &str = "  initContainers:
  - {name: init, image: IMAGE, command: [/bin/sh, -c, 'echo run >> /runs/init; sleep 0.5'], volumeMounts: [{name: runs, mountPath: /runs}]}
  - {name: side, image: IMAGE, restartPolicy: Always, command: [sleep, '1000']}
  containers:
  - name: main
    image: IMAGE
    command: [/bin/sh, -c, 'echo run >> /runs/rich; exec sleep 1000']
    volumeMounts: [{name: runs, mountPath: /runs}]
    lifecycle: {postStart: {exec: {command: [sleep, '1']}}, preStop: {exec: {command: [sleep, '1']}}}
";

// The first agent is killed right after the first log line, the second agent after the second one.
#[tokio::test]
async fn agent_killed_between_two_steps_of_a_pod_continues_there() {
    let Some(containerd) = Containerd::turn().await else { return };
    for (starting, stopping) in [
        ("allowed to start", "Stopping container main"),
        ("Started container init", "transition lifecycle=\"terminating\""),
        ("Created container side", "transition lifecycle=\"terminated\""),
        ("Created container main", "Stopping container side"),
        ("Started container main", "transition lifecycle=\"finished\""),
    ] {
        let place = Place::new();
        let runs_dir = place.root().join("runs");
        fs::create_dir_all(&runs_dir).unwrap();
        let head = "apiVersion: v1\nkind: Pod\nmetadata:\n  name: rich\nspec:\n  hostNetwork: true\n  \
                    terminationGracePeriodSeconds: 3\n";
        let volumes = format!("  volumes: [{{name: runs, hostPath: {{path: {}}}}}]\n", runs_dir.display());
        let agent = containerd.agent(&place).await;
        place.put("rich.yaml", &[head, &volumes, &RICH.replace("IMAGE", BUSYBOX)].concat());
        agent.says(starting).await;
        agent.crash().await;
        let agent = containerd.agent(&place).await;
        let pod = agent.ready("rich-n1").await;
        let main = runs(&place, "rich");
        assert!((1..=1 + cut_off(&pod)).contains(&main), "killed at {starting:?}, {main} runs: {pod:?}");
        // The runtime may end one that it has just started for a caller that died.
        let most = if starting.contains("init") { 2 } else { 1 };
        assert!((1..=most).contains(&runs(&place, "init")), "killed at {starting:?}: {pod:?}");

        place.remove("rich.yaml");
        agent.says(stopping).await;
        agent.crash().await;
        nothing_is_left(&containerd, &place).await;
        assert_eq!((runs(&place, "rich"), starting), (main, starting), "nothing starts again after {stopping:?}");
    }
}

#[tokio::test]
async fn container_over_its_memory_limit_is_reported_as_oom_killed() {
    let Some(containerd) = Containerd::turn().await else { return };
    let place = Place::new();
    place.put(
        "greedy.yaml",
        &format!(
            "apiVersion: v1\nkind: Pod\nmetadata:\n  name: greedy\nspec:\n  hostNetwork: true\n  restartPolicy: Never\n  \
             containers:\n  - name: main\n    image: {BUSYBOX}\n    resources: {{limits: {{memory: 16Mi}}}}\n    \
             command: [tail, /dev/zero]\n"
        ),
    );
    let agent = containerd.agent(&place).await;
    let pod = agent.until("greedy-n1", "fails", |pod| phase(pod) == "Failed").await;
    let end = container(&pod).unwrap().state.as_ref().unwrap().terminated.clone().unwrap();
    assert_eq!(end.reason.as_deref(), Some("OOMKilled"), "{end:?}");
    assert_eq!(end.exit_code, 137);
}
