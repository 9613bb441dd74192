//! Where everything has to come to once nothing goes wrong any more.

use std::collections::BTreeSet;
use std::time::Duration;

use futures_util::FutureExt;
use k8s_openapi::api::core::v1::{ContainerStatus, PodStatus};
use podwright_actors::containers::restart::{OnExit, on_exit};
use podwright_actors::final_statuses::is_final;
use podwright_actors::ids::PodUid;
use podwright_actors::node::Node;
use podwright_actors::pod::{Phase, PodObject, is_sidecar};
use podwright_actors::pod_worker::{Lifecycle, WaitFor};
use podwright_actors::ports::{Clock, ContainerRuntime, ContainerState, PodRuntimeStatus, SandboxState};
use podwright_metrics::{Format, Metrics};

use super::Verdict;
use crate::simulation::disk::Disk;
use crate::simulation::outside::Wanted;
use crate::simulation::world::{Agent, World};

/// Why a container may wait.
const NAMED_WAITS: [&str; 7] = [
    "CrashLoopBackOff",
    "ErrImagePull",
    "ImagePullBackOff",
    "RunContainerError",
    "CreateContainerConfigError",
    "PostStartHookError",
    "PodInitializing",
];

/// How long a setup may take in which nothing goes wrong: the longest grace of what it stops, then the slowest pulls and
/// starts, one after the other.
const SLOW_SETUP: Duration = Duration::from_secs(60 + 5 * 45);

/// What is told of the end of a pod is on disk (POD-W13). Of a pod that had left its source when it ended nobody asked.
pub(in crate::simulation) fn kept(agent: &Agent, wanted: &[Wanted], disk: &Disk) -> Verdict {
    for Wanted { uid, pod, was_stopped, .. } in wanted {
        let Some(status) = agent.statuses.get(uid).filter(|status| is_final(pod, status)) else { continue };
        let known_outside = pod.phase().is_terminal() || *was_stopped || agent.desired.pod(uid).is_none();
        if !known_outside && !disk.has_end_of(uid) {
            return Err(format!("{uid}: is told to be {:?}, and that is not on disk", status.phase));
        }
    }
    Ok(())
}

/// Every pod that should run runs or waits by a name, everything else is over, and nothing runs without a pod.
pub(in crate::simulation) fn settled(world: &World, agent: &Agent, wanted: &[Wanted], disk: &Disk) -> Verdict {
    for wanted in wanted {
        at_rest(world, agent, wanted).map_err(|what| format!("{}: {what}", wanted.uid))?;
    }
    let here: BTreeSet<PodUid> = wanted.iter().map(|wanted| wanted.uid.clone()).collect();
    for pod in world.runtime.list_pods().now_or_never().unwrap().unwrap() {
        if pod.is_running() && !here.contains(&pod.uid) {
            return Err(format!("{} runs, and nobody wants it", pod.uid));
        }
    }
    if let Some(orphan) = agent.engine.snapshots().into_iter().find(|snapshot| !here.contains(&snapshot.uid)) {
        return Err(format!("{} has a record, and nobody wants it: {orphan:?}", orphan.uid));
    }
    match disk.directories().into_iter().find(|uid| !here.contains(uid)) {
        Some(uid) => Err(format!("{uid} has a directory, and nobody wants it")),
        None => Ok(()),
    }
}

fn at_rest(world: &World, agent: &Agent, wanted: &Wanted) -> Verdict {
    let truth = world.truth(&wanted.uid);
    let status = agent.statuses.get(&wanted.uid);
    let phase = status.as_ref().map_or(Phase::Pending, |status| Phase::parse(status.phase.as_deref()));
    let Some(look) = agent.look(&wanted.uid) else {
        // It was rejected, or it ended, left its source and came back: it is not started again.
        return match (phase.is_terminal(), truth.is_running()) {
            (true, false) => Ok(()),
            (true, true) => Err("runs although it was rejected or is over".into()),
            (false, _) => Err(format!("is wanted and has no record; its phase is {phase:?}")),
        };
    };
    match look.snapshot.lifecycle {
        Lifecycle::Finished => {
            if truth.is_running() {
                return Err("runs although it is finished".into());
            }
            let done = phase.is_terminal() || wanted.killed;
            if done { Ok(()) } else { Err(format!("is finished, and should run: {:?}", look.snapshot)) }
        }
        Lifecycle::Sync if !wanted.pod.is_deleting() => {
            let sets_up = matches!(look.snapshot.wait.what, WaitFor::HookCall(_))
                && world.clock.now().since(look.snapshot.wait.since) < SLOW_SETUP;
            let newest = wanted.pod.containers().first().and_then(|container| container.image.clone());
            let active = look.active.as_ref().and_then(|pod| pod.containers().first()?.image.clone());
            // A setup that is under way is not broken off by an update.
            if newest != active && !sets_up {
                return Err(format!("works on {active:?} and not on {newest:?}"));
            }
            // A container that had ended for good when its pod was stopped runs once more if the pod comes back to its source, or
            // if the agent went down before the pod had ended. The API server still tells of that end, so its copy stays, and
            // after a restart of the agent there is no other.
            let lags = wanted.was_stopped;
            let status = match status {
                None if lags => return Ok(()),
                status => status.ok_or("has no status")?,
            };
            if sets_up {
                return Ok(());
            }
            runs(&wanted.pod, &status, &truth, lags).map_err(|what| format!("{what}: {:?} {truth:?}", look.snapshot))
        }
        other => Err(format!("is {}: {:?}", other.as_str(), look.snapshot)),
    }
}

/// Each regular container runs, or says why not. A setup that is under way tells of what it started when it is done.
fn runs(pod: &PodObject, status: &PodStatus, truth: &PodRuntimeStatus, lags: bool) -> Verdict {
    let waits = |statuses: &Option<Vec<ContainerStatus>>, name: &str| -> Option<String> {
        let found = statuses.iter().flatten().find(|status| status.name == name)?;
        found.state.as_ref()?.waiting.as_ref()?.reason.clone()
    };
    // An init container that runs on, or a sidecar that keeps ending, holds back all that comes after it.
    let held_back = pod.init_containers().iter().any(|container| {
        let runs = truth.newest(&container.name).is_some_and(|run| run.state == ContainerState::Running);
        (runs && !is_sidecar(container))
            || waits(&status.init_container_statuses, &container.name)
                .is_some_and(|reason| NAMED_WAITS[..6].contains(&reason.as_str()))
    });
    for container in pod.containers() {
        let name = container.name.as_str();
        let reason = waits(&status.container_statuses, name);
        let newest = truth.newest(name);
        match newest.map(|run| (run.state, run)) {
            Some((ContainerState::Running, run)) => {
                if Some(&run.image) != container.image.as_ref() {
                    return Err(format!("{name} runs {} instead of {:?}", run.image, container.image));
                }
                let shown = status.container_statuses.iter().flatten().find(|status| status.name == name);
                if !lags && shown.is_none_or(|shown| shown.state.as_ref().is_none_or(|state| state.running.is_none())) {
                    return Err(format!("{name} runs, and its status does not say so: {shown:?}"));
                }
            }
            Some((ContainerState::Exited, run))
                if on_exit(pod.spec(), container, run.exit_code, false) == OnExit::Stay => {}
            _ if lags || held_back || reason.as_deref().is_some_and(|reason| NAMED_WAITS.contains(&reason)) => {}
            _ => {
                // Until there is a sandbox no container can say anything.
                let ready = truth.sandboxes.iter().any(|sandbox| sandbox.state == SandboxState::Ready);
                return Err(format!("{name} does not run and says {reason:?}, sandbox {ready}"));
            }
        }
    }
    Ok(())
}

/// After everything left its source: nothing of it is left.
pub(in crate::simulation) fn drained(
    world: &World,
    node: &Node,
    metrics: &Metrics,
    disk: &Disk,
    ever: &[PodUid],
) -> Verdict {
    if let Some(pod) = world.runtime.list_pods().now_or_never().unwrap().unwrap().first() {
        return Err(format!("the runtime still has {pod:?}"));
    }
    if let Some(snapshot) = node.engine.snapshots().first() {
        return Err(format!("the engine still knows {snapshot:?}"));
    }
    if let Some(line) = node.explainer.lines().first() {
        return Err(format!("it is still told where this stands: {line:?}"));
    }
    for uid in ever {
        forgotten(node, uid).map_err(|what| format!("{uid}: {what}"))?;
    }
    if let Some(uid) = disk.directories().first() {
        return Err(format!("{uid} still has a directory"));
    }
    if let Some(uid) = ever.iter().find(|uid| disk.has_end_of(uid)) {
        return Err(format!("the journal still has {uid}"));
    }
    let text = metrics.encode(Format::Classic);
    for line in text.lines() {
        let zero =
            ["kubelet_working_pods", "kubelet_desired_pods", "kubelet_active_pods", "kubelet_running_containers"];
        if zero.iter().any(|name| line.starts_with(name)) && !line.ends_with(" 0") && !line.ends_with(" 0.0") {
            return Err(format!("although nothing is there: {line}"));
        }
    }
    Ok(())
}

/// Nothing is remembered of a pod that nobody will ask for again.
fn forgotten(node: &Node, uid: &PodUid) -> Verdict {
    let containers = &node.containers;
    if let Some(status) = node.statuses.get(uid) {
        return Err(format!("its status is still kept: {status:?}"));
    }
    if let Some(doing) = containers.activities().of(uid).first() {
        return Err(format!("something is still done for it: {doing:?}"));
    }
    let (starts, pulls) = (containers.start_errors().of(uid), containers.pull_failures(uid));
    if !starts.is_empty() || !pulls.is_empty() {
        return Err(format!("what went wrong is still kept: {starts:?} {pulls:?}"));
    }
    Ok(())
}
