//! The device taint eviction controller in tasks of the test.

use podwright_cluster::taints::LEASE;
use podwright_controllers::device_taint_controller::{
    DeviceTaintController, DeviceTaintControllerConfig, DeviceTaintControllerPorts,
};
use podwright_controllers::device_taint_eviction::Settings;
use podwright_kube_controllers::{DeviceTaintTerms, KubeDeviceTaints};
use podwright_ports::Clock;

use super::*;

/// A replica of the controller, in tasks of the test.
pub(super) struct TaintReplica {
    stop: CancellationToken,
    terms: JoinHandle<()>,
    pub(super) current: watch::Receiver<Option<Arc<DeviceTaintController>>>,
    pub(super) metrics: ControllersMetrics,
    resign: CancellationToken,
    election: Option<JoinHandle<()>>,
    /// The leadership of a replica without an election.
    term: Option<watch::Sender<Leadership>>,
}

impl TaintReplica {
    /// A replica that leads.
    pub(super) fn start(client: Client, settings: Settings) -> Self {
        Self::start_with(client, settings, Arc::new(SystemClock::new()))
    }

    /// A replica that leads, with this wall clock.
    pub(super) fn start_with(client: Client, settings: Settings, clock: Arc<dyn Clock>) -> Self {
        let (term, leadership) = watch::channel(Leadership::Leading { term: 1 });
        let lease = LeaseGuard::without_election();
        TaintReplica { term: Some(term), ..Self::with(client, settings, clock, leadership, lease) }
    }

    /// A replica that takes part in an election with short durations.
    pub(super) fn elected(client: Client, settings: Settings, identity: &str) -> Self {
        let elector = elector(&client, LEASE, identity);
        let clock = Arc::new(SystemClock::new());
        let replica = Self::with(client, settings, clock, elector.leadership(), elector.guard());
        let election = tokio::spawn(elector.run(replica.resign.clone()));
        TaintReplica { election: Some(election), ..replica }
    }

    fn with(
        client: Client,
        settings: Settings,
        clock: Arc<dyn Clock>,
        leadership: watch::Receiver<Leadership>,
        lease: LeaseGuard,
    ) -> Self {
        let metrics = ControllersMetrics::new();
        let api = Arc::new(KubeDeviceTaints::new(client.clone(), clock.clone(), metrics.events.clone()));
        let ports = DeviceTaintControllerPorts { api, clock, metrics: metrics.clone(), lease };
        let config = DeviceTaintControllerConfig { settings, ..DeviceTaintControllerConfig::default() };
        let terms = DeviceTaintTerms::new(client, config, ports);
        let (stop, current) = (CancellationToken::new(), terms.current());
        let terms = tokio::spawn(terms.run(leadership, stop.clone()));
        let resign = CancellationToken::new();
        TaintReplica { stop, resign, terms, election: None, current, metrics, term: None }
    }

    /// Ends at once, like a process that is killed.
    pub(super) fn crash(&self) {
        self.terms.abort();
        if let Some(election) = &self.election {
            election.abort();
        }
    }

    /// Waits until this number of pods is pending.
    pub(super) async fn until_pending(&self, pods: usize) {
        eventually("the pods are pending", || async {
            let controller = self.current.borrow().clone()?;
            (controller.is_synced() && controller.pending_pods() == pods).then_some(())
        })
        .await;
    }

    pub(super) async fn stop(self) {
        self.stop.cancel();
        self.terms.await.unwrap();
        self.resign.cancel();
        if let Some(election) = self.election {
            election.await.unwrap();
        }
        drop(self.term);
    }
}
