//! Events as bytes, and back.

use serde::{Deserialize, Serialize};

use super::Decoded;
use super::object::{HeldConfigs, TargetData};
use crate::codec::{Delta, Text, put};
use crate::pod_worker::state::Record;
use crate::pod_worker::step::{Event, Outcome, StepContext};
use crate::pod_worker::{KillOptions, Notifier, StatusEditor, Update, UpdateKind};
use crate::ports::{FailureCause, Observed, SyncRetry};
use crate::time::{Grace, Time};

/// An [`Event`] with its jitter in a recording.
#[derive(Debug, Deserialize)]
pub(crate) struct EventFrame<'a> {
    jitter: Jitter,
    #[serde(borrow)]
    event: EventData<'a>,
}

// A recording has the index of the variant: another order of variants is another format.
#[derive(Debug, Serialize, Deserialize)]
enum EventData<'a> {
    #[serde(borrow)]
    Update(UpdateData<'a>),
    Take {
        may_start: bool,
        observed: Observed,
    },
    Continues {
        check_at: Option<Delta>,
    },
    Ended,
    Succeeded,
    Cancelled,
    Failed {
        retry: RetryData,
        #[serde(borrow)]
        error: Text<'a>,
    },
    Due,
    Known {
        desired: bool,
    },
}

// A recording has the index of the variant: another order of variants is another format.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
enum RetryData {
    Backoff,
    NetworkNotReady,
    At(Delta),
}

impl EventFrame<'_> {
    /// Writes the parts of a frame. `record` is the record before the event.
    #[inline]
    pub(crate) fn put(bytes: &mut Vec<u8>, event: &Event, record: &Record, context: &StepContext) {
        let now = context.now;
        put(bytes, &Jitter::new(context));
        let data = match event {
            // Apart from the others, so that they do not pay for its size.
            Event::Update(update) => {
                return put(bytes, &EventData::Update(UpdateData::new(update, HeldConfigs::of(record), now)));
            }
            Event::Take { may_start, observed } => EventData::Take { may_start: *may_start, observed: *observed },
            Event::Done(Outcome::Continues { check_at }) => {
                EventData::Continues { check_at: check_at.map(|at| Delta::new(now, at)) }
            }
            Event::Done(Outcome::Ended) => EventData::Ended,
            Event::Done(Outcome::Succeeded) => EventData::Succeeded,
            Event::Done(Outcome::Cancelled) => EventData::Cancelled,
            Event::Done(Outcome::Failed { error, retry, cause: _ }) => {
                let retry = match retry {
                    SyncRetry::Backoff => RetryData::Backoff,
                    SyncRetry::NetworkNotReady => RetryData::NetworkNotReady,
                    SyncRetry::At(until) => RetryData::At(Delta::new(now, *until)),
                };
                EventData::Failed { retry, error: Text::new(error) }
            }
            Event::Due => EventData::Due,
            Event::Known { desired } => EventData::Known { desired: *desired },
        };
        put(bytes, &data);
    }

    /// The event and the jitter. `held` are the specs of the record before the event.
    pub(crate) fn decode(self, held: HeldConfigs<'_>, now: Time) -> Decoded<(Event, f64)> {
        let done = Event::Done;
        let event = match self.event {
            EventData::Update(update) => Event::Update(update.decode(held, now)?),
            EventData::Take { may_start, observed } => Event::Take { may_start, observed },
            EventData::Continues { check_at } => {
                done(Outcome::Continues { check_at: check_at.map(|at| at.after(now)) })
            }
            EventData::Ended => done(Outcome::Ended),
            EventData::Succeeded => done(Outcome::Succeeded),
            EventData::Cancelled => done(Outcome::Cancelled),
            EventData::Failed { retry, error } => {
                let retry = match retry {
                    RetryData::Backoff => SyncRetry::Backoff,
                    RetryData::NetworkNotReady => SyncRetry::NetworkNotReady,
                    RetryData::At(until) => SyncRetry::At(until.after(now)),
                };
                done(Outcome::Failed { error: error.as_str().to_owned(), retry, cause: FailureCause::Unknown })
            }
            EventData::Due => Event::Due,
            EventData::Known { desired } => Event::Known { desired },
        };
        Ok((event, self.jitter.decode()?))
    }
}

/// The first update of a record in a recording.
#[derive(Debug, Deserialize)]
pub(crate) struct NewRecordFrame<'a> {
    observed: Observed,
    jitter: Jitter,
    #[serde(borrow)]
    update: UpdateData<'a>,
}

impl NewRecordFrame<'_> {
    /// Writes the parts of a frame.
    #[inline]
    pub(crate) fn put(bytes: &mut Vec<u8>, update: &Update, observed: Observed, context: &StepContext) {
        put(bytes, &(observed, Jitter::new(context)));
        put(bytes, &UpdateData::new(update, HeldConfigs::default(), context.now));
    }

    pub(crate) fn decode(self, now: Time) -> Decoded<(Update, Observed, f64)> {
        Ok((self.update.decode(HeldConfigs::default(), now)?, self.observed, self.jitter.decode()?))
    }
}

#[derive(Debug, Serialize, Deserialize)]
struct UpdateData<'a> {
    kind: UpdateKind,
    #[serde(borrow)]
    target: TargetData<'a>,
    start_time: Option<Delta>,
    options: Option<OptionsData>,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct OptionsData {
    has_waiter: bool,
    evict: bool,
    has_status_fn: bool,
    grace: Option<u32>,
}

impl<'a> UpdateData<'a> {
    #[inline]
    fn new(update: &'a Update, held: HeldConfigs<'_>, now: Time) -> Self {
        UpdateData {
            kind: update.kind,
            target: TargetData::new(&update.target, held),
            start_time: update.start_time.map(|time| Delta::new(now, time)),
            options: update.options.as_ref().map(|options| OptionsData {
                has_waiter: options.completed.is_some(),
                evict: options.evict,
                has_status_fn: options.status_fn.is_some(),
                grace: options.grace.map(Grace::seconds),
            }),
        }
    }

    fn decode(self, held: HeldConfigs<'_>, now: Time) -> Decoded<Update> {
        let options = self.options.map(|options| {
            Box::new(KillOptions {
                completed: options.has_waiter.then(|| Notifier::new().0),
                evict: options.evict,
                status_fn: options.has_status_fn.then(|| StatusEditor::without_edits().0),
                grace: options.grace.map(|seconds| Grace::from_seconds(seconds.into())),
            })
        });
        Ok(Update {
            kind: self.kind,
            target: self.target.decode(held)?,
            start_time: self.start_time.map(|time| time.after(now)),
            options,
        })
    }
}

/// The jitter of a step; absent if it is zero.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(transparent)]
struct Jitter(Option<f64>);

impl Jitter {
    #[inline]
    fn new(context: &StepContext) -> Self {
        Jitter((context.jitter != 0.0).then_some(context.jitter))
    }

    /// Any other number could not be multiplied with a delay.
    fn decode(self) -> Decoded<f64> {
        let jitter = self.0.unwrap_or(0.0);
        if (0.0..=1.0).contains(&jitter) { Ok(jitter) } else { Err("a jitter from 0 to 1") }
    }
}
