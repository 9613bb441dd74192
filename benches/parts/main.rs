//! Compares the two ways in which a change reaches what works by itself in a node: a message to an actix actor, and an entry in a queue
//! with a wake-up of a part. Both run on one thread, as on the arbiter of a node.
//!
//! ```text
//! cargo bench --locked -p podwright-parts --bench parts          1,000,000 changes: some seconds
//! ```
//!
//! - `alone`: each change waits until the one before it was taken.
//! - `burst`: 100 changes come at once. An actor gets 100 messages; a part is woken once.

#[path = "../support/args.rs"]
#[expect(dead_code, reason = "each way is measured in this process")]
mod args;
#[path = "../support/figures.rs"]
#[expect(dead_code, reason = "the figures go to standard output only")]
mod figures;

use std::cell::Cell;
use std::process::ExitCode;
use std::rc::Rc;
use std::time::Instant;

use actix::{Actor, Context, Handler, Message};
use podwright_metrics::{PanicMetrics, Registry};
use podwright_parts::Parts;
use tokio::sync::{Notify, mpsc};
use tokio_util::sync::CancellationToken;

use args::{Offer, Task};
use figures::number;

const SIZES: [usize; 1] = [1_000_000];
const WORKLOADS: [(&str, usize); 2] = [("alone", 1), ("burst", LARGEST_BURST)];
const LARGEST_BURST: usize = 100;
/// The number of changes of a run that only shows that the bench runs.
const TINY: usize = 200;

fn main() -> ExitCode {
    let names = WORKLOADS.map(|(name, _)| name);
    let offer = Offer { names: &names, sizes: &SIZES, runs: 1 };
    args::run(offer, "usage: cargo bench --locked -p podwright-parts --bench parts -- [--n N] [WORKLOAD]...", perform)
}

fn perform(task: Task) -> Result<(), String> {
    match task {
        Task::Measure(plan) => {
            println!("{}", figures::machine());
            for name in plan.names {
                plan.sizes.iter().for_each(|n| print(name, *n));
            }
        }
        Task::RunOne { name, n } => print(name, n),
        Task::Try { names } => {
            for name in names {
                measure(name, TINY);
                println!("{name}: ok");
            }
        }
        Task::List { names } => names.iter().for_each(|name| println!("{name}: test")),
    }
    Ok(())
}

fn print(name: &str, n: usize) {
    let (actor, part) = measure(name, n);
    println!("\n{name}, {n} changes");
    println!("{:<34} {:>11}", "actor, ns per change", number(actor));
    println!("{:<34} {:>11}", "part, ns per change", number(part));
}

/// Nanoseconds for each change through an actor, and through a part.
fn measure(name: &str, n: usize) -> (f64, f64) {
    let burst = WORKLOADS.iter().find(|(other, _)| *other == name).map_or(1, |(_, burst)| *burst);
    actix::System::new().block_on(async {
        let taken = Rc::new(Taken::default());
        let actor = Taker::create(|context| {
            context.set_mailbox_capacity(LARGEST_BURST);
            Taker(taken.clone())
        });
        let by_actor =
            through(n, burst, &taken, |change| actor.try_send(Change(change)).expect("the mailbox has room")).await;
        let (queue, mut changes) = mpsc::unbounded_channel();
        let stop = CancellationToken::new();
        let parts = Parts::new(PanicMetrics::register(&mut Registry::default()), stop.clone());
        let by_part = taken.clone();
        parts.spawn_local("taker", async move || {
            while let Some(change) = changes.recv().await {
                by_part.take(change);
            }
        });
        let by_part = through(n, burst, &taken, |change| queue.send(change).expect("the part runs")).await;
        stop.cancel();
        parts.ended().await;
        (by_actor, by_part)
    })
}

/// Nanoseconds for each of `n` changes that are sent in bursts.
async fn through(n: usize, burst: usize, taken: &Taken, send: impl Fn(usize)) -> f64 {
    let begin = Instant::now();
    for first in (0..n).step_by(burst) {
        let changes = burst.min(n - first);
        taken.left.set(changes);
        (first..first + changes).for_each(&send);
        taken.all.notified().await;
    }
    begin.elapsed().as_nanos() as f64 / n as f64
}

/// What the receiver of a change does with it: both ways do the same.
#[derive(Default)]
struct Taken {
    sum: Cell<usize>,
    /// The changes of the burst that were not taken yet.
    left: Cell<usize>,
    /// Woken by the last change of a burst.
    all: Notify,
}

impl Taken {
    fn take(&self, change: usize) {
        self.sum.set(self.sum.get().wrapping_add(change));
        self.left.set(self.left.get() - 1);
        if self.left.get() == 0 {
            self.all.notify_one();
        }
    }
}

struct Taker(Rc<Taken>);

#[derive(Message)]
#[rtype(result = "()")]
struct Change(usize);

impl Actor for Taker {
    type Context = Context<Self>;
}

impl Handler<Change> for Taker {
    type Result = ();

    fn handle(&mut self, Change(change): Change, _: &mut Self::Context) {
        self.0.take(change);
    }
}
