//! The life of pods, from manifest to cleanup, in a real agent.

use std::path::PathBuf;

use k8s_openapi::api::core::v1::{ContainerStateTerminated, Pod};
use rustix::process::Signal;

use super::harness::{AgentHome, container, eventually, is_ready, manifest, phase, podwright, text};

const SLEEPS: &str = "exec sleep 1000";
/// An address at which no program listens. The kernel gives port 1 to no program that asks for any free port.
const NOBODY: &str = "127.0.0.1:1";

/// `restartCount` and the reason for which the container waits.
fn restarts(pod: &Pod) -> Option<(i32, String)> {
    let container = container(pod)?;
    let waiting = container.state.as_ref()?.waiting.as_ref()?;
    Some((container.restart_count, waiting.reason.clone().unwrap_or_default()))
}

/// The message that gives the length of the container's backoff.
fn backoff(pod: &Pod) -> &str {
    let waiting = container(pod).and_then(|container| container.state.as_ref()?.waiting.as_ref());
    waiting.and_then(|waiting| waiting.message.as_deref()).unwrap_or_default()
}

/// A container that ignores SIGTERM and runs until a file exists.
struct Stubborn {
    ready: PathBuf,
    go: PathBuf,
}

impl Stubborn {
    fn new(home: &AgentHome) -> Self {
        Stubborn { ready: home.shared().join("ready"), go: home.shared().join("go") }
    }

    fn script(&self) -> String {
        let (ready, go) = (self.ready.display(), self.go.display());
        format!("trap '' TERM; touch {ready}; until [ -e {go} ]; do sleep 0.1; done")
    }

    /// Waits until the container ignores SIGTERM. The container is ready before its shell has read the script.
    async fn ignores_signals(&self) {
        eventually("the container ignores SIGTERM", || async { self.ready.exists().then_some(()) }).await;
    }

    fn end(&self) {
        std::fs::write(&self.go, "").unwrap();
    }
}

/// The last ended run of the container.
fn last_run(pod: &Pod) -> ContainerStateTerminated {
    container(pod).unwrap().last_state.as_ref().unwrap().terminated.clone().unwrap()
}

#[tokio::test]
async fn a_variable_comes_from_a_file_that_an_init_container_wrote() {
    let home = AgentHome::new();
    let put = |name: &str, write: &str| {
        let variable = "env: [{name: V, valueFrom: {fileKeyRef: {volumeName: data, path: env, key: KEY}}}]";
        let init = format!(
            "restartPolicy: Never\n  volumes: [{{name: data, emptyDir: {{}}}}]\n  initContainers:\n  - name: write\n    image: i\n    command: [/bin/sh, -c, {write:?}]\n    volumeMounts: [{{name: data, mountPath: /data}}]"
        );
        let text = manifest(name, "test \"$V\" = 'from a file'", &init);
        home.put(&format!("{name}.yaml"), &format!("{text}    {variable}\n"));
    };
    put("good", "echo \"KEY='from a file'\" > \"$PODWRIGHT_ROOTFS/data/env\"");
    put("bad", "echo 'KEY=x' > \"$PODWRIGHT_ROOTFS/data/env\"");
    let agent = home.start(&[]).await;
    agent.until("good-n1", "succeeds", |pod| phase(pod) == "Succeeded").await;
    let waits = |pod: &Pod| restarts(pod) == Some((0, "CreateContainerConfigError".to_owned()));
    let pod = agent.until("bad-n1", "reports the file", waits).await;
    assert_eq!(backoff(&pod), "couldn't parse env file");
}

#[tokio::test]
async fn example_pods_run_and_a_signal_stops_them_all() {
    let home = AgentHome::new();
    let mut agent =
        home.start(&["--manifests", concat!(env!("CARGO_MANIFEST_DIR"), "/examples"), "--pods-on-exit", "stop"]).await;
    for name in ["hello-n1", "hooks-n1", "init-sidecar-n1", "stubborn-n1", "volumes-n1", "probes-n1"] {
        agent.ready(name).await;
    }
    agent.until("job-once-n1", "succeeds", |pod| phase(pod) == "Succeeded").await;
    agent.until("crashloop-n1", "restarts", |pod| restarts(pod).is_some_and(|(count, _)| count > 0)).await;
    assert_eq!(agent.get("/healthz", "").0, 200);
    assert_eq!(agent.get("/readyz", "").0, 200);
    let metrics = agent.get("/metrics", "").1;
    assert!(metrics.contains("kubelet_working_pods"));
    for part in ["manifest_files", "log_rotation", "host_addresses", "watchdog", "plugin_directory"] {
        assert!(metrics.contains(&format!("podwright_part_panics_total{{part=\"{part}\"}} 0\n")), "{part}: {metrics}");
    }

    let moved = agent.wait_for_line("cause=\"cleaned up\"").await;
    assert!(moved.ends_with(" pod=default/job-once-n1"), "{moved}");

    agent.signal(Signal::TERM);
    assert_eq!(agent.ended().await, Some(0), "{}", agent.logged());
    assert_eq!(home.processes(), Vec::<String>::new());
}

#[tokio::test]
async fn containers_do_not_inherit_the_open_files_of_the_agent() {
    let home = AgentHome::new();
    let secret = home.root().join("secret");
    std::fs::write(&secret, "secret").unwrap();
    home.put("reads.yaml", &manifest("reads", "test ! -e /proc/$$/fd/9", "restartPolicy: Never"));
    let agent = home.start_with_open_file(&secret).await;
    let ended = agent.until("reads-n1", "ends", |pod| ["Succeeded", "Failed"].contains(&phase(pod))).await;
    assert_eq!(phase(&ended), "Succeeded", "the container has descriptor 9");
}

// The first restart happens at once, the second after ten seconds (POD-S67).
#[tokio::test]
async fn crashing_container_restarts_with_growing_backoff() {
    let home = AgentHome::new();
    home.put("crash.yaml", &manifest("crash", "exit 3", ""));
    let agent = home.start(&[]).await;
    let pod = agent
        .until("crash-n1", "backs off", |pod| restarts(pod).is_some_and(|(_, reason)| reason == "CrashLoopBackOff"))
        .await;
    let (count, _) = restarts(&pod).unwrap();
    assert_eq!(count, 1);
    let first_restart = last_run(&pod);
    assert_eq!(first_restart.exit_code, 3);
    assert!(backoff(&pod).contains("back-off 10s "), "{}", backoff(&pod));

    let answer = agent.explain("crash-n1");
    assert!(
        answer.contains("container \"main\" waits out its crash backoff: it ended with exit code 3 (Error)"),
        "{answer}"
    );
    assert!(answer.contains("next in "), "{answer}");

    let again = |pod: &Pod| restarts(pod).is_some_and(|(count, reason)| count == 2 && reason == "CrashLoopBackOff");
    let pod = agent.until("crash-n1", "backs off again", again).await;
    assert!(backoff(&pod).contains("back-off 20s "), "{}", backoff(&pod));
    // The agent's own timestamps, which are whole seconds.
    let (ended, started) = (first_restart.finished_at.unwrap().0, last_run(&pod).started_at.unwrap().0);
    assert!(started.duration_since(ended).as_secs() >= 10, "{ended} {started}");
}

#[tokio::test]
async fn edited_manifest_replaces_its_pod_after_the_old_pod_stopped() {
    let home = AgentHome::new();
    let stubborn = Stubborn::new(&home);
    home.put("web.yaml", &manifest("web", &stubborn.script(), "terminationGracePeriodSeconds: 600"));
    let agent = home.start(&[]).await;
    let old = agent.ready("web-n1").await;
    stubborn.ignores_signals().await;

    home.put("web.yaml", &manifest("web", SLEEPS, "terminationGracePeriodSeconds: 2"));
    let answer = eventually("the new pod waits for its name", || async {
        Some(agent.explain("web-n1")).filter(|answer| answer.contains("is still held by"))
    })
    .await;
    let uid = old.metadata.uid.as_deref().unwrap();
    assert!(answer.contains(&format!("its name default/web-n1 is still held by the pod with UID {uid}")), "{answer}");
    assert!(answer.contains("\n    cause: its containers were asked to stop and have 600 s for it"), "{answer}");
    let (code, answer) = agent.get(&format!("/explain/default/web-n1?uid={uid}"), "");
    assert!(code == 200 && answer.contains("\n  its containers were asked to stop and have 600 s for it"), "{answer}");
    assert!(agent.named("web-n1").iter().filter(|pod| is_ready(pod)).count() <= 1);
    stubborn.end();

    let new = agent.until("web-n1", "is new", |pod| is_ready(pod) && pod.metadata.uid != old.metadata.uid).await;
    assert_ne!(container(&new).unwrap().container_id, container(&old).unwrap().container_id);
    let uid = new.metadata.uid.as_deref().unwrap();
    let unknown = agent.run_client(&["explain", "default/web-n1", "--uid", "nobody"]).await;
    let answer =
        format!("podwright: there is no pod default/web-n1 with UID nobody\nUIDs of pods with this name: {uid}");
    assert!(text(&unknown.stderr).starts_with(&answer), "{}", text(&unknown.stderr));
    let known = agent.run_client(&["explain", "default/web-n1", "--uid", uid]).await;
    assert!(text(&known.stdout).contains(uid), "{}", text(&known.stderr));

    home.remove("web.yaml");
    eventually("the pod is gone", || async { agent.pods().is_empty().then_some(()) }).await;
    eventually("its processes are gone", || async { home.processes().is_empty().then_some(()) }).await;
}

#[tokio::test]
async fn static_pod_with_fixed_uid_can_be_removed_and_added_again() {
    let home = AgentHome::new();
    let fixed = manifest("fixed", SLEEPS, "").replace("  name: fixed", "  name: fixed\n  uid: fixed-uid");
    home.put("fixed.yaml", &fixed);
    let agent = home.start(&[]).await;
    let old = agent.ready("fixed-n1").await;
    assert_eq!(old.metadata.uid.as_deref(), Some("fixed-uid"));

    home.remove("fixed.yaml");
    agent.wait_for_line("Stopping container main").await;
    home.put("fixed.yaml", &fixed);
    let id = |pod: &Pod| container(pod).and_then(|have| have.container_id.clone());
    let new = agent.until("fixed-n1", "runs again", |pod| is_ready(pod) && id(pod) != id(&old)).await;
    assert_eq!(new.metadata.uid, old.metadata.uid);
}

#[tokio::test]
async fn second_signal_ends_the_agent_and_leaves_containers_running() {
    let home = AgentHome::new();
    let stubborn = Stubborn::new(&home);
    home.put("stubborn.yaml", &manifest("stubborn", &stubborn.script(), "terminationGracePeriodSeconds: 600"));
    let mut agent = home.start(&["--pods-on-exit", "stop"]).await;
    agent.ready("stubborn-n1").await;
    stubborn.ignores_signals().await;
    agent.signal(Signal::INT);
    agent.wait_for_line("stopping pods").await;
    agent.signal(Signal::TERM);
    // An agent that ignored the second signal would end its pod and exit with 0.
    assert_eq!(agent.ended().await, Some(143));
    assert!(!home.processes().is_empty(), "the container keeps running for the next agent");
}

#[tokio::test]
async fn a_signal_without_terminal_leaves_pods_running_for_the_next_agent() {
    let home = AgentHome::new();
    home.put("web.yaml", &manifest("web", SLEEPS, ""));
    let run = async |args: &[&str]| {
        let mut agent = home.start(args).await;
        let pod = agent.ready("web-n1").await;
        agent.signal(Signal::TERM);
        assert_eq!(agent.ended().await, Some(0), "{}", agent.logged());
        pod
    };
    let first = run(&[]).await;
    for args in
        [&["--pods-on-exit", "stop", "--shutdown-grace", "0"][..], &["--until-finished", "--pods-on-exit", "keep"]]
    {
        let next = run(args).await;
        let (next, first) = (container(&next).unwrap(), container(&first).unwrap());
        assert_eq!(next.container_id, first.container_id, "{args:?}");
        assert_eq!((next.restart_count, &next.state), (0, &first.state), "{args:?}");
    }
    assert!(!home.processes().is_empty());
    run(&["--until-finished"]).await;
    assert_eq!(home.processes(), Vec::<String>::new(), "a signal ends a job and its pods");
}

// A supervisor may start the agent with such signals.
#[tokio::test]
async fn agent_that_inherits_ignored_and_blocked_signals_runs_pods_and_stops() {
    let home = AgentHome::new();
    home.put("web.yaml", &manifest("web", SLEEPS, ""));
    let mut agent = home.start_below("exec env --ignore-signal=CHLD --block-signal \"$0\" \"$@\"").await;
    agent.ready("web-n1").await;
    agent.signal(Signal::TERM);
    assert_eq!(agent.ended().await, Some(0), "{}", agent.logged());
}

#[tokio::test]
async fn readyz_names_the_missing_source_and_healthz_stays_ok() {
    let home = AgentHome::new();
    let agent = home.start(&["--manifests", &format!("http://{NOBODY}/pods.yaml")]).await;
    assert_eq!(agent.get("/readyz", "").0, 503);
    assert!(agent.get("/readyz", "").1.contains("source http has not delivered"), "{:?}", agent.get("/readyz", ""));
    eventually("/readyz gives the reason", || async { agent.get("/readyz", "").1.contains("no answer").then_some(()) })
        .await;
    assert_eq!(agent.get("/healthz", "").0, 200);
}

#[tokio::test]
async fn get_and_explain_print_pods_as_table_and_json() {
    let home = AgentHome::new();
    home.put("web.yaml", &manifest("web", SLEEPS, ""));
    let agent = home.start(&[]).await;
    agent.ready("web-n1").await;

    let table = text(&agent.run_client(&["get", "pods"]).await.stdout);
    let lines: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines[0], ["NAMESPACE", "NAME", "READY", "STATUS", "RESTARTS", "AGE"]);
    assert_eq!(lines[1][..5], ["default", "web-n1", "1/1", "Running", "0"]);
    let json: serde_json::Value =
        serde_json::from_slice(&agent.run_client(&["get", "pods", "-o", "json"]).await.stdout).unwrap();
    assert_eq!((&json["kind"], &json["items"][0]["metadata"]["name"]), (&"PodList".into(), &"web-n1".into()));
    let json = agent.run_client(&["explain", "default/web-n1", "-o", "json"]).await;
    let json: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!((&json["phase"], &json["chain"][0]["what"]), (&"Running".into(), &"nothing".into()));
    let (code, list) = agent.get("/explain?format=json", "");
    let list: serde_json::Value = serde_json::from_str(&list).unwrap();
    assert_eq!((code, &list[0]["name"], &list[0]["wait"]), (200, &"web-n1".into(), &"".into()));
    let table = text(&agent.run_client(&["explain"]).await.stdout);
    assert!(table.lines().nth(1).unwrap().starts_with("default     web-n1   Running   sync        0"), "{table}");
    assert_eq!(agent.get("/explain?format=xml", "").0, 400);

    let odd = agent.run_client(&["explain", "default/web-n1?output=json"]).await;
    assert!(text(&odd.stderr).contains("there is no pod default/web-n1?output=json"), "{}", text(&odd.stderr));
    let unknown = agent.run_client(&["explain", "we"]).await;
    assert_eq!(unknown.status.code(), Some(1));
    assert_eq!(text(&unknown.stderr), "podwright: there is no pod default/we\nsimilar names: default/web-n1\n");
    let uid = agent.run_client(&["explain", "web", "--uid", "x"]).await;
    let refused = text(&uid.stderr);
    assert!(refused.starts_with("podwright: there is no pod default/web-n1 with UID x\nUIDs of pods"), "{refused}");

    // A request with a foreign host name, as after DNS rebinding, is refused.
    assert_eq!(agent.get("/pods", "Host: evil.example\r\n").0, 403);
    assert_eq!(agent.get("/nothing", "").0, 404);
    assert!(agent.get("/metrics", "Accept: application/openmetrics-text\r\n").1.ends_with("# EOF\n"));
}

#[tokio::test]
async fn command_without_running_agent_prints_the_remedy() {
    let output = podwright(&["get", "pods", "--admin", NOBODY]).await;
    assert_eq!(output.status.code(), Some(1));
    let printed = text(&output.stderr);
    assert_eq!(
        printed,
        format!(
            "podwright: no agent listens at {NOBODY}: start one with `podwright run`, or name a running one with --root DIR or --admin ADDRESS\n"
        )
    );
}
