//! Builds an engine from its hooks and its optional parts.

use std::fmt;
use std::hash::BuildHasher;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use podwright_metrics::Metrics;

use super::cells::Cells;
use super::hooks::HookCaller;
use super::pool::Pool;
use super::static_names::StaticNames;
use super::{Engine, EngineConfig, EngineInner, Handle, StartEngineError};
use crate::ports::{Clock, EventRecorder, NoRuntimeView, PodSyncer, RuntimeView, TokioClock};
use crate::recorder::Recorder;

/// Builds an [`Engine`]. The defaults suit an embedder that has only a [`PodSyncer`].
#[must_use]
pub struct EngineBuilder {
    hooks: HookCaller,
    config: EngineConfig,
    clock: Option<Arc<dyn Clock>>,
    view: Option<Arc<dyn RuntimeView>>,
    events: Option<Arc<dyn EventRecorder>>,
    metrics: Metrics,
    recorder: Option<Arc<Recorder>>,
}

impl EngineBuilder {
    pub(super) fn new<S: PodSyncer>(syncer: Arc<S>) -> Self {
        EngineBuilder {
            hooks: HookCaller::new(syncer),
            config: EngineConfig::default(),
            clock: None,
            view: None,
            events: None,
            metrics: Metrics::default(),
            recorder: None,
        }
    }

    /// The settings.
    pub fn config(mut self, config: EngineConfig) -> Self {
        self.config = config;
        self
    }

    /// The clock. By default tokio's. Paused time works only with [`Threads::Current`](super::Threads::Current), because each
    /// thread of the engine has a tokio clock of its own.
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = Some(clock);
        self
    }

    /// The last known state of each pod in the container runtime. By default no pod was ever observed.
    pub fn view(mut self, view: Arc<dyn RuntimeView>) -> Self {
        self.view = Some(view);
        self
    }

    /// The recorder of pod events. By default events are dropped.
    pub fn events(mut self, events: Arc<dyn EventRecorder>) -> Self {
        self.events = Some(events);
        self
    }

    /// The metrics to count in. By default new metrics, which are not published.
    pub fn metrics(mut self, metrics: Metrics) -> Self {
        self.metrics = metrics;
        self
    }

    /// The flight recorder of the events that change pods. By default nothing is recorded.
    pub fn recorder(mut self, recorder: Arc<Recorder>) -> Self {
        self.recorder = Some(recorder);
        self
    }

    /// Starts the engine on the threads that its settings name.
    ///
    /// # Errors
    /// [`StartEngineError`] if the threads cannot be started.
    pub fn start(self) -> Result<Engine, StartEngineError> {
        let EngineBuilder { hooks, config, clock, view, events, metrics, recorder } = self;
        let pool = Pool::start(config.threads)?;
        let seed = config.seed.unwrap_or_else(|| foldhash::fast::RandomState::default().hash_one(0));
        let inner = Arc::new(EngineInner {
            cells: Cells::new(seed),
            names: StaticNames::default(),
            synced: AtomicBool::new(false),
            closing: AtomicBool::new(false),
            clock: clock.unwrap_or_else(|| Arc::new(TokioClock::new())),
            view: view.unwrap_or_else(|| Arc::new(NoRuntimeView)),
            events,
            metrics,
            recorder,
            config,
            seed,
            pool,
            hooks,
        });
        inner.pool.start_schedulers(&inner);
        Ok(Engine { handle: Arc::new(Handle { inner }) })
    }
}

impl fmt::Debug for EngineBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EngineBuilder").field("config", &self.config).finish_non_exhaustive()
    }
}
