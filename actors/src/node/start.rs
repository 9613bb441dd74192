//! Builds the parts of a node and connects them.

use std::sync::Arc;

use actix::prelude::*;
use podwright_parts::Parts;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

use super::{NodeBuilder, NodeHandle, NodePorts, StartNodeError};
use crate::active_pods::ActivePods;
use crate::container_manager::{ContainerManager, ContainerPorts, ContainerResolver};
use crate::desired::DesiredPods;
use crate::dispatcher::{self, Dispatcher, DispatcherActor, PodObjectsChanged};
use crate::engine::Engine;
use crate::eviction::{EvictionState, Evictor, EvictorParts, PressureGate};
use crate::explain::Explainer;
use crate::final_statuses::FinalStatusStore;
use crate::health::{MAX_PASS_AGE, PassHealth};
use crate::housekeeping::{Housekeeping, HousekeepingActor, PassState};
use crate::ids::PodUid;
use crate::image_gc::ImageCollector;
use crate::mailbox::Outbox;
use crate::metered::{GuardedClock, MeteredRuntime};
use crate::mirrors::checks::MirrorChecks;
use crate::mirrors::{MirrorWriter, MirrorWriterState};
use crate::node_status::{NodePresence, PresenceParts};
use crate::observer::{Observer, ObserverActor};
use crate::pod_worker::Lifecycle;
use crate::ports::{Clock, ContainerRuntime, ResourcePhase};
use crate::probe_manager::{ProbeManager, ProbePorts};
use crate::resizes::Resizes;
use crate::run_facts::RunFacts;
use crate::shutdown::{ShutdownGate, ShutdownProgress, ShutdownTimes};
use crate::starts::PodStarts;
use crate::status_writer::{StatusWriter, WriterState};
use crate::statuses::Statuses;
use crate::sync::NodeSyncer;
use crate::time::Time;

pub(super) fn start(builder: NodeBuilder) -> Result<NodeHandle, StartNodeError> {
    let NodeBuilder {
        ports,
        engine: engine_config,
        containers: containers_config,
        facts,
        allocatable,
        long_wait_after,
        image_gc,
        eviction,
        eviction_period,
        sources,
        registration,
    } = builder;
    let NodePorts {
        runtime,
        network,
        storage,
        images,
        disks,
        meter,
        cgroups,
        resources,
        final_statuses,
        allocations,
        run_facts,
        shutdown_times,
        pod_api,
        objects,
        node_api,
        events,
        clock,
        mut admission,
        metrics,
        recorder,
    } = ports;

    // The dispatcher and housekeeping get their addresses before they are built, because other parts send to them.
    let stop = CancellationToken::new();
    let parts = Parts::new(metrics.actors.panics().clone(), stop.clone());
    let mut dispatcher_context = Context::<DispatcherActor>::new();
    dispatcher_context.set_mailbox_capacity(dispatcher::MAILBOX);
    let dispatcher_address = dispatcher_context.address();
    let dispatcher_metrics = metrics.actors.of("dispatcher");
    let housekeeping_context = Context::<HousekeepingActor>::new();
    let housekeeping_address = housekeeping_context.address();

    // Stores and queries.
    metrics.node.name(&facts.name);
    let clock: Arc<dyn Clock> = Arc::new(GuardedClock::new(clock, metrics.clone()));
    let runtime: Arc<dyn ContainerRuntime> = Arc::new(MeteredRuntime::new(runtime, clock.clone(), metrics.clone()));
    let desired = Arc::new(DesiredPods::new(sources));
    let statuses = Arc::new(Statuses::new(clock.clone(), metrics.clone()));
    let (final_statuses, ended) = FinalStatusStore::open(&*final_statuses)?;
    let final_statuses = Arc::new(final_statuses);
    ended.into_iter().for_each(|(uid, status)| statuses.restore(uid, status));
    let resizes =
        Arc::new(Resizes::open(&*allocations, desired.clone(), clock.clone(), events.clone(), metrics.resize.clone())?);
    let run_facts = Arc::new(RunFacts::open(&*run_facts).map_err(StartNodeError::RunFacts)?);
    let observer = Arc::new(Observer::new(runtime.clone(), clock.clone(), metrics.clone()));

    // Containers, probes, and the hooks that use them.
    let identity = (facts.name.clone(), facts.host_ips.clone(), facts.runtime_name.clone());
    let resolver = ContainerResolver { host_ips: facts.host_ips.clone(), allocatable: allocatable.clone() };
    let starts = Arc::new(PodStarts::new(clock.clone(), metrics.start.clone()));
    let containers = Arc::new(ContainerManager::new(
        containers_config,
        ContainerPorts {
            runtime: runtime.clone(),
            network: network.clone(),
            storage: storage.clone(),
            objects: objects.clone(),
            events: events.clone(),
            clock: clock.clone(),
            resolver,
            resources: resources.clone(),
            cgroups: cgroups.clone(),
            resizes: resizes.clone(),
            run_facts: run_facts.clone(),
            statuses: statuses.clone(),
            metrics: metrics.clone(),
            starts: starts.clone(),
            recorder: recorder.clone(),
        },
    ));
    let probe_ports = ProbePorts {
        runtime: runtime.clone(),
        network,
        clock: clock.clone(),
        events: events.clone(),
        metrics: metrics.probes.clone(),
        host_ips: facts.host_ips.clone(),
        run_facts: run_facts.clone(),
    };
    let probes =
        Arc::new(ProbeManager::new(probe_ports, Outbox::new(&dispatcher_address, &dispatcher_metrics), stop.clone()));
    let pod_ended = Arc::new(Notify::new());
    let mirrors = Arc::new(MirrorChecks::new(pod_api.is_some()));
    let node_name = facts.name.clone();
    let syncer = Arc::new(NodeSyncer {
        observer: observer.clone(),
        containers: containers.clone(),
        probes: probes.clone(),
        desired: desired.clone(),
        mirrors: mirrors.clone(),
        statuses: statuses.clone(),
        final_statuses: final_statuses.clone(),
        storage: storage.clone(),
        objects: objects.clone(),
        allocatable,
        runtime: runtime.clone(),
        resizes: resizes.clone(),
        run_facts: run_facts.clone(),
        resources: resources.clone(),
        cgroups: cgroups.clone(),
        events: events.clone(),
        clock: clock.clone(),
        pod_ended: pod_ended.clone(),
        node: facts,
    });
    let mut engine = Engine::builder(syncer)
        .config(engine_config)
        .clock(clock.clone())
        .view(observer.clone())
        .events(events.clone())
        .metrics(metrics.clone());
    if let Some(recorder) = recorder {
        engine = engine.recorder(recorder);
    }
    let engine = engine.start()?;
    let active = ActivePods {
        engine: engine.clone(),
        statuses: statuses.clone(),
        final_statuses: final_statuses.clone(),
        resizes: resizes.clone(),
    };

    // The parts that run by themselves.
    let shutdown = Arc::new(ShutdownProgress::default());
    let shutdown_times = ShutdownTimes::open(&*shutdown_times, metrics.shutdown.clone());
    let gate = Arc::new(ShutdownGate::default());
    let passes = Arc::new(PassHealth::default());
    let housekeeping_limit = MAX_PASS_AGE.max(engine_config.resync.saturating_mul(2));
    let evictions = Arc::new(EvictionState::new(eviction, clock.now()));
    let status_writer = pod_api.map(|api| {
        let mirror_writer = MirrorWriter {
            engine: engine.clone(),
            desired: desired.clone(),
            checks: mirrors.clone(),
            api: api.clone(),
            node: node_name,
            registration: registration.as_ref().map(|settings| settings.progress()),
            clock: clock.clone(),
            metrics: metrics.clone(),
            state: MirrorWriterState::default(),
        };
        let stopping = stop.clone();
        parts.spawn_local("mirror_writer", async move || mirror_writer.run(stopping.clone()).await);
        let writer = Arc::new(StatusWriter {
            resources: resources.clone(),
            engine: engine.clone(),
            desired: desired.clone(),
            unwritten: statuses.collect_unwritten(),
            statuses: statuses.clone(),
            api,
            clock: clock.clone(),
            metrics: metrics.clone(),
            state: WriterState::default(),
        });
        let (running, stopping) = (writer.clone(), stop.clone());
        parts.spawn_local("status_writer", async move || running.clone().run(stopping.clone()).await);
        writer
    });
    let explainer = Arc::new(Explainer {
        engine: engine.clone(),
        desired: desired.clone(),
        statuses: statuses.clone(),
        final_statuses: final_statuses.clone(),
        containers: containers.clone(),
        storage: storage.clone(),
        observer: observer.clone(),
        passes: passes.clone(),
        shutdown: shutdown.clone(),
        evictions: evictions.clone(),
        status_writer: status_writer.clone(),
        resources: resources.clone(),
        started: clock.now(),
        adopted: tokio::sync::OnceCell::new(),
        clock: clock.clone(),
    });
    let image_store = images.clone();
    let images = images.map(|store| {
        let (events, clock, metrics) = (events.clone(), clock.clone(), metrics.clone());
        let collector = Arc::new(ImageCollector::new(store.clone(), image_gc, events, clock, metrics));
        let running = collector.clone();
        parts.spawn_local("image_gc", async move || running.run().await);
        (store, collector)
    });
    if disks.is_some() || meter.is_some() {
        let evictor_parts = EvictorParts {
            engine: engine.clone(),
            desired: desired.clone(),
            active: active.clone(),
            runtime: runtime.clone(),
            disks,
            meter,
            images,
            housekeeping: housekeeping_address.recipient(),
            events: events.clone(),
            state: evictions.clone(),
        };
        let evictor = Evictor::new(evictor_parts, clock.clone(), metrics.clone());
        parts.spawn_local("eviction", async move || evictor.run(eviction_period).await);
        // As upstream, a node under pressure rejects a pod before the other handlers check it.
        admission.insert(0, Arc::new(PressureGate(evictions.clone())));
    }
    if let Some(objects) = objects.clone() {
        let pods = Outbox::new(&dispatcher_address, &dispatcher_metrics);
        parts.spawn_local("object_changes", async move || {
            loop {
                for uid in objects.changed().await {
                    pods.post(PodObjectsChanged { uid }).await;
                }
            }
        });
    }
    let pass_needed = Arc::new(Notify::new());
    if let Some(resources) = resources.clone() {
        let pods = Outbox::new(&dispatcher_address, &dispatcher_metrics);
        let (engine, pass_needed, clock) = (engine.clone(), pass_needed.clone(), clock.clone());
        parts.spawn_local("resource_changes", async move || {
            loop {
                for uid in resources.changed().await {
                    let has_worker = engine.lifecycle(&uid).is_some_and(|lifecycle| lifecycle < Lifecycle::Finished);
                    if !has_worker && needs_pass(&*resources, &uid, clock.now()) {
                        pass_needed.notify_one();
                    }
                    pods.post(PodObjectsChanged { uid }).await;
                }
            }
        });
    }
    let presence = node_api.zip(registration).map(|(api, settings)| {
        let (name, host_ips, runtime_name) = identity;
        let presence = Arc::new(NodePresence::new(PresenceParts {
            api,
            settings: *settings,
            name,
            host_ips,
            runtime_name,
            observer: observer.clone(),
            evictions: evictions.clone(),
            gate: gate.clone(),
            images: image_store,
            events: events.clone(),
            clock: clock.clone(),
            panics: metrics.actors.panics().clone(),
        }));
        let (running, stopping, engine) = (presence.clone(), stop.clone(), engine.clone());
        let mut is_first = true;
        parts.spawn_local("node_status", async move || {
            if std::mem::take(&mut is_first) {
                running.record_start();
            }
            running.run().await;
            // Another agent runs with the name of the node. It may run the same pods, so this node neither stops them nor writes
            // their statuses.
            stopping.cancel();
            engine.stop();
        });
        presence
    });
    let dispatcher = Dispatcher {
        engine: engine.clone(),
        desired: desired.clone(),
        statuses: statuses.clone(),
        final_statuses: final_statuses.clone(),
        active: active.clone(),
        mirrors: mirrors.clone(),
        starts,
        resizes: resizes.clone(),
        view: observer.clone(),
        gate: gate.clone(),
        admission,
        events: events.clone(),
        clock: clock.clone(),
        metrics: metrics.clone(),
    };
    let housekeeping = Housekeeping {
        engine: engine.clone(),
        desired: desired.clone(),
        statuses: statuses.clone(),
        final_statuses: final_statuses.clone(),
        active,
        mirrors,
        resizes: resizes.clone(),
        run_facts: run_facts.clone(),
        runtime,
        observer: observer.clone(),
        probes,
        containers: containers.clone(),
        storage,
        objects,
        resources,
        cgroups,
        events,
        explainer: explainer.clone(),
        gate: gate.clone(),
        clock: clock.clone(),
        metrics,
        state: PassState::new(passes.clone(), long_wait_after, stop.clone()),
    };
    let pods = Arc::new(Outbox::new(&dispatcher_address, &dispatcher_metrics));
    let health = Arc::new(Outbox::new(&dispatcher_address, &dispatcher_metrics));
    let observer_actor = ObserverActor::new(observer.clone(), pods, health, stop.clone()).start();
    let stopping = stop.clone();
    parts.spawn_local("allocations", async move || resizes.run(&stopping).await);
    let stopping = stop.clone();
    parts.spawn_local("run_facts", async move || run_facts.run(&stopping).await);
    let stopping = stop.clone();
    parts.spawn_local("final_statuses", async move || final_statuses.run(&stopping).await);
    let dispatcher_actor =
        DispatcherActor::new(Arc::new(dispatcher), dispatcher_metrics, observer.healthy(), pod_ended, stop.clone());
    let dispatcher = dispatcher_context.run(dispatcher_actor);
    let housekeeping =
        housekeeping_context.run(HousekeepingActor::new(Arc::new(housekeeping), pass_needed, stop.clone()));
    Ok(NodeHandle {
        engine,
        desired,
        statuses,
        observer,
        containers,
        explainer,
        evictions,
        passes,
        housekeeping_limit,
        shutdown,
        shutdown_times,
        gate,
        status_writer,
        presence,
        shutdown_cancelled: watch::Sender::new(()),
        dispatcher,
        housekeeping,
        observer_actor,
        clock,
        parts,
        stop,
    })
}

/// Whether a pass has to release the resources of a pod without a worker now, or to report that they are released. The health of a device of
/// such a pod may change all the time.
fn needs_pass(resources: &dyn ResourcePhase, uid: &PodUid, now: Time) -> bool {
    let is_due = |(pod, next): &(PodUid, Option<Time>)| pod == uid && next.is_some_and(|next| next <= now);
    !resources.holds(uid) || resources.ended_pods().iter().any(is_due)
}
