//! The start governor: how many sandboxes and containers are started at once on the node, by the runtime's own latency.
//!
//! ```text
//!   ask --> line (who began goes on first) --> running --> started: its time is learned from
//!             |                                   `------> left: gone, or failed
//!             `--> left: the pod is to stop
//! ```
//!
//! A pod starts its containers one after the other and asks anew for each, so nobody has more than one place. Of sandboxes
//! who came first is served first, and so of containers; containers go first, but not for ever (see `queue.rs`). Image pulls and lifecycle hooks are
//! no starts. A container's probes count from its start, so that waiting here costs them nothing.

mod queue;
mod state;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use podwright_metrics::GovernorMetrics;
use tokio::sync::oneshot;

use crate::ports::Clock;
use crate::time::Time;

pub use queue::{StartKind, Ticket};
pub use state::{Event, Governor};

/// The [`Governor`] of a node, with who waits for it.
pub struct StartGovernor {
    inner: Mutex<Inner>,
    clock: Arc<dyn Clock>,
    metrics: GovernorMetrics,
}

#[derive(Default)]
struct Inner {
    core: Governor,
    waiting: HashMap<Ticket, oneshot::Sender<()>>,
}

/// Where somebody stands in line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    /// How many are before it.
    pub before: usize,
    /// How many starts run at once.
    pub running: usize,
    /// How many may.
    pub limit: usize,
}

/// Who waits, as it was at one instant: made once for all whose place is asked for.
#[derive(Debug)]
pub struct Line {
    places: HashMap<Ticket, usize>,
    running: usize,
    limit: usize,
}

impl Line {
    /// Where a ticket stands; nothing if it did not wait.
    pub fn standing(&self, ticket: Ticket) -> Option<Standing> {
        let before = *self.places.get(&ticket)?;
        Some(Standing { before, running: self.running, limit: self.limit })
    }
}

impl StartGovernor {
    /// Nothing runs yet.
    pub fn new(clock: Arc<dyn Clock>, metrics: GovernorMetrics) -> Self {
        let governor = StartGovernor { inner: Mutex::default(), clock, metrics };
        governor.tell(&governor.inner.lock());
        governor
    }

    /// Asks for a start, without waiting: the place in line is held until it is dropped.
    pub fn ask(&self, kind: StartKind) -> Place<'_> {
        let now = self.clock.now();
        let mut inner = self.inner.lock();
        let ticket = inner.core.ticket();
        let granted = inner.core.step(Event::Ask(ticket, kind), now);
        let may_start = granted.contains(&ticket);
        let told = if may_start {
            None
        } else {
            let (tell, told) = oneshot::channel();
            inner.waiting.insert(ticket, tell);
            Some(told)
        };
        inner.wake(granted);
        self.tell(&inner);
        Place { governor: self, ticket, asked: now, told, ended: false }
    }

    /// The line as it is now. Takes as long as it is.
    pub fn line(&self) -> Line {
        let inner = self.inner.lock();
        let places = inner.core.line().zip(0..).collect();
        Line { places, running: inner.core.running(), limit: inner.core.limit() }
    }

    fn step(&self, event: Event) {
        let now = self.clock.now();
        let mut inner = self.inner.lock();
        let granted = inner.core.step(event, now);
        inner.wake(granted);
        self.tell(&inner);
    }

    fn tell(&self, inner: &Inner) {
        self.metrics.starts(inner.core.waiting(), inner.core.limit());
    }
}

impl Inner {
    fn wake(&mut self, granted: Vec<Ticket>) {
        for ticket in granted {
            if let Some(tell) = self.waiting.remove(&ticket) {
                // Whoever went away gives the place back when it is dropped.
                let _gone = tell.send(());
            }
        }
    }
}

/// A place in line and, after its turn has come, a start under way. Dropping it leaves.
pub struct Place<'a> {
    governor: &'a StartGovernor,
    ticket: Ticket,
    asked: Time,
    /// Told when its turn comes; `None` once it has.
    told: Option<oneshot::Receiver<()>>,
    ended: bool,
}

impl Place<'_> {
    /// Its ticket.
    pub fn ticket(&self) -> Ticket {
        self.ticket
    }

    /// Whether its turn has come.
    pub fn may_start(&self) -> bool {
        self.told.is_none()
    }

    /// Waits for its turn. Cancel safe: the place is kept.
    pub async fn turn(&mut self) {
        while let Some(told) = &mut self.told {
            match tokio::time::timeout(state::HANGS, told).await {
                Ok(_) => self.told = None,
                // Nobody else may come by to see that those that run hang.
                Err(_) => self.governor.step(Event::Look),
            }
        }
        let waited: Duration = self.governor.clock.now().since(self.asked);
        self.governor.metrics.waited(waited);
    }

    /// The start is done.
    pub fn started(mut self) {
        self.ended = true;
        self.governor.step(Event::Started(self.ticket));
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        if !self.ended {
            self.governor.inner.lock().waiting.remove(&self.ticket);
            self.governor.step(Event::Left(self.ticket));
        }
    }
}
