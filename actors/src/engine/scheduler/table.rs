//! The workers of one thread, each at its place.

use crate::engine::worker::Worker;
use crate::time::Time;

/// A worker is known by its place while it is in here; a place that became free is given to the next one.
#[derive(Default)]
pub(super) struct Table {
    places: Vec<Option<Box<Worker>>>,
    free: Vec<u32>,
    len: usize,
    /// Workers whose hook is under way.
    busy: usize,
}

impl Table {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn has_busy(&self) -> bool {
        self.busy > 0
    }

    /// Puts a worker in that is told its place.
    pub(super) fn insert(&mut self, make: impl FnOnce(u32) -> Worker) -> u32 {
        let place = self.free.pop().unwrap_or_else(|| {
            self.places.push(None);
            u32::try_from(self.places.len() - 1).unwrap_or(u32::MAX)
        });
        if let Some(free) = self.places.get_mut(place as usize) {
            *free = Some(Box::new(make(place)));
            self.len += 1;
        }
        place
    }

    /// Does something with a worker that may begin or end a hook call; `None` if there is none at the place.
    pub(super) fn with<T>(&mut self, place: u32, work: impl FnOnce(&mut Worker) -> T) -> Option<T> {
        let worker = self.places.get_mut(place as usize)?.as_deref_mut()?;
        let was_busy = worker.is_busy();
        let result = work(worker);
        self.busy = self.busy + usize::from(worker.is_busy()) - usize::from(was_busy);
        Some(result)
    }

    /// Whether the worker at the place is entered for that time.
    pub(super) fn is_entered(&self, due: Time, place: u32) -> bool {
        self.places.get(place as usize).is_some_and(|worker| worker.as_ref().is_some_and(|w| w.entered == Some(due)))
    }

    /// Enters a worker for a time, unless it is entered for one that is no later.
    pub(super) fn enters_timer(&mut self, due: Time, place: u32) -> bool {
        match self.places.get_mut(place as usize) {
            Some(Some(worker)) if worker.entered.is_none_or(|entered| due < entered) => {
                worker.entered = Some(due);
                true
            }
            Some(_) | None => false,
        }
    }

    /// Whether the worker at the place was entered for that time; it is no more.
    pub(super) fn leaves_timer(&mut self, due: Time, place: u32) -> bool {
        match self.places.get_mut(place as usize) {
            Some(Some(worker)) if worker.entered == Some(due) => worker.entered.take().is_some(),
            Some(_) | None => false,
        }
    }

    /// Takes a worker out.
    pub(super) fn remove(&mut self, place: u32) -> Option<Box<Worker>> {
        let worker = self.places.get_mut(place as usize)?.take()?;
        self.busy -= usize::from(worker.is_busy());
        self.len -= 1;
        match self.len {
            // What many pods needed is given back once the last of them is gone.
            0 => *self = Table::default(),
            _ => self.free.push(place),
        }
        Some(worker)
    }

    /// Takes any worker out.
    pub(super) fn pop(&mut self) -> Option<Box<Worker>> {
        while let Some(place) = self.places.pop() {
            if let Some(worker) = place {
                return Some(worker);
            }
        }
        None
    }
}
