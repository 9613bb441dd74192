//! What a cell keeps for the recorder, and the one way through which every step of a record goes.
//!
//! Three kinds of event are told apart before a step. One that cannot move the record leaves no trace. A plain one belongs
//! to a round that a pod may turn in without end: the same object is looked at again, taken, and set up well, or in vain
//! for the reason it was before. Its time and number alone are new, so it is counted here, without a lock or a frame; what
//! the round led to is written before the next event of another kind. All others are written out.
//!
//! Whether a record turns in such a round is found out after each event that is written, and kept: plain events leave it
//! so. With it the next event is judged by a glance at what it is, which costs less than what the engine saves by knowing,
//! so it is known without a recorder too.

mod digest;
mod event;
mod keyframe;
mod object;
mod quiet;

use std::sync::Arc;

use crate::codec::Put;
use crate::ids::PodUid;
use crate::pod_worker::state::{Pending, Record, State};
use crate::pod_worker::step::{Effects, Event, Outcome, StepContext, birth, is_left_alone, step};
use crate::pod_worker::update::{Config, Target, Update, UpdateKind};
use crate::ports::Observed;
use crate::recorder::{Recorder, Ring};

pub(crate) use digest::Digest;
pub(crate) use event::{EventKind, read as read_event, read_birth};
pub(crate) use keyframe::read as read_keyframe;
pub(crate) use quiet::Quiet;

/// Kinds of frames that a capture writes.
pub(crate) mod frame {
    /// The delays that hold from here on.
    pub(crate) const SETTINGS: u8 = 1;
    /// A whole record.
    pub(crate) const KEYFRAME: u8 = 2;
    /// What plain events led to.
    pub(crate) const QUIET: u8 = 3;
    /// The first event of a record.
    pub(crate) const BIRTH: u8 = 4;
    /// Any later one.
    pub(crate) const EVENT: u8 = 5;
}

/// The recorder's part of a cell.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct EventCapture {
    /// Stands for the UID in frames. Zero where nothing is recorded.
    id: u32,
    /// The last segment in which the record is known.
    segment: u32,
    /// Twice the plain updates since the last frame; the lowest bit is set once another plain event came.
    updates: u32,
    /// Setups since then: those that went well, or those that failed as the one before, as the round has it.
    syncs: u32,
    round: Round,
}

/// In which round a record turns: the pod is set up or being set up, and nothing but another look at what it acts on is
/// pending.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Round {
    /// In none.
    #[default]
    None,
    /// It does well.
    Well,
    /// Its setup fails.
    Failing,
}

/// What becomes of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trace {
    /// It moves nothing.
    Nothing,
    /// It is counted.
    Counted,
    /// It is written.
    Written,
}

impl EventCapture {
    /// The first update of a UID makes its record.
    pub(crate) fn birth(
        recorder: Option<&Recorder>,
        update: Update,
        observed: Observed,
        tick: StepContext,
    ) -> (Self, Record, Effects) {
        let Some(recorder) = recorder else {
            let (record, effects) = birth(update, observed, tick);
            return (EventCapture::default(), record, effects);
        };
        let mut capture = EventCapture { id: recorder.next_id(), ..EventCapture::default() };
        let mut ring = recorder.ring(capture.id, &tick);
        capture.segment = ring.segment();
        let frame = ring.begin(frame::BIRTH, tick.now);
        frame.bytes.number(capture.id.into());
        event::put_birth(frame.bytes, &update, observed, &tick);
        let (record, effects) = birth(update, observed, tick);
        Digest::after(&record, &effects).put(frame.bytes);
        frame.end();
        (capture, record, effects)
    }

    /// Whether the record turns in a round. As long as it does, it shows the same to whoever asks.
    pub(crate) fn turns(&self) -> bool {
        self.round != Round::None
    }

    /// Whether an update belongs to such a round: another look at what is acted on already. Nothing that comes of it depends
    /// on when it came.
    #[inline]
    pub(crate) fn is_plain(&self, record: &Record, update: &Update) -> bool {
        self.turns()
            && update.kind == UpdateKind::Sync
            && update.options.is_none()
            && update.start_time.is_none()
            && matches!(&record.state, State::Sync(started) if is_same(&update.target, &started.config))
    }

    /// Steps a record by a [plain](Self::is_plain) update.
    #[inline]
    pub(crate) fn look_again(&mut self, record: &mut Record, update: Update, tick: StepContext) -> Effects {
        self.updates = self.updates.saturating_add(2);
        step(record, Event::Update(update), tick)
    }

    /// Steps a record.
    #[inline]
    pub(crate) fn drive(
        &mut self,
        recorder: Option<&Recorder>,
        uid: &PodUid,
        record: &mut Record,
        event: Event,
        tick: StepContext,
    ) -> Effects {
        debug_assert_eq!(self.round, round(record), "a step went by another way");
        match self.trace(record, &event, &tick) {
            Trace::Nothing => {
                let stood = cfg!(debug_assertions).then(|| Digest::of(record));
                let effects = step(record, event, tick);
                debug_assert!(stood.is_none_or(|stood| stood == Digest::of(record)), "an untold event moved a record");
                effects
            }
            Trace::Counted => {
                match &event {
                    Event::Update(_) => self.updates = self.updates.saturating_add(2),
                    Event::Done(_) => self.syncs = self.syncs.saturating_add(1),
                    Event::Take { .. } | Event::Due | Event::Known { .. } => self.updates |= 1,
                }
                step(record, event, tick)
            }
            Trace::Written => {
                let effects = match recorder {
                    Some(recorder) => self.write(recorder, uid, record, event, tick),
                    None => step(record, event, tick),
                };
                self.round = round(record);
                effects
            }
        }
    }

    #[inline]
    fn trace(&self, record: &Record, event: &Event, tick: &StepContext) -> Trace {
        let counted_if = |is_plain: bool| if is_plain { Trace::Counted } else { Trace::Written };
        match event {
            Event::Update(update) => counted_if(self.is_plain(record, update)),
            Event::Take { .. } if record.running.is_some() || record.pending.is_none() => Trace::Nothing,
            Event::Take { .. } => counted_if(self.turns()),
            Event::Done(_) if record.running.is_none() => Trace::Nothing,
            Event::Done(outcome) => counted_if(match (self.round, outcome) {
                (Round::Well, Outcome::Continues { check_at: None }) => true,
                (Round::Failing, Outcome::Failed { error, .. }) => {
                    record.failure.as_ref().is_some_and(|last| last.error == *error)
                }
                (Round::None | Round::Well | Round::Failing, _) => false,
            }),
            Event::Due if record.running.is_some() || record.due.is_none_or(|due| due > tick.now) => Trace::Nothing,
            Event::Due => counted_if(self.turns() && record.pending.is_none()),
            Event::Known { desired } if is_left_alone(record, *desired) => Trace::Nothing,
            Event::Known { .. } => Trace::Written,
        }
    }

    #[inline(never)]
    fn write(
        &mut self,
        recorder: &Recorder,
        uid: &PodUid,
        record: &mut Record,
        event: Event,
        tick: StepContext,
    ) -> Effects {
        let mut ring = recorder.ring(self.id, &tick);
        self.catch_up(&mut ring, uid, record, &tick);
        let frame = ring.begin(frame::EVENT, tick.now);
        frame.bytes.number(self.id.into());
        event::put(frame.bytes, record, &event, &tick);
        let effects = step(record, event, tick);
        Digest::after(record, &effects).put(frame.bytes);
        frame.end();
        effects
    }

    /// Writes what was only counted, if anything, and where a record stands of which no frame is left.
    pub(crate) fn settle(&mut self, recorder: &Recorder, uid: &PodUid, record: &Record, tick: &StepContext) {
        let mut ring = recorder.ring(self.id, tick);
        if self.updates | self.syncs != 0 || self.segment < ring.oldest() {
            self.catch_up(&mut ring, uid, record, tick);
        }
    }

    /// Makes the next frame readable: the record is known in the segment, and stands as it does.
    fn catch_up(&mut self, ring: &mut Ring, uid: &PodUid, record: &Record, tick: &StepContext) {
        let segment = ring.segment();
        let quiet = Quiet { updates: self.updates >> 1, syncs: self.syncs };
        if self.segment != segment {
            ring.frame(frame::KEYFRAME, tick.now, |bytes| {
                bytes.number(self.id.into());
                quiet.put_counts(bytes);
                bytes.flag(self.updates | self.syncs != 0);
                keyframe::put(bytes, uid, record, tick.now);
            });
        } else if self.updates | self.syncs != 0 {
            ring.frame(frame::QUIET, tick.now, |bytes| {
                bytes.number(self.id.into());
                quiet.put(bytes, record, tick.now);
                Digest::of(record).put(bytes);
            });
        }
        *self = EventCapture { segment, updates: 0, syncs: 0, ..*self };
    }
}

/// In which round a record turns. What is set up is not being deleted, and has no terminal phase: that would have stopped it
/// when it came.
fn round(record: &Record) -> Round {
    let State::Sync(started) = &record.state else { return Round::None };
    let is_plain = |pending: &Pending| {
        pending.kind == UpdateKind::Sync && pending.start_time.is_none() && is_same(&pending.target, &started.config)
    };
    match (record.pending.as_ref().is_none_or(is_plain), &record.failure) {
        (false, _) => Round::None,
        (true, None) => Round::Well,
        (true, Some(_)) => Round::Failing,
    }
}

fn is_same(target: &Target, config: &Config) -> bool {
    let Target::Config(other) = target else { return false };
    let same_mirror = match (&other.mirror, &config.mirror) {
        (None, _) => true, // The known one is remembered.
        (Some(mirror), Some(known)) => Arc::ptr_eq(mirror, known),
        (Some(_), None) => false,
    };
    Arc::ptr_eq(&other.pod, &config.pod) && same_mirror
}
