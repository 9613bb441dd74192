//! The controller in paused time, with an API whose answers the test sets.

mod failures;
mod handlers;
mod lists;
mod terms;

use std::collections::BTreeSet;
use std::future::pending;
use std::sync::atomic::AtomicUsize;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, ready};
use podwright_metrics::Format;
use podwright_model::time::Time;
use podwright_ports::TokioClock;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::super::test_log::Log;
use super::*;
use crate::ports::resource_claims::{Answer, ApiError, ApiErrorKind, OwnerWarning, Request};

#[derive(Clone, Copy, Debug, PartialEq)]
enum Reply {
    Success,
    Refused,
    /// The server does nothing, and requests a delay of 60 s.
    Busy,
    /// The call fails, and its result is not known.
    Unknown,
    Panic,
    PanicAfter(Duration),
    /// The call does not end.
    Hang,
    /// The call succeeds after this time.
    Slow(Duration),
}

/// Gives the same answer to all calls of one kind.
struct FakeApi {
    start: Instant,
    reply: Mutex<Reply>,
    /// The reply to writes of a status, if it is another one.
    reply_to_apply: Mutex<Option<Reply>>,
    /// The reply to lists, if it is another one.
    reply_to_list: Mutex<Option<Reply>>,
    /// The calls with their times.
    calls: Mutex<Vec<(Duration, String)>>,
    warnings: Mutex<Vec<OwnerWarning>>,
    active: AtomicUsize,
    most_active: AtomicUsize,
}

/// A call that runs.
struct ActiveCall<'a>(&'a AtomicUsize);

impl Drop for ActiveCall<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl ResourceClaimApi for FakeApi {
    fn call(&self, request: Request) -> BoxFuture<'_, Result<Answer, ApiError>> {
        async move {
            let mut reply = *self.reply.lock();
            let (text, answer) = match request {
                Request::CreateClaim(mut claim) => {
                    let name = format!("{}1", claim.metadata.generate_name.clone().unwrap());
                    claim.metadata.uid = Some(format!("{name}-uid"));
                    claim.metadata.name = Some(name.clone());
                    (format!("create {name}"), Answer::Claim(claim))
                }
                Request::ApplyStatus(apply) => {
                    reply = self.reply_to_apply.lock().unwrap_or(reply);
                    (format!("apply {}", apply.owner), Answer::Written { resource_version: "9".to_owned() })
                }
                Request::ListClaims { namespace } => {
                    reply = self.reply_to_list.lock().unwrap_or(reply);
                    (format!("list {namespace}"), Answer::Claims(Arc::default()))
                }
                Request::ChangeClaim(change) => {
                    let text = format!("change {}", change.claim.metadata.name.as_deref().unwrap_or_default());
                    (text, Answer::Claim(Box::new(change.changed_claim())))
                }
                other => (format!("{other:?}"), Answer::Done),
            };
            self.calls.lock().push((self.start.elapsed(), text));
            let active = self.active.fetch_add(1, Ordering::Relaxed) + 1;
            self.most_active.fetch_max(active, Ordering::Relaxed);
            let _active = ActiveCall(&self.active);
            match reply {
                Reply::Success => Ok(answer),
                Reply::Refused => Err(ApiError::new(ApiErrorKind::Refused, "no quota")),
                Reply::Busy => {
                    let busy = ApiError::new(ApiErrorKind::Refused, "too many requests");
                    Err(ApiError { retry_after: Duration::from_secs(60), ..busy })
                }
                Reply::Unknown => Err(ApiError::new(ApiErrorKind::Unknown, "no answer")),
                Reply::Panic => panic!("a fault of the client"),
                Reply::PanicAfter(time) => {
                    sleep(time).await;
                    panic!("a fault of the client")
                }
                Reply::Hang => pending().await,
                Reply::Slow(time) => {
                    sleep(time).await;
                    Ok(answer)
                }
            }
        }
        .boxed()
    }

    fn record(&self, warning: OwnerWarning) {
        self.warnings.lock().push(warning);
    }

    fn close_events(&self, _: Duration) -> BoxFuture<'_, usize> {
        ready(0).boxed()
    }
}

/// A clock that panics once when the test has set that.
struct FaultyClock {
    clock: TokioClock,
    panics: AtomicBool,
}

impl Clock for FaultyClock {
    fn now(&self) -> Time {
        assert!(!self.panics.swap(false, Ordering::Relaxed), "a fault of the clock");
        self.clock.now()
    }
}

struct Fixture {
    api: Arc<FakeApi>,
    clock: Arc<FaultyClock>,
    metrics: ControllersMetrics,
    controller: ClaimController,
}

impl Fixture {
    fn new(reply: Reply) -> Self {
        Fixture::with_workers(reply, WORKERS.get())
    }

    fn with_workers(reply: Reply, workers: usize) -> Self {
        Fixture::with_lease(reply, workers, LeaseGuard::without_election())
    }

    fn with_lease(reply: Reply, workers: usize, lease: LeaseGuard) -> Self {
        let api = Arc::new(FakeApi {
            start: Instant::now(),
            reply: Mutex::new(reply),
            reply_to_apply: Mutex::default(),
            reply_to_list: Mutex::default(),
            calls: Mutex::default(),
            warnings: Mutex::default(),
            active: AtomicUsize::new(0),
            most_active: AtomicUsize::new(0),
        });
        let metrics = ControllersMetrics::new();
        let clock = TokioClock::starting_at(Time::from_secs(1_000_000));
        let clock = Arc::new(FaultyClock { clock, panics: AtomicBool::new(false) });
        let ports = ClaimControllerPorts { api: api.clone(), clock: clock.clone(), metrics: metrics.clone(), lease };
        let config = ClaimControllerConfig { workers: NonZeroUsize::new(workers).unwrap(), ..Default::default() };
        Fixture { api, clock, metrics, controller: ClaimController::start(config, ports, UnansweredCreates::default()) }
    }

    /// The first lists: these pods, and the template if it exists.
    fn list(&self, pods: &[&str], has_template: bool) {
        self.controller.pod_event(WatchEvent::Init);
        pods.iter().for_each(|pod| self.controller.pod_event(WatchEvent::InitApply(self::pod(pod))));
        self.complete_lists(has_template);
    }

    /// The end of the first lists.
    fn complete_lists(&self, has_template: bool) {
        self.controller.pod_event(WatchEvent::InitDone);
        self.controller.claim_event(WatchEvent::InitDone);
        self.controller.template_event(WatchEvent::Init);
        if has_template {
            self.controller.template_event(WatchEvent::InitApply(template()));
        }
        self.controller.template_event(WatchEvent::InitDone);
    }

    fn calls(&self) -> Vec<String> {
        self.api.calls.lock().iter().map(|(_, call)| call.clone()).collect()
    }

    /// A series of the metrics.
    fn series(&self, series: &str) -> Option<f64> {
        let text = self.metrics.encode(Format::Classic);
        text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' ')?.parse().ok())
    }
}

fn object<T: serde::de::DeserializeOwned>(object: Value) -> Arc<T> {
    Arc::new(serde_json::from_value(object).unwrap())
}

fn pod(name: &str) -> Arc<Pod> {
    object(json!({
        "metadata": { "namespace": "shop", "name": name, "uid": format!("{name}-uid"), "resourceVersion": "1" },
        "spec": { "containers": [], "resourceClaims": [{ "name": "res", "resourceClaimTemplateName": "tpl" }] },
    }))
}

fn template() -> Arc<ResourceClaimTemplate> {
    object(json!({ "metadata": { "namespace": "shop", "name": "tpl", "uid": "t" }, "spec": { "spec": {} } }))
}

/// Lets all tasks run until they wait.
async fn rest() {
    sleep(Duration::from_millis(2)).await;
}

#[tokio::test(start_paused = true)]
async fn no_pass_begins_before_all_first_lists_are_complete() {
    let fixture = Fixture::new(Reply::Success);
    fixture.controller.template_event(WatchEvent::Init);
    fixture.controller.template_event(WatchEvent::InitApply(template()));
    fixture.controller.template_event(WatchEvent::InitDone);
    fixture.controller.pod_event(WatchEvent::Init);
    fixture.controller.pod_event(WatchEvent::InitApply(pod("p")));
    fixture.controller.pod_event(WatchEvent::InitDone);
    fixture.controller.pod_event(WatchEvent::Apply(pod("q")));
    sleep(Duration::from_secs(60)).await;
    assert_eq!((fixture.calls(), fixture.controller.is_synced()), (vec![], false));
    fixture.controller.claim_event(WatchEvent::Init);
    fixture.controller.claim_event(WatchEvent::InitDone);
    rest().await;
    assert!(fixture.controller.is_synced());
    let calls: BTreeSet<_> = fixture.calls().into_iter().collect();
    assert_eq!(calls, ["create p-res-1", "create q-res-1", "apply shop/p", "apply shop/q"].map(str::to_owned).into());
}

#[tokio::test(start_paused = true)]
async fn at_most_one_pass_per_key_and_as_many_as_there_are_workers() {
    let fixture = Fixture::with_workers(Reply::Hang, 3);
    fixture.list(&["a", "b", "c", "d", "e"], true);
    for _ in 0..3 {
        fixture.controller.template_event(WatchEvent::Apply(template()));
        rest().await;
    }
    let calls = fixture.calls();
    assert_eq!((calls.len(), calls.into_iter().collect::<BTreeSet<_>>().len()), (3, 3));
    assert_eq!(fixture.api.most_active.load(Ordering::Relaxed), 3);
    assert_eq!(fixture.series("workqueue_depth{name=\"resource_claim\"}"), Some(2.0));
    assert_eq!(fixture.series("workqueue_adds_total{name=\"resource_claim\"}"), Some(8.0));
    sleep(Duration::from_secs(10)).await;
    let longest = fixture.series("workqueue_longest_running_processor_seconds{name=\"resource_claim\"}").unwrap();
    assert!((10.0..10.1).contains(&longest), "{longest}");
    let unfinished = fixture.series("workqueue_unfinished_work_seconds{name=\"resource_claim\"}").unwrap();
    assert!((30.0..30.1).contains(&unfinished), "{unfinished}");
}

#[tokio::test(start_paused = true)]
async fn each_line_of_a_pass_has_its_key() {
    let log = Log::default();
    let _guard = tracing::subscriber::set_default(log.clone());
    let fixture = Fixture::new(Reply::Refused);
    fixture.list(&["p"], true);
    rest().await;
    let lines = log.lines();
    assert!(!lines.is_empty());
    assert!(lines.iter().all(|line| line.contains("pod:shop/p") && line.contains(CONTROLLER_NAME)), "{lines:?}");
}

/// The log says what the controller has done: a pod gets a claim, another claim is reserved, and the claim of an ended pod is released.
#[tokio::test(start_paused = true)]
async fn each_write_is_logged_with_its_objects() {
    let log = Log::default();
    let _guard = tracing::subscriber::set_default(log.clone());
    let fixture = Fixture::new(Reply::Success);
    let claim = |name: &str, owner: &str, consumers: Value| {
        let owner = json!({ "apiVersion": "v1", "kind": "Pod", "name": owner, "uid": format!("{owner}-uid"), "controller": true });
        object::<ResourceClaim>(json!({
            "metadata": { "namespace": "shop", "name": name, "uid": format!("{name}-uid"),
                "finalizers": ["resource.kubernetes.io/delete-protection"], "ownerReferences": [owner] },
            "spec": {}, "status": { "allocation": {}, "reservedFor": consumers },
        }))
    };
    let ended_pod = json!([{ "resource": "pods", "name": "ended", "uid": "ended-uid" }]);
    fixture.controller.claim_event(WatchEvent::Apply(claim("old", "ended", ended_pod)));
    fixture.controller.claim_event(WatchEvent::Apply(claim("free", "bound", json!([]))));
    let mut ended: Pod = (*pod("ended")).clone();
    ended.status.get_or_insert_default().phase = Some("Succeeded".to_owned());
    let mut bound: Pod = (*pod("bound")).clone();
    bound.spec.get_or_insert_default().node_name = Some("n7".to_owned());
    let names = json!([{ "name": "res", "resourceClaimName": "free" }]);
    bound.status.get_or_insert_default().resource_claim_statuses = serde_json::from_value(names).unwrap();
    for pod in [Arc::new(ended), Arc::new(bound), pod("new")] {
        fixture.controller.pod_event(WatchEvent::Apply(pod));
    }
    fixture.complete_lists(true);
    rest().await;
    let lines = log.lines();
    for parts in [
        ["object=pod:shop/new ", "created a ResourceClaim", " claim=shop/new-res-1 ", "entry=\"res\""],
        ["object=pod:shop/new ", "wrote the names", "names=\"res=new-res-1\"", ""],
        ["object=pod:shop/bound ", "reserved", " claim=shop/free ", "consumer=\"pods bound (bound-uid)\""],
        [
            "object=claim:shop/old ",
            "removed ended consumers",
            "consumers=\"pods ended (ended-uid)\"",
            "deallocated=true",
        ],
        ["object=claim:shop/old ", "removed the finalizer", " claim=shop/old", ""],
        ["object=claim:shop/old ", "deleted", " claim=shop/old ", "pod=\"ended\""],
    ] {
        let with_parts = lines.iter().filter(|line| parts.iter().all(|part| line.contains(part)));
        assert_eq!(with_parts.count(), 1, "{parts:?}: {lines:#?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_drop_stops_the_controller() {
    let Fixture { api, controller, metrics, .. } = Fixture::new(Reply::Hang);
    let shared = Arc::downgrade(&controller.shared);
    drop(controller);
    rest().await;
    assert!(shared.upgrade().is_none(), "no task is left");
    assert_eq!(api.calls.lock().len(), 0);
    let zeros = metrics.encode(Format::Classic);
    let zeros = zeros.lines().filter(|line| line.starts_with("resourceclaim_controller_resource_claims{"));
    assert_eq!(zeros.filter(|line| line.ends_with(" 0")).count(), 12);
}
