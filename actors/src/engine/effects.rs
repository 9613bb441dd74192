//! What a step asks for is performed: under the cell's lock what must be seen together with the move, the rest after it.
//!
//! Locks are taken in this order: a shard of the cells, a cell, then one of a full name, a ring of the recorder or a run queue.
//! Under any of them nothing of the host runs but its clock, the waker of an arbiter's task, and destructors in what an update
//! replaced.

use std::sync::Arc;

use parking_lot::MutexGuard;
use podwright_metrics::OperationType;
use tokio_util::sync::CancellationToken;

use super::Inner;
use crate::engine::cell::{Cell, Slot};
use crate::ids::PodUid;
use crate::pod_worker::step::{Effects, NameMove, Worked};
use crate::pod_worker::{Notifier, UpdateKind};
use crate::time::Time;

/// What a step asked for and must not be done under a lock.
pub(super) struct Rest {
    cell: Arc<Cell>,
    ring: bool,
    forget: bool,
    cancelled: Option<CancellationToken>,
    /// Who has the full name now.
    next: Option<PodUid>,
    completed: Vec<Notifier>,
    /// How many the pod has, if it was allowed to start.
    containers: Option<usize>,
    /// Dropped with the rest: what is in the record may be the host's.
    forgotten: Option<Box<Slot>>,
}

impl Inner {
    /// Performs what a step asked for, all but the hook call and what is measured: under the lock what must be seen together
    /// with the move, the rest after it.
    pub(crate) fn settle(&self, cell: &Arc<Cell>, guard: MutexGuard<'_, Slot>, effects: Effects) {
        if let Some(rest) = self.settle_locked(cell, guard, effects) {
            self.finish(rest);
        }
    }

    /// The first half of [`settle`](Self::settle), which may be done under the lock of a shard. Answers with the second.
    pub(super) fn settle_locked(
        &self,
        cell: &Arc<Cell>,
        mut guard: MutexGuard<'_, Slot>,
        effects: Effects,
    ) -> Option<Rest> {
        if effects.is_only_wake() {
            drop(guard);
            if effects.wake {
                cell.ring();
            }
            return None;
        }
        let Effects { wake, cancel, completed, name, started, end, forget, worked: _, call: _, known: _ } = effects;
        let mut rest = Rest {
            cell: cell.clone(),
            ring: wake || end,
            forget,
            cancelled: None,
            next: None,
            completed,
            containers: None,
            forgotten: None,
        };
        if let Slot::Live(live) = &mut *guard {
            if (forget || name == NameMove::Leave)
                && let Some(queued) = live.queued.take()
            {
                rest.next = self.names.leave(&queued, cell.uid());
            }
            if cancel {
                rest.cancelled = live.end_call();
            }
            if started {
                rest.containers = live.record.active_pod().map(|pod| pod.containers().len());
            }
        }
        if forget {
            rest.forgotten = Some(Box::new(std::mem::replace(&mut *guard, Slot::Forgotten)));
            cell.show(&guard);
        }
        Some(rest)
    }

    pub(super) fn finish(&self, rest: Rest) {
        if rest.forget {
            self.cells.remove(&rest.cell);
        }
        if let Some(token) = rest.cancelled {
            token.cancel();
        }
        if rest.ring {
            rest.cell.ring();
        }
        if let Some(next) = rest.next.and_then(|uid| self.find(&uid)) {
            next.ring();
        }
        for notifier in rest.completed {
            notifier.complete();
        }
        if let Some(containers) = rest.containers {
            self.metrics.pod_worker.allowed_to_start(containers);
        }
    }

    /// Counts a finished piece of work.
    pub(crate) fn worked(&self, worked: Option<Worked>, now: Time) {
        if let Some(Worked { kind, start_time }) = worked {
            let kind = kind.map_or(OperationType::Terminated, operation);
            self.metrics.pod_worker.worked(kind, now.since(start_time));
        }
    }
}

fn operation(kind: UpdateKind) -> OperationType {
    match kind {
        UpdateKind::Create => OperationType::Create,
        UpdateKind::Update => OperationType::Update,
        UpdateKind::Sync => OperationType::Sync,
        UpdateKind::Kill => OperationType::Kill,
    }
}
