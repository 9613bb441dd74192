//! When to list the runtime, which pods to read, and whether the runtime is healthy. Pure: time is an argument.
//!
//! ```text
//!   hint, list, failed read --> marked --> being read, at most 16 --> read
//!                                 ^               |
//!                                 '---------------' a mark during the read leads to one more read
//!
//!   list --> pods that differ from the cache --> all of them read: the relist has ended
//! ```

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use crate::ids::PodUid;

/// The number of pods that are read at once.
const PARALLEL_READS: usize = 16;

/// How often to relist a runtime that has no events (upstream `genericPlegRelistPeriod`, kubelet 1.36).
pub(super) const RELIST: Duration = Duration::from_secs(1);
/// How often to relist a runtime that has events. Relists find changes whose events were lost, and update the gauges.
pub(super) const RELIST_WITH_EVENTS: Duration = Duration::from_secs(10);
/// The runtime counts as unhealthy this long after the last relist (upstream `genericPlegRelistThreshold`, kubelet 1.36).
const UNHEALTHY_AFTER: Duration = Duration::from_secs(180);

/// The lists and reads that are due and under way.
#[derive(Debug)]
pub(super) struct Relists {
    /// Pods to be read.
    marked: BTreeSet<PodUid>,
    /// Pods that are being read. A mark that arrives during a read leads to one more read.
    reading: BTreeSet<PodUid>,
    /// When the next turn is due. Turns follow a fixed grid, so that their delays do not add up.
    next_turn: Instant,
    /// When the list that is under way began.
    listing: Option<Instant>,
    /// When the last list began and ended.
    last_list: Option<ListTimes>,
    /// Set by lost hints: the next turn lists.
    list_now: bool,
    /// The last relist, until the pods that it found changed are read.
    relist: Option<Relist>,
    /// Whether a relist has ended.
    has_relisted: bool,
    /// When the last list that succeeded ended.
    listed: Option<Instant>,
    /// Whether the last list succeeded.
    reachable: bool,
    /// The health that was reported last.
    healthy: bool,
}

#[derive(Clone, Copy, Debug)]
struct ListTimes {
    start: Instant,
    end: Instant,
}

#[derive(Debug)]
struct Relist {
    start: Instant,
    unread: BTreeSet<PodUid>,
}

/// What happens to the observer.
#[derive(Clone, Debug)]
pub(super) enum Event {
    /// The time of an [`Effect::WakeAt`] has come. `has_events` says whether the runtime has events, and `unread` are the pods whose last
    /// read failed.
    Turn { has_events: bool, unread: Vec<PodUid> },
    /// Something may have changed in a pod.
    Hint(PodUid),
    /// Hints may have been lost.
    HintsLost,
    /// The list has succeeded. These pods differ from the cache.
    Listed(BTreeSet<PodUid>),
    /// The list has failed.
    ListFailed { error: String },
    /// The read of a pod has ended. If it failed, the pod is among the `unread` of the next turn.
    Read(PodUid),
}

/// What the actor has to do, in this order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    /// Report [`Event::Turn`] then.
    WakeAt(Instant),
    /// List the runtime, and report [`Event::Listed`] or [`Event::ListFailed`]. `since_last_start` is the time since the last list began,
    /// if a list has succeeded before.
    List { since_last_start: Option<Duration> },
    /// Read a pod, and report [`Event::Read`].
    Read(PodUid),
    /// Record the end of a relist.
    Relisted { took: Duration },
    /// Log that the runtime answers again.
    Reachable,
    /// Log that the runtime does not answer.
    Unreachable { error: String },
    /// Publish whether the runtime is healthy. That has changed.
    Health(bool),
}

impl Relists {
    /// Nothing is under way, and the runtime is unhealthy until the first relist has ended. The first turn comes `now`.
    pub(super) fn new(now: Instant) -> Self {
        Relists {
            marked: BTreeSet::new(),
            reading: BTreeSet::new(),
            next_turn: now,
            listing: None,
            last_list: None,
            list_now: false,
            relist: None,
            has_relisted: false,
            listed: None,
            reachable: true,
            healthy: false,
        }
    }

    /// One move.
    #[must_use]
    pub(super) fn step(&mut self, event: Event, now: Instant) -> Vec<Effect> {
        let mut effects = Vec::new();
        match event {
            Event::Turn { has_events, unread } => {
                self.next_turn = (self.next_turn + RELIST).max(now);
                effects.push(Effect::WakeAt(self.next_turn));
                if self.reachable {
                    self.marked.extend(unread);
                }
                self.check_health(now, &mut effects);
                self.list_if_due(has_events, now, &mut effects);
            }
            Event::Hint(uid) => {
                self.marked.insert(uid);
            }
            Event::HintsLost => self.list_now = true,
            Event::Listed(changed) => {
                let start = self.list_ended(now);
                self.listed = Some(now);
                if !std::mem::replace(&mut self.reachable, true) {
                    effects.push(Effect::Reachable);
                }
                self.marked.extend(changed.iter().cloned());
                self.relist = Some(Relist { start, unread: changed });
                self.end_relist(now, &mut effects);
            }
            Event::ListFailed { error } => {
                self.list_ended(now);
                if std::mem::replace(&mut self.reachable, false) {
                    effects.push(Effect::Unreachable { error });
                }
                self.check_health(now, &mut effects);
            }
            Event::Read(uid) => {
                self.reading.remove(&uid);
                if !self.marked.contains(&uid)
                    && let Some(relist) = &mut self.relist
                {
                    relist.unread.remove(&uid);
                }
                self.end_relist(now, &mut effects);
            }
        }
        self.read_marked(&mut effects);
        effects
    }

    fn list_if_due(&mut self, has_events: bool, now: Instant, effects: &mut Vec<Effect>) {
        // A runtime that restarts may gain or lose its events.
        let period = if has_events && self.reachable { RELIST_WITH_EVENTS } else { RELIST };
        let is_old = |last: ListTimes| now.saturating_duration_since(last.end) >= period;
        if self.listing.is_some() || !(self.list_now || self.last_list.is_none_or(is_old)) {
            return;
        }
        let last = self.last_list.filter(|_| self.listed.is_some());
        effects.push(Effect::List { since_last_start: last.map(|last| now.saturating_duration_since(last.start)) });
        self.listing = Some(now);
        self.list_now = false;
    }

    /// Records the end of the list. Returns when it began.
    fn list_ended(&mut self, now: Instant) -> Instant {
        let start = self.listing.take().unwrap_or(now);
        self.last_list = Some(ListTimes { start, end: now });
        start
    }

    /// Ends a relist once every pod that it found changed is read. The runtime counts as healthy after the first relist has
    /// ended, because the cache then has every running container.
    fn end_relist(&mut self, now: Instant, effects: &mut Vec<Effect>) {
        if let Some(relist) = self.relist.take_if(|relist| relist.unread.is_empty()) {
            effects.push(Effect::Relisted { took: now.saturating_duration_since(relist.start) });
            self.has_relisted = true;
        }
        self.check_health(now, effects);
    }

    /// Reports a change of the runtime's health, by the age of the last list.
    fn check_health(&mut self, now: Instant, effects: &mut Vec<Effect>) {
        let is_recent = self.listed.is_some_and(|at| now.saturating_duration_since(at) <= UNHEALTHY_AFTER);
        let healthy = is_recent && self.has_relisted;
        if std::mem::replace(&mut self.healthy, healthy) != healthy {
            effects.push(Effect::Health(healthy));
        }
    }

    /// Begins reads of marked pods, as many as may run at once.
    fn read_marked(&mut self, effects: &mut Vec<Effect>) {
        while self.reading.len() < PARALLEL_READS
            && let Some(uid) = self.marked.iter().find(|uid| !self.reading.contains(*uid)).cloned()
        {
            self.marked.remove(&uid);
            self.reading.insert(uid.clone());
            effects.push(Effect::Read(uid));
        }
    }
}

#[cfg(test)]
mod tests;
