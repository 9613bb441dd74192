//! A plain HTTP server with the streams of one container. It also answers the requests that `kubectl` sends before it requests a stream.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::Json;
use axum::Router;
use axum::extract::{Query, Request, State};
use axum::response::Response;
use axum::routing::{any, get};
use podwright::agent::{Stream, Streams};
use podwright_host::streaming::StreamingRuntime;
use podwright_model::ids::{ContainerId, FullName, SandboxId};
use serde_json::json;
use tokio::net::TcpListener;
use tokio_util::task::AbortOnDropHandle;

/// The path of commands.
pub(crate) const EXEC: &str = "/api/v1/namespaces/default/pods/p/exec";

/// The server. It ends when the value is dropped.
pub(crate) struct StreamServer {
    address: SocketAddr,
    streams: Arc<Streams>,
    _server: AbortOnDropHandle<()>,
}

#[derive(Clone)]
struct Target {
    streams: Arc<Streams>,
    container: ContainerId,
    sandbox: SandboxId,
}

impl StreamServer {
    pub(crate) async fn start(runtime: Arc<dyn StreamingRuntime>, container: ContainerId, sandbox: SandboxId) -> Self {
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "p", "namespace": "default", "uid": "u"},
            "spec": {"nodeName": "n1", "containers": [{"name": "main", "image": "i"}]},
            "status": {"phase": "Running", "containerStatuses": [{"name": "main", "ready": true, "state": {"running": {}}}]},
        });
        let verbs = json!(["create", "get", "list"]);
        let resource = |name: &str| json!({"name": name, "namespaced": true, "kind": "Pod", "verbs": verbs});
        let resources = json!({
            "kind": "APIResourceList", "apiVersion": "v1", "groupVersion": "v1",
            "resources": [resource("pods"), resource("pods/exec"), resource("pods/attach"), resource("pods/portforward")],
        });
        let streams = Arc::new(Streams::new(runtime));
        let answer = |value: serde_json::Value| get(async move || Json(value));
        let router = Router::new()
            .route("/api", answer(json!({"kind": "APIVersions", "versions": ["v1"]})))
            .route("/apis", answer(json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": []})))
            .route("/api/v1", answer(resources))
            .route("/api/v1/namespaces/default/pods/p", answer(pod))
            .route(EXEC, any(exec))
            .route("/api/v1/namespaces/default/pods/p/attach", any(attach))
            .route("/api/v1/namespaces/default/pods/p/portforward", any(port_forward))
            .with_state(Target { streams: streams.clone(), container, sandbox });
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let server = tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        StreamServer { address, streams, _server: AbortOnDropHandle::new(server) }
    }

    /// Runs a command without streams. Returns the status code and the body.
    pub(crate) async fn run(&self, container: &ContainerId, command: &[&str]) -> (u16, String) {
        let command = command.iter().map(|word| (*word).to_owned()).collect();
        let answer = self.streams.run(&pod(), container.clone(), command).await;
        let code = answer.status().as_u16();
        let body = axum::body::to_bytes(answer.into_body(), 1 << 22).await.unwrap();
        (code, String::from_utf8(body.into()).unwrap())
    }

    /// The URL of a path.
    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }
}

/// The pod of the container.
fn pod() -> FullName {
    FullName::new("default", "p")
}

type Pairs = Query<Vec<(String, String)>>;

fn is(pairs: &Pairs, name: &str) -> bool {
    pairs.iter().any(|(own, value)| own == name && value == "true")
}

async fn exec(State(target): State<Target>, pairs: Pairs, request: Request) -> Response {
    let tty = is(&pairs, "tty");
    let stream = Stream::Exec {
        container: target.container,
        command: pairs.iter().filter(|(name, _)| name == "command").map(|(_, word)| word.clone()).collect(),
        stdin: is(&pairs, "stdin"),
        stdout: is(&pairs, "stdout"),
        stderr: is(&pairs, "stderr") && !tty,
        tty,
    };
    target.streams.serve(request, &pod(), stream).await
}

async fn attach(State(target): State<Target>, pairs: Pairs, request: Request) -> Response {
    let stream = Stream::Attach {
        container: target.container,
        stdin: is(&pairs, "stdin"),
        stdout: is(&pairs, "stdout"),
        stderr: is(&pairs, "stderr"),
        tty: is(&pairs, "tty"),
    };
    target.streams.serve(request, &pod(), stream).await
}

async fn port_forward(State(target): State<Target>, pairs: Pairs, request: Request) -> Response {
    let ports = pairs.iter().filter(|(name, _)| name == "ports").flat_map(|(_, ports)| ports.split(','));
    let ports = ports.map(|port| port.parse().unwrap()).collect();
    target.streams.serve(request, &pod(), Stream::PortForward { sandbox: target.sandbox, ports }).await
}

/// Encodes a word for a query.
pub(crate) fn encode(word: &str) -> String {
    word.bytes()
        .map(|byte| if byte.is_ascii_alphanumeric() { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}
