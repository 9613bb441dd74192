//! Queries about pods, and the engine's recording. No query waits for a hook call, except [`Engine::quiesced`].
//!
//! The queries of the pod lifecycle read one published word of the record, so each answer is consistent in itself and takes no
//! lock of the cell.
//!
//! A pod without a record could still have running containers until [`Engine::sync_known_pods`] has run once. From then on, every
//! pod without a record counts as finished.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::Engine;
use crate::admission::PATIENCE;
use crate::engine::cell::{Live, Slot};
use crate::ids::{FullName, PodUid};
use crate::pod::PodObject;
use crate::pod_worker::Lifecycle;
use crate::pod_worker::published::Published;
use crate::pod_worker::state::Record;
use crate::recorder::Recorder;

impl Engine {
    /// What the pod's record published; [`Published::NONE`] if the pod has no record.
    fn published(&self, uid: &PodUid) -> Published {
        self.inner().cells.with(uid, |cell| cell.published()).unwrap_or(Published::NONE)
    }

    /// Whether the pod has reached a lifecycle state; `None` if it has no record.
    fn reached(&self, uid: &PodUid, state: Lifecycle) -> Option<bool> {
        self.published(uid).lifecycle().map(|lifecycle| lifecycle >= state)
    }

    /// Whether [`sync_known_pods`](Self::sync_known_pods) ran at least once.
    pub fn is_synced(&self) -> bool {
        self.inner().synced.load(Ordering::Acquire)
    }

    /// Whether the pod has a record and none of its containers runs. False for a pod without a record. Admission uses this
    /// query, because a pod without a record still needs its resources.
    pub fn is_pod_known_terminated(&self, uid: &PodUid) -> bool {
        self.reached(uid, Lifecycle::Terminated).unwrap_or(false)
    }

    /// Whether containers of the pod may run or may be started. For loops that handle updates of sources, and for the status
    /// writer.
    pub fn could_have_running_containers(&self, uid: &PodUid) -> bool {
        !self.reached(uid, Lifecycle::Terminated).unwrap_or_else(|| self.is_synced())
    }

    /// Whether the pod is cleaned up. For callers that wait for the end of an eviction.
    pub fn should_pod_be_finished(&self, uid: &PodUid) -> bool {
        self.reached(uid, Lifecycle::Finished).unwrap_or_else(|| self.is_synced())
    }

    /// Whether the pod was requested to stop. For hooks, pod additions and the filter of active pods.
    pub fn is_pod_termination_requested(&self, uid: &PodUid) -> bool {
        self.reached(uid, Lifecycle::Terminating).unwrap_or(false)
    }

    /// Whether loops that set up something for the pod, such as volumes, must stop adding to it.
    pub fn should_pod_containers_be_terminating(&self, uid: &PodUid) -> bool {
        self.published(uid).should_containers_be_terminating().unwrap_or_else(|| self.is_synced())
    }

    /// Whether loops that tear down something of the pod, such as volumes, may do so.
    pub fn should_pod_runtime_be_removed(&self, uid: &PodUid) -> bool {
        self.reached(uid, Lifecycle::Terminated).unwrap_or_else(|| self.is_synced())
    }

    /// Whether the files that the pod left on disk may be removed.
    pub fn should_pod_content_be_removed(&self, uid: &PodUid) -> bool {
        self.published(uid).should_content_be_removed().unwrap_or_else(|| self.is_synced())
    }

    /// Whether a started static pod of that full name is terminating. Its mirror pod must stay until it has stopped.
    pub fn is_pod_for_mirror_terminating(&self, name: &FullName) -> bool {
        let Some(uid) = self.inner().names.started(name) else { return false };
        self.lifecycle(&uid) == Some(Lifecycle::Terminating)
    }

    /// Whether the stop of the pod has failed for longer than `PATIENCE`. No pod waits for its end.
    pub fn is_stop_overdue(&self, uid: &PodUid) -> bool {
        let end = self.inner().find(uid).and_then(|cell| cell.read(Record::end_of_failing_stop)).flatten();
        end.is_some_and(|end| self.inner().clock.now() > end + PATIENCE)
    }

    /// Whether the pod has not begun to stop, and its syncs have failed for longer than `PATIENCE`.
    pub fn is_sync_overdue(&self, uid: &PodUid) -> bool {
        let since = self.inner().find(uid).and_then(|cell| cell.read(Record::syncs_fail_since)).flatten();
        since.is_some_and(|since| self.inner().clock.now() > since + PATIENCE)
    }

    /// Whether the pod has a record.
    pub fn is_pod_known(&self, uid: &PodUid) -> bool {
        self.lifecycle(uid).is_some()
    }

    /// Whether the pod was created again while it terminated or after it had finished. Such a pod starts once its record is
    /// forgotten.
    pub fn is_restart_requested(&self, uid: &PodUid) -> bool {
        self.published(uid).restart_requested()
    }

    /// The pod's lifecycle state; `None` if it has no record.
    pub fn lifecycle(&self, uid: &PodUid) -> Option<Lifecycle> {
        self.published(uid).lifecycle()
    }

    /// The pod that the worker acts on. A newer version from the pod's source may be pending.
    pub fn active_pod(&self, uid: &PodUid) -> Option<Arc<PodObject>> {
        self.inner().find(uid)?.read(|record| record.active_pod().cloned()).flatten()
    }

    /// All pods that were started and may still have running containers. These pods occupy the node's resources.
    pub fn unterminated_pods(&self) -> Vec<Arc<PodObject>> {
        self.inner()
            .cells
            .all()
            .iter()
            .filter_map(|cell| {
                cell.read(|record| (!record.is_terminated()).then(|| record.active_pod().cloned()).flatten()).flatten()
            })
            .collect()
    }

    /// All pods that a worker acts on, from their start until they are finished.
    pub fn unfinished_pods(&self) -> Vec<Arc<PodObject>> {
        let cells = self.inner().cells.all();
        cells.iter().filter_map(|cell| cell.read(|record| record.active_pod().cloned()).flatten()).collect()
    }

    /// The static pods that wait for a full name, in the order in which they will start.
    pub fn waiting_for_name(&self, name: &FullName) -> Vec<PodUid> {
        self.inner().names.waiting(name)
    }

    /// The number of records.
    pub fn known_pods(&self) -> usize {
        self.inner().cells.len()
    }

    /// Whether no worker has work pending or a hook call in progress. A static pod that waits for its full name has no work.
    pub fn is_quiescent(&self) -> bool {
        // Two passes, because records are read one after another. A pod may release its full name after the pass has read the pod
        // that waits for it, and may be idle when the pass reads it. The second pass sees the pod that got the name.
        (0..2).all(|_| {
            !self.inner().cells.any(|cell| cell.read_live(|live| self.is_working(cell.uid(), live)) == Some(true))
        })
    }

    fn is_working(&self, uid: &PodUid, live: &Live) -> bool {
        live.record.is_working()
            || live
                .queued
                .as_ref()
                .is_some_and(|name| live.record.is_blocked() && self.inner().names.is_turn(name, uid))
    }

    /// Waits until no worker has work pending or a hook call in progress. Checks every 100 µs. Needs a tokio runtime with time.
    ///
    /// Cancel safe.
    pub async fn quiesced(&self) {
        while !self.is_quiescent() {
            tokio::time::sleep(Duration::from_micros(100)).await;
        }
    }

    /// The recorder; `None` if the engine was built without one.
    pub fn recorder(&self) -> Option<&Arc<Recorder>> {
        self.inner().recorder.as_ref()
    }

    /// The recording so far, in the file format that [`replay`](crate::replay) reads; `None` if nothing is recorded.
    ///
    /// The recorder has room for the state of one pod per 1,280 bytes of its memory. On a node with more pods, the recording may
    /// lack the latest syncs of some pods, and pods that had no event for a long time.
    pub fn recording(&self) -> Option<Vec<u8>> {
        let inner = self.inner();
        let recorder = inner.recorder.as_ref()?;
        // Events that were only counted are still in the cells. They are written for as many pods as leave most of the recorder's
        // memory to other events.
        for cell in inner.cells.all().iter().take(recorder.most_flushed()) {
            if let Slot::Live(live) = &mut *cell.lock() {
                live.capture.flush(recorder, cell.uid(), &live.record, &inner.step_context(inner.clock.now(), 0.0));
            }
        }
        Some(recorder.save(inner.clock.now()))
    }
}
