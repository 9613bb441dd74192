//! Applies an allocated resize to the running containers and to the cgroup of a pod.

use std::time::Duration;

use crate::containers::definition::Definition;
use crate::containers::plan::Kill;
use crate::containers::stop::grace;
use crate::pod::PodObject;
use crate::ports::{CgroupError, ContainerUpdate, RuntimeError};
use crate::resize::{ResizeChanges, Step, Superseded, decreased_limits};
use crate::resizes::{NotBegun, NotWritten};
use crate::text::error_chain;
use crate::texts::resize as texts;

use super::{ContainerManager, SyncWork};

/// How much longer than its grace period the stop of a container may take: the wait for the disk, a runtime that answers late, and the
/// time until the agent knows of the exit.
const STOP_DELAY: Duration = Duration::from_secs(30);

/// A resize was not applied, or only a part of it.
#[derive(Debug, thiserror::Error)]
pub(super) enum ResizeError {
    /// A newer allocation has replaced this one.
    #[error(transparent)]
    Superseded(#[from] Superseded),
    /// The allocation is not on disk.
    #[error(transparent)]
    NotWritten(#[from] NotWritten),
    /// The stops of the containers that restart are not on disk.
    #[error(
        "the file of the facts of containers cannot be written: free or repair the disk of the agent's root directory"
    )]
    StopsNotWritten,
    /// The new memory limit is below the memory usage, or the usage is unknown. The text is upstream's.
    #[error("{0}")]
    Memory(String),
    /// The runtime refused the resources of a container.
    #[error("{}", .0.of_runtime())]
    Runtime(RuntimeError),
    /// The limits of the pod's cgroup were not set.
    #[error("{}", error_chain(.0))]
    Cgroup(CgroupError),
}

impl From<NotBegun> for ResizeError {
    fn from(error: NotBegun) -> Self {
        match error {
            NotBegun::Superseded(error) => error.into(),
            NotBegun::NotWritten(error) => error.into(),
        }
    }
}

impl ContainerManager {
    /// Records the stops of the containers that restart for a resize, before any of them is stopped. A run that is stopped may exit with 0,
    /// as if its work were complete, and an agent that dies before the next run starts must not lose this work. Cancel safe.
    pub(super) async fn record_stops(&self, pod: &PodObject, kills: &[&Kill]) -> Result<(), ResizeError> {
        let limit_of = |kill: &Kill| {
            let container = Definition::find(pod, kill.name.as_str());
            grace(Some(pod), container.as_ref(), kill.reason, None) + STOP_DELAY
        };
        let stops: Vec<_> = kills.iter().map(|&kill| (&kill.id, limit_of(kill))).collect();
        let is_written = self.ports.run_facts.stops_for_resize(pod.uid(), self.ports.clock.now(), &stops).await;
        if is_written { Ok(()) } else { Err(ResizeError::StopsNotWritten) }
    }

    /// Makes the calls of a resize. Each call is on disk before it is made, so that an agent that restarts does not count less for the
    /// pod than its containers may use, and makes the call again. A call whose allocation was replaced is not made.
    ///
    /// Ends with the first error. The next sync continues. Cancel safe.
    pub(super) async fn resize(&self, work: &SyncWork<'_>, changes: &ResizeChanges) -> Result<(), ResizeError> {
        self.check_memory(work, changes).await?;
        for step in changes.steps() {
            self.ports.resizes.begin(work.pod, &step).await?;
            let made = self.perform(work, &step).await;
            match (&step, &made) {
                (_, Ok(())) => self.ports.resizes.done(work.pod.uid(), &step),
                (Step::Container { name, resources, .. }, Err(ResizeError::Runtime(RuntimeError::Unsupported(_)))) => {
                    self.ports.resizes.refused(work.pod.uid(), name, resources);
                }
                // The effect of the call is unknown.
                (_, Err(_)) => {}
            }
            made?;
        }
        Ok(())
    }

    async fn perform(&self, work: &SyncWork<'_>, step: &Step) -> Result<(), ResizeError> {
        match step {
            Step::Container { id, name, kind, resources } => {
                let (pod, name, resources) = (work.pod.clone(), name.clone(), resources.clone());
                let update = ContainerUpdate { pod, kind: *kind, name, resources };
                self.ports.runtime.update_container(id, update).await.map_err(ResizeError::Runtime)
            }
            Step::Cgroup(limits) => match &self.ports.cgroups {
                Some(cgroups) => cgroups.resize(work.pod, *limits).await.map_err(ResizeError::Cgroup),
                None => Ok(()),
            },
        }
    }

    /// Refuses memory limits that are not above what is used, because the kernel would kill processes (upstream
    /// `validateMemoryResizeAction`, kubelet 1.36).
    async fn check_memory(&self, work: &SyncWork<'_>, changes: &ResizeChanges) -> Result<(), ResizeError> {
        let (of_pod, of_containers) = decreased_limits(changes);
        if of_pod.is_none() && of_containers.is_empty() {
            return Ok(());
        }
        let usage = self.ports.runtime.process_usage(work.pod.uid()).await;
        let usage = usage.map_err(|error| {
            tracing::warn!(pod.uid = %work.pod.uid(), error = %error_chain(&error), "cannot read the memory of a pod that is resized");
            ResizeError::Memory(texts::no_usage(work.pod))
        })?;
        let total: u64 = usage.values().map(|used| used.memory).sum();
        let is_below = |limit: i64, used: u64| used >= u64::try_from(limit).unwrap_or(0);
        let mut errors = Vec::new();
        errors
            .extend(of_pod.filter(|limit| is_below(*limit, total)).map(|limit| texts::pod_limit_in_use(limit, total)));
        for (name, limit) in of_containers {
            match usage.get(name.as_str()) {
                None => errors.push(texts::no_container_usage(name.as_str())),
                Some(used) if is_below(limit, used.memory) => {
                    errors.push(texts::container_limit_in_use(name.as_str(), limit, total));
                }
                Some(_) => {}
            }
        }
        if errors.is_empty() { Ok(()) } else { Err(ResizeError::Memory(texts::memory_in_use(&errors))) }
    }
}
