//! One timer for all workers of a thread that have a due time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::Context as TaskContext;

use tokio::time::Sleep;

use crate::engine::worker::TurnClock;
use crate::time::Time;

/// Stale entries are removed when there are more entries than twice the number of workers and this number.
const SPARE_ENTRIES: usize = 64;

/// The due times of workers.
///
/// An entry is current if the worker's own timer entry has the same time; other entries are ignored. A worker that is due later
/// than its entry gets a turn at the time of the entry, and a new entry after that turn. So the turns of a busy pod, which move its
/// due time each time, do not change the heap.
#[derive(Debug, Default)]
pub(super) struct Timer {
    /// Earliest first.
    entries: BinaryHeap<Reverse<(Time, u32)>>,
    /// Set for the time of the first entry, or earlier.
    alarm: Option<(Time, Pin<Box<Sleep>>)>,
    /// The latest time that was read from the clock or reached by the alarm.
    latest: Time,
}

impl Timer {
    /// Adds an entry for the worker at an index. `workers` is the number of workers; `is_current` returns whether an entry is current.
    pub(super) fn add(&mut self, due: Time, index: u32, workers: usize, is_current: impl Fn(Time, u32) -> bool) {
        let most = 2 * workers + SPARE_ENTRIES;
        if self.entries.len() > most {
            self.entries.retain(|Reverse((time, index))| is_current(*time, *index));
            self.entries.shrink_to(most);
        }
        self.entries.push(Reverse((due, index)));
    }

    /// Removes all entries and frees their memory.
    pub(super) fn clear(&mut self) {
        self.entries = BinaryHeap::new();
    }

    /// Removes the entries that are due and calls `on_due` with each. Sets the alarm for the next entry.
    pub(super) fn poll(
        &mut self,
        clock: &mut TurnClock<'_>,
        cx: &mut TaskContext<'_>,
        mut on_due: impl FnMut(Time, u32),
    ) {
        while let Some(first) = self.first() {
            if let Some((at, alarm)) = &mut self.alarm
                && *at <= first
            {
                if alarm.as_mut().poll(cx).is_pending() {
                    break;
                }
                self.latest = self.latest.max(*at);
                self.alarm = None;
                clock.expire();
            }
            let now = self.now(clock);
            while let Some(due) = self.first().filter(|due| *due <= now) {
                if let Some(Reverse((_, index))) = self.entries.pop() {
                    on_due(due, index);
                }
            }
            let Some(first) = self.first() else { break };
            let delay = first.since(now);
            match &mut self.alarm {
                Some((at, alarm)) => {
                    *at = first;
                    alarm.as_mut().reset(tokio::time::Instant::now() + delay);
                }
                None => self.alarm = Some((first, Box::pin(tokio::time::sleep(delay)))),
            }
        }
    }

    fn first(&self) -> Option<Time> {
        self.entries.peek().map(|Reverse((due, _))| *due)
    }

    /// The current time. The clock is the host's and may panic; then the latest known time counts.
    fn now(&mut self, clock: &mut TurnClock<'_>) -> Time {
        if let Ok(now) = catch_unwind(AssertUnwindSafe(|| clock.now())) {
            self.latest = now;
        }
        self.latest
    }
}
