//! Starts what a node does in an API server: it writes statuses and mirror pods, and registers itself.

use std::sync::Arc;

use super::NodeBuilder;
use super::shared::Shared;
use crate::engine::Engine;
use crate::mirrors::{MirrorWriter, MirrorWriterState};
use crate::node_status::{NodePresence, PresenceParts};
use crate::status_writer::{StatusWriter, WriterState};

/// Starts the writers of mirror pods and statuses. Returns that of statuses. `None` without an API server.
pub(super) fn start_writers(shared: &Shared, builder: &NodeBuilder, engine: &Engine) -> Option<Arc<StatusWriter>> {
    let api = builder.ports.pod_api.clone()?;
    let mirror_writer = MirrorWriter {
        engine: engine.clone(),
        desired: shared.desired.clone(),
        checks: shared.mirrors.clone(),
        api: api.clone(),
        node: shared.facts.name.clone(),
        registration: builder.registration.as_ref().map(|settings| settings.progress()),
        clock: shared.clock.clone(),
        metrics: shared.metrics.clone(),
        state: MirrorWriterState::default(),
    };
    let stop = shared.stop();
    shared.parts.spawn_local("mirror_writer", async move || mirror_writer.run(stop.clone()).await);
    let writer = Arc::new(StatusWriter {
        resources: shared.resources.clone(),
        engine: engine.clone(),
        desired: shared.desired.clone(),
        unwritten: shared.statuses.collect_unwritten(),
        statuses: shared.statuses.clone(),
        api,
        clock: shared.clock.clone(),
        metrics: shared.metrics.clone(),
        state: WriterState::default(),
    });
    let (running, stop) = (writer.clone(), shared.stop());
    shared.parts.spawn_local("status_writer", async move || running.clone().run(stop.clone()).await);
    Some(writer)
}

/// Starts the registration of the node. `None` without an API server for it, or without settings.
pub(super) fn start_presence(shared: &Shared, builder: &NodeBuilder, engine: &Engine) -> Option<Arc<NodePresence>> {
    let (api, settings) = (builder.ports.node_api.clone()?, builder.registration.as_deref()?);
    let presence = Arc::new(NodePresence::new(PresenceParts {
        api,
        settings: settings.clone(),
        name: shared.facts.name.clone(),
        host_ips: shared.facts.host_ips.clone(),
        runtime_name: shared.facts.runtime_name.clone(),
        observer: shared.observer.clone(),
        evictions: shared.evictions.clone(),
        gate: shared.gate.clone(),
        images: builder.ports.images.clone(),
        events: shared.events.clone(),
        clock: shared.clock.clone(),
        panics: shared.metrics.actors.panics().clone(),
    }));
    let (running, stop, engine) = (presence.clone(), shared.stop(), engine.clone());
    let mut is_first = true;
    shared.parts.spawn_local("node_status", async move || {
        if std::mem::take(&mut is_first) {
            running.record_start();
        }
        running.run().await;
        // Another agent runs with the name of the node. It may run the same pods, so this node neither stops them nor writes
        // their statuses.
        stop.cancel();
        engine.stop();
    });
    Some(presence)
}
