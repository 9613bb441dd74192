//! Who is next.

use std::collections::BTreeSet;

/// A place in line; a lower one came earlier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(u64);

/// What is started. The kinds take different times, so each is compared with its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StartKind {
    /// A sandbox.
    Sandbox,
    /// A container: creation and start.
    Container,
}

impl Ticket {
    pub(super) fn new(number: u64) -> Self {
        Ticket(number)
    }
}

/// So many containers may start in a row before a sandbox that asked earlier.
pub(super) const ROW: u32 = 3;

/// Those that wait. Of each kind, who came first is served first. Containers go before sandboxes: a pod that has begun is
/// finished before the next one begins, or of a hundred pods none would run before all have a sandbox. So that containers
/// which start again and again keep no pod from beginning, a sandbox has its turn after [`ROW`] of them.
#[derive(Clone, Debug, Default)]
pub(super) struct Queue {
    sandboxes: BTreeSet<Ticket>,
    containers: BTreeSet<Ticket>,
    /// How many containers started in a row while a sandbox waited that had asked earlier.
    row: u32,
}

impl Queue {
    pub(super) fn push(&mut self, ticket: Ticket, kind: StartKind) {
        match kind {
            StartKind::Sandbox => self.sandboxes.insert(ticket),
            StartKind::Container => self.containers.insert(ticket),
        };
    }

    pub(super) fn remove(&mut self, ticket: Ticket) {
        self.sandboxes.remove(&ticket);
        self.containers.remove(&ticket);
    }

    pub(super) fn pop(&mut self) -> Option<(Ticket, StartKind)> {
        let (sandbox, container) = (self.sandboxes.first().copied(), self.containers.first().copied());
        let (kind, row) = next(sandbox, container, self.row)?;
        self.row = row;
        let first = match kind {
            StartKind::Sandbox => self.sandboxes.pop_first(),
            StartKind::Container => self.containers.pop_first(),
        };
        first.map(|ticket| (ticket, kind))
    }

    pub(super) fn len(&self) -> usize {
        self.sandboxes.len() + self.containers.len()
    }

    /// All, in the order in which they are served if nobody else comes.
    pub(super) fn in_order(&self) -> impl Iterator<Item = Ticket> {
        let (mut sandboxes, mut containers) = (self.sandboxes.iter().peekable(), self.containers.iter().peekable());
        let mut row = self.row;
        std::iter::from_fn(move || {
            let kind;
            (kind, row) = next(sandboxes.peek().map(|t| **t), containers.peek().map(|t| **t), row)?;
            match kind {
                StartKind::Sandbox => sandboxes.next().copied(),
                StartKind::Container => containers.next().copied(),
            }
        })
    }
}

/// Which kind is next, and the row after it.
fn next(sandbox: Option<Ticket>, container: Option<Ticket>, row: u32) -> Option<(StartKind, u32)> {
    match (sandbox, container) {
        (None, None) => None,
        (Some(_), None) => Some((StartKind::Sandbox, 0)),
        (Some(sandbox), Some(container)) if sandbox < container => {
            Some(if row < ROW { (StartKind::Container, row + 1) } else { (StartKind::Sandbox, 0) })
        }
        (_, Some(_)) => Some((StartKind::Container, row)),
    }
}
