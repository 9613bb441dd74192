//! `kubectl`, whose SPDY and WebSocket are those of upstream. Without a `kubectl` on the path these tests end at once.

use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};

use podwright_stand_in::{StandIn, User};
use serde_json::json;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::Command;
use tokio::time::timeout;

use super::server::StreamServer;
use super::{Container, echo};
use crate::agent::harness::{AgentHome, eventually};
use crate::support::processes::{PATIENCE, echo_server, served_port};

/// The two transports of `kubectl`, as values of `KUBECTL_REMOTE_COMMAND_WEBSOCKETS`: WebSocket, which it tries first, and SPDY,
/// which clients before 1.31 use.
const TRANSPORTS: [&str; 2] = ["true", "false"];

/// The way in which `kubectl` reaches the pod `p`.
pub(crate) struct Access {
    flags: Vec<String>,
    directory: PathBuf,
}

impl Access {
    /// Through a plain server. `kubectl` keeps files in `directory`.
    pub(crate) fn plain(server: &StreamServer, directory: &Path) -> Self {
        let flags = ["--server".to_owned(), server.url(""), "--kubeconfig=/dev/null".to_owned()].into();
        Access { flags, directory: directory.to_owned() }
    }

    /// Through the API server of a kubeconfig.
    pub(crate) fn cluster(kubeconfig: &Path, directory: &Path) -> Self {
        Access { flags: vec![format!("--kubeconfig={}", kubeconfig.display())], directory: directory.to_owned() }
    }

    /// A `kubectl` command; none if it is not installed.
    fn kubectl(&self, websocket: &str, arguments: &[&str]) -> Option<Command> {
        let path = std::env::var_os("PATH")?;
        if !std::env::split_paths(&path).any(|directory| directory.join("kubectl").exists()) {
            eprintln!("skipped: there is no kubectl");
            return None;
        }
        let mut command = Command::new("kubectl");
        command
            .args(&self.flags)
            .arg("--cache-dir")
            .arg(self.directory.join("kubectl-cache"))
            .args(arguments)
            .env("KUBECTL_REMOTE_COMMAND_WEBSOCKETS", websocket)
            .env("KUBECTL_PORT_FORWARD_WEBSOCKETS", websocket)
            .env_remove("KUBECONFIG")
            .stdin(Stdio::null())
            .kill_on_drop(true);
        Some(command)
    }
}

async fn run(command: &mut Command) -> (Option<i32>, String) {
    let output: Output = timeout(PATIENCE, command.output()).await.expect("kubectl does not end").unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8_lossy(&text).into_owned())
}

/// Runs commands, copies files and forwards a port.
pub(crate) async fn check(access: &Access, shared: &Path, port: u16) {
    let directory = &access.directory;
    for websocket in TRANSPORTS {
        let run_kubectl = async |arguments: &[&str]| Some(run(&mut access.kubectl(websocket, arguments)?).await);
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
        let mut forwarding = access.kubectl(websocket, &["port-forward", "p", &forward]).unwrap();
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
    let (container, [port]) = Container::serve().await;
    let directory = tempfile::tempdir().unwrap();
    let access = Access::plain(&container.server, directory.path());
    check(&access, container.root.shared(), port).await;
}

#[tokio::test]
async fn kubectl_attaches_to_a_running_container() {
    let container = Container::run("while true; do echo tick; sleep 0.1; done").await;
    let directory = tempfile::tempdir().unwrap();
    for websocket in TRANSPORTS {
        let access = Access::plain(&container.server, directory.path());
        let Some(mut command) = access.kubectl(websocket, &["attach", "p"]) else { return };
        let mut attached = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(attached.stdout.take().unwrap()).lines();
        let line = timeout(PATIENCE, lines.next_line()).await.unwrap().unwrap();
        assert_eq!(line.as_deref(), Some("tick"), "websocket {websocket}");
        attached.kill().await.unwrap();
    }
}

#[tokio::test]
async fn kubectl_attaches_to_the_input_of_a_container() {
    let script = "while read -r line; do echo \"[$line]\"; done; echo end; exec sleep 1000";
    let container = Container::run_with(script, |container| container.stdin = Some(true)).await;
    let directory = tempfile::tempdir().unwrap();
    for websocket in TRANSPORTS {
        let access = Access::plain(&container.server, directory.path());
        let Some(mut command) = access.kubectl(websocket, &["attach", "-i", "p"]) else { return };
        let mut attached = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(attached.stdout.take().unwrap()).lines();
        let mut stdin = attached.stdin.take().unwrap();
        for text in ["one", "two"] {
            stdin.write_all(format!("{text}\n").as_bytes()).await.unwrap();
            let line = timeout(PATIENCE, lines.next_line()).await.unwrap().unwrap();
            assert_eq!(line, Some(format!("[{text}]")), "websocket {websocket}");
        }
        drop(stdin);
        let status = timeout(PATIENCE, attached.wait()).await.expect("kubectl does not end").unwrap();
        assert!(status.success(), "websocket {websocket}");
    }
}

#[tokio::test]
async fn kubectl_reaches_a_pod_through_the_api_server_and_the_node_api() {
    let server = StandIn::start().await.unwrap();
    let home = AgentHome::of_node(&server, "n1");
    let (authority, kubeconfig) = (home.root().join("ca.crt"), home.root().join("admin.kubeconfig"));
    std::fs::write(&authority, server.ca_certificate()).unwrap();
    server.write_kubeconfig(&kubeconfig, &User::admin()).unwrap();
    let (own, authority) = (home.kubeconfig(), authority.to_str().unwrap().to_owned());
    let flags = ["--kubeconfig", &own, "--node-api", "0.0.0.0:0", "--client-ca-file", &authority];
    let agent = home.start(&flags).await;
    agent.wait_for_line("the node is registered").await;
    let port = home.shared().join("port");
    let container = json!({"name": "main", "image": "i", "command": ["/bin/sh", "-c", echo_server(&port)]});
    let spec = json!({"nodeName": "n1", "automountServiceAccountToken": false, "containers": [container]});
    server.create("/api/v1/namespaces/default/pods", json!({"metadata": {"name": "p"}, "spec": spec})).unwrap();
    eventually("the pod runs", || async {
        (server.get("pods", "default", "p")?["status"]["phase"] == "Running").then_some(())
    })
    .await;
    check(&Access::cluster(&kubeconfig, home.shared()), home.shared(), served_port(&port).await).await;
}
