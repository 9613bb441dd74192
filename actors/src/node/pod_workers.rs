//! Starts the pod workers, with what their hooks use: containers, probes and the syncer.

use std::sync::Arc;

use tokio::sync::Notify;

use super::shared::Shared;
use super::{NodeBuilder, StartNodeError};
use crate::active_pods::ActivePods;
use crate::container_manager::{ContainerManager, ContainerPorts, ContainerResolver};
use crate::engine::Engine;
use crate::mailbox::Outbox;
use crate::probe_manager::{ProbeChange, ProbeManager, ProbePorts};
use crate::sync::NodeSyncer;

/// The pod workers of a node.
pub(super) struct PodWorkers {
    pub(super) engine: Engine,
    pub(super) containers: Arc<ContainerManager>,
    pub(super) probes: Arc<ProbeManager>,
    /// The pods that count for admission.
    pub(super) active: ActivePods,
    /// Fires when a pod has ended.
    pub(super) pod_ended: Arc<Notify>,
}

/// Starts the engine. `probe_changes` gets the results of probes.
///
/// # Errors
/// [`StartNodeError::Engine`].
pub(super) fn start(
    shared: &Shared,
    builder: &NodeBuilder,
    probe_changes: Outbox<ProbeChange>,
) -> Result<PodWorkers, StartNodeError> {
    let (ports, facts) = (&builder.ports, &shared.facts);
    let containers = Arc::new(ContainerManager::new(
        builder.containers,
        ContainerPorts {
            runtime: shared.runtime.clone(),
            network: ports.network.clone(),
            storage: shared.storage.clone(),
            objects: shared.objects.clone(),
            events: shared.events.clone(),
            clock: shared.clock.clone(),
            resolver: ContainerResolver { host_ips: facts.host_ips.clone(), allocatable: shared.allocatable.clone() },
            resources: shared.resources.clone(),
            cgroups: shared.cgroups.clone(),
            resizes: shared.resizes.clone(),
            run_facts: shared.run_facts.clone(),
            statuses: shared.statuses.clone(),
            metrics: shared.metrics.clone(),
            starts: shared.starts.clone(),
            recorder: ports.recorder.clone(),
        },
    ));
    let probe_ports = ProbePorts {
        runtime: shared.runtime.clone(),
        network: ports.network.clone(),
        clock: shared.clock.clone(),
        events: shared.events.clone(),
        metrics: shared.metrics.probes.clone(),
        host_ips: facts.host_ips.clone(),
        run_facts: shared.run_facts.clone(),
    };
    let probes = Arc::new(ProbeManager::new(probe_ports, probe_changes, shared.stop()));
    let pod_ended = Arc::new(Notify::new());
    let syncer = Arc::new(NodeSyncer {
        observer: shared.observer.clone(),
        containers: containers.clone(),
        probes: probes.clone(),
        desired: shared.desired.clone(),
        mirrors: shared.mirrors.clone(),
        statuses: shared.statuses.clone(),
        final_statuses: shared.final_statuses.clone(),
        storage: shared.storage.clone(),
        objects: shared.objects.clone(),
        allocatable: shared.allocatable.clone(),
        runtime: shared.runtime.clone(),
        resizes: shared.resizes.clone(),
        run_facts: shared.run_facts.clone(),
        resources: shared.resources.clone(),
        cgroups: shared.cgroups.clone(),
        events: shared.events.clone(),
        clock: shared.clock.clone(),
        pod_ended: pod_ended.clone(),
        node: facts.clone(),
    });
    let mut engine = Engine::builder(syncer)
        .config(builder.engine)
        .clock(shared.clock.clone())
        .view(shared.observer.clone())
        .events(shared.events.clone())
        .metrics(shared.metrics.clone());
    if let Some(recorder) = ports.recorder.clone() {
        engine = engine.recorder(recorder);
    }
    let engine = engine.start()?;
    let active = ActivePods {
        engine: engine.clone(),
        statuses: shared.statuses.clone(),
        final_statuses: shared.final_statuses.clone(),
        resizes: shared.resizes.clone(),
    };
    Ok(PodWorkers { engine, containers, probes, active, pod_ended })
}
