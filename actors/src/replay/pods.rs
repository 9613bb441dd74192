//! The records of a replay: each frame of a pod worker is run through `step`, and what it leads to is compared.

use std::collections::HashMap;
use std::time::Duration;

use crate::codec::{Read, Reader};
use crate::ids::{FullName, PodUid};
use crate::pod_worker::step::{Effects, StepContext, birth, step};
use crate::pod_worker::{Lifecycle, Record, UpdateKind, WaitFor};
use crate::recorder::capture::{Digest, EventKind, Quiet, frame, read_birth, read_event, read_keyframe};
use crate::recorder::file::ReadError;
use crate::time::Time;

/// All records, by ring and number.
pub(super) struct Pods {
    /// Whether somebody's timeline is told; else words are made only for a difference.
    tells: bool,
    records: HashMap<(usize, u32), (PodUid, Record)>,
    settings: HashMap<usize, (Duration, Duration)>,
}

/// What a frame tells.
pub(super) struct Told {
    pub(super) uid: PodUid,
    pub(super) name: Option<FullName>,
    /// Empty where nobody will read it.
    pub(super) event: String,
    pub(super) before: Option<Lifecycle>,
    pub(super) after: Option<Lifecycle>,
    pub(super) waits: Option<String>,
    /// How many events it stands for.
    pub(super) counts: u32,
    /// The state that was recorded and the one that was reached, if they differ.
    pub(super) differs: Option<(String, String)>,
}

impl Pods {
    pub(super) fn new(tells: bool) -> Self {
        Pods { tells, records: HashMap::new(), settings: HashMap::new() }
    }

    /// Runs one frame; nothing is told of those that only make others readable.
    pub(super) fn frame(
        &mut self,
        ring: usize,
        now: Time,
        kind: u8,
        reader: &mut Reader<'_>,
    ) -> Result<Option<Told>, ReadError> {
        if kind == frame::SETTINGS {
            let settings = (reader.duration("a resync interval")?, reader.duration("a backoff")?);
            self.settings.insert(ring, settings);
            return Ok(None);
        }
        let Some((resync, error_backoff)) = self.settings.get(&ring).copied() else {
            return reader.missing("settings before the first event of a ring").map_err(ReadError::from);
        };
        let tick = StepContext { now, jitter: 0.0, resync, error_backoff };
        let key = (ring, reader.small("the number of a pod")?);
        match kind {
            frame::KEYFRAME => self.keyframe(key, tick, reader),
            frame::QUIET => self.quiet(key, tick, reader).map(Some),
            frame::BIRTH => self.birth(key, tick, reader).map(Some),
            frame::EVENT => self.event(key, tick, reader).map(Some),
            _ => reader.missing("a frame of this version"),
        }
        .map_err(ReadError::from)
    }

    fn keyframe(&mut self, key: (usize, u32), tick: StepContext, reader: &mut Reader<'_>) -> Read<Option<Told>> {
        let counts = Quiet::read_counts(reader)?;
        let moved = reader.flag("whether plain events came")?;
        let (uid, record) = read_keyframe(reader, tick.now)?;
        let known = self.records.insert(key, (uid.clone(), record));
        let Some((uid, record)) = self.records.get(&key) else { return Ok(None) };
        let digest = Digest::of(record);
        let before = known.as_ref().map(|(_, record)| record.lifecycle());
        let reached = known.map(|(_, record)| Digest::of(&record));
        let differs = reached.filter(|reached| !moved && *reached != digest);
        let differs = differs.map(|reached| (digest.to_string(), reached.to_string()));
        let words = || match (before, moved) {
            (None, _) => "as it stood when the oldest event that is kept came".to_owned(),
            (Some(_), true) => said(counts, record),
            (Some(_), false) => "as it stands".to_owned(),
        };
        if before.is_some() && !moved && differs.is_none() {
            return Ok(None);
        }
        let told = Told::of(uid, record, differs, self.tells, words);
        Ok(Some(Told { before, counts: counts.events(), ..told }))
    }

    fn quiet(&mut self, key: (usize, u32), tick: StepContext, reader: &mut Reader<'_>) -> Read<Told> {
        let Some((uid, record)) = self.records.get_mut(&key) else { return reader.missing(UNKNOWN) };
        let (counts, rest) = Quiet::read(reader, tick.now)?;
        let before = record.lifecycle();
        counts.replay(record, rest, tick);
        let differs = compare(Digest::of(record), reader)?;
        let told = Told::of(uid, record, differs, self.tells, || said(counts, record));
        Ok(Told { before: Some(before), counts: counts.events(), ..told })
    }

    fn birth(&mut self, key: (usize, u32), tick: StepContext, reader: &mut Reader<'_>) -> Read<Told> {
        let uid = reader.uid("a UID")?;
        let (update, observed, jitter) = read_birth(reader, tick.now)?;
        let kind = EventKind::of_update(&update);
        let (record, effects) = birth(update, observed, StepContext { jitter, ..tick });
        let differs = compare(Digest::after(&record, &effects), reader)?;
        let told = Told::of(&uid, &record, differs, self.tells, || describe(&kind, &effects, None, &record));
        self.records.insert(key, (uid, record));
        Ok(told)
    }

    fn event(&mut self, key: (usize, u32), tick: StepContext, reader: &mut Reader<'_>) -> Read<Told> {
        let Some((uid, record)) = self.records.get_mut(&key) else { return reader.missing(UNKNOWN) };
        let (event, jitter) = read_event(reader, record, tick.now)?;
        let (before, hook) = (record.lifecycle(), record.running_hook());
        let name = record.full_name().cloned();
        let kind = EventKind::of(&event);
        let effects = step(record, event, StepContext { jitter, ..tick });
        let differs = compare(Digest::after(record, &effects), reader)?;
        let words = || describe(&kind, &effects, hook, record);
        let mut told = Told { before: Some(before), ..Told::of(uid, record, differs, self.tells, words) };
        told.name = told.name.or(name);
        if effects.forget {
            (told.after, told.waits) = (None, None);
            self.records.remove(&key);
        }
        Ok(told)
    }
}

const UNKNOWN: &str = "an event of a pod that is known";

impl Quiet {
    /// How many events it stands for, as far as they were counted.
    fn events(self) -> u32 {
        self.updates.saturating_add(self.syncs).max(1)
    }
}

impl Told {
    /// Of where a record stands now. The words are many times as long as the frame may be, so they are made only where they
    /// are read.
    fn of(
        uid: &PodUid,
        record: &Record,
        differs: Option<(String, String)>,
        tells: bool,
        words: impl FnOnce() -> String,
    ) -> Self {
        Told {
            uid: uid.clone(),
            name: record.full_name().cloned(),
            event: if tells || differs.is_some() { words() } else { String::new() },
            before: None,
            after: Some(record.lifecycle()),
            waits: tells.then(|| waits(record)),
            counts: 1,
            differs,
        }
    }
}

fn compare(got: Digest, reader: &mut Reader<'_>) -> Read<Option<(String, String)>> {
    let expected = Digest::read(reader)?;
    Ok((expected != got).then(|| (expected.to_string(), got.to_string())))
}

/// What plain events did, to a record that fails or does well after them as it did before.
fn said(Quiet { updates, syncs }: Quiet, record: &Record) -> String {
    let asked = match updates {
        0 => String::new(),
        1 => ", asked to once".to_owned(),
        more => format!(", asked to {more} times"),
    };
    match (syncs, record.failure()) {
        (0, _) => format!("looked at again{asked}"),
        (1, None) => format!("looked at again{asked}: all is well"),
        (more, None) => format!("looked at again{asked}; {more} times all was well"),
        (1, Some(failure)) => format!("looked at again{asked}: failed as before: {}", failure.error),
        (more, Some(failure)) => format!("looked at again{asked}; {more} times it failed as before: {}", failure.error),
    }
}

fn describe(kind: &EventKind, effects: &Effects, hook: Option<&'static str>, record: &Record) -> String {
    let mut text = match kind {
        EventKind::Update { kind, runtime, asks } => {
            let kind = match kind {
                UpdateKind::Create => "create",
                UpdateKind::Update => "update",
                UpdateKind::Sync => "look again",
                UpdateKind::Kill => "stop",
            };
            let whom = if *runtime { " a pod that only the runtime knows" } else { "" };
            let asks = if asks.is_empty() { String::new() } else { format!(" ({})", asks.join(", ")) };
            format!("{kind}{whom}{asks}")
        }
        EventKind::Take { may_start: false } => "told to wait: its full name is taken".to_owned(),
        EventKind::Take { may_start: true } => match &effects.call {
            Some(call) => format!("calls {}", call.hook().as_str()),
            None => "takes what is pending".to_owned(),
        },
        EventKind::Done { said } => format!("{} {said}", hook.unwrap_or("a hook")),
        EventKind::Due => "its time has come".to_owned(),
        EventKind::Known { desired: true } => "housekeeping: it is wanted again, and starts anew".to_owned(),
        EventKind::Known { desired: false } => "housekeeping: no source wants it".to_owned(),
    };
    if effects.cancel {
        text.push_str("; the call under way is cancelled");
    }
    if effects.forget {
        text.push_str("; its record is dropped");
    } else if let Some(last) = record.transitions().next_back().filter(|_| record.is_termination_requested()) {
        let grace = record.grace().map_or(String::new(), |grace| format!(", grace {grace}"));
        text.push_str(&format!(" [{}{grace}]", last.cause.as_str()));
    }
    text
}

fn waits(record: &Record) -> String {
    let wait = record.wait();
    let next = wait.next.map_or(String::new(), |next| format!(", at the latest at {next}"));
    match wait.what {
        WaitFor::Worker => "its worker's turn".to_owned(),
        WaitFor::FullName { .. } => format!("its full name{next}"),
        WaitFor::HookCall(hook) => format!("the end of {}", hook.as_str()),
        WaitFor::Retry { hook, error: _ } => match wait.next {
            Some(next) => format!("another try of {} at {next}, failed so far: {}", hook.as_str(), wait.tries),
            None => format!("another try of {}", hook.as_str()),
        },
        WaitFor::Resync => format!("the next look{next}"),
        WaitFor::Removal => "its source to drop it".to_owned(),
    }
}
