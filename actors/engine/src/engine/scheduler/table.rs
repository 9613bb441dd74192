//! The workers of one thread.

use crate::engine::worker::Worker;
use crate::time::Time;

/// A table of workers. A worker keeps its index until it is removed; then the index is given to the next worker.
#[derive(Default)]
pub(super) struct WorkerTable {
    workers: Vec<Option<Box<Worker>>>,
    free: Vec<u32>,
    len: usize,
    /// The number of workers that have a hook call in progress.
    busy: usize,
}

impl WorkerTable {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn has_busy(&self) -> bool {
        self.busy > 0
    }

    /// Inserts a worker, which `new` makes for its index. Returns the index.
    pub(super) fn insert(&mut self, new: impl FnOnce(u32) -> Worker) -> u32 {
        let index = self.free.pop().unwrap_or_else(|| {
            self.workers.push(None);
            u32::try_from(self.workers.len() - 1).unwrap_or(u32::MAX)
        });
        if let Some(free) = self.workers.get_mut(index as usize) {
            *free = Some(Box::new(new(index)));
            self.len += 1;
        }
        index
    }

    /// Calls `work` with a worker, which may begin or end a hook call; `None` if there is no worker at the index.
    pub(super) fn with<T>(&mut self, index: u32, work: impl FnOnce(&mut Worker) -> T) -> Option<T> {
        let worker = self.workers.get_mut(index as usize)?.as_deref_mut()?;
        let was_busy = worker.is_busy();
        let result = work(worker);
        self.busy = self.busy + usize::from(worker.is_busy()) - usize::from(was_busy);
        Some(result)
    }

    /// Whether a timer entry is the current one of the worker at its index.
    pub(super) fn has_timer_entry(&self, due: Time, index: u32) -> bool {
        self.workers
            .get(index as usize)
            .is_some_and(|worker| worker.as_ref().is_some_and(|w| w.timer_entry == Some(due)))
    }

    /// Sets a worker's timer entry, unless it has one that is no later. True if it was set.
    pub(super) fn set_timer_entry(&mut self, due: Time, index: u32) -> bool {
        match self.workers.get_mut(index as usize) {
            Some(Some(worker)) if worker.timer_entry.is_none_or(|entry| due < entry) => {
                worker.timer_entry = Some(due);
                true
            }
            Some(_) | None => false,
        }
    }

    /// Takes a worker's timer entry. False if that entry is not its current one.
    pub(super) fn take_timer_entry(&mut self, due: Time, index: u32) -> bool {
        match self.workers.get_mut(index as usize) {
            Some(Some(worker)) if worker.timer_entry == Some(due) => worker.timer_entry.take().is_some(),
            Some(_) | None => false,
        }
    }

    /// Removes a worker.
    pub(super) fn remove(&mut self, index: u32) -> Option<Box<Worker>> {
        let worker = self.workers.get_mut(index as usize)?.take()?;
        self.busy -= usize::from(worker.is_busy());
        self.len -= 1;
        if self.len == 0 {
            // The memory that many pods needed is freed once the last of them is gone.
            *self = WorkerTable::default();
        } else {
            self.free.push(index);
        }
        Some(worker)
    }

    /// Removes any worker; `None` if there is none.
    pub(super) fn pop(&mut self) -> Option<Box<Worker>> {
        while let Some(worker) = self.workers.pop() {
            if worker.is_some() {
                return worker;
            }
        }
        None
    }
}
