//! Counts how often the container runtime contradicts itself about a container, and reports it with the evidence.
//!
//! A runtime that misses the end of a container reports the container as running for ever. Then each stop fails, or it succeeds
//! and changes nothing. A pod that stops stays terminating, and a pod that runs stops the container again and again.

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
    /// Whether the last of these stops succeeded.
    last_succeeded: bool,
    /// Whether there was an event for the container.
    is_reported: bool,
}

impl Contradictions {
    /// Counts a stop that succeeded. It is a contradiction if the container is still reported as running.
    pub(super) fn stopped(&self, uid: &PodUid, id: &ContainerId) {
        let mut pods = self.0.lock();
        let counts = pods.entry(uid.clone()).or_default().entry(id.clone()).or_default();
        counts.stopped += 1;
        counts.last_succeeded = true;
    }

    /// Counts a stop that failed for a container whose process has ended.
    fn process_ended(&self, uid: &PodUid, id: &ContainerId) -> Counts {
        let mut pods = self.0.lock();
        let counts = pods.entry(uid.clone()).or_default().entry(id.clone()).or_default();
        counts.process_ended += 1;
        counts.last_succeeded = false;
        *counts
    }

    /// Marks a container as reported. Returns whether this is the first report of it.
    fn report(&self, uid: &PodUid, id: &ContainerId) -> bool {
        let mut pods = self.0.lock();
        let counts = pods.get_mut(uid).and_then(|pod| pod.get_mut(id));
        counts.is_some_and(|counts| !std::mem::replace(&mut counts.is_reported, true))
    }

    /// Whether a container of the pod was stopped so often that it must be read whether it still runs.
    fn has_suspects(&self, uid: &PodUid) -> bool {
        self.0.lock().get(uid).is_some_and(|pod| pod.values().any(|counts| counts.is_contradiction()))
    }

    /// Forgets the containers of a pod that are not among the running ones, and returns the counts of the others.
    fn of_running(&self, uid: &PodUid, running: &[RunningContainer]) -> HashMap<ContainerId, Counts> {
        let mut pods = self.0.lock();
        let Some(counts) = pods.get_mut(uid) else { return HashMap::new() };
        counts.retain(|id, _| running.iter().any(|container| container.id == *id));
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

    /// Whether the stops contradict a report that the container runs.
    fn is_contradiction(self) -> bool {
        self.stopped > 0 && self.total() >= REPORTED_AFTER
    }
}

/// What shows that the runtime contradicts itself, for people. It has no number of stops, so that each retry gives the same text and
/// equal events are counted as one.
struct Evidence<'a> {
    counts: Counts,
    process: Option<ContainerProcess>,
    /// The error of the last stop, if it failed.
    error: Option<&'a RuntimeError>,
}

impl fmt::Display for Evidence<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match (self.counts.stopped, self.counts.process_ended) {
            (_, 0) => "stops of the container succeeded",
            (0, _) => "stops of the container failed",
            _ => "some stops of the container succeeded and others failed",
        })?;
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
    /// The errors about containers of a pod that is not stopped, and which run although their stops succeeded. Forgets the stops of the
    /// containers that no longer run.
    pub(super) async fn contradicted_stops(&self, pod: &Arc<PodObject>, status: &PodRuntimeStatus) -> Vec<SyncError> {
        let running = running(status);
        let counts = self.contradictions.of_running(pod.uid(), &running);
        let mut errors = Vec::new();
        for container in &running {
            let Some(&counts) = counts.get(&container.id).filter(|counts| counts.is_contradiction()) else { continue };
            let evidence = Evidence { counts, process: self.process(&container.id).await, error: None };
            errors.push(self.contradicted(pod.uid(), Some(pod), container, &evidence).into());
        }
        errors
    }

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
        let running = running(status);
        let counts = self.contradictions.of_running(uid, &running);
        let mut errors = Vec::new();
        for container in &running {
            let counts = counts.get(&container.id).copied().unwrap_or_default();
            errors.push(if counts.is_contradiction() {
                let evidence = Evidence { counts, process: self.process(&container.id).await, error: None };
                self.contradicted(uid, pod, container, &evidence)
            } else {
                ContainerError::StillRunning { container: container.name.clone() }
            });
        }
        joined(errors.into_iter().map(SyncError::from).collect()).map_or(Ok(()), Err)
    }

    /// Whether [`check_failed`](Self::check_failed) may find a contradiction.
    pub(crate) fn has_suspects(&self, uid: &PodUid) -> bool {
        self.contradictions.has_suspects(uid)
    }

    /// Adds the containers that run although their stops succeeded to the error of [`kill_pod`](Self::kill_pod).
    pub(crate) async fn check_failed(
        &self,
        uid: &PodUid,
        pod: Option<&Arc<PodObject>>,
        status: &PodRuntimeStatus,
        error: SyncError,
    ) -> SyncError {
        let running = running(status);
        let counts = self.contradictions.of_running(uid, &running);
        let mut errors = vec![error];
        for container in &running {
            // The error of a stop that failed already names the contradiction.
            let lied = |counts: &&Counts| counts.is_contradiction() && counts.last_succeeded;
            let Some(&counts) = counts.get(&container.id).filter(lied) else { continue };
            let evidence = Evidence { counts, process: self.process(&container.id).await, error: None };
            errors.push(self.contradicted(uid, pod, container, &evidence).into());
        }
        if errors.len() == 1 { errors.remove(0) } else { SyncError::Many(errors) }
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
                    uid,
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
        uid: &PodUid,
        pod: Option<&Arc<PodObject>>,
        container: &RunningContainer,
        evidence: &Evidence<'_>,
    ) -> ContainerError {
        let error = ContainerError::RuntimeLied {
            container: container.name.clone(),
            id: container.id.clone(),
            evidence: evidence.to_string(),
        };
        if self.contradictions.report(uid, &container.id) {
            tracing::error!(container.id = %container.id, %error, "the container runtime contradicts itself");
            if let Some(pod) = pod {
                let definition = Definition::find(pod, container.name.as_str());
                self.record_stop(pod, definition.as_ref(), PodEvent::warning("RuntimeLied", error.to_string()));
            }
        }
        error
    }
}

/// The containers that the runtime reports as running.
fn running(status: &PodRuntimeStatus) -> Vec<RunningContainer> {
    let runs = status.containers.iter().filter(|run| run.state == ContainerState::Running);
    runs.map(|run| RunningContainer::new(&run.id, &run.name, run.state)).collect()
}
