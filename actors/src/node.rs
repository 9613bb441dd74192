//! All parts of a node agent, put together over its ports.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use actix::Actor;
use podwright_metrics::Metrics;
use tokio::sync::{mpsc, watch};

use crate::admission::AdmissionHandler;
use crate::container_manager::{ContainerManager, ContainerPorts, ContainerResolver, ContainersConfig};
use crate::containers::env::Allocatable;
use crate::desired::Desired;
use crate::dispatcher::{Dispatcher, DispatcherActor};
use crate::engine::{Engine, EngineConfig, EngineParts, StartEngineError};
use crate::explain::Explainer;
use crate::final_statuses::FinalStatusStore;
use crate::housekeeping::{Housekeeping, HousekeepingActor, PassHealth, PassState};
use crate::image_gc::{ImageCollector, ImageGcActor, ImageGcPolicy};
use crate::metered::MeteredRuntime;
use crate::observer::{ChangeSink, Observer, ObserverActor};
use crate::ports::{
    Checkpoint, CheckpointError, Clock, ContainerRuntime, EventRecorder, ImageStore, NetworkClient, PodCgroups,
    PodStorage, RuntimeView, SOURCE_CHANNEL_DEPTH, SourceKind, SourceUpdate,
};
use crate::probes::{ProbeManager, ProbePorts, ProbeSink};
use crate::recorder::Recorder;
use crate::shutdown::ShutdownProgress;
use crate::status::NodeFacts;
use crate::statuses::Statuses;
use crate::sync::NodeSyncer;

/// Settings of a node.
#[derive(Clone, Debug)]
pub struct NodeConfig {
    /// Of the engine.
    pub engine: EngineConfig,
    /// Of the containers.
    pub containers: ContainersConfig,
    /// What statuses say of the node.
    pub facts: NodeFacts,
    /// What the node can give to pods; containers are told it where they have no limit of their own.
    pub allocatable: Allocatable,
    /// After how long a pod's wait becomes an event; zero for never.
    pub explain_event_after: Duration,
    /// When images that nobody needs are removed.
    pub image_gc: ImageGcPolicy,
    /// The sources that have to deliver before anything is stopped for want of a source.
    pub sources: Vec<SourceKind>,
}

/// What a node needs from outside.
#[derive(Clone)]
pub struct NodePorts {
    /// Runs containers.
    pub runtime: Arc<dyn ContainerRuntime>,
    /// Keeps images; absent for a runtime that has none.
    pub images: Option<Arc<dyn ImageStore>>,
    /// Makes the network calls of probes and hooks.
    pub network: Arc<dyn NetworkClient>,
    /// Keeps directories and volumes.
    pub storage: Arc<dyn PodStorage>,
    /// Keeps the cgroups of pods; if absent, they have none of their own.
    pub cgroups: Option<Arc<dyn PodCgroups>>,
    /// Keeps which pods are over for good.
    pub final_statuses: Arc<dyn Checkpoint>,
    /// Takes events.
    pub events: Arc<dyn EventRecorder>,
    /// Tells the time.
    pub clock: Arc<dyn Clock>,
    /// Asked in order whether a pod may start.
    pub admission: Vec<Arc<dyn AdmissionHandler>>,
    /// Where to count.
    pub metrics: Metrics,
    /// Keeps what happens; if absent, nothing is kept.
    pub recorder: Option<Arc<Recorder>>,
}

/// A running node. Its actors live on the arbiter that started it.
pub struct Node {
    /// The engine.
    pub engine: Engine,
    /// What the sources want.
    pub desired: Arc<Desired>,
    /// The statuses.
    pub statuses: Arc<Statuses>,
    /// Which pods are over for good.
    pub final_statuses: Arc<FinalStatusStore>,
    /// What runs.
    pub observer: Arc<Observer>,
    /// The pass.
    pub housekeeping: Arc<Housekeeping>,
    /// Why containers do not start.
    pub containers: Arc<ContainerManager>,
    /// Tells why pods are where they are.
    pub explainer: Arc<Explainer>,
    /// Told of a shutdown that is under way.
    pub shutdown: Arc<ShutdownProgress>,
    /// Where sources send their sets.
    pub sets: mpsc::Sender<SourceUpdate>,
    /// Whether the runtime answers.
    pub healthy: watch::Receiver<bool>,
}

/// The node cannot be started.
#[derive(Debug, thiserror::Error)]
pub enum StartNodeError {
    /// The engine's threads cannot.
    #[error("cannot start the engine's threads")]
    Engine(#[from] StartEngineError),
    /// Which pods have ended and must not run again cannot be told.
    #[error(
        "cannot read which pods have ended; make the file readable and start again, or move it away and have them run again"
    )]
    Journal(#[from] CheckpointError),
}

impl Node {
    /// Starts all parts on the current actix arbiter, and the engine's workers where its settings say. Reads the journal,
    /// which blocks.
    ///
    /// # Errors
    /// [`StartNodeError`]; then nothing was started.
    pub fn start(config: NodeConfig, ports: NodePorts) -> Result<Self, StartNodeError> {
        let NodePorts {
            runtime,
            images,
            network,
            storage,
            cgroups,
            final_statuses,
            events,
            clock,
            admission,
            metrics,
            recorder,
        } = ports;
        metrics.node.name(&config.facts.name);
        let runtime: Arc<dyn ContainerRuntime> = Arc::new(MeteredRuntime::new(runtime, clock.clone(), metrics.clone()));
        let desired = Arc::new(Desired::new(config.sources));
        let statuses = Arc::new(Statuses::new(clock.clone(), metrics.clone()));
        let (final_statuses, ended) = FinalStatusStore::open(final_statuses)?;
        let final_statuses = Arc::new(final_statuses);
        ended.into_iter().for_each(|(uid, status)| statuses.restore(uid, status));
        let observer = Arc::new(Observer::new(runtime.clone(), clock.clone(), metrics.clone()));
        let containers = Arc::new(ContainerManager::new(
            config.containers,
            ContainerPorts {
                runtime: runtime.clone(),
                network: network.clone(),
                storage: storage.clone(),
                events: events.clone(),
                clock: clock.clone(),
                resolver: ContainerResolver {
                    host_ips: config.facts.host_ips.clone(),
                    allocatable: config.allocatable,
                },
                statuses: statuses.clone(),
                metrics: metrics.clone(),
                recorder: recorder.clone(),
            },
        ));

        // Probes tell the dispatcher, which needs the engine, which needs the syncer, which needs the probes.
        let (probe_changes, mut probed) = mpsc::unbounded_channel();
        let probe_sink: ProbeSink = Arc::new(move |change| {
            // After the node has stopped nobody needs to know.
            let _stopped = probe_changes.send(change);
        });
        let probe_ports =
            ProbePorts { runtime: runtime.clone(), network, clock: clock.clone(), events: events.clone() };
        let probes = Arc::new(ProbeManager::new(probe_ports, probe_sink));

        let syncer = Arc::new(NodeSyncer {
            observer: observer.clone(),
            containers: containers.clone(),
            probes: probes.clone(),
            desired: desired.clone(),
            statuses: statuses.clone(),
            final_statuses: final_statuses.clone(),
            storage: storage.clone(),
            runtime: runtime.clone(),
            cgroups: cgroups.clone(),
            events: events.clone(),
            clock: clock.clone(),
            node: config.facts,
        });
        let engine = Engine::build(
            syncer,
            EngineParts {
                config: config.engine,
                clock: Some(clock.clone()),
                view: Some(observer.clone() as Arc<dyn RuntimeView>),
                events: Some(events.clone()),
                metrics: Some(metrics.clone()),
                recorder,
            },
        )?;
        let dispatcher = Arc::new(Dispatcher {
            engine: engine.clone(),
            desired: desired.clone(),
            statuses: statuses.clone(),
            final_statuses: final_statuses.clone(),
            view: observer.clone(),
            admission,
            events,
            clock: clock.clone(),
            metrics: metrics.clone(),
        });
        let shutdown = Arc::new(ShutdownProgress::default());
        let passes = Arc::new(PassHealth::default());
        let explainer = Arc::new(Explainer {
            engine: engine.clone(),
            desired: desired.clone(),
            statuses: statuses.clone(),
            containers: containers.clone(),
            storage: storage.clone(),
            observer: observer.clone(),
            passes: passes.clone(),
            shutdown: shutdown.clone(),
            started: clock.now(),
            clock: clock.clone(),
        });
        if let Some(store) = images {
            let (events, clock, metrics) = (dispatcher.events.clone(), clock.clone(), metrics.clone());
            let collector = ImageCollector::new(store, config.image_gc, events, clock, metrics);
            ImageGcActor::new(Arc::new(collector)).start();
        }
        let housekeeping = Arc::new(Housekeeping {
            dispatcher: dispatcher.clone(),
            runtime,
            observer: observer.clone(),
            probes,
            containers: containers.clone(),
            storage,
            cgroups,
            explainer: explainer.clone(),
            clock,
            metrics,
            state: PassState::new(passes, config.explain_event_after),
        });

        let (sets, received) = mpsc::channel(SOURCE_CHANNEL_DEPTH);
        let (healthy_now, healthy) = watch::channel(false);
        let told = dispatcher.clone();
        let sink: ChangeSink = Arc::new(move |uid| told.look_again(uid));
        ObserverActor::new(observer.clone(), sink, healthy_now).start();
        let told = dispatcher.clone();
        actix::spawn(async move {
            while let Some(change) = probed.recv().await {
                if catch_unwind(AssertUnwindSafe(|| told.probed(&change))).is_err() {
                    tracing::error!(pod.uid = %change.uid, "a change of a probe was not followed: a panic");
                }
            }
        });
        let writer = final_statuses.clone();
        actix::spawn(async move { writer.run().await });
        DispatcherActor::new(dispatcher, received, healthy.clone()).start();
        HousekeepingActor::new(housekeeping.clone()).start();
        Ok(Node {
            engine,
            desired,
            statuses,
            final_statuses,
            observer,
            housekeeping,
            containers,
            explainer,
            shutdown,
            sets,
            healthy,
        })
    }
}
