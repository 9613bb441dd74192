//! Watches on a server that the tests set, and the conversion of their objects.

use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::{future, stream};
use http::{Request, Response};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Bytes, Frame};
use kube::client::Body;
use parking_lot::Mutex;
use podwright_metrics::{ControllersMetrics, Format};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::*;

/// A controller that counts the events of its watch, and panics at some of them.
struct Events {
    count: AtomicUsize,
    panics_at: Option<usize>,
}

impl Events {
    fn room(&self) -> BoxFuture<'_, ()> {
        future::ready(()).boxed()
    }

    fn take(&self, _: WatchEvent<Pod>) {
        let number = self.count.fetch_add(1, Ordering::Relaxed);
        assert!(self.panics_at != Some(number), "a fault of the controller");
    }
}

/// How the server answers lists and watches.
#[derive(Clone, Copy)]
enum Server {
    /// There are no pods, and nothing happens.
    Works,
    RefusesWatches,
    /// A list breaks off 10 s after the beginning of its answer.
    BreaksLists,
    /// A watch begins with a line that cannot be read. After 60 s, the same watch shows a pod.
    SendsBadLine,
}

impl Server {
    fn answer(self, is_watch: bool) -> Response<UnsyncBoxBody<Bytes, kube::Error>> {
        let whole = |code: u16| {
            let body = json!({"apiVersion": "v1", "kind": "PodList", "metadata": {"resourceVersion": "1"}, "items": [],
                "message": "refused", "code": code});
            (code, Body::from(body.to_string().into_bytes()).boxed_unsync())
        };
        let (code, body) = match (self, is_watch) {
            (Server::BreaksLists, false) => (200, frames(vec![(0, Ok("{")), (10, Err("the connection was lost"))])),
            (_, false) => whole(200),
            (Server::RefusesWatches, true) => whole(403),
            (Server::SendsBadLine, true) => (200, frames(vec![(0, Ok("?\n")), (60, Ok(ADDED))])),
            (Server::Works | Server::BreaksLists, true) => (200, frames(Vec::new())),
        };
        Response::builder().status(code).body(body).unwrap()
    }
}

const ADDED: &str = concat!(
    r#"{"type":"ADDED","object":{"apiVersion":"v1","kind":"Pod","metadata":{"name":"web","namespace":"default","#,
    r#""resourceVersion":"2"},"spec":{"containers":[]}}}"#,
    "\n"
);

/// A body of parts, each with the seconds before it. The body does not end.
fn frames(parts: Vec<(u64, Result<&'static str, &'static str>)>) -> UnsyncBoxBody<Bytes, kube::Error> {
    let parts = stream::iter(parts).then(|(pause, part)| async move {
        sleep(Duration::from_secs(pause)).await;
        part.map(|text| Frame::data(Bytes::from(text))).map_err(|error| kube::Error::Service(error.into()))
    });
    StreamBody::new(parts.chain(stream::pending())).boxed_unsync()
}

/// The watch of pods on a server that the test sets. It needs no connection, so that time can be paused.
struct Watched {
    server: Arc<Mutex<Server>>,
    controller: Arc<Events>,
    problems: WatchProblems,
    metrics: ControllersMetrics,
    stop: CancellationToken,
}

impl Watched {
    fn start(server: Server, panics_at: Option<usize>) -> Self {
        let server = Arc::new(Mutex::new(server));
        let answers = server.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let is_watch = request.uri().query().unwrap_or_default().contains("watch=true");
            future::ready(Ok::<_, std::io::Error>(answers.lock().answer(is_watch)))
        });
        let (client, metrics) = (Client::new(service, "default"), ControllersMetrics::new());
        let controller = Arc::new(Events { count: AtomicUsize::new(0), panics_at });
        let problems = WatchProblems::new(CONTROLLER_NAME, metrics.watches.clone());
        let parts = Parts::new(metrics.panics.clone(), CancellationToken::new());
        let stop = parts.stop().clone();
        let watch = Watch {
            client: &client,
            controller: &controller,
            name: CONTROLLER_NAME,
            problems: &problems,
            parts: &parts,
        };
        watch.start("watch_pods", |_: &mut Pod| {}, Events::room, Events::take);
        Watched { server, controller, problems, metrics, stop }
    }

    /// The failing watches by the metrics.
    fn failing(&self) -> Option<f64> {
        let text = self.metrics.encode(Format::Classic);
        let series = format!("podwright_watch_failing{{controller=\"{CONTROLLER_NAME}\",resource=\"pods\"}} ");
        text.lines().find_map(|line| line.strip_prefix(&series)?.parse().ok())
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// The server ends a watch after 290 s at the latest. The next one brings no event either.
#[tokio::test(start_paused = true)]
async fn watch_is_a_problem_from_its_error_until_the_server_answers_it() {
    let watched = Watched::start(Server::Works, None);
    sleep(Duration::from_secs(1)).await;
    let events = watched.controller.count.load(Ordering::Relaxed);
    assert_eq!((events, watched.problems.lines(), watched.failing()), (2, Vec::new(), Some(0.0)));
    *watched.server.lock() = Server::RefusesWatches;
    sleep(Duration::from_secs(300)).await;
    let lines = watched.problems.lines();
    assert!(lines.len() == 1 && lines[0].starts_with("cannot watch pods: "), "{lines:?}");
    assert_eq!(watched.failing(), Some(1.0));
    *watched.server.lock() = Server::Works;
    sleep(Duration::from_secs(60)).await;
    assert_eq!((watched.problems.lines(), watched.failing()), (Vec::new(), Some(0.0)));
    assert_eq!(watched.controller.count.load(Ordering::Relaxed), events, "no event shows that the watch works");
}

/// Each list begins with status 200.
#[tokio::test(start_paused = true)]
async fn watch_is_a_problem_until_its_list_ends() {
    let watched = Watched::start(Server::BreaksLists, None);
    sleep(Duration::from_secs(5)).await;
    assert_eq!(watched.problems.lines(), Vec::<String>::new());
    // The first list breaks off after 10 s, and the second one runs from 12 s on at the latest.
    sleep(Duration::from_secs(11)).await;
    let lines = watched.problems.lines();
    assert!(lines.len() == 1 && lines[0].contains("the connection was lost"), "{lines:?}");
    assert_eq!(watched.failing(), Some(1.0));
    *watched.server.lock() = Server::Works;
    sleep(Duration::from_secs(60)).await;
    assert_eq!((watched.problems.lines(), watched.failing()), (Vec::new(), Some(0.0)));
}

/// After a line that cannot be read, the same watch goes on.
#[tokio::test(start_paused = true)]
async fn watch_is_a_problem_until_its_next_event() {
    let watched = Watched::start(Server::SendsBadLine, None);
    sleep(Duration::from_secs(30)).await;
    let lines = watched.problems.lines();
    assert!(lines.len() == 1 && lines[0].starts_with("cannot watch pods: "), "{lines:?}");
    assert_eq!(watched.failing(), Some(1.0));
    sleep(Duration::from_secs(60)).await;
    assert_eq!((watched.problems.lines(), watched.failing()), (Vec::new(), Some(0.0)));
    assert_eq!(
        watched.controller.count.load(Ordering::Relaxed),
        3,
        "the events of the list, and the one after the line"
    );
}

#[tokio::test(start_paused = true)]
async fn watch_that_panics_starts_again() {
    let watched = Watched::start(Server::Works, Some(1));
    sleep(Duration::from_millis(500)).await;
    assert_eq!(watched.problems.lines(), ["cannot watch pods: the watch panicked: a fault of the controller"]);
    assert_eq!(watched.failing(), Some(1.0));
    sleep(Duration::from_secs(1)).await;
    assert_eq!(watched.controller.count.load(Ordering::Relaxed), 4, "a list follows");
    assert_eq!((watched.problems.lines(), watched.failing()), (Vec::new(), Some(0.0)));
    assert!(watched.metrics.encode(Format::Classic).contains("podwright_hook_panics_total 1\n"));
}

#[test]
fn refused_lists_name_the_remedy() {
    let answer = |code: u16| -> KubeError {
        let status = serde_json::from_value(json!({"code": code, "message": "refused"})).unwrap();
        kube::Error::Api(Box::new(status)).into()
    };
    for (code, text) in [
        (403, "refused: grant the permissions of examples/deploy/controllers.yaml"),
        (404, "the API server does not serve resourceclaims of resource.k8s.io/v1: use Kubernetes 1.34 or later"),
    ] {
        assert_eq!(problem::<ResourceClaim>(&answer(code)), text);
    }
    let rules = problem::<DeviceTaintRule>(&answer(403));
    assert_eq!(rules, "refused: grant the permissions of examples/deploy/device-taint-rules.yaml");
}

#[test]
fn undecodable_object_is_known_by_its_metadata() {
    let text = json!({"metadata": {"name": "c", "namespace": "n", "uid": "u", "finalizers": ["f"],
        "annotations": {"a": "b"}}, "spec": "wrong"});
    let guarded: DeserializeGuard<ResourceClaim> = serde_json::from_value(text).unwrap();
    let WatchEvent::Undecodable { object: claim, is_deleted: false } =
        convert(Event::InitApply(guarded), |_| {}, CONTROLLER_NAME)
    else {
        panic!()
    };
    assert_eq!((claim.metadata.uid.as_deref(), &claim.metadata.finalizers), (Some("u"), &None));
    assert!(claim.metadata.annotations.is_some());
    assert_eq!(claim.spec, Default::default());
}

#[test]
fn pod_keeps_what_the_controller_reads() {
    let text = json!({"metadata": {"name": "p", "namespace": "n", "uid": "u", "deletionTimestamp": "2026-01-01T00:00:00Z",
        "labels": {"a": "b"}},
        "spec": {"nodeName": "n1", "priority": 7, "containers": [{"name": "c"}], "resourceClaims": [{"name": "r"}],
            "schedulingGroup": {"podGroupName": "g"}},
        "status": {"phase": "Running", "podIP": "10.0.0.1", "resourceClaimStatuses": [{"name": "r"}],
            "extendedResourceClaimStatus": {"resourceClaimName": "e", "requestMappings": []}}});
    let mut pod: Pod = serde_json::from_value(text).unwrap();
    keep_claims_of_pod(&mut pod);
    let kept = serde_json::to_value(&pod).unwrap();
    let expected = json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "p", "namespace": "n", "uid": "u", "deletionTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {"nodeName": "n1", "priority": 7, "containers": [], "resourceClaims": [{"name": "r"}],
            "schedulingGroup": {"podGroupName": "g"}},
        "status": {"phase": "Running", "resourceClaimStatuses": [{"name": "r"}],
            "extendedResourceClaimStatus": {"resourceClaimName": "e", "requestMappings": []}}});
    assert_eq!(kept, expected);
}

/// The device taint eviction controller keeps of a claim what an eviction depends on.
#[test]
fn claim_is_shrunk_to_its_devices_and_consumers() {
    let result =
        json!({"request": "r", "driver": "d", "pool": "w", "device": "i", "tolerations": [{"operator": "Exists"}]});
    let allocation = json!({"devices": {"results": [result], "config": [{"source": "FromClass"}]}});
    let consumers = json!([{"resource": "pods", "name": "p", "uid": "u"}]);
    let mut claim: ResourceClaim = serde_json::from_value(json!({
        "metadata": {"name": "c", "annotations": {"a": "b"}, "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u"}]},
        "spec": {"devices": {"requests": [{"name": "r"}]}},
        "status": {"allocation": allocation, "reservedFor": consumers, "devices": [{"driver": "d", "pool": "w", "device": "i"}]},
    }))
    .unwrap();
    keep_results_of_claim(&mut claim);
    let kept = serde_json::to_value(&claim).unwrap();
    assert_eq!(kept["status"], json!({"allocation": {"devices": {"results": [result]}}, "reservedFor": consumers}));
    assert_eq!(
        (&kept["metadata"]["ownerReferences"][0]["uid"], &kept["metadata"]["annotations"]),
        (&json!("u"), &json!(null))
    );
    assert_eq!(kept["spec"], json!({}));
}
