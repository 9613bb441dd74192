//! Decides how many starts run at once and which start is next. Pure: time is an argument.
//!
//! The limit follows the runtime's latency. The baseline is the duration of a start on a nearly idle runtime. If a
//! start takes at most four times the baseline and the limit is in use, the limit grows: by one per start at first, and
//! by one per round after the first slow start. If a start takes longer, the limit shrinks, once per round. The
//! baseline is measured whenever few starts run. If many starts wait for minutes, the governor lets only few run for
//! the duration of one start to measure it.

use std::collections::BTreeMap;
use std::time::Duration;

use super::queue::{Queue, StartKind, Ticket};
use crate::time::Time;

/// The smallest limit. With 1, a start that hangs would block all others.
const FLOOR: usize = 2;
/// The initial limit.
const INITIAL: f64 = 4.0;
/// A start that takes longer than this many baselines is slow. A machine gets more done with several starts at once
/// than they delay each other, until its cores and disk are busy.
const TOLERANCE: u32 = 4;
/// A shorter baseline counts as this one, because smaller differences are noise.
const QUICK: Duration = Duration::from_millis(100);
/// The factor by which a slow start shrinks the limit.
const CUT: f64 = 0.7;
/// How long a baseline stays valid.
const BASELINE_VALID: Duration = Duration::from_secs(60);
/// A start that takes longer hangs, and no longer counts as running.
pub(super) const HANG_TIMEOUT: Duration = Duration::from_secs(30);

/// An event of the governor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// A start is requested. [`Governor::ticket`] makes the ticket.
    Request(Ticket, StartKind),
    /// A start has succeeded; its duration counts.
    Started(Ticket),
    /// A start failed or its request was withdrawn. The duration counts only if it was long.
    Left(Ticket),
    /// Time has passed.
    TimePassed,
}

/// The running starts and the waiting requests.
#[derive(Clone, Debug)]
pub(crate) struct Governor {
    limit: f64,
    /// No start was slow yet.
    never_slow: bool,
    /// When the limit last shrank. Starts that began before do not shrink it again.
    cut_at: Time,
    /// Only few starts may run, so that the baseline can be measured.
    measuring: bool,
    tickets: u64,
    running: BTreeMap<Ticket, Running>,
    queue: Queue,
    sandbox: Option<Baseline>,
    container: Option<Baseline>,
}

#[derive(Clone, Copy, Debug)]
struct Running {
    kind: StartKind,
    since: Time,
    /// The highest number of concurrent starts during this one.
    beside: usize,
    hangs: bool,
}

/// The duration of a start on a nearly idle runtime.
#[derive(Clone, Copy, Debug)]
struct Baseline {
    took: Duration,
    /// When the baseline was measured; `None` if many starts ran, so that it is an estimate.
    measured: Option<Time>,
}

impl Default for Governor {
    fn default() -> Self {
        Governor {
            limit: INITIAL,
            never_slow: true,
            cut_at: Time::ZERO,
            measuring: false,
            tickets: 0,
            running: BTreeMap::new(),
            queue: Queue::default(),
            sandbox: None,
            container: None,
        }
    }
}

impl Governor {
    /// A new ticket, for a request.
    pub(crate) fn ticket(&mut self) -> Ticket {
        self.tickets += 1;
        Ticket::new(self.tickets)
    }

    /// Applies an event. Returns the requests that are granted, in order.
    #[must_use]
    pub(crate) fn step(&mut self, event: Event, now: Time) -> Vec<Ticket> {
        match event {
            Event::Request(ticket, kind) => {
                self.queue.push(ticket, kind);
            }
            Event::Started(ticket) => {
                if let Some(run) = self.running.remove(&ticket) {
                    self.learn(run, now);
                }
            }
            Event::Left(ticket) => {
                self.queue.remove(ticket);
                if let Some(run) = self.running.remove(&ticket)
                    && self.base(run.kind).is_some_and(|base| is_slow(now.since(run.since), base))
                {
                    self.shrink(run, now);
                }
            }
            Event::TimePassed => {}
        }
        self.give_up_on_hanging(now);
        self.grant(now)
    }

    /// The current limit of concurrent starts.
    pub(crate) fn limit(&self) -> usize {
        if self.measuring { FLOOR } else { (self.limit as usize).max(FLOOR) }
    }

    /// The number of running starts without those that hang.
    pub(crate) fn running(&self) -> usize {
        self.running.values().filter(|run| !run.hangs).count()
    }

    /// The number of waiting requests.
    pub(crate) fn waiting(&self) -> usize {
        self.queue.len()
    }

    /// The waiting requests, in the order of their grants if no further request comes.
    pub(crate) fn queue(&self) -> impl Iterator<Item = Ticket> {
        self.queue.in_order()
    }

    fn grant(&mut self, now: Time) -> Vec<Ticket> {
        let mut granted = Vec::new();
        let mut running = self.running();
        while running < self.limit()
            && let Some((ticket, kind)) = self.queue.pop()
        {
            running += 1;
            self.running.insert(ticket, Running { kind, since: now, beside: 0, hangs: false });
            granted.push(ticket);
        }
        if !granted.is_empty() {
            self.running.values_mut().for_each(|run| run.beside = run.beside.max(running));
        }
        granted
    }

    fn learn(&mut self, run: Running, now: Time) {
        let took = now.since(run.since);
        let alone = run.beside <= FLOOR;
        let base = self.base(run.kind);
        let is_valid = |base: Baseline| base.measured.is_some_and(|at| now.since(at) <= BASELINE_VALID);
        let better = match base {
            None => true,
            Some(base) => took < base.took || (alone && !is_valid(base)),
        };
        if better {
            let measured = if alone { Some(now) } else { base.and_then(|base| base.measured) };
            *self.base_mut(run.kind) = Some(Baseline { took, measured });
        }
        if alone {
            self.measuring = false;
        }
        let Some(base) = self.base(run.kind) else { return };
        if is_slow(took, base) {
            self.shrink(run, now);
        } else if run.beside * 2 >= self.limit() && !self.measuring {
            // A limit that is not in use shows nothing.
            self.limit += if self.never_slow { 1.0 } else { 1.0 / self.limit };
        }
        if !alone && base.took > QUICK && !is_valid(base) && self.queue.len() > 0 {
            self.measuring = true;
        }
    }

    fn shrink(&mut self, run: Running, now: Time) {
        if run.since >= self.cut_at {
            self.limit = (self.limit * CUT).max(FLOOR as f64);
            self.never_slow = false;
            self.cut_at = now;
        }
    }

    fn give_up_on_hanging(&mut self, now: Time) {
        let hang = |run: &Running| !run.hangs && now.since(run.since) >= HANG_TIMEOUT;
        let Some(run) = self.running.values().find(|run| hang(run)).copied() else { return };
        self.shrink(run, now);
        self.running.values_mut().filter(|run| hang(run)).for_each(|run| run.hangs = true);
    }

    fn base(&self, kind: StartKind) -> Option<Baseline> {
        match kind {
            StartKind::Sandbox => self.sandbox,
            StartKind::Container => self.container,
        }
    }

    fn base_mut(&mut self, kind: StartKind) -> &mut Option<Baseline> {
        match kind {
            StartKind::Sandbox => &mut self.sandbox,
            StartKind::Container => &mut self.container,
        }
    }
}

fn is_slow(took: Duration, base: Baseline) -> bool {
    took > base.took.max(QUICK) * TOLERANCE
}
