//! Performs the writes: one task, at most [`MAX_ACTIVE`] calls at once, one call per pod.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use foldhash::fast::RandomState;
use parking_lot::Mutex;
use podwright_metrics::Metrics;
use podwright_model::resource_version::ResourceVersion;
use podwright_work_loop::{Work, work};
use podwright_work_queue::{Backoff, Outcome, WorkQueue};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::patch::PatchFields;
use super::write::{WriteFacts, Writes, next_writes};
use crate::desired::DesiredPods;
use crate::engine::Engine;
use crate::ids::PodUid;
use crate::pod::PodObject;
use crate::ports::{ApiError, Clock, PodApi, ResourcePhase};
use crate::status::StatusToWrite;
use crate::statuses::{Statuses, Unwritten};
use crate::text::error_chain;
use crate::time::Time;

/// The largest number of calls at one time. With a server latency of 20 ms, 200 changes are written in 7 rounds, that is 140 ms.
const MAX_ACTIVE: usize = 32;
/// The delays of a pod whose writes fail. The longest one is the period of the kubelet's batch (`syncPeriod`, 1.36).
const BACKOFF: Backoff = Backoff { first: Duration::from_millis(100), longest: Duration::from_secs(10) };
/// The largest number of patches in one write. The second one corrects what the answer to the first one shows.
const MAX_PATCHES: usize = 2;
/// The delay after a refusal, which lasts until somebody corrects its cause.
const AFTER_REFUSAL: Duration = Duration::from_secs(10);

/// Writes the statuses of pods to the API server.
pub(crate) struct StatusWriter {
    /// Holds the resources of pods; `None` if pods may need none. A pod that holds resources is neither terminal nor deleted.
    pub(crate) resources: Option<Arc<dyn ResourcePhase>>,
    pub(crate) engine: Engine,
    pub(crate) desired: Arc<DesiredPods>,
    pub(crate) statuses: Arc<Statuses>,
    pub(crate) unwritten: Arc<Unwritten>,
    pub(crate) api: Arc<dyn PodApi>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) metrics: Metrics,
    pub(crate) state: WriterState,
}

/// What the writer remembers between writes.
pub(crate) struct WriterState {
    queue: Mutex<WorkQueue<PodUid>>,
    last_writes: Mutex<HashMap<PodUid, LastWrite, RandomState>>,
    /// The error of the last write of each pod whose writes fail.
    errors: Mutex<HashMap<PodUid, String, RandomState>>,
    /// The number of pods in the queue.
    queued: watch::Sender<usize>,
}

impl Default for WriterState {
    fn default() -> Self {
        WriterState {
            queue: Mutex::new(WorkQueue::new(BACKOFF)),
            last_writes: Mutex::default(),
            errors: Mutex::default(),
            queued: watch::Sender::new(0),
        }
    }
}

/// The failed writes of a pod's status.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FailedWrite {
    /// When the first write failed.
    pub since: Time,
    /// The number of failed writes.
    pub tries: u32,
    /// When the next write is due. `None` while it runs.
    pub next: Option<Time>,
    /// The error of the last write.
    pub error: String,
}

/// The last write of a pod.
#[derive(Clone, Debug)]
struct LastWrite {
    /// The version of the kept status that was written.
    version: u64,
    /// Whether a terminal phase was held back.
    is_held_back: bool,
    /// The version of the pod that the server answered with.
    resource_version: Option<String>,
    /// The pod of the answer, until its source has delivered that version.
    response: Option<Arc<PodObject>>,
    /// The fields that were written in vain: those of the patches since the last one whose answer had the status, or since another program
    /// changed the pod. Empty if the answer has the status.
    in_vain: PatchFields,
}

impl StatusWriter {
    /// Writes until `stop` is cancelled. Calls that run at that time are dropped.
    pub(crate) async fn run(self: Arc<Self>, stop: CancellationToken) {
        let fill = |queue: &mut WorkQueue<PodUid>| {
            self.unwritten.take().for_each(|(uid, urgency)| queue.add(&uid, urgency));
            self.state.queued.send_replace(queue.len());
        };
        let writes = Work {
            queue: &self.state.queue,
            limit: MAX_ACTIVE,
            fill,
            added: || self.unwritten.added(),
            perform: |uid: PodUid| self.clone().write(uid),
            clock: &*self.clock,
            panics: self.metrics.actors.panics(),
            durations: None,
        };
        work(writes, stop).await;
    }

    /// Why the status of a pod is not in the API server, if its writes fail.
    pub(crate) fn failure(&self, uid: &PodUid) -> Option<FailedWrite> {
        let (failures, next) = self.state.queue.lock().failures(uid)?;
        let error = self.state.errors.lock().get(uid).cloned().unwrap_or_default();
        Some(FailedWrite { since: failures.since, tries: failures.count, next, error })
    }

    /// Waits until every change of a status is written. A pod whose writes fail counts as unwritten.
    ///
    /// Cancel safe.
    pub(crate) async fn flush(&self) {
        let mut queued = self.state.queued.subscribe();
        while !self.is_idle() {
            let _closed = queued.changed().await;
        }
    }

    /// Whether nothing has to be written. The queue is locked while pods move into it, so no pod is missed.
    fn is_idle(&self) -> bool {
        let queue = self.state.queue.lock();
        queue.is_empty() && self.unwritten.is_empty()
    }

    /// Updates the API server's pod: patches its status, then deletes it if it has ended and its deletion was requested.
    async fn write(self: Arc<Self>, uid: PodUid) -> Outcome {
        let (Some((pod, api)), Some(kept)) = (self.objects(&uid), self.statuses.begin_write(&uid)) else {
            self.state.last_writes.lock().remove(&uid);
            self.state.errors.lock().remove(&uid);
            return Outcome::Finished;
        };
        match self.update(&uid, &pod, self.newest(&uid, api), &kept).await {
            Ok(()) => {
                self.state.errors.lock().remove(&uid);
                Outcome::Finished
            }
            Err(error) => {
                let at_least = match &error {
                    ApiError::Refused(_) => AFTER_REFUSAL,
                    error => error.retry_after(),
                };
                // Usually the pod is gone or was replaced, and its source will remove it, which ends the attempts. But a server also
                // answers a conflict to one of several writes at one time, and a proxy before it may answer that nothing exists.
                let is_usual = matches!(error, ApiError::NotFound | ApiError::Conflict(_));
                let error = error_chain(&error).to_string();
                if is_usual {
                    tracing::debug!(pod = %pod.full_name(), error, "the API server has no such pod");
                } else {
                    tracing::warn!(pod = %pod.full_name(), error, "cannot write the status of the pod");
                }
                self.state.errors.lock().insert(uid, error);
                Outcome::Retry { at_least }
            }
        }
    }

    async fn update(
        &self,
        uid: &PodUid,
        pod: &PodObject,
        mut api: Arc<PodObject>,
        kept: &StatusToWrite,
    ) -> Result<(), ApiError> {
        // May change during the call. Then this write is not the last one of this status: another one is requested.
        let is_held_back = self.is_held_back(uid);
        let mut writes = self.next(pod, &api, kept, is_held_back);
        let mut in_vain = self.in_vain(uid, &api, kept.version, is_held_back);
        for _ in 0..MAX_PATCHES {
            let Some(patch) = writes.patch.take() else { break };
            let fields = PatchFields::of(&patch);
            if in_vain.has_all(&fields) {
                break;
            }
            api = self.api.patch_status(&api, patch).await?;
            writes = self.next(pod, &api, kept, is_held_back);
            in_vain = if writes.patch.is_some() { in_vain.with(fields) } else { PatchFields::default() };
            let last = LastWrite {
                version: kept.version,
                is_held_back,
                resource_version: api.metadata().resource_version.clone(),
                response: Some(api.clone()),
                in_vain: in_vain.clone(),
            };
            self.state.last_writes.lock().insert(uid.clone(), last);
        }
        if let Some(waited) = self.statuses.written(uid, kept.version) {
            self.metrics.status.synced(waited);
        }
        if writes.delete { self.api.delete(&api).await } else { Ok(()) }
    }

    /// The pod that the node runs, and the API server's pod in the version that its source delivered last. `None` if the API server
    /// has no such pod, or if a static pod has no mirror pod of its version.
    fn objects(&self, uid: &PodUid) -> Option<(Arc<PodObject>, Arc<PodObject>)> {
        let desired = self.desired.lock();
        // A static pod has a mirror pod until it has stopped, also if its manifest is gone.
        let stopping = || self.engine.active_pod(uid).filter(|pod| pod.is_static());
        let pod = desired.pods.pod(uid).cloned().or_else(stopping)?;
        let api = if pod.is_static() { desired.pods.mirror_of(&pod)?.clone() } else { pod.clone() };
        Some((pod, api))
    }

    /// The newer one of the source's pod and of the server's last response.
    fn newest(&self, uid: &PodUid, api: Arc<PodObject>) -> Arc<PodObject> {
        let mut last_writes = self.state.last_writes.lock();
        let Some(last) = last_writes.get_mut(uid) else { return api };
        let is_newer = |response: &Arc<PodObject>| {
            response.uid() == api.uid()
                && ResourceVersion::of(response.metadata()) > ResourceVersion::of(api.metadata())
        };
        // A response that the source has caught up with is dropped, so that no pod is kept twice.
        last.response = last.response.take().filter(is_newer);
        last.response.clone().unwrap_or(api)
    }

    /// Whether containers of a pod may run or its resources are held, so that a terminal phase must not be written yet.
    fn is_held_back(&self, uid: &PodUid) -> bool {
        let holds_resources = self.resources.as_ref().is_some_and(|resources| resources.holds(uid));
        self.engine.could_have_running_containers(uid) || holds_resources
    }

    fn next(&self, pod: &PodObject, api: &PodObject, kept: &StatusToWrite, is_held_back: bool) -> Writes {
        let facts = WriteFacts { pod, api, status: &kept.status, is_finished: kept.is_finished, is_held_back };
        next_writes(&facts, self.clock.now()).unwrap_or_else(|error| {
            tracing::error!(pod = %pod.full_name(), %error, "the status of the pod cannot be written as JSON");
            Writes::default()
        })
    }

    /// The fields of this version of the status that the server did not store as they were written. A patch of these fields alone would
    /// change nothing for long. There are none if the API server's pod has changed since.
    ///
    /// Each other field must be written: the last patch was made from another version of the pod than the server's, because the answer
    /// of an earlier write was lost, or because another program wrote the field. A server that resets one field when it stores another
    /// one gets each of them once.
    fn in_vain(&self, uid: &PodUid, api: &PodObject, version: u64, is_held_back: bool) -> PatchFields {
        let last_writes = self.state.last_writes.lock();
        let is_current = |last: &&LastWrite| {
            (last.version, last.is_held_back) == (version, is_held_back)
                && last.resource_version == api.metadata().resource_version
        };
        last_writes.get(uid).filter(is_current).map(|last| last.in_vain.clone()).unwrap_or_default()
    }
}
