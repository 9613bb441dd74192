//! Starts one container.

mod config;
mod images;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use crate::container_manager::activity::Task;
use crate::container_manager::governor::{self, StartKind};
use crate::containers::StartError;
use crate::containers::backoff::BackoffDecision;
use crate::containers::definition::Definition;
use crate::containers::plan::{Kill, KillReason};
use crate::ids::{ContainerId, ContainerName, PodUid, SandboxId};
use crate::pod::PodObject;
use crate::ports::{ContainerConfig, ContainerState, PodEvent, RuntimeError, SyncError};
use crate::resizes::NotBegun;
use crate::statuses::container_type;
use crate::text::error_chain;
use crate::texts::containers as texts;

use self::images::image_event;
use super::error::{RUN_CONTAINER_ERROR, StartFailure};
use super::hooks::Hook;
use super::stop::StopContext;
use super::{ContainerError, ContainerManager, SyncWork, unless_cancelled};

/// A post-start hook has no time limit of its own; a cancellation ends it.
const NO_LIMIT: Duration = Duration::from_secs(365 * 24 * 3600);

/// How long a start that another agent began may take after the runtime refused ours: twice the time limit of a runtime
/// call (2 minutes, the kubelet's `runtimeRequestTimeout`).
const FOREIGN_START: Duration = Duration::from_secs(4 * 60);

/// The sandbox in which containers start, and its addresses.
#[derive(Clone, Copy)]
pub(super) struct StartTarget<'a> {
    pub(super) sandbox: &'a SandboxId,
    pub(super) ips: &'a [IpAddr],
}

/// The run to start.
enum RunToStart {
    /// The run exists already.
    Existing(ContainerId),
    /// The run must be created.
    New(Box<ContainerConfig>),
}

impl ContainerManager {
    /// Starts one container. A failure is kept as the container's start error.
    pub(super) async fn start(
        &self,
        work: &SyncWork<'_>,
        target: StartTarget<'_>,
        container: &Definition<'_>,
    ) -> Result<(), SyncError> {
        let mut started = self.try_start(work, target, container).await;
        if let (Err(StartFailure::Create(RuntimeError::MissingDevice(error))), Some(resources)) =
            (&started, &self.ports.resources)
        {
            tracing::warn!(pod.uid = %work.pod.uid(), container.name = container.name(), error = %error_chain(&**error), "a device of the pod is missing: its claims are prepared again");
            resources.devices_lost(work.pod);
            match self.prepare_resources(work).await {
                Ok(()) => started = self.try_start(work, target, container).await,
                Err(SyncError::Cancelled) => started = Err(StartFailure::Cancelled),
                // The failed prepare has recorded an event of its own.
                Err(_) => {}
            }
        }
        self.start_ended(work, container, started)
    }

    /// Ends the start of a run that the runtime has started: runs its post-start hook. An agent died before that, or the answer to the
    /// start was lost. A failure is kept as the container's start error.
    pub(super) async fn finish_start(
        &self,
        work: &SyncWork<'_>,
        target: StartTarget<'_>,
        container: &Definition<'_>,
        id: ContainerId,
    ) -> Result<(), SyncError> {
        let finished = self.post_start(work, target, container, id).await;
        self.start_ended(work, container, finished)
    }

    fn start_ended(
        &self,
        work: &SyncWork<'_>,
        container: &Definition<'_>,
        ended: Result<(), StartFailure>,
    ) -> Result<(), SyncError> {
        let uid = work.pod.uid();
        let Err(failure) = ended else {
            self.start_errors.clear(uid, &container.container_name());
            return Ok(());
        };
        if let Some(reason) = failure.reason() {
            let (message, since) = (failure.message(work.pod), self.ports.clock.now());
            let error = StartError { reason, message, since, until: failure.until(), refused: failure.refused() };
            self.start_errors.set(uid, container.container_name(), error);
            self.record_of(work.pod, container, failed_event(work.pod, container, &failure));
            // The second event repeats the waiting reason of the status, as the kubelet does.
            if matches!(failure, StartFailure::Image(_) | StartFailure::ImageBackOff { .. }) {
                self.record_of(work.pod, container, PodEvent::warning("Failed", texts::start_failed(reason)));
            }
            // A container in backoff was not attempted.
            if !matches!(failure, StartFailure::CrashLoop { .. }) {
                self.ports.metrics.containers.container_start_failed(container_type(container.kind()), reason);
            }
        }
        Err(failure.into_sync_error(work.pod, container.container_name()))
    }

    async fn try_start(
        &self,
        work: &SyncWork<'_>,
        target: StartTarget<'_>,
        container: &Definition<'_>,
    ) -> Result<(), StartFailure> {
        if work.cancel.is_cancelled() {
            return Err(StartFailure::Cancelled);
        }
        let existing_run = self.existing_run(work, target, container);
        // A run that exists waited out its backoff before it was created.
        if existing_run.is_none() {
            self.check_backoff(work, container)?;
        }
        self.ports.metrics.containers.container_started(container_type(container.kind()));
        let run = match existing_run {
            Some(made) => RunToStart::Existing(made.clone()),
            None => {
                self.undo_abandoned_start(work, container).await?;
                RunToStart::New(Box::new(self.configure(work, target, container).await?))
            }
        };
        let runtime = &self.ports.runtime;
        let name = container.container_name();
        // Waits for the disk before the start takes its turn, so that it holds back no start of another pod.
        match &run {
            RunToStart::Existing(id) => self.record_start(work, id).await?,
            RunToStart::New(_) => self.record_resources(work, container).await?,
        }
        let request =
            self.start_request(work, StartKind::Container, Some(name.clone())).await.ok_or(StartFailure::Cancelled)?;
        let doing = self.activities.begin_with(work.pod.uid(), Task::StartContainer, Some(name.clone()), None);
        let id = match run {
            RunToStart::Existing(id) => id,
            RunToStart::New(config) => {
                // A newer allocation may have come meanwhile.
                self.record_resources(work, container).await?;
                let id = runtime.create_container(*config).await.map_err(StartFailure::Create)?;
                self.record_of(work.pod, container, PodEvent::normal("Created", texts::CREATED));
                // Only a created container has an ID, so this wait is part of the turn.
                self.record_start(work, &id).await?;
                id
            }
        };
        if let Err(error) = runtime.start_container(&id).await {
            // The runtime also refuses to start an existing run while another start of it is under way, for example one
            // by an agent that died. Only the run's state shows whether that start succeeded.
            let open = error.is_open() || (existing_run.is_some() && self.may_be_started_by_another_agent(work, &name));
            let started =
                open && work.cancel.run_until_cancelled(self.has_started(work.pod.uid(), &id)).await == Some(true);
            if !started {
                if !open {
                    self.ports.run_facts.start_ended(work.pod.uid(), &id);
                }
                return Err(StartFailure::Start { refused: (!open).then_some(id), error });
            }
        }
        request.started();
        drop(doing);
        self.record_of(work.pod, container, PodEvent::normal("Started", texts::STARTED));
        self.post_start(work, target, container, id).await
    }

    /// Removes the run of a container that never started because the last agent died. The container starts again with the number and the
    /// log of this run.
    async fn undo_abandoned_start(&self, work: &SyncWork<'_>, container: &Definition<'_>) -> Result<(), StartFailure> {
        let (facts, uid) = (&self.ports.run_facts, work.pod.uid());
        let Some(run) = facts.abandoned(uid, container.name()) else { return Ok(()) };
        let removed = self.ports.runtime.remove_container(&run, false).await;
        let failed = |error| StartFailure::Create(RuntimeError::failed(ContainerError::RemoveAbandoned(error)));
        removed.map_err(failed)?;
        tracing::info!(pod.uid = %uid, container.name = container.name(), "the last agent died during the start of a container: the container starts again");
        facts.start_ended(uid, &run);
        Ok(())
    }

    /// A run that was created for this container and not started, because the agent died, the sync was cancelled or the
    /// answer to its start was lost. A run starts at most once, so a second start does no harm. It may fail: containerd 1.6 keeps the
    /// task of a start during which containerd itself died, and then ends the run with the reason `StartError`.
    fn existing_run<'a>(
        &self,
        work: &SyncWork<'a>,
        target: StartTarget<'_>,
        container: &Definition<'_>,
    ) -> Option<&'a ContainerId> {
        let newest = work.status.newest(container.name())?;
        let fits = newest.state == ContainerState::Created
            && newest.sandbox == *target.sandbox
            && container.is_hash(newest.spec_hash);
        let refused = self.start_errors.refused(work.pod.uid(), &container.container_name(), &newest.id);
        (fits && !refused).then_some(&newest.id)
    }

    /// Whether a start of the container by another agent may still be under way.
    fn may_be_started_by_another_agent(&self, work: &SyncWork<'_>, container: &ContainerName) -> bool {
        let errors = self.start_errors.of(work.pod.uid());
        let refused = errors.get(container).filter(|error| error.reason == RUN_CONTAINER_ERROR);
        refused.is_none_or(|error| self.ports.clock.now().since(error.since) < FOREIGN_START)
    }

    /// Whether a start without an answer took effect. A run that ended and was never started has failed to start. If the status
    /// cannot be read now, the next sync finds out.
    async fn has_started(&self, uid: &PodUid, id: &ContainerId) -> bool {
        let status = self.ports.runtime.pod_status(uid).await;
        let run = status.iter().flat_map(|status| &status.containers).find(|run| run.id == *id);
        run.is_some_and(|run| match run.state {
            ContainerState::Running => true,
            ContainerState::Exited => run.started_at.is_some(),
            ContainerState::Created | ContainerState::Unknown => false,
        })
    }

    /// Waits until the governor grants the start; `None` if the work was cancelled. Cancel safe: dropping the future
    /// withdraws the request.
    pub(super) async fn start_request(
        &self,
        work: &SyncWork<'_>,
        kind: StartKind,
        container: Option<ContainerName>,
    ) -> Option<governor::StartRequest<'_>> {
        let mut request = self.governor.request(kind);
        let task = Task::AwaitTurn(kind, request.ticket());
        let _doing = (!request.is_granted()).then(|| self.activities.begin_with(work.pod.uid(), task, container, None));
        work.cancel.run_until_cancelled(request.granted()).await;
        (!work.cancel.is_cancelled()).then_some(request)
    }

    /// Records with which resources a container starts. Otherwise an agent that was killed during the start would restart the new
    /// container once more for its resize.
    async fn record_resources(&self, work: &SyncWork<'_>, container: &Definition<'_>) -> Result<(), StartFailure> {
        self.ports.resizes.starts(work.pod, container.name()).await.map_err(|error| match error {
            // The sync that starts the container with the newer allocation is pending.
            NotBegun::Superseded(_) => StartFailure::Cancelled,
            NotBegun::NotWritten(error) => StartFailure::Create(RuntimeError::failed(error)),
        })
    }

    /// Records that the start of a run is about to be requested. Fails if the sync is cancelled meanwhile: the creation of the run may have
    /// taken long, and so may the disk. The next sync starts the created container, or the container is removed with its pod.
    async fn record_start(&self, work: &SyncWork<'_>, run: &ContainerId) -> Result<(), StartFailure> {
        let recorded = work.cancel.run_until_cancelled(self.ports.run_facts.starts(work.pod.uid(), run)).await;
        recorded.filter(|()| !work.cancel.is_cancelled()).ok_or(StartFailure::Cancelled)
    }

    fn check_backoff(&self, work: &SyncWork<'_>, container: &Definition<'_>) -> Result<(), StartFailure> {
        let now = self.ports.clock.now();
        match self.backoff.lock().check(work.pod.uid(), container, work.status, now) {
            BackoffDecision::Start => Ok(()),
            BackoffDecision::Wait { until, delay } => {
                Err(StartFailure::CrashLoop { container: container.container_name(), delay, until })
            }
        }
    }

    /// Runs the post-start hook, which ends the start. If it fails, the container is stopped. If the container cannot be stopped, the next
    /// sync stops it.
    async fn post_start(
        &self,
        work: &SyncWork<'_>,
        target: StartTarget<'_>,
        container: &Definition<'_>,
        id: ContainerId,
    ) -> Result<(), StartFailure> {
        let (facts, uid) = (&self.ports.run_facts, work.pod.uid());
        let Some(handler) = container.lifecycle().and_then(|lifecycle| lifecycle.post_start.as_ref()) else {
            facts.start_ended(uid, &id);
            return Ok(());
        };
        let hook = Hook {
            ports: Arc::clone(&self.ports),
            pod: Arc::clone(work.pod),
            container: container.container_name(),
            id: id.clone(),
            ips: target.ips.to_vec(),
            handler: handler.clone(),
            limit: NO_LIMIT,
        };
        let task = Task::PostStart;
        let doing = self.activities.begin_with(work.pod.uid(), task, Some(container.container_name()), None);
        let Err(error) = work.cancel.run_until_cancelled(hook.run()).await.ok_or(StartFailure::Cancelled)? else {
            facts.start_ended(uid, &id);
            // The container may be reported as ready from now on. Without the end of the hook in the file, the next agent would run the
            // hook again, and the container would no longer be ready.
            work.cancel.run_until_cancelled(facts.written()).await;
            return Ok(());
        };
        drop(doing);
        facts.hook_failed(uid, &id);
        match self.stop_after_hook(work, target, container, id).await {
            Ok(()) | Err(SyncError::Cancelled) => {}
            Err(stop) => {
                tracing::warn!(container.name = container.name(), error = %error_chain(&stop), "cannot stop a container after its post-start hook failed");
            }
        }
        Err(StartFailure::PostStart {
            message: error.message(work.pod, container),
            summary: error.summary(work.pod, container),
        })
    }

    /// Stops a container whose post-start hook has failed.
    pub(super) async fn stop_after_hook(
        &self,
        work: &SyncWork<'_>,
        target: StartTarget<'_>,
        container: &Definition<'_>,
        id: ContainerId,
    ) -> Result<(), SyncError> {
        let cx = StopContext { uid: work.pod.uid(), pod: Some(work.pod), ips: target.ips, forced: None };
        let kill = Kill { id, name: container.container_name(), reason: KillReason::PostStartFailed };
        unless_cancelled(work.cancel, self.stop_some(cx, &[kill])).await
    }

    pub(super) fn record(&self, pod: &Arc<PodObject>, event: PodEvent) {
        self.ports.events.record(pod, event);
    }

    fn record_of(&self, pod: &Arc<PodObject>, container: &Definition<'_>, event: PodEvent) {
        self.record(pod, event.of_container(container.kind(), container.name()));
    }
}

fn failed_event(pod: &PodObject, container: &Definition<'_>, failure: &StartFailure) -> PodEvent {
    if let Some(event) = image_event(container.image(), failure) {
        return event;
    }
    match failure {
        StartFailure::CrashLoop { .. } => {
            PodEvent::warning("BackOff", texts::crash_backoff_event(container.name(), pod))
        }
        // The output of a hook's command may contain secrets, so the event does not have it.
        StartFailure::PostStart { .. } => PodEvent::warning("FailedPostStartHook", texts::POST_START_FAILED),
        _ => PodEvent::warning("Failed", texts::start_failed(&failure.message(pod))),
    }
}
