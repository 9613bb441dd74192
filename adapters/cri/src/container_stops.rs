//! Stops containers. If several callers stop one container, the shortest grace period applies.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use podwright_model::ids::ContainerId;
use podwright_ports::RuntimeError;
use tokio::runtime::Handle;
use tokio::time::Instant;

use super::client::Client;
use super::tasks::{SharedResult, shared_result};

/// The longest grace period in a request, 100 years. Runtimes convert the period to nanoseconds, and a longer period
/// overflows.
const MAX_GRACE: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);

/// The stop calls that are running, by container.
pub(super) struct ContainerStops {
    client: Client,
    handle: Handle,
    running: Arc<Mutex<HashMap<ContainerId, RunningStop>>>,
}

#[derive(Clone)]
struct RunningStop {
    /// The time at which the runtime kills the container.
    kill_at: Instant,
    result: SharedResult<()>,
}

impl ContainerStops {
    /// Calls will be made from the tokio runtime of `handle`.
    pub(super) fn new(client: Client, handle: Handle) -> Self {
        ContainerStops { client, handle, running: Arc::default() }
    }

    /// Stops a container and waits until it has stopped. The runtime kills the container after `grace`. If another stop of the
    /// container is running and kills it no later, this call waits for that stop. Otherwise it calls the runtime again, which
    /// shortens the grace period.
    ///
    /// Cancel safe: the stop continues.
    pub(super) async fn stop(&self, id: &ContainerId, grace: Duration) -> Result<(), RuntimeError> {
        let grace = grace.min(MAX_GRACE);
        let kill_at = Instant::now() + grace;
        let result = {
            let mut running = self.running.lock();
            match running.get(id).filter(|stop| stop.kill_at <= kill_at) {
                Some(stop) => stop.result.clone(),
                None => {
                    let (all, id_of_task, client) = (Arc::clone(&self.running), id.clone(), self.client.clone());
                    let task = self.handle.spawn(async move {
                        // The guard is created in the task, because a tokio runtime that shuts down drops a new task at once, with the lock held.
                        let entry = RemoveOnDrop { running: all, id: id_of_task, kill_at };
                        client.stop_container(entry.id.as_str().to_owned(), grace).await
                    });
                    let result = shared_result(task);
                    running.insert(id.clone(), RunningStop { kill_at, result: result.clone() });
                    result
                }
            }
        };
        result.await
    }
}

/// Removes the entry of a stop that has ended, unless a stop with a shorter grace period has replaced the entry.
struct RemoveOnDrop {
    running: Arc<Mutex<HashMap<ContainerId, RunningStop>>>,
    id: ContainerId,
    kill_at: Instant,
}

impl Drop for RemoveOnDrop {
    fn drop(&mut self) {
        let mut running = self.running.lock();
        if running.get(&self.id).is_some_and(|stop| stop.kill_at == self.kill_at) {
            running.remove(&self.id);
        }
    }
}
