//! How many starts run at once, and who is next: the decisions, with time as data.
//!
//! The limit follows the runtime. A start that takes no longer than four times what one takes while the runtime is nearly idle
//! says that there is room: while the limit is made use of, it grows, at first by one per start and after the first
//! setback by one per round. A start that takes longer says that the runtime suffers: the limit shrinks, once per round.
//! What a start takes on a nearly idle runtime is measured whenever few run, and, while many wait for minutes, by letting
//! only few run for the time of one start.

use std::collections::BTreeMap;
use std::time::Duration;

use super::queue::{Queue, StartKind, Ticket};
use crate::time::Time;

/// The smallest limit: with one, a start that hangs would hold up all others.
const FLOOR: usize = 2;
/// Where the limit begins.
const INITIAL: f64 = 4.0;
/// A start may take so many times what it takes on a nearly idle runtime: a machine gets more done with several at once
/// than they delay each other, until all of its cores and its disk are busy.
const TOLERANCE: u32 = 4;
/// Quicker than this counts as this: so small differences are noise and not a runtime that suffers.
const QUICK: Duration = Duration::from_millis(100);
/// What the limit is multiplied with when the runtime suffers.
const CUT: f64 = 0.7;
/// How long a measurement of the nearly idle runtime is believed.
const BELIEVED: Duration = Duration::from_secs(60);
/// A start that takes longer hangs: the others wait for it no more.
pub(super) const HANGS: Duration = Duration::from_secs(30);

/// What happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The start with this ticket was made. Tickets come from [`Governor::ticket`].
    Ask(Ticket, StartKind),
    /// The start is done; its time counts.
    Started(Ticket),
    /// It failed, or whoever wanted it went away; its time counts only if it was long.
    Left(Ticket),
    /// Time has passed.
    Look,
}

/// The starts that run and those that wait.
#[derive(Clone, Debug)]
pub struct Governor {
    limit: f64,
    /// No start has been slow yet.
    fresh: bool,
    /// When the limit last shrank: what began before tells nothing new.
    cut_at: Time,
    /// Few are let run, so that a start can be measured.
    measuring: bool,
    tickets: u64,
    running: BTreeMap<Ticket, Running>,
    line: Queue,
    sandbox: Option<Base>,
    container: Option<Base>,
}

#[derive(Clone, Copy, Debug)]
struct Running {
    kind: StartKind,
    since: Time,
    /// The most that ran at once in its time.
    beside: usize,
    hangs: bool,
}

/// What a start takes on a nearly idle runtime.
#[derive(Clone, Copy, Debug)]
struct Base {
    took: Duration,
    /// When it was measured; `None` if many ran, so that it is a guess.
    measured: Option<Time>,
}

impl Default for Governor {
    fn default() -> Self {
        Governor {
            limit: INITIAL,
            fresh: true,
            cut_at: Time::ZERO,
            measuring: false,
            tickets: 0,
            running: BTreeMap::new(),
            line: Queue::default(),
            sandbox: None,
            container: None,
        }
    }
}

impl Governor {
    /// A new place at the end of the line, to be asked with.
    pub fn ticket(&mut self) -> Ticket {
        self.tickets += 1;
        Ticket::new(self.tickets)
    }

    /// One move. Answers with those that may start now, in the order of their turns.
    #[must_use]
    pub fn step(&mut self, event: Event, now: Time) -> Vec<Ticket> {
        match event {
            Event::Ask(ticket, kind) => {
                self.line.push(ticket, kind);
            }
            Event::Started(ticket) => {
                if let Some(run) = self.running.remove(&ticket) {
                    self.learn(run, now);
                }
            }
            Event::Left(ticket) => {
                self.line.remove(ticket);
                if let Some(run) = self.running.remove(&ticket)
                    && self.base(run.kind).is_some_and(|base| is_slow(now.since(run.since), base))
                {
                    self.shrink(run, now);
                }
            }
            Event::Look => {}
        }
        self.give_up_on_hanging(now);
        self.grant(now)
    }

    /// How many starts may run at once now.
    pub fn limit(&self) -> usize {
        if self.measuring { FLOOR } else { (self.limit as usize).max(FLOOR) }
    }

    /// How many run, those that hang aside.
    pub fn running(&self) -> usize {
        self.running.values().filter(|run| !run.hangs).count()
    }

    /// How many wait.
    pub fn waiting(&self) -> usize {
        self.line.len()
    }

    /// Those that wait, in the order in which they are served if nobody else comes.
    pub fn line(&self) -> impl Iterator<Item = Ticket> {
        self.line.in_order()
    }

    fn grant(&mut self, now: Time) -> Vec<Ticket> {
        let mut granted = Vec::new();
        let mut running = self.running();
        while running < self.limit()
            && let Some((ticket, kind)) = self.line.pop()
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
        let believed = |base: Base| base.measured.is_some_and(|at| now.since(at) <= BELIEVED);
        let better = match base {
            None => true,
            Some(base) => took < base.took || (alone && !believed(base)),
        };
        if better {
            let measured = if alone { Some(now) } else { base.and_then(|base| base.measured) };
            *self.base_mut(run.kind) = Some(Base { took, measured });
        }
        if alone {
            self.measuring = false;
        }
        let Some(base) = self.base(run.kind) else { return };
        if is_slow(took, base) {
            self.shrink(run, now);
        } else if run.beside * 2 >= self.limit() && !self.measuring {
            // More than are wanted at once prove nothing.
            self.limit += if self.fresh { 1.0 } else { 1.0 / self.limit };
        }
        if !alone && base.took > QUICK && !believed(base) && self.line.len() > 0 {
            self.measuring = true;
        }
    }

    fn shrink(&mut self, run: Running, now: Time) {
        if run.since >= self.cut_at {
            self.limit = (self.limit * CUT).max(FLOOR as f64);
            self.fresh = false;
            self.cut_at = now;
        }
    }

    fn give_up_on_hanging(&mut self, now: Time) {
        let hang = |run: &Running| !run.hangs && now.since(run.since) >= HANGS;
        let Some(run) = self.running.values().find(|run| hang(run)).copied() else { return };
        self.shrink(run, now);
        self.running.values_mut().filter(|run| hang(run)).for_each(|run| run.hangs = true);
    }

    fn base(&self, kind: StartKind) -> Option<Base> {
        match kind {
            StartKind::Sandbox => self.sandbox,
            StartKind::Container => self.container,
        }
    }

    fn base_mut(&mut self, kind: StartKind) -> &mut Option<Base> {
        match kind {
            StartKind::Sandbox => &mut self.sandbox,
            StartKind::Container => &mut self.container,
        }
    }
}

fn is_slow(took: Duration, base: Base) -> bool {
    took > base.took.max(QUICK) * TOLERANCE
}
