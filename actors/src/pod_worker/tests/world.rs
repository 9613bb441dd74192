//! One record and its reference, driven side by side and compared after every step.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;

use super::super::step::{Effects, Event, HookCall, NameMove, Outcome, Tick, birth, step};
use super::super::{Completed, KillOptions, Lifecycle, Notifier, Record, Update, UpdateKind};
use super::model::{Called, Delays, Did, Ends, Model, Said, SaidPod};
use super::ops::{Asked, Op};
use crate::ids::FullName;
use crate::pod::PodObject;
use crate::ports::{Observed, RunningPod, SyncKind, SyncRetry};
use crate::testing::pod;
use crate::time::{Grace, Time};

/// The jitter of every step.
const JITTER: f64 = 0.25;

fn nanos(seconds: u64) -> u64 {
    seconds * 1_000_000_000
}

/// Seconds with the jitter on top, in nanoseconds.
fn jittered(seconds: u64) -> u64 {
    nanos(seconds) + nanos(seconds) / 4
}

pub(super) struct World {
    is_static: bool,
    now: u64,
    version: u32,
    life: Option<(Record, Model)>,
    /// Who waits to be told, and has not been.
    waiting: Vec<(usize, Completed)>,
    notifiers: usize,
    /// Whether the worker was woken and has not looked yet.
    awake: bool,
    running: Option<Called>,
}

impl World {
    pub(super) fn new(is_static: bool) -> Self {
        World {
            is_static,
            now: nanos(100),
            version: 0,
            life: None,
            waiting: Vec::new(),
            notifiers: 0,
            awake: false,
            running: None,
        }
    }

    fn tick(&self) -> Tick {
        Tick {
            now: Time::from_nanos(self.now),
            jitter: JITTER,
            resync: Duration::from_secs(60),
            error_backoff: Duration::from_secs(10),
        }
    }

    fn delays() -> Delays {
        Delays { resync: jittered(60), error: jittered(10), name: jittered(10) }
    }

    pub(super) fn apply(&mut self, op: Op) {
        let before = self.life.as_ref().map(|(record, _)| (record.lifecycle(), record.grace()));
        let (effects, did) = match op {
            Op::Update(asked) => self.update(asked),
            Op::Take(may_start, observed) => {
                let may_start = may_start || !self.is_static; // Names are for static pods.
                let tick = self.tick();
                let Some((record, model)) = &mut self.life else { return };
                if record.is_finished() || self.running.is_some() {
                    return; // A worker that ended, or is busy, takes nothing.
                }
                let effects = step(record, Event::Take { may_start, observed }, tick);
                let did = model.take(may_start, observed, self.now, Self::delays());
                self.awake = false;
                self.running = did.called.clone();
                (effects, did)
            }
            Op::Done(choice) => {
                let Some(running) = self.running.take() else { return };
                let (outcome, ends) = self.outcome(&running, choice);
                let tick = self.tick();
                let (record, model) = self.life.as_mut().expect("a call belongs to a record");
                let effects = step(record, Event::Done(outcome), tick);
                self.awake = true; // The worker looks for more by itself.
                (effects, model.done(ends, self.now, Self::delays()))
            }
            Op::Advance(seconds) => {
                self.now += nanos(seconds);
                let tick = self.tick();
                let Some((record, model)) = &mut self.life else { return };
                if record.due().is_none_or(|due| due > tick.now) {
                    return;
                }
                let effects = step(record, Event::Due, tick);
                model.due(self.now);
                self.awake = true;
                (effects, Did::default())
            }
            Op::Known(desired) => {
                let tick = self.tick();
                let Some((record, model)) = &mut self.life else { return };
                let effects = step(record, Event::Known { desired }, tick);
                let did = model.known(desired, self.now);
                assert_eq!(effects.forget, effects.known.is_none());
                if let Some(known) = effects.known {
                    assert_eq!(known.orphan, !desired);
                    assert_eq!(known.lifecycle, record.lifecycle().clamp(Lifecycle::Sync, Lifecycle::Terminated));
                }
                (effects, did)
            }
        };
        self.compare(effects, did);
        self.check(before);
    }

    fn update(&mut self, asked: Asked) -> (Effects, Did) {
        let notifier = asked.notifier.then(|| {
            let (notifier, completed) = Notifier::new();
            self.notifiers += 1;
            self.waiting.push((self.notifiers, completed));
            (self.notifiers, notifier)
        });
        self.version += 1;
        let said = Said {
            kind: [UpdateKind::Create, UpdateKind::Update, UpdateKind::Sync, UpdateKind::Kill, UpdateKind::Kill]
                [usize::from(asked.kind)],
            pod: (asked.kind < 4).then_some(SaidPod {
                version: self.version,
                is_static: self.is_static,
                deletion: asked.deletion,
                spec: 30,
                ended: asked.ended,
            }),
            mirror: (asked.mirror && asked.kind < 4).then_some(self.version),
            start_time: asked.start_time.map(nanos),
            notifier: notifier.as_ref().map(|(number, _)| *number),
            evict: asked.evict,
            grace: asked.grace,
        };
        let options = KillOptions {
            completed: notifier.map(|(_, notifier)| notifier),
            evict: asked.evict,
            status_fn: None,
            grace: asked.grace.map(Grace::from_seconds),
        };
        let update = real(&said).with_options(options);
        let tick = self.tick();
        match &mut self.life {
            Some((record, model)) => {
                (step(record, Event::Update(update), tick), model.update(false, said, asked.observed, self.now))
            }
            None => {
                let (record, effects) = birth(update, asked.observed, tick);
                let mut model = Model::default();
                let did = model.update(true, said, asked.observed, self.now);
                self.life = Some((record, model));
                self.awake = true; // A new worker looks at once.
                (effects, did)
            }
        }
    }

    fn outcome(&self, running: &Called, choice: u8) -> (Outcome, Ends) {
        let error = || "x".to_owned();
        match (running, choice % 5) {
            (_, 3) => {
                let (retry, delay) = match choice % 3 {
                    0 => (SyncRetry::Backoff, 10),
                    1 => (SyncRetry::NetworkNotReady, 1),
                    _ => (SyncRetry::At(Time::from_nanos(self.now + nanos(500))), 60),
                };
                (Outcome::Failed { error: error(), retry }, Ends::Failed(jittered(delay)))
            }
            (_, 4) => (Outcome::Cancelled, Ends::Cancelled),
            (Called::Sync { .. }, 1) => (Outcome::Ended, Ends::Ended),
            (Called::Sync { .. }, 2) => {
                let at = self.now + nanos(u64::from(choice));
                (Outcome::Continues { check_at: Some(Time::from_nanos(at)) }, Ends::Continues(Some(at)))
            }
            (Called::Sync { .. }, _) => (Outcome::Continues { check_at: None }, Ends::Continues(None)),
            (Called::Terminating { .. } | Called::TerminatingRuntime | Called::Terminated { .. }, _) => {
                (Outcome::Succeeded, Ends::Succeeded)
            }
        }
    }

    fn compare(&mut self, effects: Effects, did: Did) {
        let told_by_step = effects.completed.len();
        effects.completed.into_iter().for_each(Notifier::complete);
        let mut told = Vec::new();
        self.waiting.retain_mut(|(number, completed)| match completed.now_or_never() {
            Some(true) => {
                told.push(*number);
                false
            }
            Some(false) => panic!("notifier {number} was lost"),
            None => true,
        });
        assert_eq!(told.len(), told_by_step, "somebody was told twice");
        let mut expected = did;
        expected.told.sort_unstable();
        let real = Did {
            cancel: effects.cancel,
            told,
            called: effects.call.as_ref().map(called),
            worked: effects.worked.map(|worked| (worked.kind, worked.start_time.as_nanos())),
            leaves_name: effects.name == NameMove::Leave,
            forgotten: effects.forget,
        };
        assert_eq!(real, expected);
        self.awake |= effects.wake;
        if real.forgotten {
            assert!(self.waiting.is_empty(), "forgotten, and somebody still waits");
            self.life = None;
            self.running = None;
        }
    }

    fn check(&mut self, before: Option<(Lifecycle, Option<Grace>)>) {
        let Some((record, model)) = &self.life else { return };
        let at = |set: Option<u64>| set.is_some();
        let (requested, terminated) = (at(model.terminating_at), at(model.terminated_at));
        let lifecycle = match (at(model.started_at), requested, terminated, model.finished) {
            (_, _, _, true) => Lifecycle::Finished,
            (_, _, true, _) => Lifecycle::Terminated,
            (_, true, _, _) => Lifecycle::Terminating,
            (true, ..) => Lifecycle::Sync,
            (false, ..) => Lifecycle::Waiting,
        };
        assert_eq!(record.lifecycle(), lifecycle);
        let flags = record.flags();
        assert_eq!(
            (flags.deleted, flags.evicted, flags.restart_requested),
            (model.deleted, model.evicted, model.restart_requested)
        );
        if let Some(grace) = record.grace() {
            assert_eq!(grace.seconds(), model.grace);
        }
        assert_eq!(record.pending.is_some(), model.pending.is_some());
        assert_eq!(record.is_working(), model.is_working());
        assert_eq!(record.due().map(Time::as_nanos), model.due);
        assert_eq!(record.running.is_some(), self.running.is_some());
        // The columns of the queries, row by row.
        assert_eq!(record.is_terminated(), terminated);
        assert_eq!(record.is_finished(), model.finished);
        assert_eq!(record.is_termination_requested(), requested);
        assert_eq!(record.should_containers_be_terminating(), model.started_terminating || terminated);
        assert_eq!(record.should_content_be_removed(), model.evicted || (model.deleted && terminated));

        if let Some((lifecycle, grace)) = before {
            assert!(record.lifecycle() >= lifecycle, "went back (I2)");
            if let (Some(was), Some(is)) = (grace, record.grace()) {
                assert!(is <= was, "the grace grew (I5)");
            }
        }
        if terminated {
            assert!(self.waiting.is_empty(), "nothing can run, and somebody still waits (W2)");
        }
        let idle = !record.is_finished() && self.running.is_none();
        if idle && record.pending.is_some() && !record.is_blocked() {
            assert!(self.awake, "has work and sleeps");
        }
        if idle && !self.awake {
            assert!(record.due().is_some(), "would never be looked at again (I9)");
        }
    }

    /// From here all goes well: whatever happened, the pod comes to its end.
    pub(super) fn wind_down(&mut self) {
        self.apply(Op::Known(false));
        for _ in 0..8 {
            self.apply(Op::Done(0));
            self.apply(Op::Take(true, Observed::Never));
            self.apply(Op::Done(0));
            self.apply(Op::Advance(100));
        }
        self.apply(Op::Known(false));
        assert!(self.life.is_none(), "still there: {:?}", self.life);
        assert!(self.waiting.is_empty());
    }
}

fn real(said: &Said) -> Update {
    let update = match &said.pod {
        None => Update::kill_runtime(RunningPod { uid: "a".into(), full_name: FullName::new("test", "a") }),
        Some(spec) => {
            let pod = built(spec);
            match said.kind {
                UpdateKind::Create => Update::create(pod),
                UpdateKind::Update => Update::changed(pod),
                UpdateKind::Sync => Update::sync(pod),
                UpdateKind::Kill => Update::kill(pod),
            }
        }
    };
    let mirror = said.mirror.map(|version| pod("a").uid("mirror").label("v", &version.to_string()).build());
    let update = update.with_mirror(mirror);
    match said.start_time {
        Some(start) => update.with_start_time(Time::from_nanos(start)),
        None => update,
    }
}

fn built(spec: &SaidPod) -> Arc<PodObject> {
    let mut builder = pod("a").label("v", &spec.version.to_string());
    if spec.is_static {
        builder = builder.static_pod();
    }
    if spec.ended {
        builder = builder.phase("Failed");
    }
    if let Some(grace) = spec.deletion {
        builder = builder.deleting(grace);
    }
    builder.build()
}

fn version(pod: &PodObject) -> u32 {
    pod.metadata().labels.as_ref().and_then(|labels| labels.get("v")?.parse().ok()).expect("every pod has one")
}

fn called(call: &HookCall) -> Called {
    match call {
        HookCall::Sync(work) => Called::Sync {
            kind: match work.kind {
                SyncKind::Create => UpdateKind::Create,
                SyncKind::Update => UpdateKind::Update,
                SyncKind::Sync => UpdateKind::Sync,
            },
            version: version(&work.pod),
            mirror: work.mirror.as_deref().map(version),
        },
        HookCall::Terminating(work) => {
            Called::Terminating { version: version(&work.pod), grace: work.grace.seconds(), forced: work.forced }
        }
        HookCall::TerminatingRuntime(_) => Called::TerminatingRuntime,
        HookCall::Terminated(pod) => Called::Terminated { version: version(pod) },
    }
}
