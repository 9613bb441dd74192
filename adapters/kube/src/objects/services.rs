//! The services of the cluster.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use k8s_openapi::api::core::v1::Service;
use kube::runtime::watcher::Event;
use kube::{Api, Client, ResourceExt};
use parking_lot::Mutex;
use podwright_ports::{ObjectError, ObjectKind, ServiceAddress, ServiceAddressPort};
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::listing;

/// How long a read waits for the first list.
const FIRST_LIST: Duration = Duration::from_secs(1);

/// The namespace and the name of the service of the API server.
const API_SERVER: (&str, &str) = ("default", "kubernetes");

type Addresses = BTreeMap<(String, String), Arc<ServiceAddress>>;

/// The addresses of all services that have a cluster IP. The watch ends when this is dropped.
pub(super) struct Services {
    addresses: Arc<Mutex<Addresses>>,
    is_listed: watch::Receiver<bool>,
    _stop: DropGuard,
}

impl Services {
    /// Starts the watch.
    pub(super) fn start(client: Client) -> Arc<Self> {
        let (stop, addresses) = (CancellationToken::new(), Arc::default());
        let (listed, is_listed) = watch::channel(false);
        tokio::spawn(stop.clone().run_until_cancelled_owned(run(client, Arc::clone(&addresses), listed)));
        Arc::new(Services { addresses, is_listed, _stop: stop.drop_guard() })
    }

    /// The services of a namespace, and the one of the API server.
    pub(super) async fn of(&self, namespace: &str) -> Result<Vec<Arc<ServiceAddress>>, ObjectError> {
        let mut is_listed = self.is_listed.clone();
        match timeout(FIRST_LIST, is_listed.wait_for(|is_listed| *is_listed)).await {
            Ok(Ok(_)) => {}
            _ => return Err(ObjectError::NotYet(ObjectKind::Service)),
        }
        let addresses = self.addresses.lock();
        let is_seen = |service: &&Arc<ServiceAddress>| {
            service.namespace == namespace || (service.namespace.as_str(), service.name.as_str()) == API_SERVER
        };
        Ok(addresses.values().filter(is_seen).cloned().collect())
    }
}

async fn run(client: Client, addresses: Arc<Mutex<Addresses>>, listed: watch::Sender<bool>) {
    let mut events = pin!(listing::watch(Api::<Service>::all(client), None));
    let mut listing = Addresses::new();
    while let Some(event) = events.next().await {
        match event {
            Ok(Event::Init) => listing.clear(),
            Ok(Event::InitApply(service)) => apply(&service, &mut listing),
            Ok(Event::InitDone) => {
                *addresses.lock() = std::mem::take(&mut listing);
                listed.send_replace(true);
            }
            Ok(Event::Apply(service)) => apply(&service, &mut addresses.lock()),
            Ok(Event::Delete(service)) => drop(addresses.lock().remove(&key(&service))),
            Err(error) => {
                tracing::warn!(%error, "cannot watch the services of the API server");
            }
        }
    }
}

fn key(service: &Service) -> (String, String) {
    (service.namespace().unwrap_or_default(), service.name_any())
}

fn apply(service: &Service, addresses: &mut Addresses) {
    match address(service) {
        Some(address) => drop(addresses.insert(key(service), Arc::new(address))),
        None => drop(addresses.remove(&key(service))),
    }
}

/// The address of a service; `None` if the service has no cluster IP.
fn address(service: &Service) -> Option<ServiceAddress> {
    let spec = service.spec.as_ref()?;
    let cluster_ip = spec.cluster_ip.as_deref().filter(|ip| !["", "None"].contains(ip))?.to_owned();
    let ports = spec.ports.iter().flatten().map(|port| ServiceAddressPort {
        name: port.name.clone().unwrap_or_default(),
        port: port.port,
        protocol: port.protocol.clone().unwrap_or_default(),
    });
    let (namespace, name) = key(service);
    Some(ServiceAddress { namespace, name, cluster_ip, ports: ports.collect() })
}
