//! An agent that is killed, and the next agent.

use std::collections::BTreeMap;
use std::fs;
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::Pod;

use super::harness::{AgentHome, container, eventually, is_ready, manifest, phase, text};

/// Waits until the file of the facts of containers has this text. The agent writes it in the background.
async fn fact_is_written(home: &AgentHome, text: &str) {
    eventually(&format!("the fact {text} is written"), || async {
        fs::read_to_string(home.root().join("run_facts")).ok()?.contains(text).then_some(())
    })
    .await;
}

/// The facts that must not change: container ID, restart count, start time.
fn identity(pod: &Pod) -> (Option<String>, i32, String) {
    let container = container(pod).expect("the pod has a container");
    let running = container.state.as_ref().and_then(|state| state.running.as_ref());
    (
        container.container_id.clone(),
        container.restart_count,
        format!("{:?}", running.map(|running| &running.started_at)),
    )
}

#[tokio::test]
async fn killed_agent_loses_and_restarts_none_of_twenty_pods() {
    let home = AgentHome::new();
    for n in 0..19 {
        home.put(&format!("{n}.yaml"), &manifest(&format!("pod-{n}"), "exec sleep 1000", ""));
    }
    let go = home.shared().join("go");
    let waits = format!("while [ ! -e {} ]; do sleep 0.05; done; exit 7", go.display());
    home.put("ends.yaml", &manifest("ends", &waits, "restartPolicy: Never"));
    let agent = home.start(&[]).await;
    let before = eventually("20 pods run", || async {
        let pods = agent.pods();
        let run = pods.len() == 20 && pods.iter().all(|pod| phase(pod) == "Running");
        run.then_some(pods)
    })
    .await;
    agent.crash().await;

    fs::write(&go, "").unwrap();
    eventually("one container ends while no agent runs", || async {
        let containers = fs::read_dir(home.root().join("process/containers")).unwrap().flatten();
        containers.into_iter().any(|container| container.path().join("exit").exists()).then_some(())
    })
    .await;

    let agent = home.start(&[]).await;
    let ended = agent.until("ends-n1", "has failed", |pod| phase(pod) == "Failed").await;
    let end = container(&ended).unwrap().state.as_ref().unwrap().terminated.as_ref().unwrap();
    assert_eq!(end.exit_code, 7);
    let after = eventually("19 pods run", || async {
        let pods = agent.pods();
        (pods.iter().filter(|pod| phase(pod) == "Running").count() == 19).then_some(pods)
    })
    .await;
    let identities = |pods: &[Pod]| -> BTreeMap<String, _> {
        let running = pods.iter().filter(|pod| pod.metadata.name.as_deref() != Some("ends-n1"));
        running.map(|pod| (pod.metadata.name.clone().unwrap(), identity(pod))).collect()
    };
    assert_eq!(identities(&after), identities(&before));
}

#[tokio::test]
async fn next_agent_keeps_the_pod_of_a_manifest_that_was_copied_meanwhile() {
    let home = AgentHome::new();
    let text = manifest("web", "exec sleep 1000", "");
    home.put("web.yaml", &text);
    let agent = home.start(&[]).await;
    let before = identity(&agent.ready("web-n1").await);
    agent.crash().await;

    home.put("a-copy.yaml", &text);
    let agent = home.start(&[]).await;
    let line = agent.wait_for_line("already defined by").await;
    assert!(line.contains("a-copy.yaml") && line.contains("web.yaml"), "{line}");
    assert_eq!(identity(&agent.ready("web-n1").await), before);
}

#[tokio::test]
async fn next_agent_logs_the_end_of_a_pod_whose_manifest_is_gone() {
    let home = AgentHome::new();
    home.put("web.yaml", &manifest("web", "exec sleep 1000", ""));
    let agent = home.start(&[]).await;
    agent.ready("web-n1").await;
    agent.crash().await;
    home.remove("web.yaml");
    let agent = home.start(&[]).await;
    let ended = agent.wait_for_line("cause=\"containers stopped\"").await;
    assert!(ended.contains("lifecycle=\"terminated\"") && ended.contains("web-n1"), "{ended}");
}

// The agent may die before it writes a container's record, between the record and the process, and before it knows that
// the process runs. While it logs a line about one pod, the other pods are at these steps.
#[tokio::test]
async fn agent_killed_during_pod_start_loses_and_duplicates_no_container() {
    const PODS: usize = 8;
    for lines in (0..=22).step_by(2) {
        let home = AgentHome::new();
        let ran = |i: usize| home.shared().join(format!("ran-{i}"));
        for i in 0..PODS {
            let script = format!("echo $PODWRIGHT_CONTAINER_ID >> {}; exec sleep 1000", ran(i).display());
            home.put(&format!("p{i}.yaml"), &manifest(&format!("p{i}"), &script, "terminationGracePeriodSeconds: 1"));
        }
        let first = home.start_without_waiting(&[]);
        first.wait_for_lines("pod=default/p", lines).await;
        first.crash().await;

        let second = home.start(&[]).await;
        for i in 0..PODS {
            second.ready(&format!("p{i}-n1")).await;
        }
        // A container is ready before its shell has written its line and has become the command.
        let runs = |i: usize| fs::read_to_string(ran(i)).unwrap_or_default();
        let sleeping = || home.processes().iter().filter(|command| command.starts_with("sleep 1000")).count();
        eventually("every container has written a line and sleeps", || async {
            ((0..PODS).all(|i| runs(i).ends_with('\n')) && sleeping() >= PODS).then_some(())
        })
        .await;
        for i in 0..PODS {
            assert_eq!(runs(i).lines().count(), 1, "killed after {lines} log lines, p{i} ran as {}", runs(i));
        }
        assert_eq!(sleeping(), PODS, "killed after {lines} log lines");
    }
}

// Both pods have no manifest when the next agent starts. The first one was asked to stop by the first agent.
#[tokio::test]
async fn next_agent_gives_pods_without_a_manifest_what_is_left_of_their_grace_periods() {
    let home = AgentHome::new();
    let file = |name: &str| home.shared().join(name);
    let script = |name: &str| {
        let (begins, go, done) = (file(&format!("{name}-begins")), file("go"), file(&format!("{name}-done")));
        format!(
            "trap 'touch {}; while [ ! -e {} ]; do sleep 0.05; done; touch {}; exit 0' TERM; while :; do sleep 0.05; done",
            begins.display(),
            go.display(),
            done.display()
        )
    };
    for (namespace, name) in [("default", "stopping"), ("shop", "removed")] {
        let text = manifest(name, &script(name), "terminationGracePeriodSeconds: 600");
        let named = format!("  name: {name}\n");
        home.put(&format!("{name}.yaml"), &text.replace(&named, &format!("{named}  namespace: {namespace}\n")));
    }
    let agent = home.start(&[]).await;
    for name in ["stopping", "removed"] {
        agent.ready(&format!("{name}-n1")).await;
    }
    home.remove("stopping.yaml");
    eventually("the first pod stops", || async { file("stopping-begins").exists().then_some(()) }).await;
    fact_is_written(&home, "\"killed_at\"").await;
    let begun = Instant::now();
    agent.crash().await;
    home.remove("removed.yaml");
    // The log has the rest of the grace period in whole seconds.
    eventually("two seconds pass", || async { (begun.elapsed() > Duration::from_secs(2)).then_some(()) }).await;

    let agent = home.start(&[]).await;
    for (name, expected) in [("default/stopping", 300..=599), ("shop/removed", 600..=600)] {
        let text = format!("stopping a pod that only the runtime knows pod={name}-n1");
        let line = agent.wait_for_line(&text).await;
        let grace =
            line.split("grace.seconds=").nth(1).unwrap_or_default().split_whitespace().next().unwrap_or_default();
        assert!(grace.parse::<u32>().is_ok_and(|seconds| expected.contains(&seconds)), "{line}");
    }
    eventually("the second pod stops", || async { file("removed-begins").exists().then_some(()) }).await;
    for name in ["removed-n1", "removed"] {
        let (code, explained) = agent.get(&format!("/explain/shop/{name}"), "");
        assert!(code == 200 && explained.contains("removed-n1"), "{code} {explained}");
        let (code, why) = agent.get(&format!("/logs/shop/{name}"), "");
        assert!(code == 404 && why.contains("is known to the container runtime only"), "{code} {why}");
        let got = agent.run_client(&["get", "pods", name]).await;
        assert!(text(&got.stderr).contains("no source has the pod shop/removed-n1"), "{got:?}");
    }
    fs::write(file("go"), "").unwrap();
    eventually("both pods clean up", || async {
        ["stopping-done", "removed-done"].iter().all(|name| file(name).exists()).then_some(())
    })
    .await;
}

// The probe does not answer under the second agent.
#[tokio::test]
async fn ready_pod_is_ready_before_the_first_probe_of_the_next_agent() {
    let home = AgentHome::new();
    let (block, started) = (home.shared().join("block"), home.shared().join("started"));
    let ready = format!("while [ -e {} ]; do sleep 0.05; done", block.display());
    let up = format!("echo up >> {}", started.display());
    let probe = |script: &str| {
        format!("{{exec: {{command: [/bin/sh, -c, {script:?}]}}, periodSeconds: 1, timeoutSeconds: 60}}")
    };
    let text = manifest("web", "exec sleep 1000", "terminationGracePeriodSeconds: 1");
    let text = format!("{text}    readinessProbe: {}\n    startupProbe: {}\n", probe(&ready), probe(&up));
    home.put("web.yaml", &text);
    let agent = home.start(&[]).await;
    let before = identity(&agent.ready("web-n1").await);
    fs::write(&block, "").unwrap();
    fact_is_written(&home, "\"ready\":true").await;
    agent.crash().await;

    let agent = home.start(&[]).await;
    let pod = agent.until("web-n1", "has a container", |pod| container(pod).is_some()).await;
    assert!(phase(&pod) == "Running" && is_ready(&pod), "{:?}", pod.status);
    assert_eq!(container(&pod).map(|container| (container.ready, container.started)), Some((true, Some(true))));
    assert_eq!(identity(&pod), before);
    fs::remove_file(&block).unwrap();
    assert_eq!(fs::read_to_string(&started).unwrap(), "up\n", "the startup probe has passed and does not run again");
}

#[tokio::test]
async fn post_start_hook_that_was_interrupted_runs_again_before_the_pod_is_ready() {
    let home = AgentHome::new();
    let (begun, go) = (home.shared().join("begun"), home.shared().join("go"));
    let hook = format!("echo begun >> {}; while [ ! -e {} ]; do sleep 0.05; done", begun.display(), go.display());
    let text = manifest("web", "exec sleep 1000", "terminationGracePeriodSeconds: 1");
    let hook = format!("{{postStart: {{exec: {{command: [/bin/sh, -c, {hook:?}]}}}}}}");
    home.put("web.yaml", &format!("{text}    lifecycle: {hook}\n"));
    let begins = |count: usize| {
        let begun = begun.clone();
        eventually("the hook begins", move || {
            let lines = fs::read_to_string(&begun).unwrap_or_default().lines().count();
            async move { (lines >= count).then_some(()) }
        })
    };
    let agent = home.start(&[]).await;
    begins(1).await;
    agent.crash().await;

    let agent = home.start(&[]).await;
    begins(2).await;
    let pod = agent.until("web-n1", "has a container", |pod| container(pod).is_some()).await;
    assert_eq!((phase(&pod), is_ready(&pod)), ("Pending", false));
    fs::write(&go, "").unwrap();
    let pod = agent.ready("web-n1").await;
    assert_eq!(container(&pod).map(|container| container.restart_count), Some(0));
    assert_eq!(fs::read_to_string(&begun).unwrap().lines().count(), 2);
}
