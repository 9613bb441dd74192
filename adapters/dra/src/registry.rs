//! The DRA drivers that are registered, and a connection to each of their instances.
//!
//! A driver has several instances while it is updated: the new one registers before the old one deregisters. Calls go to the newest
//! instance that is connected. [`Drivers`] is published after every change.

mod instance;
mod state;

use std::path::Path;
use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use podwright_model::ids::DriverName;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{Instrument, info_span};

use super::plugins::{HandlerError, Plugin, PluginHandler};

pub(super) use instance::CurrentChannel;
pub use instance::Instance;
pub(super) use state::NewConnections;
pub use state::{AlreadyRegistered, ApiVersion, Drivers, InstanceState, Services, UnsupportedDriver};

/// The registered drivers. The handler of plugins of the type `DRAPlugin`.
#[derive(Debug)]
pub(super) struct Registry {
    drivers: watch::Sender<Drivers>,
    tasks: TaskTracker,
    stop: CancellationToken,
}

impl Registry {
    /// A registry without drivers. All connections close when `stop` is cancelled.
    pub(super) fn new(tasks: TaskTracker, stop: CancellationToken) -> Self {
        Registry { drivers: watch::Sender::default(), tasks, stop }
    }

    /// The drivers and their changes.
    pub(super) fn subscribe(&self) -> watch::Receiver<Drivers> {
        self.drivers.subscribe()
    }

    /// The drivers now.
    pub(super) fn drivers(&self) -> Drivers {
        self.drivers.borrow().clone()
    }

    /// The instance for a call. `None` if the driver is not registered.
    pub(super) fn choose(&self, driver: &DriverName) -> Option<Arc<Instance>> {
        self.drivers.borrow().choose(driver).cloned()
    }

    /// Adds an instance and begins to connect to it. Does not wait for the connection.
    fn add(&self, plugin: &Plugin) -> Result<(), HandlerError> {
        let services = Services::of(&plugin.versions)?;
        let driver = DriverName::from(&*plugin.name);
        let instance = Arc::new(Instance::new(driver, plugin.endpoint.clone(), services, self.stop.child_token()));
        let mut result = Ok(());
        self.drivers.send_if_modified(|drivers| {
            result = drivers.add(instance.clone());
            result.is_ok()
        });
        result?;
        let span = info_span!("driver", name = plugin.name, endpoint = %plugin.endpoint.display());
        let drivers = self.drivers.clone();
        let work = async move {
            let report = |is_connected| {
                drivers.send_if_modified(|drivers| drivers.set_connected(&instance, is_connected));
            };
            instance.keep_connected(report).await;
        };
        self.tasks.spawn(work.instrument(span));
        Ok(())
    }

    /// Removes an instance and closes its connection. Its calls and streams fail.
    fn remove(&self, driver: &DriverName, endpoint: &Path) {
        let mut removed = None;
        self.drivers.send_if_modified(|drivers| {
            removed = drivers.remove(driver, endpoint);
            removed.is_some()
        });
        // This comes after the lock of the drivers is released, because cancelling wakes other tasks.
        if let Some(instance) = removed {
            instance.remove();
        }
    }
}

impl PluginHandler for Registry {
    fn validate(&self, plugin: &Plugin) -> Result<(), HandlerError> {
        state::check_name(&plugin.name)?;
        Services::of(&plugin.versions)?;
        Ok(())
    }

    fn register<'a>(&'a self, plugin: &'a Plugin) -> BoxFuture<'a, Result<(), HandlerError>> {
        std::future::ready(self.add(plugin)).boxed()
    }

    fn deregister<'a>(&'a self, plugin: &'a Plugin) -> BoxFuture<'a, ()> {
        self.remove(&DriverName::from(&*plugin.name), &plugin.endpoint);
        std::future::ready(()).boxed()
    }
}
