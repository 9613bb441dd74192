//! Which step the dispatcher takes next, and when. Pure: time and the health of the runtime are arguments.
//!
//! ```text
//!   source update ---> accepted, at most 50 with a reply ---+
//!   panic of a handler -- 10 s --> retry of admission ------+--> one turn at a time, while the runtime is healthy --> Ended
//!   pod ended, or 2 s ------ 0.1 s --> judgement of queue --+
//! ```
//!
//! A turn is under way until the rejections that it made are published. The queue is judged before any update is applied, so that no new
//! pod gets the resources that a pod of the queue waits for. Admission is retried after all accepted updates.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::ports::{SOURCE_CHANNEL_DEPTH, SourceUpdate};

/// The largest number of accepted source updates. Sources that wait for replies stay below it.
const MAX_ACCEPTED: usize = 2 * SOURCE_CHANNEL_DEPTH;

/// The delay before admission is retried after an admission handler panicked. Equal to the delay after a failed hook
/// (upstream `backOffPeriod`, kubelet 1.36).
const ADMISSION_RETRY: Duration = Duration::from_secs(10);

/// How often the pods of the queue are judged again, besides each time a pod has ended. A pod may end without a hook that reports its end.
const READMISSION_PERIOD: Duration = Duration::from_secs(2);

/// The shortest time between two judgements of the queue, because many pods may end at once.
const READMISSION_PAUSE: Duration = Duration::from_millis(100);

/// How often the resizes that wait are decided again, besides each time that resources become free (upstream `retryDelay`, kubelet 1.36).
const RESIZE_PERIOD: Duration = Duration::from_secs(3 * 60);

/// The source updates that wait for a turn, and the times of the next turns. A source that is too fast waits for its `Reply`.
#[derive(Debug)]
pub(super) struct Turns<Reply> {
    /// Source updates that were accepted and not applied yet.
    accepted: VecDeque<SourceUpdate>,
    /// The replies to the accepted updates that have [`SOURCE_CHANNEL_DEPTH`] others or more before them.
    replies: VecDeque<Reply>,
    /// Whether a turn is under way.
    under_way: bool,
    retry: Retry,
    readmission: Readmission,
    /// When the pods of the queue are judged again, besides each time a pod has ended.
    readmits_at: Option<Instant>,
    /// When the resizes that wait are decided again.
    resizes_at: Option<Instant>,
}

/// Whether admission has to be retried, because some pods have no decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Retry {
    NotNeeded,
    At(Instant),
    Due,
}

/// Whether the pods of the queue have to be judged again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Readmission {
    NotNeeded,
    Due,
    /// The pods were judged a short time ago. `again` is set if a pod has ended since then.
    Paused {
        until: Instant,
        again: bool,
    },
}

/// What waits for resources at the time of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Waiting {
    /// Whether the admission queue has pods.
    pub(super) pods: bool,
    /// Whether resizes wait to be decided.
    pub(super) resizes: bool,
}

/// What happens to the dispatcher.
#[derive(Debug)]
pub(super) enum Event<Reply> {
    /// A source sent an update, and waits for the reply.
    Accept { update: SourceUpdate, reply: Reply },
    /// The runtime became healthy or unhealthy.
    HealthChanged,
    /// Resources may have become free: a pod has ended or was resized.
    Freed(Waiting),
    /// Rejected pods have lost their decision and have to be admitted again.
    DecisionsWithdrawn,
    /// The time of an [`Effect::WakeAt`] has come.
    TimePassed(Waiting),
    /// The turn has ended. `is_complete` is false if a pod may be without a decision, because a handler panicked.
    Ended { is_complete: bool, waiting: Waiting },
}

/// What the actor has to do, in this order.
#[derive(Debug)]
pub(super) enum Effect<Reply> {
    /// Answer a source: its update is accepted.
    Reply(Reply),
    /// Count an update that was dropped.
    Refused,
    /// Report [`Event::TimePassed`] then.
    WakeAt(Instant),
    /// Decide again on the resizes that wait.
    RetryResizes,
    /// Take a turn, and report [`Event::Ended`].
    Begin(Turn),
    /// Show the pods of the [accepted](Turns::accepted) updates as held back: the runtime is unhealthy.
    Hold,
}

/// A step of the dispatcher.
#[derive(Debug)]
pub(super) enum Turn {
    /// Judge the pods of the queue.
    Readmit,
    Update(SourceUpdate),
    RetryAdmission,
}

impl<Reply> Default for Turns<Reply> {
    fn default() -> Self {
        Turns {
            accepted: VecDeque::new(),
            replies: VecDeque::new(),
            under_way: false,
            retry: Retry::NotNeeded,
            readmission: Readmission::NotNeeded,
            readmits_at: None,
            resizes_at: None,
        }
    }
}

impl<Reply> Turns<Reply> {
    /// One move. Turns begin only while the runtime is healthy.
    #[must_use]
    pub(super) fn step(&mut self, event: Event<Reply>, is_healthy: bool, now: Instant) -> Vec<Effect<Reply>> {
        let mut effects = Vec::new();
        match event {
            Event::Accept { update, reply } => self.accept(update, reply, &mut effects),
            Event::HealthChanged => {}
            Event::Freed(waiting) => self.readmit(waiting),
            Event::DecisionsWithdrawn => self.retry = Retry::Due,
            Event::TimePassed(waiting) => self.time_passed(waiting, now, &mut effects),
            Event::Ended { is_complete, waiting } => self.ended(is_complete, waiting, now, &mut effects),
        }
        if is_healthy {
            self.begin(now, &mut effects);
        } else if !self.accepted.is_empty() {
            effects.push(Effect::Hold);
        }
        effects
    }

    /// The updates that were accepted and not applied yet, in their order.
    pub(super) fn accepted(&self) -> impl Iterator<Item = &SourceUpdate> {
        self.accepted.iter()
    }

    /// Accepts an update. If a source keeps sending without waiting for replies, its oldest update is dropped: its later updates replace
    /// it, and the updates of the others stay.
    fn accept(&mut self, update: SourceUpdate, reply: Reply, effects: &mut Vec<Effect<Reply>>) {
        if self.accepted.len() >= MAX_ACCEPTED
            && let Some(oldest) = self.accepted.iter().position(|accepted| accepted.source() == update.source())
        {
            effects.push(Effect::Refused);
            self.take(oldest, effects);
        }
        if self.accepted.len() < SOURCE_CHANNEL_DEPTH {
            effects.push(Effect::Reply(reply));
        } else {
            self.replies.push_back(reply);
        }
        self.accepted.push_back(update);
    }

    /// Takes an accepted update out of the line. The reply to the one that moves to the last place with room is due, or the reply to the
    /// one that is taken, if that has not had it.
    fn take(&mut self, place: usize, effects: &mut Vec<Effect<Reply>>) -> Option<SourceUpdate> {
        let update = self.accepted.remove(place)?;
        effects.extend(self.replies.remove(place.saturating_sub(SOURCE_CHANNEL_DEPTH)).map(Effect::Reply));
        Some(update)
    }

    /// Judges the pods of the queue again, if there are any, at once or after the pause.
    fn readmit(&mut self, waiting: Waiting) {
        if !waiting.pods {
            return;
        }
        match &mut self.readmission {
            Readmission::NotNeeded | Readmission::Due => self.readmission = Readmission::Due,
            Readmission::Paused { again, .. } => *again = true,
        }
    }

    fn time_passed(&mut self, waiting: Waiting, now: Instant, effects: &mut Vec<Effect<Reply>>) {
        if let Retry::At(at) = self.retry
            && at <= now
        {
            self.retry = Retry::Due;
        }
        if let Readmission::Paused { until, again } = self.readmission
            && until <= now
        {
            self.readmission = Readmission::NotNeeded;
            if again {
                self.readmit(waiting);
            }
        }
        // The turn that follows sets the next time, as long as pods wait.
        if self.readmits_at.take_if(|at| *at <= now).is_some() {
            self.readmit(waiting);
        }
        if self.resizes_at.take_if(|at| *at <= now).is_some() && waiting.resizes {
            effects.push(Effect::RetryResizes);
            self.resizes_at = Some(wake_after(RESIZE_PERIOD, now, effects));
        }
    }

    /// Ends a turn. If a handler panicked, admission is retried. Further updates do not postpone the retry.
    fn ended(&mut self, is_complete: bool, waiting: Waiting, now: Instant, effects: &mut Vec<Effect<Reply>>) {
        self.under_way = false;
        if !is_complete && self.retry == Retry::NotNeeded {
            self.retry = Retry::At(wake_after(ADMISSION_RETRY, now, effects));
        }
        if waiting.pods && self.readmits_at.is_none() {
            self.readmits_at = Some(wake_after(READMISSION_PERIOD, now, effects));
        }
        if waiting.resizes && self.resizes_at.is_none() {
            self.resizes_at = Some(wake_after(RESIZE_PERIOD, now, effects));
        }
    }

    /// Begins the next turn, unless one is under way or nothing is to be done.
    fn begin(&mut self, now: Instant, effects: &mut Vec<Effect<Reply>>) {
        if self.under_way {
            return;
        }
        let turn = if self.readmission == Readmission::Due {
            let until = wake_after(READMISSION_PAUSE, now, effects);
            self.readmission = Readmission::Paused { until, again: false };
            Turn::Readmit
        } else if let Some(update) = self.take(0, effects) {
            Turn::Update(update)
        } else if self.retry == Retry::Due {
            // Decisions that are withdrawn during the turn make the next retry due.
            self.retry = Retry::NotNeeded;
            Turn::RetryAdmission
        } else {
            return;
        };
        self.under_way = true;
        effects.push(Effect::Begin(turn));
    }
}

/// The time after `pause`, which the actor reports.
fn wake_after<Reply>(pause: Duration, now: Instant, effects: &mut Vec<Effect<Reply>>) -> Instant {
    effects.push(Effect::WakeAt(now + pause));
    now + pause
}

#[cfg(test)]
mod tests;
