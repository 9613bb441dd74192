//! What changed between two looks at a pod.

use std::sync::Arc;

use crate::ids::{ContainerId, SandboxId};
use crate::ports::{ContainerState, PodRuntimeStatus, RuntimePod, SandboxState};

/// One change of one container or sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum RuntimeChange {
    /// It runs.
    Started,
    /// It ended, or vanished while it ran.
    Died,
    /// It was removed after it ended, or vanished.
    Removed,
    /// Its state cannot be told.
    Unclear,
}

impl RuntimeChange {
    /// Whether the pod should be looked at. That something was removed changes nothing about what should run; that
    /// something was made and does not run yet, or cannot be told, would be looked at for ever if its start fails.
    pub fn is_news(&self) -> bool {
        match self {
            RuntimeChange::Started | RuntimeChange::Died => true,
            RuntimeChange::Removed | RuntimeChange::Unclear => false,
        }
    }
}

/// The states of a pod's containers and sandboxes by id, in the three that matter. In the order of the ids; one is kept
/// for each pod, so it is small.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seen(Arc<[(Id, Standing)]>);

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Id {
    Container(ContainerId),
    Sandbox(SandboxId),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    Running,
    Exited,
    /// Created counts as unknown: it is on its way.
    Unknown,
}

impl Seen {
    /// From a read.
    pub fn of_status(status: &PodRuntimeStatus) -> Self {
        let containers = status.containers.iter().map(|c| (Id::Container(c.id.clone()), c.state.into()));
        let sandboxes = status.sandboxes.iter().map(|s| (Id::Sandbox(s.id.clone()), s.state.into()));
        let mut all: Vec<(Id, Standing)> = containers.chain(sandboxes).collect();
        all.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
        Seen(all.into())
    }

    /// Whether a listing shows the same. Asked of every pod by every relist, so it allocates nothing.
    pub fn is_shown_by(&self, pod: &RuntimePod) -> bool {
        let container =
            |id: &ContainerId| self.0.iter().find(|(known, _)| matches!(known, Id::Container(k) if k == id));
        let sandbox = |id: &SandboxId| self.0.iter().find(|(known, _)| matches!(known, Id::Sandbox(k) if k == id));
        self.0.len() == pod.containers.len() + pod.sandboxes.len()
            && pod.containers.iter().all(|c| container(&c.id).is_some_and(|(_, seen)| *seen == c.state.into()))
            && pod.sandboxes.iter().all(|s| sandbox(&s.id).is_some_and(|(_, seen)| *seen == s.state.into()))
    }

    fn standing(&self, id: &Id) -> Option<Standing> {
        let at = self.0.binary_search_by(|(known, _)| known.cmp(id)).ok()?;
        Some(self.0[at].1)
    }

    /// Whether nothing is there.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl From<ContainerState> for Standing {
    fn from(state: ContainerState) -> Self {
        match state {
            ContainerState::Running => Standing::Running,
            ContainerState::Exited => Standing::Exited,
            ContainerState::Created | ContainerState::Unknown => Standing::Unknown,
        }
    }
}

impl From<SandboxState> for Standing {
    fn from(state: SandboxState) -> Self {
        match state {
            SandboxState::Ready => Standing::Running,
            SandboxState::NotReady => Standing::Exited,
        }
    }
}

/// What changed from one look to the next.
pub fn changes(old: &Seen, new: &Seen) -> Vec<RuntimeChange> {
    let mut found = Vec::new();
    for (id, now) in new.0.iter() {
        if old.standing(id) != Some(*now) {
            found.push(match now {
                Standing::Running => RuntimeChange::Started,
                Standing::Exited => RuntimeChange::Died,
                Standing::Unknown => RuntimeChange::Unclear,
            });
        }
    }
    for (_, before) in old.0.iter().filter(|(id, _)| new.standing(id).is_none()) {
        if *before != Standing::Exited {
            found.push(RuntimeChange::Died);
        }
        found.push(RuntimeChange::Removed);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(states: &[(&str, ContainerState)]) -> Seen {
        Seen(states.iter().map(|(id, state)| (Id::Container((*id).into()), (*state).into())).collect())
    }

    // S88
    #[test]
    fn each_way_a_container_can_go_is_told_apart() {
        use ContainerState::*;
        let running = seen(&[("c", Running)]);
        let rows: [(&Seen, &Seen, &[RuntimeChange]); 6] = [
            (&seen(&[]), &running, &[RuntimeChange::Started]),
            (&running, &seen(&[("c", Exited)]), &[RuntimeChange::Died]),
            (&seen(&[("c", Exited)]), &seen(&[]), &[RuntimeChange::Removed]),
            (&running, &seen(&[]), &[RuntimeChange::Died, RuntimeChange::Removed]),
            (&running, &running, &[]),
            (&seen(&[("c", Created)]), &seen(&[("c", Unknown)]), &[]),
        ];
        for (old, new, expected) in rows {
            assert_eq!(changes(old, new), expected, "{old:?} -> {new:?}");
        }
    }
}
