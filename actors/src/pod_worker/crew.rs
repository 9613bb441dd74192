//! One thread's pod workers: a queue of those that have a turn coming, and one timer for all that wait for their time.
//!
//! A pod worker takes part in no other queue: whoever wakes it puts the number of its place into the crew's inbox, and the
//! crew, one task of its arbiter, gives one turn after the other. So a wake-up allocates nothing, a burst of them wakes the
//! thread once, and a new pod costs no task.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context as TaskContext, Poll, Waker};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::task::coop::has_budget_remaining;
use tokio::task::yield_now;
use tokio::time::Sleep;

use super::actor::{Desk, Moment, Next};
use super::cell::Cell;
use crate::engine::{Inner, WeakInner};
use crate::time::Time;

/// After so much time, what else the thread has to do gets its turn: its I/O, its timers, other tasks.
const SHIFT: Duration = Duration::from_micros(200);
/// After so many turns too, should the clock stand still.
const TURNS: u32 = 4_096;
/// Waking a thread takes about this long, so an inbox that fills again within it is cheaper to watch than to sleep over.
const WATCH: Duration = Duration::from_micros(50);
/// Entries of the timer beyond twice the workers are swept out, and these.
const SPARE_ENTRIES: usize = 64;

/// What others see of a crew.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Crew {
    inbox: Mutex<Inbox>,
    /// Whether there is something in the inbox, for who watches it without its lock.
    filled: AtomicBool,
}

/// The lock is held for the time of a push or of taking all.
#[derive(Debug, Default)]
struct Inbox {
    /// Places whose workers have a turn coming.
    called: Vec<u32>,
    /// Pods without a worker, each with the number of crews that were asked before.
    offers: Vec<Offer>,
    /// The crew's own waker, while it sleeps.
    sleeper: Option<Waker>,
    closed: bool,
}

#[derive(Debug)]
struct Offer {
    cell: Arc<Cell>,
    choice: usize,
}

impl Inbox {
    fn is_empty(&self) -> bool {
        self.called.is_empty() && self.offers.is_empty()
    }
}

/// Where a worker works, as one number: the crew in the upper half, its place there in the lower.
pub(super) struct Post;

impl Post {
    pub(super) const NOWHERE: u64 = u64::MAX;

    fn new(crew: u32, place: u32) -> u64 {
        u64::from(crew) << 32 | u64::from(place)
    }

    /// Gives the worker there a turn.
    pub(super) fn call(post: u64, crews: &[Crew]) {
        let (crew, place) = ((post >> 32) as usize, post as u32);
        if let Some(crew) = crews.get(crew) {
            crew.put(|inbox| inbox.called.push(place));
        }
    }
}

impl Crew {
    fn put(&self, put: impl FnOnce(&mut Inbox)) {
        let mut inbox = self.inbox.lock();
        if inbox.closed {
            return;
        }
        if inbox.is_empty() {
            self.filled.store(true, Ordering::Release);
        }
        put(&mut inbox);
        let sleeper = inbox.sleeper.take();
        drop(inbox);
        if let Some(sleeper) = sleeper {
            sleeper.wake();
        }
    }

    /// Offers a pod without a worker. False if the crew is no more.
    pub(crate) fn offer(&self, cell: &Arc<Cell>, choice: usize) -> bool {
        let mut taken = false;
        self.put(|inbox| {
            taken = true;
            inbox.offers.push(Offer { cell: cell.clone(), choice });
        });
        taken
    }

    /// Has the crew look whether its engine is still there.
    pub(crate) fn rouse(&self) {
        self.put(|_| {});
    }
}

/// A crew at work: the task of its arbiter. Dropped before its end, because the thread ends, it sees to it that its pods get
/// workers elsewhere.
pub(crate) struct Shift {
    engine: WeakInner,
    crews: Arc<[Crew]>,
    number: u32,
    /// Whether to watch the inbox for a moment before going to sleep.
    may_watch: bool,
}

impl Shift {
    /// The shift of crew `number`, not begun.
    pub(crate) fn new(engine: WeakInner, crews: Arc<[Crew]>, number: u32, may_watch: bool) -> Self {
        Shift { engine, crews, number, may_watch }
    }

    /// Begins it, on its own thread.
    pub(crate) fn begin(self) -> impl Future<Output = ()> {
        Work {
            desks: Vec::new(),
            vacant: Vec::new(),
            employed: 0,
            busy: 0,
            queue: Vec::new(),
            next: 0,
            due: BinaryHeap::new(),
            alarm: None,
            seen: Time::ZERO,
            watches: false,
            asleep_since: None,
            shift: self,
        }
    }

    fn crew(&self) -> &Crew {
        &self.crews[self.number as usize]
    }

    /// The engine, unless it is gone or going.
    fn engine(&self) -> Option<Arc<Inner>> {
        self.engine.upgrade().filter(|engine| !engine.is_closing())
    }
}

impl Drop for Shift {
    fn drop(&mut self) {
        let left = std::mem::replace(&mut *self.crew().inbox.lock(), Inbox { closed: true, ..Inbox::default() });
        let Inbox { offers, .. } = left;
        if let Some(engine) = self.engine() {
            for Offer { cell, choice } in offers {
                engine.employ(&cell, choice + 1);
            }
        }
    }
}

struct Work {
    /// One desk for each worker, at its place.
    desks: Vec<Option<Box<Desk>>>,
    /// Places without a desk.
    vacant: Vec<u32>,
    employed: usize,
    /// Workers whose hook is under way.
    busy: usize,
    /// Those whose turn has come, from `next` on.
    queue: Vec<u32>,
    next: usize,
    /// When to give a turn without being asked, earliest first. An entry counts if its worker's desk says the same time; a
    /// worker whose time was put off has its turn then and is entered anew, so that a busy pod does not touch this with
    /// each call.
    due: BinaryHeap<Reverse<(Time, u32)>>,
    /// Set for the first entry, or earlier.
    alarm: Option<(Time, Pin<Box<Sleep>>)>,
    /// When the crew looked at the clock last.
    seen: Time,
    /// Whether the last sleep was so short that watching would have been cheaper.
    watches: bool,
    asleep_since: Option<Instant>,
    shift: Shift,
}

impl Future for Work {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<()> {
        let work = self.get_mut();
        let Some(engine) = work.shift.engine() else { return Poll::Ready(()) };
        if let Some(since) = work.asleep_since.take() {
            work.watches = since.elapsed() < 2 * WATCH;
        }
        let mut moment = Moment::new(&engine);
        let mut begin = None;
        work.call_who_is_due(&mut moment, cx);
        for _ in 0..TURNS {
            if engine.is_closing() {
                return Poll::Ready(());
            }
            let Some(place) = work.queue.get(work.next).copied() else {
                if work.open_inbox(&engine) || work.call_who_is_due(&mut moment, cx) || work.watch() {
                    continue;
                }
                if work.sleep(cx) {
                    return Poll::Pending;
                }
                continue;
            };
            work.next += 1;
            work.turn(place, &mut moment);
            // No clock is read for this: the turn did.
            let over = moment.known().is_some_and(|now| now.since(*begin.get_or_insert(now)) >= SHIFT);
            if over || !has_budget_remaining() {
                break;
            }
        }
        let _deferred = pin!(yield_now()).poll(cx);
        Poll::Pending
    }
}

impl Work {
    /// Takes what is in the inbox. False if there was nothing.
    fn open_inbox(&mut self, engine: &Inner) -> bool {
        self.queue.clear();
        self.next = 0;
        let crew = &self.shift.crews[self.shift.number as usize];
        if !crew.filled.swap(false, Ordering::AcqRel) {
            return false;
        }
        let mut inbox = crew.inbox.lock();
        std::mem::swap(&mut inbox.called, &mut self.queue);
        let offers = std::mem::take(&mut inbox.offers);
        drop(inbox);
        for Offer { cell, .. } in offers {
            self.hire(engine, cell);
        }
        !self.queue.is_empty()
    }

    /// A pod gets its worker, and that one its first turn.
    fn hire(&mut self, engine: &Inner, cell: Arc<Cell>) {
        let place = self.vacant.pop().unwrap_or_else(|| {
            self.desks.push(None);
            u32::try_from(self.desks.len() - 1).unwrap_or(u32::MAX)
        });
        cell.settle_at(Post::new(self.shift.number, place));
        let desk = Desk::new(engine, cell);
        if let Some(seat) = self.desks.get_mut(place as usize) {
            *seat = Some(Box::new(desk));
            self.employed += 1;
            self.queue.push(place);
        }
    }

    fn turn(&mut self, place: u32, moment: &mut Moment<'_>) {
        let Some(Some(desk)) = self.desks.get_mut(place as usize) else { return };
        let was_busy = desk.is_busy();
        let Ok(next) = catch_unwind(AssertUnwindSafe(|| desk.turn(moment))) else {
            self.busy -= usize::from(was_busy);
            if let Some(cell) = self.leave(place) {
                moment.engine().replace_worker(&cell);
            }
            return;
        };
        self.busy = self.busy + usize::from(desk.is_busy()) - usize::from(was_busy);
        match next {
            Next::Waits(Some(due)) => {
                if desk.entered.is_none_or(|entered| due < entered) {
                    desk.entered = Some(due);
                    self.enter(due, place);
                }
            }
            Next::Waits(None) => {}
            Next::Again => self.queue.push(place),
            Next::Ends => drop(self.leave(place)),
        }
    }

    /// A worker's place becomes free.
    fn leave(&mut self, place: u32) -> Option<Arc<Cell>> {
        let desk = self.desks.get_mut(place as usize)?.take()?;
        self.vacant.push(place);
        self.employed -= 1;
        if self.employed == 0 {
            // What many pods needed is given back once the last of them is gone.
            (self.desks, self.vacant, self.due) = <_>::default();
        }
        let cell = desk.cell().clone();
        cell.settle_at(Post::NOWHERE);
        // The hook of a lost worker is dropped here, and that is foreign code.
        let _panic = catch_unwind(AssertUnwindSafe(|| drop(desk)));
        Some(cell)
    }

    fn enter(&mut self, due: Time, place: u32) {
        if self.due.len() > 2 * self.employed + SPARE_ENTRIES {
            let desks = &self.desks;
            let counts = |time, place: u32| {
                desks.get(place as usize).is_some_and(|desk| desk.as_ref().is_some_and(|d| d.entered == Some(time)))
            };
            self.due.retain(|Reverse((time, place))| counts(*time, *place));
            self.due.shrink_to(2 * self.employed + SPARE_ENTRIES);
        }
        self.due.push(Reverse((due, place)));
    }

    /// Puts the workers whose time has come into the queue, and sets the alarm for the next one. False if nobody's has.
    fn call_who_is_due(&mut self, moment: &mut Moment<'_>, cx: &mut TaskContext<'_>) -> bool {
        let waiting = self.queue.len();
        while let Some(Reverse((first, _))) = self.due.peek() {
            let first = *first;
            if let Some((at, alarm)) = &mut self.alarm
                && *at <= first
            {
                if alarm.as_mut().poll(cx).is_pending() {
                    break;
                }
                self.alarm = None;
                moment.passes();
            }
            let now = self.now(moment);
            while let Some(Reverse((due, place))) = self.due.peek().copied().filter(|Reverse((due, _))| *due <= now) {
                self.due.pop();
                if let Some(Some(desk)) = self.desks.get_mut(place as usize)
                    && desk.entered == Some(due)
                {
                    desk.entered = None;
                    self.queue.push(place);
                }
            }
            let Some(Reverse((first, _))) = self.due.peek() else { break };
            let delay = first.since(now);
            match &mut self.alarm {
                Some((at, alarm)) => {
                    *at = *first;
                    alarm.as_mut().reset(tokio::time::Instant::now() + delay);
                }
                None => self.alarm = Some((*first, Box::pin(tokio::time::sleep(delay)))),
            }
        }
        self.queue.len() > waiting
    }

    /// The clock is the host's, and may panic as its hooks may; then it is as late as it was.
    fn now(&mut self, moment: &mut Moment<'_>) -> Time {
        if let Ok(now) = catch_unwind(AssertUnwindSafe(|| moment.now())) {
            self.seen = now;
        }
        self.seen
    }

    /// Looks at the inbox for a moment. False if nothing came. Not while a hook is under way: what that one waits for may
    /// come through this same thread.
    fn watch(&mut self) -> bool {
        if !self.watches || !self.shift.may_watch || self.busy > 0 {
            return false;
        }
        let crew = self.shift.crew();
        let begin = Instant::now();
        while begin.elapsed() < WATCH {
            for _ in 0..8 {
                if crew.filled.load(Ordering::Acquire) {
                    return true;
                }
                std::hint::spin_loop();
            }
        }
        false
    }

    /// Lets itself be woken by what comes. False if something came already.
    fn sleep(&mut self, cx: &TaskContext<'_>) -> bool {
        let crew = &self.shift.crews[self.shift.number as usize];
        let mut inbox = crew.inbox.lock();
        if !inbox.is_empty() {
            return false;
        }
        inbox.sleeper = Some(cx.waker().clone());
        self.asleep_since = self.shift.may_watch.then(Instant::now);
        true
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        let Some(engine) = self.shift.engine() else { return };
        for place in 0..self.desks.len() {
            let Some(desk) = self.desks[place].take() else { continue };
            let cell = desk.cell().clone();
            let _panic = catch_unwind(AssertUnwindSafe(|| drop(desk)));
            engine.replace_worker(&cell);
        }
    }
}
