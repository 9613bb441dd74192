//! Performs what the [core](super::state) decides: each operation is a task, and its result is the next event.

use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use parking_lot::Mutex;
use podwright_metrics::{ActorsMetrics, PluginMetrics};
use podwright_model::text::{error_text, plain};
use podwright_model::time::Time;
use podwright_parts::Parts;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{Instrument, debug_span, info, warn};

use super::registration::{deregister, register};
use super::state::{Event, Operation, Sockets, Work};
use super::watcher::{CHECK_PERIOD, RETRY_PERIOD, WatchError, Watcher};
use super::{Plugin, PluginFailure, PluginHandler, PluginSocket};
use crate::MAX_TEXT;

/// The handlers, by the type of their plugins.
pub(crate) type Handlers = BTreeMap<String, Arc<dyn PluginHandler>>;

/// The time limits of the calls of a registration.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RegistrationLimits {
    pub(crate) info: Duration,
    pub(crate) notify: Duration,
}

/// Keeps the registered plugins in step with the sockets in the registry directory.
pub(crate) struct Manager {
    dir: PathBuf,
    pub(super) handlers: Handlers,
    pub(super) limits: RegistrationLimits,
    sockets: Mutex<Sockets>,
    /// Why the registry directory is not watched.
    problem: Mutex<Option<String>>,
    /// Notified when the next due time may have changed.
    rescheduled: Notify,
    started: Instant,
    metrics: PluginMetrics,
    actors: ActorsMetrics,
    tasks: TaskTracker,
    stop: CancellationToken,
}

impl Manager {
    /// Begins to watch, in two parts. Must be called in a tokio runtime. The tasks end with the parts.
    pub(crate) fn start(
        dir: PathBuf,
        handlers: Handlers,
        limits: RegistrationLimits,
        metrics: (PluginMetrics, ActorsMetrics),
        tasks: TaskTracker,
        parts: &Parts,
    ) -> Arc<Self> {
        let (metrics, actors) = metrics;
        let manager = Arc::new(Manager {
            dir,
            handlers,
            limits,
            sockets: Mutex::default(),
            problem: Mutex::new(Some("the registry directory is not watched yet".to_owned())),
            rescheduled: Notify::new(),
            started: Instant::now(),
            metrics,
            actors,
            tasks,
            stop: parts.stop().clone(),
        });
        let (watching, waking) = (manager.clone(), manager.clone());
        parts.spawn("plugin_directory", move || watching.clone().watch());
        parts.spawn("plugin_retries", move || waking.clone().wake());
        manager
    }

    /// The paths of the registry directory, for reports.
    pub(crate) fn sockets(&self) -> Vec<PluginSocket> {
        let now = self.now();
        let sockets = self.sockets.lock();
        let report = sockets.iter().map(|(path, socket)| PluginSocket {
            path: path.to_owned(),
            is_desired: socket.desired.is_some(),
            registered: socket.registered.as_ref().map(|(_, plugin)| plugin.clone()),
            failure: match &socket.work {
                Work::Delayed { until, failures, error } => {
                    Some(PluginFailure { error: error.clone(), tries: *failures, retry_in: until.since(now) })
                }
                Work::Idle | Work::Running { .. } => None,
            },
        });
        report.collect()
    }

    /// Why the registry directory is not watched. `None` if it is.
    pub(crate) fn problem(&self) -> Option<String> {
        self.problem.lock().clone()
    }

    /// Passes an event to the core, and starts the operations that it requests.
    pub(super) fn drive(self: &Arc<Self>, event: Event) {
        if self.stop.is_cancelled() {
            return;
        }
        let operations = {
            let mut sockets = self.sockets.lock();
            let before: Vec<PathBuf> = sockets.iter().map(|(path, _)| path.to_owned()).collect();
            let operations = sockets.step(event, self.now());
            self.count(before, &sockets);
            operations
        };
        self.rescheduled.notify_one();
        for operation in operations {
            self.perform(operation);
        }
    }

    /// Updates the metrics of the paths that are known, and of those that were known `before`.
    fn count(&self, before: Vec<PathBuf>, sockets: &Sockets) {
        for (path, socket) in sockets.iter() {
            self.metrics.set(&path.to_string_lossy(), socket.desired.is_some(), socket.registered.is_some());
        }
        for gone in before.iter().filter(|path| !sockets.contains(path)) {
            self.metrics.set(&gone.to_string_lossy(), false, false);
        }
    }

    fn perform(self: &Arc<Self>, operation: Operation) {
        let manager = self.clone();
        self.spawn(async move {
            let path = operation.path().to_owned();
            let span = debug_span!("plugin", socket = %path.display());
            let work = AssertUnwindSafe(manager.run(operation)).catch_unwind().instrument(span);
            let result = work.await.unwrap_or_else(|_| {
                manager.actors.hook_panicked();
                Err("the operation panicked".to_owned())
            });
            manager.drive(Event::Done(path, result));
        });
    }

    async fn run(self: &Arc<Self>, operation: Operation) -> Result<(), String> {
        let result = match &operation {
            Operation::Register(path) => register(self, path).await,
            Operation::Deregister(_, plugin) => deregister(self, plugin).await,
        };
        let path = operation.path().display();
        match (&operation, result) {
            (Operation::Register(_), Ok(plugin)) => {
                info!(socket = %path, plugin = plugin.name, endpoint = %plugin.endpoint.display(), "registered a plugin");
                Ok(())
            }
            (Operation::Deregister(..), Ok(plugin)) => {
                info!(socket = %path, plugin = plugin.name, "deregistered a plugin");
                Ok(())
            }
            (_, Err(error)) => {
                let text = plain(&error_text(&error), MAX_TEXT).into_owned();
                warn!(socket = %path, error = text, "cannot register or deregister a plugin");
                Err(text)
            }
        }
    }

    /// Records that the validated plugin of a running registration is about to be registered.
    pub(super) fn entered(self: &Arc<Self>, path: &Path, plugin: &Plugin) {
        self.drive(Event::Entered(path.to_owned(), plugin.clone()));
    }

    /// Records that the plugin of a running registration is not registered any more.
    pub(super) fn left(self: &Arc<Self>, path: &Path) {
        self.drive(Event::Left(path.to_owned()));
    }

    /// Counts a handler that panicked.
    pub(super) fn handler_panicked(&self) {
        self.actors.hook_panicked();
    }

    /// Watches the registry directory, and passes each listing to the core.
    async fn watch(self: Arc<Self>) {
        let mut watcher = Watcher::new(self.dir.clone());
        loop {
            let (listing, changes) = watcher.list().await;
            watcher = changes;
            let problem = match listing {
                Ok((listing, problem)) => {
                    self.drive(Event::Listed(listing));
                    problem
                }
                Err(error) => Some(error),
            };
            let is_watched = problem.is_none();
            self.report(problem);
            let period = if is_watched { CHECK_PERIOD } else { RETRY_PERIOD };
            tokio::select! {
                () = watcher.changed(), if is_watched => {}
                () = sleep(period) => {}
            }
        }
    }

    /// Records why the directory is not watched. Each problem is logged once.
    fn report(&self, problem: Option<WatchError>) {
        let text = problem.map(|error| plain(&error_text(&error), MAX_TEXT).into_owned());
        let mut last = self.problem.lock();
        if let Some(text) = text.as_ref().filter(|text| last.as_ref() != Some(text)) {
            warn!(error = text, "cannot watch the registry directory of plugins, trying again");
        }
        *last = text;
    }

    /// Tells the core when a delay may have passed.
    async fn wake(self: Arc<Self>) {
        loop {
            let due = self.sockets.lock().next_due().map(|due| due.since(self.now()));
            tokio::select! {
                () = self.rescheduled.notified() => {}
                () = sleep(due.unwrap_or_default()), if due.is_some() => self.drive(Event::Due),
            }
        }
    }

    /// Runs a task until it ends or the manager stops.
    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let stop = self.stop.clone();
        self.tasks.spawn(async move {
            stop.run_until_cancelled(task).await;
        });
    }

    fn now(&self) -> Time {
        Time::ZERO + self.started.elapsed()
    }
}
