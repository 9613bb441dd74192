//! Stopping everything before the agent ends.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::actors::ids::PodUid;
use crate::actors::pod::PodObject;
use crate::actors::shutdown::{ShutdownConfig, ShutdownGate, groups, stop_all};
use tokio_util::sync::CancellationToken;

use crate::agent::view::View;

/// How long cleanup may take once the pods have stopped.
const CLEANUP: Duration = Duration::from_secs(10);

/// Lets nothing new in, stops the pods by group, and waits for their cleanup.
pub(super) async fn stop(view: &View, gate: &ShutdownGate, sources: &CancellationToken, config: ShutdownConfig) {
    gate.close(true);
    sources.cancel();
    let pods = pods(view);
    let count = pods.len();
    let Some(groups) = groups(config, pods) else {
        tracing::info!(pods = count, "pods are left running for the next agent");
        return;
    };
    tracing::info!(pods = count, seconds = config.total.as_secs(), "stopping pods");
    let late = stop_all(&view.node.engine, &*view.clock, &view.metrics.shutdown, &view.node.shutdown, &groups).await;
    for pod in &late {
        tracing::warn!(pod = %pod.full_name(), pod.uid = %pod.uid(), "pod did not stop in time");
    }
    if tokio::time::timeout(CLEANUP, view.node.engine.quiesced()).await.is_err() {
        tracing::warn!(seconds = CLEANUP.as_secs(), "cleanup is left to the next agent");
    }
    tracing::info!(stopped = count - late.len(), late = late.len(), "pods stopped");
}

/// All that may run or may come to run: what occupies the node, and what is wanted and waits for its turn.
fn pods(view: &View) -> Vec<Arc<PodObject>> {
    let engine = &view.node.engine;
    let wanted = view
        .node
        .desired
        .pods()
        .into_iter()
        .filter(|pod| engine.is_pod_known(pod.uid()) && !engine.is_pod_known_terminated(pod.uid()));
    let all: BTreeMap<PodUid, Arc<PodObject>> =
        wanted.chain(engine.unterminated_pods()).map(|pod| (pod.uid().clone(), pod)).collect();
    all.into_values().collect()
}
