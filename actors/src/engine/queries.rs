//! What others may ask of a pod by its UID. Each answer is one atomic look; none waits.
//!
//! An unknown UID could still have running containers until `sync_known_pods` ran once; from then on everything that is
//! unknown is over.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::Engine;
use crate::engine::cell::Live;
use crate::ids::{FullName, PodUid};
use crate::pod::PodObject;
use crate::pod_worker::Lifecycle;
use crate::pod_worker::published::Published;

impl Engine {
    /// What the pod's record shows; nothing if it has none.
    fn shown(&self, uid: &PodUid) -> Published {
        self.inner().cells.with(uid, |cell| cell.shown()).unwrap_or(Published::NONE)
    }

    /// Whether the pod got so far; `None` if it has no record.
    fn reached(&self, uid: &PodUid, stage: Lifecycle) -> Option<bool> {
        self.shown(uid).lifecycle().map(|lifecycle| lifecycle >= stage)
    }

    /// Whether `sync_known_pods` ran at least once.
    pub fn is_synced(&self) -> bool {
        self.inner().synced.load(Ordering::Acquire)
    }

    /// Whether the pod has a record and nothing of it runs. For the admission filter only.
    pub fn is_pod_known_terminated(&self, uid: &PodUid) -> bool {
        self.reached(uid, Lifecycle::Terminated).unwrap_or(false)
    }

    /// Whether containers of the pod may run, or may be started. For config loops and the status writer.
    pub fn could_have_running_containers(&self, uid: &PodUid) -> bool {
        !self.reached(uid, Lifecycle::Terminated).unwrap_or_else(|| self.is_synced())
    }

    /// Whether the pod is cleaned up. For whoever waits for the end of an eviction.
    pub fn should_pod_be_finished(&self, uid: &PodUid) -> bool {
        self.reached(uid, Lifecycle::Finished).unwrap_or_else(|| self.is_synced())
    }

    /// Whether the pod was asked to stop. For hooks, additions and the active filter.
    pub fn is_pod_termination_requested(&self, uid: &PodUid) -> bool {
        self.reached(uid, Lifecycle::Terminating).unwrap_or(false)
    }

    /// Whether loops that set something up for the pod must stop adding to it.
    pub fn should_pod_containers_be_terminating(&self, uid: &PodUid) -> bool {
        self.shown(uid).should_containers_be_terminating().unwrap_or_else(|| self.is_synced())
    }

    /// Whether loops that take something down may take the pod's things down.
    pub fn should_pod_runtime_be_removed(&self, uid: &PodUid) -> bool {
        self.reached(uid, Lifecycle::Terminated).unwrap_or_else(|| self.is_synced())
    }

    /// Whether what the pod left on disk may be reclaimed.
    pub fn should_pod_content_be_removed(&self, uid: &PodUid) -> bool {
        self.shown(uid).should_content_be_removed().unwrap_or_else(|| self.is_synced())
    }

    /// Whether a started static pod of that full name is stopping; its mirror must stay until it has stopped.
    pub fn is_pod_for_mirror_terminating(&self, name: &FullName) -> bool {
        let Some(uid) = self.inner().names.started(name) else { return false };
        self.lifecycle(&uid) == Some(Lifecycle::Terminating)
    }

    /// Whether the pod has a record.
    pub fn is_pod_known(&self, uid: &PodUid) -> bool {
        self.lifecycle(uid).is_some()
    }

    /// Where the pod stands.
    pub fn lifecycle(&self, uid: &PodUid) -> Option<Lifecycle> {
        self.shown(uid).lifecycle()
    }

    /// The spec that the pod's worker acts on, which may lag behind what its source wants.
    pub fn active_pod(&self, uid: &PodUid) -> Option<Arc<PodObject>> {
        self.inner().find(uid)?.ask(|record| record.active_pod().cloned()).flatten()
    }

    /// The specs of all pods that were started and may still have running containers: what really occupies the node.
    pub fn unterminated_pods(&self) -> Vec<Arc<PodObject>> {
        self.inner()
            .cells
            .all()
            .iter()
            .filter_map(|cell| {
                cell.ask(|record| (!record.is_terminated()).then(|| record.active_pod().cloned()).flatten()).flatten()
            })
            .collect()
    }

    /// The specs of all pods that are not finished, as far as the workers act on one.
    pub fn unfinished_pods(&self) -> Vec<Arc<PodObject>> {
        let cells = self.inner().cells.all();
        cells.iter().filter_map(|cell| cell.ask(|record| record.active_pod().cloned()).flatten()).collect()
    }

    /// The static pods that wait for a full name, first in line first.
    pub fn waiting_for_name(&self, name: &FullName) -> Vec<PodUid> {
        self.inner().names.waiting(name)
    }

    /// How many records there are.
    pub fn known_pods(&self) -> usize {
        self.inner().cells.len()
    }

    /// Whether no record has work pending or running. A static pod that waits for its name has none.
    pub fn is_quiescent(&self) -> bool {
        // Twice, because pods are looked at one after the other: one that gives its full name away after the next one was
        // looked at is over when its own turn comes, and the next one has not begun.
        (0..2).all(|_| !self.inner().cells.any(|cell| cell.look(|live| self.is_working(cell.uid(), live))))
    }

    fn is_working(&self, uid: &PodUid, live: &Live) -> bool {
        live.record.is_working()
            || live
                .queued
                .as_ref()
                .is_some_and(|name| live.record.is_blocked() && self.inner().names.is_turn(name, uid))
    }

    /// Waits until no record has work pending or running, looking every 100 µs. Needs a tokio runtime with time.
    ///
    /// Cancel safe.
    pub async fn quiesced(&self) {
        while !self.is_quiescent() {
            tokio::time::sleep(Duration::from_micros(100)).await;
        }
    }
}
