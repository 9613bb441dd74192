//! The state machine of one probe of one container. Pure.

use std::time::Duration;

use super::{ProbeKind, ProbeResult, ProbeSettings};
use crate::ids::ContainerId;
use crate::time::Time;

/// The state of a probe. `result` is the recorded result for the run; `None` before there is one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum State {
    /// The container has no run.
    #[default]
    Absent,
    /// The run is not running, or has not passed its startup probe.
    Waiting {
        /// The run.
        id: ContainerId,
        /// The recorded result.
        result: Option<ProbeResult>,
    },
    /// The run is probed periodically.
    Probing {
        /// The run.
        id: ContainerId,
        /// The recorded result.
        result: Option<ProbeResult>,
        /// The consecutive equal outcomes; `None` before the first.
        streak: Option<Streak>,
        /// When the running probe was due, or when the next one is.
        due: Time,
    },
    /// The run is no longer probed: it has started, or it will be restarted.
    Settled {
        /// The run.
        id: ContainerId,
        /// The final result.
        result: ProbeResult,
    },
    /// No run is probed any more.
    Stopped {
        /// The last run and its result, so that the status of a terminating pod does not change.
        last: Option<(ContainerId, Option<ProbeResult>)>,
    },
}

/// Consecutive equal outcomes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Streak {
    /// Whether the outcomes were successes.
    pub success: bool,
    /// The number of outcomes, at least one.
    pub length: u32,
}

/// An event of a probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The newest run of the container was observed.
    Observed {
        /// The run; `None` if the container has none.
        run: Option<ProbedRun>,
        /// The time.
        now: Time,
    },
    /// A probe of a run has ended.
    Answered {
        /// The run.
        id: ContainerId,
        /// The outcome.
        outcome: Outcome,
        /// The time.
        now: Time,
    },
    /// The probe is stopped.
    Stop,
}

/// A run of a container, as a probe needs it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProbedRun {
    /// The run's id.
    pub id: ContainerId,
    /// When the run was started, if it runs now.
    pub running_since: Option<Time>,
    /// Whether the run has passed its startup probe or has none. Startup probes ignore it.
    pub started: bool,
    /// How the agent got to know the run.
    pub found: RunOrigin,
}

/// How the agent got to know a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunOrigin {
    /// This agent started the run.
    Fresh,
    /// The run existed before the agent, and an earlier agent may have reported its results. Nothing is recorded until
    /// a probe has a result: until then, the status of the container shows the results of the earlier agent.
    Adopted {
        /// The delay of the first probe, so that a restarted agent does not probe all containers at once.
        jitter: Duration,
        /// Whether an earlier agent saw the startup probe pass. It then does not run again.
        passed_startup: bool,
    },
}

/// The outcome of one probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// The probe passed.
    Success,
    /// The probe failed.
    Failure,
    /// The probe could not run, which says nothing about the container.
    Unknown,
}

/// An effect of a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Run a probe at the time `at`. This replaces any other scheduled probe.
    ProbeAt {
        /// The run.
        id: ContainerId,
        /// The time.
        at: Time,
    },
    /// Cancel the probe that is due or running.
    Halt,
    /// The probe has a new result.
    Report {
        /// The run.
        id: ContainerId,
        /// The result.
        result: ProbeResult,
    },
}

impl State {
    /// The run and its recorded result, if any.
    pub fn result(&self) -> Option<(&ContainerId, ProbeResult)> {
        match self {
            State::Absent | State::Stopped { last: None } => None,
            State::Waiting { id, result } | State::Probing { id, result, .. } => result.map(|result| (id, result)),
            State::Settled { id, result } => Some((id, *result)),
            State::Stopped { last: Some((id, result)) } => result.map(|result| (id, result)),
        }
    }
}

/// Applies an event. Total: no I/O, no clock, no lock, no panic.
#[must_use]
pub fn step(settings: &ProbeSettings, state: State, event: Event) -> (State, Vec<Effect>) {
    match event {
        Event::Observed { run, now } => observed(settings, state, run, now),
        Event::Answered { id, outcome, now } => answered(settings, state, id, outcome, now),
        Event::Stop => {
            let halt = halt(&state);
            let last = match state {
                State::Absent => None,
                State::Waiting { id, result } | State::Probing { id, result, .. } => Some((id, result)),
                State::Settled { id, result } => Some((id, Some(result))),
                State::Stopped { last } => last,
            };
            (State::Stopped { last }, halt)
        }
    }
}

fn observed(settings: &ProbeSettings, state: State, run: Option<ProbedRun>, now: Time) -> (State, Vec<Effect>) {
    let effects = halt(&state);
    match (state, run) {
        (stopped @ State::Stopped { .. }, _) => (stopped, effects),
        (_, None) => (State::Absent, effects),
        (settled @ State::Settled { .. }, Some(run)) if settled.is_of(&run) => (settled, effects),
        (probing @ State::Probing { .. }, Some(run)) if probing.is_of(&run) && run.running_since.is_some() => {
            (probing, vec![])
        }
        (State::Waiting { id, result } | State::Probing { id, result, .. }, Some(run)) if id == run.id => {
            wait_or_probe(settings, run, result, now, effects)
        }
        (State::Absent | State::Waiting { .. } | State::Probing { .. } | State::Settled { .. }, Some(run)) => {
            match (settings.kind, run.found) {
                (ProbeKind::Startup, RunOrigin::Adopted { passed_startup: true, .. }) => {
                    (State::Settled { id: run.id, result: ProbeResult::Success }, effects)
                }
                (_, RunOrigin::Adopted { .. }) => wait_or_probe(settings, run, None, now, effects),
                (kind, RunOrigin::Fresh) => wait_or_probe(settings, run, Some(initial(kind)), now, effects),
            }
        }
    }
}

/// Probes the run if it runs. A run that does not run is not ready. The results of the other two probes remain, because
/// an exit is not a result of theirs.
fn wait_or_probe(
    settings: &ProbeSettings,
    run: ProbedRun,
    result: Option<ProbeResult>,
    now: Time,
    mut effects: Vec<Effect>,
) -> (State, Vec<Effect>) {
    let Some(since) = run.running_since else {
        let result = if settings.kind == ProbeKind::Readiness { Some(ProbeResult::Failure) } else { result };
        return (State::Waiting { id: run.id, result }, effects);
    };
    if !run.started && settings.kind != ProbeKind::Startup {
        return (State::Waiting { id: run.id, result }, effects);
    }
    // A runtime whose clock is ahead of ours must not delay the first probe.
    let earliest = now.max(since.min(now) + settings.initial_delay);
    let due = match run.found {
        RunOrigin::Fresh => settings.first(earliest),
        RunOrigin::Adopted { jitter, .. } => earliest.max(now + jitter),
    };
    effects.push(Effect::ProbeAt { id: run.id.clone(), at: due });
    (State::Probing { id: run.id, result, streak: None, due }, effects)
}

fn answered(
    settings: &ProbeSettings,
    state: State,
    asked: ContainerId,
    outcome: Outcome,
    now: Time,
) -> (State, Vec<Effect>) {
    let (id, result, streak, due) = match state {
        State::Probing { id, result, streak, due } if id == asked => (id, result, streak, due),
        // The outcome is of a run that is no longer probed.
        other => return (other, vec![]),
    };
    // A probe that takes longer than its period is followed by the next one at once; missed periods are not repeated.
    let next = now.max(due + settings.period);
    let again = Effect::ProbeAt { id: id.clone(), at: next };
    let success = match outcome {
        Outcome::Success => true,
        Outcome::Failure => false,
        Outcome::Unknown => return (State::Probing { id, result, streak, due: next }, vec![again]),
    };
    let length = match streak {
        Some(streak) if streak.success == success => streak.length.saturating_add(1),
        _ => 1,
    };
    let streak = Some(Streak { success, length });
    let (threshold, verdict) = match success {
        true => (settings.success_threshold, ProbeResult::Success),
        false => (settings.failure_threshold, ProbeResult::Failure),
    };
    if length < threshold {
        return (State::Probing { id, result, streak, due: next }, vec![again]);
    }
    let mut effects = Vec::new();
    if result != Some(verdict) {
        effects.push(Effect::Report { id: id.clone(), result: verdict });
    }
    match (settings.kind, verdict) {
        // The container will be restarted, so further probes are useless.
        (ProbeKind::Startup | ProbeKind::Liveness, ProbeResult::Failure) | (ProbeKind::Startup, _) => {
            effects.push(Effect::Halt);
            (State::Settled { id, result: verdict }, effects)
        }
        (ProbeKind::Liveness | ProbeKind::Readiness, _) => {
            effects.push(again);
            (State::Probing { id, result: Some(verdict), streak, due: next }, effects)
        }
    }
}

impl State {
    fn is_of(&self, run: &ProbedRun) -> bool {
        match self {
            State::Absent | State::Stopped { last: None } => false,
            State::Waiting { id, .. } | State::Probing { id, .. } | State::Settled { id, .. } => *id == run.id,
            State::Stopped { last: Some((id, _)) } => *id == run.id,
        }
    }
}

/// The result of a run before its first probe (the kubelet's `newWorker`, 1.36): alive, not ready, and not known to
/// have started.
fn initial(kind: ProbeKind) -> ProbeResult {
    match kind {
        ProbeKind::Startup => ProbeResult::Unknown,
        ProbeKind::Liveness => ProbeResult::Success,
        ProbeKind::Readiness => ProbeResult::Failure,
    }
}

fn halt(state: &State) -> Vec<Effect> {
    match state {
        State::Probing { .. } => vec![Effect::Halt],
        State::Absent | State::Waiting { .. } | State::Settled { .. } | State::Stopped { .. } => vec![],
    }
}
