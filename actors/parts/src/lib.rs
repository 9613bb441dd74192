//! Runs what works by itself in a node or a controller: a writer, a watch, a timer. Each is a [part](Parts::spawn) with a name.
//!
//! ```text
//!  spawn ──> running ──returns──> ended
//!             ^    └───panics───> panicked: counted, logged, reported by `stopped`
//!             └──── 1 s to 10 s ────┘
//! ```
//!
//! - A part waits for its own wake-up: a notification, a queue or a timer. What receives messages is an actix actor instead.
//! - A panic ends the work of the part, and the part begins its work again after a delay. So the work keeps what it must not lose outside
//!   of its future, as a queue behind a lock.
//! - All parts end when their stop token is cancelled. Work that runs then is dropped.
//! - A part that does not run is a reason why the node or the controller is not ready.
//!
//! ```
//! use podwright_metrics::{PanicMetrics, Registry};
//! use podwright_parts::Parts;
//! use tokio_util::sync::CancellationToken;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() {
//! let stop = CancellationToken::new();
//! let parts = Parts::new(PanicMetrics::register(&mut Registry::default()), stop.clone());
//! parts.spawn("greeter", || async {
//!     println!("hello");
//!     std::future::pending().await
//! });
//! assert!(parts.stopped().is_empty());
//!
//! stop.cancel();
//! parts.ended().await;
//! # }
//! ```
//!
//! # Parts
//!
//! - [`Parts`]: the parts of one node or controller.
//! - [`StoppedPart`]: a part that does not run, and why.
//!
//! # Arrows
//!
//! The crate uses `podwright-model` for the texts of panics, `podwright-work-queue` for the backoff, and `podwright-metrics`.
//! `podwright-actors`, `podwright-controllers`, the adapters of the API server and of DRA drivers, and the agent use the crate.

use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use parking_lot::Mutex;
use podwright_metrics::PanicMetrics;
use podwright_model::text::panic_text;
use podwright_work_queue::Backoff;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// The delays before a part that panicked begins again. The longest one is below the time after which the control plane takes a node for
/// lost, because a part may renew the lease of the node.
const RESTART: Backoff = Backoff { first: Duration::from_secs(1), longest: Duration::from_secs(10) };
/// A panic after more than this time counts as the first one.
const STEADY: Duration = Duration::from_secs(60);

/// The parts of one node or of one controller. Clones are the same parts. Dropping them does not stop the parts.
#[derive(Clone, Debug)]
pub struct Parts(Arc<PartsInner>);

#[derive(Debug)]
struct PartsInner {
    panics: PanicMetrics,
    stop: CancellationToken,
    tasks: TaskTracker,
    /// The name and the state of each part, in the order in which they began.
    states: Mutex<Vec<(&'static str, State)>>,
}

#[derive(Debug)]
enum State {
    Running,
    /// It begins again after a delay.
    Panicked(String),
    Ended,
}

/// A part that does not run, although nobody has stopped it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StoppedPart {
    /// The name of the part.
    pub name: &'static str,
    /// The text of the panic after which the part begins again. `None` if its work has ended.
    pub panic: Option<String>,
}

impl StoppedPart {
    /// A part whose work has ended.
    pub fn ended(name: &'static str) -> Self {
        StoppedPart { name, panic: None }
    }
}

impl fmt::Display for StoppedPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.panic {
            Some(panic) => write!(f, "the part {} panicked and starts again: {panic}", self.name),
            None => write!(f, "the part {} has ended", self.name),
        }
    }
}

impl Parts {
    /// No parts yet. All parts end when `stop` is cancelled.
    pub fn new(panics: PanicMetrics, stop: CancellationToken) -> Self {
        Parts(Arc::new(PartsInner { panics, stop, tasks: TaskTracker::new(), states: Mutex::default() }))
    }

    /// The token that ends all parts. Work that may not be dropped everywhere watches it too.
    pub fn stop(&self) -> &CancellationToken {
        &self.0.stop
    }

    /// Begins a part on the current tokio runtime. `work` is called at the beginning and after each panic. The part ends when the work
    /// returns.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn spawn<F>(&self, name: &'static str, work: impl FnMut() -> F + Send + 'static)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        self.spawn_reporting(name, work, |_| {});
    }

    /// Begins a part as [`spawn`](Parts::spawn) does. `on_panic` gets the text of each panic, before the delay.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn spawn_reporting<F>(
        &self,
        name: &'static str,
        mut work: impl FnMut() -> F + Send + 'static,
        on_panic: impl FnMut(&str) + Send + 'static,
    ) where
        F: Future<Output = ()> + Send + 'static,
    {
        let part = self.part(name).run(async move || work().await, on_panic);
        self.0.tasks.spawn(self.stop().clone().run_until_cancelled_owned(part));
    }

    /// Begins a part whose work stays on this thread.
    ///
    /// # Panics
    /// Outside of an actix arbiter and of a `LocalSet`.
    pub fn spawn_local(&self, name: &'static str, work: impl AsyncFnMut() + 'static) {
        let part = self.part(name).run(work, |_| {});
        self.0.tasks.spawn_local(self.stop().clone().run_until_cancelled_owned(part));
    }

    /// The parts that do not run. Empty once the parts are stopped.
    pub fn stopped(&self) -> Vec<StoppedPart> {
        if self.0.stop.is_cancelled() {
            return Vec::new();
        }
        let stopped = |(name, state): &(&'static str, State)| match state {
            State::Running => None,
            State::Panicked(panic) => Some(StoppedPart { name, panic: Some(panic.clone()) }),
            State::Ended => Some(StoppedPart::ended(name)),
        };
        self.0.states.lock().iter().filter_map(stopped).collect()
    }

    /// The number of parts that run, or that will begin again after a panic.
    pub fn running(&self) -> usize {
        self.0.tasks.len()
    }

    /// Waits until all parts have ended. Cancel safe.
    pub async fn ended(&self) {
        self.0.tasks.close();
        self.0.tasks.wait().await;
    }

    fn part(&self, name: &'static str) -> Part {
        self.0.panics.part_begins(name);
        let mut states = self.0.states.lock();
        states.push((name, State::Running));
        Part { parts: self.0.clone(), name, index: states.len() - 1 }
    }
}

/// One part, as its task has it.
struct Part {
    parts: Arc<PartsInner>,
    name: &'static str,
    index: usize,
}

impl Part {
    /// Performs the work, again after each panic, until it returns.
    async fn run(self, mut work: impl AsyncFnMut(), mut on_panic: impl FnMut(&str)) {
        let mut panics = 0;
        loop {
            let begun = Instant::now();
            // The work may also panic before it returns a future.
            let Err(panic) = AssertUnwindSafe(async { work().await }).catch_unwind().await else {
                self.set(State::Ended);
                return;
            };
            panics = if begun.elapsed() > STEADY { 1 } else { panics + 1 };
            let (panic, delay) = (panic_text(&*panic).to_owned(), RESTART.after(panics));
            self.parts.panics.part_panicked(self.name);
            tracing::error!(
                part = self.name,
                panic,
                retry.seconds = delay.as_secs_f64(),
                "a background part panicked and starts again"
            );
            on_panic(&panic);
            self.set(State::Panicked(panic));
            sleep(delay).await;
            self.set(State::Running);
        }
    }

    fn set(&self, state: State) {
        if let Some((_, of_part)) = self.parts.states.lock().get_mut(self.index) {
            *of_part = state;
        }
    }
}

#[cfg(test)]
mod tests;
