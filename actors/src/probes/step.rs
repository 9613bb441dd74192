//! The machine of one probe of one container.

use std::time::Duration;

use super::{ProbeKind, ProbeResult, ProbeSettings};
use crate::ids::ContainerId;
use crate::time::Time;

/// Where one probe stands; `result` is what it says of the run, `None` while it says nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum State {
    /// The container has no run.
    #[default]
    Absent,
    /// The run does not run, or has not passed its startup probe yet.
    Waiting {
        /// The run.
        id: ContainerId,
        /// What is recorded of it.
        result: Option<ProbeResult>,
    },
    /// The run is asked again and again.
    Probing {
        /// The run.
        id: ContainerId,
        /// What is recorded of it.
        result: Option<ProbeResult>,
        /// Equal outcomes in a row; `None` before the first.
        streak: Option<Streak>,
        /// When the probe under way was due, or the next is.
        due: Time,
    },
    /// Nothing more to ask of this run: it has started, or it will be started again.
    Settled {
        /// The run.
        id: ContainerId,
        /// The last word.
        result: ProbeResult,
    },
    /// Nothing more to ask of any run.
    Stopped {
        /// The last run and what is recorded of it, so that the status of a pod that is terminating does not change.
        last: Option<(ContainerId, Option<ProbeResult>)>,
    },
}

/// Equal outcomes in a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Streak {
    /// Whether they were successes.
    pub success: bool,
    /// How many, at least one.
    pub length: u32,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// How the newest run of the container was found; `None` if it has none.
    Observed {
        /// The run.
        run: Option<Run>,
        /// When.
        now: Time,
    },
    /// A probe of a run has ended.
    Answered {
        /// The run that was asked.
        id: ContainerId,
        /// How it ended.
        outcome: Outcome,
        /// When.
        now: Time,
    },
    /// No more probes.
    Stop,
}

/// One run of a container, as far as probes care.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    /// Its id.
    pub id: ContainerId,
    /// When it was started, if it runs now.
    pub running_since: Option<Time>,
    /// Whether it has passed its startup probe or has none. Means nothing to a startup probe.
    pub started: bool,
    /// How the agent came to know it.
    pub found: Found,
}

/// How the agent came to know a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// It was started by this agent.
    Fresh,
    /// It was there before the agent, so an earlier agent may have told what its probes said: nothing is recorded
    /// until a probe decides, and ready and started keep their values over the agent's restart.
    Adopted {
        /// How long to spread the first probe, so that an agent restart does not probe everything at once.
        jitter: Duration,
        /// Whether an earlier agent saw the startup probe pass; it is then not asked again.
        passed_startup: bool,
    },
}

/// How one probe ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// It passed.
    Success,
    /// It failed.
    Failure,
    /// It could not be made; says nothing about the container.
    Unknown,
}

/// What to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Probe the run at `at`, in place of any probe that is planned.
    ProbeAt {
        /// The run.
        id: ContainerId,
        /// When.
        at: Time,
    },
    /// Give up the probe that is planned or under way.
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
    /// The run and what the probe says of it, if anything.
    pub fn result(&self) -> Option<(&ContainerId, ProbeResult)> {
        match self {
            State::Absent | State::Stopped { last: None } => None,
            State::Waiting { id, result } | State::Probing { id, result, .. } => result.map(|result| (id, result)),
            State::Settled { id, result } => Some((id, *result)),
            State::Stopped { last: Some((id, result)) } => result.map(|result| (id, result)),
        }
    }
}

/// One move. Total: no I/O, no clock, no lock, no panic.
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

fn observed(settings: &ProbeSettings, state: State, run: Option<Run>, now: Time) -> (State, Vec<Effect>) {
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
                (ProbeKind::Startup, Found::Adopted { passed_startup: true, .. }) => {
                    (State::Settled { id: run.id, result: ProbeResult::Success }, effects)
                }
                (_, Found::Adopted { .. }) => wait_or_probe(settings, run, None, now, effects),
                (kind, Found::Fresh) => wait_or_probe(settings, run, Some(initial(kind)), now, effects),
            }
        }
    }
}

/// Probes the run if it can be asked. A run that does not run is not ready, whatever was said before; of the other two
/// probes the last word stands, because an exit is no verdict of theirs.
fn wait_or_probe(
    settings: &ProbeSettings,
    run: Run,
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
    // A runtime whose clock is ahead of ours must not put the first probe off.
    let earliest = now.max(since.min(now) + settings.initial_delay);
    let due = match run.found {
        Found::Fresh => settings.first(earliest),
        Found::Adopted { jitter, .. } => earliest.max(now + jitter),
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
        // The answer is about a run that is no longer asked.
        other => return (other, vec![]),
    };
    // A probe that outlasts its period is followed by the next at once, but lost beats are not made up for.
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
        // The container will be started again; asking it further while it is stopped helps nobody.
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
    fn is_of(&self, run: &Run) -> bool {
        match self {
            State::Absent | State::Stopped { last: None } => false,
            State::Waiting { id, .. } | State::Probing { id, .. } | State::Settled { id, .. } => *id == run.id,
            State::Stopped { last: Some((id, _)) } => *id == run.id,
        }
    }
}

/// What a probe says of a run that was not asked yet (upstream `newWorker`, kubelet 1.36): it is alive, not ready, and
/// whether it has started is open.
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
