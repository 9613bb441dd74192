//! Counts how often the container runtime contradicts itself about a container, and reports it with the evidence.
//!
//! A runtime that misses the end of a container reports the container as running for ever. Then each stop fails, or it succeeds
//! and changes nothing, and the pod stays terminating.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;

use super::stop::RunningContainer;
use super::{ContainerError, ContainerManager, joined};
use crate::containers::definition::Definition;
use crate::ids::{ContainerId, PodUid};
use crate::pod::PodObject;
use crate::ports::{ContainerProcess, ContainerState, PodEvent, PodRuntimeStatus, RuntimeError, SyncError};
use crate::text::error_chain;

/// The number of contradictions about one container after which they are reported. One or two may come from a stop that ends while the
/// container is read.
const REPORTED_AFTER: u32 = 3;

/// The contradictions about the containers of all pods.
#[derive(Debug, Default)]
pub(super) struct Contradictions(Mutex<HashMap<PodUid, HashMap<ContainerId, Counts>>>);

/// The contradictions about one container that the runtime reports as running.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counts {
    /// Stops that succeeded.
    stopped: u32,
    /// Stops that failed although the process of the container has ended.
    process_ended: u32,
}

impl Contradictions {
    /// Counts a stop that succeeded. It is a contradiction if the container is still reported as running.
    pub(super) fn stopped(&self, uid: &PodUid, id: &ContainerId) {
        self.0.lock().entry(uid.clone()).or_default().entry(id.clone()).or_default().stopped += 1;
    }

    /// Counts a stop that failed for a container whose process has ended.
    fn process_ended(&self, uid: &PodUid, id: &ContainerId) -> Counts {
        let mut pods = self.0.lock();
        let counts = pods.entry(uid.clone()).or_default().entry(id.clone()).or_default();
        counts.process_ended += 1;
        *counts
    }

    /// Forgets the containers of a pod that are not among the running ones, and returns the counts of the others.
    fn of_running(&self, uid: &PodUid, running: &[&ContainerId]) -> HashMap<ContainerId, Counts> {
        let mut pods = self.0.lock();
        let Some(counts) = pods.get_mut(uid) else { return HashMap::new() };
        counts.retain(|id, _| running.contains(&id));
        let left = counts.clone();
        if left.is_empty() {
            pods.remove(uid);
        }
        left
    }

    pub(super) fn retain(&self, keep: impl Fn(&PodUid) -> bool) {
        self.0.lock().retain(|uid, _| keep(uid));
    }
}

impl Counts {
    fn total(self) -> u32 {
        self.stopped + self.process_ended
    }
}

/// What shows that the runtime contradicts itself, for people.
struct Evidence<'a> {
    counts: Counts,
    process: Option<ContainerProcess>,
    /// The error of the last stop, if it failed.
    error: Option<&'a RuntimeError>,
}

impl fmt::Display for Evidence<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Counts { stopped, process_ended } = self.counts;
        match (stopped, process_ended) {
            (stopped, 0) => write!(f, "{stopped} stops of the container succeeded")?,
            (0, failed) => write!(f, "{failed} stops of the container failed")?,
            (stopped, failed) => write!(f, "{stopped} stops of the container succeeded and {failed} failed")?,
        }
        if let Some(ContainerProcess { pid, has_ended }) = self.process {
            write!(f, ", and its process {pid} {}", if has_ended { "has ended" } else { "still runs" })?;
        }
        if let Some(error) = self.error {
            write!(f, " (last error: {})", error_chain(error))?;
        }
        Ok(())
    }
}

impl ContainerManager {
    /// Checks that no container of a pod runs after all of them were stopped.
    ///
    /// # Errors
    /// One error for each running container: [`ContainerError::RuntimeLied`] after three contradictions,
    /// [`ContainerError::StillRunning`] before that.
    pub async fn check_stopped(
        &self,
        uid: &PodUid,
        pod: Option<&Arc<PodObject>>,
        status: &PodRuntimeStatus,
    ) -> Result<(), SyncError> {
        let runs = status.containers.iter().filter(|run| run.state == ContainerState::Running);
        let running: Vec<_> = runs.map(|run| RunningContainer::new(&run.id, &run.name, run.state)).collect();
        let ids: Vec<_> = running.iter().map(|container| &container.id).collect();
        let counts = self.contradictions.of_running(uid, &ids);
        let mut errors = Vec::new();
        for container in &running {
            let counts = counts.get(&container.id).copied().unwrap_or_default();
            errors.push(if counts.stopped > 0 && counts.total() >= REPORTED_AFTER {
                let evidence = Evidence { counts, process: self.process(&container.id).await, error: None };
                self.contradicted(pod, container, &evidence)
            } else {
                ContainerError::StillRunning { container: container.name.clone() }
            });
        }
        joined(errors.into_iter().map(SyncError::from).collect()).map_or(Ok(()), Err)
    }

    /// The error of a stop that failed. If the process of the container has ended, the runtime has missed the container's end.
    pub(super) async fn stop_failed(
        &self,
        uid: &PodUid,
        pod: Option<&Arc<PodObject>>,
        container: &RunningContainer,
        source: RuntimeError,
    ) -> ContainerError {
        if container.running
            && let Some(process) = self.process(&container.id).await.filter(|process| process.has_ended)
        {
            let counts = self.contradictions.process_ended(uid, &container.id);
            if counts.total() >= REPORTED_AFTER {
                return self.contradicted(
                    pod,
                    container,
                    &Evidence { counts, process: Some(process), error: Some(&source) },
                );
            }
        }
        ContainerError::StopContainer { container: container.name.clone(), source }
    }

    /// The process of a container. `None` if the runtime does not report it.
    async fn process(&self, id: &ContainerId) -> Option<ContainerProcess> {
        self.ports.runtime.process_of(id).await.ok().flatten()
    }

    /// The error about a container that the runtime contradicts itself about. The first one is an event too.
    fn contradicted(
        &self,
        pod: Option<&Arc<PodObject>>,
        container: &RunningContainer,
        evidence: &Evidence<'_>,
    ) -> ContainerError {
        let error = ContainerError::RuntimeLied {
            container: container.name.clone(),
            id: container.id.clone(),
            evidence: evidence.to_string(),
        };
        if evidence.counts.total() == REPORTED_AFTER {
            tracing::error!(container.id = %container.id, %error, "the container runtime contradicts itself");
            if let Some(pod) = pod {
                let definition = Definition::find(pod, container.name.as_str());
                self.record_stop(pod, definition.as_ref(), PodEvent::warning("RuntimeLied", error.to_string()));
            }
        }
        error
    }
}
