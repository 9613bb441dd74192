//! Plugins of the node: finds their registration sockets, and registers and deregisters them with the handler of their type.
//!
//! ```text
//!   registry directory --inotify--> Watcher --Listing--> Sockets::step --> operations, one per path at a time
//!                                                            ^                |
//!                                                            `--Entered, Done-'
//! ```
//!
//! A plugin is registered as long as its socket is in the registry directory. A plugin whose connection breaks stays registered.

mod manager;
mod registration;
mod state;
mod watcher;

use std::error::Error;
use std::path::PathBuf;
use std::time::Duration;

use futures_util::future::BoxFuture;

pub(super) use manager::{Handlers, Manager, RegistrationLimits};

/// A plugin, as it announced itself through its registration socket.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Plugin {
    /// The type, such as `DRAPlugin`.
    pub kind: String,
    /// The name of the driver.
    pub name: String,
    /// The path of the socket that serves the plugin. It is the registration socket if the plugin announced no path.
    pub endpoint: PathBuf,
    /// The services that the plugin supports.
    pub versions: Vec<String>,
}

/// Why a handler refuses a plugin. The plugin gets the text.
pub type HandlerError = Box<dyn Error + Send + Sync>;

/// Handles the plugins of one type.
///
/// For each registration socket, a handler gets `validate`, then `register`, then `deregister`, and never a call before the
/// previous one has returned. Calls for different sockets may overlap, even if the sockets have one plugin name. A call that
/// panics has failed. A call that does not return delays no other socket.
pub trait PluginHandler: Send + Sync + 'static {
    /// Checks what a plugin announces. Must not wait.
    ///
    /// # Errors
    /// The plugin cannot be used. It is tried again after a backoff.
    fn validate(&self, plugin: &Plugin) -> Result<(), HandlerError>;

    /// Begins to use a plugin.
    ///
    /// # Errors
    /// The plugin is not used. The registration is tried again from its start after a backoff.
    fn register<'a>(&'a self, plugin: &'a Plugin) -> BoxFuture<'a, Result<(), HandlerError>>;

    /// Stops using a plugin that was registered.
    fn deregister<'a>(&'a self, plugin: &'a Plugin) -> BoxFuture<'a, ()>;
}

/// The state of a path in the registry directory.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PluginSocket {
    /// The path of the registration socket.
    pub path: PathBuf,
    /// Whether a socket exists there.
    pub is_desired: bool,
    /// The plugin that is registered from there.
    pub registered: Option<Plugin>,
    /// The failures in a row, if the last operation on the socket failed.
    pub failure: Option<PluginFailure>,
}

/// The failures of a registration socket.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PluginFailure {
    /// The error of the last operation.
    pub error: String,
    /// The number of failures in a row.
    pub tries: u32,
    /// The time until the next try.
    pub retry_in: Duration,
}
