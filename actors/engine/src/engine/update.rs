//! The path of an update: to the pod's live record, or to a new one.

use std::sync::Arc;

use parking_lot::MutexGuard;

use super::EngineInner;
use super::cell::{Cell, Live, Slot};
use super::effects::DeferredEffects;
use crate::ids::PodUid;
use crate::pod_worker::Update;
use crate::pod_worker::step::Event;
use crate::ports::Observed;
use crate::recorder::capture::EventCapture;

impl EngineInner {
    pub(super) fn update(&self, update: Update) {
        // The runtime view is read before any lock is taken. Only a pod that is first seen in a terminal phase needs it: whether
        // such a pod still has to be stopped depends on what runs (POD-U3).
        let observed = if update.is_ended() { self.observed(update.uid()) } else { Observed::Never };
        let uid = update.uid().clone();
        let mut update = Some(update);
        while update.is_some() {
            let mut deferred = self.cells.with(&uid, |cell| self.update_live(cell, cell.lock(), &mut update)).flatten();
            if update.is_some() {
                deferred = self.insert(&uid, &mut update, observed);
            }
            if let Some(deferred) = deferred {
                self.apply_deferred(deferred);
            }
        }
    }

    /// Applies an update to a live record and takes it out of `update`. Without a live record, the update stays there.
    fn update_live(
        &self,
        cell: &Arc<Cell>,
        mut guard: MutexGuard<'_, Slot>,
        update: &mut Option<Update>,
    ) -> Option<DeferredEffects> {
        let Slot::Live(live) = &mut *guard else { return None };
        let update = update.take()?;
        // Most updates request another sync of the same object. Most of the others cause no transition and are not recorded.
        // Neither needs the clock, so the time of the last transition is used as the current time.
        let last = live.record.last_move();
        let effects = if live.capture.is_plain(&live.record, &update) {
            live.capture.requeue(&mut live.record, update, self.step_context(last, 0.0))
        } else {
            let needs_time = self.recorder.is_some() || live.record.is_moved_by(&update);
            let now = if needs_time { self.clock.now() } else { last };
            let effects = self.drive(cell, live, Event::Update(update), self.step_context(now, 0.0));
            cell.publish(&guard);
            effects
        };
        self.apply_locked(cell, guard, effects)
    }

    /// Makes the record of a pod that had none when the update arrived. If another thread was faster, applies the update to
    /// that thread's record. If the cell is about to leave the map, the update stays in `update` and the caller tries again.
    fn insert(&self, uid: &PodUid, update: &mut Option<Update>, observed: Observed) -> Option<DeferredEffects> {
        // Read before the cell is made: a clock that panics leaves no empty cell behind.
        let now = self.clock.now();
        let new_cell = || Arc::new(Cell::new(uid.clone(), self.pool.queues().clone()));
        let cell = self.cells.find_or_insert(uid, new_cell);
        let mut guard = cell.lock();
        match &*guard {
            Slot::Live(_) => return self.update_live(&cell, guard, update),
            Slot::Forgotten => {
                drop(guard);
                self.cells.remove(&cell);
                return None;
            }
            Slot::Empty => {}
        }
        let context = self.step_context(now, 0.0);
        let (capture, record, effects) =
            EventCapture::new_record(self.recorder.as_deref(), update.take()?, observed, context);
        let queued = record.wants_name().then(|| record.full_name().cloned()).flatten();
        if let Some(name) = &queued {
            self.names.join(name, cell.uid());
        }
        *guard = Slot::Live(Live::new(record, capture, queued));
        cell.publish(&guard);
        self.apply(&cell, guard, effects);
        self.start_worker(&cell, 0);
        None
    }
}
