//! Bringing a pod's containers in line with its plan, step by step.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use crate::container_manager::activity::Task;
use crate::container_manager::governor::StartKind;
use crate::containers::definition::Definition;
use crate::containers::plan::{Changes, FirstStart, Kill, Plan};
use crate::ids::{ContainerId, ContainerName, SandboxId};
use crate::pod::{ContainerKind, PodObject};
use crate::ports::{ContainerState, PodEvent, SandboxConfig, SyncError};

use super::start::Place;
use super::stop::{RunningParts, StopContext};
use super::{ContainerError, ContainerManager, SyncContainersResult, SyncWork, joined, unless_cancelled};

impl ContainerManager {
    /// Carries out the plan that was made for this work: one step of initialization, or what is to change after it.
    ///
    /// Ends soon after the work's token fires, with [`SyncError::Cancelled`]. A container in crash backoff shows as
    /// [`SyncError::BackOff`] with the time at which a sync makes sense again.
    pub async fn sync_containers(&self, work: &SyncWork<'_>, plan: &Plan) -> SyncContainersResult {
        if let Some(recorder) = &self.ports.recorder {
            recorder.planned(self.ports.clock.now(), work.pod, work.status, work.probes, plan);
        }
        let mut run = Run { manager: self, work, result: SyncContainersResult::default(), errors: Vec::new() };
        if let Err(error) = run.perform(plan).await {
            run.errors.push(error);
        }
        SyncContainersResult { error: joined(run.errors), ..run.result }
    }
}

/// One sync under way. An `Err` of a step ends it; errors that do not end it are gathered.
struct Run<'a> {
    manager: &'a ContainerManager,
    work: &'a SyncWork<'a>,
    result: SyncContainersResult,
    errors: Vec<SyncError>,
}

impl Run<'_> {
    async fn perform(&mut self, plan: &Plan) -> Result<(), SyncError> {
        match plan {
            Plan::StopPod { kills } => self.stop_pod(kills).await,
            Plan::RestartAll { kills, remove, triggers } => self.restart_all(kills, remove, triggers).await,
            Plan::NewSandbox { attempt, start } => {
                if !self.work.status.sandboxes.is_empty() {
                    let event =
                        PodEvent::normal("SandboxChanged", "The pod's sandbox cannot be used any more and is replaced");
                    self.manager.tell(self.work.pod, event);
                }
                self.stop_pod(&[]).await?;
                self.prune(Prune::All).await?;
                let Some((sandbox, ips)) = self.create_sandbox(*attempt).await? else { return Ok(()) };
                let place = Place { sandbox: &sandbox, ips: &ips };
                match start {
                    FirstStart::Init => self.start_init(place, &[0]).await,
                    FirstStart::Regular(list) => self.start_regular(place, list).await,
                }
            }
            Plan::Keep(changes) => self.change(changes).await,
        }
    }

    async fn change(&mut self, changes: &Changes) -> Result<(), SyncError> {
        if !changes.kill.is_empty() {
            self.result.acted = true;
            let stops = self.manager.stop_some(self.stop_context(None), &changes.kill);
            unless_cancelled(self.work.cancel, stops).await?;
        }
        self.prune(Prune::AllButNewest).await?;
        let ips = self.work.status.sandboxes.first().map(|sandbox| sandbox.ips.clone()).unwrap_or_default();
        let place = Place { sandbox: &changes.sandbox, ips: &ips };
        for index in &changes.ephemeral {
            let container = Definition::ephemeral(&self.work.pod.ephemeral_containers()[*index]);
            self.start(place, &container).await?;
        }
        self.start_init(place, &changes.init).await?;
        self.start_regular(place, &changes.regular).await
    }

    async fn start_init(&mut self, place: Place<'_>, list: &[usize]) -> Result<(), SyncError> {
        for index in list {
            // One that fails holds nothing back here: where a regular init container is to start, the plan has nothing
            // after it.
            let container = &self.work.pod.init_containers()[*index];
            self.start(place, &Definition::new(ContainerKind::Init, container)).await?;
        }
        Ok(())
    }

    async fn start_regular(&mut self, place: Place<'_>, list: &[usize]) -> Result<(), SyncError> {
        for index in list {
            let container = &self.work.pod.containers()[*index];
            self.start(place, &Definition::new(ContainerKind::Regular, container)).await?;
        }
        Ok(())
    }

    /// Starts one container. That it fails does not keep others from starting; a cancellation does.
    async fn start(&mut self, place: Place<'_>, container: &Definition<'_>) -> Result<(), SyncError> {
        match self.manager.start(self.work, place, container).await {
            Ok(()) => self.result.acted = true,
            Err(SyncError::Cancelled) => return Err(SyncError::Cancelled),
            Err(error) => {
                // A try that got beyond its backoff may have left a container behind.
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
        // The containers go as one, without hooks and without waiting for one another (KEP-5532).
        let stops = self.manager.stop_some(self.stop_context(Some(Duration::ZERO)), kills);
        unless_cancelled(self.work.cancel, stops).await?;
        self.keep_exits(triggers);
        for id in remove {
            // Logs stay: the restart count of the next run is read from them.
            let removal = self.manager.ports.runtime.remove_container(id, true).await;
            removal.map_err(ContainerError::RemoveContainer)?;
            if self.work.cancel.is_cancelled() {
                return Err(SyncError::Cancelled);
            }
        }
        Ok(())
    }

    /// Keeps the exits of those that asked for the restart, so that they wait out their backoff; the others start again
    /// at once.
    fn keep_exits(&self, triggers: &[ContainerName]) {
        let SyncWork { pod, status, .. } = self.work;
        let now = self.manager.ports.clock.now();
        let mut backoff = self.manager.backoff.lock();
        for container in triggers.iter().filter_map(|name| Definition::find(pod, name.as_str())) {
            backoff.keep_exit(pod.uid(), &container, status, now);
        }
    }

    /// Removes old runs of init containers. One that cannot be removed is tried again with the next sync.
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
        // The next run is counted from the newest one that is left: that one goes last, and only if all before it went.
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
                    tracing::warn!(container.id = %run.id, %error, "removing an old init container failed");
                    stays.insert(run.name.as_str());
                }
            }
        }
        Ok(())
    }

    /// `None` if it failed while the pod is to stop, which is no error.
    async fn create_sandbox(&mut self, attempt: u32) -> Result<Option<(SandboxId, Vec<IpAddr>)>, SyncError> {
        let SyncWork { cancel, pod, .. } = *self.work;
        let ports = &self.manager.ports;
        let uid = pod.uid();
        let turn = self.manager.turn(self.work, StartKind::Sandbox, None).await.ok_or(SyncError::Cancelled)?;
        let doing = self.manager.activities.begin(uid, Task::RunSandbox);
        ports.metrics.containers.pod_started(has_user_namespace(pod));
        self.result.acted = true;
        let config = SandboxConfig { pod: pod.clone(), attempt };
        let made = cancel.run_until_cancelled(ports.runtime.run_sandbox(config)).await;
        drop(doing);
        let sandbox = match made {
            None => return Err(SyncError::Cancelled),
            Some(Ok(sandbox)) => sandbox,
            Some(Err(error)) if cancel.is_cancelled() => {
                tracing::debug!(pod.uid = %pod.uid(), %error, "sandbox failed while the pod is to stop");
                return Ok(None);
            }
            Some(Err(error)) => {
                ports.metrics.containers.pod_start_failed(has_user_namespace(pod));
                let message = format!("Failed to create the pod's sandbox: {error}");
                self.manager.tell(pod, PodEvent::warning("FailedCreatePodSandBox", message));
                return Err(ContainerError::CreateSandbox { attempt, error }.into());
            }
        };
        turn.started();
        self.result.sandbox_created = Some(sandbox.clone());
        ports.statuses.sandbox_ready(pod);
        if pod.is_host_network() {
            return Ok(Some((sandbox, Vec::new())));
        }
        // Its addresses go into the environment of containers.
        let status = unless_cancelled(cancel, async {
            ports.runtime.pod_status(pod.uid()).await.map_err(|error| {
                let message = format!("Failed to read the status of the pod's new sandbox: {error}");
                self.manager.tell(pod, PodEvent::warning("FailedPodSandBoxStatus", message));
                ContainerError::SandboxStatus(error).into()
            })
        })
        .await?;
        let ips = status.sandboxes.into_iter().find(|s| s.id == sandbox).map(|s| s.ips).unwrap_or_default();
        Ok(Some((sandbox, ips)))
    }

    fn stop_context(&self, over: Option<Duration>) -> StopContext<'_> {
        let ips = self.work.status.sandboxes.first().map(|sandbox| sandbox.ips.as_slice()).unwrap_or_default();
        StopContext { uid: self.work.pod.uid(), pod: Some(self.work.pod), ips, over }
    }
}

/// Whether the pod runs in a user namespace of its own, which the metrics count apart.
fn has_user_namespace(pod: &PodObject) -> bool {
    pod.spec().host_users == Some(false)
}

/// Which runs of init containers to remove.
#[derive(Clone, Copy)]
enum Prune {
    All,
    /// Of the exited runs, all but the newest of each container.
    AllButNewest,
}
