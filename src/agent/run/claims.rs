//! ResourceClaims and the drivers of their devices.

use std::path::Path;
use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use crate::adapters::dra::{DraPlugins, PluginsConfig, SlicesConfig, StartPluginsError};
use podwright_actors::claims::{ClaimFeatures, ClaimManager, ClaimPorts, OpenClaimsError};
use podwright_checkpoint::{ClaimCheckpoint, HealthCheckpoint};
use podwright_metrics::Metrics;
use podwright_ports::{ClaimApi, Clock};

/// The directory below the root directory in which drivers register.
const REGISTRY: &str = "plugins_registry";

/// Why the agent cannot start to handle ResourceClaims.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ClaimsStartError {
    #[error("cannot open the claims that an earlier agent recorded")]
    Open(#[from] OpenClaimsError),
    #[error(transparent)]
    Plugins(#[from] StartPluginsError),
    #[error("cannot make the root directory absolute")]
    Root(#[from] std::io::Error),
}

/// What an API server does for claims and drivers.
#[derive(Default)]
pub(super) struct ClaimServer {
    /// Reads claims.
    pub(super) claims: Option<Arc<dyn ClaimApi>>,
    /// Where the slices of the node are.
    pub(super) slices: Option<SlicesConfig>,
}

/// Reads the file of claims, and begins to watch for drivers. Both end when `stop` fires. Without an API server, pods with claims
/// are refused, and slices are left alone.
pub(super) fn start(
    root: &Path,
    features: ClaimFeatures,
    server: ClaimServer,
    clock: Arc<dyn Clock>,
    metrics: &Metrics,
    stop: &CancellationToken,
) -> Result<(Arc<ClaimManager>, Arc<DraPlugins>), ClaimsStartError> {
    let root = std::path::absolute(root)?;
    let plugins = DraPlugins::start(PluginsConfig::new(root.join(REGISTRY)), metrics, stop)?;
    let ports = ClaimPorts {
        api: server.claims,
        drivers: plugins.drivers(),
        checkpoint: Arc::new(ClaimCheckpoint::new(root.clone())),
        clock,
        metrics: metrics.dra.clone(),
    };
    let (manager, tasks) = ClaimManager::open(ports, features)?;
    let tasks = tasks.health_file(&HealthCheckpoint::new(root));
    if manager.features().health {
        plugins.watch_health(manager.clone());
    }
    let waiting = manager.clone();
    plugins.on_usable(move |driver| waiting.driver_usable(driver));
    if let Some(slices) = server.slices {
        plugins.manage_slices(slices);
    }
    let (stop, connected) = (stop.clone(), plugins.clone());
    actix::spawn(async move {
        tasks.run(stop).await;
        // The drivers stay connected until the agent ends, and no task of theirs outlives this one.
        connected.stopped().await;
    });
    Ok((manager, plugins))
}
