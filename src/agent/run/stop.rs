//! The graceful stop of the agent.

use std::time::Duration;

use crate::actors::shutdown::{ShutdownConfig, ShutdownGate, groups, pods, stop_all};
use tokio_util::sync::CancellationToken;

use crate::agent::view::NodeView;

/// How long the agent waits for cleanup after the pods have stopped.
const CLEANUP: Duration = Duration::from_secs(10);

/// Admits no new pods, stops the sources, stops the pods group by group, and waits for their cleanup.
pub(super) async fn stop(view: &NodeView, gate: &ShutdownGate, sources: &CancellationToken, config: ShutdownConfig) {
    gate.close(true);
    sources.cancel();
    let pods = pods(&view.node.engine, &view.node.desired);
    let count = pods.len();
    let Some(groups) = groups(config, pods) else {
        tracing::info!(pods = count, "pods keep running; the next agent takes them over");
        return;
    };
    tracing::info!(pods = count, seconds = config.total.as_secs(), "stopping pods");
    let late = stop_all(&view.node.engine, &*view.clock, &view.metrics.shutdown, &view.node.shutdown, &groups).await;
    for pod in &late {
        tracing::warn!(pod = %pod.full_name(), pod.uid = %pod.uid(), "pod did not stop in time");
    }
    if tokio::time::timeout(CLEANUP, view.node.engine.quiesced()).await.is_err() {
        tracing::warn!(seconds = CLEANUP.as_secs(), "cleanup is not complete; the next agent continues it");
    }
    tracing::info!(stopped = count - late.len(), late = late.len(), "pods stopped");
}
