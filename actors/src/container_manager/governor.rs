//! The start governor limits the number of concurrent starts of sandboxes and containers by the runtime's latency.
//!
//! ```text
//!   request --> queue (pods that began go first) --> running --> started: its duration is measured
//!                 |                                    `------> left: cancelled or failed
//!                 `--> left: the pod stops
//! ```
//!
//! A pod starts its containers one after another and requests each start anew, so a pod has at most one request. The
//! requests of each kind are granted in order. Containers go before sandboxes, within a limit (see `queue.rs`). Image
//! pulls and lifecycle hooks are not limited. A container's probes count from its start, so the wait does not shorten
//! their delays.

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

pub(crate) use queue::{StartKind, Ticket};
pub(crate) use state::{Event, Governor};

/// The [`Governor`] of a node, shared by all pods. It wakes the requests that are granted.
pub struct StartGovernor {
    state: Mutex<LockedGovernor>,
    clock: Arc<dyn Clock>,
    metrics: GovernorMetrics,
}

#[derive(Default)]
struct LockedGovernor {
    governor: Governor,
    wakers: HashMap<Ticket, oneshot::Sender<()>>,
}

/// The position of a request in the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueuePosition {
    /// The number of requests before this one.
    pub before: usize,
    /// The number of starts that run.
    pub running: usize,
    /// The highest number of concurrent starts.
    pub limit: usize,
}

/// The queue at one point in time.
#[derive(Debug)]
pub struct QueueSnapshot {
    positions: HashMap<Ticket, usize>,
    running: usize,
    limit: usize,
}

impl QueueSnapshot {
    /// The position of a request; `None` if it does not wait.
    pub fn position(&self, ticket: Ticket) -> Option<QueuePosition> {
        let before = *self.positions.get(&ticket)?;
        Some(QueuePosition { before, running: self.running, limit: self.limit })
    }
}

impl StartGovernor {
    /// A governor without requests.
    pub fn new(clock: Arc<dyn Clock>, metrics: GovernorMetrics) -> Self {
        let governor = StartGovernor { state: Mutex::default(), clock, metrics };
        governor.report(&governor.state.lock());
        governor
    }

    /// Requests a start without waiting. The request stays in force until it is dropped.
    pub fn request(&self, kind: StartKind) -> StartRequest<'_> {
        let now = self.clock.now();
        let mut state = self.state.lock();
        let ticket = state.governor.ticket();
        let granted = state.governor.step(Event::Request(ticket, kind), now);
        let wait = (!granted.contains(&ticket)).then(|| {
            let (waker, wait) = oneshot::channel();
            state.wakers.insert(ticket, waker);
            wait
        });
        state.wake(granted);
        self.report(&state);
        StartRequest { governor: self, ticket, requested_at: now, wait, ended: false }
    }

    /// A snapshot of the queue. The cost is linear in the queue's length.
    pub fn queue(&self) -> QueueSnapshot {
        let state = self.state.lock();
        let positions = state.governor.queue().zip(0..).collect();
        QueueSnapshot { positions, running: state.governor.running(), limit: state.governor.limit() }
    }

    fn step(&self, event: Event) {
        let now = self.clock.now();
        let mut state = self.state.lock();
        let granted = state.governor.step(event, now);
        state.wake(granted);
        self.report(&state);
    }

    fn report(&self, state: &LockedGovernor) {
        self.metrics.starts(state.governor.waiting(), state.governor.limit());
    }
}

impl LockedGovernor {
    fn wake(&mut self, granted: Vec<Ticket>) {
        for ticket in granted {
            if let Some(waker) = self.wakers.remove(&ticket) {
                // A request that was dropped at the same time returns its grant in its own drop.
                let _gone = waker.send(());
            }
        }
    }
}

/// A request for a start and, once granted, the running start. Dropping it withdraws the request or ends the start.
pub struct StartRequest<'a> {
    governor: &'a StartGovernor,
    ticket: Ticket,
    requested_at: Time,
    /// Receives the grant; `None` once granted.
    wait: Option<oneshot::Receiver<()>>,
    ended: bool,
}

impl StartRequest<'_> {
    /// The ticket in the queue.
    pub fn ticket(&self) -> Ticket {
        self.ticket
    }

    /// Whether the start was granted.
    pub fn is_granted(&self) -> bool {
        self.wait.is_none()
    }

    /// Waits until the start is granted. Cancel safe: the request keeps its position.
    pub async fn granted(&mut self) {
        while let Some(wait) = &mut self.wait {
            match tokio::time::timeout(state::HANG_TIMEOUT, wait).await {
                Ok(_) => self.wait = None,
                // No other event may occur that detects the starts that hang.
                Err(_) => self.governor.step(Event::TimePassed),
            }
        }
        let waited: Duration = self.governor.clock.now().since(self.requested_at);
        self.governor.metrics.waited(waited);
    }

    /// Reports that the start has succeeded.
    pub fn started(mut self) {
        self.ended = true;
        self.governor.step(Event::Started(self.ticket));
    }
}

impl Drop for StartRequest<'_> {
    fn drop(&mut self) {
        if !self.ended {
            self.governor.state.lock().wakers.remove(&self.ticket);
            self.governor.step(Event::Left(self.ticket));
        }
    }
}
