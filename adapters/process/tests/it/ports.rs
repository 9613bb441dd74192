//! Connections to the ports of pods, which share the network of the node.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use podwright_fixtures::processes::{echo_server, pod, sandbox, script, served_port};
use podwright_host::streaming::{LocalSession, Opened, PodPorts, StreamRequest, StreamingRuntime};
use podwright_model::ids::{ContainerId, SandboxId};
use podwright_ports::ContainerRuntime;
use podwright_process::ProcessRuntime;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use crate::support::Root;

/// A pod with a server.
struct Server {
    container: ContainerId,
    sandbox: SandboxId,
    port: u16,
}

async fn serve(root: &Root, runtime: &ProcessRuntime, uid: &str) -> Server {
    let (pod, file) = (pod(uid, |_| {}), root.shared().join(uid));
    let sandbox = sandbox(runtime, &pod).await;
    let container = runtime.create_container(script(&pod, &sandbox, &echo_server(&file))).await.unwrap();
    runtime.start_container(&container).await.unwrap();
    Server { container, sandbox, port: served_port(&file).await }
}

async fn ports_of(runtime: &ProcessRuntime, server: &Server) -> PodPorts {
    let stream = StreamRequest::PortForward { sandbox: server.sandbox.clone(), ports: Vec::new() };
    match StreamingRuntime::open(runtime, stream).await.unwrap() {
        Opened::Local(LocalSession::Ports(ports)) => ports,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn client_reaches_only_the_ports_on_which_processes_of_the_pod_listen() {
    const REFUSAL: &str = "no process of the pod listens on this port of 127.0.0.1 or ::1";
    let root = Root::new();
    let runtime = root.open().await;
    let (own, other) = (serve(&root, &runtime, "own").await, serve(&root, &runtime, "other").await);
    let ports = ports_of(&runtime, &own).await;
    let mut connection = ports.connect(own.port).await.unwrap();
    connection.write_all(b"hello").await.unwrap();
    connection.shutdown().await.unwrap();
    let mut text = String::new();
    connection.read_to_string(&mut text).await.unwrap();
    assert_eq!(text, "hello");

    let of_node = TcpListener::bind("127.0.0.1:0").await.unwrap();
    for port in [other.port, of_node.local_addr().unwrap().port()] {
        assert_eq!(ports.connect(port).await.unwrap_err(), REFUSAL);
    }
    runtime.stop_container(&own.container, Duration::ZERO).await.unwrap();
    assert_eq!(ports.connect(own.port).await.unwrap_err(), REFUSAL);
}

// A process of the node on the other loopback address gets no connection to the port of the pod.
#[tokio::test]
async fn connection_goes_to_the_address_on_which_the_pod_listens() {
    let root = Root::new();
    let runtime = root.open().await;
    let own = serve(&root, &runtime, "own").await;
    let Ok(of_node) = TcpListener::bind((Ipv6Addr::LOCALHOST, own.port)).await else {
        return eprintln!("skipped: this machine has no IPv6, or the port of the pod is in use there");
    };
    let connection = ports_of(&runtime, &own).await.connect(own.port).await.unwrap();
    assert_eq!(connection.peer_addr().unwrap(), SocketAddr::from((Ipv4Addr::LOCALHOST, own.port)));
    drop(of_node);
}
