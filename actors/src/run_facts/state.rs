//! The facts, and the questions about them.

use std::collections::{BTreeMap, HashMap};

use foldhash::fast::FixedState;

use crate::ids::{ContainerId, PodUid};
use crate::ports::{ContainerState, PodRuntimeStatus};

/// The facts of all runs, by pod. A run without a fact has no entry.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct State {
    pub(super) pods: HashMap<PodUid, BTreeMap<ContainerId, RunFact>, FixedState>,
}

/// What the next agent has to know of one run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct RunFact {
    /// The start of the run was requested, and has not ended.
    pub(super) starting: bool,
    /// An earlier agent requested the start. It is not in the file: every fact in the file is of an earlier agent.
    pub(super) inherited: bool,
    /// The earlier agent died during the start, and the runtime ended the run for that. Nothing of the run was ever executed. It is
    /// not in the file: every read of the pod shows it.
    pub(super) is_abandoned: bool,
}

impl RunFact {
    /// Whether there is nothing to know.
    pub(super) fn is_empty(&self) -> bool {
        !self.starting
    }

    /// Compares the fact with what the runtime has now. Returns whether the fact still matters.
    pub(super) fn observe(&mut self, run: &ContainerId, status: &PodRuntimeStatus) -> bool {
        let Some(observed) = status.containers.iter().find(|observed| observed.id == *run) else { return false };
        if observed.state != ContainerState::Exited {
            return true;
        }
        let is_newest = status.newest(observed.name.as_str()).is_some_and(|newest| newest.id == *run);
        self.is_abandoned = self.starting && self.inherited && observed.started_at.is_none() && is_newest;
        self.is_abandoned
    }
}

impl State {
    pub(super) fn fact(&self, pod: &PodUid, run: &ContainerId) -> Option<&RunFact> {
        self.pods.get(pod)?.get(run)
    }

    /// Takes what the file says of a run. The last line of a run counts.
    pub(super) fn load(&mut self, pod: PodUid, run: ContainerId, fact: RunFact) {
        let runs = self.pods.entry(pod.clone()).or_default();
        if fact.is_empty() {
            runs.remove(&run);
        } else {
            runs.insert(run, fact);
        }
        if runs.is_empty() {
            self.pods.remove(&pod);
        }
    }

    /// The runs of a pod whose starts were abandoned.
    pub(super) fn abandoned(&self, pod: &PodUid) -> impl Iterator<Item = &ContainerId> {
        let runs = self.pods.get(pod).into_iter().flatten();
        runs.filter(|(_, fact)| fact.is_abandoned).map(|(run, _)| run)
    }

    /// The number of runs with a fact.
    pub(super) fn len(&self) -> usize {
        self.pods.values().map(BTreeMap::len).sum()
    }
}
