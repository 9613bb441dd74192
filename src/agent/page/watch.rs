//! One look for all who watch, and what each of them is told.
//!
//! A look compares every pod with what was told last and sends what differs, encoded once, to all. Nobody watches: nobody
//! looks, and nothing is kept. Who reads too slowly loses what it did not take and is told everything anew; what it costs
//! is bounded by the channel.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use futures_util::Stream;
use futures_util::stream::unfold;
use parking_lot::Mutex;
use serde::Serialize;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::broadcast::{Receiver, Sender};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep, timeout};

use crate::actors::explain::{NodeState, PodFacts};
use crate::actors::time::Time;
use tokio::sync::watch as signal;

use super::about::Agent;
use super::board::{Board, Millis, Nearest, Row, all};

/// How many may watch at a time.
pub(in crate::agent) const SEATS: usize = 64;
/// The shortest time between two looks, so between two messages of changes.
const PAUSE: Duration = Duration::from_millis(300);
/// The longest: not everything that the page shows tells that it changed.
const TICK: Duration = Duration::from_millis(1000);
/// After how much silence a word is sent all the same, by which a page knows that it is still told.
const BEAT: Duration = Duration::from_secs(5);
/// How many messages one who watches may leave unread.
const UNREAD: usize = 16;
/// How many rows a message of the first telling holds: a page shows them as they come.
const CHUNK: usize = 250;

/// Who looks.
pub(super) trait Eyes: Send + Sync {
    /// Takes its time.
    fn look(&self) -> Seen<'_>;
}

/// What is true at one instant.
pub(super) struct Seen<'a> {
    pub(super) at: Time,
    pub(super) agent: Agent,
    pub(super) node: NodeState,
    pub(super) pods: Vec<PodFacts>,
    pub(super) nearest: Box<Nearest<'a>>,
}

/// Looks for all who watch.
pub(super) struct Watch {
    eyes: Box<dyn Eyes>,
    /// Counts up when something changed, as far as it tells.
    changes: signal::Receiver<u64>,
    seats: Arc<Semaphore>,
    sight: Mutex<Sight>,
}

/// What was told last; nobody may join while a look is under way.
struct Sight {
    now: Millis,
    board: Board,
    agent: Option<Agent>,
    told: Instant,
    to: Sender<Bytes>,
    /// Whether somebody looks again and again.
    awake: bool,
}

/// One who watches.
struct Watcher {
    watch: Arc<Watch>,
    _seat: OwnedSemaphorePermit,
    place: Option<Joined>,
}

/// Where one stands who watches: what is still to be told of the beginning, and what comes then.
struct Joined {
    agent: Option<Bytes>,
    rows: std::vec::IntoIter<Arc<Row>>,
    of: usize,
    begun: bool,
    then: Receiver<Bytes>,
    now: Millis,
}

/// A part of the first telling.
#[derive(Serialize)]
struct Part<'a> {
    now: Millis,
    #[serde(serialize_with = "all")]
    rows: &'a [Arc<Row>],
    /// How many rows were told before.
    from: usize,
    /// How many there are in all.
    of: usize,
}

#[derive(Serialize)]
struct At<T> {
    now: Millis,
    #[serde(flatten)]
    what: T,
}

#[derive(Serialize)]
struct Nothing {}

impl Default for Sight {
    fn default() -> Self {
        Sight {
            now: Millis::default(),
            board: Board::default(),
            agent: None,
            told: Instant::now(),
            to: Sender::new(UNREAD),
            awake: false,
        }
    }
}

impl Watch {
    pub(super) fn new(eyes: impl Eyes + 'static, changes: signal::Receiver<u64>) -> Self {
        let seats = Arc::new(Semaphore::new(SEATS));
        Watch { eyes: Box::new(eyes), changes, seats, sight: Mutex::default() }
    }

    /// What one who watches is told, until it goes. `None` if too many watch.
    pub(super) fn events(self: &Arc<Self>) -> Option<impl Stream<Item = Result<Bytes, Infallible>> + use<>> {
        let seat = self.seats.clone().try_acquire_owned().ok()?;
        let watcher = Watcher { watch: self.clone(), _seat: seat, place: None };
        Some(unfold(watcher, async |mut watcher| Some((Ok(watcher.next().await?), watcher))))
    }

    /// Everything as it is told to one who comes, and what comes after exactly that. Takes as long as a look.
    fn join(self: &Arc<Self>) -> Joined {
        let mut sight = self.sight.lock();
        if !sight.awake {
            self.look(&mut sight);
            sight.awake = true;
            tokio::spawn(self.clone().keep_looking());
        }
        let now = sight.now;
        let agent = sight.agent.as_ref().map(|agent| event("agent", &At { now, what: agent }));
        let rows = sight.board.rows();
        Joined { agent, of: rows.len(), rows: rows.into_iter(), begun: false, then: sight.to.subscribe(), now }
    }

    /// Looks until nobody watches any more.
    async fn keep_looking(self: Arc<Self>) {
        let mut changes = self.changes.clone();
        loop {
            sleep(PAUSE).await;
            // Whether something told or the time is up, the look comes.
            let _told = timeout(TICK - PAUSE, changes.changed()).await;
            let watch = self.clone();
            let looked = spawn_blocking(move || {
                let mut sight = watch.sight.lock();
                if sight.to.receiver_count() == 0 {
                    *sight = Sight::default();
                    return false;
                }
                watch.look(&mut sight);
                true
            });
            match looked.await {
                Ok(true) => {}
                Ok(false) => return,
                Err(_) => {
                    // It panicked, or the agent ends. The streams end too, and whoever still watches comes again.
                    *self.sight.lock() = Sight::default();
                    return;
                }
            }
        }
    }

    /// One look.
    fn look(&self, sight: &mut Sight) {
        let Seen { at, agent, node, pods, nearest } = self.eyes.look();
        let now = Millis::from(at);
        let change = sight.board.take(node, pods, at, &*nearest);
        let mut told = Vec::new();
        // The first look is told to each by itself.
        if sight.awake {
            if sight.agent.as_ref() != Some(&agent) {
                told.push(event("agent", &At { now, what: &agent }));
            }
            if !change.is_empty() {
                told.push(event("change", &At { now, what: &change }));
            }
            if told.is_empty() && sight.told.elapsed() >= BEAT {
                told.push(event("beat", &At { now, what: Nothing {} }));
            }
        }
        sight.now = now;
        sight.agent = Some(agent);
        for message in told {
            sight.told = Instant::now();
            // Nobody is there to be told: the next turn sees that.
            let _gone = sight.to.send(message);
        }
    }
}

impl Watcher {
    /// The next message. Cancel safe but for the first telling, which then begins anew.
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            let place = match &mut self.place {
                Some(place) => place,
                None => {
                    let watch = self.watch.clone();
                    self.place.insert(spawn_blocking(move || watch.join()).await.ok()?)
                }
            };
            if let Some(message) = place.beginning() {
                return Some(message);
            }
            match place.then.recv().await {
                Ok(message) => return Some(message),
                Err(RecvError::Lagged(_)) => self.place = None,
                Err(RecvError::Closed) => return None,
            }
        }
    }
}

impl Joined {
    /// The next message of the first telling.
    fn beginning(&mut self) -> Option<Bytes> {
        if let Some(agent) = self.agent.take() {
            return Some(agent);
        }
        // That there is no pod is told too.
        if self.begun && self.rows.len() == 0 {
            return None;
        }
        self.begun = true;
        let from = self.of - self.rows.len();
        let rows: Vec<Arc<Row>> = self.rows.by_ref().take(CHUNK).collect();
        Some(event("rows", &Part { now: self.now, rows: &rows, from, of: self.of }))
    }
}

/// One server-sent event.
fn event(name: &str, data: &impl Serialize) -> Bytes {
    let data = serde_json::to_string(data).expect("rows are maps of text and numbers");
    format!("event: {name}\ndata: {data}\n\n").into()
}

#[cfg(test)]
mod tests;
