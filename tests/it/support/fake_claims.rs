//! DRA drivers and ResourceClaims in memory.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use k8s_openapi::api::resource::v1::ResourceClaim;
use parking_lot::Mutex;
use podwright_actors::claims::{ClaimFeatures, ClaimManager, ClaimPorts, ClaimTasks};
use podwright_actors::ids::{ClaimName, ClaimUid, DriverName};
use podwright_actors::ports::{
    ApiError, ApiFuture, Checkpoint, ClaimApi, ClaimDrivers, ClaimRef, DriverError, DriverFuture, NoCheckpoint,
    PreparedDevice, TokioClock,
};
use podwright_metrics::Metrics;
use serde_json::json;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// Drivers that a test registers, delays and makes fail. A claim of driver `d` gets the CDI device `d/gpu=CLAIM`.
pub(crate) struct FakeDrivers {
    state: Mutex<DriversState>,
    /// Calls wait while this is set.
    blocked: watch::Sender<bool>,
    /// The answers wait while this is set. What the calls ask for is done.
    withheld: watch::Sender<bool>,
}

#[derive(Default)]
struct DriversState {
    registered: BTreeSet<String>,
    /// The devices of every claim. If empty, each claim has the device `g0`, with the CDI device of the claim.
    devices: Vec<PreparedDevice>,
    /// The drivers whose client panics before it makes a call.
    panicking: BTreeSet<String>,
    /// The drivers whose client panics while it connects.
    panicking_in_reach: BTreeSet<String>,
    /// The drivers that accept no connection.
    unreachable: BTreeSet<String>,
    failing: BTreeMap<String, String>,
    delay: Duration,
    /// The calls as `DRIVER prepare CLAIM,CLAIM`, in their order.
    calls: Vec<String>,
    /// The prepared claims, as `DRIVER UID`.
    prepared: BTreeSet<String>,
}

impl FakeDrivers {
    pub(crate) fn of(names: &[&str]) -> Arc<Self> {
        let registered = names.iter().map(|name| (*name).to_owned()).collect();
        let state = DriversState { registered, ..DriversState::default() };
        Arc::new(FakeDrivers {
            state: Mutex::new(state),
            blocked: watch::Sender::new(false),
            withheld: watch::Sender::new(false),
        })
    }

    pub(crate) fn register(&self, driver: &str) {
        self.state.lock().registered.insert(driver.to_owned());
    }

    pub(crate) fn fail(&self, driver: &str, error: &str) {
        self.state.lock().failing.insert(driver.to_owned(), error.to_owned());
    }

    pub(crate) fn heal(&self, driver: &str) {
        self.state.lock().failing.remove(driver);
    }

    /// Gives every claim these devices.
    pub(crate) fn set_devices(&self, devices: Vec<PreparedDevice>) {
        self.state.lock().devices = devices;
    }

    /// Makes the client of a driver panic before it makes a call.
    pub(crate) fn panic(&self, driver: &str, panics: bool) {
        let mut state = self.state.lock();
        if panics {
            state.panicking.insert(driver.to_owned())
        } else {
            state.panicking.remove(driver)
        };
    }

    /// Makes the client of a driver panic while it connects.
    pub(crate) fn panic_in_reach(&self, driver: &str) {
        self.state.lock().panicking_in_reach.insert(driver.to_owned());
    }

    fn panic_if_set(&self, driver: &DriverName) {
        let panics = self.state.lock().panicking.contains(driver.as_str());
        assert!(!panics, "the test makes the client panic");
    }

    /// Makes a driver accept no connection, or accept them again.
    pub(crate) fn set_reachable(&self, driver: &str, is_reachable: bool) {
        let mut state = self.state.lock();
        if is_reachable {
            state.unreachable.remove(driver)
        } else {
            state.unreachable.insert(driver.to_owned())
        };
    }

    pub(crate) fn block(&self, blocked: bool) {
        self.blocked.send_replace(blocked);
    }

    /// Makes the drivers do their work and keep the answer.
    pub(crate) fn withhold_answers(&self, withheld: bool) {
        self.withheld.send_replace(withheld);
    }

    async fn answer(&self) {
        let _ = self.withheld.subscribe().wait_for(|withheld| !withheld).await;
    }

    /// Makes each call take this long.
    pub(crate) fn slow(&self, delay: Duration) {
        self.state.lock().delay = delay;
    }

    pub(crate) fn calls(&self) -> Vec<String> {
        self.state.lock().calls.clone()
    }

    pub(crate) fn prepared(&self) -> Vec<String> {
        self.state.lock().prepared.iter().cloned().collect()
    }

    async fn call(&self, method: &str, driver: &DriverName, claims: &[ClaimRef]) -> Result<(), DriverError> {
        let delay = {
            let mut state = self.state.lock();
            let names: Vec<_> = claims.iter().map(|claim| claim.name.name()).collect();
            state.calls.push(format!("{driver} {method} {}", names.join(",")));
            state.delay
        };
        if !delay.is_zero() {
            tokio::time::sleep(delay).await;
        }
        let _ = self.blocked.subscribe().wait_for(|blocked| !blocked).await;
        match self.state.lock().failing.get(driver.as_str()) {
            Some(error) => Err(DriverError::failed(format!("DRA driver {driver}: {error}"))),
            None => Ok(()),
        }
    }
}

/// A device without a CDI device.
pub(crate) fn prepared_device(name: &str) -> PreparedDevice {
    PreparedDevice { pool: "pool".to_owned(), device: name.to_owned(), ..PreparedDevice::default() }
}

fn entry(driver: &DriverName, claim: &ClaimRef) -> String {
    format!("{driver} {}", claim.uid)
}

impl ClaimDrivers for FakeDrivers {
    fn is_registered(&self, driver: &DriverName) -> bool {
        self.state.lock().registered.contains(driver.as_str())
    }

    fn reach<'a>(&'a self, driver: &'a DriverName) -> BoxFuture<'a, Result<(), DriverError>> {
        let panics = self.state.lock().panicking_in_reach.contains(driver.as_str());
        assert!(!panics, "the test makes the client panic");
        let is_reachable = !self.state.lock().unreachable.contains(driver.as_str());
        let error = format!("DRA driver {driver} cannot be reached");
        let result = if is_reachable { Ok(()) } else { Err(DriverError::unreachable(error)) };
        std::future::ready(result).boxed()
    }

    fn prepare<'a>(&'a self, driver: &'a DriverName, claims: &'a [ClaimRef]) -> DriverFuture<'a, Vec<PreparedDevice>> {
        self.panic_if_set(driver);
        async move {
            self.call("prepare", driver, claims).await?;
            self.state.lock().prepared.extend(claims.iter().map(|claim| entry(driver, claim)));
            self.answer().await;
            let mut answers: BTreeMap<ClaimUid, _> = BTreeMap::new();
            for claim in claims {
                let mut devices = self.state.lock().devices.clone();
                if devices.is_empty() {
                    let cdi_devices = vec![format!("{driver}/gpu={}", claim.name.name())];
                    devices.push(PreparedDevice { cdi_devices, ..prepared_device("g0") });
                }
                answers.insert(claim.uid.clone(), Ok(devices));
            }
            Ok(answers)
        }
        .boxed()
    }

    fn unprepare<'a>(&'a self, driver: &'a DriverName, claims: &'a [ClaimRef]) -> DriverFuture<'a, ()> {
        self.panic_if_set(driver);
        async move {
            self.call("unprepare", driver, claims).await?;
            self.state.lock().prepared.retain(|prepared| claims.iter().all(|claim| *prepared != entry(driver, claim)));
            self.answer().await;
            Ok(claims.iter().map(|claim| (claim.uid.clone(), Ok(()))).collect())
        }
        .boxed()
    }
}

/// Claims in namespace `test`.
#[derive(Default)]
pub(crate) struct FakeClaims(Mutex<BTreeMap<String, Arc<ResourceClaim>>>);

impl FakeClaims {
    /// Creates a claim that is allocated to one device of each driver, and reserved for pods. Its UID is `u-NAME`.
    pub(crate) fn put(&self, name: &str, drivers: &[&str], pods: &[&str]) {
        let results: Vec<_> = drivers
            .iter()
            .map(|driver| json!({"request": "r0", "driver": driver, "pool": "pool", "device": "g0"}))
            .collect();
        let consumers: Vec<_> = pods.iter().map(|pod| json!({"resource": "pods", "name": pod, "uid": pod})).collect();
        let status = json!({"allocation": {"devices": {"results": results}}, "reservedFor": consumers});
        self.put_object(name, json!({"metadata": {"name": name, "namespace": "test", "uid": format!("u-{name}")}, "spec": {}, "status": status}));
    }

    /// Sets the owners of a claim.
    pub(crate) fn own(&self, name: &str, owners: serde_json::Value) {
        let mut claims = self.0.lock();
        let claim = Arc::make_mut(claims.get_mut(name).unwrap());
        claim.metadata.owner_references = Some(serde_json::from_value(owners).unwrap());
    }

    pub(crate) fn remove(&self, name: &str) {
        self.0.lock().remove(name);
    }

    pub(crate) fn put_object(&self, name: &str, claim: serde_json::Value) {
        self.0.lock().insert(name.to_owned(), Arc::new(serde_json::from_value(claim).unwrap()));
    }
}

impl ClaimApi for FakeClaims {
    fn claim<'a>(&'a self, name: &'a ClaimName) -> ApiFuture<'a, Arc<ResourceClaim>> {
        async move { self.0.lock().get(name.name()).cloned().ok_or(ApiError::NotFound) }.boxed()
    }
}

/// What a manager of claims is opened with.
pub(crate) struct ManagerOpener {
    ports: ClaimPorts,
    features: ClaimFeatures,
    health: Option<Arc<dyn Checkpoint>>,
}

impl ManagerOpener {
    /// A manager without a file, with the default features and metrics that no test reads.
    pub(crate) fn new(api: &Arc<FakeClaims>, drivers: &Arc<FakeDrivers>, clock: TokioClock) -> Self {
        let ports = ClaimPorts {
            api: Some(api.clone()),
            drivers: drivers.clone(),
            checkpoint: Arc::new(NoCheckpoint),
            clock: Arc::new(clock),
            metrics: Metrics::new().dra.clone(),
        };
        ManagerOpener { ports, features: ClaimFeatures::default(), health: None }
    }

    /// The file of claims.
    pub(crate) fn file(mut self, file: Arc<dyn Checkpoint>) -> Self {
        self.ports.checkpoint = file;
        self
    }

    /// The file of device health.
    pub(crate) fn health_file(mut self, file: Arc<dyn Checkpoint>) -> Self {
        self.health = Some(file);
        self
    }

    pub(crate) fn features(mut self, features: ClaimFeatures) -> Self {
        self.features = features;
        self
    }

    pub(crate) fn metrics(mut self, metrics: &Metrics) -> Self {
        self.ports.metrics = metrics.dra.clone();
        self
    }

    /// Opens the manager, whose tasks run until the token fires.
    pub(crate) fn open(self) -> (Arc<ClaimManager>, CancellationToken) {
        let (manager, tasks) = self.opened();
        let stop = CancellationToken::new();
        actix::spawn(tasks.run(stop.clone()));
        (manager, stop)
    }

    /// As [`open`](ManagerOpener::open), but the token kills the tasks: they do not write the file for the last time.
    pub(crate) fn open_to_kill(self) -> (Arc<ClaimManager>, CancellationToken) {
        let (manager, tasks) = self.opened();
        let kill = CancellationToken::new();
        actix::spawn(kill.clone().run_until_cancelled_owned(tasks.run(CancellationToken::new())));
        (manager, kill)
    }

    fn opened(self) -> (Arc<ClaimManager>, ClaimTasks) {
        let (manager, tasks) = ClaimManager::open(self.ports, self.features).unwrap();
        match self.health {
            Some(file) => (manager, tasks.health_file(&*file)),
            None => (manager, tasks),
        }
    }
}
