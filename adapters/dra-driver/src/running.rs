//! A running driver.

use std::future::ready;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use parking_lot::Mutex;
use podwright_dra_api::health::dra_resource_health_server::DraResourceHealthServer;
use podwright_dra_api::registration::registration_server::RegistrationServer;
use podwright_dra_api::{self as dra_api, HEALTH_SERVICE, V1_SERVICE, V1BETA1_SERVICE};
use podwright_ports::ClaimRef;
use podwright_slices::{DriverResources, Owner, SliceEngine, SliceOptions, WriteCounts};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::builder::{Publishing, Settings, SocketSettings};
use super::calls::Calls;
use super::driver::Driver;
use super::error::{Failure, PublishError, StartError};
use super::metadata::{DescribedDevice, MetadataError, MetadataStore};
use super::routes::Routes;
use super::services::{HealthService, PluginService, RegistrationService};
use super::socket::SocketServer;

/// The result of the registration with the node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Registration {
    /// The node has not answered yet.
    #[default]
    Pending,
    /// The node uses the driver.
    Registered,
    /// The node refuses the driver for this reason, and tries again.
    Refused(String),
}

/// A driver that serves the node. When dropped, it ends at once. [`stop`](RunningDriver::stop) lets running calls finish first.
pub struct RunningDriver {
    /// `None` after the stop.
    servers: Mutex<Option<Servers>>,
    name: String,
    publishing: Publishing,
    failed: Arc<dyn Fn(Failure) + Send + Sync>,
    registration: watch::Receiver<Registration>,
    endpoint: PathBuf,
    stop_timeout: Duration,
    metadata: Option<Arc<MetadataStore>>,
}

struct Servers {
    registration: Option<SocketServer>,
    service: Option<SocketServer>,
    /// The running calls to the driver, also those that the node has given up.
    calls: TaskTracker,
    /// Ends the streams of health.
    streams: CancellationToken,
    /// Publishes slices. `None` before the first call of [`publish`](RunningDriver::publish).
    slices: Option<SliceEngine>,
}

/// Starts the service before the registration, so that a node that finds the registration socket can also connect to the service.
pub(super) fn start<D: Driver>(driver: Arc<D>, settings: Settings) -> Result<RunningDriver, StartError> {
    let health = driver.health();
    let services = [
        (settings.versions.v1, V1_SERVICE),
        (settings.versions.v1beta1, V1BETA1_SERVICE),
        (health.is_some(), HEALTH_SERVICE),
    ];
    let services: Vec<_> = services.iter().filter(|(serve, _)| *serve).map(|(_, name)| (*name).to_owned()).collect();
    if services.is_empty() {
        return Err(StartError::NoService);
    }
    let aborted = CancellationToken::new();
    let streams = CancellationToken::new();
    let running = TaskTracker::new();
    let calls = PluginService(Arc::new(Calls {
        driver: driver.clone(),
        name: settings.name.as_str().into(),
        claims: settings.claims,
        lock: settings.lock,
        aborted: aborted.clone(),
        running: running.clone(),
        last_request: AtomicU64::new(0),
        metadata: settings.metadata.clone(),
    }));
    let mut routes = Routes::new(aborted);
    if settings.versions.v1 {
        routes = routes.with(dra_api::v1::dra_plugin_server::DraPluginServer::new(calls.clone()));
    }
    if settings.versions.v1beta1 {
        routes = routes.with(dra_api::v1beta1::dra_plugin_server::DraPluginServer::new(calls));
    }
    if let Some(health) = health {
        routes = routes.with(DraResourceHealthServer::new(HealthService { health, stop: streams.clone() }));
    }
    let service = settings.service.map(|socket| listen(&driver, socket, routes)).transpose()?;

    let (result, registration) = watch::channel(Registration::default());
    let info = RegistrationService::info(settings.name.clone(), settings.endpoint.display().to_string(), services);
    let routes =
        Routes::new(CancellationToken::new()).with(RegistrationServer::new(RegistrationService { info, result }));
    let registrar = settings.registration.map(|socket| listen(&driver, socket, routes)).transpose()?;

    Ok(RunningDriver {
        servers: Mutex::new(Some(Servers { registration: registrar, service, calls: running, streams, slices: None })),
        name: settings.name,
        publishing: settings.publishing,
        failed: Arc::new(move |failure| driver.failed(failure)),
        registration,
        endpoint: settings.endpoint,
        stop_timeout: settings.stop_timeout,
        metadata: settings.metadata,
    })
}

/// Starts one server, and reports its failure to the driver.
fn listen<D: Driver>(driver: &Arc<D>, socket: SocketSettings, routes: Routes) -> Result<SocketServer, StartError> {
    let SocketSettings { path, listen } = socket;
    let (driver, failed_path) = (driver.clone(), path.clone());
    let failed = move |source| driver.failed(Failure::Server { path: failed_path, source });
    SocketServer::start(&path, listen, routes, failed).map_err(|source| StartError::Listen { path, source })
}

impl RunningDriver {
    /// The result of the registration, and its changes.
    pub fn registration(&self) -> watch::Receiver<Registration> {
        self.registration.clone()
    }

    /// The path of the socket on which the node calls the driver.
    pub fn endpoint(&self) -> &std::path::Path {
        &self.endpoint
    }

    /// Replaces the devices that the driver offers. Does not wait for the API server, whose errors go to
    /// [`Driver::failed`](super::Driver::failed). The published slices outlive the driver, and its next start reuses them.
    ///
    /// # Errors
    /// [`PublishError`]. Nothing changes then.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn publish(&self, resources: DriverResources) -> Result<(), PublishError> {
        let mut servers = self.servers.lock();
        let servers = servers.as_mut().ok_or(PublishError::Stopped)?;
        let engine = match &mut servers.slices {
            Some(engine) => engine,
            none => none.insert(self.start_slices()?),
        };
        Ok(engine.update(resources)?)
    }

    fn start_slices(&self) -> Result<SliceEngine, PublishError> {
        let Publishing { client, node, node_uid, only } = &self.publishing;
        let client = client.clone().ok_or(PublishError::NoClient)?;
        let node = node.clone().ok_or(PublishError::NoNode)?;
        let failed = self.failed.clone();
        let options = SliceOptions::new(&self.name, move |error| failed(Failure::Publish(error)));
        let mut options = options.owner(Owner::node(node, node_uid.clone()));
        if let Some(only) = only {
            options = options.single_pool(only);
        }
        Ok(SliceEngine::start(client, options))
    }

    /// Replaces what containers learn about the devices of a request, for example when the network device of a pod has its address.
    /// The containers of the claim see the change. `request` is `REQUEST/SUBREQUEST` for a subrequest. Blocks.
    ///
    /// # Errors
    /// [`MetadataError`]. Nothing changes then, unless the file could not be written completely.
    pub fn update_metadata(
        &self,
        claim: &ClaimRef,
        request: &str,
        devices: Vec<DescribedDevice>,
    ) -> Result<(), MetadataError> {
        self.metadata.as_ref().ok_or(MetadataError::Off)?.update(claim, request, devices)
    }

    /// The numbers of slices that the driver has written so far.
    pub fn published(&self) -> WriteCounts {
        let servers = self.servers.lock();
        let engine = servers.as_ref().and_then(|servers| servers.slices.as_ref());
        engine.map(SliceEngine::counts).unwrap_or_default()
    }

    /// Removes the registration socket and then the socket of the service, and finishes the running calls. This includes calls that the
    /// node has given up. Calls that do not end within the [time limit](super::DriverBuilder::stop_timeout) are aborted.
    /// A second stop does nothing.
    pub async fn stop(&self) {
        let Some(servers) = self.servers.lock().take() else { return };
        if let Some(registration) = servers.registration {
            registration.stop(self.stop_timeout, ready(())).await;
        }
        servers.streams.cancel();
        if let Some(service) = servers.service {
            servers.calls.close();
            // The wait begins when the server has ended: it would also end at a moment without calls before that.
            service.stop(self.stop_timeout, async { servers.calls.wait().await }).await;
        }
        if let Some(slices) = servers.slices {
            slices.stop().await;
        }
    }
}
