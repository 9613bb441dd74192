//! The steps that read a pod from the runtime and publish its status.

use std::borrow::Cow;
use std::sync::Arc;

use k8s_openapi::api::core::v1::PodStatus;

use super::NodeSyncer;
use crate::container_manager::activity::Task;
use crate::final_statuses::{Ending, Superseded, is_final};
use crate::ids::PodUid;
use crate::pod::PodObject;
use crate::ports::{HookContext, PodEvent, PodRuntimeStatus, RuntimeError, SyncError, TerminatingPod};
use crate::status::reasons::DEADLINE_EXCEEDED;
use crate::status::{StatusInput, compute};
use crate::texts::pods;

/// How far a pod has come, as its status shows it.
pub(super) enum Stage<'a> {
    Running,
    Stopping(&'a TerminatingPod),
    /// No container runs or can start.
    Stopped,
}

impl NodeSyncer {
    /// Reads the pod. See [`Observer::read`](crate::observer::Observer::read).
    pub(super) async fn read(
        &self,
        cx: &HookContext,
        pod: Option<&Arc<PodObject>>,
    ) -> Result<Arc<PodRuntimeStatus>, SyncError> {
        let _activity = self.containers.activities().begin(&cx.uid, Task::ReadStatus);
        self.read_ended(cx, pod, cx.cancel().run_until_cancelled(self.observer.read(&cx.uid)).await)
    }

    /// Reads the pod before its containers are started or stopped. See
    /// [`Observer::read_to_sync`](crate::observer::Observer::read_to_sync).
    pub(super) async fn read_to_sync(
        &self,
        cx: &HookContext,
        pod: &Arc<PodObject>,
    ) -> Result<Arc<PodRuntimeStatus>, SyncError> {
        let _activity = self.containers.activities().begin(&cx.uid, Task::ReadStatus);
        self.read_ended(cx, Some(pod), cx.cancel().run_until_cancelled(self.observer.read_to_sync(&cx.uid)).await)
    }

    /// Reads the pod after its containers were started or stopped. See
    /// [`Observer::read_again`](crate::observer::Observer::read_again).
    pub(super) async fn read_again(
        &self,
        cx: &HookContext,
        pod: &Arc<PodObject>,
    ) -> Result<Arc<PodRuntimeStatus>, SyncError> {
        let _activity = self.containers.activities().begin(&cx.uid, Task::ReadStatus);
        self.read_ended(cx, Some(pod), cx.cancel().run_until_cancelled(self.observer.read_again(&cx.uid)).await)
    }

    /// Passes the status that was read to the facts of runs and to the probes. A read that failed becomes an event of the pod, unless only
    /// the runtime knows the pod. `read` is `None` if the read was cancelled.
    fn read_ended(
        &self,
        cx: &HookContext,
        pod: Option<&Arc<PodObject>>,
        read: Option<Result<Arc<PodRuntimeStatus>, RuntimeError>>,
    ) -> Result<Arc<PodRuntimeStatus>, SyncError> {
        let runtime = read.ok_or(SyncError::Cancelled)?.map_err(|error| {
            if let Some(pod) = pod {
                let message = pods::no_status(&error.of_runtime());
                self.events.record(pod, PodEvent::warning("FailedSync", message));
            }
            SyncError::failed(error)
        })?;
        let runtime = self.run_facts.observe(&cx.uid, runtime, self.clock.now());
        // Only a pod with a spec has probes.
        if let Some(pod) = pod {
            self.probes.observe(&cx.uid, &self.run_facts.observable(pod, &runtime));
        }
        Ok(runtime)
    }

    /// Computes the pod's status and publishes it. A final status is on disk before it is published. It is not published if
    /// another node has opened the file of final statuses.
    ///
    /// A pod that has ended for good keeps its phase and its reason, whatever stops its last containers (POD-S76). Otherwise a shutdown
    /// would turn the status of a static pod into one after which the pod runs again.
    pub(super) async fn publish(
        &self,
        cx: &HookContext,
        pod: &PodObject,
        mirror: Option<&PodObject>,
        runtime: &PodRuntimeStatus,
        stage: Stage<'_>,
    ) -> PodStatus {
        let recursive_read_only = self.observer.supports_recursive_read_only(pod).await;
        let mut status = self.compute(&cx.uid, pod, runtime, &stage, recursive_read_only);
        if let Stage::Stopping(TerminatingPod { status_fn: Some(edit), .. }) = &stage
            && self.final_statuses.ending(&cx.uid).is_none()
        {
            edit(&mut status);
        }
        if is_final(pod, &status)
            && let Some(completed) = self.statuses.completed(pod, mirror, status.clone())
            && self.store_final_status(pod, &completed).await.is_err()
        {
            return status;
        }
        self.statuses.set(pod, mirror, status.clone(), false);
        status
    }

    /// Stores the final status of a pod on disk. Skips a pod that no later agent can start: no source desires it, or its
    /// source reports its terminal phase. Skips a pod that starts anew: it has stopped, and has not ended.
    ///
    /// # Errors
    /// [`Superseded`] if another node has opened the file, so that the status must not be published.
    pub(super) async fn store_final_status(&self, pod: &PodObject, status: &PodStatus) -> Result<(), Superseded> {
        let may_start_again = !pod.phase().is_terminal() && self.desired.pod(pod.uid()).is_some();
        if may_start_again
            && !self.final_statuses.starts_anew(pod.uid())
            && self.final_statuses.note(pod, Ending::Ended, status)
        {
            self.final_statuses.written().await?;
        }
        Ok(())
    }

    /// Records an event if the active deadline ended the pod. `sync_pod` reaches a terminal phase once, so there is one event.
    pub(super) fn report_exceeded_deadline(&self, pod: &Arc<PodObject>, status: &PodStatus) {
        if status.reason.as_deref() == Some(DEADLINE_EXCEEDED) {
            let message = status.message.clone().unwrap_or_default();
            self.events.record(pod, PodEvent::normal(DEADLINE_EXCEEDED, message));
        }
    }

    fn compute(
        &self,
        uid: &PodUid,
        pod: &PodObject,
        runtime: &PodRuntimeStatus,
        stage: &Stage<'_>,
        recursive_read_only: bool,
    ) -> PodStatus {
        let previous = self.statuses.get(uid);
        let shown = match stage {
            Stage::Running => self.run_facts.observable(pod, runtime),
            // The stop has cancelled the post-start hooks, and what runs is shown until it has stopped.
            Stage::Stopping(_) | Stage::Stopped => Cow::Borrowed(runtime),
        };
        let runs = runtime.has_running_container();
        let runtime = &*shown;
        let mut probes = self.probes.snapshot(uid);
        self.run_facts.complete(uid, runtime, &mut probes);
        let mut status = compute(&StatusInput {
            pod,
            runtime,
            runs,
            previous: previous.as_deref(),
            probes: &probes,
            start_errors: &self.containers.start_errors().of(uid),
            is_terminal: matches!(stage, Stage::Stopped),
            termination_requested: !matches!(stage, Stage::Running),
            now: self.clock.now(),
            node: &self.node,
            resize: self.resizes.get(uid).as_ref(),
            recursive_read_only,
        });
        if let Some(resources) = &self.resources {
            resources.fill_status(pod, previous.as_deref().or(pod.status()), &mut status);
        }
        status
    }
}
