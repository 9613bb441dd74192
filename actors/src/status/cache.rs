//! The statuses that the node stands for, by pod, until they are written.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Container, ContainerStateTerminated, ContainerStatus, PodStatus};

use super::conditions::{self, Why, own};
use super::{normalize, reasons, same_for_node, terminate_pod};
use crate::containers::restart::{OnExit, RestartPolicy, on_exit};
use crate::ids::{ContainerId, PodUid};
use crate::pod::{ContainerKind, Phase, PodObject, is_sidecar};
use crate::time::Time;

/// The kept statuses. Its owner guards it; every method is one step.
#[derive(Debug, Default)]
pub struct StatusCache {
    pods: HashMap<PodUid, Entry, foldhash::fast::RandomState>,
}

#[derive(Debug)]
struct Entry {
    status: Arc<PodStatus>,
    /// Grows with every accepted change.
    version: u64,
    /// The version that the API server has; 0 for none.
    written: u64,
    /// When the first change happened that the API server does not have; `None` if it has all (POD-W16).
    changed_at: Option<Time>,
    finished: bool,
    /// The pod was seen to become Running, which is told once (POD-W15).
    has_run: bool,
}

/// What became of a status that was set.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub enum SetOutcome {
    /// It is kept and has to be written.
    Accepted(Change),
    /// It says nothing new.
    Unchanged,
    /// It cannot be; nothing of it is kept.
    Refused(IllegalRestart),
}

/// What an accepted status brought.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The status's number; a pod's later statuses have larger ones.
    pub version: u64,
    /// Containers of which an end is seen for the first time.
    pub terminated: Vec<TerminatedContainer>,
    /// The pod went from Pending to Running, for the first time that this cache saw.
    pub became_running: bool,
}

/// An end of a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TerminatedContainer {
    /// In which of the pod's lists the container stands.
    pub kind: ContainerKind,
    /// Its name.
    pub name: String,
    /// Its exit code.
    pub exit_code: i32,
    /// Why it ended, as the runtime says (`Completed`, `Error`, `OOMKilled`).
    pub reason: String,
}

/// A status would bring a container back that ended for good.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("container {container:?} ended for good and cannot leave that state")]
pub struct IllegalRestart {
    /// The container's name.
    pub container: String,
}

impl StatusCache {
    /// The kept status of a pod. For a static pod, ask by its own UID, not by that of its mirror.
    pub fn get(&self, uid: &PodUid) -> Option<Arc<PodStatus>> {
        self.pods.get(uid).map(|entry| Arc::clone(&entry.status))
    }

    /// Keeps a status if it says something new, or if `force`; a pod with a deletion timestamp is always forced.
    ///
    /// What is kept is compared with, and completed from, the status that was kept before; without one, from `mirror`
    /// (the status of a static pod's mirror), else from the pod's own: the start time never changes, and a condition's
    /// transition time changes only with its status.
    pub fn set(
        &mut self,
        pod: &PodObject,
        mirror: Option<&PodStatus>,
        status: PodStatus,
        force: bool,
        now: Time,
    ) -> SetOutcome {
        self.update(pod, mirror, status, force || pod.is_deleting(), false, now)
    }

    /// What [`set`](StatusCache::set) would keep.
    ///
    /// # Errors
    /// [`IllegalRestart`] if it would refuse the status.
    pub fn completed(
        &self,
        pod: &PodObject,
        mirror: Option<&PodStatus>,
        status: PodStatus,
        now: Time,
    ) -> Result<PodStatus, IllegalRestart> {
        complete(pod, self.before(pod, mirror).unwrap_or(&PodStatus::default()), status, now)
    }

    /// What [`terminate`](StatusCache::terminate) would keep.
    ///
    /// # Errors
    /// [`IllegalRestart`] if it would refuse the status.
    pub fn ended(&self, pod: &PodObject, mirror: Option<&PodStatus>, now: Time) -> Result<PodStatus, IllegalRestart> {
        self.completed(pod, mirror, self.end(pod, mirror), now)
    }

    /// Keeps a status as it was kept before, by an earlier agent.
    pub fn restore(&mut self, uid: PodUid, status: PodStatus, now: Time) {
        let entry = Entry {
            status: Arc::new(status),
            version: 1,
            written: 0,
            changed_at: Some(now),
            finished: false,
            has_run: true,
        };
        self.pods.insert(uid, entry);
    }

    /// Notes what a readiness probe says of a running container, and recomputes ContainersReady and Ready with it.
    /// Nothing happens if the pod or this run of the container is unknown.
    pub fn set_ready(&mut self, pod: &PodObject, container: &ContainerId, ready: bool, now: Time) -> SetOutcome {
        self.edit(pod, now, |status| {
            let Some(run) = find_run(status, container).filter(|run| run.ready != ready) else { return false };
            run.ready = ready;
            for condition in conditions::readiness(pod, status) {
                conditions::set_condition(status, condition);
            }
            true
        })
    }

    /// Notes what a startup probe says of a running container.
    /// Nothing happens if the pod or this run of the container is unknown.
    pub fn set_started(&mut self, pod: &PodObject, container: &ContainerId, started: bool, now: Time) -> SetOutcome {
        self.edit(pod, now, |status| {
            let Some(run) = find_run(status, container).filter(|run| run.started != Some(started)) else {
                return false;
            };
            run.started = Some(started);
            true
        })
    }

    /// Notes that the pod's sandbox is ready, or is not, before any container of it was seen (POD-W24).
    /// Nothing happens if the pod is unknown.
    pub fn set_sandbox_ready(&mut self, pod: &PodObject, ready: bool, now: Time) -> SetOutcome {
        self.edit(pod, now, |status| {
            conditions::set_condition(status, own(pod, reasons::READY_TO_START, ready, Why::default()));
            true
        })
    }

    /// Ends a pod whose cleanup is done: every container gets an end, the phase becomes terminal, and the pod counts as
    /// finished. A pod that is not kept yet starts from `mirror` or from its own status.
    pub fn terminate(&mut self, pod: &PodObject, mirror: Option<&PodStatus>, now: Time) -> SetOutcome {
        let status = self.end(pod, mirror);
        self.update(pod, mirror, status, true, true, now)
    }

    /// Forgets a pod.
    pub fn remove(&mut self, uid: &PodUid) {
        self.pods.remove(uid);
    }

    /// Forgets the pods of which `keep` says no.
    pub fn retain(&mut self, mut keep: impl FnMut(&PodUid) -> bool) {
        self.pods.retain(|uid, _| keep(uid));
    }

    /// Whether the pod's cleanup is done, so that it may be deleted from the API server.
    pub fn is_finished(&self, uid: &PodUid) -> bool {
        self.pods.get(uid).is_some_and(|entry| entry.finished)
    }

    /// The number of the status that is kept, which a write has to report back.
    pub fn version(&self, uid: &PodUid) -> Option<u64> {
        self.pods.get(uid).map(|entry| entry.version)
    }

    /// The pods whose newest status the API server does not have, with its number.
    pub fn unwritten(&self) -> impl Iterator<Item = (&PodUid, u64)> {
        self.pods.iter().filter(|(_, entry)| entry.written < entry.version).map(|(uid, entry)| (uid, entry.version))
    }

    /// Notes that the API server has a version. If it is the newest one, the answer says how long the first change in
    /// it had waited; a change that came meanwhile waits from then on anew.
    pub fn written(&mut self, uid: &PodUid, version: u64, now: Time) -> Option<Duration> {
        let entry = self.pods.get_mut(uid)?;
        entry.written = entry.written.max(version);
        let changed_at = entry.changed_at?;
        entry.changed_at = (entry.written < entry.version).then_some(now);
        Some(now.since(changed_at))
    }

    /// The status that a pod had so far.
    fn before<'a>(&'a self, pod: &'a PodObject, mirror: Option<&'a PodStatus>) -> Option<&'a PodStatus> {
        self.pods.get(pod.uid()).map(|entry| &*entry.status).or(mirror).or(pod.status())
    }

    /// That status with an end.
    fn end(&self, pod: &PodObject, mirror: Option<&PodStatus>) -> PodStatus {
        let mut status = self.before(pod, mirror).cloned().unwrap_or_default();
        terminate_pod(pod, &mut status);
        status
    }

    /// Edits the status that is kept, if there is one, in one step.
    fn edit(&mut self, pod: &PodObject, now: Time, edit: impl FnOnce(&mut PodStatus) -> bool) -> SetOutcome {
        let Some(entry) = self.pods.get(pod.uid()) else { return SetOutcome::Unchanged };
        let mut status = PodStatus::clone(&entry.status);
        let finished = entry.finished;
        if !edit(&mut status) {
            return SetOutcome::Unchanged;
        }
        self.update(pod, None, status, false, finished, now)
    }

    fn update(
        &mut self,
        pod: &PodObject,
        mirror: Option<&PodStatus>,
        status: PodStatus,
        force: bool,
        finished: bool,
        now: Time,
    ) -> SetOutcome {
        let nothing = PodStatus::default();
        let entry = self.pods.get(pod.uid());
        let old = self.before(pod, mirror).unwrap_or(&nothing);
        let status = match complete(pod, old, status, now) {
            Ok(status) => status,
            Err(illegal) => return SetOutcome::Refused(illegal),
        };
        if let Some(entry) = entry
            && !force
            && same_for_node(&entry.status, &status)
        {
            return SetOutcome::Unchanged;
        }

        let terminated = newly_terminated(old, &status);
        let ran = entry.is_some_and(|entry| entry.has_run);
        let phases = (Phase::parse(old.phase.as_deref()), Phase::parse(status.phase.as_deref()));
        let became_running = !ran && phases == (Phase::Pending, Phase::Running);
        let version = entry.map_or(0, |entry| entry.version) + 1;
        let new = Entry {
            version,
            written: entry.map_or(0, |entry| entry.written),
            changed_at: entry.and_then(|entry| entry.changed_at).or(Some(now)),
            // A static pod may be started again under the same UID; any other stays finished.
            finished: finished || (!pod.is_static() && entry.is_some_and(|entry| entry.finished)),
            has_run: ran || phases.1 == Phase::Running,
            status: Arc::new(status),
        };
        self.pods.insert(pod.uid().clone(), new);
        SetOutcome::Accepted(Change { version, terminated, became_running })
    }
}

/// A status as it is kept after another one.
fn complete(pod: &PodObject, old: &PodStatus, mut status: PodStatus, now: Time) -> Result<PodStatus, IllegalRestart> {
    check_restarts(pod, old, &status)?;
    conditions::keep_transition_times(&mut status, old, now);
    status.start_time = old.start_time.clone().or(status.start_time).or_else(|| Some(now.to_api()));
    normalize(pod, &mut status);
    Ok(status)
}

fn find_run<'a>(status: &'a mut PodStatus, id: &ContainerId) -> Option<&'a mut ContainerStatus> {
    let lists = [&mut status.container_statuses, &mut status.init_container_statuses];
    lists.into_iter().flatten().flatten().find(|run| {
        let known = run.container_id.as_deref().unwrap_or_default();
        known.split_once("://").is_some_and(|(_, known)| known == id.as_str())
    })
}

/// Refuses a status in which a container is back that ended and may not be started again.
fn check_restarts(pod: &PodObject, old: &PodStatus, new: &PodStatus) -> Result<(), IllegalRestart> {
    if conditions::is_true(old, reasons::ALL_RESTARTING) || conditions::is_true(new, reasons::ALL_RESTARTING) {
        return Ok(());
    }
    let regular = |c: &Container, code: i32| on_exit(pod.spec(), c, code, false) != OnExit::Stay;
    // Init containers run again in each new sandbox, whatever they ended with before. A pod gets a new one unless neither
    // it nor any of its containers may ever start again.
    let anew = RestartPolicy::parse(pod.spec().restart_policy.as_deref()) != RestartPolicy::Never
        || pod
            .containers()
            .iter()
            .chain(pod.init_containers())
            .any(|c| !is_sidecar(c) && (c.restart_policy.is_some() || c.restart_policy_rules.is_some()));
    let init = |c: &Container, code: i32| anew || is_sidecar(c) || on_exit(pod.spec(), c, code, true) != OnExit::Stay;
    check_list(&old.container_statuses, &new.container_statuses, pod.containers(), regular)?;
    check_list(&old.init_container_statuses, &new.init_container_statuses, pod.init_containers(), init)
}

fn check_list(
    old: &Option<Vec<ContainerStatus>>,
    new: &Option<Vec<ContainerStatus>>,
    specs: &[Container],
    may_restart: impl Fn(&Container, i32) -> bool,
) -> Result<(), IllegalRestart> {
    for before in old.iter().flatten() {
        let Some(end) = end_of(before) else { continue };
        let Some(after) = new.iter().flatten().find(|after| after.name == before.name) else { continue };
        let Some(spec) = specs.iter().find(|spec| spec.name == before.name) else { continue };
        if end_of(after).is_none() && !may_restart(spec, end.exit_code) {
            return Err(IllegalRestart { container: before.name.clone() });
        }
    }
    Ok(())
}

fn end_of(status: &ContainerStatus) -> Option<&ContainerStateTerminated> {
    status.state.as_ref()?.terminated.as_ref()
}

/// The ends in `new`, last ones included, that `old` does not tell of. A container that ends and starts again between
/// two looks is found by its last state.
fn newly_terminated(old: &PodStatus, new: &PodStatus) -> Vec<TerminatedContainer> {
    let lists = [
        (ContainerKind::Init, &old.init_container_statuses, &new.init_container_statuses),
        (ContainerKind::Regular, &old.container_statuses, &new.container_statuses),
        (ContainerKind::Ephemeral, &old.ephemeral_container_statuses, &new.ephemeral_container_statuses),
    ];
    let mut found = Vec::new();
    for (kind, old, new) in lists {
        for status in new.iter().flatten() {
            let before = old.iter().flatten().find(|before| before.name == status.name);
            let known: Vec<_> = before.into_iter().flat_map(ends).collect();
            let fresh = ends(status).filter(|end| !known.iter().any(|known| is_same_end(known, end)));
            found.extend(fresh.map(|end| TerminatedContainer {
                kind,
                name: status.name.clone(),
                exit_code: end.exit_code,
                reason: end.reason.clone().unwrap_or_default(),
            }));
        }
    }
    found
}

fn ends(status: &ContainerStatus) -> impl Iterator<Item = &ContainerStateTerminated> {
    [&status.last_state, &status.state].into_iter().flatten().filter_map(|state| state.terminated.as_ref())
}

fn is_same_end(a: &ContainerStateTerminated, b: &ContainerStateTerminated) -> bool {
    match (&a.container_id, &b.container_id) {
        (Some(a), Some(b)) => a == b,
        (None, None) => a == b,
        _ => false,
    }
}
