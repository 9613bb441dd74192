//! The changes of the facts. Pure.

use std::time::Duration;

use super::state::{RunFact, StartFact, State, StopFact};
use crate::ids::{ContainerId, PodUid};
use crate::ports::PodRuntimeStatus;
use crate::probes::ProbeKind;
use crate::time::Time;

/// Times that are closer than this are equal.
const SAME_TIME: Duration = Duration::from_secs(1);

/// What happened to a run or to a pod.
pub(super) enum Event<'a> {
    /// The start of a run is about to be requested.
    Starts { pod: &'a PodUid, run: &'a ContainerId },
    /// The post-start hook of a run has failed.
    HookFailed { pod: &'a PodUid, run: &'a ContainerId },
    /// The start of a run has ended, or the runtime has refused it.
    StartEnded { pod: &'a PodUid, run: &'a ContainerId },
    /// A run is asked to stop, or its pre-stop hook begins.
    Stops { pod: &'a PodUid, run: &'a ContainerId, stop: StopFact },
    /// A run is about to be stopped to start its container again with other resources. Without a stop, it is not stopped.
    StopsForResize { pod: &'a PodUid, run: &'a ContainerId, stop: Option<StopFact> },
    /// The stop of a run has succeeded or failed. The next try gives the run its whole grace period.
    StopEnded { pod: &'a PodUid, run: &'a ContainerId },
    /// The pod is expected to run, so that no stop of an earlier agent goes on.
    Runs { pod: &'a PodUid },
    /// A probe of a run has a new result.
    Probed { pod: &'a PodUid, run: &'a ContainerId, kind: ProbeKind, passed: bool },
    /// A hook of the pod has read the pod from the runtime.
    Observed { pod: &'a PodUid, status: &'a PodRuntimeStatus, now: Time },
    /// Only the pods for which the function returns true may still run.
    Retained { keep: &'a dyn Fn(&PodUid) -> bool },
}

/// The runs whose facts have changed, each with its pod.
pub(super) type Changed = Vec<(PodUid, ContainerId)>;

/// Applies an event. Total: no I/O, no clock, no lock, no panic.
#[must_use]
pub(super) fn step(state: &mut State, event: Event<'_>) -> Changed {
    match event {
        Event::Starts { pod, run } => state.edit(pod, run, |fact| fact.start = Some(StartFact::Requested)),
        Event::HookFailed { pod, run } => state.edit(pod, run, |fact| fact.start = Some(StartFact::HookFailed)),
        Event::StartEnded { pod, run } => state.edit(pod, run, |fact| fact.start = None),
        Event::Stops { pod, run, stop } => state.edit(pod, run, |fact| {
            // Each call of one stop computes the time anew.
            let is_other = |begun: StopFact| {
                begun.killed_at.since(stop.killed_at).max(stop.killed_at.since(begun.killed_at)) >= SAME_TIME
            };
            if fact.stop.is_none_or(is_other) {
                fact.stop = Some(stop);
            }
        }),
        Event::StopsForResize { pod, run, stop } => state.edit(pod, run, |fact| fact.for_resize = stop),
        Event::StopEnded { pod, run } => state.edit(pod, run, |fact| fact.stop = None),
        Event::Runs { pod } => {
            let facts = state.pods.get(pod).into_iter().flatten();
            let stopping = facts.filter(|(_, fact)| fact.stop.is_some());
            let stopping: Vec<ContainerId> = stopping.map(|(run, _)| run.clone()).collect();
            stopping.iter().flat_map(|run| state.edit(pod, run, |fact| fact.stop = None)).collect()
        }
        Event::Probed { pod, run, kind, passed } => state.edit(pod, run, |fact| match kind {
            ProbeKind::Startup => fact.started = passed,
            ProbeKind::Readiness => fact.ready = Some(passed),
            // A container whose liveness probe failed is restarted, and the next agent probes it again.
            ProbeKind::Liveness => {}
        }),
        // Hooks of a pod do not overlap, so the runtime had each run with a fact before this hook read the pod. A run that runs after its
        // stop for a resize was not stopped: the agent died before the request, or the request failed. Its exit is its own.
        Event::Observed { pod, status, now } => {
            let stopping = state.running_for_resize(pod, status);
            let go_on = |fact: &mut RunFact| fact.for_resize = fact.for_resize.and_then(|stop| stop.going_on(now));
            let mut changed: Changed = stopping.iter().flat_map(|run| state.edit(pod, run, go_on)).collect();
            changed.extend(state.forget(pod, |run, fact| fact.observe(run, status)));
            changed
        }
        Event::Retained { keep } => {
            let dropped: Vec<PodUid> = state.pods.keys().filter(|pod| !keep(pod)).cloned().collect();
            dropped.iter().flat_map(|pod| state.forget(pod, |_, _| false)).collect()
        }
    }
}

impl State {
    fn edit(&mut self, pod: &PodUid, run: &ContainerId, edit: impl FnOnce(&mut RunFact)) -> Changed {
        let before = self.fact(pod, run).cloned().unwrap_or_default();
        let mut fact = before.clone();
        edit(&mut fact);
        if fact == before {
            return Vec::new();
        }
        if fact.is_empty() {
            return self.forget(pod, |known, _| known != run);
        }
        self.pods.entry(pod.clone()).or_default().insert(run.clone(), fact);
        vec![(pod.clone(), run.clone())]
    }

    /// Forgets the runs of a pod that `keep` rejects.
    fn forget(&mut self, pod: &PodUid, mut keep: impl FnMut(&ContainerId, &mut RunFact) -> bool) -> Changed {
        let Some(facts) = self.pods.get_mut(pod) else { return Vec::new() };
        let forgotten = facts.extract_if(.., |run, fact| !keep(run, fact)).map(|(run, _)| (pod.clone(), run)).collect();
        if facts.is_empty() {
            self.pods.remove(pod);
        }
        forgotten
    }
}
