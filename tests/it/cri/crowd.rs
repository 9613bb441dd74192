//! Many pods at once, with crashes of agent and runtime.

use std::fs;

use k8s_openapi::api::core::v1::{ContainerStatus, Pod};

use super::containerd::Containerd;
use super::image::BUSYBOX;
use crate::agent::harness::{Agent, AgentHome, container, eventually, is_ready, phase};

/// Puts a pod on the node's network that appends a line to a file for each of its runs. Its environment names the test's
/// directory, so that [`AgentHome::processes`] finds its processes.
fn put(home: &AgentHome, name: &str) {
    let runs = home.root().join("runs");
    fs::create_dir_all(&runs).unwrap();
    let text = format!(
        "apiVersion: v1\nkind: Pod\nmetadata:\n  name: {name}\nspec:\n  hostNetwork: true\n  \
         terminationGracePeriodSeconds: 1\n  volumes: [{{name: runs, hostPath: {{path: {}}}}}]\n  containers:\n  \
         - name: main\n    image: {BUSYBOX}\n    command: [/bin/sh, -c, 'echo run >> /runs/{name}; exec sleep 1000']\n    \
         env: [{{name: TEST, value: {root}}}]\n    volumeMounts: [{{name: runs, mountPath: /runs}}]\n",
        runs.display(),
        root = home.root().display()
    );
    home.put(&format!("{name}.yaml"), &text);
}

fn runs(home: &AgentHome, name: &str) -> usize {
    fs::read_to_string(home.root().join("runs").join(name)).unwrap_or_default().lines().count()
}

/// Waits until this many pods are ready and their commands have begun. A pod is ready before its shell has run the first command. Each
/// quarter of the pods has a time limit of its own, so that many pods have more time.
async fn all_run(agent: &Agent, home: &AgentHome, count: usize) -> Vec<Pod> {
    for part in 1..=4 {
        let least = count * part / 4;
        eventually(&format!("{least} pods are ready"), || async {
            (agent.pods().iter().filter(|pod| is_ready(pod)).count() >= least).then_some(())
        })
        .await;
    }
    eventually("the command of each pod has begun", || async {
        let pods = agent.pods();
        let begun = |pod: &Pod| is_ready(pod) && runs(home, short_name(pod)) > 0;
        (pods.len() == count && pods.iter().all(begun)).then_some(pods)
    })
    .await
}

/// The name of a static pod in its manifest.
fn short_name(pod: &Pod) -> &str {
    pod.metadata.name.as_deref().unwrap().strip_suffix("-n1").unwrap()
}

/// The number of earlier runs whose start was cut off by the death of the agent. containerd kills the process of such a run and
/// reports exit code 128, and the process may have run for a while.
fn cut_off(container: Option<&ContainerStatus>) -> usize {
    let last = container.and_then(|container| container.last_state.as_ref()?.terminated.as_ref());
    usize::from(last.is_some_and(|last| last.exit_code == 128 && last.reason.as_deref() == Some("StartError")))
}

/// Whether containerd died while it started the pod's container. The process may have begun to run by then. containerd 1.6 ends
/// it when it loads its state again, and reports the container as created and never started. So the agent starts the same
/// container again, and its restart count stays 0.
pub(super) fn start_cut_off(agent: &Agent, pod: &str) -> bool {
    let pod = format!("pod=default/{pod} reason=\"Failed\"");
    agent.logged().lines().any(|line| line.contains("Container main: runtime unreachable") && line.contains(&pod))
}

/// The ids of all containers and sandboxes of the runtime.
fn left(containerd: &Containerd) -> Vec<String> {
    containerd.ctr(&["containers", "list", "--quiet"]).lines().map(str::to_owned).collect()
}

// Takes over half a minute: containerd starts and removes about ten containers in a second.
#[tokio::test]
async fn hundred_cri_pods_survive_a_runtime_crash_and_are_removed() {
    const PODS: usize = 100;
    let Some(containerd) = Containerd::turn().await else { return };
    let home = AgentHome::new();
    let agent = containerd.agent(&home).await;
    (0..PODS).for_each(|n| put(&home, &format!("p{n}")));
    let some = |least: usize| move |pods: &[Pod]| pods.iter().filter(|pod| phase(pod) == "Running").count() >= least;
    eventually("some pods run", || async { some(20)(&agent.pods()).then_some(()) }).await;
    containerd.crash();
    eventually("/readyz reports the outage", || async { (agent.get("/readyz", "").0 == 503).then_some(()) }).await;
    containerd.start().await;
    let pods = all_run(&agent, &home, PODS).await;
    eventually("each shell has become its last command", || async {
        let is_done = |process: &String| process == "sleep 1000 ";
        home.processes().iter().all(is_done).then_some(())
    })
    .await;
    // A container that the runtime created but did not start counts as a restart, but its command may never have run.
    for pod in &pods {
        let runs = runs(&home, short_name(pod));
        let is_cut_off = start_cut_off(&agent, pod.metadata.name.as_deref().unwrap()) || cut_off(container(pod)) > 0;
        let most = 1 + usize::from(is_cut_off);
        assert!((1..=most).contains(&runs), "{runs} runs: {pod:?}");
    }
    assert_eq!(home.processes(), vec!["sleep 1000 "; PODS], "no two runs of one pod at a time");

    (0..PODS).for_each(|n| home.remove(&format!("p{n}.yaml")));
    for most in [75, 50, 25, 0] {
        eventually(&format!("{most} pods are left"), || async { (agent.pods().len() <= most).then_some(()) }).await;
    }
    eventually("the runtime has nothing left", || async { left(&containerd).is_empty().then_some(()) }).await;
    let pods = home.root().join("pods");
    eventually("no pod directory is left", || async { (fs::read_dir(&pods).unwrap().count() == 0).then_some(()) })
        .await;
}

// The agents die while other pods' sandboxes and containers are created and started, and while they stop and are removed.
// Takes over half a minute: four times, three agents start and remove five pods.
#[tokio::test]
async fn cri_agent_killed_in_any_phase_loses_and_duplicates_no_container() {
    const PODS: usize = 5;
    let Some(containerd) = Containerd::turn().await else { return };
    for lines in [0, 1, 6, 11] {
        let home = AgentHome::new();
        (0..PODS).for_each(|n| put(&home, &format!("p{n}")));
        let first = containerd.agent(&home).await;
        first.wait_for_lines("pod=default/p", lines).await;
        first.crash().await;
        let second = containerd.agent(&home).await;
        for pod in all_run(&second, &home, PODS).await {
            let (runs, most) = (runs(&home, short_name(&pod)), 1 + cut_off(container(&pod)));
            assert!((1..=most).contains(&runs), "killed after {lines} log lines, {runs} runs: {pod:?}");
        }

        let before = second.logged().lines().filter(|line| line.contains("pod=default/p")).count();
        (0..PODS).for_each(|n| home.remove(&format!("p{n}.yaml")));
        second.wait_for_lines("pod=default/p", before + lines).await;
        second.crash().await;
        nothing_is_left(&containerd, &home).await;
    }
}

/// Starts another agent and waits until it has removed all pods.
async fn nothing_is_left(containerd: &Containerd, home: &AgentHome) {
    let agent = containerd.agent(home).await;
    eventually("pods that no manifest defines are gone", || async {
        containerd.end_stray_tasks();
        left(containerd).is_empty().then_some(())
    })
    .await;
    eventually("the agent knows no pod", || async { agent.pods().is_empty().then_some(()) }).await;
    let pods = home.root().join("pods");
    eventually("no pod directory is left", || async { (fs::read_dir(&pods).unwrap().count() == 0).then_some(()) })
        .await;
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
// Takes over a minute: five times, three agents start and stop a pod whose hooks and grace period take seconds.
#[tokio::test]
async fn agent_killed_between_two_steps_of_a_pod_continues_there() {
    let Some(containerd) = Containerd::turn().await else { return };
    for (starting, stopping) in [
        ("allowed to start", "Stopping container main"),
        (
            "Container started pod=default/rich-n1 field.path=\"spec.initContainers{init}\"",
            "transition lifecycle=\"terminating\"",
        ),
        (
            "Container created pod=default/rich-n1 field.path=\"spec.initContainers{side}\"",
            "transition lifecycle=\"terminated\"",
        ),
        ("Container created pod=default/rich-n1 field.path=\"spec.containers{main}\"", "Stopping container side"),
        (
            "Container started pod=default/rich-n1 field.path=\"spec.containers{main}\"",
            "transition lifecycle=\"finished\"",
        ),
    ] {
        let home = AgentHome::new();
        let runs_dir = home.root().join("runs");
        fs::create_dir_all(&runs_dir).unwrap();
        let head = "apiVersion: v1\nkind: Pod\nmetadata:\n  name: rich\nspec:\n  hostNetwork: true\n  \
                    terminationGracePeriodSeconds: 3\n";
        let volumes = format!("  volumes: [{{name: runs, hostPath: {{path: {}}}}}]\n", runs_dir.display());
        let agent = containerd.agent(&home).await;
        home.put("rich.yaml", &[head, &volumes, &RICH.replace("IMAGE", BUSYBOX)].concat());
        agent.wait_for_line(starting).await;
        agent.crash().await;
        let agent = containerd.agent(&home).await;
        let pod = agent.ready("rich-n1").await;
        eventually("the command of main has begun", || async { (runs(&home, "rich") > 0).then_some(()) }).await;
        let main = runs(&home, "rich");
        let most = 1 + cut_off(container(&pod));
        assert!((1..=most).contains(&main), "killed at {starting:?}, {main} runs: {pod:?}");
        // The runtime may kill a container that it has just started for an agent that died.
        let init = pod.status.as_ref().unwrap().init_container_statuses.as_ref().unwrap().first();
        let most = if starting.contains("init") { 2 } else { 1 + cut_off(init) };
        assert!((1..=most).contains(&runs(&home, "init")), "killed at {starting:?}: {pod:?}");

        home.remove("rich.yaml");
        agent.wait_for_line(stopping).await;
        agent.crash().await;
        nothing_is_left(&containerd, &home).await;
        assert_eq!((runs(&home, "rich"), starting), (main, starting), "nothing starts again after {stopping:?}");
    }
}

#[tokio::test]
async fn container_over_its_memory_limit_is_reported_as_oom_killed() {
    let Some(containerd) = Containerd::turn().await else { return };
    let home = AgentHome::new();
    home.put(
        "greedy.yaml",
        &format!(
            "apiVersion: v1\nkind: Pod\nmetadata:\n  name: greedy\nspec:\n  hostNetwork: true\n  containers:\n  - name: main\n    image: {BUSYBOX}\n    resources: {{limits: {{memory: 16Mi}}}}\n    \
             command: [tail, /dev/zero]\n"
        ),
    );
    let agent = containerd.agent(&home).await;
    let oom_killed = |pod: &Pod| {
        let states = container(pod).map(|container| [&container.state, &container.last_state]);
        let mut ends = states.into_iter().flatten().flatten().filter_map(|state| state.terminated.as_ref());
        ends.any(|end| end.reason.as_deref() == Some("OOMKilled") && end.exit_code == 137)
    };
    // The kernel reports the end of a container and its reason separately, and on a slow machine containerd never learns the reason of
    // some runs. Then a later run has it.
    agent.until("greedy-n1", "is killed for its memory", oom_killed).await;
}
