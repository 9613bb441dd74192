//! Registers a plugin: reads its information through its registration socket, passes it to its handler, and notifies it of the
//! result.

use std::panic::AssertUnwindSafe;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use podwright_dra_api::registration::registration_client::RegistrationClient;
use podwright_dra_api::registration::{InfoRequest, RegistrationStatus};
use podwright_grpc_socket::code_name;
use podwright_model::text::{error_text, plain};
use tokio::time::timeout;
use tonic::Status;
use tonic::transport::Channel;
use tracing::debug;

use super::manager::Manager;
use super::{HandlerError, Plugin, PluginHandler};
use crate::MAX_TEXT;
use crate::answers::{InvalidPlugin, plugin};
use crate::transport::{ConnectError, Connection};

/// The time limit for connecting to a plugin (upstream `dialTimeoutDuration`, kubelet 1.36).
const CONNECT_LIMIT: Duration = Duration::from_secs(10);
/// The longest answer that the agent accepts, in bytes.
const MAX_ANSWER: usize = 64 << 10;

/// Why a plugin could not be registered or deregistered.
#[derive(Debug, thiserror::Error)]
pub(super) enum OperationError {
    #[error("cannot connect to the plugin")]
    Connect(#[source] ConnectError),
    #[error("the plugin did not answer {call} within {limit:?}")]
    NoAnswer { call: &'static str, limit: Duration },
    #[error("the plugin answered {call} with {code}: {text}")]
    Call { call: &'static str, code: &'static str, text: String },
    #[error("the information of the plugin is not valid")]
    Invalid(#[source] InvalidPlugin),
    #[error("no handler for plugins of the type {kind:?}: the node accepts {known:?}")]
    UnknownType { kind: String, known: Vec<String> },
    #[error("the plugin was refused")]
    Refused(#[source] HandlerError),
    #[error("the handler of the plugin panicked")]
    Panicked,
}

/// Registers the plugin behind a socket. Each try begins with a new connection.
pub(super) async fn register(manager: &Arc<Manager>, path: &Path) -> Result<Plugin, OperationError> {
    let connection = match timeout(CONNECT_LIMIT, Connection::open(path)).await {
        Ok(connection) => connection.map_err(OperationError::Connect)?,
        Err(_) => return Err(OperationError::NoAnswer { call: "connect", limit: CONNECT_LIMIT }),
    };
    let mut client = RegistrationClient::new(connection.channel()).max_decoding_message_size(MAX_ANSWER);
    let info = client.get_info(InfoRequest {});
    let info = within("GetInfo", manager.limits.info, info).await?.into_inner();
    let accepted = async {
        let plugin = plugin(info, path).map_err(OperationError::Invalid)?;
        let handler = handler(manager, &plugin)?;
        guarded(manager, async { handler.validate(&plugin) }).await?.map_err(OperationError::Refused)?;
        // From now on, a removal of the socket becomes a deregistration.
        manager.entered(path, &plugin);
        guarded(manager, async { handler.register(&plugin).await }).await?.map_err(OperationError::Refused)?;
        Ok((plugin, handler))
    };
    let (plugin, handler) = match accepted.await {
        Ok(accepted) => accepted,
        Err(error) => {
            manager.left(path);
            let text = plain(&error_text(&error), MAX_TEXT).into_owned();
            let status = RegistrationStatus { plugin_registered: false, error: text };
            // Plugins often answer a negative notification with an error.
            if let Err(error) = notify(manager, &mut client, status).await {
                debug!(error = error_text(&error), "a plugin refused its negative notification");
            }
            return Err(error);
        }
    };
    let status = RegistrationStatus { plugin_registered: true, error: String::new() };
    if let Err(error) = notify(manager, &mut client, status).await {
        manager.left(path);
        guarded(manager, async { handler.deregister(&plugin).await }).await?;
        return Err(error);
    }
    Ok(plugin)
}

/// Deregisters a plugin. The core has already removed it from the registered plugins.
pub(super) async fn deregister(manager: &Arc<Manager>, plugin: &Plugin) -> Result<Plugin, OperationError> {
    let handler = handler(manager, plugin)?;
    guarded(manager, async { handler.deregister(plugin).await }).await?;
    Ok(plugin.clone())
}

fn handler(manager: &Manager, plugin: &Plugin) -> Result<Arc<dyn PluginHandler>, OperationError> {
    manager.handlers.get(&plugin.kind).cloned().ok_or_else(|| OperationError::UnknownType {
        kind: plugin.kind.clone(),
        known: manager.handlers.keys().cloned().collect(),
    })
}

async fn notify(
    manager: &Manager,
    client: &mut RegistrationClient<Channel>,
    status: RegistrationStatus,
) -> Result<(), OperationError> {
    let notified = client.notify_registration_status(status);
    within("NotifyRegistrationStatus", manager.limits.notify, notified).await.map(|_| ())
}

/// Waits for the answer to a call, at most `limit`.
async fn within<T>(
    call: &'static str,
    limit: Duration,
    answer: impl Future<Output = Result<T, Status>>,
) -> Result<T, OperationError> {
    let answer = timeout(limit, answer).await.map_err(|_| OperationError::NoAnswer { call, limit })?;
    answer.map_err(|status| {
        let text = plain(status.message(), MAX_TEXT).into_owned();
        OperationError::Call { call, code: code_name(status.code()), text }
    })
}

/// The result of a handler's call; an error if the handler panics. The call must be inside of the future, because a handler may
/// also panic before it returns one.
async fn guarded<T>(manager: &Manager, call: impl Future<Output = T>) -> Result<T, OperationError> {
    AssertUnwindSafe(call).catch_unwind().await.map_err(|_| {
        manager.handler_panicked();
        OperationError::Panicked
    })
}
