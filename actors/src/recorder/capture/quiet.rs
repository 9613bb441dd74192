//! What many plain events led to, in one frame.

use crate::codec::{Put, Read, Reader};
use crate::pod_worker::state::{Record, State};
use crate::pod_worker::step::{Event, Outcome, StepContext, step};
use crate::pod_worker::update::{Target, Update, UpdateKind};
use crate::ports::{Blame, Observed, SyncRetry};
use crate::time::Time;

use std::time::Duration;

/// Plain events that were counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Quiet {
    /// Updates that asked for another look.
    pub(crate) updates: u32,
    /// Setups that went well; of a pod that fails, those that failed as the one before.
    pub(crate) syncs: u32,
}

/// Where plain events left a record: everything else of it is as it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rest {
    pending: bool,
    running: Option<Time>,
    due: Option<Time>,
}

impl Quiet {
    pub(crate) fn put_counts(self, bytes: &mut Vec<u8>) {
        bytes.number(self.updates.into());
        bytes.number(self.syncs.into());
    }

    pub(crate) fn read_counts(reader: &mut Reader<'_>) -> Read<Self> {
        Ok(Quiet { updates: reader.small("a count of updates")?, syncs: reader.small("a count of setups")? })
    }

    pub(crate) fn put(self, bytes: &mut Vec<u8>, record: &Record, now: Time) {
        self.put_counts(bytes);
        bytes.flag(record.pending.is_some());
        bytes.some_time(now, record.running.map(|running| running.since));
        bytes.some_time(now, record.due);
    }

    pub(crate) fn read(reader: &mut Reader<'_>, now: Time) -> Read<(Self, Rest)> {
        let counts = Quiet::read_counts(reader)?;
        let rest = Rest {
            pending: reader.flag("whether an update is pending")?,
            running: reader.some_time(now, "since when a hook runs")?,
            due: reader.some_time(now, "a due time")?,
        };
        Ok((counts, rest))
    }

    /// Takes a record to where plain events left it, by way of `step`. Every round ends where it began, but for its times
    /// and the count of failures; so the first round and the last say all, and those between them are only added to that
    /// count.
    pub(crate) fn replay(self, record: &mut Record, rest: Rest, settings: StepContext) {
        let now = settings.now;
        let drive = |record: &mut Record, event: Event, tick: StepContext| drop(step(record, event, tick));
        let take = || Event::Take { may_start: true, observed: Observed::Never };
        let error = record.failure.as_ref().map(|failure| failure.error.clone());
        let rounds = self.syncs.min(2);
        for _ in 0..rounds {
            if record.running.is_none() {
                look(record, settings);
                drive(record, take(), settings);
            }
            // The jitter and the delay are not kept, but what came of them is.
            let (resync, error_backoff) = (Duration::ZERO, Duration::ZERO);
            let tick = StepContext { now: rest.due.unwrap_or(now), jitter: 0.0, resync, error_backoff };
            let outcome = match &error {
                Some(error) => {
                    Outcome::Failed { error: error.clone(), retry: SyncRetry::Backoff, blame: Blame::Nothing }
                }
                None => Outcome::Continues { check_at: None },
            };
            drive(record, Event::Done(outcome), tick);
        }
        if let Some(failure) = &mut record.failure {
            failure.count = failure.count.saturating_add(self.syncs - rounds);
        }
        if let (Some(since), None) = (rest.running, record.running) {
            look(record, settings);
            drive(record, take(), StepContext { now: since, ..settings });
        }
        if let (true, None, Some(due)) = (rest.pending, rest.due, record.due) {
            drive(record, Event::Due, StepContext { now: due, ..settings });
        }
        if rest.pending {
            look(record, settings);
        }
    }
}

/// Asks for another look at what is acted on, unless one is asked for.
fn look(record: &mut Record, tick: StepContext) {
    if let (State::Sync(started), None) = (&record.state, &record.pending) {
        let target = Target::Config(started.config.clone());
        let update = Update { kind: UpdateKind::Sync, target, start_time: None, options: None };
        drop(step(record, Event::Update(update), tick));
    }
}
