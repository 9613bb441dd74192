//! The plugins of the node, above all the drivers of dynamic resource allocation (DRA).
//!
//! A driver puts a registration socket into the registry directory (`<root>/plugins_registry`). [`DraPlugins`] finds the socket,
//! asks the driver for its name, its endpoint and its services, and connects to the endpoint. From then on, claims are prepared and
//! unprepared through [`DraPlugins::drivers`].
//!
//! ```text
//!   plugins    registers the plugins behind the registration sockets with the handlers of their types
//!   registry   the handler for DRA drivers: their instances, each with one connection
//!   client     ClaimDrivers: the calls to the instances
//!   health     the streams of device health, one per instance
//!   node_slices  deletes the slices of drivers that are gone, and publishes for drivers without access to the API server
//! ```
//!
//! For plugins of other types, the embedder provides a [`PluginHandler`].
//!
//! ```no_run
//! use podwright_dra::{DraPlugins, PluginsConfig};
//! use podwright_metrics::Metrics;
//! use tokio_util::sync::CancellationToken;
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let stop = CancellationToken::new();
//! let plugins = DraPlugins::start(PluginsConfig::new("/var/lib/kubelet/plugins_registry"), &Metrics::new(), &stop)?;
//! plugins.on_usable(|driver| println!("{driver} prepares claims"));
//! // A node prepares and unprepares claims through this port.
//! let _port = plugins.drivers();
//! tokio::time::sleep(std::time::Duration::from_secs(60)).await;
//! stop.cancel();
//! plugins.stopped().await;
//! # Ok(())
//! # }
//! ```
//!
//! # Parts
//!
//! - [`DraPlugins`]: the plugins, with the settings of [`PluginsConfig`]; [`SlicesConfig`] has those of the slices.
//! - [`Plugin`] and [`PluginSocket`]: what a socket announces, and what became of its registration.
//! - [`Drivers`], [`Instance`] and [`DriverState`]: the drivers now, for callers and for operators.
//! - [`CallError`] and [`ConnectError`]: why a driver did not do what it was asked for.
//!
//! # Arrows
//!
//! The crate uses the values, the ports, the metrics and `podwright-parts`, `podwright-dra-api` and `podwright-grpc-socket` for the calls,
//! and `podwright-kube-api`, `podwright-slices` and `podwright-work-loop` for the slices. It uses neither the engine nor the node. The
//! agent uses it.

mod answers;
mod client;
mod driver_state;
mod health;
mod node_slices;
mod plugins;
mod registry;
mod transport;
mod trust;

use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use podwright_dra_api::PLUGIN_TYPE;
use podwright_metrics::Metrics;
use podwright_model::ids::DriverName;
use podwright_parts::{Parts, StoppedPart};
use podwright_ports::{ClaimDrivers, DeviceHealthSink};
use tokio::sync::watch;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use self::client::DriverClient;
use self::health::HealthMonitor;
use self::plugins::{Handlers, Manager, RegistrationLimits};
use self::registry::{NewConnections, Registry};

pub use self::client::CallError;
pub use self::driver_state::{DriverState, HealthStreams, NodeResourcesStream, SliceDeletion};
pub use self::node_slices::{SlicesConfig, WIPE_DELAY};
pub use self::plugins::{HandlerError, Plugin, PluginFailure, PluginHandler, PluginSocket};
pub use self::registry::{
    AlreadyRegistered, ApiVersion, Drivers, Instance, InstanceState, Services, UnsupportedDriver,
};
pub use self::transport::ConnectError;
pub use self::trust::{Distrust, UntrustedSocket};

/// The time limit of a call to a driver (upstream `PluginClientTimeout`, kubelet 1.36).
pub const CALL_LIMIT: Duration = Duration::from_secs(45);
/// The default time limit of the call `GetInfo` to a plugin (upstream `operation_generator.go`, kubelet 1.36).
const INFO_LIMIT: Duration = Duration::from_secs(1);
/// The default time limit of the call that notifies a plugin of the result of its registration (upstream
/// `operation_generator.go`, kubelet 1.36).
const NOTIFY_LIMIT: Duration = Duration::from_secs(5);
/// The longest text of a plugin that errors and logs contain, in bytes. The message of an event has at most 1024.
const MAX_TEXT: usize = 1024;

/// The settings of [`DraPlugins`].
#[non_exhaustive]
pub struct PluginsConfig {
    /// The absolute path of the registry directory. Created if it is missing.
    pub registry_dir: PathBuf,
    /// The time limit of a call to a driver.
    pub call_limit: Duration,
    /// The time limit of `GetInfo`, the first call to a plugin. The default is 1 s, as in a kubelet.
    pub info_limit: Duration,
    /// The time limit of the call that notifies a plugin of the result of its registration. The default is 5 s, as in a kubelet.
    pub notify_limit: Duration,
    /// Handlers for plugins of other types than `DRAPlugin`, by type.
    pub handlers: Vec<(String, Arc<dyn PluginHandler>)>,
}

impl PluginsConfig {
    /// Settings with the default time limits, such as [`CALL_LIMIT`], and no further handlers.
    pub fn new(registry_dir: impl Into<PathBuf>) -> Self {
        PluginsConfig {
            registry_dir: registry_dir.into(),
            call_limit: CALL_LIMIT,
            info_limit: INFO_LIMIT,
            notify_limit: NOTIFY_LIMIT,
            handlers: Vec::new(),
        }
    }
}

impl fmt::Debug for PluginsConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PluginsConfig").field("registry_dir", &self.registry_dir).finish_non_exhaustive()
    }
}

/// The plugins cannot be started with these settings.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StartPluginsError {
    /// The registry directory is not an absolute path.
    #[error(
        "the registry directory {0:?} is not an absolute path: name it from the root, such as /var/lib/kubelet/plugins_registry"
    )]
    RelativeDirectory(PathBuf),
    /// Two handlers are for the same type.
    #[error("plugins of the type {0:?} have two handlers: remove one of them from the settings")]
    SecondHandler(String),
}

/// Finds, registers and calls plugins until it is dropped or its token is cancelled.
pub struct DraPlugins {
    manager: Arc<Manager>,
    registry: Arc<Registry>,
    client: Arc<DriverClient>,
    /// Set when the health of devices is watched.
    health: OnceLock<Arc<HealthMonitor>>,
    /// The work on single sockets and instances, which ends.
    tasks: TaskTracker,
    /// What works as long as the plugins.
    parts: Parts,
    slice_metrics: (podwright_metrics::SliceMetrics, podwright_metrics::WorkQueueMetrics),
    slices: node_slices::SlicesReport,
    _stop: DropGuard,
}

impl fmt::Debug for DraPlugins {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("DraPlugins").field(&self.sockets()).finish()
    }
}

impl DraPlugins {
    /// Begins to watch the registry directory. Must be called in a tokio runtime.
    ///
    /// # Errors
    /// [`StartPluginsError`] if the settings are not valid. A directory that cannot be created or watched is no error here: the
    /// watcher tries again, and [`problem`](DraPlugins::problem) returns the reason until it succeeds.
    pub fn start(
        config: PluginsConfig,
        metrics: &Metrics,
        stop: &CancellationToken,
    ) -> Result<Arc<Self>, StartPluginsError> {
        let PluginsConfig { registry_dir, call_limit, info_limit, notify_limit, handlers } = config;
        if !registry_dir.is_absolute() {
            return Err(StartPluginsError::RelativeDirectory(registry_dir));
        }
        let (tasks, stop) = (TaskTracker::new(), stop.child_token());
        let registry = Arc::new(Registry::new(tasks.clone(), stop.clone()));
        let mut by_type = Handlers::from([(PLUGIN_TYPE.to_owned(), registry.clone() as Arc<dyn PluginHandler>)]);
        for (kind, handler) in handlers {
            if by_type.contains_key(&kind) {
                return Err(StartPluginsError::SecondHandler(kind));
            }
            by_type.insert(kind, handler);
        }
        let client = DriverClient { registry: registry.clone(), metrics: metrics.dra.clone(), limit: call_limit };
        let counted = (metrics.plugins.clone(), metrics.actors.clone());
        let limits = RegistrationLimits { info: info_limit, notify: notify_limit };
        let parts = Parts::new(metrics.actors.panics().clone(), stop.clone());
        let manager = Manager::start(registry_dir, by_type, limits, counted, tasks.clone(), &parts);
        Ok(Arc::new(DraPlugins {
            manager,
            registry,
            client: Arc::new(client),
            health: OnceLock::new(),
            tasks,
            parts,
            slice_metrics: (metrics.slices.clone(), metrics.work_queues.clone()),
            slices: Default::default(),
            _stop: stop.drop_guard(),
        }))
    }

    /// The drivers, to prepare and unprepare claims.
    pub fn drivers(&self) -> Arc<dyn ClaimDrivers> {
        self.client.clone()
    }

    /// Reports the health of all devices to a sink from now on. Must be called once, in a tokio runtime.
    pub fn watch_health(&self, sink: Arc<dyn DeviceHealthSink>) {
        let monitor = Arc::new(HealthMonitor::new(sink, self.parts.stop().clone()));
        let _first = self.health.set(monitor.clone());
        let drivers = self.subscribe();
        self.parts.spawn("device_health", move || monitor.clone().run(drivers.clone()));
    }

    /// Deletes the slices of drivers that are not connected, and publishes for drivers that offer node resources, from now on. Without
    /// this call, no slice is read or written. Must be called once, in a tokio runtime.
    pub fn manage_slices(&self, config: SlicesConfig) {
        let (drivers, metrics, report) = (self.subscribe(), self.slice_metrics.clone(), self.slices.clone());
        let (stop, mut startup_wipe_delay) = (self.parts.stop().clone(), config.startup_wipe_delay);
        self.parts.spawn("node_slices", move || {
            // After a panic, a driver that is not connected has the time of one whose connection has ended.
            let startup_wipe_delay = std::mem::replace(&mut startup_wipe_delay, config.wipe_delay);
            let (client, node) = (config.client.clone(), config.node.clone());
            let config = SlicesConfig { client, node, wipe_delay: config.wipe_delay, startup_wipe_delay };
            node_slices::run(config, drivers.clone(), metrics.clone(), report.clone(), stop.clone())
        });
    }

    /// Calls this with a driver whenever one of its instances has connected. Must be called in a
    /// tokio runtime.
    pub fn on_usable(&self, report: impl Fn(&DriverName) + Send + Sync + 'static) {
        let (drivers, report) = (self.subscribe(), Arc::new(report));
        self.parts.spawn("usable_drivers", move || {
            let (mut drivers, report) = (drivers.clone(), report.clone());
            async move {
                let mut new = NewConnections::default();
                loop {
                    let connected = new.in_snapshot(&drivers.borrow_and_update());
                    connected.iter().for_each(&*report);
                    if drivers.changed().await.is_err() {
                        return;
                    }
                }
            }
        });
    }

    /// The registered drivers now.
    pub fn registered(&self) -> Drivers {
        self.registry.drivers()
    }

    /// The state of each driver that is registered, or whose slices will be deleted, in the order of their names.
    pub fn states(&self) -> Vec<DriverState> {
        let drivers = self.registered();
        let mut slices = self.slices.drivers();
        for name in drivers.names() {
            slices.entry(name.clone()).or_insert((None, None));
        }
        let state = |(name, (deletion, node_resources)): (DriverName, _)| {
            let instances = drivers.instances(&name);
            DriverState {
                instances: instances.len(),
                connected: instances.iter().filter(|state| state.is_connected).count(),
                health: self.health.get().filter(|_| !instances.is_empty()).map(|health| health.streams(&name)),
                node_resources,
                deletion,
                name,
            }
        };
        slices.into_iter().map(state).collect()
    }

    /// The deletion of the slices that an earlier agent left. `None` once it has succeeded, and without an API server.
    pub fn startup_deletion(&self) -> Option<SliceDeletion> {
        self.slices.startup_deletion()
    }

    /// The registered drivers and their changes: drivers and instances that are added or removed, and connections that begin or
    /// end. A receiver sees the newest state, and may miss states in between.
    pub fn subscribe(&self) -> watch::Receiver<Drivers> {
        self.registry.subscribe()
    }

    /// The registration sockets, each with its plugin and its last failure.
    pub fn sockets(&self) -> Vec<PluginSocket> {
        self.manager.sockets()
    }

    /// The parts that do not run, although nobody has stopped them. A part that panicked starts again after 1 to 10 s.
    pub fn stopped_parts(&self) -> Vec<StoppedPart> {
        self.parts.stopped()
    }

    /// Why the registry directory is not watched. `None` if it is.
    pub fn problem(&self) -> Option<String> {
        self.manager.problem()
    }

    /// Waits until all tasks have ended and all connections are closed, after the token given to [`start`](DraPlugins::start) was
    /// cancelled. Cancel safe.
    pub async fn stopped(&self) {
        self.parts.ended().await;
        self.tasks.close();
        self.tasks.wait().await;
    }
}

/// What the fuzz targets call. Not a part of the API: it may change in any release.
#[doc(hidden)]
pub mod testing {
    pub use crate::answers::bytes as answers;
    pub use crate::node_slices::read_node_resources;
}
