//! Commands, attached containers and forwarded ports, as clients of the node API request them. A plain router in the
//! test's process serves the streams, and answers the requests that `kubectl` sends before it requests a stream.

mod attach;
pub(crate) mod clients;
pub(crate) mod kubectl;
pub(crate) mod server;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1;
use podwright::adapters::process::ProcessRuntime;
use podwright_model::ids::{ContainerId, SandboxId};
use podwright_ports::ContainerRuntime;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use self::clients::{Spdy, WebSocket, get};
use self::server::{EXEC, StreamServer};
use crate::agent::harness::eventually;
use crate::support::processes::{self, PATIENCE, Root, is_alive};

/// A running container of the process runtime, and a server of its streams.
struct Container {
    runtime: Arc<ProcessRuntime>,
    id: ContainerId,
    sandbox: SandboxId,
    server: StreamServer,
    root: Root,
}

impl Container {
    async fn run(script: &str) -> Self {
        Container::run_with(script, |_| {}).await
    }

    async fn run_with(script: &str, edit: impl FnOnce(&mut v1::Container)) -> Self {
        Container::run_in(Root::create(), script, edit).await
    }

    /// A container with servers that send back what they receive, and the ports of the servers.
    async fn serve<const N: usize>() -> (Self, [u16; N]) {
        let root = Root::create();
        let files: [PathBuf; N] = std::array::from_fn(|number| root.shared().join(format!("port-{number}")));
        let servers: String = files.iter().map(|file| format!("({}) & ", processes::echo_server(file))).collect();
        let container = Container::run_in(root, &format!("{servers} wait"), |_| {}).await;
        let mut ports = [0; N];
        for (port, file) in ports.iter_mut().zip(&files) {
            *port = processes::served_port(file).await;
        }
        (container, ports)
    }

    async fn run_in(root: Root, script: &str, edit: impl FnOnce(&mut v1::Container)) -> Self {
        let runtime = Arc::new(processes::open(&root).await);
        let pod = processes::host_pod("u", |spec| edit(&mut spec.containers[0]));
        let sandbox = processes::sandbox(&*runtime, &pod).await;
        let id = runtime.create_container(processes::script(&pod, &sandbox, script)).await.unwrap();
        runtime.start_container(&id).await.unwrap();
        let server = StreamServer::start(runtime.clone(), id.clone(), sandbox.clone()).await;
        Container { runtime, id, sandbox, server, root }
    }

    /// The URL of a command.
    fn exec(&self, streams: &str, command: &[&str]) -> String {
        let words: String = command.iter().map(|word| format!("&command={}", server::encode(word))).collect();
        self.server.url(&format!("{EXEC}?{streams}{words}"))
    }
}

fn success() -> Value {
    json!({"metadata": {}, "status": "Success"})
}

fn exit_code(status: &Value) -> &str {
    assert_eq!((&status["status"], &status["reason"]), (&json!("Failure"), &json!("NonZeroExitCode")), "{status}");
    status["details"]["causes"][0]["message"].as_str().unwrap()
}

#[tokio::test]
async fn a_command_reads_and_writes_over_websocket_and_spdy() {
    let container = Container::run("exec sleep 1000").await;
    let script = "cat; echo done >&2; exit 3";
    let url = container.exec("stdin=true&stdout=true&stderr=true", &["sh", "-c", script]);

    let mut client = WebSocket::open(&url, "v5.channel.k8s.io").await;
    let input = vec![b'x'; 300_000];
    client.send(0, &input).await;
    client.close(0).await;
    let output = client.finish().await;
    assert_eq!((output.stdout.len(), output.stderr.as_slice()), (input.len(), &b"done\n"[..]));
    assert_eq!(exit_code(&output.status()), "3");
    let message = "command terminated with non-zero exit code: error executing command [sh -c cat; echo done >&2; exit 3], exit code 3";
    assert_eq!(output.status()["message"], message);

    let mut client = Spdy::open(&url, "v4.channel.k8s.io").await;
    for (stream, kind) in [(1, "error"), (3, "stdin"), (5, "stdout"), (7, "stderr")] {
        client.create(stream, &[("streamtype", kind)]).await;
    }
    client.send(3, b"hello", true).await;
    client.until_closed().await;
    assert_eq!((client.text(5), client.text(7)), ("hello".to_owned(), "done\n".to_owned()));
    assert_eq!(exit_code(&serde_json::from_str(&client.text(1)).unwrap()), "3");
}

#[tokio::test]
async fn a_command_succeeds_over_each_protocol_of_websocket() {
    let container = Container::run("exec sleep 1000").await;
    let url = container.exec("stdout=true", &["echo", "hi"]);
    for protocol in ["v4.channel.k8s.io", "v4.base64.channel.k8s.io", "v5.channel.k8s.io"] {
        let output = WebSocket::open(&url, protocol).await.finish().await;
        assert_eq!((output.stdout.as_slice(), output.status()), (&b"hi\n"[..], success()), "{protocol}");
    }
    // The first protocols have a text for an error, and nothing for a success.
    let failing = container.exec("stdout=true", &["sh", "-c", "exit 7"]);
    for protocol in ["channel.k8s.io", "base64.channel.k8s.io", ""] {
        let output = WebSocket::open(&url, protocol).await.finish().await;
        assert_eq!((output.stdout.as_slice(), output.error.as_slice()), (&b"hi\n"[..], &b""[..]), "{protocol}");
        let output = WebSocket::open(&failing, protocol).await.finish().await;
        assert!(output.error.ends_with(b"exit code 7"), "{protocol}: {output:?}");
    }
}

#[tokio::test]
async fn the_process_that_keeps_a_command_is_reaped() {
    let container = Container::run("exec sleep 1000").await;
    let url = container.exec("stdout=true", &["echo", "hi"]);
    for _ in 0..2 {
        assert_eq!(WebSocket::open(&url, "v5.channel.k8s.io").await.finish().await.status(), success());
    }
    let is_zombie = |stat: &str| {
        let (name, fields) = stat.rsplit_once(") ").unwrap();
        name.ends_with("(podwright-exec") && fields.starts_with(&format!("Z {} ", std::process::id()))
    };
    eventually("no keeper is left", || async {
        let processes = std::fs::read_dir("/proc").unwrap().flatten();
        let mut stats = processes.filter_map(|process| std::fs::read_to_string(process.path().join("stat")).ok());
        (!stats.any(|stat| is_zombie(&stat))).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_command_that_cannot_run_reports_the_reason() {
    let container = Container::run("exec sleep 1000").await;
    let url = container.exec("stdout=true", &["no-such-program"]);
    let status = WebSocket::open(&url, "v5.channel.k8s.io").await.finish().await.status();
    assert_eq!((&status["reason"], &status["code"]), (&json!("InternalError"), &json!(500)), "{status}");
    assert!(status["message"].as_str().unwrap().contains("no directory in PATH"), "{status}");
}

#[tokio::test]
async fn a_terminal_has_the_size_of_the_window_and_its_keys() {
    let container = Container::run("exec sleep 1000").await;
    let script = "tty; echo TERM=$TERM; read line; stty size; echo \"[$line]\"; exec cat";
    let url = container.exec("stdin=true&stdout=true&tty=true", &["sh", "-c", script]);
    let mut client = WebSocket::open(&url, "v5.channel.k8s.io").await;
    client.until("TERM=xterm").await;
    client.send(4, br#"{"Width":101,"Height":33}"#).await;
    // The size is not ordered with the input, so the script reads it after a first line has made the round trip.
    eventually("the window has its size", || async {
        let sizes = ["sh", "-c", "for t in /dev/pts/[0-9]*; do stty size < $t; done"].map(str::to_owned);
        let sizes = container.runtime.exec(&container.id, &sizes, PATIENCE).await.unwrap();
        String::from_utf8_lossy(&sizes.output).contains("33 101").then_some(())
    })
    .await;
    client.send(0, b"first\n").await;
    client.until("33 101").await;
    client.until("[first]").await;
    // Ctrl-C reaches the command through its controlling terminal.
    client.send(0, b"\x03").await;
    let output = client.finish().await;
    assert_eq!(exit_code(&output.status()), "130");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.starts_with("/dev/pts/"), "{text}");
}

#[tokio::test]
async fn a_command_ends_with_its_client_and_with_its_container() {
    let container = Container::run("exec sleep 1000").await;
    let pids = container.root.fifo("pids");
    let script = format!("echo $$ > {}; exec sleep 1000", pids.path());
    let url = container.exec("stdin=true&stdout=true", &["sh", "-c", &script]);

    let (client, pid) = tokio::join!(WebSocket::open(&url, "v5.channel.k8s.io"), pids.pid());
    drop(client);
    eventually("the command has ended", || async { (!is_alive(pid)).then_some(()) }).await;

    let (client, pid) = tokio::join!(Spdy::command(&url, &["error", "stdin", "stdout"]), pids.pid());
    drop(client);
    eventually("the command has ended", || async { (!is_alive(pid)).then_some(()) }).await;

    let (client, pid) = tokio::join!(WebSocket::open(&url, "v5.channel.k8s.io"), pids.pid());
    container.runtime.stop_container(&container.id, Duration::ZERO).await.unwrap();
    assert!(!is_alive(pid));
    let status = client.finish().await.status();
    assert_eq!(status["status"], "Failure", "{status}");
    assert_eq!(get(&url).await.0, 400, "a request without an upgrade");
}

#[tokio::test]
async fn an_attached_client_gets_the_output_until_the_container_ends() {
    let root = Root::create();
    let stop = root.shared().join("stop");
    let wait = format!("until test -e {}; do echo tick; sleep 0.1; done", stop.display());
    let container = Container::run(&format!("echo before; {wait}; echo out; echo err >&2")).await;
    let log = container.runtime.log_path(&container.id).unwrap();
    let logged = || async { std::fs::read_to_string(&log).ok()?.contains("before").then_some(()) };
    eventually("the first line is logged", logged).await;
    let url = container.server.url("/api/v1/namespaces/default/pods/p/attach?stdout=true&stderr=true");
    let mut client = WebSocket::open(&url, "v5.channel.k8s.io").await;
    // The container continues only after the client has received some output.
    client.until("tick").await;
    std::fs::write(stop, "").unwrap();
    let output = client.finish().await;
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert!(stdout.starts_with("tick\n") && stdout.ends_with("tick\nout\n"), "{stdout}");
    assert_eq!(output.stderr, b"err\n");
    assert_eq!(output.status(), success());
}

#[tokio::test]
async fn requests_that_cannot_be_served_are_refused() {
    let container = Container::run("exec sleep 1000").await;
    let url = container.exec("stdout=true", &["echo", "hi"]);
    let (code, text) = get(&url).await;
    assert_eq!((code, text.as_str()), (400, "Upgrade request required"));
    let (code, text) = WebSocket::refused(&url, "v9.channel.k8s.io").await;
    assert_eq!(code, 403);
    assert!(text.contains("client supports [v9.channel.k8s.io], server accepts [v5.channel.k8s.io"), "{text}");
    let (code, _) = Spdy::refused(&url, "v3.channel.k8s.io").await;
    assert_eq!(code, 403);
}

#[tokio::test]
async fn a_command_without_streams_answers_with_its_output() {
    let container = Container::run("exec sleep 1000").await;
    let run = async |command: &[&str]| container.server.run(&container.id, command).await;
    assert_eq!(run(&["sh", "-c", "echo out; echo err >&2"]).await, (200, "out\nerr\n".to_owned()));
    let failed = run(&["sh", "-c", "echo err >&2; exit 3"]).await;
    assert_eq!(failed, (500, "command 'sh -c echo err >&2; exit 3' exited with 3: err\n".to_owned()));
    // The rest of the output is discarded, and the command is not blocked by it.
    let (code, output) = run(&["head", "-c", "3000000", "/dev/zero"]).await;
    assert_eq!((code, output.len()), (200, 1 << 20));
}

const PORT_FORWARD: &str = "/api/v1/namespaces/default/pods/p/portforward";

#[tokio::test]
async fn ports_are_forwarded_over_spdy() {
    let (container, [port]) = Container::serve().await;
    let (port, closed) = (port.to_string(), 1.to_string());
    let mut client = Spdy::open(&container.server.url(PORT_FORWARD), "portforward.k8s.io").await;
    for (first, request) in [(1, "0"), (5, "1")] {
        client.create(first, &[("streamtype", "error"), ("port", &port), ("requestid", request)]).await;
        client.create(first + 2, &[("streamtype", "data"), ("port", &port), ("requestid", request)]).await;
    }
    // Several connections at once.
    client.send(3, b"one", false).await;
    client.send(7, &vec![b'2'; 200_000], true).await;
    client.until_finished(7).await;
    client.send(3, b"!", true).await;
    client.until_finished(3).await;
    assert_eq!((client.text(3), client.text(7).len()), ("one!".to_owned(), 200_000));
    assert_eq!((client.text(1), client.text(5)), (String::new(), String::new()));
    // A port on which nothing listens.
    client.create(9, &[("streamtype", "error"), ("port", &closed), ("requestid", "2")]).await;
    client.create(11, &[("streamtype", "data"), ("port", &closed), ("requestid", "2")]).await;
    client.until_finished(9).await;
    assert!(client.text(9).starts_with("error forwarding port 1 to pod"), "{}", client.text(9));
    // A stream without a port is reset, and the connection continues.
    client.create(13, &[("streamtype", "data")]).await;
    client.until_reset(13).await;
    client.create(15, &[("streamtype", "error"), ("port", &port), ("requestid", "3")]).await;
    client.create(17, &[("streamtype", "data"), ("port", &port), ("requestid", "3")]).await;
    client.send(17, b"again", true).await;
    client.until_finished(17).await;
    assert_eq!(client.text(17), "again");
}

#[tokio::test]
async fn ports_are_forwarded_over_websocket() {
    let (container, [first, second]) = Container::serve().await;
    let url = container.server.url(&format!("{PORT_FORWARD}?ports={first},{second}"));
    let mut client = WebSocket::open(&url, "v4.channel.k8s.io").await;
    client.send(0, b"one").await;
    client.send(2, b"two").await;
    client.until_channel(0, &[&first.to_le_bytes()[..], b"one"].concat()).await;
    client.until_channel(2, &[&second.to_le_bytes()[..], b"two"].concat()).await;
    client.until_channel(1, &first.to_le_bytes()).await;
    let (code, text) = WebSocket::refused(&container.server.url(PORT_FORWARD), "v4.channel.k8s.io").await;
    assert_eq!(code, 400, "{text}");
    let ports = |count: u16| (1..=count).map(|port| port.to_string()).collect::<Vec<_>>().join(",");
    let url = |count| container.server.url(&format!("{PORT_FORWARD}?ports={}", ports(count)));
    let (code, text) = WebSocket::refused(&url(6), "v4.channel.k8s.io").await;
    assert_eq!(code, 400, "{text}");
    assert!(text.contains("1 to 5 ports"), "{text}");
    drop(WebSocket::open(&url(5), "v4.channel.k8s.io").await);
}

// Other pods and the daemons of the node listen on the same addresses.
#[tokio::test]
async fn port_of_a_process_outside_of_the_pod_is_not_forwarded() {
    let container = Container::run("exec sleep 1000").await;
    let other = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = other.local_addr().unwrap().port().to_string();
    let mut client = Spdy::open(&container.server.url(PORT_FORWARD), "portforward.k8s.io").await;
    client.create(1, &[("streamtype", "error"), ("port", &port), ("requestid", "0")]).await;
    client.create(3, &[("streamtype", "data"), ("port", &port), ("requestid", "0")]).await;
    client.until_finished(1).await;
    let text = client.text(1);
    assert!(text.ends_with("no process of the pod listens on this port of 127.0.0.1 or ::1"), "{text}");
}

#[tokio::test]
async fn malformed_frames_end_only_their_connection() {
    let container = Container::run("exec sleep 1000").await;
    let url = container.exec("stdin=true&stdout=true", &["cat"]);
    let mut good = Spdy::command(&url, &["error", "stdin", "stdout"]).await;
    let mut bad = Spdy::command(&url, &["error", "stdin", "stdout"]).await;
    bad.send_raw(&[0xff; 64]).await;
    bad.until_closed().await;
    good.send(3, b"fine", true).await;
    good.until_closed().await;
    assert_eq!(good.text(5), "fine");
}

#[tokio::test]
async fn a_message_of_a_websocket_client_has_a_largest_size() {
    let container = Container::run("exec sleep 1000").await;
    let url = container.exec("stdin=true&stdout=true", &["wc", "-c"]);
    // The message begins with the number of its channel.
    let largest = (4 << 20) - 1;
    let mut client = WebSocket::open(&url, "v5.channel.k8s.io").await;
    client.send(0, &vec![b'x'; largest]).await;
    client.close(0).await;
    let output = client.finish().await;
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), largest.to_string());

    let mut client = WebSocket::open(&url, "v5.channel.k8s.io").await;
    client.send_until_closed(0, &vec![b'x'; largest + 1]).await;
}

#[tokio::test]
async fn a_client_that_does_not_read_stops_its_command() {
    let container = Container::run("exec sleep 1000").await;
    let marks = container.root.shared().join("marks");
    let script = format!("while head -c 65536 /dev/zero; do echo >> {}; done", marks.display());
    let url = container.exec("stdout=true", &["sh", "-c", &script]);
    let client = Spdy::command(&url, &["error", "stdout"]).await;
    let size = || std::fs::metadata(&marks).map_or(0, |marks| marks.len());
    let other = container.exec("stdout=true", &["head", "-c", "65536", "/dev/zero"]);
    eventually("the command waits", || async {
        let before = size();
        // A command that does not wait writes several parts while other clients read as many. A slow machine delays both.
        for _ in 0..5 {
            let output = WebSocket::open(&other, "v5.channel.k8s.io").await.finish().await;
            assert_eq!(output.stdout.len(), 65_536);
        }
        (before > 0 && size() == before).then_some(())
    })
    .await;
    // 64 KiB for each mark: buffers of the system and of the agent.
    assert!(size() < 400, "{} parts were buffered", size());
    drop(client);
}

/// Sends a line to a forwarded port and returns the answer.
async fn echo(port: u16) -> Option<String> {
    let mut connection = TcpStream::connect(("127.0.0.1", port)).await.ok()?;
    connection.write_all(b"hello").await.ok()?;
    connection.shutdown().await.ok()?;
    let mut text = String::new();
    connection.read_to_string(&mut text).await.ok()?;
    Some(text)
}
