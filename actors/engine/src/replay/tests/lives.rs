//! A replay reaches every recorded state again, for random events and after segments were dropped.

use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;

use crate::ids::{FullName, PodUid};
use crate::pod::PodObject;
use crate::pod_worker::state::Record;
use crate::pod_worker::step::{Event, Outcome, StepContext};
use crate::pod_worker::{KillOptions, Lifecycle, Notifier, Update};
use crate::ports::{FailureCause, Observed, RunningPod, SyncRetry};
use crate::recorder::Recorder;
use crate::recorder::capture::EventCapture;
use crate::replay::{Pick, Replay, replay};
use crate::testing::pod;
use crate::time::{Grace, Time};

const PODS: usize = 5;

/// An operation on one of the pods.
#[derive(Clone, Debug)]
enum Op {
    /// A number of rounds of requests and setups, and the outcome of each setup (see [`Op::Done`]).
    Rounds(u8, u8),
    /// A request for another sync of the same object.
    Requeue,
    Update {
        kind: u8,
        fresh: bool,
        mirror: bool,
        started: bool,
    },
    Kill {
        grace: Option<i64>,
        evict: bool,
        waiter: bool,
        edit: bool,
        runtime: bool,
        deletion: Option<i64>,
    },
    Take {
        may_start: bool,
        observed: Observed,
    },
    Done(u8),
    Due(u16),
    Known(bool),
}

fn op() -> impl Strategy<Value = Op> {
    let observed = prop_oneof![Just(Observed::Never), Just(Observed::Running), Just(Observed::Stopped)];
    let seconds = || proptest::option::weighted(0.3, 0i64..40);
    prop_oneof![
        2 => (1u8..20, prop_oneof![Just(0u8), Just(7u8)]).prop_map(|(count, end)| Op::Rounds(count, end)),
        4 => Just(Op::Requeue),
        3 => (0u8..3, any::<bool>(), any::<bool>(), any::<bool>())
            .prop_map(|(kind, fresh, mirror, started)| Op::Update { kind, fresh, mirror, started }),
        2 => (seconds(), any::<(bool, bool, bool)>(), proptest::bool::weighted(0.2), seconds()).prop_map(
            |(grace, (evict, waiter, edit), runtime, deletion)| Op::Kill { grace, evict, waiter, edit, runtime, deletion }
        ),
        8 => (proptest::bool::weighted(0.8), observed).prop_map(|(may_start, observed)| Op::Take { may_start, observed }),
        8 => any::<u8>().prop_map(Op::Done),
        2 => (0u16..200).prop_map(Op::Due),
        2 => proptest::bool::weighted(0.7).prop_map(Op::Known),
    ]
}

/// Pods whose events are recorded.
struct World {
    recorder: Recorder,
    /// Whether three eighths of any one ring hold the states of all pods, each with the longest error that is kept.
    holds_all: bool,
    now: u64,
    pods: [Life; PODS],
}

struct Life {
    uid: PodUid,
    object: Arc<PodObject>,
    record: Option<(EventCapture, Record)>,
}

impl World {
    fn new(size: usize, rings: usize) -> Self {
        let pods = std::array::from_fn(|index| {
            let name = format!("p{index}");
            // Every form of UID, and both kinds of pods.
            let uid =
                ["7f2c1e52-0000-4000-8000-0000000000ab", "000102030405060708090a0b0c0d0e0f", "p2", "p3", "p4"][index];
            let builder = pod(&name).uid(uid);
            let object = if index % 2 == 0 { builder.build() } else { builder.static_pod().build() };
            Life { uid: PodUid::new(uid), object, record: None }
        });
        let recorder = Recorder::with_rings(size, rings);
        World { recorder, holds_all: size / rings > 28_000, now: 1_700_000_000_000_000_000, pods }
    }

    fn context(&mut self, index: usize) -> StepContext {
        self.now += 1_234_567;
        let jitter = [0.0, 0.25, 0.1234, 0.5, 0.0][index];
        let (resync, error_backoff) = (Duration::from_secs(60), Duration::from_secs(10));
        StepContext { now: Time::from_nanos(self.now), jitter, resync, error_backoff }
    }

    fn apply(&mut self, index: usize, op: &Op) {
        match op {
            Op::Rounds(count, end) => {
                for round in 0..*count {
                    self.apply(index, if round % 3 == 0 { &Op::Due(200) } else { &Op::Requeue });
                    self.apply(index, &Op::Take { may_start: true, observed: Observed::Never });
                    self.apply(index, &Op::Done(*end));
                }
            }
            Op::Requeue => self.update(index, Update::sync(self.pods[index].object.clone())),
            Op::Update { kind, fresh, mirror, started } => {
                if *fresh {
                    self.pods[index].object = copy(&self.pods[index].object, None);
                }
                let object = self.pods[index].object.clone();
                let update = match kind {
                    0 => Update::create(object),
                    1 => Update::changed(object),
                    _ => Update::sync(object),
                };
                let update = update.with_mirror(mirror.then(|| pod("p0").uid("mirror").mirror().build()));
                self.update(index, if *started { update.with_start_time(Time::from_nanos(self.now)) } else { update });
            }
            Op::Kill { grace, evict, waiter, edit, runtime, deletion } => {
                let life = &self.pods[index];
                let update = match (runtime, deletion) {
                    (true, _) => Update::kill_runtime(RunningPod {
                        uid: life.uid.clone(),
                        full_name: life.object.full_name().clone(),
                    }),
                    (false, Some(grace)) => Update::kill(copy(&life.object, Some(*grace))),
                    (false, None) => Update::kill(life.object.clone()),
                };
                let options = KillOptions {
                    completed: waiter.then(|| Notifier::new().0),
                    evict: *evict,
                    status_fn: edit.then(|| Arc::new(|_: &mut _| {}) as crate::ports::StatusFn),
                    grace: grace.map(Grace::from_seconds),
                };
                self.update(index, update.with_options(options));
            }
            Op::Take { may_start, observed } => {
                self.drive(index, Event::Take { may_start: *may_start, observed: *observed });
            }
            Op::Done(choice) => {
                let now = Time::from_nanos(self.now);
                let outcome = match choice % 10 {
                    0..4 => Outcome::Continues { check_at: None },
                    4 => Outcome::Continues { check_at: Some(now + Duration::from_secs(3)) },
                    5 => Outcome::Ended,
                    6 => Outcome::Cancelled,
                    7 => Outcome::Failed {
                        error: "ü".repeat(700),
                        retry: SyncRetry::At(now + Duration::from_secs(4)),
                        cause: FailureCause::Unknown,
                    },
                    _ => Outcome::Succeeded,
                };
                self.drive(index, Event::Done(outcome));
            }
            Op::Due(seconds) => {
                self.now += u64::from(*seconds) * 1_000_000_000;
                self.drive(index, Event::Due);
            }
            Op::Known(desired) => self.drive(index, Event::Known { desired: *desired }),
        }
    }

    fn update(&mut self, index: usize, update: Update) {
        if self.pods[index].record.is_some() {
            return self.drive(index, Event::Update(update));
        }
        let context = StepContext { jitter: 0.0, ..self.context(index) };
        let observed = if index == 4 { Observed::Stopped } else { Observed::Never };
        let (capture, record, _effects) = EventCapture::new_record(Some(&self.recorder), update, observed, context);
        self.pods[index].record = Some((capture, record));
    }

    fn drive(&mut self, index: usize, event: Event) {
        let context = self.context(index);
        let life = &mut self.pods[index];
        let Some((capture, record)) = &mut life.record else { return };
        let effects = capture.drive(Some(&self.recorder), &life.uid, record, event, &context);
        if effects.forget {
            life.record = None;
        }
    }

    fn save(&mut self) -> Vec<u8> {
        for index in 0..PODS {
            let context = self.context(index);
            let life = &mut self.pods[index];
            if let Some((capture, record)) = &mut life.record {
                capture.flush(&self.recorder, &life.uid, record, &context);
            }
        }
        self.recorder.save(Time::from_nanos(self.now))
    }

    /// Replays the recording. Checks that it reaches every recorded state and the present lifecycle of each pod.
    fn check(&mut self) -> Replay {
        let file = self.save();
        let run = replay(&file, &Pick::None).unwrap();
        assert_eq!(run.difference, None);
        for life in &self.pods {
            let timeline = replay(&file, &Pick::Uid(life.uid.clone())).unwrap().timeline;
            let last = timeline.last().and_then(|line| line.after);
            // A ring may be too small for the last states of its pods. Then the recording has no event of the pod, or only the
            // end of an earlier record in another ring.
            if last.is_some() || self.holds_all {
                assert_eq!(last, life.record.as_ref().map(|(_, record)| record.lifecycle()), "{}", life.uid);
            }
        }
        run
    }
}

/// A copy of a pod, with a deletion timestamp if `deletion` is a grace period.
fn copy(object: &PodObject, deletion: Option<i64>) -> Arc<PodObject> {
    let mut pod = object.pod().clone();
    if let Some(grace) = deletion {
        pod.metadata.deletion_timestamp =
            Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(jiff::Timestamp::UNIX_EPOCH));
        pod.metadata.deletion_grace_period_seconds = Some(grace);
    }
    PodObject::new(pod).unwrap()
}

proptest! {
    #![proptest_config(podwright_random::cases(150))]

    #[test]
    fn a_replay_reaches_every_state_again(
        size in 400usize..40_000,
        rings in 1usize..4,
        ops in proptest::collection::vec((0..PODS, op()), 1..150),
    ) {
        let mut world = World::new(size, rings);
        for (index, op) in &ops {
            world.apply(*index, op);
        }
        let _run = world.check();
        // The first save flushed the counts. A second recording must still be complete.
        let _run = world.check();
    }
}

#[test]
fn a_recording_is_replayed_after_its_oldest_segments_were_dropped() {
    let size = 64 * 1024;
    let mut world = World::new(size, 2);
    let healthy = Op::Take { may_start: true, observed: Observed::Never };
    for life in 0..3_000 {
        for index in 0..PODS {
            world.apply(index, &Op::Update { kind: 0, fresh: true, mirror: false, started: true });
            world.apply(index, &healthy);
            world.apply(index, &Op::Done(life as u8 % 10));
        }
        if life % 500 == 499 {
            let run = world.check();
            let kept = world.recorder.kept();
            // A ring has eight segments, and a segment may exceed its share by one frame.
            assert!(kept <= size * 3 / 4 + 2 * 4096, "{kept}");
            assert!(life < 2_000 || run.dropped > 1_000, "{run:?}");
        }
    }
}

// The flushes of other pods may drop the oldest segment. A pod whose only frames are in that segment gets a keyframe first.
#[test]
fn a_recording_has_a_pod_whose_frames_are_the_oldest() {
    let take = Op::Take { may_start: true, observed: Observed::Never };
    let create = Op::Update { kind: 0, fresh: false, mirror: false, started: true };
    // The flushes take far more bytes than three rounds, so some number of rounds ends just before the oldest segment is dropped.
    for rounds in (0..400).step_by(3) {
        let mut world = World::new(16 * 1024, 1);
        for index in 0..2 {
            world.apply(index, &create);
            world.apply(index, &take);
            world.apply(index, &Op::Done(0));
        }
        for index in 2..4 {
            world.apply(index, &create);
            // The first failure takes a frame. The others are counted, and flushed with the long error of the pod.
            world.apply(index, &Op::Rounds(3, 7));
        }
        for _ in 0..rounds {
            world.apply(1, &Op::Requeue);
            world.apply(1, &take);
            world.apply(1, &Op::Done(4));
        }
        let file = world.save();
        let run = replay(&file, &Pick::Uid(world.pods[0].uid.clone())).unwrap();
        assert_eq!(run.difference, None, "after {rounds} rounds");
        let last = run.timeline.last().and_then(|line| line.after);
        assert_eq!(last, Some(Lifecycle::Sync), "after {rounds} rounds");
    }
}

// A healthy pod takes one frame, however often it is requeued.
#[test]
fn plain_rounds_take_one_frame() {
    let mut world = World::new(64 * 1024, 1);
    let healthy = Op::Take { may_start: true, observed: Observed::Never };
    world.apply(0, &Op::Update { kind: 0, fresh: false, mirror: false, started: true });
    world.apply(0, &healthy);
    world.apply(0, &Op::Done(0));
    let before = world.save().len();
    for _ in 0..1_000 {
        world.apply(0, &Op::Requeue);
        world.apply(0, &healthy);
        world.apply(0, &Op::Done(0));
    }
    let file = world.save();
    assert!(file.len() < before + 60, "{before} {}", file.len());
    let run = replay(&file, &Pick::Named(FullName::new("test", "p0"))).unwrap();
    assert_eq!(run.difference, None);
    let last = run.timeline.last().unwrap();
    assert_eq!(last.event, "resync, requested 1000 times: succeeded 1000 times");
    assert_eq!((last.before, last.after), (Some(Lifecycle::Sync), Some(Lifecycle::Sync)));
    assert!(
        last.waits.as_ref().unwrap().starts_with("the next resync, at the latest at 2023-11-14T22:14:"),
        "{last:?}"
    );
}

// A pod that fails again and again takes one frame too.
#[test]
fn retries_that_fail_as_before_take_one_frame() {
    let mut world = World::new(64 * 1024, 1);
    let take = Op::Take { may_start: true, observed: Observed::Never };
    world.apply(0, &Op::Update { kind: 0, fresh: false, mirror: false, started: true });
    world.apply(0, &take);
    world.apply(0, &Op::Done(7));
    let before = world.save().len();
    // More than fit in two bytes.
    for _ in 0..70_000 {
        world.apply(0, &Op::Due(20));
        world.apply(0, &take);
        world.apply(0, &Op::Done(7));
    }
    let file = world.save();
    assert!(file.len() < before + 60, "{before} {}", file.len());
    let run = replay(&file, &Pick::Named(FullName::new("test", "p0"))).unwrap();
    assert_eq!(run.difference, None);
    let last = run.timeline.last().unwrap();
    assert!(last.event.starts_with("resync: failed 70000 times as before: üü"), "{last:?}");
    assert!(last.waits.as_ref().unwrap().ends_with("failures so far: 70001"), "{last:?}");
}

// For example, a pod that cannot be stopped because the runtime does not answer.
#[test]
fn an_orphan_that_is_stopping_is_not_recorded_again() {
    let mut world = World::new(64 * 1024, 1);
    let take = Op::Take { may_start: true, observed: Observed::Never };
    world.apply(0, &Op::Update { kind: 0, fresh: false, mirror: false, started: true });
    world.apply(0, &take);
    world.apply(0, &Op::Known(false));
    let assert_not_recorded = |world: &mut World, state: &str| {
        let before = world.save().len();
        for _ in 0..100 {
            world.apply(0, &Op::Known(false));
        }
        assert_eq!(world.check().difference, None, "{state}");
        assert_eq!(world.save().len(), before, "{state}");
    };
    assert_not_recorded(&mut world, "a setup is being cancelled");
    world.apply(0, &Op::Done(6));
    assert_not_recorded(&mut world, "its worker is about to stop it");
    world.apply(0, &take);
    assert_not_recorded(&mut world, "it is being stopped");
    // A pod that is idle is requeued, and that is recorded.
    world.apply(0, &Op::Done(6));
    world.apply(0, &Op::Known(false));
    assert!(world.pods[0].record.as_ref().unwrap().1.has_pending());
    assert_eq!(world.check().difference, None);
    world.apply(0, &take);
    world.apply(0, &Op::Done(7));
    assert_not_recorded(&mut world, "its stop failed");
}

// A changed core is detected at the first event after which the state differs.
#[test]
fn a_replay_reports_the_first_difference() {
    let mut world = World::new(64 * 1024, 1);
    world.apply(0, &Op::Update { kind: 0, fresh: false, mirror: false, started: true });
    // The record is changed behind the recorder's back.
    let (_, record) = world.pods[0].record.as_mut().unwrap();
    let context = StepContext {
        now: Time::from_nanos(world.now),
        jitter: 0.0,
        resync: Duration::from_secs(60),
        error_backoff: Duration::from_secs(10),
    };
    let kill = Update::kill(world.pods[0].object.clone());
    let _effects = crate::pod_worker::step::step(record, Event::Update(kill), context);
    world.apply(0, &Op::Take { may_start: true, observed: Observed::Never });
    world.apply(0, &Op::Done(0));
    let found = replay(&world.save(), &Pick::None).unwrap().difference.expect("a difference");
    assert_eq!((found.number, found.pod.unwrap().name()), (2, "p0"));
    assert!(found.expected.starts_with("terminating, "), "{}", found.expected);
    assert!(found.got.starts_with("sync, "), "{}", found.got);
}

// The two objects differ only in their resource version; a step reads the same facts from both.
#[test]
fn a_core_that_keeps_the_older_update_makes_a_difference() {
    let mut world = World::new(64 * 1024, 1);
    let version = |world: &World, version: &str| {
        let mut pod = world.pods[0].object.pod().clone();
        pod.metadata.resource_version = Some(version.to_owned());
        Update::changed(PodObject::new(pod).unwrap())
    };
    let take = Op::Take { may_start: true, observed: Observed::Never };
    for update in [version(&world, "41"), version(&world, "42")] {
        world.update(0, update);
        world.apply(0, &take);
    }
    assert_eq!(world.check().difference, None);
    // The core that made the recording took a newer update, which is not in the recording.
    let context = world.context(0);
    let update = version(&world, "43");
    let (_, record) = world.pods[0].record.as_mut().unwrap();
    let _effects = crate::pod_worker::step::step(record, Event::Update(update), context);
    world.apply(0, &Op::Done(4));
    let found = replay(&world.save(), &Pick::None).unwrap().difference.expect("a difference");
    assert!(found.event.starts_with("sync_pod succeeded"), "{found:?}");
}
