//! The facts, and the questions about them. Pure.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use foldhash::fast::FixedState;

use crate::ids::{ContainerId, ContainerName, PodUid};
use crate::ports::{ContainerState, PodRuntimeStatus, RuntimePod, RuntimePodContainer};
use crate::probes::{ContainerProbes, ProbeResult, ProbeSnapshot};
use crate::time::{Grace, Time};

/// The facts of all runs, by pod. A run without a fact has no entry.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct State {
    pub(super) pods: HashMap<PodUid, BTreeMap<ContainerId, RunFact>, FixedState>,
}

/// What the next agent has to know of one run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct RunFact {
    /// The start of the run was requested, and has not ended. A post-start hook is part of the start.
    pub(super) start: Option<StartFact>,
    /// The stop of the run, if it stops.
    pub(super) stop: Option<StopFact>,
    /// The stop that starts the container again with other resources. If the run ends before this stop is over, its exit code says nothing
    /// about its work.
    pub(super) for_resize: Option<StopFact>,
    /// The startup probe has passed.
    pub(super) started: bool,
    /// The last result of the readiness probe.
    pub(super) ready: Option<bool>,
    /// An earlier agent recorded this fact. This field is not in the file: every fact in the file is of an earlier agent.
    pub(super) inherited: bool,
    /// The container, if the earlier agent died during the start and the runtime therefore ended the run: the run has ended, and the
    /// runtime reports no time of its start. This field is not in the file: every read of the pod shows it.
    pub(super) abandoned: Option<ContainerName>,
}

/// How far a start has come that has not ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StartFact {
    /// It was requested. The post-start hook is due once the run runs.
    Requested,
    /// The post-start hook has failed, so the run has to be stopped.
    HookFailed,
}

/// A stop that has begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StopFact {
    /// When the run is killed.
    pub(super) killed_at: Time,
    /// How long the stop may take at most. The clock may have been ahead when the stop began, and be set back when the next agent reads it.
    pub(super) limit: Duration,
}

impl StopFact {
    fn rest(self, now: Time) -> Duration {
        self.killed_at.since(now).min(self.limit)
    }

    /// The stop as it goes on; `None` if it is over. It counts from `now` on if the clock was set back, and so it ends.
    pub(super) fn going_on(self, now: Time) -> Option<StopFact> {
        let rest = self.rest(now);
        (!rest.is_zero()).then_some(StopFact { killed_at: now + rest, ..self })
    }
}

impl RunFact {
    /// Whether there is nothing to know.
    pub(super) fn is_empty(&self) -> bool {
        let RunFact { start, stop, for_resize, started, ready, inherited: _, abandoned: _ } = self;
        start.is_none() && stop.is_none() && for_resize.is_none() && !started && ready.is_none()
    }

    /// Compares the fact with what the runtime has now. Returns whether the fact still matters.
    pub(super) fn observe(&mut self, run: &ContainerId, status: &PodRuntimeStatus) -> bool {
        let Some(observed) = status.containers.iter().find(|observed| observed.id == *run) else { return false };
        if observed.state != ContainerState::Exited {
            return true;
        }
        let mut newer = status.runs(observed.name.as_str()).take_while(|newer| newer.id != *run).peekable();
        let is_newest = newer.peek().is_none();
        let is_requested = self.start == Some(StartFact::Requested);
        let is_abandoned = is_requested && self.inherited && observed.started_at.is_none() && is_newest;
        self.abandoned = is_abandoned.then(|| observed.name.clone());
        // A newer run that never started may be abandoned. Then this run is the last one of its container again.
        is_abandoned || (self.for_resize.is_some() && newer.all(|newer| newer.started_at.is_none()))
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

    /// The start of a run, if it was requested and has not ended.
    pub(super) fn start_of(&self, pod: &PodUid, run: &ContainerId) -> Option<StartFact> {
        self.fact(pod, run)?.start
    }

    /// The runs of a pod whose starts were abandoned, with their containers. A container has at most one.
    pub(super) fn abandoned(&self, pod: &PodUid) -> impl Iterator<Item = (&ContainerId, &ContainerName)> {
        let runs = self.pods.get(pod).into_iter().flatten();
        runs.filter_map(|(run, fact)| Some((run, fact.abandoned.as_ref()?)))
    }

    /// Adds the results that the probes of the running containers had under an earlier agent, where there is no later result.
    pub(super) fn complete(&self, pod: &PodUid, status: &PodRuntimeStatus, probes: &mut ProbeSnapshot) {
        let Some(facts) = self.pods.get(pod) else { return };
        for run in status.containers.iter().filter(|run| run.state == ContainerState::Running) {
            let Some(RunFact { started, ready, .. }) = facts.get(&run.id) else { continue };
            let results: &mut ContainerProbes = probes.entry(run.id.clone()).or_default();
            results.startup = results.startup.or(started.then_some(ProbeResult::Success));
            results.readiness = results.readiness.or(ready.map(result));
        }
    }

    /// The runs of a pod that are stopped for a resize and still run.
    pub(super) fn running_for_resize(&self, pod: &PodUid, status: &PodRuntimeStatus) -> Vec<ContainerId> {
        let is_running = |id: &ContainerId| {
            status.containers.iter().any(|run| run.id == *id && run.state == ContainerState::Running)
        };
        let facts = self.pods.get(pod).into_iter().flatten();
        facts.filter(|(run, fact)| fact.for_resize.is_some() && is_running(run)).map(|(run, _)| run.clone()).collect()
    }

    /// The rest of the grace period of a run that stops.
    pub(super) fn rest(&self, pod: &PodUid, run: &ContainerId, now: Time) -> Option<Duration> {
        Some(self.fact(pod, run)?.stop?.rest(now))
    }

    /// The grace period of a pod without a spec. A container that stops already has the rest of its grace period, and any other one that
    /// of the pod.
    pub(super) fn grace(&self, pod: &RuntimePod, now: Time) -> Grace {
        let runs = |run: &&RuntimePodContainer| matches!(run.state, ContainerState::Running | ContainerState::Unknown);
        let own = pod.grace.unwrap_or(Grace::MIN);
        let of = |run: &RuntimePodContainer| self.rest(&pod.uid, &run.id, now).map_or(own, seconds);
        pod.containers.iter().filter(runs).map(of).max().unwrap_or(Grace::MIN)
    }

    /// The number of runs with a fact.
    pub(super) fn len(&self) -> usize {
        self.pods.values().map(BTreeMap::len).sum()
    }
}

fn result(passed: bool) -> ProbeResult {
    if passed { ProbeResult::Success } else { ProbeResult::Failure }
}

/// A duration in whole seconds, rounded up.
fn seconds(rest: Duration) -> Grace {
    let whole = rest.as_secs() + u64::from(rest.subsec_nanos() > 0);
    Grace::from_seconds(i64::try_from(whole).unwrap_or(i64::MAX))
}
