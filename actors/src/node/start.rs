//! Builds the subsystems of a node, and connects them.

use std::sync::Arc;

use tokio::sync::{OnceCell, watch};

use super::mailboxes::Mailboxes;
use super::shared::Shared;
use super::{NodeBuilder, NodeHandle, StartNodeError, api_server, changes, evictions, pod_workers};
use crate::explain::Explainer;
use crate::health::MAX_PASS_AGE;
use crate::shutdown::{ShutdownProgress, ShutdownTimes};

pub(super) fn start(builder: &NodeBuilder) -> Result<NodeHandle, StartNodeError> {
    let mailboxes = Mailboxes::new(&builder.ports.metrics);
    let shared = Shared::open(builder)?;
    let pods = pod_workers::start(&shared, builder, mailboxes.outbox())?;
    let (engine, containers) = (pods.engine.clone(), pods.containers.clone());

    // Nothing fails from here on.
    let shutdown = Arc::new(ShutdownProgress::default());
    let shutdown_times = ShutdownTimes::open(&*builder.ports.shutdown_times, shared.metrics.shutdown.clone());
    let status_writer = api_server::start_writers(&shared, builder, &engine);
    let explainer = Arc::new(Explainer {
        engine: engine.clone(),
        desired: shared.desired.clone(),
        statuses: shared.statuses.clone(),
        final_statuses: shared.final_statuses.clone(),
        containers: containers.clone(),
        storage: shared.storage.clone(),
        observer: shared.observer.clone(),
        passes: shared.passes.clone(),
        shutdown: shutdown.clone(),
        evictions: shared.evictions.clone(),
        status_writer: status_writer.clone(),
        resources: shared.resources.clone(),
        started: shared.clock.now(),
        adopted: OnceCell::new(),
        clock: shared.clock.clone(),
    });
    let admission = evictions::start(&shared, builder, &pods, mailboxes.dead_containers());
    let pass_needed = changes::start(&shared, &mailboxes, &engine);
    let presence = api_server::start_presence(&shared, builder, &engine);
    shared.start_files();
    let actors = mailboxes.start(&shared, builder, pods, admission, explainer.clone(), pass_needed);
    Ok(NodeHandle {
        engine,
        desired: shared.desired,
        statuses: shared.statuses,
        observer: shared.observer,
        containers,
        explainer,
        evictions: shared.evictions,
        passes: shared.passes,
        housekeeping_limit: MAX_PASS_AGE.max(builder.engine.resync.saturating_mul(2)),
        shutdown,
        shutdown_times,
        gate: shared.gate,
        status_writer,
        presence,
        shutdown_cancelled: watch::Sender::new(()),
        actors,
        clock: shared.clock,
        parts: shared.parts,
    })
}
