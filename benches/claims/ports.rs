//! Two drivers and the claims of an API server in memory, and the file of claims with counted writes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use k8s_openapi::api::resource::v1::ResourceClaim;
use parking_lot::Mutex;
use podwright::adapters::checkpoint::ClaimCheckpoint;
use podwright_model::ids::{ClaimName, ClaimUid, DriverName};
use podwright_ports::{
    ApiError, ApiFuture, Checkpoint, CheckpointError, CheckpointWriter, ClaimApi, ClaimDrivers, ClaimRef, DriverFuture,
    OpenCheckpoint, PreparedDevice,
};
use serde_json::json;
use tokio::time::{Instant, sleep};

/// How long a driver works on a call.
const LATENCY: Duration = Duration::from_millis(5);
/// The drivers, which share the claims equally.
const DRIVERS: [&str; 2] = ["gpu.bench.example", "nic.bench.example"];

/// How a driver serves its calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Service {
    /// One after the other.
    Serial,
    /// All at once.
    Parallel,
}

/// The drivers.
pub(crate) struct BenchDrivers {
    service: Service,
    turns: [tokio::sync::Mutex<()>; 2],
    /// For each call the time from its arrival to its answer.
    calls: Mutex<Vec<Duration>>,
}

impl BenchDrivers {
    pub(crate) fn new(service: Service) -> Self {
        BenchDrivers { service, turns: Default::default(), calls: Mutex::default() }
    }

    /// The durations of the calls since the last time.
    pub(crate) fn take_calls(&self) -> Vec<Duration> {
        std::mem::take(&mut *self.calls.lock())
    }

    async fn serve(&self, driver: &DriverName) {
        let arrival = Instant::now();
        let turn = match self.service {
            Service::Serial => Some(self.turns[usize::from(driver.as_str() == DRIVERS[1])].lock().await),
            Service::Parallel => None,
        };
        sleep(LATENCY).await;
        drop(turn);
        self.calls.lock().push(arrival.elapsed());
    }
}

impl ClaimDrivers for BenchDrivers {
    fn is_registered(&self, _: &DriverName) -> bool {
        true
    }

    fn prepare<'a>(&'a self, driver: &'a DriverName, claims: &'a [ClaimRef]) -> DriverFuture<'a, Vec<PreparedDevice>> {
        async move {
            self.serve(driver).await;
            let device = |claim: &ClaimRef| PreparedDevice {
                pool: "node1".to_owned(),
                device: "g0".to_owned(),
                requests: vec!["r0".to_owned()],
                cdi_devices: vec![format!("{driver}/device={}", claim.uid)],
                ..PreparedDevice::default()
            };
            Ok(claims.iter().map(|claim| (claim.uid.clone(), Ok(vec![device(claim)]))).collect())
        }
        .boxed()
    }

    fn unprepare<'a>(&'a self, driver: &'a DriverName, claims: &'a [ClaimRef]) -> DriverFuture<'a, ()> {
        async move {
            self.serve(driver).await;
            Ok(claims.iter().map(|claim| (claim.uid.clone(), Ok(()))).collect())
        }
        .boxed()
    }
}

/// The claims of the API server, which answers at once.
pub(crate) struct BenchClaims(BTreeMap<ClaimName, Arc<ResourceClaim>>);

impl BenchClaims {
    /// A claim for each pod, in the order of the pods. The pods are given by name and UID.
    pub(crate) fn of<'a>(pods: impl Iterator<Item = (&'a str, String)>) -> Self {
        let claim = |(index, (pod, uid)): (usize, (&str, String))| {
            let result = json!({"request": "r0", "driver": DRIVERS[index % 2], "pool": "node1", "device": "g0"});
            let claim = json!({
                "metadata": {"name": pod, "namespace": "bench", "uid": ClaimUid::from(format!("claim-{uid}").as_str()).to_string()},
                "spec": {},
                "status": {
                    "allocation": {"devices": {"results": [result]}},
                    "reservedFor": [{"resource": "pods", "name": pod, "uid": uid}],
                },
            });
            let claim = serde_json::from_value(claim).expect("the fields above are those of a claim");
            (ClaimName::new("bench", pod), Arc::new(claim))
        };
        BenchClaims(pods.enumerate().map(claim).collect())
    }
}

impl ClaimApi for BenchClaims {
    fn claim<'a>(&'a self, name: &'a ClaimName) -> ApiFuture<'a, Arc<ResourceClaim>> {
        async move { self.0.get(name).cloned().ok_or(ApiError::NotFound) }.boxed()
    }
}

/// What was written to the file.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Written {
    /// Changes that were added to the journal.
    pub(crate) appended: Writes,
    /// Writes of the whole file, which begin a new journal.
    pub(crate) saved: Writes,
}

/// Writes of one kind.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Writes {
    pub(crate) count: u64,
    pub(crate) records: u64,
    pub(crate) bytes: u64,
}

impl Writes {
    fn add(&mut self, records: &[Arc<str>]) {
        self.count += 1;
        self.records += records.len() as u64;
        self.bytes += records.iter().map(|record| record.len() as u64).sum::<u64>();
    }
}

/// The file of claims of the agent. Its writes are counted.
pub(crate) struct CountedFile {
    pub(crate) file: ClaimCheckpoint,
    pub(crate) written: Arc<Mutex<Written>>,
}

struct CountedWriter {
    below: Box<dyn CheckpointWriter>,
    written: Arc<Mutex<Written>>,
}

impl Checkpoint for CountedFile {
    fn open(&self) -> Result<OpenCheckpoint, CheckpointError> {
        let OpenCheckpoint { records, writer } = self.file.open()?;
        Ok(OpenCheckpoint { records, writer: Box::new(CountedWriter { below: writer, written: self.written.clone() }) })
    }
}

impl CheckpointWriter for CountedWriter {
    fn save(&self, records: Vec<Arc<str>>) -> BoxFuture<'_, Result<(), CheckpointError>> {
        self.written.lock().saved.add(&records);
        self.below.save(records)
    }

    fn append(&self, records: Vec<Arc<str>>) -> BoxFuture<'_, Result<(), CheckpointError>> {
        self.written.lock().appended.add(&records);
        self.below.append(records)
    }
}
