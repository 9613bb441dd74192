//! Tables of single steps. The [`model`] checks the invariants in all orders of events.

mod model;

use std::sync::Arc;
use std::time::Duration;

use super::step::{Effects, Event, HookCall, Outcome, StepContext, new_record, step};
use super::{KillOptions, Lifecycle, Update, UpdateKind};
use crate::ports::{FailureCause, Observed, SyncKind, SyncRetry};
use crate::testing::pod;
use crate::time::Time;

fn context(now: Time) -> StepContext {
    let (resync, error_backoff) = (Duration::from_secs(60), Duration::from_secs(10));
    StepContext { now, jitter: 0.0, resync, error_backoff }
}

fn take(now: Time, record: &mut super::state::Record) -> Effects {
    step(record, Event::Take { may_start: true, observed: Observed::Never }, context(now))
}

// POD-W18
#[test]
fn merged_updates_are_measured_from_the_oldest() {
    let at = Time::from_secs;
    let (mut record, _) = new_record(Update::create(pod("a").build()), Observed::Never, context(at(1)));
    let _call = take(at(1), &mut record);
    for start in [Some(at(5)), Some(at(3)), Some(at(8)), None] {
        let update = Update::changed(pod("a").build());
        let update = start.map_or_else(|| Update::changed(pod("a").build()), |start| update.with_start_time(start));
        let _effects = step(&mut record, Event::Update(update), context(at(9)));
    }
    let first = step(&mut record, Event::Done(Outcome::Continues { check_at: None }), context(at(10)));
    assert_eq!(first.worked, None, "the create had no start time");
    let _call = take(at(10), &mut record);
    let worked = step(&mut record, Event::Done(Outcome::Continues { check_at: None }), context(at(11))).worked.unwrap();
    assert_eq!((worked.kind, worked.start_time), (Some(UpdateKind::Update), at(3)));
}

#[test]
fn a_mirror_pod_is_kept_by_updates_without_one() {
    let at = Time::from_secs;
    let mirror = pod("a").uid("mirror").build();
    let create = Update::create(pod("a").static_pod().build()).with_mirror(Some(mirror.clone()));
    let (mut record, _) = new_record(create, Observed::Never, context(at(1)));
    let _effects = step(&mut record, Event::Update(Update::sync(pod("a").static_pod().build())), context(at(2)));
    for now in [2, 100, 200] {
        let _effects = step(&mut record, Event::Due, context(at(now)));
        let Some(HookCall::Sync(work)) = take(at(now), &mut record).call else { panic!("no setup at {now}") };
        assert!(work.mirror.is_some_and(|known| Arc::ptr_eq(&known, &mirror)));
        assert_eq!(work.kind, SyncKind::Sync);
        let _effects = step(&mut record, Event::Done(Outcome::Continues { check_at: None }), context(at(now)));
    }
}

// The kubelet has one period, `backOffPeriod`, for errors and for a static pod whose full name is taken.
#[test]
fn static_pod_without_its_full_name_retries_after_the_error_backoff() {
    let context = StepContext { error_backoff: Duration::from_secs(3), ..context(Time::from_secs(1)) };
    let (mut record, _) = new_record(Update::create(pod("a").static_pod().build()), Observed::Never, context);
    let _none = step(&mut record, Event::Take { may_start: false, observed: Observed::Never }, context);
    assert!(record.is_blocked());
    assert_eq!(record.due(), Some(Time::from_secs(4)));
}

// Jitter adds up to half of the delay, and its rounding wakes the thread once for each group.
#[test]
fn pods_that_fail_together_are_retried_in_groups() {
    const PODS: u64 = 1_000;
    let mut groups = std::collections::BTreeSet::new();
    for index in 0..PODS {
        // The pods fail at slightly different times.
        let now = Time::from_secs(1_000) + Duration::from_micros(index);
        let (mut record, _) = new_record(Update::create(pod("a").build()), Observed::Never, context(now));
        let _call = take(now, &mut record);
        let failed = Event::Done(Outcome::Failed {
            error: "no".to_owned(),
            retry: SyncRetry::Backoff,
            cause: FailureCause::Unknown,
        });
        let jitter = index as f64 / PODS as f64 / 2.0;
        let _effects = step(&mut record, failed, StepContext { jitter, ..context(now) });
        let due = record.due().unwrap();
        assert!((10.0..=15.0).contains(&due.since(now).as_secs_f64()), "{jitter}: {due}");
        groups.insert(due);
    }
    assert!((30..=40).contains(&groups.len()), "{} groups", groups.len());
}

#[test]
fn delays_are_bounded_by_the_resync_interval() {
    let at = Time::from_secs;
    for (retry, expected) in [
        (SyncRetry::Backoff, 10),
        (SyncRetry::NetworkNotReady, 1),
        (SyncRetry::At(at(103)), 3),
        (SyncRetry::At(at(50)), 0),
        (SyncRetry::At(at(1_000)), 60),
    ] {
        let (mut record, _) = new_record(Update::create(pod("a").build()), Observed::Never, context(at(1)));
        let _call = take(at(2), &mut record);
        let failed = Outcome::Failed { error: "x".to_owned(), retry, cause: FailureCause::Unknown };
        let _effects = step(&mut record, Event::Done(failed), context(at(100)));
        assert_eq!(record.due(), Some(at(100 + expected)), "{retry:?}");
    }
}

#[test]
fn a_record_has_each_of_its_transitions_once() {
    let at = Time::from_secs;
    let (mut record, _) = new_record(Update::create(pod("a").build()), Observed::Never, context(at(1)));
    let _call = take(at(2), &mut record);
    let kill = Update::kill(pod("a").build()).with_options(KillOptions { evict: true, ..KillOptions::default() });
    let _effects = step(&mut record, Event::Update(kill), context(at(3)));
    let _effects = step(&mut record, Event::Done(Outcome::Cancelled), context(at(4)));
    for now in [5, 6] {
        let _call = take(at(now), &mut record);
        let _effects = step(&mut record, Event::Done(Outcome::Succeeded), context(at(now)));
    }
    let transitions: Vec<_> = record.transitions().map(|t| (t.at, t.to, t.cause.as_str())).collect();
    let expected = [
        (at(1), Lifecycle::Waiting, "first update"),
        (at(2), Lifecycle::Sync, "allowed to start"),
        (at(3), Lifecycle::Terminating, "evicted"),
        (at(5), Lifecycle::Terminated, "containers stopped"),
        (at(6), Lifecycle::Finished, "cleaned up"),
    ];
    assert_eq!(transitions, expected);
}
