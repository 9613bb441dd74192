//! Requests to the admin endpoints of a real node, made without a socket.

#![no_main]

use std::future::poll_fn;
use std::path::{Path, PathBuf};
use std::pin::{Pin, pin};
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, HttpBody};
use libfuzzer_sys::Corpus;
use podwright::adapters::network::Network;
use podwright::adapters::process::{ProcessConfig, ProcessRuntime};
use podwright::adapters::sources::{FileSource, SourceContext};
use podwright::adapters::storage::FileStorage;
use podwright::agent::{AgentInfo, EventLog, NodeControl, NodeView, router};
use podwright::metrics::Metrics;
use podwright::{Node, NodePorts};
use podwright_core::admission::NodeCapacity;
use podwright_engine::recorder::Recorder;
use podwright_fuzz::requests::{Answer, EVENTS, PODS, Request, check};
use podwright_ports::{Clock, NodeStopped, Severity, SourceInbox, SourceKind, SourceProblem, SourceUpdate, TokioClock};
use tempfile::TempDir;
use tower_service::Service;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| -> Corpus {
    let Some(request) = Request::parse(bytes) else { return Corpus::Reject };
    let Some(http_request) = http(&request) else { return Corpus::Reject };
    let answer = RUNTIME.block_on(async {
        let mut router = ROUTER.lock().unwrap().clone();
        let answer = router.call(http_request).await.unwrap();
        let content_type = answer.headers().get("content-type").map(|it| it.to_str().unwrap().to_owned());
        let (status, content_type) = (answer.status().as_u16(), content_type.unwrap_or_default());
        let body = if content_type == EVENTS {
            first(answer.into_body()).await
        } else {
            axum::body::to_bytes(answer.into_body(), usize::MAX).await.unwrap().into()
        };
        Answer { status, content_type, body }
    });
    check(&request, &answer);
    Corpus::Keep
});

/// The first event of an event stream, or nothing if the body is empty.
async fn first(body: Body) -> Vec<u8> {
    let mut body = pin!(body);
    let frame = poll_fn(|cx| body.as_mut().poll_frame(cx)).await;
    frame.map(|frame| frame.unwrap().into_data().unwrap_or_default().into()).unwrap_or_default()
}

fn http(request: &Request) -> Option<axum::http::Request<Body>> {
    let mut builder = axum::http::Request::builder().method(request.method.as_str()).uri(&request.target);
    for (name, value) in &request.headers {
        builder = builder.header(name, value);
    }
    builder.body(Body::empty()).ok()
}

static RUNTIME: LazyLock<tokio::runtime::Runtime> =
    LazyLock::new(|| tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap());

thread_local! {
    /// The node's root directory. libFuzzer ends with `exit`, which drops the thread locals of the fuzzing thread and so
    /// removes the directory.
    static ROOT: TempDir = tempfile::Builder::new().prefix("podwright-fuzz-").tempdir().unwrap();
}

static ROUTER: LazyLock<Mutex<Router>> = LazyLock::new(|| {
    let (view, control) = node();
    Mutex::new(router(view, control, about()))
});

fn about() -> AgentInfo {
    AgentInfo {
        name: "n1".into(),
        started: TokioClock::new().now(),
        locations: vec![],
        stopping: tokio_util::sync::CancellationToken::new(),
    }
}

fn node() -> (NodeView, NodeControl) {
    let root: PathBuf = ROOT.with(|root| root.path().to_owned());
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        actix::System::new().block_on(async move {
            sender.send(start(&root).await).unwrap();
            std::future::pending::<()>().await;
        });
    });
    let (view, control) = receiver.recv().unwrap();
    while view.pods().len() < 2 || !view.pods().iter().all(|pod| pod.status.is_some()) {
        std::thread::park_timeout(Duration::from_millis(10));
    }
    (view, control)
}

/// Adds a problem to each set of a source, and passes it on to the node.
struct AddProblem(Arc<dyn SourceInbox>);

impl SourceInbox for AddProblem {
    fn send(&self, mut update: SourceUpdate) -> Pin<Box<dyn Future<Output = Result<(), NodeStopped>> + Send>> {
        if let SourceUpdate::Set(set) = &mut update {
            let (what, message) = ("/manifests/bad.yaml".into(), "pod \"bad\": no".into());
            set.problems.push(SourceProblem { what, message, pods: vec![], severity: Severity::Fault });
        }
        self.0.send(update)
    }
}

async fn start(root: &Path) -> (NodeView, NodeControl) {
    let manifest = root.join("pods.yaml");
    std::fs::write(&manifest, PODS).unwrap();
    let clock: Arc<dyn Clock> = Arc::new(TokioClock::new());
    let metrics = Metrics::new();
    let events = Arc::new(EventLog::new(clock.clone(), None));
    let runtime = ProcessRuntime::open(ProcessConfig::new(root)).await.unwrap();
    let network = Network::new().unwrap();
    let ports =
        NodePorts::new(Arc::new(runtime), Arc::new(network), Arc::new(FileStorage::new(root, Default::default())))
            .events(events.clone())
            .clock(clock.clone())
            .admission(Arc::new(NodeCapacity::new(2000, i64::MAX, 9)))
            .metrics(metrics.clone())
            .recorder(Arc::new(Recorder::new(64 << 10)));
    let node = Node::builder(ports).name("n1").runtime_name("process").sources([SourceKind::File]);
    let node = Arc::new(node.start().unwrap());
    let source = FileSource::new([manifest], SourceContext::new("n1", clock.clone()));
    let sets = Arc::new(AddProblem(node.sources()));
    actix::spawn(source.run(sets, tokio_util::sync::CancellationToken::new()));
    let logs = FileStorage::new(root, Default::default());
    let control = NodeControl { node, claims: None, plugins: None };
    (control.view("n1", events, clock, metrics, logs, Vec::new()), control)
}
