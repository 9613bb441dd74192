//! The pods, sandboxes and containers of a simulated runtime. Each call gets the current time; nothing here waits.
//! Pure.

mod attempts;
mod run;
mod view;

use std::cmp;
use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use podwright_model::ids::{ContainerId, ContainerName, FullName, PodUid, SandboxId};
use podwright_model::time::{Grace, Time};

use super::behaviour::Behaviour;

use attempts::Attempts;
use run::RunState;

pub(super) use run::{EndCause, RunEnd};
pub(super) use view::pod_at;

/// All pods, and the planned ends of their containers.
///
/// Each pod has a number. The pod's address and the ids of its sandboxes and containers contain that number, so that ids need
/// no index.
#[derive(Debug, Default)]
pub(super) struct PodTable {
    pods: Vec<Option<Pod>>,
    free: Vec<u32>,
    by_uid: HashMap<PodUid, u32>,
    /// The planned ends of runs, in order of time.
    due: BTreeSet<(Time, Key)>,
    /// The images of all containers, each once.
    images: HashSet<Arc<str>>,
    attempts: Attempts,
    serial: u64,
    last_created: Time,
    changed: VecDeque<PodUid>,
    ended: Vec<Key>,
}

/// The key of a sandbox or container: its pod's number, and a number that is never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Key {
    pod: u32,
    serial: u64,
}

#[derive(Debug)]
struct Pod {
    uid: PodUid,
    full_name: FullName,
    is_static: bool,
    grace: Option<Grace>,
    /// The behaviour of the pod as a whole.
    behaviour: Arc<Behaviour>,
    /// The sandboxes, oldest first.
    sandboxes: Vec<Sandbox>,
    /// The containers, oldest first.
    containers: Vec<Container>,
    /// How often the pod's address was called.
    calls: u32,
    /// Whether the pod is queued in [`PodTable::changed`].
    changed: bool,
}

#[derive(Debug)]
struct Sandbox {
    serial: u64,
    id: SandboxId,
    attempt: u32,
    created_at: Time,
    ready: bool,
    host_network: bool,
}

#[derive(Debug)]
struct Container {
    serial: u64,
    id: ContainerId,
    sandbox: SandboxId,
    name: ContainerName,
    image: Arc<str>,
    restart_count: u32,
    spec_hash: u64,
    created_at: Time,
    run_state: RunState,
    behaviour: Arc<Behaviour>,
}

/// A sandbox to be added.
pub(super) struct NewSandbox<'a> {
    pub(super) uid: &'a PodUid,
    pub(super) full_name: &'a FullName,
    pub(super) is_static: bool,
    pub(super) grace: Option<Grace>,
    pub(super) attempt: u32,
    pub(super) host_network: bool,
    pub(super) behaviour: Arc<Behaviour>,
}

/// A container to be added.
pub(super) struct NewContainer<'a> {
    pub(super) sandbox: Key,
    pub(super) name: ContainerName,
    pub(super) image: &'a str,
    pub(super) restart_count: u32,
    pub(super) spec_hash: u64,
    pub(super) behaviour: Arc<Behaviour>,
}

/// A snapshot of a container's run, and of the settings that decide how it continues.
pub(super) struct RunSnapshot {
    pub(super) uid: PodUid,
    pub(super) name: ContainerName,
    pub(super) restart_count: u32,
    pub(super) behaviour: Arc<Behaviour>,
    pub(super) state: RunPhase,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RunPhase {
    Created,
    /// The run continues until this time, if its end is planned.
    Running(Option<Time>),
    Ended,
}

impl PodTable {
    /// Ends the runs whose planned end has passed.
    pub(super) fn end_due_runs(&mut self, now: Time) {
        while let Some((at, key)) = self.due.first().copied().filter(|(at, _)| *at <= now) {
            self.due.remove(&(at, key));
            if let Some(RunState::Running { since, end: Some(end) }) = self.container(key).map(|c| c.run_state) {
                self.end(key, Some(since), end);
            }
        }
    }

    /// The time of the next planned end.
    pub(super) fn next_due(&self) -> Option<Time> {
        self.due.first().map(|(at, _)| *at)
    }

    /// Takes the first pod from the queue of pods in which a container ended.
    pub(super) fn take_changed(&mut self) -> Option<PodUid> {
        let uid = self.changed.pop_front()?;
        if let Some(pod) = self.pod_of(&uid) {
            pod.changed = false;
        }
        Some(uid)
    }

    pub(super) fn has_changed(&self) -> bool {
        !self.changed.is_empty()
    }

    /// The containers that ended since the last call.
    pub(super) fn take_ended(&mut self) -> Vec<Key> {
        std::mem::take(&mut self.ended)
    }

    /// The counts of attempts.
    pub(super) fn attempts(&mut self) -> &mut Attempts {
        &mut self.attempts
    }

    /// Adds a ready sandbox; `None` if no address is left.
    pub(super) fn add_sandbox(&mut self, new: NewSandbox<'_>, now: Time) -> Option<SandboxId> {
        let number = match self.by_uid.get(new.uid) {
            Some(number) => *number,
            None => self.add_pod(&new)?,
        };
        let (serial, created_at) = self.created(now);
        let pod = self.pods.get_mut(number as usize)?.as_mut()?;
        pod.behaviour = new.behaviour;
        let NewSandbox { attempt, host_network, .. } = new;
        let id: SandboxId = Key { pod: number, serial }.id().into();
        pod.sandboxes.push(Sandbox { serial, id: id.clone(), attempt, created_at, ready: true, host_network });
        Some(id)
    }

    fn add_pod(&mut self, new: &NewSandbox<'_>) -> Option<u32> {
        let number = match self.free.pop() {
            Some(number) => number,
            None => {
                let number = u32::try_from(self.pods.len()).ok().filter(|number| *number < view::ADDRESSES)?;
                self.pods.push(None);
                number
            }
        };
        self.by_uid.insert(new.uid.clone(), number);
        self.pods[number as usize] = Some(Pod {
            uid: new.uid.clone(),
            full_name: new.full_name.clone(),
            is_static: new.is_static,
            grace: new.grace,
            behaviour: Arc::clone(&new.behaviour),
            sandboxes: Vec::with_capacity(1),
            containers: Vec::with_capacity(1),
            calls: 0,
            changed: false,
        });
        Some(number)
    }

    /// Stops a sandbox and kills its containers.
    pub(super) fn stop_sandbox(&mut self, key: Key, now: Time) {
        let Some(pod) = self.pod(key.pod) else { return };
        let Some(sandbox) = pod.sandboxes.iter_mut().find(|sandbox| sandbox.serial == key.serial) else { return };
        sandbox.ready = false;
        let inside: Vec<u64> = pod.containers.iter().filter(|c| c.sandbox == sandbox.id).map(|c| c.serial).collect();
        for serial in inside {
            self.stop(Key { pod: key.pod, serial }, now, RunEnd { at: now, how: EndCause::Killed });
        }
        self.end_due_runs(now);
    }

    /// Stops a sandbox and its containers, and removes them.
    pub(super) fn remove_sandbox(&mut self, key: Key, now: Time) {
        self.stop_sandbox(key, now);
        let Some(pod) = self.pod(key.pod) else { return };
        let Some(at) = pod.sandboxes.iter().position(|sandbox| sandbox.serial == key.serial) else { return };
        let sandbox = pod.sandboxes.remove(at);
        let gone: Vec<Container> = pod.containers.extract_if(.., |c| c.sandbox == sandbox.id).collect();
        for container in gone {
            self.release(container.image);
        }
        self.forget_if_empty(key.pod);
    }

    /// Adds a container to a sandbox; `None` if the sandbox is not ready.
    pub(super) fn add_container(&mut self, new: NewContainer<'_>, now: Time) -> Option<ContainerId> {
        let number = new.sandbox.pod;
        let ready = |known: &&Sandbox| known.serial == new.sandbox.serial && known.ready;
        let sandbox = self.pod(number)?.sandboxes.iter().find(ready)?.id.clone();
        let image = match self.images.get(new.image) {
            Some(image) => Arc::clone(image),
            None => {
                let image: Arc<str> = new.image.into();
                self.images.insert(Arc::clone(&image));
                image
            }
        };
        let (serial, created_at) = self.created(now);
        let NewContainer { name, restart_count, spec_hash, behaviour, .. } = new;
        let id: ContainerId = Key { pod: number, serial }.id().into();
        self.pod(number)?.containers.push(Container {
            serial,
            id: id.clone(),
            sandbox,
            name,
            image,
            restart_count,
            spec_hash,
            created_at,
            run_state: RunState::Created,
            behaviour,
        });
        Some(id)
    }

    /// Whether the pod has a container with this image.
    pub(super) fn has_image(&mut self, uid: &PodUid, image: &str) -> bool {
        self.pod_of(uid).is_some_and(|pod| pod.containers.iter().any(|container| &*container.image == image))
    }

    /// A snapshot of the run of a container.
    pub(super) fn run(&mut self, key: Key) -> Option<RunSnapshot> {
        let pod = self.pod(key.pod)?;
        let container = pod.containers.iter().find(|container| container.serial == key.serial)?;
        Some(RunSnapshot {
            uid: pod.uid.clone(),
            name: container.name.clone(),
            restart_count: container.restart_count,
            behaviour: Arc::clone(&container.behaviour),
            state: match container.run_state {
                RunState::Created => RunPhase::Created,
                RunState::Running { end, .. } => RunPhase::Running(end.map(|end| end.at)),
                RunState::Ended { .. } => RunPhase::Ended,
            },
        })
    }

    /// The running container of a pod with this name.
    pub(super) fn running(&mut self, uid: &PodUid, name: &str) -> Option<Key> {
        let number = *self.by_uid.get(uid)?;
        let mut containers = self.pod(number)?.containers.iter();
        let runs = |container: &&Container| {
            container.name.as_str() == name && matches!(container.run_state, RunState::Running { .. })
        };
        Some(Key { pod: number, serial: containers.find(runs)?.serial })
    }

    /// Starts a created container. Returns false if the container was stopped or removed before this call.
    pub(super) fn start(&mut self, key: Key, now: Time, end: Option<RunEnd>) -> bool {
        let Some(container) = self.container(key).filter(|container| matches!(container.run_state, RunState::Created))
        else {
            return false;
        };
        container.run_state = RunState::Running { since: now, end };
        self.due.extend(end.map(|end| (end.at, key)));
        true
    }

    /// Ends a container that could not be started.
    pub(super) fn fail_start(&mut self, key: Key, now: Time) {
        if self.container(key).is_some_and(|container| matches!(container.run_state, RunState::Created)) {
            self.end(key, None, RunEnd { at: now, how: EndCause::FailedToStart });
        }
    }

    /// Plans an end for a run, unless an earlier one is planned. A created container ends now, so that it never starts.
    /// Returns the time of the planned end; `None` if the container has ended.
    pub(super) fn stop(&mut self, key: Key, now: Time, requested: RunEnd) -> Option<Time> {
        match self.container(key)?.run_state {
            RunState::Created => {
                self.end(key, None, RunEnd { at: now, how: EndCause::NeverStarted });
                None
            }
            RunState::Running { since, end: planned } => {
                let end = planned.map_or(requested, |planned| cmp::min(planned, requested));
                self.due.extend((Some(end) != planned).then_some((end.at, key)));
                if let Some(planned) = planned.filter(|planned| planned.at != end.at) {
                    self.due.remove(&(planned.at, key));
                }
                self.container(key)?.run_state = RunState::Running { since, end: Some(end) };
                Some(end.at)
            }
            RunState::Ended { .. } => None,
        }
    }

    /// Removes a container unless it runs. Returns false if it runs.
    pub(super) fn remove_container(&mut self, key: Key) -> bool {
        let Some(pod) = self.pod(key.pod) else { return true };
        let Some(at) = pod.containers.iter().position(|container| container.serial == key.serial) else { return true };
        if matches!(pod.containers[at].run_state, RunState::Running { .. }) {
            return false;
        }
        let gone = pod.containers.remove(at);
        self.release(gone.image);
        self.forget_if_empty(key.pod);
        true
    }

    /// Counts a call to a pod's address. Returns the pod, its behaviour and the number of earlier calls; `None` if no container
    /// of the pod runs.
    pub(super) fn call(&mut self, number: u32) -> Option<(PodUid, Arc<Behaviour>, u32)> {
        let pod = self.pod(number)?;
        if !pod.containers.iter().any(|container| matches!(container.run_state, RunState::Running { .. })) {
            return None;
        }
        pod.calls = pod.calls.wrapping_add(1);
        Some((pod.uid.clone(), Arc::clone(&pod.behaviour), pod.calls - 1))
    }

    fn end(&mut self, key: Key, since: Option<Time>, end: RunEnd) {
        let Some(container) = self.container(key) else { return };
        container.run_state = RunState::Ended { since, end };
        self.ended.push(key);
        let Some(pod) = self.pod(key.pod) else { return };
        if !std::mem::replace(&mut pod.changed, true) {
            let uid = pod.uid.clone();
            self.changed.push_back(uid);
        }
    }

    fn pod(&mut self, number: u32) -> Option<&mut Pod> {
        self.pods.get_mut(number as usize)?.as_mut()
    }

    fn pod_of(&mut self, uid: &PodUid) -> Option<&mut Pod> {
        self.pod(*self.by_uid.get(uid)?)
    }

    fn container(&mut self, key: Key) -> Option<&mut Container> {
        self.pod(key.pod)?.containers.iter_mut().find(|container| container.serial == key.serial)
    }

    /// A new serial number, and a creation time later than every earlier one, so that two containers never tie for the newest.
    fn created(&mut self, now: Time) -> (u64, Time) {
        self.serial += 1;
        self.last_created = cmp::max(now, self.last_created + Duration::from_nanos(1));
        (self.serial, self.last_created)
    }

    /// Drops a container's image, and removes it from the set if no other container has it.
    fn release(&mut self, image: Arc<str>) {
        if Arc::strong_count(&image) == 2 {
            self.images.remove(&image);
        }
    }

    fn forget_if_empty(&mut self, number: u32) {
        let Some(pod) = self.pods.get_mut(number as usize) else { return };
        if let Some(pod) = pod.take_if(|pod| pod.sandboxes.is_empty() && pod.containers.is_empty()) {
            self.by_uid.remove(&pod.uid);
            self.free.push(number);
        }
    }
}
