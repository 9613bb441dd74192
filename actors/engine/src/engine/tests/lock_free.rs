//! The lock-free words and the run queue's inbox under every interleaving and every outcome of their memory orderings, by loom.
//!
//! The two files under test are compiled a second time here, over loom's atomics and lock. In the tests, "queued" counts the turns
//! that a caller would have pushed into the run queue.

use std::sync::Arc;
use std::task::{Wake, Waker};

use ::loom::model;
use ::loom::model::Builder;
use ::loom::sync::Notify;
use ::loom::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use ::loom::thread;

use crate::pod_worker::published::Published;
use crate::time::Time;

use inbox::Inbox;
use lock_free_words::{HoldCount, PublishedWord, WakeWord, WorkerId, WorkerWord};

#[path = "../scheduler/inbox.rs"]
#[expect(clippy::duplicate_mod, reason = "compiled over loom's atomics")]
mod inbox;
#[path = "../lock_free_words.rs"]
#[expect(clippy::duplicate_mod, reason = "compiled over loom's atomics")]
mod lock_free_words;

mod primitives {
    pub(super) use ::loom::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
    use ::loom::sync::{Mutex as LoomMutex, MutexGuard};

    /// Loom's lock behind the interface of `parking_lot`.
    #[derive(Debug)]
    pub(super) struct Mutex<T>(LoomMutex<T>);

    impl<T> Mutex<T> {
        pub(super) fn new(value: T) -> Self {
            Mutex(LoomMutex::new(value))
        }

        pub(super) fn lock(&self) -> MutexGuard<'_, T> {
            self.0.lock().unwrap()
        }
    }
}

/// A worker's signals, the change that they announce, and the turns that callers queue.
struct Signals {
    word: WakeWord,
    /// Relaxed on purpose: only the signals order it.
    changes: AtomicU32,
    queued: AtomicU32,
}

impl Signals {
    fn new() -> Arc<Self> {
        Arc::new(Signals { word: WakeWord::new(), changes: AtomicU32::new(0), queued: AtomicU32::new(0) })
    }

    fn change_and_wake(&self) {
        self.changes.fetch_add(1, Ordering::Relaxed);
        if self.word.wake() {
            self.queued.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn inspect(&self) -> u32 {
        self.changes.load(Ordering::Relaxed)
    }
}

#[test]
fn worker_inspects_every_change_or_is_queued_once_for_it() {
    model(|| {
        let signals = Signals::new();
        let wakers: Vec<_> = (0..2)
            .map(|_| {
                let signals = signals.clone();
                thread::spawn(move || signals.change_and_wake())
            })
            .collect();
        signals.word.begin_turn(true);
        let changes = signals.inspect();
        wakers.into_iter().for_each(|waker| waker.join().unwrap());
        let queued = signals.queued.load(Ordering::Relaxed);
        assert!(changes == 2 || queued == 1, "the turn found {changes} of 2 changes, and {queued} turns are queued");
        assert!(queued <= 1, "a burst queued {queued} turns");
    });
}

#[test]
fn worker_inspects_a_change_made_while_its_hook_call_ended() {
    model(|| {
        let signals = Signals::new();
        let waker = {
            let signals = signals.clone();
            thread::spawn(move || signals.change_and_wake())
        };
        // The hook call is in progress when the turn begins, and ends in it.
        signals.word.begin_turn(false);
        signals.word.begin_inspection();
        let changes = signals.inspect();
        waker.join().unwrap();
        assert!(changes == 1 || signals.queued.load(Ordering::Relaxed) == 1, "the change was lost");
    });
}

#[test]
fn hook_that_becomes_ready_is_polled_or_queued() {
    model(|| {
        let signals = Signals::new();
        let waker = {
            let signals = signals.clone();
            thread::spawn(move || {
                // The hook becomes ready, and its waker requests a turn.
                signals.changes.fetch_add(1, Ordering::Relaxed);
                if signals.word.enqueue() {
                    signals.queued.fetch_add(1, Ordering::Relaxed);
                }
            })
        };
        signals.word.begin_turn(false);
        let ready = signals.inspect() == 1;
        waker.join().unwrap();
        assert!(ready || signals.queued.load(Ordering::Relaxed) == 1, "the hook is not polled again");
    });
}

#[test]
fn worker_takes_work_after_the_last_hold_is_released() {
    model(|| {
        let signals = Signals::new();
        let holds = Arc::new(HoldCount::new());
        holds.hold();
        holds.hold();
        let holders: Vec<_> = (0..2)
            .map(|_| {
                let (signals, holds) = (signals.clone(), holds.clone());
                thread::spawn(move || {
                    if holds.release() && signals.word.wake() {
                        signals.queued.fetch_add(1, Ordering::Relaxed);
                    }
                })
            })
            .collect();
        signals.word.begin_turn(true);
        let is_held = holds.is_held();
        holders.into_iter().for_each(|holder| holder.join().unwrap());
        assert!(
            !is_held || signals.queued.load(Ordering::Relaxed) == 1,
            "the worker waits for a hold that was dropped"
        );
    });
}

#[test]
fn wake_up_reaches_a_worker_that_moves_to_another_thread() {
    let new = WorkerId::new(1, 0);
    model(move || {
        let signals = Signals::new();
        let address = Arc::new(WorkerWord::new());
        address.store(WorkerId::new(0, 7));
        let waker = {
            let (signals, address) = (signals.clone(), address.clone());
            thread::spawn(move || {
                signals.changes.fetch_add(1, Ordering::Relaxed);
                signals.word.wake().then(|| address.load())
            })
        };
        address.store(new);
        signals.word.begin_turn(true);
        let changes = signals.inspect();
        let scheduled = waker.join().unwrap();
        assert!(changes == 1 || scheduled == Some(new), "the turn went to {scheduled:?}");
        assert_eq!((new.queue(), new.index()), (1, 0));
    });
}

fn published(stage: u8) -> (Published, Time) {
    (Published::from_word(stage), Time::from_nanos(u64::from(stage) * 800))
}

/// Publishes two transitions, and runs `read` at the same time.
fn while_publishing(read: impl Fn(&PublishedWord) + Send + Sync + Copy + 'static) {
    model(move || {
        let word = Arc::new(PublishedWord::new());
        let writer = {
            let word = word.clone();
            thread::spawn(move || {
                for stage in 1..=2 {
                    // The word is not loaded here: loom would take this thread's own load for the last access, and would
                    // not run the store before an earlier load of the reader.
                    let (new, since) = published(stage);
                    word.store(published(stage - 1).0, new, since);
                }
            })
        };
        read(&word);
        writer.join().unwrap();
        assert_eq!(word.load_with_time(), Some(published(2)));
    });
}

#[test]
fn published_word_is_paired_with_the_time_of_its_own_transition() {
    while_publishing(|word| {
        if let Some((word, since)) = word.load_with_time() {
            let stage = u8::try_from(word.stage()).unwrap();
            assert_eq!((word, since), published(stage));
        }
    });
}

#[test]
fn reader_that_sees_the_last_transition_also_sees_its_time() {
    while_publishing(|word| {
        if word.load() == published(2).0 {
            assert_eq!(word.load_with_time(), Some(published(2)));
        }
    });
}

/// The task of a scheduler that parks.
struct Parker(Notify);

impl Wake for Parker {
    fn wake(self: Arc<Self>) {
        self.0.notify();
    }
}

/// A scheduler that takes from an inbox, and parks while there is nothing, until `is_done`.
fn schedule(inbox: &Inbox<u32>, mut is_done: impl FnMut(&[u32], &[u32]) -> bool) {
    let parker = Arc::new(Parker(Notify::new()));
    let waker = Waker::from(parker.clone());
    let (mut turns, mut starts) = (Vec::new(), Vec::new());
    while !is_done(&turns, &starts) {
        if let Some(more) = inbox.take(&mut turns) {
            starts.extend(more);
        } else if inbox.park(&waker) {
            parker.0.wait();
        } else {
            assert!(inbox.is_filled(), "a scheduler that spins would not see what keeps it from parking");
        }
    }
}

#[test]
fn run_queue_wakes_its_parked_scheduler_for_every_push() {
    // Three threads with two locks each: all interleavings would take a minute.
    let mut most_interleavings = Builder::new();
    most_interleavings.preemption_bound = Some(2);
    most_interleavings.check(|| {
        let inbox = Arc::new(Inbox::new());
        let pushers = [
            {
                let inbox = inbox.clone();
                thread::spawn(move || inbox.push_turn(1))
            },
            {
                let inbox = inbox.clone();
                thread::spawn(move || assert!(inbox.push_start(2)))
            },
        ];
        schedule(&inbox, |turns, starts| turns.len() + starts.len() == 2);
        pushers.into_iter().for_each(|pusher| pusher.join().unwrap());
    });
}

#[test]
fn run_queue_wakes_its_parked_scheduler_when_the_engine_closes() {
    model(|| {
        let inbox = Arc::new(Inbox::<u32>::new());
        let closing = Arc::new(AtomicBool::new(false));
        let closer = {
            let (inbox, closing) = (inbox.clone(), closing.clone());
            thread::spawn(move || {
                closing.store(true, Ordering::SeqCst);
                inbox.wake();
            })
        };
        schedule(&inbox, |_, _| closing.load(Ordering::SeqCst));
        closer.join().unwrap();
    });
}

#[test]
fn closed_run_queue_refuses_a_start_or_returns_it() {
    model(|| {
        let inbox = Arc::new(Inbox::new());
        let pusher = {
            let inbox = inbox.clone();
            thread::spawn(move || inbox.push_start(7))
        };
        let returned = inbox.close();
        let accepted = pusher.join().unwrap();
        assert_eq!(returned.len(), usize::from(accepted), "a start was lost or is made twice");
    });
}
