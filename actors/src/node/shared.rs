//! What the subsystems of a node share: the ports that several of them use, the stores, and the parts.

use std::sync::Arc;

use podwright_metrics::Metrics;
use podwright_parts::Parts;
use tokio_util::sync::CancellationToken;

use super::{NodeBuilder, StartNodeError};
use crate::containers::env::Allocatable;
use crate::desired::DesiredPods;
use crate::eviction::EvictionState;
use crate::final_statuses::FinalStatusStore;
use crate::health::PassHealth;
use crate::metered::{GuardedClock, MeteredRuntime};
use crate::mirrors::checks::MirrorChecks;
use crate::observer::Observer;
use crate::ports::{ApiObjects, Clock, ContainerRuntime, EventRecorder, PodCgroups, PodStorage, ResourcePhase};
use crate::resizes::Resizes;
use crate::run_facts::RunFacts;
use crate::shutdown::ShutdownGate;
use crate::starts::PodStarts;
use crate::status::NodeFacts;
use crate::statuses::Statuses;

/// The shared ports and stores of one node.
pub(super) struct Shared {
    pub(super) facts: NodeFacts,
    pub(super) allocatable: Allocatable,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) events: Arc<dyn EventRecorder>,
    pub(super) metrics: Metrics,
    pub(super) runtime: Arc<dyn ContainerRuntime>,
    pub(super) storage: Arc<dyn PodStorage>,
    pub(super) objects: Option<Arc<dyn ApiObjects>>,
    pub(super) resources: Option<Arc<dyn ResourcePhase>>,
    pub(super) cgroups: Option<Arc<dyn PodCgroups>>,
    pub(super) desired: Arc<DesiredPods>,
    pub(super) statuses: Arc<Statuses>,
    pub(super) final_statuses: Arc<FinalStatusStore>,
    pub(super) resizes: Arc<Resizes>,
    pub(super) run_facts: Arc<RunFacts>,
    pub(super) observer: Arc<Observer>,
    pub(super) starts: Arc<PodStarts>,
    pub(super) mirrors: Arc<MirrorChecks>,
    pub(super) evictions: Arc<EvictionState>,
    pub(super) passes: Arc<PassHealth>,
    pub(super) gate: Arc<ShutdownGate>,
    pub(super) parts: Parts,
}

impl Shared {
    /// Opens the stores. Reads their files.
    ///
    /// # Errors
    /// [`StartNodeError`] if a file cannot be read.
    pub(super) fn open(builder: &NodeBuilder) -> Result<Self, StartNodeError> {
        let NodeBuilder { ports, facts, .. } = builder;
        let (metrics, events) = (ports.metrics.clone(), ports.events.clone());
        metrics.node.name(&facts.name);
        let clock: Arc<dyn Clock> = Arc::new(GuardedClock::new(ports.clock.clone(), metrics.clone()));
        let runtime: Arc<dyn ContainerRuntime> =
            Arc::new(MeteredRuntime::new(ports.runtime.clone(), clock.clone(), metrics.clone()));
        let desired = Arc::new(DesiredPods::new(builder.sources.iter().copied()));
        let statuses = Arc::new(Statuses::new(clock.clone(), metrics.clone()));
        let (final_statuses, ended) = FinalStatusStore::open(&*ports.final_statuses)?;
        ended.into_iter().for_each(|(uid, status)| statuses.restore(uid, status));
        let (desired_pods, resize_metrics) = (desired.clone(), metrics.resize.clone());
        let resizes = Resizes::open(&*ports.allocations, desired_pods, clock.clone(), events.clone(), resize_metrics)?;
        let run_facts = RunFacts::open(&*ports.run_facts).map_err(StartNodeError::RunFacts)?;
        Ok(Shared {
            facts: facts.clone(),
            allocatable: builder.allocatable.clone(),
            desired,
            statuses,
            final_statuses: Arc::new(final_statuses),
            resizes: Arc::new(resizes),
            run_facts: Arc::new(run_facts),
            observer: Arc::new(Observer::new(runtime.clone(), clock.clone(), metrics.clone())),
            starts: Arc::new(PodStarts::new(clock.clone(), metrics.start.clone())),
            mirrors: Arc::new(MirrorChecks::new(ports.pod_api.is_some())),
            evictions: Arc::new(EvictionState::new(builder.eviction.clone(), clock.now())),
            passes: Arc::default(),
            gate: Arc::default(),
            parts: Parts::new(metrics.actors.panics().clone(), CancellationToken::new()),
            clock,
            events,
            metrics,
            runtime,
            storage: ports.storage.clone(),
            objects: ports.objects.clone(),
            resources: ports.resources.clone(),
            cgroups: ports.cgroups.clone(),
        })
    }

    /// The token that ends the actors, the parts and the background work.
    pub(super) fn stop(&self) -> CancellationToken {
        self.parts.stop().clone()
    }

    /// Starts the writers of the stores' files.
    pub(super) fn start_files(&self) {
        let (resizes, stop) = (self.resizes.clone(), self.stop());
        self.parts.spawn_local("allocations", async move || resizes.run(&stop).await);
        let (run_facts, stop) = (self.run_facts.clone(), self.stop());
        self.parts.spawn_local("run_facts", async move || run_facts.run(&stop).await);
        let (final_statuses, stop) = (self.final_statuses.clone(), self.stop());
        self.parts.spawn_local("final_statuses", async move || final_statuses.run(&stop).await);
    }
}
