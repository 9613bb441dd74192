//! Events as bytes, and back.

use std::sync::Arc;

use super::object::{Held, put_target, read_target};
use crate::codec::{Put, Read, Reader, coded};
use crate::pod_worker::state::{Editor, Record};
use crate::pod_worker::step::{Event, Outcome, StepContext};
use crate::pod_worker::update::{KillOptions, Notifier, Update, UpdateKind};
use crate::ports::{Blame, Observed, SyncRetry};
use crate::time::{Grace, Time};

const UPDATE: u8 = 0;
const TAKE: u8 = 1;
const CONTINUES: u8 = 2;
const ENDED: u8 = 3;
const SUCCEEDED: u8 = 4;
const CANCELLED: u8 = 5;
const FAILED: u8 = 6;
const DUE: u8 = 7;
const WANTED: u8 = 8;
const UNWANTED: u8 = 9;

coded!(Observed: Never, Running, Stopped);
coded!(UpdateKind: Create, Update, Sync, Kill);

/// What an event is, for people, as far as it is to be read from the event alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum EventKind {
    Update { kind: UpdateKind, runtime: bool, asks: Vec<String> },
    Take { may_start: bool },
    Done { said: String },
    Due,
    Known { desired: bool },
}

impl EventKind {
    pub(crate) fn of(event: &Event) -> Self {
        match event {
            Event::Update(update) => EventKind::of_update(update),
            Event::Take { may_start, .. } => EventKind::Take { may_start: *may_start },
            Event::Done(outcome) => EventKind::Done {
                said: match outcome {
                    Outcome::Continues { check_at: None } => "went well".to_owned(),
                    Outcome::Continues { check_at: Some(at) } => format!("went well, look again at {at}"),
                    Outcome::Ended => "says that the pod ended".to_owned(),
                    Outcome::Succeeded => "succeeded".to_owned(),
                    Outcome::Cancelled => "was cancelled".to_owned(),
                    Outcome::Failed { error, .. } => format!("failed: {error}"),
                },
            },
            Event::Due => EventKind::Due,
            Event::Known { desired } => EventKind::Known { desired: *desired },
        }
    }

    pub(crate) fn of_update(update: &Update) -> Self {
        use crate::pod_worker::update::Target;
        let mut asks = Vec::new();
        if let Target::Config(config) = &update.target {
            if config.pod.is_static() {
                asks.push("static".to_owned());
            }
            if config.pod.phase().is_terminal() {
                asks.push(format!("phase {}", config.pod.phase().as_str()));
            }
            if config.pod.is_deleting() {
                let grace = config.pod.deletion_grace().map_or(String::new(), |grace| format!(" with grace {grace} s"));
                asks.push(format!("deleted{grace}"));
            }
        }
        if let Some(options) = &update.options {
            asks.extend(options.grace.map(|grace| format!("grace {grace}")));
            if options.evict {
                asks.push("evict".to_owned());
            }
            if options.completed.is_some() {
                asks.push("somebody waits for the end".to_owned());
            }
        }
        let runtime = matches!(update.target, Target::Runtime(_));
        EventKind::Update { kind: update.kind, runtime, asks }
    }
}

pub(crate) fn put_birth(bytes: &mut Vec<u8>, update: &Update, observed: Observed, tick: &StepContext) {
    bytes.uid(update.uid());
    bytes.coded(observed);
    put_jitter(bytes, tick);
    put_update(bytes, update, Held::default(), tick.now);
}

/// Reads what [`put_birth`] wrote, behind the UID.
pub(crate) fn read_birth(reader: &mut Reader<'_>, now: Time) -> Read<(Update, Observed, f64)> {
    let observed = reader.coded("what the runtime showed")?;
    let jitter = read_jitter(reader)?;
    Ok((read_update(reader, Held::default(), now)?, observed, jitter))
}

pub(crate) fn put(bytes: &mut Vec<u8>, record: &Record, event: &Event, tick: &StepContext) {
    put_jitter(bytes, tick);
    match event {
        Event::Update(update) => {
            bytes.byte(UPDATE);
            put_update(bytes, update, Held::of(record), tick.now);
        }
        Event::Take { may_start, observed } => {
            bytes.byte(TAKE);
            bytes.flag(*may_start);
            bytes.coded(*observed);
        }
        Event::Done(outcome) => put_outcome(bytes, outcome, tick.now),
        Event::Due => bytes.byte(DUE),
        Event::Known { desired } => bytes.byte(if *desired { WANTED } else { UNWANTED }),
    }
}

/// Reads what [`put`] wrote, of a record that stands as it stood then.
pub(crate) fn read(reader: &mut Reader<'_>, record: &Record, now: Time) -> Read<(Event, f64)> {
    let jitter = read_jitter(reader)?;
    let event = match reader.byte("an event")? {
        UPDATE => Event::Update(read_update(reader, Held::of(record), now)?),
        TAKE => Event::Take {
            may_start: reader.flag("whether the name is free")?,
            observed: reader.coded("what the runtime showed")?,
        },
        CONTINUES => Event::Done(Outcome::Continues { check_at: reader.some_time(now, "when to look again")? }),
        ENDED => Event::Done(Outcome::Ended),
        SUCCEEDED => Event::Done(Outcome::Succeeded),
        CANCELLED => Event::Done(Outcome::Cancelled),
        FAILED => {
            let retry = match reader.byte("when to try again")? {
                0 => SyncRetry::Backoff,
                1 => SyncRetry::NetworkNotReady,
                2 => SyncRetry::At(reader.time(now, "when to try again")?),
                _ => return reader.missing("when to try again"),
            };
            let error = reader.text("an error")?.to_owned();
            Event::Done(Outcome::Failed { error, retry, blame: Blame::Nothing })
        }
        DUE => Event::Due,
        WANTED => Event::Known { desired: true },
        UNWANTED => Event::Known { desired: false },
        _ => return reader.missing("an event of this version"),
    };
    Ok((event, jitter))
}

fn put_outcome(bytes: &mut Vec<u8>, outcome: &Outcome, now: Time) {
    match outcome {
        Outcome::Continues { check_at } => {
            bytes.byte(CONTINUES);
            bytes.some_time(now, *check_at);
        }
        Outcome::Ended => bytes.byte(ENDED),
        Outcome::Succeeded => bytes.byte(SUCCEEDED),
        Outcome::Cancelled => bytes.byte(CANCELLED),
        Outcome::Failed { error, retry, blame: _ } => {
            bytes.byte(FAILED);
            match retry {
                SyncRetry::Backoff => bytes.byte(0),
                SyncRetry::NetworkNotReady => bytes.byte(1),
                SyncRetry::At(until) => {
                    bytes.byte(2);
                    bytes.time(now, *until);
                }
            }
            bytes.text(error);
        }
    }
}

fn put_update(bytes: &mut Vec<u8>, update: &Update, held: Held<'_>, now: Time) {
    bytes.coded(update.kind);
    put_target(bytes, &update.target, held);
    bytes.some_time(now, update.start_time);
    let Some(options) = &update.options else { return bytes.byte(0) };
    let flags =
        [true, options.completed.is_some(), options.evict, options.status_fn.is_some(), options.grace.is_some()];
    bytes.byte(flags.into_iter().enumerate().fold(0, |all, (place, flag)| all | u8::from(flag) << place));
    if let Some(grace) = options.grace {
        bytes.number(grace.seconds().into());
    }
}

fn read_update(reader: &mut Reader<'_>, held: Held<'_>, now: Time) -> Read<Update> {
    let kind = reader.coded("the kind of an update")?;
    let target = read_target(reader, held)?;
    let start_time = reader.some_time(now, "a start time")?;
    let flags = reader.byte("the options of an update")?;
    let has = |place: u8| flags >> place & 1 == 1;
    let options = if has(0) {
        let grace = if has(4) { Some(Grace::from_seconds(reader.small("a grace")?.into())) } else { None };
        Some(Box::new(KillOptions {
            completed: has(1).then(|| Notifier::new().0),
            evict: has(2),
            status_fn: has(3).then(|| edits_nothing().0),
            grace,
        }))
    } else {
        None
    };
    Ok(Update { kind, target, start_time, options })
}

/// What stands for an edit of a status, which no recording holds.
pub(crate) fn edits_nothing() -> Editor {
    Editor(Arc::new(|_| {}))
}

fn put_jitter(bytes: &mut Vec<u8>, tick: &StepContext) {
    bytes.flag(tick.jitter != 0.0);
    if tick.jitter != 0.0 {
        bytes.raw(&tick.jitter.to_le_bytes());
    }
}

fn read_jitter(reader: &mut Reader<'_>) -> Read<f64> {
    if !reader.flag("whether there is a jitter")? {
        return Ok(0.0);
    }
    let jitter = f64::from_le_bytes(reader.array("a jitter")?);
    // Anything else could not be multiplied with a delay.
    if (0.0..=1.0).contains(&jitter) { Ok(jitter) } else { reader.missing("a jitter from 0 to 1") }
}
