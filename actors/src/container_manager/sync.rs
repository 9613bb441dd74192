//! Performs a pod's plan step by step.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use crate::container_manager::activity::Task;
use crate::container_manager::governor::StartKind;
use crate::containers::definition::Definition;
use crate::containers::plan::{Changes, FirstStart, Kill, Plan};
use crate::ids::{ContainerId, ContainerName, SandboxId};
use crate::pod::{ContainerKind, PodObject};
use crate::ports::{ContainerState, PodEvent, ResourceError, SandboxConfig, SyncError};
use crate::resize::{ResizeChanges, Superseded};
use crate::run_facts::StartFact;
use crate::text::error_chain;
use crate::texts::pods as texts;
use crate::time::Time;

use super::resize::ResizeError;
use super::start::StartTarget;
use super::stop::{RunningParts, StopContext};
use super::{ContainerError, ContainerManager, NO_CLAIMS, SyncContainersResult, SyncWork, joined, unless_cancelled};

impl ContainerManager {
    /// Performs the plan for this work: one step of initialization, or the changes after it.
    ///
    /// Ends with [`SyncError::Cancelled`] soon after the work's token fires. A container in crash backoff gives a
    /// [`SyncError::BackOff`] with the end of the backoff.
    pub async fn sync_containers(&self, work: &SyncWork<'_>, plan: &Plan) -> SyncContainersResult {
        if let Some(recorder) = &self.ports.recorder {
            recorder.planned(self.ports.clock.now(), work.pod, work.status, work.probes, plan);
        }
        self.ports.starts.read(work.pod, work.status);
        let errors = self.contradicted_stops(work.pod, work.status).await;
        let mut run = ContainerSync { manager: self, work, result: SyncContainersResult::default(), errors };
        let resize = self.ports.resizes.get(work.pod.uid()).and_then(|resize| resize.actuated);
        let resize = resize.and_then(|used| ResizeChanges::plan(&used, work.pod, work.status, plan));
        if let Err(error) = run.perform(plan, resize.as_ref()).await {
            run.errors.push(error);
        }
        SyncContainersResult { error: joined(run.errors), ..run.result }
    }

    /// Makes the resources of the pod ready (POD-W19). A cancellation ends the wait, and not the operation.
    pub(super) async fn prepare_resources(&self, work: &SyncWork<'_>) -> Result<(), SyncError> {
        let SyncWork { cancel, pod, .. } = *work;
        let prepared = match &self.ports.resources {
            Some(resources) => {
                let _doing = self.activities.begin(pod.uid(), Task::PrepareResources);
                cancel.run_until_cancelled(resources.prepare(pod)).await.ok_or(SyncError::Cancelled)?
            }
            None if pod.has_claims() => Err(ResourceError::new(NO_CLAIMS)),
            None => Ok(()),
        };
        prepared.map_err(|error| {
            let message = texts::resources_not_prepared(&error_chain(&error).to_string());
            self.record(pod, PodEvent::warning("FailedPrepareDynamicResources", message));
            ContainerError::Resources(error).into()
        })
    }
}

/// A sync in progress. An `Err` of a step ends the sync; `errors` collects the errors that do not.
struct ContainerSync<'a> {
    manager: &'a ContainerManager,
    work: &'a SyncWork<'a>,
    result: SyncContainersResult,
    errors: Vec<SyncError>,
}

impl ContainerSync<'_> {
    async fn perform(&mut self, plan: &Plan, resize: Option<&ResizeChanges>) -> Result<(), SyncError> {
        match plan {
            Plan::StopPod { kills } => self.stop_pod(kills).await,
            Plan::RestartAll { kills, remove, triggers } => self.restart_all(kills, remove, triggers).await,
            Plan::NewSandbox { attempt, start } => {
                if !self.work.status.sandboxes.is_empty() {
                    self.manager.record(self.work.pod, PodEvent::normal("SandboxChanged", texts::SANDBOX_CHANGED));
                }
                self.stop_pod(&[]).await?;
                self.prune(Prune::All).await?;
                self.resize(resize).await?;
                let Some((sandbox, ips)) = self.create_sandbox(*attempt).await? else { return Ok(()) };
                let target = StartTarget { sandbox: &sandbox, ips: &ips };
                match start {
                    FirstStart::Init => self.start_init(target, &[0]).await,
                    FirstStart::Regular(list) => self.start_regular(target, list).await,
                }
            }
            Plan::Keep(changes) => match resize {
                None => self.change(changes, None).await,
                Some(resize) => {
                    if self.may_restart(resize).await? {
                        self.change(&with_restarts(changes, resize), Some(resize)).await
                    } else {
                        self.change(changes, None).await
                    }
                }
            },
        }
    }

    async fn change(&mut self, changes: &Changes, resize: Option<&ResizeChanges>) -> Result<(), SyncError> {
        if !changes.kill.is_empty() {
            self.result.acted = true;
            let stops = self.manager.stop_some(self.stop_context(None), &changes.kill);
            unless_cancelled(self.work.cancel, stops).await?;
        }
        self.prune(Prune::AllButNewest).await?;
        let changes = &*self.with_resources(changes).await?;
        let ips = self.work.status.sandboxes.first().map(|sandbox| sandbox.ips.clone()).unwrap_or_default();
        let target = StartTarget { sandbox: &changes.sandbox, ips: &ips };
        self.finish_starts(target, changes).await?;
        for index in &changes.ephemeral {
            let container = Definition::Ephemeral(&self.work.pod.ephemeral_containers()[*index]);
            self.start(target, &container).await?;
        }
        // The pod gets more before its containers do (upstream starts the init containers first; kubelet 1.36).
        self.resize(resize).await?;
        self.start_init(target, &changes.init).await?;
        self.start_regular(target, &changes.regular).await
    }

    /// Records which containers a resize stops. Returns whether it may stop them. If not, the resize has failed, and the next sync tries it
    /// again.
    async fn may_restart(&mut self, changes: &ResizeChanges) -> Result<bool, SyncError> {
        if changes.restart.is_empty() {
            return Ok(true);
        }
        let (manager, work) = (self.manager, self.work);
        let _doing = manager.activities.begin(work.pod.uid(), Task::Resize);
        let start = manager.ports.clock.now();
        let kills: Vec<&Kill> = changes.restart.iter().map(|restart| &restart.kill).collect();
        let recorded = work.cancel.run_until_cancelled(manager.record_stops(work.pod, &kills)).await;
        match recorded.ok_or(SyncError::Cancelled)? {
            Ok(()) => Ok(true),
            failed => self.resized(start, failed).map(|()| false),
        }
    }

    /// Applies an allocated resize. A failure does not keep other containers from starting; a cancellation ends the sync.
    async fn resize(&mut self, changes: Option<&ResizeChanges>) -> Result<(), SyncError> {
        let Some(changes) = changes else { return Ok(()) };
        let (manager, work) = (self.manager, self.work);
        self.result.acted = true;
        let _doing = manager.activities.begin(work.pod.uid(), Task::Resize);
        let start = manager.ports.clock.now();
        let resized = work.cancel.run_until_cancelled(manager.resize(work, changes)).await;
        self.resized(start, resized.ok_or(SyncError::Cancelled)?)
    }

    /// Publishes how a try of a resize ended that began at `start`.
    fn resized(&mut self, start: Time, resized: Result<(), ResizeError>) -> Result<(), SyncError> {
        let (ports, pod) = (&self.manager.ports, self.work.pod);
        let error = match resized {
            // The sync that applies the newer allocation is pending.
            Err(ResizeError::Superseded(_)) => return Err(SyncError::Cancelled),
            resized => resized.err().map(|error| error.to_string()),
        };
        // A newer allocation may also have come during the last call.
        ports.resizes.tried(pod, error.as_deref()).map_err(|Superseded| SyncError::Cancelled)?;
        ports.metrics.resize.applied(ports.clock.now().since(start), error.is_none());
        self.errors.extend(error.map(|error| ContainerError::Resize(error).into()));
        Ok(())
    }

    async fn start_init(&mut self, target: StartTarget<'_>, list: &[usize]) -> Result<(), SyncError> {
        for index in list {
            // A failure does not end the list: a regular init container is always the last one in it.
            let container = &self.work.pod.init_containers()[*index];
            self.start(target, &Definition::Init(container)).await?;
        }
        Ok(())
    }

    async fn start_regular(&mut self, target: StartTarget<'_>, list: &[usize]) -> Result<(), SyncError> {
        for index in list {
            let container = &self.work.pod.containers()[*index];
            self.start(target, &Definition::Regular(container)).await?;
        }
        Ok(())
    }

    /// Starts one container. A failed start does not keep other containers from starting; a cancellation ends the sync.
    async fn start(&mut self, target: StartTarget<'_>, container: &Definition<'_>) -> Result<(), SyncError> {
        let started = self.manager.start(self.work, target, container).await;
        self.started(started)
    }

    /// Ends the starts of running containers that have not ended: runs the post-start hook, or stops a container whose hook has failed. As in
    /// an uninterrupted start, the later containers wait for that.
    async fn finish_starts(&mut self, target: StartTarget<'_>, changes: &Changes) -> Result<(), SyncError> {
        let SyncWork { pod, status, .. } = *self.work;
        for container in Definition::all(pod) {
            let running = status.newest(container.name()).filter(|run| run.state == ContainerState::Running);
            let Some(run) = running.filter(|run| changes.kill.iter().all(|kill| kill.id != run.id)) else { continue };
            let (manager, id) = (self.manager, run.id.clone());
            let ended = match manager.ports.run_facts.start_of(pod.uid(), &id) {
                None => continue,
                Some(StartFact::Requested) => manager.finish_start(self.work, target, &container, id).await,
                Some(StartFact::HookFailed) => manager.stop_after_hook(self.work, target, &container, id).await,
            };
            self.started(ended)?;
        }
        Ok(())
    }

    fn started(&mut self, started: Result<(), SyncError>) -> Result<(), SyncError> {
        match started {
            Ok(()) => self.result.acted = true,
            Err(SyncError::Cancelled) => return Err(SyncError::Cancelled),
            Err(error) => {
                // A start that got past its backoff may have created a container.
                self.result.acted |= !matches!(error, SyncError::BackOff { .. });
                self.errors.push(error);
            }
        }
        Ok(())
    }

    async fn stop_pod(&mut self, kills: &[Kill]) -> Result<(), SyncError> {
        let running = RunningParts::from(self.work.status);
        if running.containers.is_empty() && running.sandboxes.is_empty() {
            return Ok(());
        }
        self.result.acted = true;
        let stops = self.manager.stop_all(self.stop_context(None), &running, kills);
        unless_cancelled(self.work.cancel, stops).await
    }

    async fn restart_all(
        &mut self,
        kills: &[Kill],
        remove: &[ContainerId],
        triggers: &[ContainerName],
    ) -> Result<(), SyncError> {
        self.result.acted = true;
        // The containers stop together, without hooks and without waiting for one another (KEP-5532).
        let stops = self.manager.stop_some(self.stop_context(Some(Duration::ZERO)), kills);
        unless_cancelled(self.work.cancel, stops).await?;
        self.keep_exits(triggers);
        for id in remove {
            // The logs stay, because the restart count of the next run is read from them.
            let removal = self.manager.ports.runtime.remove_container(id, true).await;
            removal.map_err(ContainerError::RemoveContainer)?;
            if self.work.cancel.is_cancelled() {
                return Err(SyncError::Cancelled);
            }
        }
        Ok(())
    }

    /// Keeps the exits of the containers that triggered the restart, so that they wait out their backoff. The other
    /// containers start again at once.
    fn keep_exits(&self, triggers: &[ContainerName]) {
        let SyncWork { pod, status, .. } = self.work;
        let now = self.manager.ports.clock.now();
        let mut backoff = self.manager.backoff.lock();
        for container in triggers.iter().filter_map(|name| Definition::find(pod, name.as_str())) {
            backoff.keep_exit(pod.uid(), &container, status, now);
        }
    }

    /// Removes old runs of init containers. The next sync repeats a failed removal.
    async fn prune(&mut self, which: Prune) -> Result<(), SyncError> {
        let mut seen = BTreeSet::new();
        let init: BTreeSet<_> = self.work.pod.init_containers().iter().map(|c| c.name.as_str()).collect();
        let runs = self.work.status.containers.iter().filter(|run| init.contains(run.name.as_str()));
        let mut old: Vec<_> = runs
            .filter(|run| match which {
                Prune::All => true,
                Prune::AllButNewest => run.state == ContainerState::Exited && !seen.insert(run.name.as_str()),
            })
            .collect();
        // The restart count of the next run comes from the newest run that remains. It is removed last, and only if the
        // others were removed.
        old.reverse();
        let mut stays = BTreeSet::new();
        for run in old {
            if stays.contains(run.name.as_str()) {
                continue;
            }
            if self.work.cancel.is_cancelled() {
                return Err(SyncError::Cancelled);
            }
            match self.manager.ports.runtime.remove_container(&run.id, false).await {
                Ok(()) => self.result.acted = true,
                Err(error) => {
                    tracing::warn!(container.id = %run.id, error = %error_chain(&error), "cannot remove an old init container");
                    stays.insert(run.name.as_str());
                }
            }
        }
        Ok(())
    }

    /// Creates a sandbox and reads its addresses. A failure is an error (POD-W19); `None` if it failed while the pod
    /// stops, which is no error.
    async fn create_sandbox(&mut self, attempt: u32) -> Result<Option<(SandboxId, Vec<IpAddr>)>, SyncError> {
        let SyncWork { cancel, pod, .. } = *self.work;
        let ports = &self.manager.ports;
        let uid = pod.uid();
        if cancel.is_cancelled() {
            return Err(SyncError::Cancelled);
        }
        ports.metrics.containers.pod_started(has_user_namespace(pod));
        self.manager.prepare_resources(self.work).await.inspect_err(|error| {
            if !matches!(error, SyncError::Cancelled) {
                ports.metrics.containers.pod_start_failed(has_user_namespace(pod));
            }
        })?;
        let request =
            self.manager.start_request(self.work, StartKind::Sandbox, None).await.ok_or(SyncError::Cancelled)?;
        let doing = self.manager.activities.begin(uid, Task::RunSandbox);
        self.result.acted = true;
        let config = SandboxConfig { pod: pod.clone(), attempt };
        let made = cancel.run_until_cancelled(ports.runtime.run_sandbox(config)).await;
        drop(doing);
        let sandbox = match made {
            None => return Err(SyncError::Cancelled),
            Some(Ok(sandbox)) => sandbox,
            Some(Err(error)) if cancel.is_cancelled() => {
                tracing::debug!(pod.uid = %pod.uid(), error = %error_chain(&error), "sandbox creation failed while the pod stops");
                return Ok(None);
            }
            Some(Err(error)) => {
                ports.metrics.containers.pod_start_failed(has_user_namespace(pod));
                let message = texts::no_sandbox(&error.of_runtime());
                self.manager.record(pod, PodEvent::warning("FailedCreatePodSandBox", message));
                return Err(ContainerError::CreateSandbox { attempt, source: error }.into());
            }
        };
        request.started();
        self.result.sandbox_created = Some(sandbox.clone());
        ports.statuses.sandbox_ready(pod);
        if pod.is_host_network() {
            return Ok(Some((sandbox, Vec::new())));
        }
        // The containers' environment needs the sandbox's addresses.
        let status = unless_cancelled(cancel, async {
            ports.runtime.pod_status(pod.uid()).await.map_err(|error| {
                let message = texts::no_sandbox_status(&error.of_runtime());
                self.manager.record(pod, PodEvent::warning("FailedPodSandBoxStatus", message));
                ContainerError::SandboxStatus(error).into()
            })
        })
        .await?;
        let ips = status.sandboxes.into_iter().find(|s| s.id == sandbox).map(|s| s.ips).unwrap_or_default();
        Ok(Some((sandbox, ips)))
    }

    /// The changes that are possible with the resources of the pod. Before a container starts in a sandbox in which it has not run, this
    /// agent must have prepared the resources: an earlier agent may have released them, because the runtime can finish a sandbox late,
    /// after the pod has stopped. If they are not ready, only containers start that have run in this sandbox. Ephemeral containers
    /// cannot use claims.
    async fn with_resources<'c>(&mut self, changes: &'c Changes) -> Result<Cow<'c, Changes>, SyncError> {
        let SyncWork { pod, status, .. } = *self.work;
        let has_run = |name: &str| {
            status.containers.iter().any(|run| run.name.as_str() == name && run.sandbox == changes.sandbox)
        };
        let has_init_run = |index: &usize| has_run(&pod.init_containers()[*index].name);
        let has_regular_run = |index: &usize| has_run(&pod.containers()[*index].name);
        let all_have_run = changes.init.iter().all(has_init_run) && changes.regular.iter().all(has_regular_run);
        let is_prepared = match &self.manager.ports.resources {
            Some(resources) => resources.is_prepared(pod),
            None => !pod.has_claims(),
        };
        if all_have_run || is_prepared {
            return Ok(Cow::Borrowed(changes));
        }
        match self.manager.prepare_resources(self.work).await {
            Ok(()) => Ok(Cow::Borrowed(changes)),
            Err(SyncError::Cancelled) => Err(SyncError::Cancelled),
            Err(error) => {
                self.errors.push(error);
                let mut possible = changes.clone();
                possible.init.retain(has_init_run);
                possible.regular.retain(has_regular_run);
                Ok(Cow::Owned(possible))
            }
        }
    }

    fn stop_context(&self, forced: Option<Duration>) -> StopContext<'_> {
        let ips = self.work.status.sandboxes.first().map(|sandbox| sandbox.ips.as_slice()).unwrap_or_default();
        StopContext { uid: self.work.pod.uid(), pod: Some(self.work.pod), ips, forced }
    }
}

/// The changes of a sync with the containers that a resize restarts.
fn with_restarts(changes: &Changes, resize: &ResizeChanges) -> Changes {
    let mut changes = changes.clone();
    for restart in &resize.restart {
        changes.kill.push(restart.kill.clone());
        let starts = if restart.kind == ContainerKind::Init { &mut changes.init } else { &mut changes.regular };
        if let Err(at) = starts.binary_search(&restart.index) {
            starts.insert(at, restart.index);
        }
    }
    changes
}

/// Whether the pod runs in its own user namespace, which the metrics count separately.
fn has_user_namespace(pod: &PodObject) -> bool {
    pod.spec().host_users == Some(false)
}

/// Which runs of init containers to remove.
#[derive(Clone, Copy)]
enum Prune {
    All,
    /// The exited runs except the newest of each container.
    AllButNewest,
}
