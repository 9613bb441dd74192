//! Clients that attach to the input and the terminal of a container of the process runtime.

use std::sync::Arc;
use std::time::Duration;

use podwright_ports::ContainerRuntime;

use super::clients::{Spdy, WebSocket};
use super::server::StreamServer;
use super::{Container, success};
use crate::agent::harness::eventually;
use crate::support::processes::{ended, host_pod, open, status};

const ATTACH: &str = "/api/v1/namespaces/default/pods/p/attach";
const V5: &str = "v5.channel.k8s.io";

impl Container {
    /// A container with a standard input.
    async fn with_input(script: &str) -> Self {
        Container::run_with(script, |container| container.stdin = Some(true)).await
    }

    async fn attach(&self, streams: &str) -> WebSocket {
        WebSocket::open(&self.server.url(&format!("{ATTACH}?{streams}")), V5).await
    }

    /// Opens the runtime again, as an agent does that was restarted.
    async fn restart(self) -> Self {
        let Container { runtime, id, server, root, sandbox } = self;
        drop((server, runtime));
        let runtime = Arc::new(open(&root).await);
        let server = StreamServer::start(runtime.clone(), id.clone(), sandbox.clone()).await;
        Container { runtime, id, server, root, sandbox }
    }
}

const ECHO: &str = "while read -r line; do echo \"[$line]\"; done; echo end; exec sleep 1000";

#[tokio::test]
async fn clients_share_the_input_which_outlives_them_and_the_agent() {
    let container = Container::with_input(ECHO).await;
    let (mut first, mut second) =
        (container.attach("stdin=true&stdout=true").await, container.attach("stdin=true&stdout=true").await);
    first.send(0, b"one\n").await;
    first.until("[one]").await;
    second.send(0, b"two\n").await;
    // A client gets the output since it was attached, which may be after the first line.
    for client in [&mut first, &mut second] {
        client.until("[two]\n").await;
    }
    // The stream of a client ends with its input, and that of the other client continues.
    first.send(0, b"three\n").await;
    first.until("[three]\n").await;
    first.close(0).await;
    let output = first.finish().await;
    assert_eq!((output.stdout.as_slice(), output.status()), (&b"[one]\n[two]\n[three]\n"[..], success()));
    second.until("[three]").await;
    drop(second);
    let container = container.restart().await;
    let url = container.server.url(&format!("{ATTACH}?stdin=true&stdout=true"));
    let mut client = Spdy::command(&url, &["error", "stdin", "stdout"]).await;
    client.send(3, b"four\n", false).await;
    client.until_text(5, "[four]\n").await;
    client.send(3, b"", true).await;
    client.until_closed().await;
    assert_eq!(client.text(5), "[four]\n");
}

#[tokio::test]
async fn input_that_is_open_once_ends_with_its_client() {
    let once = |container: &mut k8s_openapi::api::core::v1::Container| {
        container.stdin = Some(true);
        container.stdin_once = Some(true);
    };
    let container = Container::run_with(ECHO, once).await;
    let mut client = container.attach("stdin=true&stdout=true").await;
    client.send(0, b"one\n").await;
    client.close(0).await;
    // The client still gets the output.
    client.until("[one]\nend\n").await;
    // The input stays closed for the next client, who gets the output.
    let mut next = container.attach("stdin=true&stdout=true").await;
    next.send(0, b"two\n").await;
    container.runtime.stop_container(&container.id, Duration::ZERO).await.unwrap();
    for client in [client, next] {
        let output = client.finish().await;
        assert!(!String::from_utf8_lossy(&output.stdout).contains("[two]"), "{output:?}");
        assert_eq!(output.status(), success());
    }
    // A client that vanishes ends the input too, also if the agent ends with it.
    let container = Container::run_with("read -r line; cat; exit 7", once).await;
    let mut client = container.attach("stdin=true&stdout=true").await;
    client.send(0, b"one\ntwo\n").await;
    client.until("two").await;
    drop(client);
    let container = container.restart().await;
    let pod = host_pod("u", |_| {});
    eventually("the command has ended", || async {
        let status = status(&*container.runtime, &pod).await;
        (status.exit_code == 7).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_terminal_is_kept_for_the_next_client_and_the_next_agent() {
    let script = "tty; echo TERM=$TERM; printf 'name> '; read -r name; stty size; echo \"<$name>\"; exec cat";
    let container = Container::run_with(script, |container| {
        container.stdin = Some(true);
        container.tty = Some(true);
    })
    .await;
    let log = container.runtime.log_path(&container.id).unwrap();
    // A prompt is in the log although it does not end a line.
    eventually("the prompt is logged", || async {
        std::fs::read_to_string(&log).ok()?.contains("stdout P name> ").then_some(())
    })
    .await;
    assert!(std::fs::read_to_string(&log).unwrap().contains("/dev/pts/"));
    assert!(std::fs::read_to_string(&log).unwrap().contains("TERM=xterm"));
    let container = container.restart().await;
    let streams = "stdin=true&stdout=true&tty=true";
    let mut client = container.attach(streams).await;
    client.send(4, br#"{"Width":101,"Height":33}"#).await;
    eventually("the window has its size", || async {
        let sizes = ["sh", "-c", "for t in /dev/pts/[0-9]*; do stty size < $t; done"].map(str::to_owned);
        let sizes = container.runtime.exec(&container.id, &sizes, Duration::from_secs(60)).await.unwrap();
        String::from_utf8_lossy(&sizes.output).contains("33 101").then_some(())
    })
    .await;
    client.send(0, b"fred\n").await;
    client.until("33 101").await;
    client.until("<fred>").await;
    // A client who leaves does not end the command.
    client.close(0).await;
    assert_eq!(client.finish().await.status(), success());
    let mut next = container.attach(streams).await;
    next.send(0, b"again\n").await;
    next.until("again\r\nagain\r\n").await;
    // Ctrl-C reaches the command through its controlling terminal.
    next.send(0, b"\x03").await;
    let output = next.finish().await;
    assert_eq!(output.status(), success());
    let ended = ended(&*container.runtime, &host_pod("u", |_| {})).await;
    assert_eq!(ended.exit_code, 130);
}

#[tokio::test]
async fn a_command_that_does_not_read_delays_nobody_else() {
    let container = Container::with_input("while true; do echo tick; sleep 0.05; done").await;
    let mut client = container.attach("stdin=true&stdout=true").await;
    // More than the FIFO, the shim and the pipe hold.
    client.send(0, &vec![b'x'; 1 << 20]).await;
    client.until("tick").await;
    let mut other = container.attach("stdout=true").await;
    other.until("tick").await;
    container.runtime.stop_container(&container.id, Duration::from_secs(30)).await.unwrap();
    for client in [client, other] {
        assert_eq!(client.finish().await.status(), success());
    }
}

#[tokio::test]
async fn a_command_that_closes_its_input_keeps_its_clients() {
    let container = Container::with_input("exec <&-; while true; do echo tick; sleep 0.05; done").await;
    let mut client = container.attach("stdin=true&stdout=true").await;
    for _ in 0..20 {
        client.send(0, b"unread\n").await;
        client.until("tick").await;
    }
    let stdin = container.root.records(&container.id).join("stdin");
    eventually("the input is closed", || async { (!stdin.exists()).then_some(()) }).await;
    let mut next = container.attach("stdin=true&stdout=true").await;
    next.until("tick").await;
}

#[tokio::test]
async fn a_container_without_an_input_has_none_to_attach_to() {
    let container = Container::run_with("cat; exec sleep 1000", |container| container.tty = Some(true)).await;
    let attach = container.server.url(&format!("{ATTACH}?stdout=true&stdin=true"));
    let (code, text) = WebSocket::refused(&attach, V5).await;
    assert_eq!(code, 400);
    assert!(text.contains("container main has no standard input") && text.contains("`stdin: true`"), "{text}");
}
