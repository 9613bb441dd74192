//! What a cell keeps for the recorder, and the one way through which every step of a record goes.
//!
//! Three kinds of event are told apart before a step. One that cannot move the record leaves no trace. A plain one belongs
//! to the round that a healthy pod turns in without end: the same object is looked at again, taken, set up well. Its time
//! and number alone are new, so it is counted here, without a lock or a frame; what the round led to is written before the
//! next event of another kind. All others are written out.

mod digest;
mod event;
mod keyframe;
mod object;
mod quiet;

use std::sync::Arc;

use super::lifecycle::Hook;
use super::state::{Pending, Record, State};
use super::step::{Effects, Event, Outcome, Tick, birth, step};
use super::update::{Config, Target, Update, UpdateKind};
use crate::ids::PodUid;
use crate::ports::Observed;
use crate::recorder::{Put, Recorder, Ring};

pub(crate) use digest::Digest;
pub(crate) use event::{EventKind, read as read_event, read_birth};
pub(crate) use keyframe::read as read_keyframe;
pub(crate) use quiet::Quiet;

/// Kinds of frames that a tape writes.
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
pub(crate) struct Tape {
    /// Stands for the UID in frames. Zero where nothing is recorded.
    id: u32,
    /// The last segment in which the record is known.
    segment: u32,
    /// Twice the plain updates since the last frame; the lowest bit is set once another plain event came.
    updates: u32,
    /// Setups that went well since then.
    syncs: u32,
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

impl Tape {
    /// The first update of a UID makes its record.
    pub(crate) fn birth(
        recorder: Option<&Recorder>,
        update: Update,
        observed: Observed,
        tick: Tick,
    ) -> (Self, Record, Effects) {
        let Some(recorder) = recorder else {
            let (record, effects) = birth(update, observed, tick);
            return (Tape::default(), record, effects);
        };
        let mut tape = Tape { id: recorder.next_id(), ..Tape::default() };
        let mut ring = recorder.ring(tape.id, &tick);
        tape.segment = ring.segment();
        let (record, effects) = ring.frame(frame::BIRTH, tick.now, |bytes| {
            bytes.number(tape.id.into());
            event::put_birth(bytes, &update, observed, &tick);
            let (record, effects) = birth(update, observed, tick);
            Digest::of(&record).put(bytes);
            (record, effects)
        });
        (tape, record, effects)
    }

    /// Whether an update will be written, with its time.
    pub(crate) fn writes(record: &Record, update: &Update) -> bool {
        !is_plain_update(record, update)
    }

    /// Steps a record.
    #[inline]
    pub(crate) fn drive(
        &mut self,
        recorder: Option<&Recorder>,
        uid: &PodUid,
        record: &mut Record,
        event: Event,
        tick: Tick,
    ) -> Effects {
        let Some(recorder) = recorder else { return step(record, event, tick) };
        match trace(record, &event, &tick) {
            Trace::Nothing => step(record, event, tick),
            Trace::Counted => {
                match &event {
                    Event::Update(_) => self.updates = self.updates.saturating_add(2),
                    Event::Done(_) => self.syncs = self.syncs.saturating_add(1),
                    Event::Take { .. } | Event::Due | Event::Known { .. } => self.updates |= 1,
                }
                step(record, event, tick)
            }
            Trace::Written => self.write(recorder, uid, record, event, tick),
        }
    }

    #[inline(never)]
    fn write(&mut self, recorder: &Recorder, uid: &PodUid, record: &mut Record, event: Event, tick: Tick) -> Effects {
        let mut ring = recorder.ring(self.id, &tick);
        self.catch_up(&mut ring, uid, record, &tick);
        ring.frame(frame::EVENT, tick.now, |bytes| {
            bytes.number(self.id.into());
            event::put(bytes, record, &event, &tick);
            let effects = step(record, event, tick);
            Digest::of(record).put(bytes);
            effects
        })
    }

    /// Writes what was only counted, if anything, and where a record stands of which no frame is left.
    pub(crate) fn settle(&mut self, recorder: &Recorder, uid: &PodUid, record: &Record, tick: &Tick) {
        let mut ring = recorder.ring(self.id, tick);
        if self.updates | self.syncs != 0 || self.segment < ring.oldest() {
            self.catch_up(&mut ring, uid, record, tick);
        }
    }

    /// Makes the next frame readable: the record is known in the segment, and stands as it does.
    fn catch_up(&mut self, ring: &mut Ring, uid: &PodUid, record: &Record, tick: &Tick) {
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
        *self = Tape { id: self.id, segment, updates: 0, syncs: 0 };
    }
}

fn trace(record: &Record, event: &Event, tick: &Tick) -> Trace {
    match event {
        Event::Update(update) => match is_plain_update(record, update) {
            true => Trace::Counted,
            false => Trace::Written,
        },
        Event::Take { .. } => match (&record.running, &record.pending) {
            (Some(_), _) | (_, None) => Trace::Nothing,
            (None, Some(pending)) => match well(record) {
                Some(config) if is_plain(pending, config) => Trace::Counted,
                Some(_) | None => Trace::Written,
            },
        },
        Event::Done(outcome) => match (&record.running, outcome) {
            (None, _) => Trace::Nothing,
            (Some(running), Outcome::Continues { check_at: None })
                if running.hook == Hook::Sync && well(record).is_some() =>
            {
                Trace::Counted
            }
            (Some(_), _) => Trace::Written,
        },
        Event::Due if record.running.is_some() || record.due.is_none_or(|due| due > tick.now) => Trace::Nothing,
        Event::Due if record.pending.is_none() && well(record).is_some() => Trace::Counted,
        Event::Due => Trace::Written,
        Event::Known { desired: true } if !(record.is_finished() && record.flags().restart_requested) => Trace::Nothing,
        Event::Known { .. } => Trace::Written,
    }
}

/// What a pod acts on that is set up and does well.
fn well(record: &Record) -> Option<&Config> {
    match &record.state {
        State::Sync(started) if record.failure.is_none() => Some(&started.config),
        State::Sync(_) | State::Waiting(_) | State::Terminating(_) | State::Terminated(_) | State::Finished(_) => None,
    }
}

/// Another look at what is acted on already, while nothing else is pending.
fn is_plain_update(record: &Record, update: &Update) -> bool {
    let Some(config) = well(record) else { return false };
    update.kind == UpdateKind::Sync
        && update.options.is_none()
        && update.start_time.is_none()
        && is_same(&update.target, config)
        && !config.pod.is_deleting()
        && !config.pod.phase().is_terminal()
        && record.pending.as_ref().is_none_or(|pending| is_plain(pending, config))
}

fn is_plain(pending: &Pending, config: &Config) -> bool {
    pending.kind == UpdateKind::Sync && pending.start_time.is_none() && is_same(&pending.target, config)
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
