//! The resources that the containers and the cgroup of a pod have.

use std::collections::BTreeMap;
use std::iter::once;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{PodSpec, ResourceRequirements};

use super::allocation::{Bounds, effective_of, has_resources_of, same};
use super::range::Range;
use super::steps::Step;
use crate::ids::ContainerName;
use crate::pod::PodObject;

/// The number of values of unknown calls that are kept one by one. Beyond it, only the smallest and the largest amounts are kept.
const MOST_BEGUN: usize = 4;

/// A value that calls change. The result of a call is unknown until it succeeds: a call that failed may have had an effect, and the
/// agent may be killed during a call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Actual<T> {
    /// The value of the last call that succeeded.
    pub known: T,
    /// The values of later calls, whose results are unknown.
    pub begun: Vec<T>,
}

impl<T> Actual<T> {
    /// A value that no call changes.
    pub fn known(known: T) -> Self {
        Actual { known, begun: Vec::new() }
    }

    /// All possible values.
    pub fn values(&self) -> impl Iterator<Item = &T> {
        once(&self.known).chain(&self.begun)
    }
}

impl<T: Range> Actual<T> {
    /// Records that a call begins, which sets a value. Returns whether the record changes.
    fn begin(&mut self, value: T) -> bool {
        if self.values().any(|it| it.is_same(&value)) {
            return false;
        }
        self.begun.push(value);
        // While the calls of a pod fail, each new resize adds a value.
        if let [first, others @ ..] = &self.begun[..]
            && others.len() >= MOST_BEGUN
        {
            let of = |which: fn(&T, &T) -> T| others.iter().fold(first.clone(), |one, other| which(&one, other));
            self.begun = vec![of(T::smaller), of(T::larger)];
        }
        true
    }

    /// The largest possible amounts.
    pub(super) fn largest(&self) -> T {
        self.begun.iter().fold(self.known.clone(), |one, other| one.larger(other))
    }
}

impl Actual<ResourceRequirements> {
    /// Whether a container may have other resources than `allocated`, the pod with its allocated resources, has for it. An ephemeral
    /// container has none.
    pub fn may_differ(&self, allocated: &PodObject, name: &str) -> bool {
        effective_of(allocated, name).is_some_and(|new| self.values().any(|value| !same(Some(value), Some(&new))))
    }
}

impl Actual<Bounds> {
    /// Whether the cgroup has the bounds that follow from the spec of a pod. A limit that the spec does not have is not removed.
    pub fn has(&self, new: Bounds) -> bool {
        self.values().all(|bounds| bounds.resized_to(new) == *bounds)
    }
}

/// The resources that are in use and may differ from the allocated ones.
#[derive(Clone, Debug)]
pub struct Actuated {
    /// The pod with its allocated resources.
    pub allocated: Arc<PodObject>,
    /// The effective resources of containers that may differ from the allocated ones, by container name.
    pub containers: BTreeMap<String, Actual<ResourceRequirements>>,
    /// The bounds of the pod's cgroup.
    pub cgroup: Actual<Bounds>,
    /// The largest pod-level resources of the earlier allocations. `None` if there were none or if they are the allocated ones, and after
    /// an agent that did not record them.
    pub pod_level: Option<ResourceRequirements>,
}

/// A newer allocation has replaced the one that a sync applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a newer allocation has replaced the resize")]
pub struct Superseded;

impl Actuated {
    /// Whether `pod`, which a sync has, has the newest allocation.
    pub(super) fn check_newest(&self, pod: &PodObject) -> Result<(), Superseded> {
        if has_resources_of(pod, &self.allocated) { Ok(()) } else { Err(Superseded) }
    }

    /// The spec of a pod with the largest resources that its containers may have.
    pub(crate) fn spec_in_use(&self, pod: &PodObject) -> PodSpec {
        let mut spec = pod.spec().clone();
        for container in spec.containers.iter_mut().chain(spec.init_containers.iter_mut().flatten()) {
            if let Some(used) = self.containers.get(&container.name) {
                container.resources = Some(used.largest());
            }
        }
        spec
    }

    /// The spec of a pod with the largest resources that count for it until the resize is complete. `None` if they are the allocated ones.
    pub fn counted_spec(&self, pod: &PodObject) -> Option<PodSpec> {
        if self.containers.is_empty() && self.pod_level.is_none() {
            return None;
        }
        let mut spec = self.spec_in_use(pod);
        // Pod-level requests replace those of the containers.
        if let Some(pod_level) = &self.pod_level {
            spec.resources = Some(pod_level.clone());
        }
        Some(spec)
    }

    /// Records that the call of a step begins. Returns whether that is a change.
    pub(super) fn begin(&mut self, step: &Step) -> bool {
        match step {
            Step::Container { name, resources, .. } => {
                let allocated = || effective_of(&self.allocated, name.as_str()).unwrap_or_default();
                let found = self.containers.get(name.as_str());
                let mut actual = found.cloned().unwrap_or_else(|| Actual::known(allocated()));
                let is_new = actual.begin(resources.clone());
                if is_new {
                    self.containers.insert(name.to_string(), actual);
                }
                is_new
            }
            Step::Cgroup(limits) => self.cgroup.begin(self.cgroup.known.with(*limits)),
        }
    }

    /// Records that the call of a step succeeded.
    pub(super) fn done(&mut self, step: &Step) {
        match step {
            Step::Container { name, resources, .. } => {
                self.runs_with(name.as_str(), resources);
            }
            Step::Cgroup(limits) => {
                let known = self.cgroup.known.with(*limits);
                // The result of an earlier call that set other bounds is still unknown.
                let begun = self.cgroup.begun.iter().map(|bounds| bounds.with(*limits));
                let begun = begun.filter(|bounds| *bounds != known).collect();
                self.cgroup = Actual { known, begun };
            }
        }
    }

    /// Records that the runtime does not have the call that sets `resources`, so that it had no effect.
    pub(super) fn refused(&mut self, name: &ContainerName, resources: &ResourceRequirements) {
        let Some(actual) = self.containers.get_mut(name.as_str()) else { return };
        actual.begun.retain(|value| !same(Some(value), Some(resources)));
        if actual.begun.is_empty() {
            let known = actual.known.clone();
            self.runs_with(name.as_str(), &known);
        }
    }

    /// Records the effective resources that a container runs with. Returns whether that is a change.
    pub(super) fn runs_with(&mut self, name: &str, resources: &ResourceRequirements) -> bool {
        let Some(allocated) = effective_of(&self.allocated, name) else { return false };
        if same(Some(resources), Some(&allocated)) {
            return self.containers.remove(name).is_some();
        }
        let new = Actual::known(resources.clone());
        let old = self.containers.insert(name.to_owned(), new.clone());
        old.is_none_or(|old| !old.begun.is_empty() || !same(Some(&old.known), Some(&new.known)))
    }
}
