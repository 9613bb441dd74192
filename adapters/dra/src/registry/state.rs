//! The instances of each driver. Pure.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use podwright_dra_api::{HEALTH_SERVICE, NODE_RESOURCES_SERVICE, V1_SERVICE, V1BETA1_SERVICE};
use podwright_model::ids::DriverName;
use podwright_model::names::is_driver_name;

use super::instance::Instance;

/// The version of a driver's gRPC service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ApiVersion {
    /// `v1.DRAPlugin`.
    V1,
    /// `v1beta1.DRAPlugin`, without share ids.
    V1Beta1,
}

/// The services of a driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Services {
    /// The newest version of the calls that the driver supports.
    pub api: ApiVersion,
    /// Whether it announced the health of its devices (`v1alpha1.DRAResourceHealth`).
    pub health: bool,
    /// Whether it announced node resources (`v1alpha1.NodeResources`).
    pub node_resources: bool,
}

impl Services {
    /// The services in the `supported_versions` of a plugin. The order of the list does not matter.
    ///
    /// # Errors
    /// [`UnsupportedDriver::Versions`] if the list has no version of the calls.
    pub(super) fn of(versions: &[String]) -> Result<Self, UnsupportedDriver> {
        let has = |service: &str| versions.iter().any(|version| version == service);
        let api = match (has(V1_SERVICE), has(V1BETA1_SERVICE)) {
            (true, _) => ApiVersion::V1,
            (false, true) => ApiVersion::V1Beta1,
            (false, false) => return Err(UnsupportedDriver::Versions(versions.to_owned())),
        };
        Ok(Services { api, health: has(HEALTH_SERVICE), node_resources: has(NODE_RESOURCES_SERVICE) })
    }
}

/// Why a plugin is not used as a driver.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum UnsupportedDriver {
    /// The plugin supports no version that the node calls.
    #[error("the plugin supports {0:?}, but must support one of {known:?}", known = [V1_SERVICE, V1BETA1_SERVICE])]
    Versions(Vec<String>),
    /// The name is not valid for a driver.
    #[error("the driver name {0:?} is not a DNS subdomain of at most 63 characters, like gpu.example.com")]
    Name(String),
}

/// Checks the name of a driver. Metrics, files and objects of the API contain it.
pub(super) fn check_name(name: &str) -> Result<(), UnsupportedDriver> {
    if is_driver_name(name) { Ok(()) } else { Err(UnsupportedDriver::Name(name.to_owned())) }
}

/// An instance of this driver with this endpoint is registered already.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("driver {driver} is registered already with the endpoint {endpoint}")]
pub struct AlreadyRegistered {
    driver: DriverName,
    endpoint: String,
}

/// A snapshot of the registered drivers.
#[derive(Clone, Debug, Default)]
pub struct Drivers {
    /// The instances of each driver, in the order of their registration. No list is empty.
    by_name: BTreeMap<DriverName, Vec<InstanceState>>,
    /// The number of connections so far, to all drivers.
    connections: u64,
}

/// An instance of a driver, and whether it is connected.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct InstanceState {
    /// The instance.
    pub instance: Arc<Instance>,
    /// Whether a connection to it exists.
    pub is_connected: bool,
    /// The number of its last connection, which is greater than those of all earlier connections to drivers; 0 before the first one.
    pub connection: u64,
}

/// Finds the drivers that have connected since the last snapshot. A driver may have connected again between two snapshots that both show
/// it connected, so the numbers of connections are compared.
#[derive(Debug, Default)]
pub(crate) struct NewConnections {
    last: u64,
}

impl NewConnections {
    /// The drivers with a new connection, in order.
    pub(crate) fn in_snapshot(&mut self, drivers: &Drivers) -> Vec<DriverName> {
        let last = std::mem::replace(&mut self.last, drivers.connections);
        let is_new = |state: &InstanceState| state.is_connected && state.connection > last;
        let new = drivers.by_name.iter().filter(|(_, instances)| instances.iter().any(is_new));
        new.map(|(name, _)| name.clone()).collect()
    }
}

impl Drivers {
    /// The names of the registered drivers, in order.
    pub fn names(&self) -> impl Iterator<Item = &DriverName> {
        self.by_name.keys()
    }

    /// Whether an instance of the driver is registered. It may not be connected.
    pub fn is_registered(&self, driver: &DriverName) -> bool {
        self.by_name.contains_key(driver)
    }

    /// Whether an instance of the driver is connected.
    pub fn is_usable(&self, driver: &DriverName) -> bool {
        self.instances(driver).iter().any(|state| state.is_connected)
    }

    /// The instances of a driver, in the order of their registration.
    pub fn instances(&self, driver: &DriverName) -> &[InstanceState] {
        self.by_name.get(driver).map(Vec::as_slice).unwrap_or_default()
    }

    /// The instance that gets the calls to a driver: the newest one that is connected, or the newest one if none is. `None` if the
    /// driver is not registered.
    pub fn choose(&self, driver: &DriverName) -> Option<&Arc<Instance>> {
        let instances = self.instances(driver);
        let chosen = instances.iter().rev().find(|state| state.is_connected).or(instances.last());
        chosen.map(|state| &state.instance)
    }

    /// Adds an instance that is not connected.
    pub(super) fn add(&mut self, instance: Arc<Instance>) -> Result<(), AlreadyRegistered> {
        let instances = self.by_name.get(instance.driver()).map(Vec::as_slice).unwrap_or_default();
        if instances.iter().any(|state| state.instance.endpoint() == instance.endpoint()) {
            let endpoint = instance.endpoint().display().to_string();
            return Err(AlreadyRegistered { driver: instance.driver().clone(), endpoint });
        }
        let state = InstanceState { instance: instance.clone(), is_connected: false, connection: 0 };
        self.by_name.entry(instance.driver().clone()).or_default().push(state);
        Ok(())
    }

    /// Removes an instance. `None` if there is none with this endpoint.
    pub(super) fn remove(&mut self, driver: &DriverName, endpoint: &Path) -> Option<Arc<Instance>> {
        let instances = self.by_name.get_mut(driver)?;
        let index = instances.iter().position(|state| state.instance.endpoint() == endpoint)?;
        let removed = instances.remove(index).instance;
        if instances.is_empty() {
            self.by_name.remove(driver);
        }
        Some(removed)
    }

    /// Records that an instance connected or disconnected. Returns whether that is a change.
    pub(super) fn set_connected(&mut self, instance: &Arc<Instance>, is_connected: bool) -> bool {
        let instances = self.by_name.get_mut(instance.driver()).into_iter().flatten();
        let mut same = instances.filter(|state| Arc::ptr_eq(&state.instance, instance));
        // A removed instance may still report.
        let Some(state) = same.next() else { return false };
        if std::mem::replace(&mut state.is_connected, is_connected) == is_connected {
            return false;
        }
        if is_connected {
            self.connections += 1;
            state.connection = self.connections;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn instance(driver: &str, endpoint: &str) -> Arc<Instance> {
        let services = Services { api: ApiVersion::V1, health: false, node_resources: false };
        Arc::new(Instance::new(driver.into(), endpoint.into(), services, Default::default()))
    }

    fn texts(versions: &[&str]) -> Vec<String> {
        versions.iter().map(|version| (*version).to_owned()).collect()
    }

    /// DRA-R10: the newest known version is used, in whatever order the plugin lists them.
    #[test]
    fn the_newest_known_version_is_chosen() {
        let of = |versions: &[&str]| Services::of(&texts(versions));
        for versions in [&["v1.DRAPlugin", "x.Unknown"][..], &["v1beta1.DRAPlugin", "v1.DRAPlugin"]] {
            assert_eq!(of(versions).unwrap(), Services { api: ApiVersion::V1, health: false, node_resources: false });
        }
        assert_eq!(of(&["v1beta1.DRAPlugin"]).unwrap().api, ApiVersion::V1Beta1);
        let all = of(&["v1alpha1.DRAResourceHealth", "v1alpha1.NodeResources", "v1.DRAPlugin"]).unwrap();
        assert!(all.health && all.node_resources);
        for versions in [&[][..], &["1.0.0"], &["v1alpha1.DRAResourceHealth"], &["v2.DRAPlugin"]] {
            let error = of(versions).unwrap_err().to_string();
            assert!(error.contains("v1.DRAPlugin") && error.contains("v1beta1.DRAPlugin"), "{error}");
            assert!(versions.iter().all(|version| error.contains(version)), "{error}");
        }
    }

    #[test]
    fn driver_with_an_invalid_name_is_refused() {
        assert_eq!(check_name("gpu.example.com"), Ok(()));
        let error = check_name("Gpu.example.com").unwrap_err().to_string();
        assert!(error.contains("Gpu.example.com") && error.contains("at most 63 characters"), "{error}");
    }

    /// DRA-C5, DRA-C7: the newest connected instance is chosen, and the newest one if none is connected.
    #[test]
    fn calls_go_to_the_newest_connected_instance() {
        let gpu = DriverName::from("gpu");
        let (first, second) = (instance("gpu", "/i1.sock"), instance("gpu", "/i2.sock"));
        let mut drivers = Drivers::default();
        let chosen = |drivers: &Drivers| drivers.choose(&gpu).map(|instance| instance.endpoint().to_owned());
        let is = |path: &str| Some(path.into());
        assert_eq!(chosen(&drivers), None);
        drivers.add(first.clone()).unwrap();
        assert!(drivers.is_registered(&gpu) && !drivers.is_usable(&gpu));
        let again = drivers.add(instance("gpu", "/i1.sock")).unwrap_err().to_string();
        assert!(again.contains("gpu") && again.contains("/i1.sock"), "{again}");
        drivers.add(second.clone()).unwrap();
        assert_eq!(chosen(&drivers), is("/i2.sock"));
        assert!(drivers.set_connected(&first, true) && !drivers.set_connected(&first, true));
        assert!(drivers.is_usable(&gpu));
        assert_eq!(chosen(&drivers), is("/i1.sock"), "the newer one is not connected");
        assert!(drivers.set_connected(&second, true));
        assert_eq!(chosen(&drivers), is("/i2.sock"));
        assert!(drivers.set_connected(&second, false));
        assert_eq!(chosen(&drivers), is("/i1.sock"));
        assert!(drivers.remove(&gpu, Path::new("/i1.sock")).is_some());
        assert_eq!(chosen(&drivers), is("/i2.sock"));
        assert!(drivers.remove(&gpu, Path::new("/i1.sock")).is_none());
        assert!(!drivers.set_connected(&first, true), "it is removed");
        assert!(drivers.remove(&gpu, Path::new("/i2.sock")).is_some());
        assert!(drivers.remove(&gpu, Path::new("/i2.sock")).is_none());
        assert!(!drivers.is_registered(&gpu) && drivers.names().next().is_none());
    }

    /// A watcher may see the state only after the driver has disconnected and connected again.
    #[test]
    fn each_connection_is_new_once() {
        let (gpu, nic) = (instance("gpu", "/gpu.sock"), instance("nic", "/nic.sock"));
        let mut drivers = Drivers::default();
        let mut new = NewConnections::default();
        drivers.add(gpu.clone()).unwrap();
        drivers.add(nic.clone()).unwrap();
        assert_eq!(new.in_snapshot(&drivers), []);
        drivers.set_connected(&gpu, true);
        assert_eq!(new.in_snapshot(&drivers), [DriverName::from("gpu")]);
        assert_eq!(new.in_snapshot(&drivers), []);
        drivers.set_connected(&gpu, false);
        drivers.set_connected(&gpu, true);
        drivers.set_connected(&nic, true);
        drivers.set_connected(&nic, false);
        assert_eq!(new.in_snapshot(&drivers), [DriverName::from("gpu")], "the other one is not connected");
        // The process of the driver restarts, and registers the same endpoint again.
        drivers.remove(gpu.driver(), gpu.endpoint());
        let gpu = instance("gpu", "/gpu.sock");
        drivers.add(gpu.clone()).unwrap();
        drivers.set_connected(&gpu, true);
        assert_eq!(new.in_snapshot(&drivers), [DriverName::from("gpu")]);
    }

    /// A plugin that restarts registers again with the same endpoint. The end of the old connection does not affect the new one.
    #[test]
    fn a_removed_instance_does_not_change_its_successor() {
        let (old, new) = (instance("gpu", "/i.sock"), instance("gpu", "/i.sock"));
        let mut drivers = Drivers::default();
        drivers.add(old.clone()).unwrap();
        drivers.remove(old.driver(), old.endpoint());
        drivers.add(new.clone()).unwrap();
        drivers.set_connected(&new, true);
        assert!(!drivers.set_connected(&old, false));
        assert!(drivers.is_usable(new.driver()));
    }
}
