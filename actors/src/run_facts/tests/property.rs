//! The file has the facts after every change.

use proptest::prelude::*;

use super::*;
use crate::journal::Write;

/// What happens to two pods with three runs each.
#[derive(Clone, Debug)]
enum Change {
    Starts(usize, usize),
    HookFailed(usize, usize),
    StartEnded(usize, usize),
    Stops(usize, usize, u64),
    StopsForResize(usize, usize, Option<u64>),
    StopEnded(usize, usize),
    Runs(usize),
    Probed(usize, usize, ProbeKind, bool),
    Observed(usize, Vec<Option<ContainerState>>, u64),
    Gone(usize),
    NextAgent,
}

const PODS: [&str; 2] = ["p", "q"];
const RUNS: [&str; 3] = ["a", "b", "c"];

fn changes() -> impl Strategy<Value = Change> {
    let state = prop_oneof![
        Just(None),
        Just(Some(ContainerState::Created)),
        Just(Some(ContainerState::Running)),
        Just(Some(ContainerState::Exited)),
    ];
    let run = || (0..PODS.len(), 0..RUNS.len());
    let kind = prop_oneof![Just(ProbeKind::Startup), Just(ProbeKind::Readiness), Just(ProbeKind::Liveness)];
    prop_oneof![
        4 => run().prop_map(|(pod, run)| Change::Starts(pod, run)),
        1 => run().prop_map(|(pod, run)| Change::HookFailed(pod, run)),
        3 => run().prop_map(|(pod, run)| Change::StartEnded(pod, run)),
        3 => (run(), 0..90u64).prop_map(|((pod, run), at)| Change::Stops(pod, run, at)),
        1 => (run(), proptest::option::of(0..90u64)).prop_map(|((pod, run), at)| Change::StopsForResize(pod, run, at)),
        2 => run().prop_map(|(pod, run)| Change::StopEnded(pod, run)),
        1 => (0..PODS.len()).prop_map(Change::Runs),
        3 => (run(), kind, any::<bool>()).prop_map(|((pod, run), kind, passed)| Change::Probed(pod, run, kind, passed)),
        4 => (0..PODS.len(), proptest::collection::vec(state, RUNS.len()), 0..90u64)
            .prop_map(|(pod, states, at)| Change::Observed(pod, states, at)),
        1 => (0..PODS.len()).prop_map(Change::Gone),
        1 => Just(Change::NextAgent),
    ]
}

/// The pod as the runtime has it. A run that has ended never started.
fn observed(states: &[Option<ContainerState>]) -> PodRuntimeStatus {
    let runs = RUNS.iter().zip(states).filter_map(|(name, state)| {
        Some(match (*state)? {
            ContainerState::Exited => never_started(name),
            state => ContainerStatus { state, ..run(name, Is::Created) },
        })
    });
    of(runs.collect())
}

fn stop_at(seconds: u64) -> StopFact {
    StopFact { killed_at: Time::from_secs(seconds), limit: Duration::from_secs(seconds) }
}

fn apply(kept: &mut Kept, change: &Change) {
    let changed = match change {
        Change::Starts(pod, run) => {
            step(&mut kept.facts, Event::Starts { pod: &PODS[*pod].into(), run: &RUNS[*run].into() })
        }
        Change::HookFailed(pod, run) => {
            step(&mut kept.facts, Event::HookFailed { pod: &PODS[*pod].into(), run: &RUNS[*run].into() })
        }
        Change::StartEnded(pod, run) => {
            step(&mut kept.facts, Event::StartEnded { pod: &PODS[*pod].into(), run: &RUNS[*run].into() })
        }
        Change::Stops(pod, run, at) => {
            let (pod, run) = (&PODS[*pod].into(), &RUNS[*run].into());
            step(&mut kept.facts, Event::Stops { pod, run, stop: stop_at(*at) })
        }
        Change::StopsForResize(pod, run, at) => {
            let (pod, run) = (&PODS[*pod].into(), &RUNS[*run].into());
            step(&mut kept.facts, Event::StopsForResize { pod, run, stop: at.map(stop_at) })
        }
        Change::StopEnded(pod, run) => {
            step(&mut kept.facts, Event::StopEnded { pod: &PODS[*pod].into(), run: &RUNS[*run].into() })
        }
        Change::Probed(pod, run, kind, passed) => {
            let (pod, run) = (&PODS[*pod].into(), &RUNS[*run].into());
            step(&mut kept.facts, Event::Probed { pod, run, kind: *kind, passed: *passed })
        }
        Change::Runs(pod) => step(&mut kept.facts, Event::Runs { pod: &PODS[*pod].into() }),
        Change::Observed(pod, states, at) => {
            let (pod, status, now) = (&PODS[*pod].into(), &observed(states), Time::from_secs(*at));
            step(&mut kept.facts, Event::Observed { pod, status, now })
        }
        Change::Gone(pod) => {
            step(&mut kept.facts, Event::Retained { keep: &|uid: &PodUid| *uid != PodUid::from(PODS[*pod]) })
        }
        Change::NextAgent => Vec::new(),
    };
    kept.queue(&changed);
}

/// The facts as the next agent has them.
fn inherited(facts: &State) -> State {
    let mut facts = facts.clone();
    let all = facts.pods.values_mut().flat_map(|runs| runs.values_mut());
    all.for_each(|fact| (fact.inherited, fact.abandoned) = (true, None));
    facts
}

proptest! {
    #![proptest_config(podwright_random::cases(256))]

    #[test]
    fn file_has_the_facts_after_every_change(changes in proptest::collection::vec(changes(), 0..60)) {
        let (mut kept, mut file) = (Kept::default(), Vec::<String>::new());
        for change in changes {
            apply(&mut kept, &change);
            let (all, lines) = match kept.take() {
                Write::Save(lines) => (true, lines),
                Write::Append(lines) => (false, lines),
            };
            if all {
                file.clear();
            }
            file.extend(lines.iter().map(|line| line.to_string()));
            let (read, errors) = file::parse(&file);
            prop_assert!(errors.is_empty(), "{:?}", errors);
            prop_assert_eq!(&read, &inherited(&kept.facts));
            if let Change::NextAgent = change {
                kept = Kept { facts: read, ..Kept::default() };
            }
            if let Change::Observed(pod, states, at) = change {
                let facts = kept.facts.pods.get(&PODS[pod].into());
                for (run, fact) in facts.into_iter().flatten() {
                    let state = RUNS.iter().position(|name| *name == run.as_str()).and_then(|at| states[at]);
                    let is_kept = match state {
                        None => false,
                        Some(ContainerState::Exited) => {
                            let is_requested = fact.start == Some(StartFact::Requested);
                            fact.for_resize.is_some() || (is_requested && fact.inherited && fact.abandoned.is_some())
                        }
                        Some(ContainerState::Running) => {
                            fact.for_resize.is_none_or(|stop| stop.killed_at > Time::from_secs(at))
                        }
                        Some(_) => true,
                    };
                    prop_assert!(is_kept, "{} is {:?} and has {:?}", run, state, fact);
                }
            }
        }
    }
}
