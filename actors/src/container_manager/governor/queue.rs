//! The order of the requests.

use std::collections::BTreeSet;

/// The number of a request; earlier requests have lower numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(u64);

/// The kind of a start. The kinds take different times, so each has its own baseline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StartKind {
    /// The creation of a sandbox.
    Sandbox,
    /// The creation and start of a container.
    Container,
}

impl Ticket {
    pub(super) fn new(number: u64) -> Self {
        Ticket(number)
    }
}

/// The number of containers that may start in a row before a sandbox that was requested earlier.
pub(super) const ROW: u32 = 3;

/// The waiting requests. The requests of each kind are granted in order. Containers go before sandboxes, so that a pod
/// with a sandbox completes before the next pod begins; otherwise none of a hundred pods would run before all have a
/// sandbox. After [`ROW`] containers a sandbox is granted, so that containers that restart again and again do not keep
/// pods from beginning.
#[derive(Clone, Debug, Default)]
pub(super) struct Queue {
    sandboxes: BTreeSet<Ticket>,
    containers: BTreeSet<Ticket>,
    /// The number of containers that started in a row while a sandbox waited that was requested earlier.
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

    /// All requests, in the order of their grants if no further request comes.
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

/// The kind of the next grant, and the row after it.
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
