//! Applies an allocated resize to the running containers and to the cgroup of a pod.

use crate::ports::{CgroupError, CgroupLimits, ContainerUpdate, RuntimeError};
use crate::resize::{Bounds, ContainerChange, ResizeChanges, decreased_limits, with_amounts_of};
use crate::resizes::NotWritten;
use crate::text::error_chain;
use crate::texts::resize as texts;

use super::{ContainerManager, SyncWork};

/// A resize was not applied, or only a part of it.
#[derive(Debug, thiserror::Error)]
pub(super) enum ResizeError {
    /// The allocation is not on disk.
    #[error(transparent)]
    NotWritten(#[from] NotWritten),
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

/// A resource whose changes are applied together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Resource {
    Memory,
    Cpu,
}

impl ContainerManager {
    /// Changes memory and then CPU. For each of them, the limits of the pod's cgroup that grow are set before the containers change,
    /// and those that shrink after that, so that the containers never have more than their pod (upstream `doPodResizeAction`,
    /// kubelet 1.36).
    ///
    /// Ends with the first error. The next sync continues. Cancel safe.
    pub(super) async fn resize(&self, work: &SyncWork<'_>, changes: &ResizeChanges) -> Result<(), ResizeError> {
        // An agent that restarts must not count less for the pod than its containers may use.
        self.ports.resizes.written().await?;
        self.check_memory(work, changes).await?;
        for (resource, list) in [(Resource::Memory, &changes.memory), (Resource::Cpu, &changes.cpu)] {
            if let Some((before, after)) = changes.cgroup {
                self.set_cgroup(work, resource, before, after, true).await?;
            }
            for change in list {
                self.update(work, resource, change).await?;
            }
            if let Some((before, after)) = changes.cgroup {
                self.set_cgroup(work, resource, before, after, false).await?;
            }
        }
        Ok(())
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

    /// Changes one resource of a container, and records the new resources of the container.
    async fn update(
        &self,
        work: &SyncWork<'_>,
        resource: Resource,
        change: &ContainerChange,
    ) -> Result<(), ResizeError> {
        let ContainerChange { id, name, kind, from, to } = change;
        // A container whose memory and CPU both change has the new memory when its CPU changes.
        let resources = match resource {
            Resource::Memory => with_amounts_of(from, to, "memory"),
            Resource::Cpu => to.clone(),
        };
        let (pod, kind, name) = (work.pod.clone(), *kind, name.clone());
        let update = ContainerUpdate { pod, kind, name: name.clone(), resources: resources.clone() };
        self.ports.runtime.update_container(id, update).await.map_err(ResizeError::Runtime)?;
        self.ports.resizes.runs_with(work.pod.uid(), name.as_str(), Some(&resources));
        Ok(())
    }

    /// Sets the limits of the pod's cgroup that grow, if `grow`, or those that shrink. A limit is never below the request.
    async fn set_cgroup(
        &self,
        work: &SyncWork<'_>,
        resource: Resource,
        before: Bounds,
        after: Bounds,
        grow: bool,
    ) -> Result<(), ResizeError> {
        let changes = |before: Option<i64>, after: Option<i64>| {
            after.filter(
                |after| if grow { before.is_none_or(|it| *after > it) } else { before.is_some_and(|it| *after < it) },
            )
        };
        let mut limits = CgroupLimits::default();
        match resource {
            Resource::Memory => limits.memory_limit = changes(before.memory_limit, after.memory_limit),
            Resource::Cpu => {
                limits.cpu_limit = changes(before.cpu_limit, after.cpu_limit);
                limits.cpu_request = changes(Some(before.cpu_request), Some(after.cpu_request));
            }
        }
        if limits == CgroupLimits::default() {
            return Ok(());
        }
        if let Some(cgroups) = &self.ports.cgroups {
            cgroups.resize(work.pod, limits).await.map_err(ResizeError::Cgroup)?;
        }
        self.ports.resizes.cgroup_has(work.pod.uid(), |bounds| {
            bounds.cpu_request = limits.cpu_request.unwrap_or(bounds.cpu_request);
            bounds.cpu_limit = limits.cpu_limit.or(bounds.cpu_limit);
            bounds.memory_limit = limits.memory_limit.or(bounds.memory_limit);
        });
        Ok(())
    }
}
