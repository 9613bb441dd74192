//! The options of a driver.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::Stream;
use kube::Client;
use podwright_kube_api::resource_api::Claims;
use podwright_model::names::is_driver_name;
use podwright_ports::ClaimApi;
use tokio::net::UnixStream;

use super::claims::KubeClaims;
use super::driver::Driver;
use super::error::StartError;
use super::lock::CallLock;
use super::metadata::{self, MetadataStore};
use super::running::{self, RunningDriver};
use super::socket::Listen;

/// The root directory of a kubelet.
const ROOT: &str = "/var/lib/kubelet";
/// The folder of CDI files that change while the machine runs.
const CDI_DIR: &str = "/var/run/cdi";
/// How long running calls may continue after a stop was requested.
const STOP_TIMEOUT: Duration = Duration::from_secs(20);

/// The options of a driver that has not been started.
#[must_use]
pub struct DriverBuilder<D> {
    driver: D,
    name: String,
    api: Access,
    node: Option<String>,
    node_uid: Option<String>,
    only: Option<String>,
    root: PathBuf,
    registrar_dir: Option<PathBuf>,
    registrar_file: Option<String>,
    data_dir: Option<PathBuf>,
    socket_file: Option<String>,
    rolling_update: Option<String>,
    serialize: bool,
    lock_dir: Option<PathBuf>,
    versions: Versions,
    registration: bool,
    service: bool,
    registration_listener: Option<Listen>,
    service_listener: Option<Listen>,
    stop_timeout: Duration,
    metadata: bool,
    metadata_versions: Vec<String>,
    cdi_dir: PathBuf,
}

/// Where the claims come from.
enum Access {
    Unset,
    Client(Client),
    Claims(Option<Arc<dyn ClaimApi>>),
}

/// The versions of the service that prepares claims.
#[derive(Clone, Copy)]
pub(super) struct Versions {
    pub(super) v1: bool,
    pub(super) v1beta1: bool,
}

/// The checked options.
pub(super) struct Settings {
    pub(super) name: String,
    pub(super) claims: Option<Arc<dyn ClaimApi>>,
    pub(super) lock: CallLock,
    pub(super) versions: Versions,
    /// The socket of the registration, if the driver has one.
    pub(super) registration: Option<SocketSettings>,
    /// The path of the service, as the node gets it.
    pub(super) endpoint: PathBuf,
    /// The socket of the service, if the driver has one.
    pub(super) service: Option<SocketSettings>,
    pub(super) stop_timeout: Duration,
    pub(super) publishing: Publishing,
    /// The files with the metadata of devices, if the driver writes any.
    pub(super) metadata: Option<Arc<MetadataStore>>,
}

/// The settings for publishing ResourceSlices.
pub(super) struct Publishing {
    pub(super) client: Option<Client>,
    pub(super) node: Option<String>,
    pub(super) node_uid: Option<String>,
    pub(super) only: Option<String>,
}

/// A socket and its custom listener.
pub(super) struct SocketSettings {
    pub(super) path: PathBuf,
    pub(super) listen: Option<Listen>,
}

impl<D: Driver> DriverBuilder<D> {
    /// A driver with the default options. It still needs [`client`](Self::client) or [`without_api`](Self::without_api).
    pub fn new(name: impl Into<String>, driver: D) -> Self {
        DriverBuilder {
            driver,
            name: name.into(),
            api: Access::Unset,
            node: None,
            node_uid: None,
            only: None,
            root: ROOT.into(),
            registrar_dir: None,
            registrar_file: None,
            data_dir: None,
            socket_file: None,
            rolling_update: None,
            serialize: true,
            lock_dir: None,
            versions: Versions { v1: true, v1beta1: true },
            registration: true,
            service: true,
            registration_listener: None,
            service_listener: None,
            stop_timeout: STOP_TIMEOUT,
            metadata: false,
            metadata_versions: metadata::VERSIONS.map(str::to_owned).into(),
            cdi_dir: CDI_DIR.into(),
        }
    }

    /// The client with which claims are read and slices are published.
    pub fn client(mut self, client: Client) -> Self {
        self.api = Access::Client(client);
        self
    }

    /// Runs without an API server: the driver gets claims [without their objects](super::Claim::object), and cannot publish.
    pub fn without_api(mut self) -> Self {
        self.api = Access::Claims(None);
        self
    }

    /// Reads claims from `claims` in place of the API server. The driver cannot publish.
    pub fn claims(mut self, claims: Arc<dyn ClaimApi>) -> Self {
        self.api = Access::Claims(Some(claims));
        self
    }

    /// The name of the node. Needed to publish.
    pub fn node_name(mut self, node: impl Into<String>) -> Self {
        self.node = Some(node.into());
        self
    }

    /// The UID of the node. It is looked up by default.
    pub fn node_uid(mut self, uid: impl Into<String>) -> Self {
        self.node_uid = Some(uid.into());
        self
    }

    /// Publishes only this pool. Its slices are owned by the node, but not bound to it: the pool names the nodes with access to the
    /// devices.
    pub fn single_pool(mut self, pool: impl Into<String>) -> Self {
        self.only = Some(pool.into());
        self
    }

    /// The root directory of the node agent, below which the sockets are by default. The default is the directory of a
    /// kubelet, `/var/lib/kubelet`.
    pub fn root(mut self, root: impl Into<PathBuf>) -> Self {
        self.root = root.into();
        self
    }

    /// The folder of the registration socket. The default is `ROOT/plugins_registry`.
    pub fn registrar_dir(mut self, folder: impl Into<PathBuf>) -> Self {
        self.registrar_dir = Some(folder.into());
        self
    }

    /// The name of the registration socket. The default is `DRIVER-reg.sock`.
    pub fn registrar_file(mut self, name: impl Into<String>) -> Self {
        self.registrar_file = Some(name.into());
        self
    }

    /// The folder of the driver, with the socket of its service. It must exist, and have the same path inside and outside of the
    /// driver's container. The default is `ROOT/plugins/DRIVER`.
    pub fn data_dir(mut self, folder: impl Into<PathBuf>) -> Self {
        self.data_dir = Some(folder.into());
        self
    }

    /// The name of the service socket. The default is `dra.sock`.
    pub fn socket_file(mut self, name: impl Into<String>) -> Self {
        self.socket_file = Some(name.into());
        self
    }

    /// Lets two instances run at the same time during an update. The UID of the pod becomes a part of the names of the sockets, and
    /// the calls of all instances are serialized. The driver must keep no state between calls in memory, and must
    /// [stop](RunningDriver::stop) on SIGTERM.
    pub fn rolling_update(mut self, pod_uid: impl Into<String>) -> Self {
        self.rolling_update = Some(pod_uid.into());
        self
    }

    /// Whether the calls of the node run one at a time. They do by default.
    pub fn serialize(mut self, serialize: bool) -> Self {
        self.serialize = serialize;
        self
    }

    /// The folder of the file `serialize.lock` of a [rolling update](Self::rolling_update). The default is the
    /// [folder of the driver](Self::data_dir).
    pub fn lock_dir(mut self, folder: impl Into<PathBuf>) -> Self {
        self.lock_dir = Some(folder.into());
        self
    }

    /// Whether the driver serves version `v1` (`v1.DRAPlugin`). It does by default.
    pub fn v1(mut self, serve: bool) -> Self {
        self.versions.v1 = serve;
        self
    }

    /// Whether the driver serves version `v1beta1` (`v1beta1.DRAPlugin`). It does by default.
    pub fn v1beta1(mut self, serve: bool) -> Self {
        self.versions.v1beta1 = serve;
        self
    }

    /// Whether the driver registers with the node. It does by default.
    pub fn registration(mut self, serve: bool) -> Self {
        self.registration = serve;
        self
    }

    /// Whether the driver serves the calls of the node. It does by default.
    pub fn service(mut self, serve: bool) -> Self {
        self.service = serve;
        self
    }

    /// Uses a custom listener for registration. `listen` gets the path of the socket. The library neither creates nor removes the
    /// file.
    pub fn registration_listener<S>(mut self, listen: impl FnOnce(&Path) -> io::Result<S> + Send + 'static) -> Self
    where
        S: Stream<Item = io::Result<UnixStream>> + Send + 'static,
    {
        self.registration_listener = Some(Box::new(|path| Ok(listen(path)?.boxed())));
        self
    }

    /// Uses a custom listener for the service. `listen` gets the path of the socket. The library neither creates nor removes the
    /// file.
    pub fn service_listener<S>(mut self, listen: impl FnOnce(&Path) -> io::Result<S> + Send + 'static) -> Self
    where
        S: Stream<Item = io::Result<UnixStream>> + Send + 'static,
    {
        self.service_listener = Some(Box::new(|path| Ok(listen(path)?.boxed())));
        self
    }

    /// How long running calls may continue after [`stop`](RunningDriver::stop). The default is 20 s.
    pub fn stop_timeout(mut self, timeout: Duration) -> Self {
        self.stop_timeout = timeout;
        self
    }

    /// Whether containers get a file with the [metadata](Driver::metadata) of their devices (KEP-5304). They do not by default.
    pub fn device_metadata(mut self, write: bool) -> Self {
        self.metadata = write;
        self
    }

    /// The versions of the metadata in the files, newest first. Unknown versions are left out. The default is all known versions:
    /// `v1alpha1`.
    pub fn metadata_versions(mut self, versions: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.metadata_versions = versions.into_iter().map(Into::into).collect();
        self
    }

    /// The folder of the CDI files of the metadata. The default is `/var/run/cdi`.
    pub fn cdi_dir(mut self, folder: impl Into<PathBuf>) -> Self {
        self.cdi_dir = folder.into();
        self
    }

    /// Creates the sockets and serves. The node registers the driver when it finds the registration socket.
    ///
    /// # Errors
    /// [`StartError`]. Nothing is left behind then.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub async fn start(self) -> Result<RunningDriver, StartError> {
        let (driver, settings) = self.check()?;
        running::start(Arc::new(driver), settings)
    }

    /// Computes paths, and refuses options that contradict each other.
    fn check(self) -> Result<(D, Settings), StartError> {
        let name = self.name;
        if !is_driver_name(&name) {
            return Err(StartError::Name(name));
        }
        let (client, claims): (_, Option<Arc<dyn ClaimApi>>) = match self.api {
            Access::Unset => return Err(StartError::NoClient),
            Access::Client(client) => (Some(client.clone()), Some(Arc::new(KubeClaims(Claims::new(client))))),
            Access::Claims(claims) => (None, claims),
        };
        let publishing = Publishing { client, node: self.node, node_uid: self.node_uid, only: self.only };
        if self.rolling_update.is_some() && self.registrar_file.is_some() {
            return Err(StartError::RegistrarFile);
        }
        let data_dir = self.data_dir.unwrap_or_else(|| self.root.join("plugins").join(&name));
        let found = fs::metadata(&data_dir)
            .and_then(|found| if found.is_dir() { Ok(()) } else { Err(io::ErrorKind::NotADirectory.into()) });
        found.map_err(|source| StartError::DataDir { path: data_dir.clone(), source })?;
        let metadata = match self.metadata {
            true => {
                let is_asked = |known: &&str| self.metadata_versions.iter().any(|version| version == known);
                let versions: Vec<_> = metadata::VERSIONS.into_iter().filter(is_asked).collect();
                if versions.is_empty() {
                    return Err(StartError::MetadataVersions(self.metadata_versions));
                }
                // Container runtimes read the path of the file from the CDI file.
                let data_dir = std::path::absolute(&data_dir)
                    .map_err(|source| StartError::DataDir { path: data_dir.clone(), source })?;
                Some(Arc::new(MetadataStore::new(name.as_str().into(), &data_dir, self.cdi_dir, versions)))
            }
            false => None,
        };
        let (registrar_file, socket_file) = match &self.rolling_update {
            Some(uid) => (format!("{name}-{uid}-reg.sock"), format!("dra-{uid}.sock")),
            None => (format!("{name}-reg.sock"), "dra.sock".to_owned()),
        };
        let registrar_dir = self.registrar_dir.unwrap_or_else(|| self.root.join("plugins_registry"));
        let registrar = registrar_dir.join(self.registrar_file.unwrap_or(registrar_file));
        let endpoint = data_dir.join(self.socket_file.unwrap_or(socket_file));
        let lock_file = self.lock_dir.unwrap_or(data_dir).join("serialize.lock");
        let lock = match self.serialize {
            true => CallLock::On { process: Arc::default(), file: self.rolling_update.map(|_| lock_file) },
            false => CallLock::Off,
        };
        let settings = Settings {
            claims,
            lock,
            versions: self.versions,
            registration: self
                .registration
                .then_some(SocketSettings { path: registrar, listen: self.registration_listener }),
            service: self.service.then(|| SocketSettings { path: endpoint.clone(), listen: self.service_listener }),
            endpoint,
            stop_timeout: self.stop_timeout,
            publishing,
            metadata,
            name,
        };
        Ok((self.driver, settings))
    }
}
