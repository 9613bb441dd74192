//! Checks of the resources of pods.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use k8s_openapi::api::core::v1::{Container, PodStatus};
use podwright_core::admission::Admitted;
use podwright_core::pod_worker::{Cause, Lifecycle};
use podwright_model::ids::PodUid;
use podwright_model::pod::{Phase, PodObject, is_sidecar};
use podwright_model::time::{Grace, Time};
use podwright_ports::{ContainerRuntime, ContainerState, PodRuntimeStatus};

use super::CheckResult;
use crate::container_resources::Amounts;
use crate::disk::Disk;
use crate::machine::{Agent, CPU_MILLIS, MEMORY, Machine};
use crate::runner::UnawareAdmission;
use crate::sources::DesiredPod;

/// The CPU and the memory that pods request.
#[derive(Clone, Copy, Debug, Default)]
struct Total {
    cpu: i64,
    memory: i64,
}

impl Total {
    /// What a pod takes at most, if each container takes as much: what runs side by side, or an init container beside the sidecars before it.
    fn of_pod(pod: &PodObject, of: impl Fn(&Container) -> Amounts) -> Self {
        let (mut total, mut most) = (Total::default(), Total::default());
        for container in pod.init_containers() {
            let mut beside = total;
            beside.add(of(container).into());
            if is_sidecar(container) {
                total = beside;
            } else {
                most = Total { cpu: most.cpu.max(beside.cpu), memory: most.memory.max(beside.memory) };
            }
        }
        pod.containers().iter().for_each(|container| total.add(of(container).into()));
        Total { cpu: total.cpu.max(most.cpu), memory: total.memory.max(most.memory) }
    }

    /// What a pod requests.
    fn requested(pod: &PodObject) -> Self {
        Total::of_pod(pod, Amounts::of_container)
    }

    fn add(&mut self, other: Total) {
        self.cpu += other.cpu;
        self.memory += other.memory;
    }

    fn fits(self) -> bool {
        self.cpu <= CPU_MILLIS && self.memory <= MEMORY
    }
}

impl From<Amounts> for Total {
    fn from(amounts: Amounts) -> Self {
        Total { cpu: amounts.cpu.request.millis(), memory: amounts.memory.request.units() }
    }
}

/// What the containers of a pod take, by their names.
type Taken = BTreeMap<String, Amounts>;

/// The containers that run, with what they have, and the pods that may start containers, with what is allocated to them, fit the machine.
pub(crate) fn fits_the_machine(machine: &Machine, agent: &Agent, unaware: &UnawareAdmission<'_>) -> CheckResult {
    let (mut total, mut without_late, mut without_early) = (Total::default(), Total::default(), Total::default());
    let mut parts = Vec::new();
    for (pod, taken) in taken(machine, agent) {
        let of_pod = Total::of_pod(&pod, |container| taken.get(&container.name).copied().unwrap_or_default());
        total.add(of_pod);
        if !unaware.is_late(&pod) {
            without_late.add(of_pod);
        }
        if !unaware.is_early(&pod) {
            without_early.add(of_pod);
        }
        for (container, amounts) in taken {
            let (cpu, memory) = (amounts.cpu.request.millis(), amounts.memory.request.units() >> 20);
            parts.push((pod.uid().to_string(), container, cpu, memory));
        }
    }
    // Early and late pods may have more together. Each later pod was admitted beside both.
    let fits = total.fits() || (without_late.fits() && without_early.fits());
    if fits { Ok(()) } else { Err(format!("the pods have more than the machine: {total:?} {parts:?}")) }
}

/// What each pod takes. A container that runs takes what the runtime has applied to it, at any stage of its pod. A pod in sync may start
/// each of its containers with what is allocated to the pod, unless it has ended.
///
/// The agent cannot know what a pod requests that only the runtime knows, so such a pod does not count.
fn taken(machine: &Machine, agent: &Agent) -> Vec<(Arc<PodObject>, Taken)> {
    let mut pods: BTreeMap<PodUid, (Arc<PodObject>, Taken)> = BTreeMap::new();
    for snapshot in agent.engine.snapshots() {
        let has_ended = agent.statuses.phase(&snapshot.uid).is_some_and(Phase::is_terminal);
        if snapshot.lifecycle == Lifecycle::Sync
            && !has_ended
            && let Some(pod) = with_spec(agent, &snapshot.uid)
        {
            let containers = pod.containers().iter().chain(pod.init_containers());
            let allocated = containers.map(|container| (container.name.clone(), Amounts::of_container(container)));
            let allocated = allocated.collect();
            pods.insert(snapshot.uid, (pod, allocated));
        }
    }
    for listed in machine.runtime.list_pods().now_or_never().unwrap().unwrap() {
        let Some(pod) = with_spec(agent, &listed.uid) else { continue };
        let (_, taken) = pods.entry(listed.uid).or_insert_with(|| (pod, Taken::new()));
        for run in listed.containers.iter().filter(|run| run.state == ContainerState::Running) {
            let applied = machine.resources_of(&run.id).unwrap_or_default();
            let container = taken.entry(run.name.to_string()).or_default();
            *container = container.raised_to(applied);
        }
    }
    pods.into_values().collect()
}

/// A pod whose spec the agent knows: a source desires the pod, or its worker acts on the spec. A pod that is being stopped without its spec
/// still counts as unknown if its source has it again: other pods were admitted meanwhile.
fn with_spec(agent: &Agent, uid: &PodUid) -> Option<Arc<PodObject>> {
    let transitions = agent.engine.snapshot(uid).map(|snapshot| snapshot.transitions).unwrap_or_default();
    let is_runtime_only = transitions.iter().any(|transition| transition.cause == Cause::RuntimeOnly);
    let spec = || agent.desired.pod(uid).or_else(|| agent.engine.active_pod(uid));
    if is_runtime_only { None } else { spec() }
}

/// The containers of a pod that runs have what is allocated to it, and that is what is desired unless there is no room for it.
pub(super) fn resize_is_complete(
    machine: &Machine,
    agent: &Agent,
    desired: &DesiredPod,
    status: &PodStatus,
    truth: &PodRuntimeStatus,
) -> CheckResult {
    let Some(allocated) = agent.desired.pod(&desired.uid) else { return Ok(()) };
    has_what_is_allocated(&allocated, |name| {
        let run = truth.newest(name).filter(|run| run.state == ContainerState::Running);
        run.and_then(|run| machine.resources_of(&run.id))
    })?;
    let has =
        |condition: &str| status.conditions.iter().flatten().any(|it| it.type_ == condition && it.status == "True");
    if has("PodResizeInProgress") {
        return Err("its resize is complete, and its status says that it is in progress".into());
    }
    let is_allocated = resources(&allocated) == resources(&desired.pod);
    if is_allocated == has("PodResizePending") {
        return Err(format!("its resize is allocated: {is_allocated}, and its status says otherwise"));
    }
    if is_allocated {
        return Ok(());
    }
    let total = total_beside_others(machine, agent, &desired.pod);
    if total.fits() { Err(format!("its resize waits, and there is room for it: {total:?}")) } else { Ok(()) }
}

/// Each container that runs has what is allocated to it. `applied` is what a container has that runs.
fn has_what_is_allocated(allocated: &PodObject, applied: impl Fn(&str) -> Option<Amounts>) -> CheckResult {
    for container in allocated.containers().iter().chain(allocated.init_containers()) {
        let expected = Amounts::in_pod(allocated, container);
        if let Some(applied) = applied(&container.name).filter(|applied| *applied != expected) {
            return Err(format!("{} has {applied:?}, and {expected:?} is allocated", container.name));
        }
    }
    Ok(())
}

/// The reasons of pods that were rejected because the node lacks something.
pub(crate) const LACKS: [&str; 3] = ["OutOfcpu", "OutOfmemory", "UnexpectedAdmissionError"];

/// How long a pod waits for a stop that fails, after its grace period.
const PATIENCE: Duration = Duration::from_secs(120);

/// Whether a pod certainly fits beside the others of its judgement once they have given back what they are about to give back.
pub(crate) fn fits_later(agent: &Agent, disk: &Disk, pod: &PodObject, others: &Admitted, now: Time) -> bool {
    let mut total = Total::default();
    for other in others.pods().filter(|other| !gives_all_back(agent, disk, other, now)) {
        // The resize may have failed for so long that no pod waits for it.
        if agent.statuses.get(other.uid()).is_some_and(|status| resize_fails(&status)) {
            return false;
        }
        total.add(Total::requested(other));
    }
    total.add(Total::requested(pod));
    total.fits()
}

/// Whether a pod certainly stops, and does not start again after that.
fn gives_all_back(agent: &Agent, disk: &Disk, pod: &PodObject, now: Time) -> bool {
    let Some(snapshot) = agent.engine.snapshot(pod.uid()) else { return false };
    // The agent publishes the end of a pod after it is on disk. A pod that runs again has a status of its new life.
    let is_published = agent.statuses.phase(pod.uid()).is_some_and(Phase::is_terminal);
    let has_ended = is_published && disk.has_ended(pod.uid());
    match snapshot.lifecycle {
        // The stop of an ended pod begins with the next sync that succeeds. A pod that its source no longer has is not stopped before
        // every source has delivered.
        Lifecycle::Sync => {
            let is_overdue = snapshot.failure.as_ref().is_some_and(|failure| now > failure.since + PATIENCE);
            has_ended && agent.engine.is_synced() && !is_overdue
        }
        Lifecycle::Terminating => {
            let since = snapshot.transitions.last().map_or(Time::ZERO, |last| last.at);
            let end = since + snapshot.grace.map(Grace::duration).unwrap_or_default();
            let is_overdue = snapshot.failure.is_some() && now > end + PATIENCE;
            // A static pod that came back starts again, unless it had ended before its stop or was stopped for another pod.
            let starts_again = snapshot.restart_requested && pod.is_static() && !has_ended && !snapshot.evicted;
            !is_overdue && !starts_again
        }
        Lifecycle::Waiting | Lifecycle::Terminated | Lifecycle::Finished => false,
    }
}

fn resize_fails(status: &PodStatus) -> bool {
    let mut conditions = status.conditions.iter().flatten();
    conditions.any(|condition| condition.type_ == "PodResizeInProgress" && condition.message.is_some())
}

/// A static pod that was rejected because the node lacks something does not fit: it is judged again each time a pod ends.
pub(super) fn rejection_is_needed(
    machine: &Machine,
    agent: &Agent,
    rejected: &PodObject,
    status: &PodStatus,
) -> CheckResult {
    if !rejected.is_static() || !status.reason.as_deref().is_some_and(|reason| LACKS.contains(&reason)) {
        return Ok(());
    }
    let total = total_beside_others(machine, agent, rejected);
    if total.fits() { Err(format!("is rejected, and there is room for it: {total:?}")) } else { Ok(()) }
}

/// What a pod and the other pods that have not ended request together, or have in containers that run with more.
fn total_beside_others(machine: &Machine, agent: &Agent, pod: &PodObject) -> Total {
    let of = |pod: &PodObject| {
        let status = machine.runtime_status(pod.uid());
        Total::of_pod(pod, |container| {
            let run = status.newest(&container.name).filter(|run| run.state == ContainerState::Running);
            let applied = run.and_then(|run| machine.resources_of(&run.id)).unwrap_or_default();
            Amounts::of_container(container).raised_to(applied)
        })
    };
    let mut total = Total::default();
    for other in agent.desired.pods() {
        let ends = agent.statuses.phase(other.uid()).is_some_and(Phase::is_terminal);
        if !ends && !agent.engine.is_pod_known_terminated(other.uid()) && other.uid() != pod.uid() {
            total.add(of(&other));
        }
    }
    total.add(of(pod));
    total
}

/// The resources of all containers of a pod.
fn resources(pod: &PodObject) -> Vec<Amounts> {
    pod.containers().iter().chain(pod.init_containers()).map(Amounts::of_container).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// A pod of a regular container, an init container and a sidecar. A change of the CPU restarts each of them.
    fn pod([regular, init, sidecar]: [&str; 3]) -> Arc<PodObject> {
        let container = |name: &str, cpu: &str| {
            let policy = json!([{"resourceName": "cpu", "restartPolicy": "RestartContainer"}]);
            json!({"name": name, "resources": {"requests": {"cpu": cpu, "memory": "1Mi"}}, "resizePolicy": policy})
        };
        let mut sidecar = container("sidecar", sidecar);
        sidecar["restartPolicy"] = "Always".into();
        let spec = json!({"containers": [container("regular", regular)], "initContainers": [sidecar, container("init", init)]});
        let metadata = json!({"name": "p0", "namespace": "sim", "uid": "p0-0"});
        PodObject::new(serde_json::from_value(json!({"metadata": metadata, "spec": spec})).unwrap()).unwrap()
    }

    #[test]
    fn a_pod_requests_what_runs_together() {
        let cpu = |requests| Total::requested(&pod(requests)).cpu;
        assert_eq!(cpu(["2", "1", "500m"]), 2_500, "the regular container and the sidecar");
        assert_eq!(cpu(["1", "3", "500m"]), 3_500, "the init container beside the sidecar before it");
    }

    #[test]
    fn a_container_that_runs_with_other_resources_than_allocated_is_reported() {
        let allocated = pod(["1", "1", "1"]);
        let check = |which: &str, request: Value| {
            let other = serde_json::from_value(json!({"requests": request})).unwrap();
            has_what_is_allocated(&allocated, |name| (name == which).then(|| Amounts::of(Some(&other))))
        };
        for name in ["regular", "init", "sidecar"] {
            assert_eq!(check(name, json!({"cpu": "1000m", "memory": "1Mi"})), Ok(()), "{name}");
            for other in [json!({"cpu": "2", "memory": "1Mi"}), json!({"cpu": "1", "memory": "2Mi"})] {
                assert!(check(name, other).unwrap_err().contains("is allocated"), "{name}");
            }
        }
    }
}
