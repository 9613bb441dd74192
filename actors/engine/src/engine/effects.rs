//! Applies the effects of a step: under the cell's lock what has to become visible together with the step, everything else
//! after the lock is released.
//!
//! Locks are taken in this order: a shard of the map of cells, a cell, then at most one of the queue of a full name, a ring of
//! the recorder, and a run queue.
//!
//! No code of the host runs under these locks, with three exceptions: its clock, the waker of an arbiter's task, and the
//! destructors of the objects that an update replaced.

use std::sync::Arc;

use parking_lot::MutexGuard;
use podwright_metrics::OperationType;
use tokio_util::sync::CancellationToken;

use super::EngineInner;
use crate::engine::cell::{Cell, Slot};
use crate::ids::PodUid;
use crate::pod_worker::step::{Effects, NameMove, Worked};
use crate::pod_worker::{Notifier, UpdateKind};
use crate::time::Time;

/// The effects of a step that must not be applied under a lock.
#[must_use]
pub(super) struct DeferredEffects {
    cell: Arc<Cell>,
    wake: bool,
    forget: bool,
    cancelled: Option<CancellationToken>,
    /// The pod whose turn it is for the full name that the step released.
    next_for_name: Option<PodUid>,
    completed: Vec<Notifier>,
    /// The number of the pod's containers, if the pod was allowed to start.
    started_containers: Option<usize>,
}

impl EngineInner {
    /// Applies the effects of a step, except the hook call and the measurements, which are the caller's. Releases the lock.
    pub(crate) fn apply(&self, cell: &Arc<Cell>, guard: MutexGuard<'_, Slot>, effects: Effects) {
        if let Some(deferred) = self.apply_locked(cell, guard, effects) {
            self.apply_deferred(deferred);
        }
    }

    /// The first half of [`apply`](Self::apply), which may run under the lock of a shard. Releases the cell's lock. The second
    /// half is [`apply_deferred`](Self::apply_deferred).
    pub(super) fn apply_locked(
        &self,
        cell: &Arc<Cell>,
        mut guard: MutexGuard<'_, Slot>,
        effects: Effects,
    ) -> Option<DeferredEffects> {
        if effects.is_only_wake() {
            drop(guard);
            if effects.wake {
                cell.wake();
            }
            return None;
        }
        let Effects { wake, cancel, completed, name, started, end, forget, worked: _, call: _, known: _ } = effects;
        let mut deferred = DeferredEffects {
            cell: cell.clone(),
            wake: wake || end,
            forget,
            cancelled: None,
            next_for_name: None,
            completed,
            started_containers: None,
        };
        if let Slot::Live(live) = &mut *guard {
            if (forget || name == NameMove::Leave)
                && let Some(queued) = live.queued.take()
            {
                deferred.next_for_name = self.names.leave(&queued, cell.uid());
            }
            if cancel {
                deferred.cancelled = live.end_call();
            }
            if started {
                deferred.started_containers = live.record.active_pod().map(|pod| pod.containers().len());
            }
        }
        if forget {
            let forgotten = std::mem::replace(&mut *guard, Slot::Forgotten);
            cell.publish(&guard);
            drop(guard);
            // The record may contain objects of the host, so its destructor runs without the cell's lock. No shard is locked
            // either, because no update forgets a record.
            drop(forgotten);
        }
        Some(deferred)
    }

    /// The second half of [`apply`](Self::apply). The caller holds no lock.
    pub(super) fn apply_deferred(&self, deferred: DeferredEffects) {
        if deferred.forget {
            self.cells.remove(&deferred.cell);
        }
        if let Some(token) = deferred.cancelled {
            token.cancel();
        }
        if deferred.wake {
            deferred.cell.wake();
        }
        if let Some(next) = deferred.next_for_name.and_then(|uid| self.find(&uid)) {
            next.wake();
        }
        for notifier in deferred.completed {
            notifier.complete();
        }
        if let Some(containers) = deferred.started_containers {
            self.metrics.pod_worker.allowed_to_start(containers);
        }
    }

    /// Measures a finished operation, from the start time of its update until `now`.
    pub(crate) fn measure(&self, worked: Option<Worked>, now: Time) {
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
