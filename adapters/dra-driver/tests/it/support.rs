//! A driver for tests, and the calls of a node to it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::ThreadId;

use parking_lot::Mutex;
use podwright_dra_api::v1;
use podwright_dra_driver::{
    CallError, Claim, ClaimRef, ClaimResults, DeviceHealth, DeviceMetadata, Driver, DriverBuilder, Failure,
    PreparedDevice,
};
use tempfile::TempDir;
use tokio::sync::{Notify, mpsc, watch};

pub(crate) const DRIVER: &str = "gpu.acme.test";

/// What the driver does with a claim of this name.
#[derive(Clone, Debug)]
pub(crate) enum Act {
    /// Answers with these devices.
    Devices(Vec<PreparedDevice>),
    Fail,
    /// Answers without the claim.
    Omit,
    Panic,
    /// Fails the whole call.
    FailCall,
    /// Waits for a permit of `gate`, then answers with no device.
    Wait,
}

/// A driver that records its calls.
#[derive(Clone)]
pub(crate) struct TestDriver {
    pub(crate) acts: Arc<Mutex<BTreeMap<String, Act>>>,
    pub(crate) calls: Arc<Mutex<Vec<String>>>,
    pub(crate) gate: Arc<Notify>,
    /// A message for each call that waits at the gate.
    pub(crate) waiting: mpsc::UnboundedSender<()>,
    pub(crate) failures: mpsc::UnboundedSender<Failure>,
    pub(crate) health: Option<watch::Receiver<Vec<DeviceHealth>>>,
    /// The metadata of devices, by their names.
    pub(crate) metadata: Arc<Mutex<BTreeMap<String, DeviceMetadata>>>,
    /// The threads that asked for metadata.
    pub(crate) described_on: Arc<Mutex<Vec<ThreadId>>>,
}

/// What the driver reports to the test.
pub(crate) struct Reports {
    pub(crate) waiting: mpsc::UnboundedReceiver<()>,
    pub(crate) failures: mpsc::UnboundedReceiver<Failure>,
}

impl TestDriver {
    pub(crate) fn new() -> (Self, Reports) {
        let (waiting, waits) = mpsc::unbounded_channel();
        let (failures, failed) = mpsc::unbounded_channel();
        let (acts, calls, gate, metadata, described_on) = Default::default();
        let driver = TestDriver { acts, calls, gate, waiting, failures, health: None, metadata, described_on };
        (driver, Reports { waiting: waits, failures: failed })
    }

    pub(crate) fn on(&self, claim: &str, act: Act) {
        self.acts.lock().insert(claim.to_owned(), act);
    }

    async fn act(&self, call: &str, claim: &str) -> Result<Option<Result<Vec<PreparedDevice>, CallError>>, CallError> {
        self.calls.lock().push(format!("{call} {claim}"));
        let act = self.acts.lock().get(claim).cloned();
        Ok(match act {
            None => Some(Ok(Vec::new())),
            Some(Act::Devices(devices)) => Some(Ok(devices)),
            Some(Act::Fail) => Some(Err("the device is broken".into())),
            Some(Act::Omit) => None,
            Some(Act::Panic) => panic!("the author made a mistake"),
            Some(Act::FailCall) => return Err("the machine is on fire".into()),
            Some(Act::Wait) => {
                self.waiting.send(()).unwrap();
                self.gate.notified().await;
                self.calls.lock().push(format!("{call} {claim} ends"));
                Some(Ok(Vec::new()))
            }
        })
    }
}

impl Driver for TestDriver {
    async fn prepare(&self, claims: Vec<Claim>) -> Result<ClaimResults<Vec<PreparedDevice>>, CallError> {
        let mut results = ClaimResults::new();
        for claim in claims {
            if let Some(result) = self.act("prepare", claim.name().name()).await? {
                results.insert(claim.uid().clone(), result);
            }
        }
        Ok(results)
    }

    async fn unprepare(&self, claims: Vec<ClaimRef>) -> Result<ClaimResults<()>, CallError> {
        let mut results = ClaimResults::new();
        for claim in claims {
            if let Some(result) = self.act("unprepare", claim.name.name()).await? {
                results.insert(claim.uid, result.map(drop));
            }
        }
        Ok(results)
    }

    fn metadata(&self, _: &Claim, device: &PreparedDevice) -> DeviceMetadata {
        self.described_on.lock().push(std::thread::current().id());
        self.metadata.lock().get(&device.device).cloned().unwrap_or_default()
    }

    fn failed(&self, failure: Failure) {
        self.failures.send(failure).unwrap();
    }

    fn health(&self) -> Option<watch::Receiver<Vec<DeviceHealth>>> {
        self.health.clone()
    }
}

/// The folders of a node.
pub(crate) struct Folders {
    root: TempDir,
}

impl Folders {
    pub(crate) fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(root.path().join("plugins").join(DRIVER)).unwrap();
        std::fs::create_dir_all(root.path().join("plugins_registry")).unwrap();
        Folders { root }
    }

    pub(crate) fn builder(&self, driver: TestDriver) -> DriverBuilder<TestDriver> {
        DriverBuilder::new(DRIVER, driver).root(self.root.path())
    }

    pub(crate) fn root(&self) -> &Path {
        self.root.path()
    }

    pub(crate) fn registry(&self, file: &str) -> PathBuf {
        self.root.path().join("plugins_registry").join(file)
    }

    pub(crate) fn data(&self, file: &str) -> PathBuf {
        self.root.path().join("plugins").join(DRIVER).join(file)
    }
}

pub(crate) fn claim(name: &str, uid: &str) -> v1::Claim {
    v1::Claim { namespace: "shop".to_owned(), name: name.to_owned(), uid: uid.to_owned() }
}
