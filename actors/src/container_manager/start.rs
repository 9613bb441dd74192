//! Starts one container.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use crate::container_manager::activity::Task;
use crate::container_manager::governor::{self, StartKind};
use crate::containers::backoff::BackoffDecision;
use crate::containers::definition::Definition;
use crate::containers::env::{EnvFiles, EnvObjects, VolumeContents, env_files, env_objects};
use crate::containers::image_backoff::PullFailure;
use crate::containers::plan::{Kill, KillReason};
use crate::containers::start_error::StartError;
use crate::ids::{ContainerId, ContainerName, PodUid, SandboxId};
use crate::objects::ObjectRef;
use crate::pod::{ContainerKind, PodObject};
use crate::ports::{
    ContainerConfig, ContainerState, ImageError, ImageRequest, ObjectKind, PodEvent, RuntimeError, SyncError,
    VolumeImage,
};
use crate::statuses::container_type;
use crate::text::error_chain;
use crate::texts::{containers as texts, images};

use super::error::{RUN_CONTAINER_ERROR, StartFailure};
use super::hooks::Hook;
use super::stop::StopContext;
use super::{ContainerManager, SyncWork};

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
        let uid = work.pod.uid();
        let Err(failure) = self.try_start(work, target, container).await else {
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
                self.ports.metrics.containers.container_start_failed(container_type(container.kind), reason);
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
        self.ports.metrics.containers.container_started(container_type(container.kind));
        let run = match existing_run {
            Some(made) => RunToStart::Existing(made.clone()),
            None => RunToStart::New(Box::new(self.configure(work, target, container).await?)),
        };
        let runtime = &self.ports.runtime;
        let name = container.container_name();
        let request =
            self.start_request(work, StartKind::Container, Some(name.clone())).await.ok_or(StartFailure::Cancelled)?;
        let doing = self.activities.begin_with(work.pod.uid(), Task::StartContainer, Some(name.clone()), None);
        let id = match run {
            RunToStart::Existing(id) => id,
            RunToStart::New(config) => {
                if self.ports.resizes.runs_with(work.pod.uid(), container.name, container.resources) {
                    // Otherwise an agent that was killed here would restart the new container once more for its resize.
                    let written = self.ports.resizes.written().await;
                    written.map_err(|error| StartFailure::Create(RuntimeError::failed(error)))?;
                }
                let id = runtime.create_container(*config).await.map_err(StartFailure::Create)?;
                self.record_of(work.pod, container, PodEvent::normal("Created", texts::CREATED));
                id
            }
        };
        // The creation may have taken long. The next sync starts the created container, or the container is removed
        // with its pod.
        if work.cancel.is_cancelled() {
            return Err(StartFailure::Cancelled);
        }
        if let Err(error) = runtime.start_container(&id).await {
            // The runtime also refuses to start an existing run while another start of it is under way, for example one
            // by an agent that died. Only the run's state shows whether that start succeeded.
            let open = error.is_open() || (existing_run.is_some() && self.may_be_started_by_another_agent(work, &name));
            let started =
                open && work.cancel.run_until_cancelled(self.has_started(work.pod.uid(), &id)).await == Some(true);
            if !started {
                return Err(StartFailure::Start { refused: (!open).then_some(id), error });
            }
        }
        request.started();
        drop(doing);
        self.record_of(work.pod, container, PodEvent::normal("Started", texts::STARTED));
        self.post_start(work, target, container, id).await
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
        let newest = work.status.newest(container.name)?;
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

    /// Resolves the settings of a new run.
    async fn configure(
        &self,
        work: &SyncWork<'_>,
        target: StartTarget<'_>,
        container: &Definition<'_>,
    ) -> Result<ContainerConfig, StartFailure> {
        let images = self.image_volumes(work, container).await?;
        let image_id = self.image(work, container, Wanted::of_container(container)).await?;
        let restart_count = self.restart_count(work, container).await;
        if work.cancel.is_cancelled() {
            return Err(StartFailure::Cancelled);
        }
        let files = self.env_files(work, container).await.ok_or(StartFailure::Cancelled)?;
        let objects = self.env_objects(work, container).await?;
        let contents = VolumeContents { files, images, objects };
        let resolver = &self.ports.resolver;
        let resolved = resolver.resolve(work.pod, container, work.volumes, target.ips, &contents);
        let resolved = resolved.map_err(StartFailure::Config)?;
        Ok(ContainerConfig {
            pod: Arc::clone(work.pod),
            sandbox: target.sandbox.clone(),
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

    /// Reads the files that the container's variables are taken from; `None` if the work was cancelled.
    async fn env_files(&self, work: &SyncWork<'_>, container: &Definition<'_>) -> Option<EnvFiles> {
        let mut files = EnvFiles::new();
        for (volume, path) in env_files(work.pod, container.kind, container.name) {
            let Some(directory) = work.volumes.get(&volume) else { continue };
            let read = self.ports.storage.read_volume_file(directory, &path);
            let read = work.cancel.run_until_cancelled(read).await?;
            if let Err(error) = &read {
                tracing::warn!(pod.uid = %work.pod.uid(), container.name, volume, path, error = %error_chain(error), "cannot read a file of variables");
            }
            files.insert((volume, path), read.ok());
        }
        Some(files)
    }

    /// Reads the API objects that the container's variables are taken from; `None` without an API server.
    async fn env_objects(
        &self,
        work: &SyncWork<'_>,
        container: &Definition<'_>,
    ) -> Result<Option<Box<EnvObjects>>, StartFailure> {
        let Some(api) = &self.ports.objects else { return Ok(None) };
        let namespace = work.pod.full_name().namespace();
        let read = async {
            let (mut config_maps, mut secrets) = (BTreeMap::new(), BTreeMap::new());
            for ObjectRef { kind, name } in env_objects(work.pod, container.kind, container.name) {
                if kind == ObjectKind::ConfigMap {
                    config_maps.insert(name.clone(), api.config_map(namespace, &name).await);
                } else {
                    secrets.insert(name.clone(), api.secret(namespace, &name).await);
                }
            }
            let services = api.services(namespace).await;
            EnvObjects { config_maps, secrets, services }
        };
        let read = work.cancel.run_until_cancelled(read).await.ok_or(StartFailure::Cancelled)?;
        Ok(Some(Box::new(read)))
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

    fn check_backoff(&self, work: &SyncWork<'_>, container: &Definition<'_>) -> Result<(), StartFailure> {
        let now = self.ports.clock.now();
        match self.backoff.lock().check(work.pod.uid(), container, work.status, now) {
            BackoffDecision::Start => Ok(()),
            BackoffDecision::Wait { until, delay } => {
                Err(StartFailure::CrashLoop { container: container.container_name(), delay, until })
            }
        }
    }

    /// Makes the images of the image volumes present that a container mounts. Events of the pulls belong to the pod (upstream
    /// `getImageVolumes`, kubelet 1.36).
    async fn image_volumes(
        &self,
        work: &SyncWork<'_>,
        container: &Definition<'_>,
    ) -> Result<BTreeMap<String, VolumeImage>, StartFailure> {
        let mut images = BTreeMap::new();
        for volume in work.pod.spec().volumes.iter().flatten() {
            let Some(source) = &volume.image else { continue };
            if !container.mounts.iter().any(|mount| mount.name == volume.name) {
                continue;
            }
            let reference = source.reference.as_deref().unwrap_or_default();
            let wanted = Wanted { image: reference, policy: source.pull_policy.as_deref(), of: None };
            match self.image(work, container, wanted).await {
                Ok(id) => {
                    images.insert(volume.name.clone(), VolumeImage { id, reference: reference.to_owned() });
                }
                Err(StartFailure::Cancelled) => return Err(StartFailure::Cancelled),
                Err(failure) => {
                    if let Some(event) = image_event(reference, &failure) {
                        self.record(work.pod, event);
                    }
                    return Err(StartFailure::ImageVolume(Box::new(failure)));
                }
            }
        }
        Ok(images)
    }

    async fn image(
        &self,
        work: &SyncWork<'_>,
        container: &Definition<'_>,
        wanted: Wanted<'_>,
    ) -> Result<String, StartFailure> {
        let (uid, image) = (work.pod.uid(), wanted.image);
        let waits = self.images.lock().waits(uid, image, self.ports.clock.now()).cloned();
        let pulled = match &waits {
            None => self.ensure_image(work, container, wanted).await,
            // The image may have become present without a pull. Only the policy `Always` needs the registry.
            Some(_) if wanted.policy != Some("Always") => {
                self.ensure_image(work, container, Wanted { policy: Some("Never"), ..wanted }).await
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
                if error.is_of_pull() {
                    self.images.lock().failed(uid, image, error.clone(), self.ports.clock.now());
                }
                Err(StartFailure::Image(error))
            }
        }
    }

    async fn ensure_image(
        &self,
        work: &SyncWork<'_>,
        container: &Definition<'_>,
        wanted: Wanted<'_>,
    ) -> Result<String, ImageError> {
        let (uid, image) = (work.pod.uid(), wanted.image);
        let task = Task::PullImage(image.to_owned());
        let _doing = self.activities.begin_with(uid, task, Some(container.container_name()), None);
        let _measured = self.ports.starts.pull(uid);
        let request = ImageRequest { pod: work.pod, container: wanted.of, image, pull_policy: wanted.policy };
        let pull = self.ports.runtime.ensure_image(request, work.cancel);
        // The token is checked here too: a runtime that reacts late to it must not delay the end of the pod (POD-S98).
        work.cancel.run_until_cancelled(pull).await.unwrap_or(Err(ImageError::Cancelled))
    }

    async fn restart_count(&self, work: &SyncWork<'_>, container: &Definition<'_>) -> u32 {
        let known = work.status.runs(container.name).map(|run| run.restart_count).max();
        match known {
            Some(last) => last.saturating_add(1),
            None => self.ports.storage.restarts_by_log(work.pod, container.name).await.unwrap_or(0),
        }
    }

    /// Runs the post-start hook. If it fails, the container is stopped.
    async fn post_start(
        &self,
        work: &SyncWork<'_>,
        target: StartTarget<'_>,
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
            ips: target.ips.to_vec(),
            handler: handler.clone(),
            limit: NO_LIMIT,
        };
        let task = Task::PostStart;
        let doing = self.activities.begin_with(work.pod.uid(), task, Some(container.container_name()), None);
        let Err(error) = work.cancel.run_until_cancelled(hook.run()).await.ok_or(StartFailure::Cancelled)? else {
            return Ok(());
        };
        drop(doing);
        let cx = StopContext { uid: work.pod.uid(), pod: Some(work.pod), ips: target.ips, forced: None };
        let kill = Kill { id, name: container.container_name(), reason: KillReason::PostStartFailed };
        let stopped = work.cancel.run_until_cancelled(self.stop_some(cx, &[kill])).await;
        // The next plan, or the end of the pod, stops the container.
        if let Some(Err(stop)) = stopped {
            tracing::warn!(container.name, error = %error_chain(&stop), "cannot stop a container after its post-start hook failed");
        }
        Err(StartFailure::PostStart {
            message: error.message(work.pod, container),
            summary: error.summary(work.pod, container),
        })
    }

    pub(super) fn record(&self, pod: &Arc<PodObject>, event: PodEvent) {
        self.ports.events.record(pod, event);
    }

    fn record_of(&self, pod: &Arc<PodObject>, container: &Definition<'_>, event: PodEvent) {
        self.record(pod, event.of_container(container.kind, container.name));
    }
}

/// An image that a container needs, as its own image or as a volume.
#[derive(Clone, Copy)]
struct Wanted<'a> {
    image: &'a str,
    policy: Option<&'a str>,
    /// The container that the events of the pull belong to; `None` for the pod.
    of: Option<(ContainerKind, &'a str)>,
}

impl<'a> Wanted<'a> {
    fn of_container(container: &Definition<'a>) -> Self {
        let of = Some((container.kind, container.name));
        Wanted { image: container.image, policy: container.pull_policy, of }
    }
}

fn failed_event(pod: &PodObject, container: &Definition<'_>, failure: &StartFailure) -> PodEvent {
    if let Some(event) = image_event(container.image, failure) {
        return event;
    }
    match failure {
        StartFailure::CrashLoop { .. } => PodEvent::warning("BackOff", texts::crash_backoff_event(container.name, pod)),
        // The output of a hook's command may contain secrets, so the event does not have it.
        StartFailure::PostStart { .. } => PodEvent::warning("FailedPostStartHook", texts::POST_START_FAILED),
        _ => PodEvent::warning("Failed", texts::start_failed(&failure.message(pod))),
    }
}

/// The event of an image that is not present; `None` for another failure.
fn image_event(image: &str, failure: &StartFailure) -> Option<PodEvent> {
    Some(match failure {
        StartFailure::ImageBackOff { .. } => PodEvent::normal("BackOff", images::backoff_event(image)),
        StartFailure::Image(error @ ImageError::NeverPull(_)) => {
            PodEvent::warning("ErrImageNeverPull", error.to_string())
        }
        StartFailure::Image(error @ (ImageError::InvalidName { .. } | ImageError::Inspect(_))) => {
            PodEvent::warning("InspectFailed", error.to_string())
        }
        StartFailure::Image(error) => PodEvent::warning("Failed", images::pull_failed(image, &error.of_runtime())),
        _ => return None,
    })
}
