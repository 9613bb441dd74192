//! The groups of a shutdown, its steps, and what it does to a pod's status.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::PodStatus;
use proptest::prelude::*;

use super::perform::terminated;
use super::plan::{ShutdownGroup, groups};
use super::step::{Effect, Event, SLACK, State, begin, step};
use super::{ShutdownConfig, ShutdownGate};
use crate::admission::{AdmissionHandler, Admitted};
use crate::ids::PodUid;
use crate::pod::{PodObject, SYSTEM_CRITICAL_PRIORITY};
use crate::testing::pod;
use crate::time::Time;

const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn with(name: &str, priority: Option<i32>, grace: i64) -> Arc<PodObject> {
    pod(name)
        .spec(|spec| {
            spec.priority = priority;
            spec.termination_grace_period_seconds = Some(grace);
        })
        .build()
}

/// The names of the pods of each group.
fn names(groups: &[ShutdownGroup]) -> Vec<Vec<&str>> {
    groups.iter().map(|group| group.pods.iter().map(|pod| pod.full_name().name()).collect()).collect()
}

// POD-S92
#[test]
fn shutdown_stops_normal_pods_before_critical_pods_each_in_its_grace() {
    let pods = [
        with("system", Some(SYSTEM_CRITICAL_PRIORITY), 30),
        with("short", None, 2),
        with("long", Some(5), 1000),
        with("usual", None, 30),
    ];
    let groups = groups(&ShutdownConfig::new(secs(30), secs(10)), &pods);
    let graces = |group: &ShutdownGroup| group.pods.iter().map(|p| group.grace(p).seconds()).collect::<Vec<_>>();
    assert_eq!(groups.iter().map(graces).collect::<Vec<_>>(), [vec![2, 20, 20], vec![10]]);
}

#[test]
fn shutdown_is_disabled_by_zero_or_by_less_than_the_critical_part() {
    let config = |total, critical| ShutdownConfig::new(secs(total), secs(critical));
    assert!(config(0, 0).is_disabled());
    assert!(config(5, 10).is_disabled());
    assert!(ShutdownConfig::from(Duration::ZERO).is_disabled());
    assert_eq!(groups(&config(5, 10), &[with("a", None, 1)]).len(), 0);
    assert_eq!(groups(&config(10, 10), &[with("a", None, 1)]).len(), 1);
    assert_eq!(config(30, 10).total(), secs(30));
    // Two groups with half a second each, and two writes of one second.
    assert_eq!(config(30, 10).longest(), secs(33));
}

#[test]
fn a_pod_belongs_to_the_highest_group_that_is_not_above_its_priority() {
    let config =
        ShutdownConfig::by_priority(BTreeMap::from([(100, secs(1)), (10, secs(2)), (1000, secs(3)), (0, secs(4))]));
    let pods = [
        with("below", Some(-5), 1),
        with("none", None, 1),
        with("ten", Some(10), 1),
        with("eleven", Some(11), 1),
        with("above", Some(2_000_001_000), 1),
    ];
    let groups = groups(&config, &pods);
    assert_eq!(names(&groups), [vec!["below", "none"], vec!["ten", "eleven"], vec!["above"]]);
    assert_eq!(groups.iter().map(|group| group.time).collect::<Vec<_>>(), [secs(4), secs(2), secs(3)]);
}

/// The pods that were asked to stop, that are late, and that are left running.
#[derive(Debug, Default)]
struct Log {
    stops: Vec<String>,
    cleanups: usize,
    late: Vec<String>,
    left: usize,
}

impl Log {
    fn add(&mut self, effects: Vec<Effect>) {
        let names = |pods: Vec<Arc<PodObject>>| pods.into_iter().map(|pod| pod.full_name().name().to_owned());
        for effect in effects {
            match effect {
                Effect::Stop(group) => self.stops.extend(names(group.pods)),
                Effect::AwaitCleanup(_) => self.cleanups += 1,
                Effect::Late(pods) => self.late.extend(names(pods)),
                Effect::Leave(count) => self.left += count,
            }
        }
    }
}

/// Runs these events after the begin of a shutdown of the pods `a`, `b` (10 s) and `c` (5 s). Times are in seconds.
fn run(events: &[(&str, u64)]) -> (State, Log) {
    let groups = [(10, vec!["a", "b"]), (5, vec!["c"])];
    let groups = groups.into_iter().map(|(time, names)| ShutdownGroup {
        time: secs(time),
        pods: names.into_iter().map(|name| with(name, None, 30)).collect(),
    });
    let groups: Vec<_> = groups.collect();
    let uid = |name: &str| -> Option<PodUid> {
        let mut pods = groups.iter().flat_map(|group| &group.pods);
        pods.find(|pod| pod.full_name().name() == name).map(|pod| pod.uid().clone())
    };
    let mut log = Log::default();
    let (mut state, effects) = begin(groups.clone(), Time::ZERO);
    log.add(effects);
    for (what, at) in events {
        let now = Time::from_secs(*at);
        let event = match *what {
            "clean" => Event::CleanedUp { now },
            "time" => Event::TimeUp { now },
            "cancel" => Event::Cancelled,
            name => Event::Stopped { uid: uid(name).unwrap(), now },
        };
        let (next, effects) = step(state, event);
        state = next;
        log.add(effects);
    }
    (state, log)
}

#[test]
fn the_next_group_stops_once_the_group_before_is_cleaned_up() {
    let (state, log) = run(&[("a", 1), ("b", 2)]);
    assert!(matches!(state, State::CleaningUp { .. }));
    assert_eq!((log.stops.join(" "), log.cleanups), ("a b".into(), 1));
    let (state, log) = run(&[("a", 1), ("b", 2), ("clean", 3)]);
    assert_eq!((log.stops.join(" "), state.ends()), ("a b c".into(), Some(Time::from_secs(8) + SLACK)));
    let (state, log) = run(&[("a", 1), ("b", 2), ("clean", 3), ("c", 4), ("clean", 4)]);
    assert!(matches!(state, State::Ended));
    assert_eq!((log.late.len(), log.left), (0, 0));
}

#[test]
fn a_group_ends_with_its_time_whatever_still_runs_or_is_mounted() {
    let (state, log) = run(&[("b", 2), ("time", 10)]);
    assert!(matches!(state, State::Stopping { .. }), "{log:?}");
    let (_, log) = run(&[("b", 2), ("time", 11)]);
    assert_eq!((log.late.join(" "), log.stops.join(" ")), ("a".into(), "a b c".into()));
    let (state, log) = run(&[("a", 2), ("b", 2), ("time", 11), ("a", 12), ("time", 17)]);
    assert!(matches!(state, State::Ended));
    assert_eq!((log.late.join(" "), log.cleanups), ("c".into(), 1));
}

#[test]
fn a_cancelled_shutdown_ends_with_its_current_group() {
    let (state, log) = run(&[("a", 1), ("cancel", 2)]);
    assert!(matches!(state, State::Cancelled { .. }), "{log:?}");
    let (state, log) = run(&[("a", 1), ("cancel", 2), ("cancel", 2), ("b", 3)]);
    assert!(matches!(state, State::Ended), "{log:?}");
    assert_eq!((log.stops.join(" "), log.left, log.late.len()), ("a b".into(), 1, 0));
    let (state, log) = run(&[("a", 1), ("cancel", 2), ("time", 11)]);
    assert!(matches!(state, State::Ended), "{log:?}");
    assert_eq!(log.late.join(" "), "b");
    let (state, log) = run(&[("a", 1), ("b", 1), ("cancel", 2)]);
    assert!(matches!(state, State::Ended), "{log:?}");
    assert_eq!(log.left, 1);
}

proptest! {
    #![proptest_config(podwright_random::cases(256))]

    /// Every event list leads to a state in which each pod was asked to stop at most once, and the time of a shutdown is bounded.
    #[test]
    fn a_shutdown_stops_each_pod_once_and_ends_in_time(
        events in prop::collection::vec((prop::sample::select(vec!["a", "b", "c", "clean", "time", "cancel"]), 0..3u64), 0..20),
    ) {
        let mut now = 0;
        let events: Vec<_> = events.into_iter().map(|(what, after)| { now += after; (what, now) }).collect();
        let (state, log) = run(&events);
        let mut stops = log.stops.clone();
        stops.dedup();
        prop_assert_eq!(&stops, &log.stops);
        prop_assert!(state.ends().is_none_or(|ends| ends <= Time::from_secs(now.max(10) + 6)));
        let ended = [events, vec![("time", now + 20), ("time", now + 40)]].concat();
        prop_assert!(matches!(run(&ended).0, State::Ended));
    }
}

// POD-S92
#[test]
fn shutdown_fails_running_pods_and_leaves_succeeded_pods() {
    let clock = crate::ports::TokioClock::new();
    let edit = terminated(&clock);
    let mut running = PodStatus { phase: Some("Running".into()), ..PodStatus::default() };
    edit(&mut running);
    assert_eq!((running.phase.as_deref(), running.reason.as_deref()), (Some("Failed"), Some("Terminated")));
    let condition = &running.conditions.unwrap()[0];
    assert_eq!(
        (condition.type_.as_str(), condition.reason.as_deref()),
        ("DisruptionTarget", Some("TerminationByKubelet"))
    );
    let mut done = PodStatus { phase: Some("Succeeded".into()), ..PodStatus::default() };
    edit(&mut done);
    assert_eq!(done.phase.as_deref(), Some("Succeeded"));
}

#[test]
fn shutdown_gate_rejects_new_pods_with_node_shutdown() {
    let gate = ShutdownGate::default();
    let none = Admitted::default();
    assert!(gate.admit(&with("a", None, 1), &none).is_ok());
    gate.set_closed(true);
    assert_eq!(gate.admit(&with("a", None, 1), &none).unwrap_err().reason, "NodeShutdown");
}
