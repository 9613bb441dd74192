//! `kubectl`, whose SPDY and WebSocket are those of upstream. Without a `kubectl` on the path these tests end at once.

use std::path::Path;
use std::process::{Output, Stdio};

use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Command;
use tokio::time::timeout;

use super::server::StreamServer;
use super::{Container, echo, echo_server};
use crate::agent::harness::eventually;
use crate::support::processes::PATIENCE;

/// The two transports of `kubectl`: what it tries first, and what clients before 1.31 use.
const TRANSPORTS: [&str; 2] = ["true", "false"];

/// A `kubectl` command; none if it is not installed.
fn kubectl(server: &StreamServer, directory: &Path, websocket: &str, arguments: &[&str]) -> Option<Command> {
    let path = std::env::var_os("PATH")?;
    if !std::env::split_paths(&path).any(|directory| directory.join("kubectl").exists()) {
        eprintln!("skipped: there is no kubectl");
        return None;
    }
    let mut command = Command::new("kubectl");
    command
        .args(["--server", &server.url(""), "--kubeconfig", "/dev/null", "--cache-dir"])
        .arg(directory.join("kubectl-cache"))
        .args(arguments)
        .env("KUBECTL_REMOTE_COMMAND_WEBSOCKETS", websocket)
        .env("KUBECTL_PORT_FORWARD_WEBSOCKETS", websocket)
        .env_remove("KUBECONFIG")
        .stdin(Stdio::null())
        .kill_on_drop(true);
    Some(command)
}

async fn run(command: &mut Command) -> (Option<i32>, String) {
    let output: Output = timeout(PATIENCE, command.output()).await.expect("kubectl does not end").unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8_lossy(&text).into_owned())
}

/// Runs commands, copies files and forwards a port.
pub(crate) async fn check(server: &StreamServer, directory: &Path, shared: &Path, port: u16) {
    for websocket in TRANSPORTS {
        let run_kubectl =
            async |arguments: &[&str]| Some(run(&mut kubectl(server, directory, websocket, arguments)?).await);
        let Some((code, text)) = run_kubectl(&["exec", "p", "--", "sh", "-c", "echo out; echo err >&2; exit 3"]).await
        else {
            return;
        };
        assert_eq!(code, Some(3), "websocket {websocket}: {text}");
        assert!(text.starts_with("out\n") && text.contains("err\n"), "{text}");
        assert!(text.contains("command terminated with exit code 3"), "{text}");

        let (from, to) = (directory.join("from"), directory.join("to"));
        let content: Vec<u8> = (0..500_000_u32).flat_map(u32::to_le_bytes).collect();
        std::fs::write(&from, &content).unwrap();
        let remote = format!("p:{}", shared.join("copied").display());
        let copied = run_kubectl(&["cp", from.to_str().unwrap(), &remote]).await.unwrap();
        assert_eq!(copied.0, Some(0), "websocket {websocket}: {}", copied.1);
        let copied = run_kubectl(&["cp", &remote, to.to_str().unwrap()]).await.unwrap();
        assert_eq!(copied.0, Some(0), "websocket {websocket}: {}", copied.1);
        assert!(std::fs::read(&to).unwrap() == content, "websocket {websocket}: the copy differs");

        let forward = format!(":{port}");
        let mut forwarding = kubectl(server, directory, websocket, &["port-forward", "p", &forward]).unwrap();
        let mut forwarding = forwarding.stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(forwarding.stdout.take().unwrap()).lines();
        let line = timeout(PATIENCE, lines.next_line()).await.unwrap().unwrap().expect("kubectl forwards no port");
        let local = line.split(" -> ").next().unwrap().rsplit(':').next().unwrap().parse().unwrap();
        let answer = || async { echo(local).await.filter(|text| text == "hello") };
        eventually("the port is forwarded", answer).await;
        let (one, two) = tokio::join!(echo(local), echo(local));
        assert_eq!((one.as_deref(), two.as_deref()), (Some("hello"), Some("hello")), "websocket {websocket}");
        forwarding.kill().await.unwrap();
    }
}

#[tokio::test]
async fn kubectl_runs_commands_copies_files_and_forwards_ports() {
    let container = Container::run("exec sleep 1000").await;
    let directory = tempfile::tempdir().unwrap();
    check(&container.server, directory.path(), container.root.shared(), echo_server().await).await;
}

#[tokio::test]
async fn kubectl_attaches_to_a_running_container() {
    let container = Container::run("while true; do echo tick; sleep 0.1; done").await;
    let directory = tempfile::tempdir().unwrap();
    for websocket in TRANSPORTS {
        let Some(mut command) = kubectl(&container.server, directory.path(), websocket, &["attach", "p"]) else {
            return;
        };
        let mut attached = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(attached.stdout.take().unwrap()).lines();
        let line = timeout(PATIENCE, lines.next_line()).await.unwrap().unwrap();
        assert_eq!(line.as_deref(), Some("tick"), "websocket {websocket}");
        attached.kill().await.unwrap();
    }
}
