//! The event capture of a cell. It performs every step of a record, and decides what the recorder keeps of the step.
//! Pure.
//!
//! There are three kinds of event:
//!
//! - An event that cannot change the record is not recorded.
//! - A plain event belongs to a round that a pod may repeat without end: an update requests another sync of the same object,
//!   the worker takes the update, and the setup succeeds, or fails with the same error as before. Plain events are counted.
//! - Any other event has a frame of its own. If plain events were counted before it, a frame with their counts is written
//!   first.
//!
//! After each event that has a frame, the capture computes whether the record is in such a round, and stores the answer. A
//! plain event does not change the answer. The engine uses the answer too, to skip work in these rounds, so the capture also
//! exists without a recorder.

mod digest;
mod event;
mod keyframe;
mod object;
mod rounds;

use std::sync::Arc;

use crate::codec::{put, put_number};
use crate::ids::PodUid;
use crate::pod_worker::state::{Pending, Record, State};
use crate::pod_worker::step::{Effects, Event, Outcome, StepContext, is_left_alone, new_record, step};
use crate::pod_worker::{Config, Target, Update, UpdateKind};
use crate::ports::Observed;
use crate::recorder::{FrameKind, Recorder, Ring};

pub(crate) use digest::Digest;
pub(crate) use event::{EventFrame, NewRecordFrame};
pub(crate) use keyframe::Keyframe;
pub(crate) use object::HeldConfigs;
pub(crate) use rounds::{RoundCounts, RoundEnd};

/// A value of a recording, or what the recording should hold in its stead, as a noun phrase.
pub(crate) type Decoded<T> = Result<T, &'static str>;

/// The recorder's part of a cell.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct EventCapture {
    /// The number of the record in frames, in place of its UID; zero if nothing is recorded.
    id: u32,
    /// The last segment that has a frame of the record.
    segment: u32,
    /// Twice the number of plain updates since the last frame; the lowest bit is set by any other plain event.
    updates: u32,
    /// The number of plain setup results since the last frame.
    syncs: u32,
    round: Round,
}

/// In which round a record is. In a round, the pod is set up or being set up, and no update is pending but a plain one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Round {
    /// In none.
    #[default]
    None,
    /// The last setup succeeded.
    Healthy,
    /// The last setup failed.
    Failing,
}

/// What an event leaves in the recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trace {
    /// Nothing: it does not change the record.
    Nothing,
    /// A count.
    Counted,
    /// A frame.
    Written,
}

impl EventCapture {
    /// Makes the record of a UID from its first update.
    pub(crate) fn new_record(
        recorder: Option<&Recorder>,
        update: Update,
        observed: Observed,
        context: StepContext,
    ) -> (Self, Record, Effects) {
        let Some(recorder) = recorder else {
            let (record, effects) = new_record(update, observed, context);
            return (EventCapture::default(), record, effects);
        };
        let mut capture = EventCapture { id: recorder.next_id(), ..EventCapture::default() };
        let mut ring = recorder.ring(capture.id, &context);
        capture.segment = ring.segment();
        let frame = ring.begin(FrameKind::NewRecord, context.now);
        put_number(frame.bytes, capture.id.into());
        NewRecordFrame::put(frame.bytes, &update, observed, &context);
        let (record, effects) = new_record(update, observed, context);
        Digest::after(&record, &effects).put(frame.bytes);
        frame.end();
        (capture, record, effects)
    }

    /// Whether the record is in a round. As long as it is, its published state does not change.
    pub(crate) fn is_in_round(&self) -> bool {
        self.round != Round::None
    }

    /// Whether an update belongs to the round of the record: it requests another sync of the object that the worker acts on.
    /// Its effects do not depend on when it arrives.
    #[inline]
    pub(crate) fn is_plain(&self, record: &Record, update: &Update) -> bool {
        self.is_in_round()
            && update.kind == UpdateKind::Sync
            && update.options.is_none()
            && update.start_time.is_none()
            && matches!(&record.state, State::Sync(started) if is_same(&update.target, &started.config))
    }

    /// Steps a record by a [plain](Self::is_plain) update.
    #[inline]
    pub(crate) fn requeue(&mut self, record: &mut Record, update: Update, context: StepContext) -> Effects {
        self.updates = self.updates.saturating_add(2);
        step(record, Event::Update(update), context)
    }

    /// Steps a record.
    #[inline]
    pub(crate) fn drive(
        &mut self,
        recorder: Option<&Recorder>,
        uid: &PodUid,
        record: &mut Record,
        event: Event,
        context: &StepContext,
    ) -> Effects {
        debug_assert_eq!(self.round, round(record), "a step did not go through the capture");
        match self.trace(record, &event, context) {
            Trace::Nothing => {
                let before = cfg!(debug_assertions).then(|| Digest::of(record));
                let effects = step(record, event, *context);
                debug_assert!(before.is_none_or(|before| before == Digest::of(record)), "an event was not recorded");
                effects
            }
            Trace::Counted => {
                match &event {
                    Event::Update(_) => self.updates = self.updates.saturating_add(2),
                    Event::Done(_) => self.syncs = self.syncs.saturating_add(1),
                    Event::Take { .. } | Event::Due | Event::Known { .. } => self.updates |= 1,
                }
                step(record, event, *context)
            }
            Trace::Written => {
                let effects = match recorder {
                    Some(recorder) => self.write(recorder, uid, record, event, context),
                    None => step(record, event, *context),
                };
                self.round = round(record);
                effects
            }
        }
    }

    #[inline]
    fn trace(&self, record: &Record, event: &Event, context: &StepContext) -> Trace {
        let counted_if = |is_plain: bool| if is_plain { Trace::Counted } else { Trace::Written };
        match event {
            Event::Update(update) => counted_if(self.is_plain(record, update)),
            Event::Take { .. } if record.is_calling() || record.pending.is_none() => Trace::Nothing,
            Event::Take { .. } => counted_if(self.is_in_round()),
            Event::Done(_) if !record.is_calling() => Trace::Nothing,
            Event::Done(outcome) => counted_if(match (self.round, outcome) {
                (Round::Healthy, Outcome::Continues { check_at: None }) => true,
                (Round::Failing, Outcome::Failed { error, .. }) => {
                    record.failure.as_ref().is_some_and(|last| last.error == *error)
                }
                (Round::None | Round::Healthy | Round::Failing, _) => false,
            }),
            Event::Due if record.due().is_none_or(|due| due > context.now) => Trace::Nothing,
            Event::Due => counted_if(self.is_in_round() && record.pending.is_none()),
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
        context: &StepContext,
    ) -> Effects {
        let mut ring = recorder.ring(self.id, context);
        if self.segment != ring.segment() || self.has_rounds() {
            self.catch_up(&mut ring, uid, record, context);
        }
        let frame = ring.begin(FrameKind::Event, context.now);
        put_number(frame.bytes, self.id.into());
        EventFrame::put(frame.bytes, &event, record, context);
        let effects = step(record, event, *context);
        Digest::after(record, &effects).put(frame.bytes);
        frame.end();
        effects
    }

    /// Writes the counts, if there are any, and a keyframe if the last frame of the record was dropped, or may be dropped by the
    /// flushes of other records before the recording is saved.
    pub(crate) fn flush(&mut self, recorder: &Recorder, uid: &PodUid, record: &Record, context: &StepContext) {
        let mut ring = recorder.ring(self.id, context);
        if self.has_rounds() || !ring.is_recent(self.segment) {
            self.catch_up(&mut ring, uid, record, context);
        }
    }

    fn has_rounds(&self) -> bool {
        self.updates | self.syncs != 0
    }

    /// Makes the next frame readable: the segment has a frame with the present state of the record.
    #[inline(never)]
    fn catch_up(&mut self, ring: &mut Ring, uid: &PodUid, record: &Record, context: &StepContext) {
        let segment = ring.segment();
        let counts = RoundCounts { updates: self.updates >> 1, syncs: self.syncs };
        if self.segment != segment {
            ring.frame(FrameKind::Keyframe, context.now, |bytes| {
                put_number(bytes, self.id.into());
                put(bytes, &Keyframe::new(counts, self.has_rounds(), uid, record, context.now));
            });
        } else if self.has_rounds() {
            ring.frame(FrameKind::Rounds, context.now, |bytes| {
                put_number(bytes, self.id.into());
                put(bytes, &(counts, RoundEnd::of(record, context.now)));
                Digest::of(record).put(bytes);
            });
        }
        *self = EventCapture { segment, updates: 0, syncs: 0, ..*self };
    }
}

/// In which round a record is. A pod in a round is not being deleted and has no terminal phase, because the update with
/// either would have stopped it.
fn round(record: &Record) -> Round {
    let State::Sync(started) = &record.state else { return Round::None };
    let is_plain = |pending: &Pending| {
        pending.kind == UpdateKind::Sync && pending.start_time.is_none() && is_same(&pending.target, &started.config)
    };
    match (record.pending.as_ref().is_none_or(is_plain), &record.failure) {
        (false, _) => Round::None,
        (true, None) => Round::Healthy,
        (true, Some(_)) => Round::Failing,
    }
}

fn is_same(target: &Target, config: &Config) -> bool {
    let Target::Config(other) = target else { return false };
    let same_mirror = match (&other.mirror, &config.mirror) {
        (None, _) => true, // The record keeps the mirror it has.
        (Some(mirror), Some(known)) => Arc::ptr_eq(mirror, known),
        (Some(_), None) => false,
    };
    Arc::ptr_eq(&other.pod, &config.pod) && same_mirror
}
