//! Starting one container.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use crate::container_manager::activity::Task;
use crate::container_manager::governor::{self, StartKind};
use crate::containers::backoff::BackoffDecision;
use crate::containers::definition::Definition;
use crate::containers::image_backoff::PullFailure;
use crate::containers::plan::{Kill, KillReason};
use crate::containers::start_error::StartError;
use crate::ids::{ContainerId, ContainerName, PodUid, SandboxId};
use crate::pod::PodObject;
use crate::ports::{ContainerConfig, ContainerState, ImageError, PodEvent, SyncError};
use crate::statuses::container_type;

use super::error::{RUN_CONTAINER_ERROR, StartFailure};
use super::hooks::Hook;
use super::stop::StopContext;
use super::{ContainerManager, SyncWork};

/// A post-start hook has no limit of its own; a cancellation ends it.
const NO_LIMIT: Duration = Duration::from_secs(365 * 24 * 3600);

/// For how long the start of a run that somebody else began may go on after ours was refused: twice what a call to a
/// runtime may take (2 minutes, upstream's `runtimeRequestTimeout`).
const FOREIGN_START: Duration = Duration::from_secs(4 * 60);

/// Where containers are started.
#[derive(Clone, Copy)]
pub(super) struct Place<'a> {
    pub(super) sandbox: &'a SandboxId,
    pub(super) ips: &'a [IpAddr],
}

/// What is to be started.
enum Run {
    /// It is there.
    Made(ContainerId),
    /// It has to be made.
    New(Box<ContainerConfig>),
}

impl ContainerManager {
    /// Starts one container and keeps for the status why it could not be.
    pub(super) async fn start(
        &self,
        work: &SyncWork<'_>,
        place: Place<'_>,
        container: &Definition<'_>,
    ) -> Result<(), SyncError> {
        let uid = work.pod.uid();
        let Err(failure) = self.try_start(work, place, container).await else {
            self.start_errors.clear(uid, &container.container_name());
            return Ok(());
        };
        if let Some(reason) = failure.reason() {
            let (message, since) = (failure.to_string(), self.ports.clock.now());
            let error = StartError { reason, message, since, until: failure.until(), refused: failure.refused() };
            self.start_errors.set(uid, container.container_name(), error);
            self.tell(work.pod, failed_event(container, &failure));
            // Beside what happened there is one that says what the status says.
            if matches!(failure, StartFailure::Image(_) | StartFailure::ImageBackOff { .. }) {
                self.tell(work.pod, PodEvent::warning("Failed", format!("Error: {reason}")));
            }
            // A container that waits was not attempted.
            if !matches!(failure, StartFailure::CrashLoop { .. }) {
                self.ports.metrics.containers.container_start_failed(container_type(container.kind), reason);
            }
        }
        Err(failure.into_sync_error(container.container_name()))
    }

    async fn try_start(
        &self,
        work: &SyncWork<'_>,
        place: Place<'_>,
        container: &Definition<'_>,
    ) -> Result<(), StartFailure> {
        if work.cancel.is_cancelled() {
            return Err(StartFailure::Cancelled);
        }
        let made_before = self.made_before(work, place, container);
        // What was made has waited before.
        if made_before.is_none() {
            self.check_backoff(work, container)?;
        }
        self.ports.metrics.containers.container_started(container_type(container.kind));
        let run = match made_before {
            Some(made) => Run::Made(made.clone()),
            None => Run::New(Box::new(self.configure(work, place, container).await?)),
        };
        let runtime = &self.ports.runtime;
        let name = container.container_name();
        let turn = self.turn(work, StartKind::Container, Some(name.clone())).await.ok_or(StartFailure::Cancelled)?;
        let doing = self.activities.begin_with(work.pod.uid(), Task::StartContainer, Some(name.clone()), None);
        let id = match run {
            Run::Made(id) => id,
            Run::New(config) => {
                let id = runtime.create_container(*config).await.map_err(StartFailure::Create)?;
                self.tell(work.pod, PodEvent::normal("Created", format!("Created container {}", container.name)));
                id
            }
        };
        // The creation may have taken long. What was made is started by the next sync, or removed with what is left of its
        // pod.
        if work.cancel.is_cancelled() {
            return Err(StartFailure::Cancelled);
        }
        if let Err(error) = runtime.start_container(&id).await {
            // A start of a run that was there before is refused also while another one goes on, such as that of an agent that
            // died in it. Only the run itself tells.
            let open = error.is_open() || (made_before.is_some() && self.may_be_foreign(work, &name));
            let started =
                open && work.cancel.run_until_cancelled(self.has_started(work.pod.uid(), &id)).await == Some(true);
            if !started {
                return Err(StartFailure::Start { refused: (!open).then_some(id), error });
            }
        }
        turn.started();
        drop(doing);
        self.tell(work.pod, PodEvent::normal("Started", format!("Started container {}", container.name)));
        self.post_start(work, place, container, id).await
    }

    /// A run that was made for this and not started: the agent died, something newer was to be done, or the answer to its
    /// start did not come. To start it again cannot make two of it.
    fn made_before<'a>(
        &self,
        work: &SyncWork<'a>,
        place: Place<'_>,
        container: &Definition<'_>,
    ) -> Option<&'a ContainerId> {
        let newest = work.status.newest(container.name)?;
        let fits = newest.state == ContainerState::Created
            && newest.sandbox == *place.sandbox
            && newest.spec_hash == container.spec_hash();
        let refused = self.start_errors.refused(work.pod.uid(), &container.container_name(), &newest.id);
        (fits && !refused).then_some(&newest.id)
    }

    /// Whether a start of it that somebody else began may still go on.
    fn may_be_foreign(&self, work: &SyncWork<'_>, container: &ContainerName) -> bool {
        let errors = self.start_errors.of(work.pod.uid());
        let refused = errors.get(container).filter(|error| error.reason == RUN_CONTAINER_ERROR);
        refused.is_none_or(|error| self.ports.clock.now().since(error.since) < FOREIGN_START)
    }

    /// Whether a start whose answer did not come did its work. What cannot be looked up now is seen by the next sync.
    async fn has_started(&self, uid: &PodUid, id: &ContainerId) -> bool {
        let status = self.ports.runtime.pod_status(uid).await;
        let run = status.iter().flat_map(|status| &status.containers).find(|run| run.id == *id);
        run.is_some_and(|run| matches!(run.state, ContainerState::Running | ContainerState::Exited))
    }

    /// All that a new run of a container needs.
    async fn configure(
        &self,
        work: &SyncWork<'_>,
        place: Place<'_>,
        container: &Definition<'_>,
    ) -> Result<ContainerConfig, StartFailure> {
        let image_id = self.image(work, container).await?;
        let restart_count = self.restart_count(work, container).await;
        if work.cancel.is_cancelled() {
            return Err(StartFailure::Cancelled);
        }
        let resolver = &self.ports.resolver;
        let resolved = resolver.resolve(work.pod, container, work.volumes, place.ips).map_err(StartFailure::Config)?;
        Ok(ContainerConfig {
            pod: Arc::clone(work.pod),
            sandbox: place.sandbox.clone(),
            kind: container.kind,
            name: container.container_name(),
            restart_count,
            image_id,
            spec_hash: container.spec_hash(),
            command: resolved.command,
            args: resolved.args,
            env: resolved.env,
            mounts: resolved.mounts,
            devices: Vec::new(),
            cdi_devices: Vec::new(),
        })
    }

    /// Waits until the governor lets something start; `None` if the work was cancelled, be it in the same moment. Cancel safe:
    /// whoever goes away leaves the line.
    pub(super) async fn turn(
        &self,
        work: &SyncWork<'_>,
        kind: StartKind,
        container: Option<ContainerName>,
    ) -> Option<governor::Place<'_>> {
        let mut place = self.governor.ask(kind);
        let task = Task::AwaitTurn(kind, place.ticket());
        let _doing = (!place.may_start()).then(|| self.activities.begin_with(work.pod.uid(), task, container, None));
        work.cancel.run_until_cancelled(place.turn()).await;
        (!work.cancel.is_cancelled()).then_some(place)
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

    async fn image(&self, work: &SyncWork<'_>, container: &Definition<'_>) -> Result<String, StartFailure> {
        let (uid, image) = (work.pod.uid(), container.image);
        let waits = self.images.lock().waits(uid, image, self.ports.clock.now()).cloned();
        let pulled = match &waits {
            None => self.ensure_image(work, container, container.pull_policy).await,
            // It may have come another way; only `Always` wants the registry's word.
            Some(_) if container.pull_policy != Some("Always") => {
                self.ensure_image(work, container, Some("Never")).await
            }
            Some(_) => Err(ImageError::NeverPull(image.to_owned())),
        };
        match (pulled, waits) {
            (Ok(id), _) => {
                self.images.lock().present(uid, image);
                Ok(id)
            }
            (Err(ImageError::Cancelled), _) => Err(StartFailure::Cancelled),
            (Err(_), Some(PullFailure { error, until, .. })) => {
                Err(StartFailure::ImageBackOff { image: image.to_owned(), until, last: error })
            }
            (Err(error), None) => {
                if let ImageError::Pull(said) = &error {
                    self.images.lock().failed(uid, image, said.clone(), self.ports.clock.now());
                }
                Err(StartFailure::Image(error))
            }
        }
    }

    async fn ensure_image(
        &self,
        work: &SyncWork<'_>,
        container: &Definition<'_>,
        policy: Option<&str>,
    ) -> Result<String, ImageError> {
        let (uid, image) = (work.pod.uid(), container.image);
        let task = Task::PullImage(image.to_owned());
        let _doing = self.activities.begin_with(uid, task, Some(container.container_name()), None);
        let pull = self.ports.runtime.ensure_image(work.pod, image, policy, work.cancel);
        // The token is also watched here: a runtime that looks at it late must not hold up the end of the pod (POD-S98).
        work.cancel.run_until_cancelled(pull).await.unwrap_or(Err(ImageError::Cancelled))
    }

    async fn restart_count(&self, work: &SyncWork<'_>, container: &Definition<'_>) -> u32 {
        let known = work.status.runs(container.name).map(|run| run.restart_count).max();
        match known {
            Some(last) => last.saturating_add(1),
            None => self.ports.storage.restarts_by_log(work.pod, container.name).await.unwrap_or(0),
        }
    }

    /// Runs the post-start hook; a container whose hook fails is stopped again.
    async fn post_start(
        &self,
        work: &SyncWork<'_>,
        place: Place<'_>,
        container: &Definition<'_>,
        id: ContainerId,
    ) -> Result<(), StartFailure> {
        let Some(handler) = container.lifecycle.and_then(|lifecycle| lifecycle.post_start.as_ref()) else {
            return Ok(());
        };
        let hook = Hook {
            ports: Arc::clone(&self.ports),
            pod: Arc::clone(work.pod),
            container: container.container_name(),
            id: id.clone(),
            ips: place.ips.to_vec(),
            handler: handler.clone(),
            limit: NO_LIMIT,
        };
        let task = Task::PostStart;
        let doing = self.activities.begin_with(work.pod.uid(), task, Some(container.container_name()), None);
        let Err(error) = work.cancel.run_until_cancelled(hook.run()).await.ok_or(StartFailure::Cancelled)? else {
            return Ok(());
        };
        drop(doing);
        let cx = StopContext { uid: work.pod.uid(), pod: Some(work.pod), ips: place.ips, over: None };
        let kill = Kill { id, name: container.container_name(), reason: KillReason::PostStartFailed };
        let stopped = work.cancel.run_until_cancelled(self.stop_some(cx, &[kill])).await;
        // It will be seen running and stopped by the next plan or by the end of the pod.
        if let Some(Err(stop)) = stopped {
            tracing::warn!(container.name, error = %stop, "stopping a container after its post-start hook failed");
        }
        Err(StartFailure::PostStart(error.to_string()))
    }

    pub(super) fn tell(&self, pod: &Arc<PodObject>, event: PodEvent) {
        self.ports.events.record(pod, event);
    }
}

fn failed_event(container: &Definition<'_>, failure: &StartFailure) -> PodEvent {
    let name = container.name;
    match failure {
        StartFailure::CrashLoop { delay, .. } => PodEvent::warning(
            "BackOff",
            format!("Back-off of {} s before container {name} is started again", delay.as_secs()),
        ),
        StartFailure::ImageBackOff { .. } => {
            PodEvent::normal("BackOff", format!("Back-off pulling image {:?}", container.image))
        }
        StartFailure::Image(ImageError::NeverPull(_)) => {
            PodEvent::warning("ErrImageNeverPull", format!("Container {name}: {failure}"))
        }
        StartFailure::Image(ImageError::InvalidName(_) | ImageError::Inspect(_)) => {
            PodEvent::warning("InspectFailed", format!("Container {name}: {failure}"))
        }
        StartFailure::Image(_) => {
            PodEvent::warning("Failed", format!("Failed to pull image {:?}: {failure}", container.image))
        }
        StartFailure::PostStart(error) => {
            PodEvent::warning("FailedPostStartHook", format!("Post-start hook of container {name} failed: {error}"))
        }
        StartFailure::Config(_) | StartFailure::Create(_) | StartFailure::Start { .. } | StartFailure::Cancelled => {
            PodEvent::warning("Failed", format!("Container {name}: {failure}"))
        }
    }
}
