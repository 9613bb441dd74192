//! The scheduler of one thread. It gives the thread's pod workers their turns: the workers in its run queue, and the workers whose
//! due time has come.
//!
//! A scheduler is one task of its arbiter. A pod worker is no task of its own: a wake-up pushes the worker's index into the
//! thread's run queue. So a wake-up allocates nothing, a burst of wake-ups wakes the thread once, and a new pod costs no task.

mod inbox;
mod queue;
mod table;
mod timer;

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll};
use std::time::{Duration, Instant};

use tokio::task::coop::has_budget_remaining;
use tokio::task::yield_now;

use super::cell::Cell;
use super::lock_free_words::WorkerId;
use super::primitives;
use super::worker::{Next, TurnClock, Worker};
use crate::engine::EngineInner;

use queue::WorkerStart;
use table::WorkerTable;
use timer::Timer;

pub(super) use queue::{RunQueue, RunQueueReceiver};

/// After this time the scheduler yields to the thread's other tasks, timers and I/O.
const TIME_SLICE: Duration = Duration::from_micros(200);
/// After this many turns the scheduler yields even if the clock does not advance.
const MAX_TURNS: u32 = 4_096;
/// About the time that it takes to wake a thread. If the run queue fills again within this time, spinning costs less than parking.
const SPIN: Duration = Duration::from_micros(50);

/// The scheduler of one thread. If it is dropped before the engine closes, its thread has ended, and it requests workers on other
/// threads for its pods.
struct Scheduler {
    workers: WorkerTable,
    /// The workers that have a turn coming, by their index, from `next` on.
    ready: Vec<u32>,
    next: usize,
    timer: Timer,
    /// Whether the last time parked was so short that spinning would have cost less.
    spins: bool,
    parked_since: Option<Instant>,
    /// Dropped last, so that it passes on the requests that are made while the scheduler is dropped.
    receiver: RunQueueReceiver,
}

impl Future for Scheduler {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<()> {
        let scheduler = self.get_mut();
        let Some(engine) = scheduler.receiver.engine() else { return Poll::Ready(()) };
        if let Some(since) = scheduler.parked_since.take() {
            scheduler.spins = since.elapsed() < 2 * SPIN;
        }
        let mut clock = TurnClock::new(&engine);
        let mut begin = None;
        // At the begin of every poll, and not only when no worker is ready: a worker that is always ready again must not keep
        // other workers from their turns.
        scheduler.receive();
        scheduler.poll_timer(&mut clock, cx);
        for _ in 0..MAX_TURNS {
            if engine.is_closing() {
                return Poll::Ready(());
            }
            let Some(index) = scheduler.ready.get(scheduler.next).copied() else {
                if scheduler.receive() || scheduler.poll_timer(&mut clock, cx) || scheduler.spin() {
                    continue;
                }
                if scheduler.park(cx) {
                    // The wake-up of `close` may have come before the park, and `receive` took it.
                    return if engine.is_closing() { Poll::Ready(()) } else { Poll::Pending };
                }
                continue;
            };
            scheduler.next += 1;
            scheduler.turn(index, &mut clock);
            // This reads the clock only if the turn did.
            let is_over = clock.last_read().is_some_and(|now| now.since(*begin.get_or_insert(now)) >= TIME_SLICE);
            if is_over || !has_budget_remaining() {
                break;
            }
        }
        let _deferred = pin!(yield_now()).poll(cx);
        Poll::Pending
    }
}

impl Scheduler {
    fn new(receiver: RunQueueReceiver) -> Self {
        Scheduler {
            workers: WorkerTable::default(),
            ready: Vec::new(),
            next: 0,
            timer: Timer::default(),
            spins: false,
            parked_since: None,
            receiver,
        }
    }

    /// Takes what is in the run queue. False if no worker got a turn.
    fn receive(&mut self) -> bool {
        self.ready.drain(..self.next);
        self.next = 0;
        let waiting = self.ready.len();
        for WorkerStart { cell, .. } in self.receiver.take(&mut self.ready).unwrap_or_default() {
            self.start(cell);
        }
        self.ready.len() > waiting
    }

    /// Starts the worker of a pod and gives it its first turn.
    fn start(&mut self, cell: Arc<Cell>) {
        let receiver = &self.receiver;
        let index = self.workers.insert(|index| {
            cell.set_worker(receiver.worker_id(index));
            Worker::new(cell)
        });
        self.ready.push(index);
    }

    fn turn(&mut self, index: u32, clock: &mut TurnClock<'_>) {
        let turn = |worker: &mut Worker| catch_unwind(AssertUnwindSafe(|| worker.turn(clock)));
        match self.workers.with(index, turn) {
            // The worker that had this index ended before its turn.
            None => {}
            Some(Ok(Next::Wait(Some(due)))) if self.workers.set_timer_entry(due, index) => {
                let workers = &self.workers;
                self.timer.add(due, index, workers.len(), |due, index| workers.has_timer_entry(due, index));
            }
            Some(Ok(Next::Wait(_))) => {}
            Some(Ok(Next::Continue)) => self.ready.push(index),
            Some(Ok(Next::End)) => drop(self.remove(index)),
            Some(Err(_panic)) => {
                if let Some(cell) = self.remove(index) {
                    replace_worker(clock.engine(), &cell);
                }
            }
        }
    }

    /// Drops a worker and returns its cell.
    fn remove(&mut self, index: u32) -> Option<Arc<Cell>> {
        let worker = self.workers.remove(index)?;
        if self.workers.len() == 0 {
            self.timer.clear();
        }
        Some(drop_worker(worker))
    }

    /// Gives a turn to the workers whose due time has come, and sets the alarm for the next one. False if no worker is due.
    fn poll_timer(&mut self, clock: &mut TurnClock<'_>, cx: &mut TaskContext<'_>) -> bool {
        let waiting = self.ready.len();
        let (workers, ready) = (&mut self.workers, &mut self.ready);
        self.timer.poll(clock, cx, |due, index| {
            if workers.take_timer_entry(due, index) {
                ready.push(index);
            }
        });
        self.ready.len() > waiting
    }

    /// Spins on the run queue for a short time. False if nothing arrived.
    ///
    /// Does not spin while a hook call is in progress: another task of this thread may have to run before that call can end.
    fn spin(&self) -> bool {
        if !self.spins || !self.receiver.may_spin || self.workers.has_busy() {
            return false;
        }
        let begin = Instant::now();
        while begin.elapsed() < SPIN {
            for _ in 0..8 {
                if self.receiver.queue().is_filled() {
                    return true;
                }
                std::hint::spin_loop();
            }
        }
        false
    }

    /// Lets the next push into the run queue wake the scheduler. False if something arrived already.
    fn park(&mut self, cx: &TaskContext<'_>) -> bool {
        let parks = self.receiver.park(cx.waker());
        self.parked_since = (parks && self.receiver.may_spin).then(Instant::now);
        parks
    }
}

impl Drop for Scheduler {
    fn drop(&mut self) {
        let Some(engine) = self.receiver.engine() else { return };
        while let Some(worker) = self.workers.pop() {
            replace_worker(&engine, &drop_worker(worker));
        }
    }
}

fn drop_worker(worker: Box<Worker>) -> Arc<Cell> {
    let cell = worker.cell().clone();
    cell.set_worker(WorkerId::NONE);
    // The hook call of a lost worker is dropped here. Its destructors are code of the host and may panic.
    let _panic = catch_unwind(AssertUnwindSafe(|| drop(worker)));
    cell
}

/// Replaces a lost worker. A panic here must not end the scheduler, because that would end every other worker of the thread.
fn replace_worker(engine: &EngineInner, cell: &Arc<Cell>) {
    if catch_unwind(AssertUnwindSafe(|| engine.replace_worker(cell))).is_err() {
        tracing::error!(pod.uid = %cell.uid(), "worker lost, and not replaced");
    }
}
