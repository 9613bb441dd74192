//! One timer for all workers of a thread that wait for their time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::Context as TaskContext;

use tokio::time::Sleep;

use crate::engine::worker::TurnClock;
use crate::time::Time;

/// Entries beyond twice the workers are swept out, and these.
const SPARE_ENTRIES: usize = 64;

/// When to give workers turns without being asked.
///
/// An entry counts if its worker's place says the same time; a worker whose time was put off has its turn then and is entered
/// anew, so that a busy pod does not touch this with each turn.
#[derive(Debug, Default)]
pub(super) struct Timer {
    /// Earliest first.
    entries: BinaryHeap<Reverse<(Time, u32)>>,
    /// Set for the first entry, or earlier.
    alarm: Option<(Time, Pin<Box<Sleep>>)>,
    /// The latest time that was seen, on the clock or by the alarm.
    seen: Time,
}

impl Timer {
    /// Enters a worker by its place. Of `workers`, those entries count of which `counts` says so.
    pub(super) fn enter(&mut self, due: Time, place: u32, workers: usize, counts: impl Fn(Time, u32) -> bool) {
        let most = 2 * workers + SPARE_ENTRIES;
        if self.entries.len() > most {
            self.entries.retain(|Reverse((time, place))| counts(*time, *place));
            self.entries.shrink_to(most);
        }
        self.entries.push(Reverse((due, place)));
    }

    /// Forgets all entries and gives their memory back.
    pub(super) fn clear(&mut self) {
        self.entries = BinaryHeap::new();
    }

    /// Tells `call` of each entry whose time has come, and sets the alarm for the next one.
    pub(super) fn poll(
        &mut self,
        moment: &mut TurnClock<'_>,
        cx: &mut TaskContext<'_>,
        mut call: impl FnMut(Time, u32),
    ) {
        while let Some(first) = self.first() {
            if let Some((at, alarm)) = &mut self.alarm
                && *at <= first
            {
                if alarm.as_mut().poll(cx).is_pending() {
                    break;
                }
                self.seen = self.seen.max(*at);
                self.alarm = None;
                moment.passes();
            }
            let now = self.now(moment);
            while let Some(due) = self.first().filter(|due| *due <= now) {
                if let Some(Reverse((_, place))) = self.entries.pop() {
                    call(due, place);
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

    /// The clock is the host's, and may panic as its hooks may; then it is as late as was seen before.
    fn now(&mut self, moment: &mut TurnClock<'_>) -> Time {
        if let Ok(now) = catch_unwind(AssertUnwindSafe(|| moment.now())) {
            self.seen = now;
        }
        self.seen
    }
}
