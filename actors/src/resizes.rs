//! The resizes of all pods, and the file of their allocations, which outlives the agent.
//!
//! ```text
//!  dispatcher: update, retry ---> desired, allocated or refused --+
//!  hooks: applied, failed ------> in use, complete ---------------+--> one writer: CheckpointWriter::save
//!  housekeeping: retain ------------------------------------------+
//! ```
//!
//! The allocated resources of a pod are those of its object among the desired pods. This store has an entry for a pod only while the
//! pod is being resized, or while the last change of its record is not in the file. The file has a record of each pod from an API
//! server that has CPU or memory: what is allocated to it, and the resources of an earlier allocation that it still uses. Each call of a
//! resize is in the file before it is made. So the agent that follows a killed agent continues the resize, and does not restart a
//! container twice for it.
//!
//! The first containers of a pod do not wait for its record. If the file cannot be written, no resize is applied, and no container of a
//! resized pod starts. If the file is damaged, the allocation of a pod without a record comes from the status that the API server has.

mod file;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::Arc;

use foldhash::fast::FixedState;
use k8s_openapi::api::core::v1::ResourceRequirements;
use parking_lot::Mutex;
use podwright_metrics::ResizeMetrics;
use tokio::sync::Notify;

use crate::desired::DesiredPods;
use crate::ids::{ContainerName, PodUid};
use crate::journal::{Journal, Patience};
use crate::pod::PodObject;
use crate::ports::{Checkpoint, CheckpointError, Clock, EventRecorder, PodEvent, PodRuntimeStatus};
use crate::resize::{
    Allocation, PendingResize, PodResize, Step, Superseded, has_resources, requested, with_resources_of,
};
use crate::texts::resize as texts;
use crate::time::Time;

use file::AllocationRecord;
pub(crate) use file::{NotBegun, NotWritten};

/// The resizes of all pods. Every method except `begin`, `starts` and `run` returns at once.
pub(crate) struct Resizes {
    state: Mutex<State>,
    desired: Arc<DesiredPods>,
    clock: Arc<dyn Clock>,
    events: Arc<dyn EventRecorder>,
    metrics: ResizeMetrics,
    /// Fires when a resize is complete, so that other resizes may have room.
    completed: Arc<Notify>,
    journal: Journal,
}

#[derive(Default)]
struct State {
    /// The records of pods that are not desired: no source has delivered the pod to this agent yet, or the pod has left its source.
    loaded: HashMap<PodUid, AllocationRecord, FixedState>,
    pods: HashMap<PodUid, Box<PodResize>, FixedState>,
    /// Grows with each change that the file must have.
    version: u64,
}

impl Resizes {
    /// Reads the allocations that an earlier agent wrote. Blocks. Earlier stores of the same file are superseded.
    ///
    /// # Errors
    /// [`CheckpointError`] if the file exists and cannot be read.
    pub(crate) fn open(
        checkpoint: &dyn Checkpoint,
        desired: Arc<DesiredPods>,
        clock: Arc<dyn Clock>,
        events: Arc<dyn EventRecorder>,
        metrics: ResizeMetrics,
    ) -> Result<Self, CheckpointError> {
        let opened = checkpoint.open()?;
        let loaded = opened.records.iter().filter_map(|record| AllocationRecord::parse(record)).collect();
        Ok(Resizes {
            state: Mutex::new(State { loaded, ..State::default() }),
            desired,
            clock,
            events,
            metrics,
            completed: Arc::default(),
            journal: Journal::new(opened.writer, Patience::Full),
        })
    }

    /// A store for tests, without desired pods and without a file.
    #[cfg(test)]
    pub(crate) fn in_memory(clock: Arc<dyn Clock>, events: Arc<dyn EventRecorder>, metrics: ResizeMetrics) -> Self {
        let desired = Arc::new(DesiredPods::new([]));
        let opened = Resizes::open(&crate::ports::NoCheckpoint, desired, clock, events, metrics);
        opened.expect("a checkpoint that keeps nothing opens")
    }

    /// The resize of a pod; `None` if the pod is not being resized.
    pub(crate) fn get(&self, uid: &PodUid) -> Option<PodResize> {
        self.state.lock().pods.get(uid).map(|resize| PodResize::clone(resize))
    }

    /// Fires each time a resize is complete.
    pub(crate) fn completed(&self) -> Arc<Notify> {
        self.completed.clone()
    }

    /// Takes a pod from its source and returns it with its allocated resources. Other resources become the desired resize of the
    /// pod. `known` is the pod among the desired pods, with its allocated resources; `None` for a pod that is new to this agent.
    pub(crate) fn take(&self, known: Option<&Arc<PodObject>>, pod: Arc<PodObject>) -> Arc<PodObject> {
        if pod.is_mirror() {
            return pod;
        }
        let allocated = match known {
            Some(known) => with_resources_of(&pod, known),
            None => self.load(&pod),
        };
        let mut state = self.state.lock();
        let is_allocated = Arc::ptr_eq(&allocated, &pod);
        if is_allocated && state.pods.is_empty() {
            return allocated;
        }
        let resize = state.pods.get_mut(pod.uid());
        let before = resize.as_ref().and_then(|resize| resize.desired.clone()).or_else(|| known.cloned());
        for change in before.iter().flat_map(|before| requested(before, &pod)) {
            self.metrics.requested(change.resource, change.requirement, change.operation);
        }
        if is_allocated {
            resize.into_iter().for_each(|resize| resize.withdraw());
        } else {
            let resize = state.pods.entry(pod.uid().clone()).or_default();
            resize.is_queued = !pod.is_deleting();
            resize.desired = Some(pod);
        }
        self.settle_state(&mut state, allocated.uid());
        allocated
    }

    /// A new pod with the resources that an earlier agent allocated to it.
    fn load(&self, pod: &Arc<PodObject>) -> Arc<PodObject> {
        let mut state = self.state.lock();
        if pod.is_static() {
            return pod.clone();
        }
        let Some(record) = state.loaded.get_mut(pod.uid()) else {
            return Allocation::of_status(pod).map_or_else(|| pod.clone(), |allocation| allocation.apply(pod));
        };
        let allocated = record.allocated.apply(pod);
        if let Some(in_use) = record.in_use.take() {
            let actuated = in_use.actuated(allocated.clone());
            state.pods.entry(pod.uid().clone()).or_default().actuated = Some(actuated);
        }
        allocated
    }

    /// Keeps the record of a pod that left its source until no part of the node needs it. The pod may come back.
    pub(crate) fn removed(&self, pod: &PodObject) {
        if is_recorded(pod) {
            self.state.lock().loaded.insert(pod.uid().clone(), AllocationRecord::of(pod));
        }
    }

    /// Records that the resources of a pod are allocated, because the pod was admitted.
    pub(crate) fn admitted(&self, pod: &PodObject) {
        if !is_recorded(pod) {
            return;
        }
        let mut state = self.state.lock();
        let loaded = state.loaded.remove(pod.uid());
        if loaded.is_none_or(|loaded| loaded.allocated != Allocation::of(pod)) {
            self.bump(&mut state);
        }
    }

    /// Whether desired resizes wait to be decided.
    pub(crate) fn has_queued(&self) -> bool {
        self.state.lock().pods.values().any(|resize| resize.is_queued)
    }

    /// The pods with a desired resize that waits to be decided, each with its desired resources and the start of its wait.
    pub(crate) fn queued(&self) -> Vec<(Arc<PodObject>, Option<Time>)> {
        let state = self.state.lock();
        let queued = state.pods.values().filter(|resize| resize.is_queued);
        let since = |resize: &PodResize| resize.pending.as_ref().map(|pending| pending.since);
        queued.filter_map(|resize| Some((resize.desired.clone()?, since(resize)))).collect()
    }

    /// Allocates the desired resources of `to` to a pod that has those of `from`.
    pub(crate) fn allocate(&self, from: &PodObject, to: &Arc<PodObject>) {
        let mut state = self.state.lock();
        state.pods.entry(to.uid().clone()).or_default().allocate(from, to);
        self.record_changed(&mut state, to.uid());
        self.settle_state(&mut state, to.uid());
        drop(state);
        let message = texts::started(to, to.metadata().generation);
        self.events.record(to, PodEvent::normal("ResizeStarted", message));
    }

    /// Records why a desired resize is not allocated. Returns whether the status of the pod changes.
    pub(crate) fn refuse(&self, pod: &Arc<PodObject>, reason: &str, message: &str) -> bool {
        let generation = pod.metadata().generation;
        let (reason, message) = (reason.to_owned(), message.to_owned());
        let refusal = PendingResize { reason, message, generation, since: self.clock.now() };
        let mut state = self.state.lock();
        let resize = state.pods.entry(pod.uid().clone()).or_default();
        let before = resize.pending.clone();
        let is_new = resize.refuse(refusal.clone());
        let changed = before != resize.pending;
        self.settle_state(&mut state, pod.uid());
        drop(state);
        if is_new {
            let event = if refusal.reason == PendingResize::INFEASIBLE { "ResizeInfeasible" } else { "ResizeDeferred" };
            let message = texts::pending(pod, &refusal.reason, &refusal.message, generation);
            self.events.record(pod, PodEvent::warning(event, message));
        }
        changed
    }

    /// Drops the desired resize of a pod that is no longer active.
    pub(crate) fn withdraw(&self, uid: &PodUid) {
        let mut state = self.state.lock();
        state.pods.get_mut(uid).into_iter().for_each(|resize| resize.withdraw());
        self.settle_state(&mut state, uid);
    }

    /// The pod with the largest resources that it may use, if they differ from the allocated ones.
    pub(crate) fn in_use(&self, pod: &Arc<PodObject>) -> Option<Arc<PodObject>> {
        let state = self.state.lock();
        let actuated = state.pods.get(pod.uid())?.actuated.as_ref()?;
        Some(pod.with_spec(actuated.counted_spec(pod)?))
    }

    /// Whether the resize of a pod has failed for longer than `PATIENCE`. No pod waits for what it gives back.
    pub(crate) fn is_stuck(&self, uid: &PodUid) -> bool {
        let now = self.clock.now();
        self.state.lock().pods.get(uid).is_some_and(|resize| resize.is_stuck(now))
    }

    /// Records that the call of a step succeeded.
    pub(crate) fn done(&self, uid: &PodUid, step: &Step) {
        self.ended(uid, |resize| resize.done(step));
    }

    /// Records that the runtime does not have the call that sets the resources of a container.
    pub(crate) fn refused(&self, uid: &PodUid, name: &ContainerName, resources: &ResourceRequirements) {
        self.ended(uid, |resize| resize.refused(name, resources));
    }

    fn ended(&self, uid: &PodUid, end: impl FnOnce(&mut PodResize)) {
        let mut state = self.state.lock();
        if let Some(resize) = state.pods.get_mut(uid) {
            end(resize);
            self.record_changed(&mut state, uid);
        }
    }

    /// Records a change of a pod's resize, and requests a write if `change` returns true.
    fn record(
        &self,
        uid: &PodUid,
        change: impl FnOnce(Option<&mut PodResize>) -> Result<bool, Superseded>,
    ) -> Result<bool, Superseded> {
        let mut state = self.state.lock();
        let changed = change(state.pods.get_mut(uid).map(AsMut::as_mut))?;
        if changed {
            self.record_changed(&mut state, uid);
        }
        Ok(changed)
    }

    /// Compares the allocated resize with the runtime in a sync of `pod`, and ends the resize if it is complete.
    pub(crate) fn settle(&self, pod: &Arc<PodObject>, status: &PodRuntimeStatus, has_cgroup: bool) {
        let mut state = self.state.lock();
        let Some(resize) = state.pods.get_mut(pod.uid()) else { return };
        let was_actuated = resize.actuated.as_ref().map(|actuated| actuated.allocated.clone());
        let completed = resize.settle(pod, status, has_cgroup);
        let is_over = resize.actuated.is_none() && was_actuated.is_some();
        if is_over {
            self.record_changed(&mut state, pod.uid());
        }
        self.settle_state(&mut state, pod.uid());
        drop(state);
        if let Some(progress) = completed {
            let message = texts::completed(was_actuated.as_ref().unwrap_or(pod), progress.generation);
            self.events.record(pod, PodEvent::normal("ResizeCompleted", message));
        }
        if is_over {
            self.completed.notify_one();
        }
    }

    /// Records the result of a try to apply a resize. A failure with a new text becomes an event.
    ///
    /// # Errors
    /// [`Superseded`] if `pod`, which the sync has, does not have the newest allocation.
    pub(crate) fn tried(&self, pod: &Arc<PodObject>, error: Option<&str>) -> Result<(), Superseded> {
        let now = self.clock.now();
        let mut state = self.state.lock();
        let is_new = state.pods.get_mut(pod.uid()).map_or(Ok(false), |resize| resize.tried(pod, error, now))?;
        drop(state);
        if let Some(error) = error.filter(|_| is_new) {
            let message = texts::failed(pod, error, pod.metadata().generation);
            self.events.record(pod, PodEvent::warning("ResizeError", message));
        }
        Ok(())
    }

    /// Records the end of a sync of `pod`.
    pub(crate) fn synced(&self, pod: &PodObject, has_failed: bool) {
        let now = self.clock.now();
        let mut state = self.state.lock();
        if let Some(resize) = state.pods.get_mut(pod.uid()) {
            resize.synced(pod, has_failed, now);
            self.count(&state);
        }
    }

    /// Drops the records and the resizes of the pods for which `keep` returns false.
    pub(crate) fn retain(&self, mut keep: impl FnMut(&PodUid) -> bool) {
        let mut state = self.state.lock();
        let State { loaded, pods, .. } = &mut *state;
        let records = loaded.len();
        loaded.retain(|uid, _| keep(uid));
        let changed = loaded.len() != records;
        let resizes = pods.len();
        pods.retain(|uid, _| keep(uid));
        let dropped = pods.len() != resizes;
        if changed || dropped {
            self.bump(&mut state);
            self.count(&state);
        }
    }

    /// Drops the entry of a pod whose resize is over, and counts the resizes again.
    fn settle_state(&self, state: &mut State, uid: &PodUid) {
        if state.pods.get(uid).is_some_and(|resize| resize.is_over()) {
            state.pods.remove(uid);
        }
        self.count(state);
    }

    fn count(&self, state: &State) {
        let pending = |reason: &str| {
            let pending = state.pods.values().filter_map(|resize| resize.pending.as_ref());
            pending.filter(|pending| pending.condition_reason() == reason).count()
        };
        let in_progress = state.pods.values().filter(|resize| resize.progress.is_some()).count();
        self.metrics.set_current(pending("Deferred"), pending(PendingResize::INFEASIBLE), in_progress);
    }

    /// Requests a write of the changed record of a pod that is being resized.
    fn record_changed(&self, state: &mut State, uid: &PodUid) {
        self.bump(state);
        let version = state.version;
        state.pods.get_mut(uid).into_iter().for_each(|resize| resize.unsaved = Some(version));
    }

    /// Requests a write.
    fn bump(&self, state: &mut State) {
        state.version += 1;
        self.journal.wake();
    }
}

/// Whether the file has a record of a pod. A static pod cannot be resized.
fn is_recorded(pod: &PodObject) -> bool {
    !pod.is_static() && !pod.is_mirror() && has_resources(pod)
}
