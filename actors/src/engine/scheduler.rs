//! Gives the pod workers of one thread their turns: a run queue of those that have one coming, and one timer for all that
//! wait for their time.
//!
//! A pod worker takes part in no other queue: whoever wakes it puts its place into the thread's run queue, and the scheduler,
//! one task of its arbiter, gives one turn after the other. So a wake-up allocates nothing, a burst of them wakes the
//! thread once, and a new pod costs no task.

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
use super::worker::{Next, TurnClock, Worker};
use crate::engine::Inner;

use queue::Start;
use table::Table;
use timer::Timer;

pub(super) use queue::WorkerId;
pub(crate) use queue::{Receiver, RunQueue};

/// After so much time, what else the thread has to do gets its turn: its I/O, its timers, other tasks.
const SLICE: Duration = Duration::from_micros(200);
/// After so many turns too, should the clock stand still.
const TURNS: u32 = 4_096;
/// Waking a thread takes about this long, so a run queue that fills again within it is cheaper to watch than to sleep over.
const WATCH: Duration = Duration::from_micros(50);

/// The scheduler of one thread. Dropped before the engine's end, because the thread ends, it sees to it that its pods get
/// workers elsewhere.
struct Scheduler {
    workers: Table,
    /// Places of those whose turn has come, from `next` on.
    ready: Vec<u32>,
    next: usize,
    timer: Timer,
    /// Whether the last sleep was so short that watching would have been cheaper.
    watches: bool,
    asleep_since: Option<Instant>,
    /// Dropped last, so that what the scheduler itself asks for while it is dropped is passed on.
    receiver: Receiver,
}

impl Future for Scheduler {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<()> {
        let scheduler = self.get_mut();
        let Some(engine) = scheduler.receiver.engine() else { return Poll::Ready(()) };
        if let Some(since) = scheduler.asleep_since.take() {
            scheduler.watches = since.elapsed() < 2 * WATCH;
        }
        let mut moment = TurnClock::new(&engine);
        let mut begin = None;
        // Each time, not only once all had their turns: a worker that never rests keeps nobody from theirs.
        scheduler.receive();
        scheduler.poll_timer(&mut moment, cx);
        for _ in 0..TURNS {
            if engine.is_closing() {
                return Poll::Ready(());
            }
            let Some(place) = scheduler.ready.get(scheduler.next).copied() else {
                if scheduler.receive() || scheduler.poll_timer(&mut moment, cx) || scheduler.watch() {
                    continue;
                }
                if scheduler.sleep(cx) {
                    return Poll::Pending;
                }
                continue;
            };
            scheduler.next += 1;
            scheduler.turn(place, &mut moment);
            // No clock is read for this: the turn did.
            let over = moment.known().is_some_and(|now| now.since(*begin.get_or_insert(now)) >= SLICE);
            if over || !has_budget_remaining() {
                break;
            }
        }
        let _deferred = pin!(yield_now()).poll(cx);
        Poll::Pending
    }
}

impl Scheduler {
    fn new(receiver: Receiver) -> Self {
        Scheduler {
            workers: Table::default(),
            ready: Vec::new(),
            next: 0,
            timer: Timer::default(),
            watches: false,
            asleep_since: None,
            receiver,
        }
    }

    /// Takes what is in the run queue. False if nobody got a turn by it.
    fn receive(&mut self) -> bool {
        self.ready.drain(..self.next);
        self.next = 0;
        let waiting = self.ready.len();
        for Start { cell, .. } in self.receiver.take(&mut self.ready).unwrap_or_default() {
            self.start(cell);
        }
        self.ready.len() > waiting
    }

    /// A pod gets its worker, and that one its first turn.
    fn start(&mut self, cell: Arc<Cell>) {
        let receiver = &self.receiver;
        let place = self.workers.insert(|place| {
            cell.runs_as(receiver.id(place));
            Worker::new(cell)
        });
        self.ready.push(place);
    }

    fn turn(&mut self, place: u32, moment: &mut TurnClock<'_>) {
        let turn = |worker: &mut Worker| catch_unwind(AssertUnwindSafe(|| worker.turn(moment)));
        match self.workers.with(place, turn) {
            // Meant for a worker that had the place before, or that came to its end before this turn.
            None => {}
            Some(Ok(Next::Waits(Some(due)))) if self.workers.enters_timer(due, place) => {
                let workers = &self.workers;
                self.timer.enter(due, place, workers.len(), |due, place| workers.is_entered(due, place));
            }
            Some(Ok(Next::Waits(_))) => {}
            Some(Ok(Next::Again)) => self.ready.push(place),
            Some(Ok(Next::Ends)) => drop(self.remove(place)),
            Some(Err(_panic)) => {
                if let Some(cell) = self.remove(place) {
                    replace(moment.engine(), &cell);
                }
            }
        }
    }

    /// Drops a worker, and answers with whose it was.
    fn remove(&mut self, place: u32) -> Option<Arc<Cell>> {
        let worker = self.workers.remove(place)?;
        if self.workers.len() == 0 {
            self.timer.clear();
        }
        Some(drop_worker(worker))
    }

    /// Gives those a turn whose time has come, and sets the alarm for the next one. False if nobody's has.
    fn poll_timer(&mut self, moment: &mut TurnClock<'_>, cx: &mut TaskContext<'_>) -> bool {
        let waiting = self.ready.len();
        let (workers, ready) = (&mut self.workers, &mut self.ready);
        self.timer.poll(moment, cx, |due, place| {
            if workers.leaves_timer(due, place) {
                ready.push(place);
            }
        });
        self.ready.len() > waiting
    }

    /// Looks at the run queue for a moment. False if nothing came. Not while a hook is under way: what that one waits for may
    /// come through this same thread.
    fn watch(&self) -> bool {
        if !self.watches || !self.receiver.may_watch || self.workers.has_busy() {
            return false;
        }
        let begin = Instant::now();
        while begin.elapsed() < WATCH {
            for _ in 0..8 {
                if self.receiver.queue().is_filled() {
                    return true;
                }
                std::hint::spin_loop();
            }
        }
        false
    }

    /// Lets itself be woken by what comes. False if something came already.
    fn sleep(&mut self, cx: &TaskContext<'_>) -> bool {
        let sleeps = self.receiver.sleep(cx.waker());
        self.asleep_since = (sleeps && self.receiver.may_watch).then(Instant::now);
        sleeps
    }
}

impl Drop for Scheduler {
    fn drop(&mut self) {
        let Some(engine) = self.receiver.engine() else { return };
        while let Some(worker) = self.workers.pop() {
            replace(&engine, &drop_worker(worker));
        }
    }
}

fn drop_worker(worker: Box<Worker>) -> Arc<Cell> {
    let cell = worker.cell().clone();
    cell.runs_as(WorkerId::NONE);
    // The hook of a lost worker is dropped here, and that is foreign code.
    let _panic = catch_unwind(AssertUnwindSafe(|| drop(worker)));
    cell
}

/// Whatever goes wrong here is not to end the scheduler, and every other worker with it.
fn replace(engine: &Inner, cell: &Arc<Cell>) {
    if catch_unwind(AssertUnwindSafe(|| engine.replace_worker(cell))).is_err() {
        tracing::error!(pod.uid = %cell.uid(), "worker lost, and not replaced");
    }
}
