//! The state of one pod's resize.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::ResourceRequirements;

use super::actuated::{Actual, Actuated, Superseded};
use super::allocation::{Bounds, effective, effective_of, resizable, same};
use super::range::Range;
use super::steps::Step;
use crate::admission::PATIENCE;
use crate::ids::ContainerName;
use crate::pod::PodObject;
use crate::ports::{ContainerState, PodRuntimeStatus};
use crate::time::Time;

/// The resize of a pod. A pod without a resize has no such state.
#[derive(Clone, Debug, Default)]
pub struct PodResize {
    /// The pod as its source desires it, while its desired resources are not allocated.
    pub desired: Option<Arc<PodObject>>,
    /// Whether the node decides again on the desired resize when resources become free. An infeasible resize is not decided again.
    pub is_queued: bool,
    /// Why the desired resize is not allocated: the condition `PodResizePending`.
    pub pending: Option<PendingResize>,
    /// The allocated resize that is not complete: the condition `PodResizeInProgress`.
    pub progress: Option<ResizeProgress>,
    /// The resources before the allocated resize, where they are still in use.
    pub actuated: Option<Actuated>,
    /// The version of the file that will have the last change of the pod's record, until that version is written.
    pub unsaved: Option<u64>,
}

/// Why a desired resize is not allocated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PendingResize {
    /// The reason of the admission, or `Infeasible`.
    pub reason: String,
    /// The message of the admission.
    pub message: String,
    /// The generation of the pod that desires the resize.
    pub generation: Option<i64>,
    /// The start of the wait.
    pub since: Time,
}

impl PendingResize {
    /// The reason of a resize that never becomes possible.
    pub const INFEASIBLE: &str = "Infeasible";

    /// The reason in the condition: `Infeasible`, or `Deferred` for every other reason (upstream `SetPodResizePendingCondition`,
    /// kubelet 1.36).
    pub fn condition_reason(&self) -> &'static str {
        if self.reason == Self::INFEASIBLE { Self::INFEASIBLE } else { "Deferred" }
    }
}

/// An allocated resize that is not complete.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResizeProgress {
    /// The error of the last try.
    pub error: Option<String>,
    /// The end of the first of the syncs that have failed in a row.
    pub(crate) failing_since: Option<Time>,
    /// The generation of the pod that desired the resize.
    pub generation: Option<i64>,
}

impl PodResize {
    /// Whether all resources in use are the allocated ones, and the file has them.
    pub fn is_over(&self) -> bool {
        let PodResize { desired, is_queued: _, pending, progress, actuated, unsaved } = self;
        desired.is_none() && pending.is_none() && progress.is_none() && actuated.is_none() && unsaved.is_none()
    }

    /// Allocates the desired resources of `to` to a pod that had those of `from`.
    pub fn allocate(&mut self, from: &PodObject, to: &Arc<PodObject>) {
        let (mut used, cgroup, earlier) = match self.actuated.take() {
            Some(Actuated { containers, cgroup, pod_level, .. }) => (containers, cgroup, pod_level),
            None => (BTreeMap::new(), Actual::known(Bounds::of(from)), None),
        };
        let pod_level = match (earlier, from.spec().resources.clone()) {
            (Some(one), Some(other)) => Some(one.larger(&other)),
            (one, other) => one.or(other),
        };
        let pod_level = pod_level.filter(|earlier| !same(Some(earlier), to.spec().resources.as_ref()));
        let mut containers = BTreeMap::new();
        for it in resizable(to) {
            let name = &it.container.name;
            let before = || effective_of(from, name).unwrap_or_default();
            let (own, new) =
                (used.remove(name).unwrap_or_else(|| Actual::known(before())), effective(to, it.container));
            if own.values().any(|value| !same(Some(value), Some(&new))) {
                containers.insert(name.clone(), own);
            }
        }
        self.actuated = Some(Actuated { allocated: to.clone(), containers, cgroup, pod_level });
        self.progress = Some(ResizeProgress { generation: to.metadata().generation, ..ResizeProgress::default() });
        self.withdraw();
    }

    /// Whether the node has not decided yet on the resize that the pod desires. No status may report the generation of such a resize:
    /// a client takes a generation without a condition for allocated and applied.
    pub(crate) fn is_undecided(&self) -> bool {
        let Some(desired) = self.desired.as_ref().filter(|_| self.is_queued) else { return false };
        self.pending.as_ref().is_none_or(|pending| pending.generation != desired.metadata().generation)
    }

    /// Records that the file has every change up to `version`.
    pub fn saved(&mut self, version: u64) {
        self.unsaved = self.unsaved.filter(|unsaved| *unsaved > version);
    }

    /// Drops the desired resize, because its resources are allocated or no longer desired.
    pub fn withdraw(&mut self) {
        self.desired = None;
        self.pending = None;
        self.is_queued = false;
    }

    /// Records why the desired resize is not allocated. Returns whether the reason or the generation is new, so that an event
    /// reports it.
    pub fn refuse(&mut self, mut refusal: PendingResize) -> bool {
        self.is_queued = refusal.reason != PendingResize::INFEASIBLE;
        let old = self.pending.as_ref();
        let is_new = old.is_none_or(|old| old.reason != refusal.reason || old.generation != refusal.generation);
        if let Some(old) = old.filter(|old| old.condition_reason() == refusal.condition_reason()) {
            refusal.since = old.since;
        }
        self.pending = Some(refusal);
        is_new
    }

    /// Records that the call of a step begins, in a sync of `pod`. Returns whether the record changes.
    ///
    /// # Errors
    /// [`Superseded`] if `pod` does not have the newest allocation. The call must not be made then.
    pub fn begin(&mut self, pod: &PodObject, step: &Step) -> Result<bool, Superseded> {
        let actuated = self.actuated.as_mut().ok_or(Superseded)?;
        actuated.check_newest(pod)?;
        Ok(actuated.begin(step))
    }

    /// Records that the call of a step succeeded.
    pub fn done(&mut self, step: &Step) {
        self.actuated.iter_mut().for_each(|actuated| actuated.done(step));
    }

    /// Records that the runtime does not have the call that sets the resources of a container, so that it had no effect.
    pub fn refused(&mut self, name: &ContainerName, resources: &ResourceRequirements) {
        self.actuated.iter_mut().for_each(|actuated| actuated.refused(name, resources));
    }

    /// Records the result of a sync of `pod` that made the calls of its allocation. Returns whether it failed with a new error.
    ///
    /// # Errors
    /// [`Superseded`] if `pod` does not have the newest allocation. The result says nothing about the newest one.
    pub fn tried(&mut self, pod: &PodObject, error: Option<&str>, now: Time) -> Result<bool, Superseded> {
        self.actuated.as_ref().map_or(Ok(()), |actuated| actuated.check_newest(pod))?;
        let Some(progress) = &mut self.progress else { return Ok(false) };
        let is_new = error.is_some() && progress.error.as_deref() != error;
        progress.error = error.map(str::to_owned);
        progress.failing_since = error.map(|_| progress.failing_since.unwrap_or(now));
        Ok(is_new)
    }

    /// Records the end of a sync of `pod`. A sync that failed before it made the calls of the resize counts as a failed try too, but the
    /// pod does not report its error as one of the resize.
    pub fn synced(&mut self, pod: &PodObject, has_failed: bool, now: Time) {
        let actuated = self.actuated.as_ref().filter(|actuated| actuated.check_newest(pod).is_ok());
        let Some(actuated) = actuated else { return };
        let generation = actuated.allocated.metadata().generation;
        let progress = self.progress.get_or_insert(ResizeProgress { generation, ..ResizeProgress::default() });
        progress.failing_since = has_failed.then(|| progress.failing_since.unwrap_or(now));
    }

    /// Whether the resize has failed for longer than `PATIENCE`. No pod waits for what it gives back.
    pub fn is_stuck(&self, now: Time) -> bool {
        let failing_since = self.progress.as_ref().and_then(|progress| progress.failing_since);
        failing_since.is_some_and(|since| now > since + PATIENCE)
    }

    /// Records that a container starts with its resources in `pod`. Returns whether the record changes. While the record is unsaved, the
    /// container has to wait: the next agent would restart a container whose resources are not in the file.
    ///
    /// # Errors
    /// [`Superseded`] if `pod` does not have the newest allocation. The container must not start then.
    pub fn starts(&mut self, pod: &PodObject, name: &str) -> Result<bool, Superseded> {
        let Some(actuated) = &mut self.actuated else { return Ok(false) };
        let Some(resources) = effective_of(pod, name) else { return Ok(false) };
        actuated.check_newest(pod)?;
        Ok(actuated.runs_with(name, &resources))
    }

    /// Compares the allocated resize with the runtime in a sync of `pod`. If the resize is complete, drops it and returns the resize that
    /// was in progress. If `pod` does not have the newest allocation, the sync completes nothing, because it may still start a container
    /// with an older allocation. `has_cgroup` is whether the pod has a cgroup.
    pub fn settle(&mut self, pod: &PodObject, status: &PodRuntimeStatus, has_cgroup: bool) -> Option<ResizeProgress> {
        let Some(actuated) = &self.actuated else { return self.progress.take() };
        if actuated.check_newest(pod) == Err(Superseded) {
            return None;
        }
        let may_run = |name: &String| {
            let run = status.newest(name);
            run.is_some_and(|run| matches!(run.state, ContainerState::Running | ContainerState::Created))
        };
        let has_bounds = !has_cgroup || actuated.cgroup.has(Bounds::of(&actuated.allocated));
        if actuated.containers.keys().any(may_run) || !has_bounds {
            // After a restart of the agent only the resources that are in use are known.
            let generation = actuated.allocated.metadata().generation;
            self.progress.get_or_insert(ResizeProgress { generation, ..ResizeProgress::default() });
            return None;
        }
        self.actuated = None;
        self.progress.take()
    }
}
