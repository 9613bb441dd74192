//! The controller in paused time, with an API server in memory.

mod failures;
mod many_pods;
mod times;

use std::collections::BTreeMap;
use std::sync::atomic::AtomicUsize;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, pending, ready};
use podwright_metrics::Format;
use podwright_ports::TokioClock;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::super::test_log::Log;
use super::*;
use crate::ports::device_taints::{Answer, ApiError, ApiErrorKind, EvictionEvent};

/// 2000-01-01T00:00:00Z.
const T0: Time = Time::from_secs(946_684_800);

#[derive(Clone, Copy, Debug, PartialEq)]
enum Reply {
    Success,
    /// The server refuses deletions.
    NoDeletion,
    /// Half of the calls fail, without a change or after it.
    HalfFails,
    /// The server requests a delay of 7 s.
    Busy,
    /// The server performs the calls, and answers to deletions after 5 s.
    SlowDeletion,
    /// The calls do not end.
    Hang,
    Panic,
}

struct FakeApi {
    start: Instant,
    reply: Mutex<Reply>,
    random: Mutex<fastrand::Rng>,
    pods: Mutex<BTreeMap<ObjectKey, Arc<Pod>>>,
    calls: Mutex<Vec<(Duration, String)>>,
    events: Mutex<Vec<EvictionEvent>>,
    /// The deletions that the server has performed.
    deleted: Mutex<Vec<String>>,
    /// Notified of a deletion: the watch.
    controller: Mutex<Option<Arc<DeviceTaintController>>>,
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

fn error(kind: ApiErrorKind) -> ApiError {
    ApiError::new(kind, "refused by the test")
}

impl FakeApi {
    fn perform(&self, request: Request) -> Result<Answer, ApiError> {
        match request {
            Request::GetPod(key) => {
                let pod = self.pods.lock().get(&key).cloned().ok_or_else(|| error(ApiErrorKind::NotFound))?;
                Ok(Answer::Pod(Box::new((*pod).clone())))
            }
            Request::DeletePod(pod) => {
                let gone = self.pods.lock().remove(&pod.key).ok_or_else(|| error(ApiErrorKind::NotFound))?;
                self.deleted.lock().push(pod.key.name);
                let controller = self.controller.lock().clone();
                if let Some(controller) = controller {
                    controller.pod_event(WatchEvent::Delete(gone));
                }
                Ok(Answer::Done)
            }
            Request::PatchPodStatus(_) | Request::ApplyRuleStatus(_) => Ok(Answer::Done),
        }
    }
}

impl DeviceTaintApi for FakeApi {
    fn call(&self, request: Request) -> BoxFuture<'_, Result<Answer, ApiError>> {
        async move {
            let text = match &request {
                Request::GetPod(key) => format!("get {}", key.name),
                Request::PatchPodStatus(condition) => format!("patch {}", condition.pod.key.name),
                Request::DeletePod(pod) => format!("delete {}", pod.key.name),
                Request::ApplyRuleStatus(write) => format!("status {} {}", write.rule, write.conditions[0].reason),
            };
            self.calls.lock().push((self.start.elapsed(), text));
            let active = self.active.fetch_add(1, Ordering::Relaxed) + 1;
            self.most_active.fetch_max(active, Ordering::Relaxed);
            let _active = ActiveCall(&self.active);
            let reply = *self.reply.lock();
            match reply {
                Reply::Success => self.perform(request),
                Reply::NoDeletion if matches!(request, Request::DeletePod(_)) => Err(error(ApiErrorKind::Refused)),
                Reply::NoDeletion => self.perform(request),
                Reply::HalfFails => {
                    sleep(Duration::from_millis(1)).await;
                    let fate = self.random.lock().u8(..4);
                    match fate {
                        // 429: the server has done nothing.
                        0 => Err(error(ApiErrorKind::Refused)),
                        // 500: the server may have done it.
                        1 => {
                            let is_performed = self.random.lock().bool();
                            let answer = if is_performed { self.perform(request) } else { Ok(Answer::Done) };
                            answer.and(Err(error(ApiErrorKind::Unknown)))
                        }
                        _ => self.perform(request),
                    }
                }
                Reply::SlowDeletion => {
                    let is_deletion = matches!(request, Request::DeletePod(_));
                    let answer = self.perform(request);
                    if is_deletion {
                        sleep(Duration::from_secs(5)).await;
                    }
                    answer
                }
                Reply::Busy => {
                    let busy = error(ApiErrorKind::Refused);
                    Err(ApiError { retry_after: Duration::from_secs(7), ..busy })
                }
                Reply::Hang => pending().await,
                Reply::Panic => panic!("a fault of the client"),
            }
        }
        .boxed()
    }

    fn record(&self, event: EvictionEvent) {
        self.events.lock().push(event);
    }

    fn close_events(&self, _: Duration) -> BoxFuture<'_, usize> {
        ready(0).boxed()
    }
}

struct Fixture {
    api: Arc<FakeApi>,
    metrics: ControllersMetrics,
    controller: Arc<DeviceTaintController>,
}

impl Drop for Fixture {
    fn drop(&mut self) {
        // The controller and the API hold each other.
        self.api.controller.lock().take();
    }
}

impl Fixture {
    fn new(reply: Reply) -> Self {
        Fixture::with_lease(reply, LeaseGuard::without_election())
    }

    fn with_lease(reply: Reply, lease: LeaseGuard) -> Self {
        Fixture::with(reply, lease, Arc::new(TokioClock::starting_at(T0)))
    }

    fn with(reply: Reply, lease: LeaseGuard, clock: Arc<dyn Clock>) -> Self {
        let api = Arc::new(FakeApi {
            start: Instant::now(),
            reply: Mutex::new(reply),
            random: Mutex::new(fastrand::Rng::with_seed(podwright_random::seed())),
            pods: Mutex::default(),
            calls: Mutex::default(),
            events: Mutex::default(),
            deleted: Mutex::default(),
            controller: Mutex::default(),
            active: AtomicUsize::new(0),
            most_active: AtomicUsize::new(0),
        });
        let metrics = ControllersMetrics::new();
        let ports = DeviceTaintControllerPorts { api: api.clone(), clock, metrics: metrics.clone(), lease };
        let controller = Arc::new(DeviceTaintController::start(DeviceTaintControllerConfig::default(), ports));
        *api.controller.lock() = Some(controller.clone());
        Fixture { api, metrics, controller }
    }

    /// A pod with its claim of a device.
    fn add(&self, name: &str, tolerations: &Value) {
        let pod = pod(name);
        self.api.pods.lock().insert(object_key(&pod.metadata), pod.clone());
        self.controller.pod_event(WatchEvent::Apply(pod));
        self.controller.claim_event(WatchEvent::Apply(claim(name, tolerations)));
    }

    fn complete_lists(&self) {
        self.controller.pod_event(WatchEvent::InitDone);
        self.controller.claim_event(WatchEvent::InitDone);
        self.controller.slice_event(WatchEvent::InitDone);
        self.controller.rule_event(WatchEvent::InitDone);
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
        "metadata": { "namespace": "shop", "name": name, "uid": format!("{name}-uid") },
        "spec": { "containers": [], "nodeName": "n", "resourceClaims": [{ "name": "c", "resourceClaimName": name }] },
    }))
}

/// The claim of a pod of its name.
fn claim(name: &str, tolerations: &Value) -> Arc<ResourceClaim> {
    let result = json!({ "driver": "d", "pool": "w", "device": "i", "request": "r", "tolerations": tolerations });
    object(json!({
        "metadata": { "namespace": "shop", "name": name, "uid": format!("{name}-claim-uid") },
        "spec": {},
        "status": {
            "allocation": { "devices": { "results": [result] } },
            "reservedFor": [{ "resource": "pods", "name": name, "uid": format!("{name}-uid") }],
        },
    }))
}

fn slice(effect: &str) -> Arc<ResourceSlice> {
    let taint = json!({ "key": "t", "value": "v", "effect": effect, "timeAdded": "2000-01-01T00:00:00Z" });
    object(json!({
        "metadata": { "name": "s", "uid": "s-uid" },
        "spec": {
            "driver": "d",
            "pool": { "name": "w", "generation": 1, "resourceSliceCount": 1 },
            "devices": [{ "name": "i", "taints": [taint] }],
        },
    }))
}

fn rule() -> Arc<DeviceTaintRule> {
    let taint = json!({ "key": "t", "value": "v", "effect": "NoExecute", "timeAdded": "2000-01-01T00:00:00Z" });
    object(json!({
        "metadata": { "name": "r", "uid": "r-uid", "generation": 1 },
        "spec": { "deviceSelector": { "driver": "d" }, "taint": taint },
    }))
}

/// Lets all tasks run until they wait.
async fn rest() {
    sleep(Duration::from_millis(2)).await;
}

fn tolerate(seconds: u64) -> Value {
    json!([{ "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": seconds }])
}

#[tokio::test(start_paused = true)]
async fn no_pod_is_evicted_before_all_first_lists_are_complete() {
    let fixture = Fixture::new(Reply::Success);
    fixture.add("p", &json!([]));
    fixture.controller.slice_event(WatchEvent::Apply(slice("NoExecute")));
    fixture.controller.pod_event(WatchEvent::InitDone);
    fixture.controller.claim_event(WatchEvent::InitDone);
    fixture.controller.slice_event(WatchEvent::InitDone);
    sleep(Duration::from_secs(60)).await;
    assert_eq!((fixture.calls(), fixture.controller.is_synced()), (vec![], false));
    // The last list still shows that the claim tolerates the taint.
    fixture.controller.claim_event(WatchEvent::Apply(claim("p", &tolerate(9000))));
    fixture.controller.rule_event(WatchEvent::InitDone);
    rest().await;
    assert_eq!((fixture.calls(), fixture.controller.is_synced(), fixture.controller.pending_pods()), (vec![], true, 1));
}

/// TAINT-S16.
#[tokio::test(start_paused = true)]
async fn objects_of_the_first_lists_evict_without_delay() {
    let fixture = Fixture::new(Reply::Success);
    fixture.add("p", &json!([]));
    fixture.controller.slice_event(WatchEvent::Apply(slice("NoExecute")));
    fixture.complete_lists();
    rest().await;
    assert_eq!(fixture.calls(), ["get p", "patch p", "delete p"]);
    assert!(fixture.api.calls.lock().iter().all(|(at, _)| *at <= Duration::from_millis(1)));
    assert_eq!(fixture.series("device_taint_eviction_controller_pod_deletions_total"), Some(1.0));
    assert_eq!(fixture.series("device_taint_eviction_controller_pod_deletion_duration_seconds_count"), Some(1.0));
    assert_eq!((fixture.controller.pending_pods(), fixture.controller.queued()), (0, 0));
}

/// TAINT-S17.
#[tokio::test(start_paused = true)]
async fn objects_that_come_later_evict_without_delay() {
    let fixture = Fixture::new(Reply::Success);
    fixture.complete_lists();
    rest().await;
    fixture.controller.slice_event(WatchEvent::Apply(slice("NoExecute")));
    fixture.add("p", &json!([]));
    rest().await;
    assert_eq!(fixture.calls(), ["get p", "patch p", "delete p"]);
}

#[tokio::test(start_paused = true)]
async fn a_tolerated_taint_evicts_at_the_end_of_its_time() {
    let fixture = Fixture::new(Reply::Success);
    fixture.controller.slice_event(WatchEvent::Apply(slice("NoExecute")));
    fixture.add("p", &tolerate(3600));
    fixture.complete_lists();
    sleep(Duration::from_secs(3599)).await;
    assert_eq!(fixture.calls(), Vec::<String>::new());
    sleep(Duration::from_millis(1002)).await;
    assert_eq!(fixture.calls(), ["get p", "patch p", "delete p"]);
}

#[tokio::test(start_paused = true)]
async fn stop_ends_passes_and_no_call_follows() {
    let fixture = Fixture::new(Reply::Hang);
    fixture.controller.slice_event(WatchEvent::Apply(slice("NoExecute")));
    fixture.add("p", &json!([]));
    fixture.complete_lists();
    rest().await;
    assert_eq!(fixture.api.active.load(Ordering::Relaxed), 1);
    fixture.controller.stop().await;
    assert_eq!(fixture.api.active.load(Ordering::Relaxed), 0, "the call is dropped");
    fixture.add("q", &json!([]));
    sleep(Duration::from_secs(2000)).await;
    assert_eq!(fixture.calls(), ["get p"]);
    assert_eq!(Arc::strong_count(&fixture.controller.shared), 1, "no task is left");
}

#[tokio::test(start_paused = true)]
async fn no_call_begins_while_the_lease_is_not_held() {
    let clock = TokioClock::starting_at(T0);
    let lease = LeaseGuard::new(clock);
    let fixture = Fixture::with_lease(Reply::Success, lease.of_term(1));
    fixture.controller.slice_event(WatchEvent::Apply(slice("NoExecute")));
    fixture.add("p", &json!([]));
    fixture.complete_lists();
    sleep(Duration::from_secs(60)).await;
    assert_eq!(fixture.calls(), [""; 0]);
    lease.set(Some((1, clock.now() + Duration::from_secs(10))));
    sleep(Duration::from_secs(1)).await;
    assert_eq!(*fixture.api.deleted.lock(), ["p"]);
}

/// Who deleted a pod, and why, is in the log.
#[tokio::test(start_paused = true)]
async fn evictions_and_cancellations_are_logged_with_the_pod_and_the_reasons() {
    let log = Log::default();
    let _guard = tracing::subscriber::set_default(log.clone());
    let fixture = Fixture::new(Reply::Success);
    fixture.add("kept", &tolerate(3600));
    fixture.controller.slice_event(WatchEvent::Apply(slice("NoExecute")));
    fixture.complete_lists();
    rest().await;
    fixture.controller.slice_event(WatchEvent::Apply(slice("None")));
    rest().await;
    fixture.add("gone", &json!([]));
    fixture.controller.slice_event(WatchEvent::Apply(slice("NoExecute")));
    fixture.controller.rule_event(WatchEvent::Apply(rule()));
    sleep(Duration::from_secs(20)).await;
    let lines = log.lines();
    for parts in [
        ["object=shop/kept", "the eviction of the pod was cancelled"],
        ["object=pod:shop/gone", "reasons=DeviceTaintRule r; ResourceSlice s, taint 0 of device d/w/i"],
        ["object=pod:shop/gone", "DisruptionTarget"],
        ["object=rule:r", "EvictionInProgress"],
    ] {
        assert!(lines.iter().any(|line| parts.iter().all(|part| line.contains(part))), "{parts:?}: {lines:#?}");
    }
}
