//! Checks of the resources of pods.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use k8s_openapi::api::core::v1::PodStatus;
use podwright_actors::admission::Admitted;
use podwright_actors::ids::PodUid;
use podwright_actors::pod::{Phase, PodObject};
use podwright_actors::pod_worker::{Cause, Lifecycle};
use podwright_actors::ports::{ContainerRuntime, ContainerState, PodRuntimeStatus};
use podwright_actors::time::{Grace, Time};

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
    fn add(&mut self, pod: Amounts) {
        self.cpu += pod.cpu.request.millis();
        self.memory += pod.memory.request.units();
    }

    fn fits(self) -> bool {
        self.cpu <= CPU_MILLIS && self.memory <= MEMORY
    }
}

/// What the containers of a pod take, by their names.
type Taken = BTreeMap<String, Amounts>;

/// The containers that run, with what they have, and the pods that may start containers, with what is allocated to them, fit the machine.
pub(crate) fn fits_the_machine(machine: &Machine, agent: &Agent, unaware: &UnawareAdmission<'_>) -> CheckResult {
    let (mut total, mut without_late, mut without_early) = (Total::default(), Total::default(), Total::default());
    let mut parts = Vec::new();
    for (pod, taken) in taken(machine, agent) {
        for (container, amounts) in taken {
            total.add(amounts);
            if !unaware.is_late(&pod) {
                without_late.add(amounts);
            }
            if !unaware.is_early(&pod) {
                without_early.add(amounts);
            }
            let (cpu, memory) = (amounts.cpu.request.millis(), amounts.memory.request.units() >> 20);
            parts.push((pod.uid().to_string(), container, cpu, memory));
        }
    }
    // Early and late pods may have more together. Each later pod was admitted beside both.
    let fits = total.fits() || (without_late.fits() && without_early.fits());
    if fits { Ok(()) } else { Err(format!("the pods have more than the machine: {total:?} {parts:?}")) }
}

/// What each pod takes. Only regular containers request anything. A container that runs takes what the runtime has applied to it, at any
/// stage of its pod. A pod in sync may start each of its containers with what is allocated to the pod, unless it has ended.
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
            let containers = pod.containers().iter();
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
            container.cpu.request = container.cpu.request.max(applied.cpu.request);
            container.memory.request = container.memory.request.max(applied.memory.request);
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
    for container in allocated.containers().iter().chain(allocated.init_containers()) {
        let run = truth.newest(&container.name).filter(|run| run.state == ContainerState::Running);
        let applied = run.and_then(|run| machine.resources_of(&run.id));
        let expected = Amounts::in_pod(&allocated, container);
        if let Some(applied) = applied.filter(|applied| *applied != expected) {
            return Err(format!("{} has {applied:?}, and {expected:?} is allocated", container.name));
        }
    }
    let has =
        |condition: &str| status.conditions.iter().flatten().any(|it| it.type_ == condition && it.status == "True");
    if has("PodResizeInProgress") {
        return Err("its resize is complete, and its status says that it is in progress".into());
    }
    let is_allocated = requests(&allocated) == requests(&desired.pod);
    if is_allocated == has("PodResizePending") {
        return Err(format!("its resize is allocated: {is_allocated}, and its status says otherwise"));
    }
    if is_allocated {
        return Ok(());
    }
    let total = total_beside_others(agent, &desired.pod);
    if total.fits() { Err(format!("its resize waits, and there is room for it: {total:?}")) } else { Ok(()) }
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
        requests(other).into_iter().for_each(|amounts| total.add(amounts));
    }
    requests(pod).into_iter().for_each(|amounts| total.add(amounts));
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
pub(super) fn rejection_is_needed(agent: &Agent, rejected: &PodObject, status: &PodStatus) -> CheckResult {
    if !rejected.is_static() || !status.reason.as_deref().is_some_and(|reason| LACKS.contains(&reason)) {
        return Ok(());
    }
    let total = total_beside_others(agent, rejected);
    if total.fits() { Err(format!("is rejected, and there is room for it: {total:?}")) } else { Ok(()) }
}

/// What a pod and the other pods that have not ended request together.
fn total_beside_others(agent: &Agent, pod: &PodObject) -> Total {
    let mut total = Total::default();
    for other in agent.desired.pods() {
        let ends = agent.statuses.phase(other.uid()).is_some_and(Phase::is_terminal);
        if !ends && !agent.engine.is_pod_known_terminated(other.uid()) && other.uid() != pod.uid() {
            requests(&other).into_iter().for_each(|amounts| total.add(amounts));
        }
    }
    requests(pod).into_iter().for_each(|amounts| total.add(amounts));
    total
}

fn requests(pod: &PodObject) -> Vec<Amounts> {
    pod.containers().iter().map(Amounts::of_container).collect()
}
