//! The statuses of the node's pods, until they are written to the API server.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{ContainerStatus, PodStatus};

use super::conditions::{self, ConditionReason, own};
use super::exits::{IllegalRestart, TerminatedContainer, check_restarts, newly_terminated};
use super::{normalize, reasons, same_for_node, terminate_pod};
use crate::ids::{ContainerId, PodUid};
use crate::pod::{Phase, PodObject};
use crate::time::Time;

/// The kept statuses. The owner locks it; every method is one step.
#[derive(Debug, Default)]
pub struct StatusCache {
    pods: HashMap<PodUid, KeptStatus, foldhash::fast::RandomState>,
}

#[derive(Debug)]
struct KeptStatus {
    status: Arc<PodStatus>,
    /// Grows with every accepted change.
    version: u64,
    /// The version that the API server has; 0 for none.
    written: u64,
    /// When the first change happened that the API server does not have; `None` if it has all changes (POD-W16).
    changed_at: Option<Time>,
    /// When the first change happened after the version that the writer took last.
    later_change_at: Option<Time>,
    finished: bool,
    /// Whether the pod's first change to Running was reported (POD-W15).
    has_run: bool,
}

/// A kept status with the facts that its writer needs.
#[derive(Clone, Debug)]
pub struct StatusToWrite {
    /// The status.
    pub status: Arc<PodStatus>,
    /// The version of the status, which the writer reports back.
    pub version: u64,
    /// Whether the pod's cleanup is complete, so that the pod may be deleted from the API server.
    pub is_finished: bool,
}

/// The result of setting a status.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub enum SetOutcome {
    /// The status is kept and must be written.
    Accepted(StatusChange),
    /// The status equals the kept one.
    Unchanged,
    /// The status is impossible and was not kept.
    Refused(IllegalRestart),
}

/// The changes in an accepted status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatusChange {
    /// The status's version; later statuses of a pod have larger ones.
    pub version: u64,
    /// The container exits that were not seen before.
    pub terminated: Vec<TerminatedContainer>,
    /// Whether the pod changed from Pending to Running, for the first time in this cache.
    pub became_running: bool,
    /// Whether the change is written before other changes: Ready changed, or the pod has ended.
    pub is_urgent: bool,
}

impl StatusCache {
    /// The kept status of a pod. The key of a static pod is its own UID, not its mirror pod's.
    pub fn get(&self, uid: &PodUid) -> Option<Arc<PodStatus>> {
        self.pods.get(uid).map(|entry| Arc::clone(&entry.status))
    }

    /// Keeps a status if it differs from the kept one, or if `force`. A pod with a deletion timestamp is always forced.
    ///
    /// The status is completed from the one before it: the kept status, or else `mirror` (the status of a static pod's mirror pod, unless
    /// its phase is terminal), or else the pod's own status. Unless the one before it is `mirror`, a container that ended for good must not
    /// run again. The start time never changes, and a condition's transition time changes only with its status.
    pub fn set(
        &mut self,
        pod: &PodObject,
        mirror: Option<&PodStatus>,
        status: PodStatus,
        force: bool,
        now: Time,
    ) -> SetOutcome {
        self.update(pod, mirror, status, force || pod.is_deleting(), false, now)
    }

    /// The status that [`set`](StatusCache::set) would keep.
    ///
    /// # Errors
    /// [`IllegalRestart`] if `set` would refuse the status.
    pub fn completed(
        &self,
        pod: &PodObject,
        mirror: Option<&PodStatus>,
        status: PodStatus,
        now: Time,
    ) -> Result<PodStatus, IllegalRestart> {
        self.before(pod, mirror).complete(pod, status, now)
    }

    /// The status that [`terminate`](StatusCache::terminate) would keep.
    ///
    /// # Errors
    /// [`IllegalRestart`] if `terminate` would refuse the status.
    pub fn ended(&self, pod: &PodObject, mirror: Option<&PodStatus>, now: Time) -> Result<PodStatus, IllegalRestart> {
        self.completed(pod, mirror, self.end(pod, mirror), now)
    }

    /// Restores a status that an earlier agent kept.
    pub fn restore(&mut self, uid: PodUid, status: PodStatus, now: Time) {
        let entry = KeptStatus {
            status: Arc::new(status),
            version: 1,
            written: 0,
            changed_at: Some(now),
            later_change_at: None,
            finished: false,
            has_run: true,
        };
        self.pods.insert(uid, entry);
    }

    /// Sets the readiness of a running container and recomputes ContainersReady and Ready. Nothing happens if the pod
    /// or this run of the container is unknown, or if the run has ended.
    pub fn set_ready(&mut self, pod: &PodObject, container: &ContainerId, ready: bool, now: Time) -> SetOutcome {
        self.edit(pod, now, |status| {
            let Some(run) = find_run(status, container).filter(|run| run.ready != ready) else { return false };
            run.ready = ready;
            for condition in conditions::readiness(pod, status) {
                conditions::set_condition(status, condition);
            }
            true
        })
    }

    /// Sets whether a running container has started. Nothing happens if the pod or this run of the container is
    /// unknown, or if the run has ended.
    pub fn set_started(&mut self, pod: &PodObject, container: &ContainerId, started: bool, now: Time) -> SetOutcome {
        self.edit(pod, now, |status| {
            let Some(run) = find_run(status, container).filter(|run| run.started != Some(started)) else {
                return false;
            };
            run.started = Some(started);
            true
        })
    }

    /// Sets whether the pod's sandbox is ready, before any container of the pod was observed (POD-W24). Nothing happens
    /// if the pod is unknown.
    pub fn set_sandbox_ready(&mut self, pod: &PodObject, ready: bool, now: Time) -> SetOutcome {
        self.edit(pod, now, |status| {
            let observed = status.observed_generation;
            let condition = own(observed, reasons::READY_TO_START, ready, ConditionReason::default());
            conditions::set_condition(status, condition);
            true
        })
    }

    /// Ends a pod after its cleanup: every container gets a terminated state, the phase becomes terminal, and the pod
    /// counts as finished. Without a kept status this starts from `mirror` or from the pod's own status.
    pub fn terminate(&mut self, pod: &PodObject, mirror: Option<&PodStatus>, now: Time) -> SetOutcome {
        let status = self.end(pod, mirror);
        self.update(pod, mirror, status, true, true, now)
    }

    /// Removes the pods that `keep` rejects.
    pub fn retain(&mut self, mut keep: impl FnMut(&PodUid) -> bool) {
        self.pods.retain(|uid, _| keep(uid));
    }

    /// Removes a pod.
    pub fn forget(&mut self, uid: &PodUid) {
        self.pods.remove(uid);
    }

    /// Whether the pod's cleanup is complete, so that the pod may be deleted from the API server.
    pub fn is_finished(&self, uid: &PodUid) -> bool {
        self.pods.get(uid).is_some_and(|entry| entry.finished)
    }

    /// The kept status of a pod, for its writer.
    pub fn begin_write(&mut self, uid: &PodUid) -> Option<StatusToWrite> {
        let KeptStatus { status, version, finished, later_change_at, .. } = self.pods.get_mut(uid)?;
        *later_change_at = None;
        Some(StatusToWrite { status: Arc::clone(status), version: *version, is_finished: *finished })
    }

    /// The pods whose newest status the API server does not have, with its version.
    pub fn unwritten(&self) -> impl Iterator<Item = (&PodUid, u64)> {
        self.pods.iter().filter(|(_, entry)| entry.written < entry.version).map(|(uid, entry)| (uid, entry.version))
    }

    /// Records that the API server has a version. If it is the newest one, returns how long its first change waited.
    /// The wait of a later change starts at that change.
    pub fn written(&mut self, uid: &PodUid, version: u64, now: Time) -> Option<Duration> {
        let entry = self.pods.get_mut(uid)?;
        entry.written = entry.written.max(version);
        let changed_at = entry.changed_at?;
        let later = entry.later_change_at.take();
        entry.changed_at = (entry.written < entry.version).then(|| later.unwrap_or(now));
        Some(now.since(changed_at))
    }

    /// The pod's previous status.
    fn before<'a>(&'a self, pod: &'a PodObject, mirror: Option<&'a PodStatus>) -> Before<'a> {
        let kept = self.pods.get(pod.uid()).map(|entry| Before::Known(&entry.status));
        // A static pod may run again although its mirror pod has a terminal phase, for example after a shutdown of the node. Its
        // start time is then not that of the mirror pod.
        let mirror = mirror.filter(|status| !Phase::parse(status.phase.as_deref()).is_terminal());
        kept.or(mirror.map(Before::OfMirror)).or(pod.status().map(Before::Known)).unwrap_or(Before::Nothing)
    }

    /// The pod's previous status with terminated containers.
    fn end(&self, pod: &PodObject, mirror: Option<&PodStatus>) -> PodStatus {
        let mut status = self.before(pod, mirror).status().cloned().unwrap_or_default();
        terminate_pod(pod, &mut status);
        status
    }

    /// Edits the kept status, if there is one, in one step.
    fn edit(&mut self, pod: &PodObject, now: Time, edit: impl FnOnce(&mut PodStatus) -> bool) -> SetOutcome {
        let Some(entry) = self.pods.get(pod.uid()) else { return SetOutcome::Unchanged };
        let mut status = PodStatus::clone(&entry.status);
        let finished = entry.finished;
        if !edit(&mut status) {
            return SetOutcome::Unchanged;
        }
        self.update(pod, None, status, false, finished, now)
    }

    fn update(
        &mut self,
        pod: &PodObject,
        mirror: Option<&PodStatus>,
        status: PodStatus,
        force: bool,
        finished: bool,
        now: Time,
    ) -> SetOutcome {
        let entry = self.pods.get(pod.uid());
        let before = self.before(pod, mirror);
        let status = match before.complete(pod, status, now) {
            Ok(status) => status,
            Err(illegal) => return SetOutcome::Refused(illegal),
        };
        if let Some(entry) = entry
            && !force
            && same_for_node(&entry.status, &status)
        {
            return SetOutcome::Unchanged;
        }

        let nothing = PodStatus::default();
        let old = before.status().unwrap_or(&nothing);
        let terminated = newly_terminated(old, &status);
        let ran = entry.is_some_and(|entry| entry.has_run);
        let phases = (Phase::parse(old.phase.as_deref()), Phase::parse(status.phase.as_deref()));
        let became_running = !ran && phases == (Phase::Pending, Phase::Running);
        let is_urgent =
            finished || phases.1.is_terminal() || conditions::is_ready(old) != conditions::is_ready(&status);
        let version = entry.map_or(0, |entry| entry.version) + 1;
        let new = KeptStatus {
            version,
            written: entry.map_or(0, |entry| entry.written),
            changed_at: entry.and_then(|entry| entry.changed_at).or(Some(now)),
            later_change_at: entry.and_then(|entry| entry.later_change_at).or(Some(now)),
            // A static pod may restart under the same UID; any other pod stays finished.
            finished: finished || (!pod.is_static() && entry.is_some_and(|entry| entry.finished)),
            has_run: ran || phases.1 == Phase::Running,
            status: Arc::new(status),
        };
        self.pods.insert(pod.uid().clone(), new);
        SetOutcome::Accepted(StatusChange { version, terminated, became_running, is_urgent })
    }
}

/// The status that the next one of a pod continues.
#[derive(Clone, Copy, Debug)]
enum Before<'a> {
    Nothing,
    /// The kept status, or the status in the object of the pod.
    Known(&'a PodStatus),
    /// The status of the mirror pod, which an earlier agent wrote. It refuses no status: after a restart of the machine, containers that
    /// had ended for good may run again.
    OfMirror(&'a PodStatus),
}

impl<'a> Before<'a> {
    fn status(self) -> Option<&'a PodStatus> {
        match self {
            Before::Nothing => None,
            Before::Known(status) | Before::OfMirror(status) => Some(status),
        }
    }

    /// Completes a status from this one.
    fn complete(self, pod: &PodObject, mut status: PodStatus, now: Time) -> Result<PodStatus, IllegalRestart> {
        if let Before::Known(old) = self {
            check_restarts(pod, old, &status)?;
        }
        let nothing = PodStatus::default();
        let old = self.status().unwrap_or(&nothing);
        conditions::keep_transition_times(&mut status, old, |_| now.to_api());
        status.start_time = old.start_time.clone().or(status.start_time).or_else(|| Some(now.to_api()));
        normalize(pod, &mut status);
        Ok(status)
    }
}

/// The status of the container whose running run has this id. The result of a probe may come after the end of its run.
fn find_run<'a>(status: &'a mut PodStatus, id: &ContainerId) -> Option<&'a mut ContainerStatus> {
    let lists = [&mut status.container_statuses, &mut status.init_container_statuses];
    lists.into_iter().flatten().flatten().find(|run| {
        let known = run.container_id.as_deref().unwrap_or_default();
        let is_same = known.split_once("://").is_some_and(|(_, known)| known == id.as_str());
        is_same && run.state.as_ref().is_some_and(|state| state.running.is_some())
    })
}
