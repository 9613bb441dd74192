//! `/watch`: one inspection of the node for all watchers, and the messages that each watcher receives.
//!
//! An inspection compares every pod with the last published state. The difference is encoded once and sent to all
//! watchers. Without watchers there are no inspections, and nothing is kept. A watcher that reads too slowly loses its
//! unread messages and receives everything again; the channel limits the memory that it uses.

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

use podwright_actors::explain::{NodeState, PodFacts};
use podwright_model::time::Time;
use tokio::sync::watch as signal;

use super::agent_info::AgentState;
use super::row::{Millis, PodRow};
use super::rows::{NearestWait, PodRows, serialize_rows};

/// How many watchers there may be at a time.
pub(in crate::agent) const MAX_WATCHERS: usize = 64;
/// The shortest time between two inspections, and so between two messages with changes.
const PAUSE: Duration = Duration::from_millis(300);
/// The longest time between two inspections. It is needed because not every change that the page shows is signalled.
const TICK: Duration = Duration::from_millis(1000);
/// After this time without messages a `beat` is sent, so that the page can detect a lost connection.
const BEAT: Duration = Duration::from_secs(5);
/// How many messages a watcher may leave unread.
const MAX_UNREAD: usize = 16;
/// How many rows one message of the initial state holds. The page shows them as they arrive.
const ROWS_PER_MESSAGE: usize = 250;

/// Access to the node that is watched.
pub(super) trait InspectNode: Send + Sync {
    /// Inspects the node. Blocking: it visits every pod.
    fn inspect(&self) -> NodeSnapshot<'_>;
}

/// The state of the node at one time.
pub(super) struct NodeSnapshot<'a> {
    pub(super) now: Time,
    pub(super) agent: AgentState,
    pub(super) node: NodeState,
    pub(super) pods: Vec<PodFacts>,
    pub(super) nearest_wait: Box<NearestWait<'a>>,
}

/// Inspects a node for all watchers.
pub(super) struct NodeWatch {
    inspector: Box<dyn InspectNode>,
    /// Counts the changes that the node signals.
    changes: signal::Receiver<u64>,
    watchers: Arc<Semaphore>,
    published: Mutex<PublishedState>,
}

/// The last published state. Its lock is held during an inspection, so that a new watcher misses no change.
struct PublishedState {
    now: Millis,
    rows: PodRows,
    agent: Option<AgentState>,
    /// When the last message was sent.
    sent_at: Instant,
    to: Sender<Bytes>,
    /// Whether a task inspects the node repeatedly.
    is_watched: bool,
}

/// One client of `/watch`.
struct Watcher {
    watch: Arc<NodeWatch>,
    _permit: OwnedSemaphorePermit,
    position: Option<WatcherPosition>,
}

/// The messages that a watcher still receives: the rest of the initial state, and then the changes.
struct WatcherPosition {
    now: Millis,
    agent: Option<Bytes>,
    rows: std::vec::IntoIter<Arc<PodRow>>,
    row_count: usize,
    has_sent_rows: bool,
    changes: Receiver<Bytes>,
}

/// A message with a part of the initial rows.
#[derive(Serialize)]
struct RowsMessage<'a> {
    now: Millis,
    #[serde(serialize_with = "serialize_rows")]
    rows: &'a [Arc<PodRow>],
    /// How many rows earlier messages held.
    from: usize,
    /// How many rows there are.
    of: usize,
}

/// A message with the node's time.
#[derive(Serialize)]
struct TimedMessage<T> {
    now: Millis,
    #[serde(flatten)]
    content: T,
}

#[derive(Serialize)]
struct NoContent {}

impl Default for PublishedState {
    fn default() -> Self {
        PublishedState {
            now: Millis::default(),
            rows: PodRows::default(),
            agent: None,
            sent_at: Instant::now(),
            to: Sender::new(MAX_UNREAD),
            is_watched: false,
        }
    }
}

impl NodeWatch {
    pub(super) fn new(inspector: impl InspectNode + 'static, changes: signal::Receiver<u64>) -> Self {
        let watchers = Arc::new(Semaphore::new(MAX_WATCHERS));
        NodeWatch { inspector: Box::new(inspector), changes, watchers, published: Mutex::default() }
    }

    /// The messages of a new watcher. `None` if there are too many watchers.
    pub(super) fn events(self: &Arc<Self>) -> Option<impl Stream<Item = Result<Bytes, Infallible>> + use<>> {
        let permit = self.watchers.clone().try_acquire_owned().ok()?;
        let watcher = Watcher { watch: self.clone(), _permit: permit, position: None };
        Some(unfold(watcher, async |mut watcher| Some((Ok(watcher.next().await?), watcher))))
    }

    /// The initial state for a watcher, and every change after it. Blocking: the first watcher causes an inspection.
    fn join(self: &Arc<Self>) -> WatcherPosition {
        let mut published = self.published.lock();
        if !published.is_watched {
            self.inspect(&mut published);
            published.is_watched = true;
            tokio::spawn(self.clone().inspect_repeatedly());
        }
        let now = published.now;
        let agent = published.agent.as_ref().map(|agent| event("agent", &TimedMessage { now, content: agent }));
        let rows = published.rows.rows();
        WatcherPosition {
            now,
            agent,
            row_count: rows.len(),
            rows: rows.into_iter(),
            has_sent_rows: false,
            changes: published.to.subscribe(),
        }
    }

    /// Inspects the node until there are no watchers.
    async fn inspect_repeatedly(self: Arc<Self>) {
        let mut changes = self.changes.clone();
        loop {
            sleep(PAUSE).await;
            // The node is inspected after a signalled change and also after the timeout.
            let _changed = timeout(TICK - PAUSE, changes.changed()).await;
            let watch = self.clone();
            let inspected = spawn_blocking(move || {
                let mut published = watch.published.lock();
                if published.to.receiver_count() == 0 {
                    *published = PublishedState::default();
                    return false;
                }
                watch.inspect(&mut published);
                true
            });
            match inspected.await {
                Ok(true) => {}
                Ok(false) => return,
                Err(_) => {
                    // The inspection panicked, or the agent ends. The streams end too, and open pages connect again.
                    *self.published.lock() = PublishedState::default();
                    return;
                }
            }
        }
    }

    /// Inspects the node once and sends the changes.
    fn inspect(&self, published: &mut PublishedState) {
        let NodeSnapshot { now: at, agent, node, pods, nearest_wait } = self.inspector.inspect();
        let now = Millis::from(at);
        let change = published.rows.update(node, pods, at, &*nearest_wait);
        let mut messages = Vec::new();
        // After the first inspection, each watcher receives the initial state from its own position.
        if published.is_watched {
            if published.agent.as_ref() != Some(&agent) {
                messages.push(event("agent", &TimedMessage { now, content: &agent }));
            }
            if !change.is_empty() {
                messages.push(event("change", &TimedMessage { now, content: &change }));
            }
            if messages.is_empty() && published.sent_at.elapsed() >= BEAT {
                messages.push(event("beat", &TimedMessage { now, content: NoContent {} }));
            }
        }
        published.now = now;
        published.agent = Some(agent);
        for message in messages {
            published.sent_at = Instant::now();
            // This fails if the last watcher has left. The next iteration of the loop detects that.
            let _no_watcher = published.to.send(message);
        }
    }
}

impl Watcher {
    /// The next message. Cancel safe: if the call is cancelled while the watcher joins, the next call joins again.
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            let position = match &mut self.position {
                Some(position) => position,
                None => {
                    let watch = self.watch.clone();
                    self.position.insert(spawn_blocking(move || watch.join()).await.ok()?)
                }
            };
            if let Some(message) = position.next_initial() {
                return Some(message);
            }
            match position.changes.recv().await {
                Ok(message) => return Some(message),
                Err(RecvError::Lagged(_)) => self.position = None,
                Err(RecvError::Closed) => return None,
            }
        }
    }
}

impl WatcherPosition {
    /// The next message of the initial state.
    fn next_initial(&mut self) -> Option<Bytes> {
        if let Some(agent) = self.agent.take() {
            return Some(agent);
        }
        // A node without pods sends one message without rows.
        if self.has_sent_rows && self.rows.len() == 0 {
            return None;
        }
        self.has_sent_rows = true;
        let from = self.row_count - self.rows.len();
        let rows: Vec<Arc<PodRow>> = self.rows.by_ref().take(ROWS_PER_MESSAGE).collect();
        Some(event("rows", &RowsMessage { now: self.now, rows: &rows, from, of: self.row_count }))
    }
}

/// Encodes one server-sent event.
fn event(name: &str, data: &impl Serialize) -> Bytes {
    let data = serde_json::to_string(data).expect("messages are maps of text and numbers");
    format!("event: {name}\ndata: {data}\n\n").into()
}

#[cfg(test)]
mod tests;
