//! The changes between two statuses of a pod. Pure.

use std::sync::Arc;

use crate::ids::{ContainerId, SandboxId};
use crate::ports::{ContainerState, PodRuntimeStatus, RuntimePod, SandboxState};

/// A change of one container or sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum RuntimeChange {
    /// The container or sandbox runs.
    Started,
    /// The container or sandbox ended, or it vanished while it ran.
    Died,
    /// The container or sandbox was removed after it had ended, or it vanished.
    Removed,
    /// The container was created, or its state is unknown.
    Unknown,
}

impl RuntimeChange {
    /// Whether the pod's worker has to sync the pod. A removal does not change what should run. A container that is created
    /// and not started would be synced without end if its start keeps failing.
    pub(super) fn needs_sync(&self) -> bool {
        match self {
            RuntimeChange::Started | RuntimeChange::Died => true,
            RuntimeChange::Removed | RuntimeChange::Unknown => false,
        }
    }
}

/// The states of a pod's containers and sandboxes, sorted by id. The cache keeps two of these for each pod, so they are small.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct PodStates(Arc<[(Id, IdState)]>);

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Id {
    Container(ContainerId),
    Sandbox(SandboxId),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum IdState {
    Running,
    Exited,
    /// Unknown, or created and not started yet.
    Unknown,
}

impl PodStates {
    /// The states in a status.
    pub(super) fn of(status: &PodRuntimeStatus) -> Self {
        let containers = status.containers.iter().map(|c| (Id::Container(c.id.clone()), c.state.into()));
        let sandboxes = status.sandboxes.iter().map(|s| (Id::Sandbox(s.id.clone()), s.state.into()));
        let mut all: Vec<(Id, IdState)> = containers.chain(sandboxes).collect();
        all.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
        PodStates(all.into())
    }

    /// Whether a listed pod has the same states. Called for every pod in each relist, so it allocates nothing.
    pub(super) fn matches(&self, pod: &RuntimePod) -> bool {
        let container =
            |id: &ContainerId| self.0.iter().find(|(known, _)| matches!(known, Id::Container(k) if k == id));
        let sandbox = |id: &SandboxId| self.0.iter().find(|(known, _)| matches!(known, Id::Sandbox(k) if k == id));
        self.0.len() == pod.containers.len() + pod.sandboxes.len()
            && pod.containers.iter().all(|c| container(&c.id).is_some_and(|(_, state)| *state == c.state.into()))
            && pod.sandboxes.iter().all(|s| sandbox(&s.id).is_some_and(|(_, state)| *state == s.state.into()))
    }

    fn state(&self, id: &Id) -> Option<IdState> {
        let at = self.0.binary_search_by(|(known, _)| known.cmp(id)).ok()?;
        Some(self.0[at].1)
    }

    /// Whether the pod has neither containers nor sandboxes.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl From<ContainerState> for IdState {
    fn from(state: ContainerState) -> Self {
        match state {
            ContainerState::Running => IdState::Running,
            ContainerState::Exited => IdState::Exited,
            ContainerState::Created | ContainerState::Unknown => IdState::Unknown,
        }
    }
}

impl From<SandboxState> for IdState {
    fn from(state: SandboxState) -> Self {
        match state {
            SandboxState::Ready => IdState::Running,
            SandboxState::NotReady => IdState::Exited,
        }
    }
}

/// The changes from one status to the next.
pub(super) fn changes(old: &PodStates, new: &PodStates) -> Vec<RuntimeChange> {
    let mut found = Vec::new();
    for (id, now) in new.0.iter() {
        if old.state(id) != Some(*now) {
            found.push(match now {
                IdState::Running => RuntimeChange::Started,
                IdState::Exited => RuntimeChange::Died,
                IdState::Unknown => RuntimeChange::Unknown,
            });
        }
    }
    for (_, before) in old.0.iter().filter(|(id, _)| new.state(id).is_none()) {
        if *before != IdState::Exited {
            found.push(RuntimeChange::Died);
        }
        found.push(RuntimeChange::Removed);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn states(states: &[(&str, ContainerState)]) -> PodStates {
        PodStates(states.iter().map(|(id, state)| (Id::Container((*id).into()), (*state).into())).collect())
    }

    // POD-S88
    #[test]
    fn each_container_change_is_found() {
        use ContainerState::*;
        let running = states(&[("c", Running)]);
        let rows: [(&PodStates, &PodStates, &[RuntimeChange]); 6] = [
            (&states(&[]), &running, &[RuntimeChange::Started]),
            (&running, &states(&[("c", Exited)]), &[RuntimeChange::Died]),
            (&states(&[("c", Exited)]), &states(&[]), &[RuntimeChange::Removed]),
            (&running, &states(&[]), &[RuntimeChange::Died, RuntimeChange::Removed]),
            (&running, &running, &[]),
            (&states(&[("c", Created)]), &states(&[("c", Unknown)]), &[]),
        ];
        for (old, new, expected) in rows {
            assert_eq!(changes(old, new), expected, "{old:?} -> {new:?}");
        }
    }
}
