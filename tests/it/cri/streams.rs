//! Commands, attached containers and forwarded ports of containers of containerd, through its streaming server.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use podwright_model::pod::PodObject;
use podwright_ports::{ContainerConfig, ContainerRuntime, ImageRequest, SandboxConfig};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::containerd::Containerd;
use super::image::BUSYBOX;
use crate::agent::cluster_streams::clients::{Spdy, WebSocket, get};
use crate::agent::cluster_streams::kubectl;
use crate::agent::cluster_streams::server::{EXEC, StreamServer, encode};
use crate::support::processes::script;

/// Writes lines, and sends back the bytes of each connection to port 8080.
const SCRIPT: &str = "while true; do echo tick; sleep 0.2; done & exec nc -ll -p 8080 -e cat";

#[tokio::test]
async fn clients_reach_containers_of_containerd() {
    let Some(containerd) = Containerd::turn().await else { return };
    let root = tempfile::tempdir().unwrap();
    let runtime = Arc::new(containerd.open(root.path()));
    let containers = json!([{"name": "main", "image": BUSYBOX}]);
    let pod = json!({"metadata": {"name": "p", "namespace": "n", "uid": "u"}, "spec": {"containers": containers}});
    let pod = PodObject::new(serde_json::from_value(pod).unwrap()).unwrap();
    let sandbox = runtime.run_sandbox(SandboxConfig { pod: pod.clone(), attempt: 0 }).await.unwrap();
    let request = ImageRequest { pod: &pod, container: None, image: BUSYBOX, pull_policy: None };
    let image_id = runtime.ensure_image(request, &CancellationToken::new()).await.unwrap();
    let config = ContainerConfig { image_id, ..script(&pod, &sandbox, SCRIPT) };
    let id = runtime.create_container(config).await.unwrap();
    runtime.start_container(&id).await.unwrap();
    let server = StreamServer::start(runtime.clone(), id.clone(), sandbox).await;
    let url = |streams: &str, script: &str| {
        server.url(&format!("{EXEC}?{streams}&command=sh&command=-c&command={}", encode(script)))
    };

    // The agent serves version 5, and containerd version 4.
    for protocol in ["v5.channel.k8s.io", "v4.channel.k8s.io"] {
        let failing = url("stdout=true&stderr=true", "echo out; echo err >&2; exit 3");
        let output = WebSocket::open(&failing, protocol).await.finish().await;
        assert_eq!((output.stdout.as_slice(), output.stderr.as_slice()), (&b"out\n"[..], &b"err\n"[..]), "{protocol}");
        assert_eq!(output.status()["details"]["causes"][0]["message"], "3", "{protocol}");
    }
    let mut client = WebSocket::open(&url("stdin=true&stdout=true", "cat; echo end"), "v5.channel.k8s.io").await;
    client.send(0, &vec![b'x'; 300_000]).await;
    client.close(0).await;
    let output = client.finish().await;
    assert_eq!((output.stdout.len(), &output.status()["status"]), (300_004, &json!("Success")));
    let script = "until [ \"$(stty size)\" = '33 101' ]; do sleep 0.1; done; echo sized; read line; echo \"[$line]\"";
    let mut client = WebSocket::open(&url("stdin=true&stdout=true&tty=true", script), "v5.channel.k8s.io").await;
    client.send(4, br#"{"Width":101,"Height":33}"#).await;
    client.until("sized").await;
    client.send(0, b"first\n").await;
    client.until("[first]").await;

    let mut client = Spdy::command(&url("stdin=true&stdout=true", "cat"), &["error", "stdin", "stdout"]).await;
    client.send(3, b"hello", true).await;
    client.until_closed().await;
    assert_eq!(client.text(5), "hello");

    let attach = server.url("/api/v1/namespaces/default/pods/p/attach?stdout=true");
    let mut client = WebSocket::open(&attach, "v5.channel.k8s.io").await;
    client.until("tick").await;
    assert_eq!(server.run(&id, &["echo", "hi"]).await, (200, "hi\n".to_owned()));
    let (code, text) = server.run(&id, &["sh", "-c", "echo why >&2; exit 3"]).await;
    assert_eq!((code, text.as_str()), (500, "command 'sh -c echo why >&2; exit 3' exited with 3: why\n"));
    assert_eq!(get(&attach).await.0, 400, "a request without an upgrade");

    kubectl::check(&kubectl::Access::plain(&server, root.path()), Path::new("/tmp"), 8080).await;

    runtime.stop_container(&id, Duration::ZERO).await.unwrap();
    let (code, text) = WebSocket::refused(&attach, "v5.channel.k8s.io").await;
    assert_eq!(code, 500, "{text}");
}
