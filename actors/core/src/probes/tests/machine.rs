use std::time::Duration;

use k8s_openapi::api::core::v1::Probe;
use proptest::prelude::*;

use crate::ids::ContainerId;
use crate::probes::{Effect, Event, Outcome, ProbeKind, ProbeResult, ProbeSettings, ProbedRun, RunOrigin, State, step};
use crate::time::Time;

const T0: u64 = 1_000;

fn at(seconds: u64) -> Time {
    Time::from_secs(T0 + seconds)
}

fn settings(kind: ProbeKind, probe: Probe) -> ProbeSettings {
    ProbeSettings::new(kind, &probe, at(0))
}

fn every(kind: ProbeKind, period: i32, success: i32, failure: i32) -> ProbeSettings {
    let probe = Probe {
        period_seconds: Some(period),
        success_threshold: Some(success),
        failure_threshold: Some(failure),
        ..Probe::default()
    };
    settings(kind, probe)
}

fn run(id: &str, since: Option<u64>) -> ProbedRun {
    ProbedRun { id: id.into(), running_since: since.map(at), started: true, found: RunOrigin::Fresh }
}

fn observed(run: ProbedRun, now: u64) -> Event {
    Event::Observed { run: Some(run), now: at(now) }
}

fn answered(id: &str, outcome: Outcome, now: u64) -> Event {
    Event::Answered { id: id.into(), outcome, now: at(now) }
}

fn probe_at(id: &str, seconds: u64) -> Effect {
    Effect::ProbeAt { id: id.into(), at: at(seconds) }
}

fn report(id: &str, result: ProbeResult) -> Effect {
    Effect::Report { id: id.into(), result }
}

/// Steps through `events` and returns the effects of each.
fn walk(settings: &ProbeSettings, events: impl IntoIterator<Item = Event>) -> (State, Vec<Vec<Effect>>) {
    let mut state = State::Absent;
    let mut effects = Vec::new();
    for event in events {
        let (next, of_event) = step(settings, state, event);
        state = next;
        effects.push(of_event);
    }
    (state, effects)
}

#[test]
fn missing_and_zero_probe_settings_get_the_api_defaults() {
    for probe in [
        Probe::default(),
        Probe { period_seconds: Some(0), timeout_seconds: Some(0), failure_threshold: Some(-1), ..Probe::default() },
    ] {
        let settings = settings(ProbeKind::Liveness, probe);
        let seconds = [settings.initial_delay, settings.period, settings.timeout].map(|d| d.as_secs());
        assert_eq!(seconds, [0, 10, 1]);
        assert_eq!((settings.success_threshold, settings.failure_threshold), (1, 3));
    }
}

#[test]
fn a_new_run_has_its_probes_initial_result() {
    for (kind, result) in [
        (ProbeKind::Startup, ProbeResult::Unknown),
        (ProbeKind::Liveness, ProbeResult::Success),
        (ProbeKind::Readiness, ProbeResult::Failure),
    ] {
        for since in [None, Some(1)] {
            let (state, effects) = walk(&every(kind, 10, 1, 3), [observed(run("a", since), 1)]);
            assert_eq!(state.result(), Some((&ContainerId::from("a"), result)), "{kind}");
            assert!(!effects[0].iter().any(|effect| matches!(effect, Effect::Report { .. })));
        }
    }
}

// The first probe comes after the initial delay: readiness at once, the others on their schedule.
#[test]
fn the_first_probe_waits_for_its_delay_and_schedule() {
    let cases = [
        // kind, delay, period, started, observed, first probe
        (ProbeKind::Readiness, 0, 10, 2, 2, 2),
        (ProbeKind::Readiness, 5, 10, 2, 2, 7),
        (ProbeKind::Readiness, 5, 10, 2, 30, 30),
        (ProbeKind::Liveness, 0, 10, 2, 2, 10),
        (ProbeKind::Liveness, 8, 10, 2, 2, 10),
        (ProbeKind::Liveness, 9, 10, 2, 2, 20),
        (ProbeKind::Startup, 0, 1, 2, 3, 3),
        (ProbeKind::Startup, 0, 3, 2, 4, 6),
    ];
    for (kind, delay, period, started, now, first) in cases {
        let probe = Probe { initial_delay_seconds: Some(delay), period_seconds: Some(period), ..Probe::default() };
        let (_, effects) = walk(&settings(kind, probe), [observed(run("a", Some(started)), now)]);
        assert_eq!(effects, [[probe_at("a", first)]], "{kind} {delay} {period} {started} {now}");
    }
}

#[test]
fn an_adopted_run_has_no_result_before_its_spread_first_probe() {
    let found = RunOrigin::Adopted { jitter: Duration::from_secs(4), passed_startup: false };
    let adopted = ProbedRun { found, ..run("a", Some(0)) };
    for kind in [ProbeKind::Startup, ProbeKind::Liveness, ProbeKind::Readiness] {
        let (state, effects) = walk(&every(kind, 10, 1, 1), [observed(adopted.clone(), 101)]);
        assert_eq!((state.result(), effects), (None, vec![vec![probe_at("a", 105)]]), "{kind}");
        let (state, effects) = step(&every(kind, 10, 1, 1), state, answered("a", Outcome::Success, 105));
        assert_eq!(state.result(), Some((&"a".into(), ProbeResult::Success)));
        assert_eq!(effects[0], report("a", ProbeResult::Success));
    }
}

#[test]
fn an_adopted_started_run_has_no_further_startup_probe() {
    let found = RunOrigin::Adopted { jitter: Duration::ZERO, passed_startup: true };
    let (state, effects) =
        walk(&every(ProbeKind::Startup, 10, 1, 1), [observed(ProbedRun { found, ..run("a", Some(0)) }, 101)]);
    assert_eq!(state, State::Settled { id: "a".into(), result: ProbeResult::Success });
    assert_eq!(effects, [[]]);
}

#[test]
fn probe_thresholds_count_consecutive_equal_outcomes() {
    use Outcome::{Failure as F, Success as S, Unknown as U};
    let none = None;
    let ready = Some(ProbeResult::Success);
    let not_ready = Some(ProbeResult::Failure);
    let cases: [(&[Outcome], Vec<Option<ProbeResult>>); 5] = [
        (&[S, S, S], vec![none, ready, none]),
        (&[S, F, S, S], vec![none, none, none, ready]),
        (&[S, S, F, F, F, F, S, S], vec![none, ready, none, none, not_ready, none, none, ready]),
        (&[S, S, F, F, S, F, F, F], vec![none, ready, none, none, none, none, none, not_ready]),
        // A probe that could not run neither counts nor breaks a streak; a failure of what is not ready changes
        // nothing.
        (&[F, F, F, S, U, S], vec![none, none, none, none, none, ready]),
    ];
    let settings = every(ProbeKind::Readiness, 1, 2, 3);
    for (outcomes, reports) in cases {
        let events = outcomes.iter().enumerate().map(|(i, outcome)| answered("a", *outcome, i as u64));
        let (_, effects) = walk(&settings, std::iter::once(observed(run("a", Some(0)), 0)).chain(events));
        let reported: Vec<_> = effects[1..]
            .iter()
            .map(|effects| {
                effects.iter().find_map(|effect| match effect {
                    Effect::Report { result, .. } => Some(*result),
                    Effect::ProbeAt { .. } | Effect::Halt => None,
                })
            })
            .collect();
        assert_eq!(reported, reports, "{outcomes:?}");
    }
}

#[test]
fn probes_keep_their_schedule_and_do_not_catch_up() {
    let settings = every(ProbeKind::Readiness, 10, 1, 3);
    let (_, effects) = walk(
        &settings,
        [
            observed(run("a", Some(0)), 0),
            answered("a", Outcome::Success, 1),
            answered("a", Outcome::Success, 14),
            answered("a", Outcome::Unknown, 55),
            answered("a", Outcome::Success, 56),
        ],
    );
    let planned: Vec<_> = effects.iter().map(|effects| effects.last().cloned()).collect();
    assert_eq!(planned, [0, 10, 20, 55, 65].map(|seconds| Some(probe_at("a", seconds))));
}

// POD-S61, POD-S64: the failure remains until the container has another run.
#[test]
fn a_failed_liveness_or_startup_probe_remains_until_the_next_run() {
    for kind in [ProbeKind::Liveness, ProbeKind::Startup] {
        let settings = every(kind, 10, 1, 2);
        let (state, effects) = walk(
            &settings,
            [
                observed(run("a", Some(0)), 0),
                answered("a", Outcome::Failure, 0),
                answered("a", Outcome::Failure, 10),
                observed(run("a", Some(0)), 11),
                observed(run("a", None), 12),
            ],
        );
        assert_eq!(effects[2], [report("a", ProbeResult::Failure), Effect::Halt]);
        assert_eq!((&effects[3], &effects[4]), (&vec![], &vec![]));
        assert_eq!(state, State::Settled { id: "a".into(), result: ProbeResult::Failure });
        let (state, effects) = step(&settings, state, observed(run("b", Some(13)), 13));
        assert_eq!(effects, [probe_at("b", 20)]);
        assert_eq!(state.result().map(|(id, _)| id.as_str()), Some("b"));
        // The streak of failures does not continue from the old run.
        let (_, effects) = step(&settings, state, answered("b", Outcome::Failure, 20));
        assert_eq!(effects, [probe_at("b", 30)]);
    }
}

#[test]
fn a_startup_probe_ends_when_it_passes() {
    let settings = every(ProbeKind::Startup, 10, 1, 2);
    let (state, effects) = walk(
        &settings,
        [observed(run("a", Some(0)), 0), answered("a", Outcome::Success, 0), observed(run("a", Some(0)), 9)],
    );
    assert_eq!(effects[1..], [vec![report("a", ProbeResult::Success), Effect::Halt], vec![]]);
    assert_eq!(state, State::Settled { id: "a".into(), result: ProbeResult::Success });
}

#[test]
fn other_probes_wait_for_the_startup_probe() {
    for (kind, first) in [(ProbeKind::Readiness, 33), (ProbeKind::Liveness, 40)] {
        let not_started = ProbedRun { started: false, ..run("a", Some(0)) };
        let (_, effects) = walk(
            &every(kind, 10, 1, 1),
            [observed(not_started.clone(), 0), observed(not_started, 20), observed(run("a", Some(0)), 33)],
        );
        assert_eq!(effects, [vec![], vec![], vec![probe_at("a", first)]], "{kind}");
    }
}

#[test]
fn a_run_that_ends_is_not_ready_and_not_probed() {
    let cases = [
        (ProbeKind::Readiness, ProbeResult::Failure),
        (ProbeKind::Liveness, ProbeResult::Success),
        (ProbeKind::Startup, ProbeResult::Unknown),
    ];
    for (kind, result) in cases {
        let settings = every(kind, 10, 2, 3);
        let (state, effects) = walk(
            &settings,
            [observed(run("a", Some(0)), 0), answered("a", Outcome::Success, 0), observed(run("a", None), 5)],
        );
        assert_eq!(effects[2], [Effect::Halt]);
        assert_eq!(state, State::Waiting { id: "a".into(), result: Some(result) }, "{kind}");
        let (late, effects) = step(&settings, state.clone(), answered("a", Outcome::Success, 6));
        assert_eq!((late, effects), (state, vec![]), "a late answer is ignored");
    }
}

#[test]
fn a_stopped_probe_keeps_its_last_result_and_never_runs_again() {
    let settings = every(ProbeKind::Liveness, 10, 1, 1);
    let (state, effects) =
        walk(&settings, [observed(run("a", Some(0)), 0), Event::Stop, observed(run("b", Some(5)), 5), Event::Stop]);
    assert_eq!(effects[1..], [vec![Effect::Halt], vec![], vec![]]);
    assert_eq!(state.result(), Some((&"a".into(), ProbeResult::Success)));
    assert_eq!(walk(&settings, [Event::Stop]).0.result(), None);
}

#[test]
fn a_removed_run_has_no_probe_result() {
    let gone = Event::Observed { run: None, now: at(9) };
    let (state, effects) = walk(&every(ProbeKind::Readiness, 10, 1, 1), [observed(run("a", Some(0)), 0), gone]);
    assert_eq!((state, &effects[1]), (State::Absent, &vec![Effect::Halt]));
}

fn events() -> impl Strategy<Value = Event> {
    let id = || prop_oneof![Just("a"), Just("b"), Just("c")];
    let found = prop_oneof![
        Just(RunOrigin::Fresh),
        any::<bool>().prop_map(|passed_startup| RunOrigin::Adopted { jitter: Duration::from_secs(3), passed_startup }),
    ];
    let seen = (id(), proptest::option::of(0..90u64), any::<bool>(), found, 0..100u64)
        .prop_map(|(id, since, started, found, now)| observed(ProbedRun { started, found, ..run(id, since) }, now));
    let outcome = prop_oneof![Just(Outcome::Success), Just(Outcome::Failure), Just(Outcome::Unknown)];
    let answer = (id(), outcome, 0..100u64).prop_map(|(id, outcome, now)| answered(id, outcome, now));
    prop_oneof![
        6 => seen,
        12 => answer,
        1 => (0..100u64).prop_map(|now| Event::Observed { run: None, now: at(now) }),
        1 => Just(Event::Stop),
    ]
}

proptest! {
    #![proptest_config(podwright_random::cases(256))]

    // A probe is scheduled exactly while the machine is probing, for the run that it probes.
    #[test]
    fn a_probe_is_scheduled_exactly_while_probing(
        kind in prop_oneof![Just(ProbeKind::Startup), Just(ProbeKind::Liveness), Just(ProbeKind::Readiness)],
        success in 1..3i32,
        failure in 1..4i32,
        events in proptest::collection::vec(events(), 0..60),
    ) {
        let settings = every(kind, 10, success, failure);
        let mut state = State::Absent;
        let mut planned = None;
        for event in events {
            // An outcome comes only from a scheduled probe.
            if matches!(&event, Event::Answered { id, .. } if planned.as_ref().is_none_or(|(planned, _)| planned != id)) {
                continue;
            }
            let now = match &event {
                Event::Observed { now, .. } | Event::Answered { now, .. } => *now,
                Event::Stop => Time::ZERO,
            };
            let was_stopped = matches!(state, State::Stopped { .. });
            let (next, effects) = step(&settings, state.clone(), event);
            for effect in effects {
                prop_assert!(!was_stopped, "a stopped probe does nothing");
                match effect {
                    Effect::ProbeAt { id, at } => {
                        prop_assert!(at >= now, "not in the past");
                        planned = Some((id, at));
                    }
                    Effect::Halt => planned = None,
                    Effect::Report { id, result } => {
                        prop_assert_eq!(next.result(), Some((&id, result)));
                        prop_assert_ne!(state.result(), Some((&id, result)), "only changed results are reported");
                    }
                }
            }
            let probing = match &next {
                State::Probing { id, due, .. } => Some((id.clone(), *due)),
                State::Absent | State::Waiting { .. } | State::Settled { .. } | State::Stopped { .. } => None,
            };
            prop_assert_eq!(&planned, &probing);
            state = next;
        }
    }
}
