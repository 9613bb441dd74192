//! A DRA driver with real sockets. It does what a test sets, and records what the node asks of it.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use futures_util::stream::{self, StreamExt};
use parking_lot::Mutex;
use podwright_dra_api::health::dra_resource_health_server::{DraResourceHealth, DraResourceHealthServer};
use podwright_dra_api::health::{NodeWatchResourcesRequest, NodeWatchResourcesResponse};
use podwright_dra_api::node_resources::node_resources_server::{NodeResources, NodeResourcesServer};
use podwright_dra_api::node_resources::{NodeListAndWatchResourcesRequest, NodeListAndWatchResourcesResponse};
use podwright_dra_api::registration::registration_server::{Registration, RegistrationServer};
use podwright_dra_api::registration::{InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse};
use podwright_dra_api::v1::dra_plugin_server::{DraPlugin, DraPluginServer};
use podwright_dra_api::v1beta1::dra_plugin_server as v1beta1_server;
use podwright_dra_api::{HEALTH_SERVICE, PLUGIN_TYPE, V1_SERVICE, V1BETA1_SERVICE, v1, v1beta1};
use podwright_fixtures::polling::PATIENCE;
use tokio::net::UnixListener;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::watch;
use tonic::codegen::BoxStream;
use tonic::metadata::MetadataMap;
use tonic::transport::Server;
use tonic::{Request, Response, Status};

/// What a fake driver does. Change it at any time through [`FakeDriver::set`].
#[derive(Clone, Debug)]
pub struct Behaviour {
    /// The type that it announces.
    pub kind: String,
    /// The endpoint that it announces, unless it is the one of [`FakeDriver::new`].
    pub endpoint: Option<String>,
    /// The versions that it announces.
    pub versions: Vec<String>,
    /// `GetInfo` fails.
    pub get_info_fails: bool,
    /// The positive notification fails.
    pub notify_fails: bool,
    /// How long prepare and unprepare take.
    pub delay: Duration,
    /// Prepare and unprepare fail as a whole.
    pub call_fails: Option<(tonic::Code, String)>,
    /// The answer for each claim.
    pub answer: Answer,
    /// How old a connection of a socket that is served from now on becomes before the driver asks for another one.
    pub max_age: Option<Duration>,
}

/// The answer of a fake driver for a claim.
#[derive(Clone, Debug)]
pub enum Answer {
    /// One device for each claim. Its CDI name contains the UID of the claim.
    Device,
    /// The default message for each claim.
    Default,
    /// An error for each claim.
    Error(String),
    /// Nothing for any claim.
    Empty,
    /// These devices for the claim with this UID.
    Of(fn(&str) -> Vec<v1::Device>),
}

impl Default for Behaviour {
    fn default() -> Self {
        Behaviour {
            kind: PLUGIN_TYPE.to_owned(),
            endpoint: None,
            versions: vec![V1_SERVICE.to_owned(), V1BETA1_SERVICE.to_owned(), HEALTH_SERVICE.to_owned()],
            get_info_fails: false,
            notify_fails: false,
            delay: Duration::ZERO,
            call_fails: None,
            answer: Answer::Device,
            max_age: None,
        }
    }
}

/// A call that a fake driver got.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Call {
    /// The first call of a registration.
    GetInfo,
    /// The result that the node sent, and its error.
    Notified(bool, String),
    /// The version, and namespace, name and UID of each claim.
    Prepare(&'static str, Vec<[String; 3]>),
    /// As [`Call::Prepare`].
    Unprepare(&'static str, Vec<[String; 3]>),
    /// A stream of the health of devices.
    WatchHealth,
    /// A stream of node resources.
    WatchResources,
}

/// A driver. Its sockets are served while the values that [`serve`](FakeDriver::serve) and [`announce`](FakeDriver::announce) return
/// exist.
#[derive(Clone)]
pub struct FakeDriver(Arc<Shared>);

struct Shared {
    name: String,
    endpoint: PathBuf,
    behaviour: Mutex<Behaviour>,
    calls: watch::Sender<Vec<Call>>,
    /// The `grpc-timeout` of each prepare.
    deadlines: Mutex<Vec<Option<String>>>,
    health: watch::Sender<Sending<NodeWatchResourcesResponse>>,
    resources: watch::Sender<Sending<NodeListAndWatchResourcesResponse>>,
    accepted: AtomicUsize,
}

/// The services that a socket serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Serve {
    /// All versions, health and node resources.
    All,
    /// Only the calls of this version.
    V1,
    /// Only the calls of this version.
    V1Beta1,
    /// The registration.
    Registration,
}

/// A socket that is served. When it is dropped, its connections are closed, and the socket is removed.
pub struct Served {
    path: PathBuf,
    runtime: Option<Runtime>,
}

impl FakeDriver {
    /// A driver that announces a name and an endpoint. Serves nothing yet.
    pub fn new(name: &str, endpoint: impl Into<PathBuf>) -> Self {
        FakeDriver(Arc::new(Shared {
            name: name.to_owned(),
            endpoint: endpoint.into(),
            behaviour: Mutex::default(),
            calls: watch::Sender::default(),
            deadlines: Mutex::default(),
            health: watch::Sender::new(Ok(Default::default())),
            resources: watch::Sender::new(Ok(Default::default())),
            accepted: AtomicUsize::new(0),
        }))
    }

    /// Changes what the driver does.
    pub fn set(&self, change: impl FnOnce(&mut Behaviour)) {
        change(&mut self.0.behaviour.lock());
    }

    /// Serves the endpoint.
    pub fn serve(&self, services: Serve) -> Served {
        self.serve_at(&self.0.endpoint.clone(), services)
    }

    /// Creates a registration socket, as a driver does once it serves its endpoint.
    pub fn announce(&self, path: &Path) -> Served {
        self.serve_at(path, Serve::Registration)
    }

    fn serve_at(&self, path: &Path, services: Serve) -> Served {
        // A runtime of its own, so that its end closes all connections at once, as the end of a process does.
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let listener = {
            let _runtime = runtime.enter();
            UnixListener::bind(path).unwrap()
        };
        let driver = self.clone();
        let accepted = stream::unfold(listener, move |listener| {
            let driver = driver.clone();
            async move {
                let (stream, _) = listener.accept().await.unwrap();
                if services != Serve::Registration {
                    driver.0.accepted.fetch_add(1, Relaxed);
                }
                Some((Ok::<_, std::io::Error>(stream), listener))
            }
        });
        let with_v1 = matches!(services, Serve::All | Serve::V1);
        let with_v1beta1 = matches!(services, Serve::All | Serve::V1Beta1);
        let mut server = Server::builder();
        if let Some(age) = self.0.behaviour.lock().max_age.filter(|_| services != Serve::Registration) {
            server = server.max_connection_age(age);
        }
        let router = server
            .add_optional_service((services == Serve::Registration).then(|| RegistrationServer::new(self.clone())))
            .add_optional_service(with_v1.then(|| DraPluginServer::new(self.clone())))
            .add_optional_service(with_v1beta1.then(|| v1beta1_server::DraPluginServer::new(self.clone())))
            .add_optional_service((services == Serve::All).then(|| DraResourceHealthServer::new(self.clone())))
            .add_optional_service((services == Serve::All).then(|| NodeResourcesServer::new(self.clone())));
        runtime.spawn(async move { router.serve_with_incoming(accepted).await.unwrap() });
        Served { path: path.to_owned(), runtime: Some(runtime) }
    }

    /// The calls until now.
    pub fn calls(&self) -> Vec<Call> {
        self.0.calls.borrow().clone()
    }

    /// Waits until the calls meet a condition, and returns them.
    pub async fn until(&self, condition: impl Fn(&[Call]) -> bool) -> Vec<Call> {
        let mut calls = self.0.calls.subscribe();
        let met = tokio::time::timeout(PATIENCE, calls.wait_for(|calls| condition(calls))).await;
        match met {
            Ok(calls) => calls.unwrap().clone(),
            Err(_) => panic!("the calls do not become as expected: {:?}", self.calls()),
        }
    }

    /// Waits for the positive notification.
    pub async fn registered(&self) -> Vec<Call> {
        self.until(|calls| calls.contains(&Call::Notified(true, String::new()))).await
    }

    /// The connections to the endpoint until now.
    pub fn accepted(&self) -> usize {
        self.0.accepted.load(Relaxed)
    }

    /// The time limit that each prepare came with.
    pub fn deadlines(&self) -> Vec<Option<String>> {
        self.0.deadlines.lock().clone()
    }

    /// The health that streams send at once and after each change.
    pub fn send_health(&self, health: NodeWatchResourcesResponse) {
        let _previous = self.0.health.send_replace(Ok(health));
    }

    /// Ends the streams of health, with an error if there is one.
    pub fn end_health(&self, error: Option<Status>) {
        let _previous = self.0.health.send_replace(Err(error));
    }

    /// The resources that streams send at once and after each change.
    pub fn send_resources(&self, resources: NodeListAndWatchResourcesResponse) {
        let _previous = self.0.resources.send_replace(Ok(resources));
    }

    fn record(&self, call: Call) {
        self.0.calls.send_modify(|calls| calls.push(call));
    }

    /// The devices or the error of a claim. `None` if the answer has no entry for it.
    fn answer(&self, uid: &str) -> Option<(Vec<v1::Device>, String)> {
        match self.0.behaviour.lock().answer.clone() {
            Answer::Device => {
                let device = v1::Device {
                    request_names: vec!["r0".to_owned()],
                    pool_name: "n7".to_owned(),
                    device_name: "g0".to_owned(),
                    cdi_device_ids: vec![format!("acme.test/gpu={uid}")],
                    share_id: Some("s0".to_owned()),
                };
                Some((vec![device], String::new()))
            }
            Answer::Default => Some((Vec::new(), String::new())),
            Answer::Error(error) => Some((Vec::new(), error)),
            Answer::Empty => None,
            Answer::Of(devices) => Some((devices(uid), String::new())),
        }
    }

    async fn work(&self) -> Result<(), Status> {
        let Behaviour { delay, call_fails, .. } = self.0.behaviour.lock().clone();
        if !delay.is_zero() {
            tokio::time::sleep(delay).await;
        }
        call_fails.map_or(Ok(()), |(code, text)| Err(Status::new(code, text)))
    }

    fn record_prepare(&self, metadata: &MetadataMap, call: Call) {
        let deadline = metadata.get("grpc-timeout").map(|value| value.to_str().unwrap().to_owned());
        self.0.deadlines.lock().push(deadline);
        self.record(call);
    }
}

impl Served {
    /// Closes the connections and leaves the file of the socket, as a process that is killed does.
    pub fn kill(mut self) {
        self.path = PathBuf::new();
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        if !self.path.as_os_str().is_empty() {
            std::fs::remove_file(&self.path).ok();
        }
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

#[tonic::async_trait]
impl Registration for FakeDriver {
    async fn get_info(&self, _: Request<InfoRequest>) -> Result<Response<PluginInfo>, Status> {
        // Before the test learns of the call and changes the behaviour for the next one.
        let behaviour = self.0.behaviour.lock().clone();
        self.record(Call::GetInfo);
        if behaviour.get_info_fails {
            return Err(Status::internal("not yet"));
        }
        let endpoint = behaviour.endpoint.unwrap_or_else(|| self.0.endpoint.to_str().unwrap().to_owned());
        Ok(Response::new(PluginInfo {
            r#type: behaviour.kind,
            name: self.0.name.clone(),
            endpoint,
            supported_versions: behaviour.versions,
        }))
    }

    async fn notify_registration_status(
        &self,
        status: Request<RegistrationStatus>,
    ) -> Result<Response<RegistrationStatusResponse>, Status> {
        let RegistrationStatus { plugin_registered, error } = status.into_inner();
        let is_refused = self.0.behaviour.lock().notify_fails;
        self.record(Call::Notified(plugin_registered, error));
        // Upstream's helper answers a negative notification with an error.
        if !plugin_registered || is_refused {
            return Err(Status::internal("not accepted"));
        }
        Ok(Response::new(RegistrationStatusResponse {}))
    }
}

/// Implements the calls of a version.
macro_rules! calls {
    ($module:ident, $service:path, $version:literal, $device:expr) => {
        #[tonic::async_trait]
        impl $service for FakeDriver {
            async fn node_prepare_resources(
                &self,
                request: Request<$module::NodePrepareResourcesRequest>,
            ) -> Result<Response<$module::NodePrepareResourcesResponse>, Status> {
                let claim = |claim: &$module::Claim| [claim.namespace.clone(), claim.name.clone(), claim.uid.clone()];
                let claims: Vec<_> = request.get_ref().claims.iter().map(claim).collect();
                self.record_prepare(request.metadata(), Call::Prepare($version, claims.clone()));
                self.work().await?;
                let into_device: fn(v1::Device) -> $module::Device = $device;
                let mut answers = HashMap::new();
                for [_, _, uid] in claims {
                    if let Some((devices, error)) = self.answer(&uid) {
                        let devices = devices.into_iter().map(into_device).collect();
                        answers.insert(uid, $module::NodePrepareResourceResponse { devices, error });
                    }
                }
                Ok(Response::new($module::NodePrepareResourcesResponse { claims: answers }))
            }

            async fn node_unprepare_resources(
                &self,
                request: Request<$module::NodeUnprepareResourcesRequest>,
            ) -> Result<Response<$module::NodeUnprepareResourcesResponse>, Status> {
                let claim = |claim: &$module::Claim| [claim.namespace.clone(), claim.name.clone(), claim.uid.clone()];
                let claims: Vec<_> = request.get_ref().claims.iter().map(claim).collect();
                self.record(Call::Unprepare($version, claims.clone()));
                self.work().await?;
                let mut answers = HashMap::new();
                for [_, _, uid] in claims {
                    if let Some((_, error)) = self.answer(&uid) {
                        answers.insert(uid, $module::NodeUnprepareResourceResponse { error });
                    }
                }
                Ok(Response::new($module::NodeUnprepareResourcesResponse { claims: answers }))
            }
        }
    };
}

calls!(v1, DraPlugin, "v1", |device| device);
calls!(v1beta1, v1beta1_server::DraPlugin, "v1beta1", |device| v1beta1::Device {
    request_names: device.request_names,
    pool_name: device.pool_name,
    device_name: device.device_name,
    cdi_device_ids: device.cdi_device_ids,
});

#[tonic::async_trait]
impl DraResourceHealth for FakeDriver {
    async fn node_watch_resources(
        &self,
        _: Request<NodeWatchResourcesRequest>,
    ) -> Result<Response<BoxStream<NodeWatchResourcesResponse>>, Status> {
        self.record(Call::WatchHealth);
        Ok(Response::new(changes(self.0.health.subscribe())))
    }
}

#[tonic::async_trait]
impl NodeResources for FakeDriver {
    async fn node_list_and_watch_resources(
        &self,
        _: Request<NodeListAndWatchResourcesRequest>,
    ) -> Result<Response<BoxStream<NodeListAndWatchResourcesResponse>>, Status> {
        self.record(Call::WatchResources);
        Ok(Response::new(changes(self.0.resources.subscribe())))
    }
}

/// The last message of a stream, or how the stream ends.
type Sending<T> = Result<T, Option<Status>>;

/// The message now, and each later one.
fn changes<T: Clone + Send + Sync + 'static>(values: watch::Receiver<Sending<T>>) -> BoxStream<T> {
    let changes = stream::unfold((values, true), |(mut values, is_first)| async move {
        if !is_first {
            values.changed().await.ok()?;
        }
        let sending = values.borrow_and_update().clone();
        match sending {
            Ok(message) => Some((Ok(message), (values, false))),
            Err(error) => Some((Err(error?), (values, false))),
        }
    });
    changes.boxed()
}
