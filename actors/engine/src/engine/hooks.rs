//! Calls the hooks of a [`PodSyncer`] and turns their results, errors and panics into outcomes for the record.

use std::any::Any;
use std::sync::Arc;

use futures_util::future::LocalBoxFuture;

use super::EngineInner;
use super::cell::Cell;
use crate::pod_worker::step::{HookCall, Outcome};
use crate::ports::{FailureCause, HookContext, PodSyncer, SyncError, SyncOutcome, SyncRetry};
use crate::text::{error_text, panic_text};

/// A hook call in progress.
pub(super) type HookFuture = LocalBoxFuture<'static, Outcome>;
type MakeFuture = Box<dyn Fn(HookContext, HookCall) -> HookFuture + Send + Sync>;

/// Calls hooks without knowing the type of their [`PodSyncer`].
pub(super) struct HookCaller(MakeFuture);

impl HookCaller {
    pub(super) fn new<S: PodSyncer>(syncer: Arc<S>) -> Self {
        HookCaller(Box::new(move |cx, call| {
            let syncer = syncer.clone();
            // A block, because the future of a function would hold each argument twice.
            Box::pin(async move {
                let result = match &call {
                    HookCall::Sync(work) => match syncer.sync_pod(&cx, work).await {
                        Ok(SyncOutcome::Continue { check_at }) => return Outcome::Continues { check_at },
                        Ok(SyncOutcome::Terminal) => return Outcome::Ended,
                        Err(error) => Err(error),
                    },
                    HookCall::Terminating(work) => syncer.sync_terminating_pod(&cx, work).await,
                    HookCall::TerminatingRuntime(running, grace) => {
                        syncer.sync_terminating_runtime_pod(&cx, running, *grace).await
                    }
                    HookCall::Terminated(pod) => syncer.sync_terminated_pod(&cx, pod).await,
                };
                match result {
                    Ok(()) => Outcome::Succeeded,
                    Err(SyncError::Cancelled) => Outcome::Cancelled,
                    Err(_) if cx.is_cancelled() => Outcome::Cancelled,
                    Err(error) => Outcome::Failed {
                        retry: error.retry(),
                        cause: error.failure_cause(),
                        error: error_text(&error),
                    },
                }
            })
        }))
    }

    pub(super) fn call(&self, cx: HookContext, call: HookCall) -> HookFuture {
        (self.0)(cx, call)
    }
}

/// The outcome of a hook that panicked. The panic counts as a failure of that pod, and no other pod is affected
/// (POD-W12).
pub(super) fn panicked(engine: &EngineInner, cell: &Cell, panic: &(dyn Any + Send)) -> Outcome {
    let what = panic_text(panic);
    engine.metrics.actors.hook_panicked();
    tracing::error!(pod.uid = %cell.uid(), panic = what, "hook panicked");
    Outcome::Failed { error: format!("hook panicked: {what}"), retry: SyncRetry::Backoff, cause: FailureCause::Unknown }
}
