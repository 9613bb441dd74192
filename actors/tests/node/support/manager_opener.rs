//! Managers of claims over fakes.

use std::sync::Arc;

use podwright_actors::claims::{ClaimFeatures, ClaimManager, ClaimPorts, ClaimTasks};
use podwright_fixtures::fake_claims::{FakeClaims, FakeDrivers};
use podwright_metrics::Metrics;
use podwright_ports::{Checkpoint, NoCheckpoint, TokioClock};
use tokio_util::sync::CancellationToken;

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
