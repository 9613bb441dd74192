//! The records of a replay: each frame of a pod runs through `step`, and the result is compared with the recorded one.

use std::collections::HashMap;
use std::time::Duration;

use super::event_text::{EventSummary, describe_rounds, describe_wait};
use crate::codec::{Read, Reader};
use crate::ids::{FullName, PodUid};
use crate::pod_worker::Lifecycle;
use crate::pod_worker::state::Record;
use crate::pod_worker::step::{StepContext, new_record, step};
use crate::recorder::FrameKind;
use crate::recorder::capture::{
    Decoded, Digest, EventFrame, HeldConfigs, Keyframe, NewRecordFrame, RoundCounts, RoundEnd,
};
use crate::time::Time;

/// A record's ring and its number in that ring.
type RecordKey = (usize, u32);

/// The records of all rings.
pub(super) struct Pods {
    /// Whether a timeline was requested. Otherwise phrases are made only for a difference.
    has_timeline: bool,
    records: HashMap<RecordKey, (PodUid, Record)>,
    settings: HashMap<usize, (Duration, Duration)>,
}

/// The result of a frame.
pub(super) struct FrameResult {
    pub(super) uid: PodUid,
    pub(super) name: Option<FullName>,
    /// Empty if there is no timeline and no difference.
    pub(super) event: String,
    pub(super) before: Option<Lifecycle>,
    pub(super) after: Option<Lifecycle>,
    pub(super) waits: Option<String>,
    /// The number of events in the frame.
    pub(super) events: u32,
    pub(super) difference: Option<StateDifference>,
}

/// A recorded state, and the state that the replay reached in its stead.
pub(super) struct StateDifference {
    pub(super) expected: String,
    pub(super) got: String,
}

impl StateDifference {
    fn between(expected: Digest, got: Digest) -> Option<Self> {
        (expected != got).then(|| StateDifference { expected: expected.to_string(), got: got.to_string() })
    }
}

impl Pods {
    pub(super) fn new(has_timeline: bool) -> Self {
        Pods { has_timeline, records: HashMap::new(), settings: HashMap::new() }
    }

    /// Runs one frame. A frame that only makes later ones readable has no result.
    pub(super) fn frame(
        &mut self,
        ring: usize,
        now: Time,
        kind: FrameKind,
        reader: &mut Reader<'_>,
    ) -> Read<Option<FrameResult>> {
        if kind == FrameKind::Settings {
            self.settings.insert(ring, reader.take("a resync interval and a backoff")?);
            return Ok(None);
        }
        let Some((resync, error_backoff)) = self.settings.get(&ring).copied() else {
            return reader.missing("settings before the first event of a ring");
        };
        let context = StepContext { now, jitter: 0.0, resync, error_backoff };
        let key = (ring, reader.take("the number of a record")?);
        match kind {
            FrameKind::Keyframe => self.keyframe(key, context, reader),
            FrameKind::Rounds => self.rounds(key, context, reader).map(Some),
            FrameKind::NewRecord => self.new_record(key, context, reader).map(Some),
            FrameKind::Event => self.event(key, context, reader).map(Some),
            FrameKind::Settings | FrameKind::Note | FrameKind::Plan => reader.missing("a frame of a pod"),
        }
    }

    fn keyframe(&mut self, key: RecordKey, context: StepContext, reader: &mut Reader<'_>) -> Read<Option<FrameResult>> {
        let frame: Keyframe<'_> = reader.take("a keyframe")?;
        let (counts, has_rounds) = (frame.counts, frame.has_rounds);
        let (uid, record) = valid(frame.decode(context.now), reader)?;
        let previous = self.records.insert(key, (uid.clone(), record));
        let Some((uid, record)) = self.records.get(&key) else { return Ok(None) };
        let before = previous.as_ref().map(|(_, record)| record.lifecycle());
        let difference = previous
            .filter(|_| !has_rounds)
            .and_then(|(_, reached)| StateDifference::between(Digest::of(record), Digest::of(&reached)));
        if before.is_some() && !has_rounds && difference.is_none() {
            return Ok(None);
        }
        let words = || match (before, has_rounds) {
            (None, _) => "state at the oldest event that is kept".to_owned(),
            (Some(_), true) => describe_rounds(counts, record),
            (Some(_), false) => "present state".to_owned(),
        };
        let result = FrameResult::new(uid, record, difference, self.has_timeline, words);
        Ok(Some(FrameResult { before, events: counts.events(), ..result }))
    }

    fn rounds(&mut self, key: RecordKey, context: StepContext, reader: &mut Reader<'_>) -> Read<FrameResult> {
        let Some((uid, record)) = self.records.get_mut(&key) else { return reader.missing(KNOWN_RECORD) };
        let (counts, end): (RoundCounts, RoundEnd) = reader.take("counts of plain events")?;
        let before = record.lifecycle();
        counts.replay(record, end, context);
        let difference = StateDifference::between(Digest::read(reader)?, Digest::of(record));
        let words = || describe_rounds(counts, record);
        let result = FrameResult::new(uid, record, difference, self.has_timeline, words);
        Ok(FrameResult { before: Some(before), events: counts.events(), ..result })
    }

    fn new_record(&mut self, key: RecordKey, context: StepContext, reader: &mut Reader<'_>) -> Read<FrameResult> {
        let frame: NewRecordFrame<'_> = reader.take("the first update of a record")?;
        let (update, observed, jitter) = valid(frame.decode(context.now), reader)?;
        let (uid, summary) = (update.uid().clone(), EventSummary::of_update(&update));
        let (record, effects) = new_record(update, observed, StepContext { jitter, ..context });
        let difference = StateDifference::between(Digest::read(reader)?, Digest::after(&record, &effects));
        let words = || summary.describe(&effects, None, &record);
        let result = FrameResult::new(&uid, &record, difference, self.has_timeline, words);
        self.records.insert(key, (uid, record));
        Ok(result)
    }

    fn event(&mut self, key: RecordKey, context: StepContext, reader: &mut Reader<'_>) -> Read<FrameResult> {
        let Some((uid, record)) = self.records.get_mut(&key) else { return reader.missing(KNOWN_RECORD) };
        let frame: EventFrame<'_> = reader.take("an event")?;
        let (event, jitter) = valid(frame.decode(HeldConfigs::of(record), context.now), reader)?;
        let (before, hook) = (record.lifecycle(), record.running_hook());
        let name = record.full_name().cloned();
        let summary = EventSummary::of(&event);
        let effects = step(record, event, StepContext { jitter, ..context });
        let difference = StateDifference::between(Digest::read(reader)?, Digest::after(record, &effects));
        let words = || summary.describe(&effects, hook, record);
        let result = FrameResult::new(uid, record, difference, self.has_timeline, words);
        let mut result = FrameResult { before: Some(before), ..result };
        result.name = result.name.or(name);
        if effects.forget {
            (result.after, result.waits) = (None, None);
            self.records.remove(&key);
        }
        Ok(result)
    }
}

const KNOWN_RECORD: &str = "a record that an earlier frame of the ring has";

/// A decoded value, or an error at the end of what was read.
fn valid<T>(decoded: Decoded<T>, reader: &Reader<'_>) -> Read<T> {
    decoded.or_else(|what| reader.missing(what))
}

impl RoundCounts {
    /// The number of counted events, at least one. Takes and due times are not counted.
    fn events(self) -> u32 {
        self.updates.saturating_add(self.syncs).max(1)
    }
}

impl FrameResult {
    /// The result for the present state of a record. The phrases are many times as long as their frame, so they are made only
    /// if they are printed.
    fn new(
        uid: &PodUid,
        record: &Record,
        difference: Option<StateDifference>,
        has_timeline: bool,
        words: impl FnOnce() -> String,
    ) -> Self {
        FrameResult {
            uid: uid.clone(),
            name: record.full_name().cloned(),
            event: if has_timeline || difference.is_some() { words() } else { String::new() },
            before: None,
            after: Some(record.lifecycle()),
            waits: has_timeline.then(|| describe_wait(record)),
            events: 1,
            difference,
        }
    }
}
