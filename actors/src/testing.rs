//! Recording hooks and pod builders for the tests of this crate.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Container, Pod, PodSpec, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time as ApiTime};
use parking_lot::Mutex;

use crate::ids::PodUid;
use crate::pod::{MIRROR_ANNOTATION, PodObject, SOURCE_ANNOTATION};
use crate::ports::{HookContext, PodSyncer, RunningPod, SyncError, SyncKind, SyncOutcome, SyncPod, TerminatingPod};

/// Begins a pod named `name` in namespace `test` with UID `name`, one container and a grace of 30 s.
pub(crate) fn pod(name: &str) -> PodBuilder {
    PodBuilder(Pod {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            namespace: Some("test".to_owned()),
            uid: Some(name.to_owned()),
            ..ObjectMeta::default()
        },
        spec: Some(PodSpec {
            containers: vec![Container { name: "main".to_owned(), ..Container::default() }],
            termination_grace_period_seconds: Some(30),
            ..PodSpec::default()
        }),
        status: None,
    })
}

pub(crate) struct PodBuilder(Pod);

impl PodBuilder {
    pub(crate) fn build(self) -> Arc<PodObject> {
        PodObject::new(self.0).expect("the builder sets all that is needed")
    }

    pub(crate) fn uid(mut self, uid: &str) -> Self {
        self.0.metadata.uid = Some(uid.to_owned());
        self
    }

    pub(crate) fn deleting(mut self, grace: i64) -> Self {
        self.0.metadata.deletion_timestamp = Some(ApiTime(jiff::Timestamp::UNIX_EPOCH));
        self.0.metadata.deletion_grace_period_seconds = Some(grace);
        self
    }

    pub(crate) fn static_pod(mut self) -> Self {
        self.0.metadata.annotations = Some(BTreeMap::from([(SOURCE_ANNOTATION.to_owned(), "file".to_owned())]));
        self
    }

    pub(crate) fn mirror(mut self) -> Self {
        self.0.metadata.annotations = Some(BTreeMap::from([
            (SOURCE_ANNOTATION.to_owned(), "api".to_owned()),
            (MIRROR_ANNOTATION.to_owned(), "hash".to_owned()),
        ]));
        self
    }

    pub(crate) fn phase(mut self, phase: &str) -> Self {
        self.0.status = Some(PodStatus { phase: Some(phase.to_owned()), ..PodStatus::default() });
        self
    }

    pub(crate) fn label(mut self, key: &str, value: &str) -> Self {
        self.0.metadata.labels.get_or_insert_default().insert(key.to_owned(), value.to_owned());
        self
    }

    pub(crate) fn spec(mut self, edit: impl FnOnce(&mut PodSpec)) -> Self {
        edit(self.0.spec.as_mut().expect("`pod` makes one"));
        self
    }
}

/// One hook call as it was recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    Sync { kind: SyncKind, version: Option<String> },
    Stop { grace: u32, forced: bool },
    StopRuntime,
    CleanUp,
}

impl Call {
    pub(crate) fn create() -> Self {
        Call::Sync { kind: SyncKind::Create, version: None }
    }

    pub(crate) fn stop(grace: u32) -> Self {
        Call::Stop { grace, forced: true }
    }

    pub(crate) fn clean_up() -> Self {
        Call::CleanUp
    }
}

/// Hooks that record their calls and do as they were told.
#[derive(Default)]
pub(crate) struct Hooks(Mutex<Script>);

#[derive(Default)]
struct Script {
    calls: HashMap<PodUid, Vec<Call>>,
    stop_takes: Duration,
    results: VecDeque<Result<SyncOutcome, SyncError>>,
}

impl Hooks {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Hooks::default())
    }

    /// What was called for a pod, in order. `version` is its label `v`.
    pub(crate) fn calls(&self, uid: &PodUid) -> Vec<Call> {
        self.0.lock().calls.get(uid).cloned().unwrap_or_default()
    }

    pub(crate) fn stops_take(&self, duration: Duration) {
        self.0.lock().stop_takes = duration;
    }

    fn record(&self, uid: &PodUid, call: Call) {
        self.0.lock().calls.entry(uid.clone()).or_default().push(call);
    }
}

impl PodSyncer for Hooks {
    async fn sync_pod(&self, cx: &HookContext, work: &SyncPod) -> Result<SyncOutcome, SyncError> {
        let version = work.pod.metadata().labels.as_ref().and_then(|labels| labels.get("v").cloned());
        self.record(&cx.uid, Call::Sync { kind: work.kind, version });
        let next = self.0.lock().results.pop_front();
        next.unwrap_or(Ok(SyncOutcome::Continue { check_at: None }))
    }

    async fn sync_terminating_pod(&self, cx: &HookContext, work: &TerminatingPod) -> Result<(), SyncError> {
        self.record(&cx.uid, Call::Stop { grace: work.grace.seconds(), forced: work.forced });
        let takes = self.0.lock().stop_takes;
        tokio::select! {
            () = tokio::time::sleep(takes) => Ok(()),
            () = cx.cancelled() => Err(SyncError::Cancelled),
        }
    }

    async fn sync_terminating_runtime_pod(&self, cx: &HookContext, _running: &RunningPod) -> Result<(), SyncError> {
        self.record(&cx.uid, Call::StopRuntime);
        Ok(())
    }

    async fn sync_terminated_pod(&self, cx: &HookContext, _pod: &Arc<PodObject>) -> Result<(), SyncError> {
        self.record(&cx.uid, Call::CleanUp);
        Ok(())
    }
}
