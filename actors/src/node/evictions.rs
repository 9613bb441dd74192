//! Starts the evictions and the collection of images.

use std::sync::Arc;

use actix::Recipient;

use super::NodeBuilder;
use super::pod_workers::PodWorkers;
use super::shared::Shared;
use crate::admission::AdmissionHandler;
use crate::eviction::{Evictor, EvictorParts, PressureGate, RemoveDeadContainers};
use crate::image_gc::ImageCollector;

/// Starts what the ports of the node can measure and remove. Returns the admission handlers of the node. `housekeeping` removes dead
/// containers.
pub(super) fn start(
    shared: &Shared,
    builder: &NodeBuilder,
    pods: &PodWorkers,
    housekeeping: Recipient<RemoveDeadContainers>,
) -> Vec<Arc<dyn AdmissionHandler>> {
    let ports = &builder.ports;
    let images = ports.images.clone().map(|store| {
        let (events, clock, metrics) = (shared.events.clone(), shared.clock.clone(), shared.metrics.clone());
        let collector = ImageCollector::new(store.clone(), builder.image_gc, events, clock, metrics);
        let collector = Arc::new(collector);
        let running = collector.clone();
        shared.parts.spawn_local("image_gc", async move || running.run().await);
        (store, collector)
    });
    let mut admission = ports.admission.clone();
    if ports.disks.is_some() || ports.meter.is_some() {
        let parts = EvictorParts {
            engine: pods.engine.clone(),
            desired: shared.desired.clone(),
            active: pods.active.clone(),
            runtime: shared.runtime.clone(),
            disks: ports.disks.clone(),
            meter: ports.meter.clone(),
            images,
            housekeeping,
            events: shared.events.clone(),
            state: shared.evictions.clone(),
        };
        let evictor = Evictor::new(parts, shared.clock.clone(), shared.metrics.clone());
        let period = builder.eviction_period;
        shared.parts.spawn_local("eviction", async move || evictor.run(period).await);
        // As upstream, a node under pressure rejects a pod before the other handlers check it.
        admission.insert(0, Arc::new(PressureGate(shared.evictions.clone())));
    }
    admission
}
