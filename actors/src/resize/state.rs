//! The state of one pod's resize.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::ResourceRequirements;

use super::allocation::{Bounds, resizable, resources_of, same};
use crate::pod::PodObject;
use crate::ports::{ContainerState, PodRuntimeStatus};
use crate::time::Time;

/// The resize of a pod. A pod without a resize has no such state.
#[derive(Clone, Debug, Default)]
pub(crate) struct PodResize {
    /// The pod as its source desires it, while its desired resources are not allocated.
    pub(crate) desired: Option<Arc<PodObject>>,
    /// Whether the node decides again on the desired resize when resources become free. An infeasible resize is not decided again.
    pub(crate) is_queued: bool,
    /// Why the desired resize is not allocated: the condition `PodResizePending`.
    pub(crate) pending: Option<PendingResize>,
    /// The allocated resize that is not complete: the condition `PodResizeInProgress`.
    pub(crate) progress: Option<ResizeProgress>,
    /// The resources before the allocated resize, where they are still in use.
    pub(crate) actuated: Option<Actuated>,
}

/// Why a desired resize is not allocated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PendingResize {
    /// The reason of the admission, or `Infeasible`.
    pub(crate) reason: String,
    /// The message of the admission.
    pub(crate) message: String,
    /// The generation of the pod that desires the resize.
    pub(crate) generation: Option<i64>,
    /// The start of the wait.
    pub(crate) since: Time,
}

impl PendingResize {
    /// The reason of a resize that never becomes possible.
    pub(crate) const INFEASIBLE: &str = "Infeasible";

    /// The reason in the condition: `Infeasible`, or `Deferred` for every other reason (upstream `SetPodResizePendingCondition`,
    /// kubelet 1.36).
    pub(crate) fn condition_reason(&self) -> &'static str {
        if self.reason == Self::INFEASIBLE { Self::INFEASIBLE } else { "Deferred" }
    }
}

/// An allocated resize that is not complete.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ResizeProgress {
    /// The error of the last try.
    pub(crate) error: Option<String>,
    /// The generation of the pod that desired the resize.
    pub(crate) generation: Option<i64>,
}

/// The resources that are in use and differ from the allocated ones.
#[derive(Clone, Debug)]
pub(crate) struct Actuated {
    /// The pod with its allocated resources.
    pub(crate) allocated: Arc<PodObject>,
    /// The resources of containers that differ from the allocated ones, by container name.
    pub(crate) containers: BTreeMap<String, ResourceRequirements>,
    /// The bounds of the pod's cgroup.
    pub(crate) cgroup: Bounds,
}

impl PodResize {
    /// Whether all resources in use are the allocated ones.
    pub(crate) fn is_over(&self) -> bool {
        self.desired.is_none() && self.pending.is_none() && self.progress.is_none() && self.actuated.is_none()
    }

    /// Allocates the desired resources of `to` to a pod that had those of `from`.
    pub(crate) fn allocate(&mut self, from: &PodObject, to: &Arc<PodObject>) {
        let (mut used, cgroup) = match self.actuated.take() {
            Some(Actuated { containers, cgroup, .. }) => (containers, cgroup),
            None => (BTreeMap::new(), Bounds::of(from)),
        };
        let mut containers = BTreeMap::new();
        for it in resizable(to) {
            let name = &it.container.name;
            let before = || resources_of(from, name).flatten().cloned().unwrap_or_default();
            let own = used.remove(name).unwrap_or_else(before);
            if !same(Some(&own), it.container.resources.as_ref()) {
                containers.insert(name.clone(), own);
            }
        }
        self.actuated = Some(Actuated { allocated: to.clone(), containers, cgroup });
        self.progress = Some(ResizeProgress { error: None, generation: to.metadata().generation });
        self.withdraw();
    }

    /// Drops the desired resize, because its resources are allocated or no longer desired.
    pub(crate) fn withdraw(&mut self) {
        self.desired = None;
        self.pending = None;
        self.is_queued = false;
    }

    /// Records why the desired resize is not allocated. Returns whether the reason or the generation is new, so that an event
    /// reports it.
    pub(crate) fn refuse(&mut self, mut refusal: PendingResize) -> bool {
        self.is_queued = refusal.reason != PendingResize::INFEASIBLE;
        let old = self.pending.as_ref();
        let is_new = old.is_none_or(|old| old.reason != refusal.reason || old.generation != refusal.generation);
        if let Some(old) = old.filter(|old| old.condition_reason() == refusal.condition_reason()) {
            refusal.since = old.since;
        }
        self.pending = Some(refusal);
        is_new
    }

    /// Records the resources that a container runs with. Returns whether that is a change.
    pub(crate) fn runs_with(&mut self, name: &str, resources: Option<&ResourceRequirements>) -> bool {
        let Some(actuated) = &mut self.actuated else { return false };
        let Some(allocated) = resources_of(&actuated.allocated, name) else { return false };
        if same(resources, allocated) {
            return actuated.containers.remove(name).is_some();
        }
        let resources = resources.cloned().unwrap_or_default();
        let old = actuated.containers.insert(name.to_owned(), resources.clone());
        !same(old.as_ref(), Some(&resources))
    }

    /// Compares the allocated resize with the runtime, and drops it if it is complete. If it is complete, returns the resize that
    /// was in progress.
    /// `has_cgroup` is whether the pod has a cgroup.
    pub(crate) fn settle(&mut self, status: &PodRuntimeStatus, has_cgroup: bool) -> Option<ResizeProgress> {
        let Some(actuated) = &self.actuated else { return self.progress.take() };
        let may_run = |name: &String| {
            let run = status.newest(name);
            run.is_some_and(|run| matches!(run.state, ContainerState::Running | ContainerState::Created))
        };
        let after = actuated.cgroup.resized_to(Bounds::of(&actuated.allocated));
        if actuated.containers.keys().any(may_run) || (has_cgroup && actuated.cgroup != after) {
            // After a restart of the agent only the resources that are in use are known.
            let generation = actuated.allocated.metadata().generation;
            self.progress.get_or_insert(ResizeProgress { error: None, generation });
            return None;
        }
        self.actuated = None;
        self.progress.take()
    }
}
