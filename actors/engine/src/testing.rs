//! Recording hooks for the tests of the engine.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::PodStatus;
use parking_lot::Mutex;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::ids::PodUid;
use crate::pod::PodObject;
use crate::pod_worker::Hook;
use crate::ports::{
    HookContext, Observed, PodSyncer, RunningPod, RuntimeView, SyncError, SyncKind, SyncOutcome, SyncPod,
    TerminatingPod,
};
use crate::time::{Grace, Time};

pub(crate) use podwright_fixtures::{PodBuilder, created, pod};

/// A recorded hook call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    Sync { kind: SyncKind, version: Option<String> },
    Stop { grace: u32, forced: bool },
    StopRuntime,
    CleanUp,
}

impl Call {
    pub(crate) fn sync(kind: SyncKind) -> Self {
        Call::Sync { kind, version: None }
    }

    pub(crate) fn create() -> Self {
        Call::sync(SyncKind::Create)
    }

    /// A setup with the pod whose label `v` has this value.
    pub(crate) fn version(kind: SyncKind, version: &str) -> Self {
        Call::Sync { kind, version: Some(version.to_owned()) }
    }

    /// A stop with a grace period that a caller requested.
    pub(crate) fn stop(grace: u32) -> Self {
        Call::Stop { grace, forced: true }
    }

    /// A stop with the grace period of the pod's own fields.
    pub(crate) fn unforced_stop(grace: u32) -> Self {
        Call::Stop { grace, forced: false }
    }

    pub(crate) fn clean_up() -> Self {
        Call::CleanUp
    }
}

/// The scripted behaviour of one hook call.
pub(crate) enum Does {
    /// Setup succeeds, and requests its next call at that time.
    Continues(Option<Time>),
    /// Setup finds that the pod ended.
    Ends,
    Fails(SyncError),
    Panics(&'static str),
    /// Takes this time, unless the call is cancelled.
    Takes(Duration),
    /// Waits until the gate opens or the call is cancelled.
    Waits(Gate),
    /// Waits until the gate opens and ignores cancellation.
    IsDeaf(Gate),
    /// Runs this function on the thread of the worker.
    Runs(Box<dyn FnOnce() -> Result<SyncOutcome, SyncError> + Send>),
}

/// Blocks hook calls until it is opened.
#[derive(Clone, Default)]
pub(crate) struct Gate(CancellationToken);

impl Gate {
    pub(crate) fn open(&self) {
        self.0.cancel();
    }
}

/// Hooks that record their calls and follow a script. A call without a script succeeds at once.
#[derive(Default)]
pub(crate) struct Hooks(Mutex<Script>);

#[derive(Default)]
struct Script {
    calls: HashMap<PodUid, Vec<(Call, Instant)>>,
    /// The behaviour of the next calls of a pod's hook, one for each call.
    plans: HashMap<(PodUid, Hook), VecDeque<Does>>,
    stop_takes: Duration,
    /// The reasons that the status functions of stop calls set in an empty status.
    reasons: HashMap<PodUid, Vec<Option<String>>>,
    inside: HashSet<PodUid>,
    cancelled: HashMap<PodUid, usize>,
    /// The number of calls that began during another call of the same pod (POD-I3).
    overlaps: usize,
}

impl Hooks {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Hooks::default())
    }

    /// The calls of a pod, in order. `version` is its label `v`.
    pub(crate) fn calls(&self, uid: &PodUid) -> Vec<Call> {
        let script = self.0.lock();
        assert_eq!(script.overlaps, 0, "two hook calls of one pod at the same time");
        script.calls.get(uid).map(|calls| calls.iter().map(|(call, _)| call.clone()).collect()).unwrap_or_default()
    }

    /// Seconds between the calls of a pod.
    pub(crate) fn gaps(&self, uid: &PodUid) -> Vec<f64> {
        let script = self.0.lock();
        let calls = script.calls.get(uid).map(Vec::as_slice).unwrap_or_default();
        calls.windows(2).map(|pair| (pair[1].1 - pair[0].1).as_secs_f64()).collect()
    }

    /// The reasons that the status functions set, one for each stop call.
    pub(crate) fn reasons(&self, uid: &PodUid) -> Vec<Option<String>> {
        self.0.lock().reasons.get(uid).cloned().unwrap_or_default()
    }

    /// The number of calls of a pod that ended by cancellation.
    pub(crate) fn cancelled(&self, uid: &PodUid) -> usize {
        self.0.lock().cancelled.get(uid).copied().unwrap_or_default()
    }

    /// Whether a call of a pod is under way.
    pub(crate) fn is_inside(&self, uid: &PodUid) -> bool {
        self.0.lock().inside.contains(uid)
    }

    pub(crate) fn stops_take(&self, duration: Duration) {
        self.0.lock().stop_takes = duration;
    }

    /// Scripts the next call of this hook that has no script yet.
    pub(crate) fn next(&self, uid: &PodUid, hook: Hook, does: Does) {
        self.0.lock().plans.entry((uid.clone(), hook)).or_default().push_back(does);
    }

    /// Makes the next `times` calls of this hook fail.
    pub(crate) fn fails(&self, uid: &PodUid, hook: Hook, times: usize) {
        for _ in 0..times {
            self.next(uid, hook, Does::Fails(SyncError::failed("out of luck")));
        }
    }

    /// Makes the next call of this hook wait for the returned gate.
    pub(crate) fn waits(&self, uid: &PodUid, hook: Hook) -> Gate {
        let gate = Gate::default();
        self.next(uid, hook, Does::Waits(gate.clone()));
        gate
    }

    async fn act(&self, cx: &HookContext, hook: Hook, call: Call) -> Result<SyncOutcome, SyncError> {
        let (does, _inside) = self.enter(cx, hook, call);
        let done = SyncOutcome::Continue { check_at: None };
        let cancelled = match does {
            Does::Continues(check_at) => return Ok(SyncOutcome::Continue { check_at }),
            Does::Ends => return Ok(SyncOutcome::Terminal),
            Does::Fails(error) => return Err(error),
            // Does not run the panic hook, which would print the panic.
            Does::Panics(what) => std::panic::resume_unwind(Box::new(what)),
            Does::Takes(Duration::ZERO) => return Ok(done),
            Does::Takes(duration) => tokio::select! {
                () = tokio::time::sleep(duration) => false,
                () = cx.cancelled() => true,
            },
            Does::Waits(gate) => tokio::select! {
                () = gate.0.cancelled() => false,
                () = cx.cancelled() => true,
            },
            Does::IsDeaf(gate) => {
                gate.0.cancelled().await;
                false
            }
            Does::Runs(action) => return action(),
        };
        if cancelled {
            *self.0.lock().cancelled.entry(cx.uid.clone()).or_default() += 1;
            return Err(SyncError::Cancelled);
        }
        Ok(done)
    }

    fn enter(&self, cx: &HookContext, hook: Hook, call: Call) -> (Does, Inside<'_>) {
        let mut script = self.0.lock();
        if !script.inside.insert(cx.uid.clone()) {
            script.overlaps += 1;
        }
        script.calls.entry(cx.uid.clone()).or_default().push((call, Instant::now()));
        let planned = script.plans.get_mut(&(cx.uid.clone(), hook)).and_then(VecDeque::pop_front);
        let does = planned.unwrap_or(match hook {
            Hook::Terminating => Does::Takes(script.stop_takes),
            Hook::Sync | Hook::TerminatingRuntime | Hook::Terminated => Does::Continues(None),
        });
        (does, Inside { hooks: self, uid: cx.uid.clone() })
    }
}

/// Marks a call as under way until it returns, panics or is dropped.
struct Inside<'a> {
    hooks: &'a Hooks,
    uid: PodUid,
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.hooks.0.lock().inside.remove(&self.uid);
    }
}

impl PodSyncer for Hooks {
    async fn sync_pod(&self, cx: &HookContext, work: &SyncPod) -> Result<SyncOutcome, SyncError> {
        let version = work.pod.metadata().labels.as_ref().and_then(|labels| labels.get("v").cloned());
        self.act(cx, Hook::Sync, Call::Sync { kind: work.kind, version }).await
    }

    async fn sync_terminating_pod(&self, cx: &HookContext, work: &TerminatingPod) -> Result<(), SyncError> {
        let mut status = PodStatus::default();
        if let Some(edit) = &work.status_fn {
            edit(&mut status);
        }
        self.0.lock().reasons.entry(cx.uid.clone()).or_default().push(status.reason);
        let call = Call::Stop { grace: work.grace.seconds(), forced: work.forced };
        self.act(cx, Hook::Terminating, call).await.map(drop)
    }

    async fn sync_terminating_runtime_pod(
        &self,
        cx: &HookContext,
        _running: &RunningPod,
        _: Grace,
    ) -> Result<(), SyncError> {
        self.act(cx, Hook::TerminatingRuntime, Call::StopRuntime).await.map(drop)
    }

    async fn sync_terminated_pod(&self, cx: &HookContext, _pod: &Arc<PodObject>) -> Result<(), SyncError> {
        self.act(cx, Hook::Terminated, Call::CleanUp).await.map(drop)
    }
}

/// A view of the runtime that shows what a test sets.
#[derive(Default)]
pub(crate) struct View(Mutex<HashMap<PodUid, Observed>>);

impl View {
    pub(crate) fn shows(&self, uid: &PodUid, observed: Observed) {
        self.0.lock().insert(uid.clone(), observed);
    }
}

impl RuntimeView for View {
    fn observed(&self, uid: &PodUid) -> Observed {
        self.0.lock().get(uid).copied().unwrap_or(Observed::Never)
    }
}
