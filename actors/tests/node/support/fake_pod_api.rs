//! The API server of a node in paused time: a [`PodApi`] over the store of the stand-in.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use k8s_openapi::api::core::v1::{Pod, PodStatus};
use parking_lot::Mutex;
use podwright_model::pod::{Phase, PodObject};
use podwright_ports::{ApiError, ApiFuture, Clock, PodApi, TokioClock};
use podwright_stand_in::{Answer, Call, Env, Grant, Refusal, Settings, Store, User};
use serde_json::{Value, json};
use tokio::time::sleep;

const STRATEGIC: &str = "application/strategic-merge-patch+json";

pub(crate) struct FakePodApi {
    store: Mutex<Store>,
    clock: TokioClock,
    state: Mutex<State>,
}

/// The part of the node that calls. Each part makes one call for a name at one time.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Writer {
    Status,
    Mirrors,
    /// The registration of one of the agents that share the server.
    Node(usize),
}

#[derive(Default)]
struct State {
    latency: Duration,
    /// The object whose calls are performed and not answered.
    unanswered: Option<&'static str>,
    /// The error of each call, if calls fail. A failed call changes nothing.
    failure: Option<ApiError>,
    /// Whether the answers of calls that were performed are lost.
    loses_answers: bool,
    /// Whether watches are broken although calls may succeed.
    is_watch_broken: bool,
    /// The call that panics once, as `METHOD NAME`.
    panics_in: Option<&'static str>,
    /// How many calls succeed before all calls fail, if there is a limit.
    successes_left: Option<usize>,
    /// The phases that each pod has had in the server, by UID.
    phases: BTreeMap<String, Vec<Phase>>,
    /// The calls as `METHOD NAME`, with their times in seconds since the start.
    calls: Vec<(f64, String)>,
    /// The fields of the status that the server drops from patches, as an old server does.
    unknown_fields: Vec<&'static str>,
    /// Two fields of the status, if a write of one removes the other.
    opposed: Option<[&'static str; 2]>,
    active: BTreeMap<(Writer, String), usize>,
    most_active: usize,
}

/// A call in flight. It ends with its answer, or when its caller goes away.
struct Active<'a> {
    state: &'a Mutex<State>,
    key: (Writer, String),
}

impl Drop for Active<'_> {
    fn drop(&mut self) {
        self.state.lock().active.remove(&self.key);
    }
}

impl FakePodApi {
    pub(crate) fn new(clock: TokioClock) -> Self {
        let mut store = Store::new(Settings::default(), 1, clock.now().to_timestamp());
        store.ensure_namespace("test", clock.now().to_timestamp());
        FakePodApi { store: Mutex::new(store), clock, state: Mutex::default() }
    }

    /// Permits a verb on a resource to a user.
    pub(crate) fn grant(&self, grant: Grant) {
        self.store.lock().grant(grant);
    }

    /// Sets the time that each call takes.
    pub(crate) fn latency(&self, millis: u64) {
        self.state.lock().latency = Duration::from_millis(millis);
    }

    /// Performs the calls for an object without an answer, until another object or none is named.
    pub(crate) fn hold_answers(&self, of: Option<&'static str>) {
        self.state.lock().unanswered = of;
    }

    /// Makes all calls fail from now on, or succeed again.
    pub(crate) fn fail(&self, failure: Option<ApiError>) {
        self.state.lock().failure = failure;
    }

    /// Performs all calls from now on and reports a failure, or answers again.
    pub(crate) fn lose_answers(&self, loses: bool) {
        self.state.lock().loses_answers = loses;
    }

    /// Makes the next one of these calls panic, such as `PUT lease`.
    pub(crate) fn panic_in(&self, call: &'static str) {
        self.state.lock().panics_in = Some(call);
    }

    /// Makes all calls fail after this many have succeeded. `None` ends this.
    pub(crate) fn fail_after(&self, successes: Option<usize>) {
        self.state.lock().successes_left = successes;
    }

    /// Checks that no status has gone back: a pod that ran is not pending again, and a pod that ended keeps its phase.
    pub(crate) fn check_phases(&self) {
        for (uid, phases) in &self.state.lock().phases {
            let goes_on = |pair: &[Phase]| match (pair[0], pair[1]) {
                (Phase::Succeeded | Phase::Failed, next) => next == pair[0],
                (Phase::Running, next) => next != Phase::Pending,
                (Phase::Pending | Phase::Unknown, _) => true,
            };
            assert!(phases.windows(2).all(goes_on), "{uid}: {phases:?}");
        }
    }

    /// Deletes a pod as a user does who does not wait for its containers. Does nothing if the pod does not exist.
    pub(crate) fn force_delete(&self, name: &str) {
        let options = json!({"gracePeriodSeconds": 0});
        let _gone = self.request("DELETE", &path(name), "application/json", &options);
    }

    /// Breaks the watch of the node, or repairs it.
    pub(crate) fn break_watch(&self, is_broken: bool) {
        self.state.lock().is_watch_broken = is_broken;
    }

    /// Whether the watch of the node is broken now.
    pub(crate) fn is_watch_broken(&self) -> bool {
        let state = self.state.lock();
        state.is_watch_broken || state.failure.is_some()
    }

    /// Makes the server drop a field of the status from patches.
    pub(crate) fn drop_field(&self, field: &'static str) {
        self.state.lock().unknown_fields.push(field);
    }

    /// Makes the server remove one of two fields of the status when the other one is written, as a webhook may.
    pub(crate) fn oppose(&self, fields: [&'static str; 2]) {
        self.state.lock().opposed = Some(fields);
    }

    /// The calls since the last time, as `METHOD NAME`.
    pub(crate) fn take_calls(&self) -> Vec<String> {
        self.take_timed_calls().into_iter().map(|(_, call)| call).collect()
    }

    /// The calls since the last time, with their times in seconds since 1970.
    pub(crate) fn take_timed_calls(&self) -> Vec<(f64, String)> {
        std::mem::take(&mut self.state.lock().calls)
    }

    /// The largest number of calls at one time.
    pub(crate) fn most_active(&self) -> usize {
        self.state.lock().most_active
    }

    /// A request of an administrator.
    pub(crate) fn request(&self, method: &str, path: &str, content_type: &str, body: &Value) -> Result<Value, Refusal> {
        self.request_of(User::admin(), method, path, content_type, body)
    }

    pub(crate) fn request_of(
        &self,
        user: User,
        method: &str,
        path: &str,
        content_type: &str,
        body: &Value,
    ) -> Result<Value, Refusal> {
        let body = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
        let call = Call::parse(method, path, "", content_type, &body)?;
        let env = Env { now: self.clock.now().to_timestamp(), user, agent: "test".to_owned() };
        match self.store.lock().apply(&call, &env)? {
            Answer::Object(_, body) => Ok(body),
            Answer::Watch(_) => unreachable!("no test watches through the port"),
        }
    }

    /// Creates a pod on the node with one container `main` and no service account token; `more` overwrites fields of its spec.
    pub(crate) fn create_pod(&self, name: &str, more: &Value) {
        let mut spec = json!({"nodeName": "node1", "automountServiceAccountToken": false, "containers": [{"name": "main", "image": "img"}]});
        for (field, value) in more.as_object().into_iter().flatten() {
            spec[field] = value.clone();
        }
        let pod = json!({"metadata": {"name": name, "namespace": "test"}, "spec": spec});
        self.request("POST", "/api/v1/namespaces/test/pods", "application/json", &pod).unwrap();
    }

    /// Deletes a pod as a user does, with the grace period of its spec.
    pub(crate) fn delete_pod(&self, name: &str) {
        self.request("DELETE", &path(name), "application/json", &Value::Null).unwrap();
    }

    /// Patches the status of a pod as another program does.
    pub(crate) fn patch_status_of(&self, name: &str, status: &Value) {
        self.request("PATCH", &format!("{}/status", path(name)), STRATEGIC, &json!({"status": status})).unwrap();
    }

    /// A pod of the store as the API source delivers it.
    pub(crate) fn pod(&self, name: &str) -> Option<Arc<PodObject>> {
        let pod = self.store.lock().find("pods", "test", name)?;
        Some(object(Value::clone(&pod)))
    }

    pub(crate) fn status(&self, name: &str) -> PodStatus {
        self.pod(name).and_then(|pod| pod.status().cloned()).unwrap_or_default()
    }

    pub(crate) fn phase(&self, name: &str) -> String {
        self.status(name).phase.unwrap_or_default()
    }

    /// All pods as the API source delivers them.
    pub(crate) fn pods(&self) -> Vec<Arc<PodObject>> {
        self.store.lock().all("pods").map(|pod| object(Value::clone(pod))).collect()
    }

    pub(crate) fn call<'a, T>(
        &'a self,
        method: &'static str,
        name: &str,
        writer: Writer,
        perform: impl FnOnce() -> Result<T, Refusal> + Send + 'a,
    ) -> ApiFuture<'a, T>
    where
        T: Send + 'a,
    {
        let name = name.to_owned();
        let key = (writer, name.clone());
        async move {
            let (latency, failure) = {
                let mut state = self.state.lock();
                let panics = state.panics_in.take_if(|call| *call == format!("{method} {name}"));
                assert!(panics.is_none(), "a fault of the client");
                let at = self.clock.now().as_nanos() as f64 / 1e9;
                state.calls.push((at, format!("{method} {name}")));
                *state.active.entry(key.clone()).or_default() += 1;
                assert_eq!(state.active[&key], 1, "two calls for {name} at one time");
                state.most_active = state.most_active.max(state.active.len());
                let mut failure = state.failure.clone();
                match &mut state.successes_left {
                    Some(0) => failure = Some(ApiError::unavailable("connection refused", None)),
                    Some(left) => *left -= 1,
                    None => {}
                }
                (state.latency, failure)
            };
            let active = Active { state: &self.state, key };
            sleep(latency).await;
            let answer = match failure {
                Some(failure) => Err(failure),
                None => perform().map_err(error),
            };
            while self.state.lock().unanswered == Some(&active.key.1) {
                sleep(Duration::from_millis(100)).await;
            }
            drop(active);
            if self.state.lock().loses_answers {
                return Err(ApiError::unavailable("the answer was lost", None));
            }
            answer
        }
        .boxed()
    }
}

impl PodApi for FakePodApi {
    fn patch_status<'a>(&'a self, pod: &'a PodObject, mut patch: Value) -> ApiFuture<'a, Arc<PodObject>> {
        let name = pod.full_name().name();
        if let Some(status) = patch["status"].as_object_mut() {
            let state = self.state.lock();
            status.retain(|field, _| !state.unknown_fields.contains(&field.as_str()));
            if let Some([one, other]) = state.opposed {
                let (written, removed) = if status.contains_key(one) { (one, other) } else { (other, one) };
                if status.contains_key(written) {
                    status.insert(removed.to_owned(), Value::Null);
                }
            }
        }
        self.call("PATCH", name, Writer::Status, move || {
            let written = self.request("PATCH", &format!("{}/status", path(name)), STRATEGIC, &patch).map(object)?;
            self.state.lock().phases.entry(written.uid().to_string()).or_default().push(written.phase());
            Ok(written)
        })
    }

    fn delete<'a>(&'a self, pod: &'a PodObject) -> ApiFuture<'a, ()> {
        let name = pod.full_name().name();
        let writer = if pod.is_mirror() { Writer::Mirrors } else { Writer::Status };
        self.call("DELETE", name, writer, move || {
            let options = json!({"gracePeriodSeconds": 0, "preconditions": {"uid": pod.uid().to_string()}});
            self.request("DELETE", &path(name), "application/json", &options).map(drop)
        })
    }

    fn create<'a>(&'a self, pod: &'a Pod) -> ApiFuture<'a, Arc<PodObject>> {
        let name = pod.metadata.name.as_deref().unwrap_or_default();
        self.call("POST", name, Writer::Mirrors, move || {
            let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
            let pod = serde_json::to_value(pod).expect("a pod is JSON");
            let path = format!("/api/v1/namespaces/{namespace}/pods");
            self.request("POST", &path, "application/json", &pod).map(object)
        })
    }
}

fn path(name: &str) -> String {
    format!("/api/v1/namespaces/test/pods/{name}")
}

fn object(mut pod: Value) -> Arc<PodObject> {
    pod["metadata"]["annotations"]["kubernetes.io/config.source"] = json!("api");
    PodObject::new(serde_json::from_value(pod).unwrap()).unwrap()
}

fn error(refusal: Refusal) -> ApiError {
    match refusal.code {
        404 => ApiError::NotFound,
        409 => ApiError::conflict(refusal.message),
        429 | 500.. => ApiError::unavailable(refusal.message, None),
        _ => ApiError::refused(refusal.message),
    }
}
