//! Plain rounds: what the events that were only counted led to, in one frame.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::codec::{self, Delta};
use crate::pod_worker::state::{Record, State};
use crate::pod_worker::step::{Event, Outcome, StepContext, step};
use crate::pod_worker::{Target, Update, UpdateKind};
use crate::ports::{FailureCause, Observed, SyncRetry};
use crate::time::Time;

/// How many plain events were counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RoundCounts {
    /// Updates that requested another sync.
    #[serde(serialize_with = "codec::number")]
    pub(crate) updates: u32,
    /// Setup calls that succeeded, or, while the setup of the pod fails, that failed with the same error.
    #[serde(serialize_with = "codec::number")]
    pub(crate) syncs: u32,
}

/// The parts of a record that plain events change.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct RoundEnd {
    has_pending: bool,
    running_since: Option<Delta>,
    due: Option<Delta>,
}

impl RoundEnd {
    pub(crate) fn of(record: &Record, now: Time) -> Self {
        RoundEnd {
            has_pending: record.pending.is_some(),
            running_since: record.running().map(|running| Delta::new(now, running.since)),
            due: record.due().map(|due| Delta::new(now, due)),
        }
    }
}

impl RoundCounts {
    /// Takes a record to where plain events left it, by `step`. Every round ends where it began, except for its times and
    /// the count of failures. So only the first round and the last are run, and the others are added to that count.
    pub(crate) fn replay(self, record: &mut Record, end: RoundEnd, settings: StepContext) {
        let now = settings.now;
        let time = |delta: Option<Delta>| delta.map(|delta| delta.after(now));
        let (running_since, due) = (time(end.running_since), time(end.due));
        let drive = |record: &mut Record, event: Event, context: StepContext| drop(step(record, event, context));
        let take = || Event::Take { may_start: true, observed: Observed::Never };
        let error = record.failure.as_ref().map(|failure| failure.error.clone());
        let rounds = self.syncs.min(2);
        for _ in 0..rounds {
            if !record.is_calling() {
                requeue(record, settings);
                drive(record, take(), settings);
            }
            // The recording has no jitter and no delay of these steps, but the due time that they led to.
            let (resync, error_backoff) = (Duration::ZERO, Duration::ZERO);
            let context = StepContext { now: due.unwrap_or(now), jitter: 0.0, resync, error_backoff };
            let outcome = match &error {
                Some(error) => {
                    Outcome::Failed { error: error.clone(), retry: SyncRetry::Backoff, cause: FailureCause::Unknown }
                }
                None => Outcome::Continues { check_at: None },
            };
            drive(record, Event::Done(outcome), context);
        }
        if let Some(failure) = &mut record.failure {
            failure.count = failure.count.saturating_add(self.syncs - rounds);
        }
        if let (Some(since), None) = (running_since, record.running()) {
            requeue(record, settings);
            drive(record, take(), StepContext { now: since, ..settings });
        }
        if let (true, None, Some(due)) = (end.has_pending, due, record.due()) {
            drive(record, Event::Due, StepContext { now: due, ..settings });
        }
        if end.has_pending {
            requeue(record, settings);
        }
    }
}

/// Requests another sync of the spec that the worker acts on, unless an update is pending.
fn requeue(record: &mut Record, context: StepContext) {
    if let (State::Sync(started), None) = (&record.state, &record.pending) {
        let target = Target::Config(started.config.clone());
        let update = Update { kind: UpdateKind::Sync, target, start_time: None, options: None };
        drop(step(record, Event::Update(update), context));
    }
}
