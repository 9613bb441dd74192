//! The states that every pod has to reach after the last fault.

use std::collections::BTreeSet;
use std::time::Duration;

use futures_util::FutureExt;
use k8s_openapi::api::core::v1::{ContainerStatus, PodStatus};
use podwright_actors::final_statuses::is_final;
use podwright_core::containers::restart::{OnExit, on_exit};
use podwright_core::pod_worker::{Lifecycle, WaitFor};
use podwright_metrics::Format;
use podwright_model::ids::PodUid;
use podwright_model::pod::{Phase, PodObject, is_sidecar};
use podwright_ports::{Clock, ContainerRuntime, ContainerState, PodRuntimeStatus, ResourcePhase, SandboxState};

use super::claims::all_claims_are_released;
use super::{CheckResult, resources};
use crate::disk::Disk;
use crate::machine::{Agent, Machine};
use crate::runner::AgentLife;
use crate::sources::DesiredPod;

/// The reasons for which a container may wait.
const NAMED_WAITS: [&str; 7] = [
    "CrashLoopBackOff",
    "ErrImagePull",
    "ImagePullBackOff",
    "RunContainerError",
    "CreateContainerConfigError",
    "PostStartHookError",
    "PodInitializing",
];

/// The longest time that a setup without faults may take: the longest grace period of the containers that it stops,
/// then the slowest pulls and starts, one after the other.
const SLOW_SETUP: Duration = Duration::from_secs(60 + 5 * 45);

/// A published final status is also on disk (POD-W13). The final status of a pod that had left its source before it
/// ended need not be.
pub(crate) fn final_statuses_are_stored(agent: &Agent, desired_pods: &[DesiredPod], disk: &Disk) -> CheckResult {
    for DesiredPod { uid, pod, was_stopped, .. } in desired_pods {
        let Some(status) = agent.statuses.get(uid).filter(|status| is_final(pod, status)) else { continue };
        let known_outside = pod.phase().is_terminal() || *was_stopped || agent.desired.pod(uid).is_none();
        if !known_outside && !disk.has_end_of(uid) {
            return Err(format!("{uid}: is published as {:?}, and that is not on disk", status.phase));
        }
    }
    Ok(())
}

/// Every desired pod runs or waits for a named reason, every other pod has stopped, and no runtime-only pod runs.
pub(crate) fn settled(machine: &Machine, agent: &Agent, desired_pods: &[DesiredPod], disk: &Disk) -> CheckResult {
    for desired in desired_pods {
        pod_is_settled(machine, agent, desired).map_err(|what| format!("{}: {what}", desired.uid))?;
    }
    let uids: BTreeSet<PodUid> = desired_pods.iter().map(|desired| desired.uid.clone()).collect();
    for pod in machine.runtime.list_pods().now_or_never().unwrap().unwrap() {
        if pod.is_running() && !uids.contains(&pod.uid) {
            return Err(format!("{} runs and is not desired", pod.uid));
        }
    }
    if let Some(orphan) = agent.engine.snapshots().into_iter().find(|snapshot| !uids.contains(&snapshot.uid)) {
        return Err(format!("{} has a record and is not desired: {orphan:?}", orphan.uid));
    }
    match disk.directories().into_iter().find(|uid| !uids.contains(uid)) {
        Some(uid) => Err(format!("{uid} has a directory and is not desired")),
        None => Ok(()),
    }
}

fn pod_is_settled(machine: &Machine, agent: &Agent, desired: &DesiredPod) -> CheckResult {
    let truth = machine.runtime_status(&desired.uid);
    let status = agent.statuses.get(&desired.uid);
    let phase = status.as_ref().map_or(Phase::Pending, |status| Phase::parse(status.phase.as_deref()));
    let Some(view) = agent.pod_view(&desired.uid) else {
        // The pod was rejected, or it ended, left its source and was added again. It is not started.
        return match (phase.is_terminal(), truth.is_running()) {
            (true, false) => {
                status.map_or(Ok(()), |status| resources::rejection_is_needed(machine, agent, &desired.pod, &status))
            }
            (true, true) => Err("runs although it was rejected or has ended".into()),
            (false, _) => Err(format!("is desired and has no record; its phase is {phase:?}")),
        };
    };
    match view.snapshot.lifecycle {
        Lifecycle::Finished => {
            if truth.is_running() {
                return Err("runs although it is finished".into());
            }
            let done = phase.is_terminal() || desired.killed;
            if done { Ok(()) } else { Err(format!("is finished, and should run: {:?}", view.snapshot)) }
        }
        Lifecycle::Sync if !desired.pod.is_deleting() => {
            let sets_up = matches!(view.snapshot.wait.what, WaitFor::HookCall(_))
                && machine.clock.now().since(view.snapshot.wait.since) < SLOW_SETUP;
            let newest = desired.pod.containers().first().and_then(|container| container.image.clone());
            let active = view.active.as_ref().and_then(|pod| pod.containers().first()?.image.clone());
            // An update does not interrupt a setup that has begun.
            if newest != active && !sets_up {
                return Err(format!("has the image {active:?} active and not {newest:?}"));
            }
            // The pod's final status may be older than its containers. A container that had ended for good when its pod
            // was stopped runs once more if the pod is added to its source again, or if the agent crashed before the
            // pod had ended. The API server still has the old status, and after a restart of the agent there is no
            // other copy.
            let lags = desired.was_stopped;
            let status = match status {
                None if lags => return Ok(()),
                status => status.ok_or("has no status")?,
            };
            if sets_up {
                return Ok(());
            }
            resources::resize_is_complete(machine, agent, desired, &status, &truth)?;
            if !lags {
                observes_the_generation(&desired.pod, &status)?;
                shows_the_addresses(&desired.pod, &status, &truth)?;
            }
            containers_run(&desired.pod, &status, &truth, lags)
                .map_err(|what| format!("{what}: {:?} {truth:?}", view.snapshot))
        }
        other => Err(format!("is {}: {:?}", other.as_str(), view.snapshot)),
    }
}

/// The status is of the newest generation of the pod: of its newest spec.
fn observes_the_generation(pod: &PodObject, status: &PodStatus) -> CheckResult {
    let (newest, observed) = (pod.metadata().generation, status.observed_generation);
    if newest == observed {
        return Ok(());
    }
    Err(format!("has the generation {newest:?}, and its status is of {observed:?}"))
}

/// The status has the addresses of the sandbox in which containers run.
fn shows_the_addresses(pod: &PodObject, status: &PodStatus, truth: &PodRuntimeStatus) -> CheckResult {
    let sandbox = truth.sandboxes.first().filter(|sandbox| sandbox.state == SandboxState::Ready);
    let Some(sandbox) = sandbox.filter(|_| !pod.is_host_network()) else { return Ok(()) };
    let shown: Vec<&str> = status.pod_ips.iter().flatten().map(|ip| ip.ip.as_str()).collect();
    let actual: Vec<String> = sandbox.ips.iter().map(ToString::to_string).collect();
    if shown == actual && status.pod_ip.as_ref() == actual.first() {
        return Ok(());
    }
    Err(format!("has the addresses {actual:?}, and its status shows {:?} and {shown:?}", status.pod_ip))
}

/// Each regular container runs or states why it does not. A running setup reports what it started only when it ends.
fn containers_run(pod: &PodObject, status: &PodStatus, truth: &PodRuntimeStatus, lags: bool) -> CheckResult {
    let waits = |statuses: &Option<Vec<ContainerStatus>>, name: &str| -> Option<String> {
        let found = statuses.iter().flatten().find(|status| status.name == name)?;
        found.state.as_ref()?.waiting.as_ref()?.reason.clone()
    };
    // An init container that keeps running, or a sidecar that keeps failing, holds back all containers after it.
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
                let reported = status.container_statuses.iter().flatten().find(|status| status.name == name);
                if !lags
                    && reported
                        .is_none_or(|reported| reported.state.as_ref().is_none_or(|state| state.running.is_none()))
                {
                    return Err(format!("{name} runs, and its status does not report that: {reported:?}"));
                }
            }
            Some((ContainerState::Exited, run))
                if on_exit(pod.spec(), container, run.exit_code, false) == OnExit::Stay => {}
            _ if lags || held_back || reason.as_deref().is_some_and(|reason| NAMED_WAITS.contains(&reason)) => {}
            _ => {
                // A container has no status before the pod has a sandbox.
                let ready = truth.sandboxes.iter().any(|sandbox| sandbox.state == SandboxState::Ready);
                return Err(format!("{name} does not run and reports {reason:?}, sandbox {ready}"));
            }
        }
    }
    Ok(())
}

/// After every pod left its source, nothing of any pod is left.
pub(crate) fn drained(machine: &Machine, life: &AgentLife, disk: &Disk, ever: &[PodUid]) -> CheckResult {
    let AgentLife { node, metrics, .. } = life;
    if let Some(pod) = machine.runtime.list_pods().now_or_never().unwrap().unwrap().first() {
        return Err(format!("the runtime still has {pod:?}"));
    }
    if let Some(snapshot) = node.engine().snapshots().first() {
        return Err(format!("the engine still knows {snapshot:?}"));
    }
    if let Some(line) = node.explainer().lines().first() {
        return Err(format!("explain still has the pod: {line:?}"));
    }
    for uid in ever {
        forgotten(life, uid).map_err(|what| format!("{uid}: {what}"))?;
    }
    if let Some(uid) = disk.directories().first() {
        return Err(format!("{uid} still has a directory"));
    }
    if let Some(uid) = ever.iter().find(|uid| disk.has_end_of(uid)) {
        return Err(format!("the final status of {uid} is still stored"));
    }
    all_claims_are_released(machine, &life.agent, disk)?;
    let text = metrics.encode(Format::Classic);
    for line in text.lines() {
        let zero = [
            "kubelet_working_pods",
            "kubelet_desired_pods",
            "kubelet_active_pods",
            "kubelet_running_containers",
            "dra_resource_claims_in_use",
        ];
        if zero.iter().any(|name| line.starts_with(name)) && !line.ends_with(" 0") && !line.ends_with(" 0.0") {
            return Err(format!("there is no pod, but a metric counts one: {line}"));
        }
    }
    Ok(())
}

/// The agent keeps no state of a removed pod.
fn forgotten(AgentLife { node, agent, .. }: &AgentLife, uid: &PodUid) -> CheckResult {
    let containers = node.containers();
    if let Some(wait) = agent.claims.waits(uid).first() {
        return Err(format!("it still waits for its claims: {wait:?}"));
    }
    if let Some(status) = node.statuses().get(uid) {
        return Err(format!("its status is still kept: {status:?}"));
    }
    if let Some(doing) = containers.activities().of(uid).first() {
        return Err(format!("the container manager still has an activity of it: {doing:?}"));
    }
    let (starts, pulls) = (containers.start_errors().of(uid), containers.pull_failures(uid));
    if !starts.is_empty() || !pulls.is_empty() {
        return Err(format!("its start errors and pull failures are still kept: {starts:?} {pulls:?}"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use podwright_model::time::Time;
    use podwright_ports::SandboxStatus;
    use serde_json::{Value, json};

    use super::*;

    fn pod(spec: &Value) -> Arc<PodObject> {
        let metadata = json!({"name": "p0", "namespace": "sim", "uid": "p0-0", "generation": 3});
        PodObject::new(serde_json::from_value(json!({"metadata": metadata, "spec": spec})).unwrap()).unwrap()
    }

    fn status(status: Value) -> PodStatus {
        serde_json::from_value(status).unwrap()
    }

    #[test]
    fn a_status_of_an_earlier_generation_is_reported() {
        let pod = pod(&json!({"containers": [{"name": "c"}]}));
        assert_eq!(observes_the_generation(&pod, &status(json!({"observedGeneration": 3}))), Ok(()));
        for earlier in [json!({"observedGeneration": 2}), json!({})] {
            let what = observes_the_generation(&pod, &status(earlier)).unwrap_err();
            assert!(what.starts_with("has the generation Some(3)"), "{what}");
        }
    }

    #[test]
    fn addresses_of_another_sandbox_are_reported() {
        let sandbox = |state| SandboxStatus {
            id: "s".into(),
            attempt: 0,
            state,
            created_at: Time::from_secs(1),
            host_network: false,
            ips: vec!["10.0.0.2".parse().unwrap()],
        };
        let check = |spec: Value, state, first: &str, all: Value| {
            let truth = PodRuntimeStatus { sandboxes: vec![sandbox(state)], containers: Vec::new() };
            shows_the_addresses(&pod(&spec), &status(json!({"podIP": first, "podIPs": all})), &truth)
        };
        let spec = || json!({"containers": [{"name": "c"}]});
        let (right, wrong) = (json!([{"ip": "10.0.0.2"}]), json!([{"ip": "10.0.0.3"}]));
        assert_eq!(check(spec(), SandboxState::Ready, "10.0.0.2", right.clone()), Ok(()));
        for (first, all) in [("10.0.0.3", &right), ("10.0.0.2", &wrong), ("10.0.0.2", &Value::Null)] {
            let what = check(spec(), SandboxState::Ready, first, all.clone()).unwrap_err();
            assert!(what.starts_with("has the addresses "), "{what}");
        }
        assert_eq!(check(spec(), SandboxState::NotReady, "10.0.0.3", wrong.clone()), Ok(()), "the old ones stay");
        let host = json!({"hostNetwork": true, "containers": [{"name": "c"}]});
        assert_eq!(check(host, SandboxState::Ready, "192.0.2.1", wrong), Ok(()));
    }
}
