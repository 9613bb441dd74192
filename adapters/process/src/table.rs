//! The pods of the process runtime in memory: their sandboxes and containers, and which pods changed.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use podwright_host::changed_pods::ChangedPods;
use podwright_model::ids::{ContainerId, FullName, PodUid, SandboxId};
use podwright_model::time::{Grace, Time};
use podwright_ports::{ContainerState, PodRuntimeStatus, RuntimePod, RuntimePodSandbox, SandboxState, SandboxStatus};

use super::container::{Container, RunState};
use super::record::SandboxRecord;

/// All pods of the runtime. While the agent runs, this table is authoritative. After a restart it is restored from the
/// records.
#[derive(Debug, Default)]
pub(super) struct PodTable {
    maps: Mutex<Maps>,
    changed: ChangedPods,
}

#[derive(Debug, Default)]
struct Maps {
    pods: HashMap<PodUid, Pod>,
    sandboxes: HashMap<SandboxId, PodUid>,
    containers: HashMap<ContainerId, Arc<Container>>,
    /// The latest assigned creation time. Every creation time is later than the one before, so one container is always the
    /// newest.
    last_created: u64,
}

#[derive(Debug)]
struct Pod {
    full_name: FullName,
    sandboxes: Vec<SandboxRecord>,
    containers: Vec<Arc<Container>>,
}

impl PodTable {
    /// A creation time later than every earlier one.
    pub(super) fn creation_time(&self, now: Time) -> u64 {
        let mut maps = self.maps.lock();
        maps.last_created = now.as_nanos().max(maps.last_created + 1);
        maps.last_created
    }

    /// Adds a sandbox or replaces its record.
    pub(super) fn put_sandbox(&self, record: SandboxRecord) {
        let maps = &mut *self.maps.lock();
        maps.last_created = maps.last_created.max(record.created_at);
        let uid = PodUid::new(&record.uid);
        maps.sandboxes.insert(record.id.as_str().into(), uid.clone());
        let pod = maps.pod(uid, &record.namespace, &record.name);
        match pod.sandboxes.iter_mut().find(|known| known.id == record.id) {
            Some(known) => *known = record,
            None => pod.sandboxes.push(record),
        }
    }

    pub(super) fn put_container(&self, container: Arc<Container>) {
        let maps = &mut *self.maps.lock();
        maps.last_created = maps.last_created.max(container.record.created_at);
        maps.containers.insert(container.id.clone(), Arc::clone(&container));
        let (namespace, name) = (container.record.namespace.clone(), container.record.name.clone());
        maps.pod(container.uid.clone(), &namespace, &name).containers.push(container);
    }

    pub(super) fn container(&self, id: &ContainerId) -> Option<Arc<Container>> {
        self.maps.lock().containers.get(id).cloned()
    }

    /// The containers that run now.
    pub(super) fn running(&self) -> Vec<Arc<Container>> {
        let maps = self.maps.lock();
        maps.containers.values().filter(|container| container.state() == ContainerState::Running).cloned().collect()
    }

    /// The containers of a pod that are being adopted.
    pub(super) fn adopting(&self, uid: &PodUid) -> Vec<Arc<Container>> {
        let maps = self.maps.lock();
        let containers = maps.pods.get(uid).into_iter().flat_map(|pod| &pod.containers);
        containers.filter(|container| matches!(*container.run.lock(), RunState::Adopting)).cloned().collect()
    }

    pub(super) fn sandbox(&self, id: &SandboxId) -> Option<SandboxRecord> {
        let maps = self.maps.lock();
        let pod = maps.pods.get(maps.sandboxes.get(id)?)?;
        pod.sandboxes.iter().find(|sandbox| sandbox.id == id.as_str()).cloned()
    }

    pub(super) fn containers_of(&self, id: &SandboxId) -> Vec<Arc<Container>> {
        let maps = self.maps.lock();
        let pod = maps.sandboxes.get(id).and_then(|uid| maps.pods.get(uid));
        pod.into_iter().flat_map(|pod| &pod.containers).filter(|container| container.sandbox == *id).cloned().collect()
    }

    pub(super) fn remove_container(&self, container: &Container) {
        let maps = &mut *self.maps.lock();
        maps.containers.remove(&container.id);
        if let Some(pod) = maps.pods.get_mut(&container.uid) {
            pod.containers.retain(|known| known.id != container.id);
        }
        maps.forget_if_empty(&container.uid);
    }

    pub(super) fn remove_sandbox(&self, id: &SandboxId) {
        let maps = &mut *self.maps.lock();
        let Some(uid) = maps.sandboxes.remove(id) else { return };
        if let Some(pod) = maps.pods.get_mut(&uid) {
            pod.sandboxes.retain(|sandbox| sandbox.id != id.as_str());
        }
        maps.forget_if_empty(&uid);
    }

    pub(super) fn list(&self, boot_id: &str) -> Vec<RuntimePod> {
        let list = |(uid, pod): (&PodUid, &Pod)| RuntimePod {
            uid: uid.clone(),
            full_name: pod.full_name.clone(),
            is_static: pod.sandboxes.iter().any(|sandbox| sandbox.is_static),
            grace: pod.sandboxes.iter().filter_map(|sandbox| sandbox.grace).max().map(Grace::from_seconds),
            sandboxes: pod
                .sandboxes
                .iter()
                .map(|sandbox| RuntimePodSandbox {
                    id: sandbox.id.as_str().into(),
                    state: sandbox_state(sandbox, boot_id),
                    attempt: sandbox.attempt,
                    created_at: Time::from_nanos(sandbox.created_at),
                })
                .collect(),
            containers: pod.containers.iter().map(|container| container.listing()).collect(),
        };
        self.maps.lock().pods.iter().map(list).collect()
    }

    pub(super) fn status(&self, uid: &PodUid, boot_id: &str) -> PodRuntimeStatus {
        let maps = self.maps.lock();
        let Some(pod) = maps.pods.get(uid) else { return PodRuntimeStatus::default() };
        let mut status = PodRuntimeStatus {
            sandboxes: pod.sandboxes.iter().map(|sandbox| sandbox_status(sandbox, boot_id)).collect(),
            containers: pod.containers.iter().map(|container| container.status()).collect(),
        };
        status.sandboxes.sort_by_key(|sandbox| std::cmp::Reverse(sandbox.created_at));
        status.containers.sort_by_key(|container| std::cmp::Reverse(container.created_at));
        status
    }

    /// Queues a pod that changed, unless the pod is queued already.
    pub(super) fn mark_changed(&self, uid: &PodUid) {
        self.changed.mark(uid);
    }

    /// Waits for a changed pod and takes the one that was queued first. Cancel safe.
    pub(super) async fn next_changed(&self) -> PodUid {
        self.changed.next().await
    }
}

impl Maps {
    fn pod(&mut self, uid: PodUid, namespace: &str, name: &str) -> &mut Pod {
        self.pods.entry(uid).or_insert_with(|| Pod {
            full_name: FullName::new(namespace, name),
            sandboxes: Vec::new(),
            containers: Vec::new(),
        })
    }

    fn forget_if_empty(&mut self, uid: &PodUid) {
        if self.pods.get(uid).is_some_and(|pod| pod.sandboxes.is_empty() && pod.containers.is_empty()) {
            self.pods.remove(uid);
        }
    }
}

fn sandbox_state(sandbox: &SandboxRecord, boot_id: &str) -> SandboxState {
    if sandbox.stopped || sandbox.boot_id != boot_id { SandboxState::NotReady } else { SandboxState::Ready }
}

fn sandbox_status(sandbox: &SandboxRecord, boot_id: &str) -> SandboxStatus {
    SandboxStatus {
        id: sandbox.id.as_str().into(),
        attempt: sandbox.attempt,
        state: sandbox_state(sandbox, boot_id),
        created_at: Time::from_nanos(sandbox.created_at),
        host_network: sandbox.host_network,
        ips: sandbox.ips.clone(),
    }
}
