//! Stopping containers: the shortest grace that was asked for counts.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use podwright_actors::ids::ContainerId;
use podwright_actors::ports::RuntimeError;
use tokio::runtime::Handle;
use tokio::time::Instant;

use super::client::Client;
use super::flights::{Flight, flight};

/// Stops that are under way.
pub(super) struct Stops {
    client: Client,
    handle: Handle,
    under_way: Arc<Mutex<HashMap<ContainerId, Stop>>>,
}

/// Longer is for ever, and runtimes count in nanoseconds.
const LONGEST: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);

#[derive(Clone)]
struct Stop {
    /// When the runtime kills the container.
    kill_at: Instant,
    outcome: Flight<()>,
}

impl Stops {
    /// Nothing under way; calls will be made from `handle`'s runtime.
    pub(super) fn new(client: Client, handle: Handle) -> Self {
        Stops { client, handle, under_way: Arc::default() }
    }

    /// Waits until the container has stopped, at the latest after `grace`. A call that comes while another is under way
    /// waits for that one, unless its own grace ends sooner: then the runtime is asked once more, which shortens the
    /// first. Cancel safe: what was asked goes on.
    pub(super) async fn stop(&self, id: &ContainerId, grace: Duration) -> Result<(), RuntimeError> {
        let grace = grace.min(LONGEST);
        let kill_at = Instant::now() + grace;
        let outcome = {
            let mut under_way = self.under_way.lock();
            match under_way.get(id).filter(|stop| stop.kill_at <= kill_at) {
                Some(stop) => stop.outcome.clone(),
                None => {
                    let (all, of, client) = (Arc::clone(&self.under_way), id.clone(), self.client.clone());
                    let task = self.handle.spawn(async move {
                        let _over = Over { all, of: of.clone(), kill_at };
                        client.stop_container(of.as_str().to_owned(), grace).await
                    });
                    let outcome = flight(task);
                    under_way.insert(id.clone(), Stop { kill_at, outcome: outcome.clone() });
                    outcome
                }
            }
        };
        outcome.await
    }
}

/// Forgets a stop that is over, unless a shorter one took its place.
struct Over {
    all: Arc<Mutex<HashMap<ContainerId, Stop>>>,
    of: ContainerId,
    kill_at: Instant,
}

impl Drop for Over {
    fn drop(&mut self) {
        let mut all = self.all.lock();
        if all.get(&self.of).is_some_and(|stop| stop.kill_at == self.kill_at) {
            all.remove(&self.of);
        }
    }
}
