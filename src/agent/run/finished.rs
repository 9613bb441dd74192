//! The end of an agent with `--until-finished`.

use std::process::ExitCode;
use std::time::Duration;

use crate::agent::until::{PodsOutcome, outcome};
use crate::agent::view::NodeView;
use podwright_actors::node::NodeHandle;
use podwright_model::text::error_chain;

/// With `--until-finished`, the agent inspects all pods this long after a status change.
const INSPECT_DELAY: Duration = Duration::from_millis(20);
/// The delay grows by this for each pod. The pause is then about ten times as long as the inspection, so that inspections
/// take about a tenth of one CPU.
const INSPECT_DELAY_PER_POD: Duration = Duration::from_micros(20);

/// Resolves once every source has delivered and every pod has finished, also the pods that an earlier agent left running.
pub(super) async fn finished(view: &NodeView, node: &NodeHandle) -> PodsOutcome {
    let mut changes = view.node.status_changes();
    let mut has_listed = false;
    loop {
        let inspected = view.clone();
        // The inspection runs on a blocking thread, because it visits every pod and this thread also starts pods.
        let inspection = tokio::task::spawn_blocking(move || {
            // The sources come first: the list of pods then includes everything that they have delivered.
            let delivered = inspected.node.have_sources_delivered();
            let pods = inspected.pods();
            (outcome(delivered, &pods, &inspected.problems()), pods.len())
        });
        let pods = match inspection.await {
            Ok((Some(outcome), _)) if has_listed => return outcome,
            Ok((Some(outcome), _)) => {
                // A pod of an earlier agent that no source desires has no record before the runtime's pods were listed.
                if let Err(error) = node.run_housekeeping().await {
                    tracing::warn!(error = %error_chain(&error), "the pods that an earlier agent left running are unknown");
                    return outcome;
                }
                has_listed = true;
                continue;
            }
            Ok((None, pods)) => pods,
            Err(_) => 0,
        };
        // Cleanup publishes a status just before the record becomes finished, and publishes nothing after that. The delay
        // usually covers this gap. If it does not, the timeout below causes another inspection.
        let pause = INSPECT_DELAY + INSPECT_DELAY_PER_POD * u32::try_from(pods).unwrap_or(u32::MAX);
        tokio::select! {
            _ = changes.changed() => tokio::time::sleep(pause).await,
            () = tokio::time::sleep(pause + Duration::from_millis(500)) => {}
        }
    }
}

/// Logs the failed pods, and returns the exit code.
pub(super) fn log_outcome(outcome: &PodsOutcome) -> ExitCode {
    for line in &outcome.failed {
        tracing::error!("{line}");
    }
    let failed = outcome.failed.len();
    tracing::info!(succeeded = outcome.succeeded, failed, "all pods have finished");
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
