//! Container logs: `podwright logs`, and log rotation.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use tokio::process::Command;
use tokio::time::timeout;

use super::harness::{Agent, AgentHome, container, eventually, manifest, phase, text};
use crate::support::processes::PATIENCE;

const NEVER: &str = "restartPolicy: Never";

async fn logs(agent: &Agent, args: &[&str]) -> String {
    let output = agent.run_client(&[&["logs"], args].concat()).await;
    assert!(output.status.success(), "{args:?}: {}", text(&output.stderr));
    text(&output.stdout)
}

async fn refused(agent: &Agent, args: &[&str]) -> String {
    let output = agent.run_client(&[&["logs"], args].concat()).await;
    assert_eq!((output.status.code(), text(&output.stdout).as_str()), (Some(1), ""), "{args:?}");
    text(&output.stderr)
}

/// The reason for which the container waits.
fn waits_for(pod: &Pod) -> Option<&str> {
    container(pod)?.state.as_ref()?.waiting.as_ref()?.reason.as_deref()
}

#[tokio::test]
async fn logs_command_prints_the_lines_that_its_flags_select() {
    let home = AgentHome::new();
    let long = "head -c 40000 /dev/zero | tr '\\0' x; echo";
    home.put("a.yaml", &manifest("a", &format!("echo one; echo two >&2; {long}; echo three"), NEVER));
    let two = manifest("two", "echo main; sleep 1000", "")
        .replace("  - name: main", "  - name: side\n    image: i\n    command: [sleep, '1000']\n  - name: main");
    home.put("two.yaml", &two);
    home.put(
        "annotated.yaml",
        &two.replace("name: two", "name: annotated\n  annotations: {kubectl.kubernetes.io/default-container: main}"),
    );
    home.put(
        "greedy.yaml",
        &manifest("greedy", "true", NEVER).replace("image: i", "image: i\n    resources: {requests: {cpu: 9999}}"),
    );
    home.put("none.yaml", &manifest("none", "true", "").replace("    command: [/bin/sh, -c, \"true\"]\n", ""));
    let agent = home.start(&[]).await;
    agent.until("a-n1", "is done", |pod| phase(pod) == "Succeeded").await;
    for name in ["two-n1", "annotated-n1"] {
        agent.ready(name).await;
        // A container is ready before its shell has written anything.
        let pod = format!("default/{name}");
        eventually("the container writes its line", || async {
            (logs(&agent, &[pod.as_str(), "-c", "main"]).await == "main\n").then_some(())
        })
        .await;
    }
    agent.until("greedy-n1", "is rejected", |pod| phase(pod) == "Failed").await;
    agent.until("none-n1", "waits", |pod| waits_for(pod) == Some("CreateContainerConfigError")).await;

    let whole = logs(&agent, &["default/a-n1"]).await;
    assert_eq!(
        whole.lines().map(str::len).collect::<Vec<_>>(),
        [3, 3, 40000, 5],
        "the pieces of a long line are joined"
    );
    assert_eq!(logs(&agent, &["default/a-n1", "--tail", "1"]).await, "three\n");
    assert_eq!(logs(&agent, &["default/a-n1", "--since", "1h"]).await, whole);
    let timed = logs(&agent, &["default/a-n1", "--tail", "1", "--timestamps"]).await;
    let (time, line) = timed.split_once(' ').unwrap();
    assert!(time.parse::<k8s_openapi::jiff::Timestamp>().is_ok() && line == "three\n", "{timed}");
    assert_eq!(logs(&agent, &["default/a-n1", "--since-time", "2026-01-01T00:00:00Z"]).await, whole);
    assert_eq!(logs(&agent, &["default/a-n1", "--since-time", "2999-01-01T00:00:00Z"]).await, "");
    assert_eq!(logs(&agent, &["default/annotated-n1"]).await, "main\n");
    assert_eq!(logs(&agent, &["default/two-n1", "-c", "main"]).await, "main\n");
    assert_eq!(logs(&agent, &["two", "main", "-n", "default"]).await, "main\n");
    assert_eq!(logs(&agent, &["two", "--all-containers"]).await, "main\n");
    assert_eq!(logs(&agent, &["a", "--tail", "-1"]).await, whole);
    let uid = agent.named("a-n1")[0].metadata.uid.clone().unwrap();
    assert_eq!(logs(&agent, &["a", "--uid", &uid]).await, whole);

    for (args, says) in [
        (&["default/tw"][..], "there is no pod default/tw\nsimilar names: default/two-n1"),
        (&["two", "--all-containers", "-p"], "container side of pod default/two-n1 had no run before this one"),
        (&["default/two-n1"], "pod default/two-n1 has several containers: choose with -c one of side, main"),
        (&["default/two-n1", "-c", "x"], "pod default/two-n1 has no container \"x\": it has side, main"),
        (&["default/a-n1", "-p"], "container main of pod default/a-n1 had no run before this one"),
        (&["default/greedy-n1"], "container main of pod default/greedy-n1 has not started: UnexpectedAdmissionError"),
        (&["default/none-n1"], "container main of pod default/none-n1 is waiting to start: CreateContainerConfigError"),
    ] {
        let error = refused(&agent, args).await;
        assert!(error.contains(says), "{args:?}: {error}");
    }
    for query in ["tailLines=x", "sinceTime=today", "sinceTimes=2026-01-01T00:00:00Z"] {
        assert_eq!(agent.get(&format!("/logs/default/a-n1?{query}"), "").0, 400, "{query}");
    }
    assert_eq!(agent.get("/logs/default/a-n1?tailLines=1", ""), (200, "three\n".to_owned()));
}

#[tokio::test]
async fn logs_previous_prints_the_log_of_the_run_before() {
    let home = AgentHome::new();
    let ran = home.shared().join("ran");
    let script =
        format!("echo run >> {0}; wc -l < {0}; [ $(wc -l < {0}) -gt 1 ] && exec sleep 1000; exit 1", ran.display());
    home.put("a.yaml", &manifest("a", &script, ""));
    let agent = home.start(&[]).await;
    let again = |pod: &Pod| container(pod).is_some_and(|it| it.restart_count == 1 && it.ready);
    agent.until("a-n1", "runs again", again).await;
    eventually("the new run has written its line", || async {
        (logs(&agent, &["default/a-n1"]).await == "2\n").then_some(())
    })
    .await;
    assert_eq!(logs(&agent, &["default/a-n1", "--previous"]).await, "1\n");
}

#[tokio::test]
async fn logs_follow_prints_new_output_until_the_container_ends() {
    let home = AgentHome::new();
    let go = home.shared().join("go");
    let script = format!("echo before; while [ ! -e {} ]; do sleep 0.05; done; echo after; echo last", go.display());
    home.put("a.yaml", &manifest("a", &script, NEVER));
    let agent = home.start(&[]).await;
    agent.ready("a-n1").await;
    let follow = tokio::spawn(follow(&agent, "default/a-n1"));
    // The number of log readers is limited. A reader that disconnects frees its slot, so all of these readers are accepted.
    for _ in 0..100 {
        let mut gone = follow_command(&agent, "default/a-n1").stdout(Stdio::piped()).spawn().unwrap();
        let mut first = [0; 7];
        tokio::io::AsyncReadExt::read_exact(gone.stdout.as_mut().unwrap(), &mut first).await.unwrap();
        assert_eq!(&first, b"before\n");
        gone.kill().await.unwrap();
    }
    fs::write(&go, "").unwrap();
    let followed = timeout(PATIENCE, follow).await.expect("following ends with the container").unwrap();
    assert_eq!(followed, "before\nafter\nlast\n");
}

fn follow_command(agent: &Agent, pod: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_podwright"));
    command.args(["logs", "-f", pod, "--admin", agent.socket().to_str().unwrap()]).kill_on_drop(true);
    command
}

fn follow(agent: &Agent, pod: &str) -> impl Future<Output = String> + use<> {
    let output = follow_command(agent, pod).output();
    async { text(&output.await.unwrap().stdout) }
}

/// Writes thousands of lines to both streams, for 36 s at least. The log is checked for rotation every 10 s.
const BUSY: &str = "i=0; while [ $i -lt 24000 ]; do j=0; while [ $j -lt 10 ]; do echo line $i; i=$((i+1)); echo line $i >&2; i=$((i+1)); j=$((j+1)); done; sleep 0.03; done";
const LINES: u64 = 24000;

/// How long following may take. It guards only against hanging: on a slow machine, the busy container runs for minutes.
const FOLLOWED_WITHIN: Duration = Duration::from_secs(900);

/// The log of a busy container is rotated more than once. Every reader gets each line exactly once.
pub(crate) async fn nothing_is_lost_in_rotation(
    home: &AgentHome,
    flags: &[&str],
    image: &str,
    dir: impl Fn(&str) -> PathBuf,
) {
    home.put("busy.yaml", &manifest("busy", BUSY, NEVER).replace("image: i\n", &format!("image: {image}\n")));
    // With this limit, no file is deleted, even if the log is rotated often.
    let limits = ["--container-log-max-size", "20Ki", "--container-log-max-files", "1000"];
    let agent = home.start(&[flags, &limits].concat()).await;
    let pod = agent.ready("busy-n1").await;
    let follow = follow(&agent, "default/busy-n1");
    let followed = timeout(FOLLOWED_WITHIN, follow).await.expect("following ends with the container");
    each_line_once(&followed, "followed");
    agent.until("busy-n1", "is done", |pod| phase(pod) == "Succeeded").await;
    let files = files(&dir(pod.metadata.uid.as_deref().unwrap()));
    assert!(files.len() > 2 && files.iter().any(|name| name.ends_with(".gz")), "{files:?}");
    each_line_once(&logs(&agent, &["default/busy-n1"]).await, "read afterwards");
    let last = logs(&agent, &["default/busy-n1", "--tail", "15000"]).await;
    assert_eq!(last.lines().count(), 15000);
    assert!(agent.line("rotated").is_none(), "{}", agent.logged());
}

fn each_line_once(text: &str, how: &str) {
    let number = |line: &str| line.strip_prefix("line ")?.parse::<u64>().ok();
    let mut numbers: Vec<u64> =
        text.lines().map(|line| number(line).unwrap_or_else(|| panic!("{how}: {line:?}"))).collect();
    // Lines that both streams write at the same time have no defined order.
    numbers.sort_unstable();
    let odd = numbers.iter().zip(0..).find(|(number, expected)| **number != *expected);
    assert_eq!((odd, numbers.len() as u64), (None, LINES), "{how}");
}

fn files(dir: &Path) -> Vec<String> {
    let mut files: Vec<String> =
        fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    files.sort();
    files
}

// Takes over 40 s: a log is rotated every 10 s, and its container writes for three of these periods.
#[tokio::test]
async fn log_rotation_loses_no_output_of_a_process() {
    let home = AgentHome::new();
    let pods = home.root().join("pods");
    nothing_is_lost_in_rotation(&home, &[], "i", |uid| pods.join(uid).join("logs/main")).await;
}

#[tokio::test]
async fn next_agent_completes_a_log_rotation_that_a_crash_interrupted() {
    let home = AgentHome::new();
    let (go, done) = (home.shared().join("go"), home.shared().join("done"));
    let wait = |path: &Path| format!("while [ ! -e {} ]; do sleep 0.05; done", path.display());
    let script = format!("echo one; {}; echo two; {}; echo three; exec sleep 1000", wait(&go), wait(&done));
    home.put("a.yaml", &manifest("a", &script, ""));
    let agent = home.start(&[]).await;
    let pod = agent.ready("a-n1").await;
    let dir = home.root().join("pods").join(pod.metadata.uid.unwrap()).join("logs/main");
    eventually("the container logs its first line", || async {
        fs::read_to_string(dir.join("0.log")).ok().filter(|log| !log.is_empty())
    })
    .await;
    agent.crash().await;
    let moved = dir.join("0.log.20261121-000000");
    fs::rename(dir.join("0.log"), &moved).unwrap();
    fs::write(&go, "").unwrap();
    eventually("the container still writes to the old file", || async {
        fs::read_to_string(&moved).ok().filter(|log| log.contains("two"))
    })
    .await;

    let agent = home.start(&[]).await;
    eventually("the log has a new file", || async { dir.join("0.log").exists().then_some(()) }).await;
    fs::write(&done, "").unwrap();
    eventually("the container writes to the new file", || async {
        fs::read_to_string(dir.join("0.log")).ok().filter(|log| log.contains("three"))
    })
    .await;
    assert_eq!(logs(&agent, &["default/a-n1"]).await, "one\ntwo\nthree\n");
}
