//! Checks of containers that are stopped, and of commands in containers.

use std::time::Duration;

use podwright_core::pod_worker::{Cause, Hook, Lifecycle, WaitFor};
use podwright_ports::SandboxState;

use super::{CallContext, CheckResult, is_terminated};
use crate::container_resources::Amounts;
use crate::container_runs::ContainerRun;
use crate::machine::{CallDetail, PodView};
use crate::scenario::{ContainerPlan, Kind, PodPlan};

pub(super) fn stop(call: &CallContext<'_>) -> CheckResult {
    let CallDetail::Stop { name, id, grace } = call.about else { return Ok(()) };
    let (Some(view), Some(run)) = (call.view, call.runs.iter().find(|run| run.id == *id)) else { return Ok(()) };
    if is_terminated(&view.snapshot) || !run.runs() {
        return Ok(());
    }
    match view.snapshot.lifecycle {
        Lifecycle::Waiting => Err("although the pod never started".into()),
        Lifecycle::Sync => stop_in_sync_has_reason(call, view, run),
        _ if !view.stopping => Ok(()),
        _ => {
            // The runtime never gets a longer grace period than the one decided (POD-I5).
            let decided = view.snapshot.grace.map_or(Duration::ZERO, |grace| grace.duration());
            if *grace > decided.max(Duration::from_secs(2)) {
                return Err(format!("with a grace period of {grace:?}, although {decided:?} was decided"));
            }
            grace_period_is_kept(call, view, run, *grace, decided)?;
            runtime_only_pod_has_its_grace_period(call, view, run, decided)?;
            stop_of_an_earlier_agent_goes_on(call, run, *grace)?;
            no_regular_container_runs(call, view, name.as_str())?;
            sidecars_stop_last(call, view, run, decided)
        }
    }
}

/// The runtime gets the rest of the grace period that was decided, also after a jump of the clock. The latest decided grace period is the
/// shortest, and it does not begin before the first.
fn grace_period_is_kept(
    call: &CallContext<'_>,
    view: &PodView,
    run: &ContainerRun,
    grace: Duration,
    decided: Duration,
) -> CheckResult {
    let to_stop = view.snapshot.transitions.iter().find(|transition| transition.to == Lifecycle::Terminating);
    // A stop that a sync began keeps its own grace period.
    let (Some(to_stop), false) = (to_stop, run.replaced) else { return Ok(()) };
    // Without a request to stop, a grace period of zero in the spec leaves no time.
    let decided = if call.plan.is_some_and(|plan| plan.grace == Some(0)) { Duration::ZERO } else { decided };
    let end = call.clock.steady_of(to_stop.at) + decided;
    let rest = end.since(call.clock.steady());
    // An earlier agent may have begun the stop.
    let rest = run.inherited_stop.map_or(rest, |inherited| rest.min(inherited.least(call.now)));
    if grace + Duration::from_millis(1) < rest {
        return Err(format!("within {grace:?}, although {rest:?} of its grace period of {decided:?} are left"));
    }
    Ok(())
}

/// A pod that only the runtime knows gets the grace period of its spec, unless an earlier agent began its stop (POD-K12).
fn runtime_only_pod_has_its_grace_period(
    call: &CallContext<'_>,
    view: &PodView,
    run: &ContainerRun,
    decided: Duration,
) -> CheckResult {
    let is_runtime_only = view.snapshot.transitions.iter().any(|transition| transition.cause == Cause::RuntimeOnly);
    let (true, Some(own)) = (is_runtime_only, call.plan.and_then(|plan| plan.grace)) else { return Ok(()) };
    let own = Duration::from_secs(own.max(1).unsigned_abs());
    if is_left_without_a_stop(run, call.life) && decided < own {
        return Err(format!("although {decided:?} was decided, and the grace period of its spec is {own:?}"));
    }
    Ok(())
}

/// Whether an earlier agent started the run and did not begin to stop it. The life decides, because the clock may have been set back between
/// the two agents.
fn is_left_without_a_stop(run: &ContainerRun, life: u32) -> bool {
    run.life < life && run.started.is_some() && run.inherited_stop.is_none() && run.stop_failed.is_none()
}

/// A stop that an earlier agent began gets no second grace period. A jump of the clock may come after the agent read the rest, which is
/// within the grace period of the stop all the same.
fn stop_of_an_earlier_agent_goes_on(call: &CallContext<'_>, run: &ContainerRun, grace: Duration) -> CheckResult {
    let (Some(inherited), None, false) = (run.inherited_stop, run.stop_failed, run.may_run_on) else { return Ok(()) };
    let rest = if call.clock.last_jump().is_none() { inherited.most(call.now) } else { inherited.limit };
    if grace > rest.max(Duration::from_secs(2)) + Duration::from_secs(1) {
        return Err(format!("within {grace:?}, although an earlier agent left only {rest:?}"));
    }
    Ok(())
}

/// Containers are stopped before their sandbox.
pub(super) fn sandbox(call: &CallContext<'_>) -> CheckResult {
    let (CallDetail::Sandbox(id), Some(view)) = (call.about, call.view) else { return Ok(()) };
    let WaitFor::HookCall(_) = view.snapshot.wait.what else { return Ok(()) };
    let begun = view.snapshot.wait.since;
    let mut running = call.runs.iter().filter(|run| run.sandbox == *id && run.runs());
    match running.find(|run| run.stop_failed.is_none_or(|at| at < begun)) {
        Some(run) => Err(format!("while {} {} runs in it and was not stopped", run.name, run.id)),
        None => Ok(()),
    }
}

/// A pod that ended by itself has no running regular container.
fn no_regular_container_runs(call: &CallContext<'_>, view: &PodView, name: &str) -> CheckResult {
    let completed = view.snapshot.transitions.iter().any(|transition| transition.cause == Cause::Completed);
    let deadline = call.plan.is_some_and(|plan| plan.deadline.is_some());
    if completed && !deadline && call.kind_of(name) == Some(Kind::Regular) {
        return Err("although a pod that ended by itself has no running regular container".into());
    }
    Ok(())
}

/// A sidecar is stopped after the regular containers and after the sidecars behind it, or at the end of the grace
/// period.
fn sidecars_stop_last(
    call: &CallContext<'_>,
    view: &PodView,
    sidecar: &ContainerRun,
    decided: Duration,
) -> CheckResult {
    let name = sidecar.name.as_str();
    let (Some(plan), WaitFor::HookCall(Hook::Terminating)) = (call.plan, &view.snapshot.wait.what) else {
        return Ok(());
    };
    let begun = view.snapshot.wait.since;
    // Without a request to stop, a grace period of zero in the spec leaves no time to wait.
    let decided = if plan.grace == Some(0) { Duration::ZERO } else { decided };
    // The grace period only shrinks, and the earliest of its deadlines counts (POD-I5). No deadline is before this one.
    let to_stop = view.snapshot.transitions.iter().find(|transition| transition.to == Lifecycle::Terminating);
    let deadline = to_stop.map_or(begun, |transition| transition.at) + decided;
    let deadline = sidecar.inherited_stop.map_or(deadline, |stop| deadline.min(call.now + stop.least(call.now)));
    if call.kind_of(name) != Some(Kind::Sidecar) || call.now + Duration::from_millis(1) >= deadline {
        return Ok(());
    }
    // A stop that a sync began, for a pod that ended or for a restart of all containers, gets no new grace period
    // (POD-I5).
    if call.runs.iter().any(|run| run.runs() && run.replaced) {
        return Ok(());
    }
    let index = plan.containers.iter().position(|container| container.name == name).unwrap();
    for (other_index, other) in plan.containers.iter().enumerate() {
        let first = other.kind == Kind::Regular || (other.kind == Kind::Sidecar && other_index > index);
        let runs = call.runs.iter().find(|run| run.name.as_str() == other.name && run.runs());
        if let Some(run) = runs.filter(|run| first && run.stop_failed.is_none_or(|at| at < begun)) {
            return Err(format!("before {} {}", other.name, run.id));
        }
    }
    Ok(())
}

/// No healthy container of a pod in sync is stopped.
fn stop_in_sync_has_reason(call: &CallContext<'_>, view: &PodView, run: &ContainerRun) -> CheckResult {
    let (Some(plan), Some(active)) = (call.plan, &view.active) else { return Ok(()) };
    let name = run.name.as_str();
    let Some(container) = plan.containers.iter().find(|container| container.name == name) else { return Ok(()) };
    let all = active.containers().iter().chain(active.init_containers());
    let image = all.into_iter().find(|c| c.name == name).and_then(|c| c.image.as_deref());
    let ready: Vec<_> = call.status.sandboxes.iter().filter(|s| s.state == SandboxState::Ready).collect();
    let fits = ready.len() == 1 && call.status.sandboxes.first().is_some_and(|s| s.id == run.sandbox);
    let reasons = image != Some(run.image.as_str())
        || container.probes.iter().any(|probe| probe.field != "readinessProbe")
        || container.post_start.is_some()
        || !fits
        || restarts_for_resize(call, plan, name)
        || restarts_all(plan)
        || (container.kind != Kind::Regular && !regular_container_stays(call, plan));
    if reasons { Ok(()) } else { Err("although it is healthy and the pod is in sync".into()) }
}

/// Whether a container has to be restarted to get its allocated resources.
fn restarts_for_resize(call: &CallContext<'_>, plan: &PodPlan, name: &str) -> bool {
    let (true, Some(view), Some(applied)) = (plan.resize.is_some(), call.view, call.applied) else { return false };
    let Some(pod) = &view.active else { return false };
    let mut all = pod.containers().iter().chain(pod.init_containers());
    all.find(|container| container.name == name)
        .is_some_and(|container| applied.needs_restart(Amounts::in_pod(pod, container), container))
}

fn restarts_all(plan: &PodPlan) -> bool {
    plan.containers.iter().any(|c| c.rule.is_some_and(|(_, action)| action == "RestartAllContainers"))
}

/// Whether a regular container runs that has no request to stop and that no probe can have stopped together with the
/// sidecars. With a grace period of zero the sidecars do not wait for it.
fn regular_container_stays(call: &CallContext<'_>, plan: &PodPlan) -> bool {
    let stays = |name: &str| call.runs.iter().any(|run| run.name.as_str() == name && run.runs() && !run.replaced);
    let probed = |container: &ContainerPlan| {
        plan.grace == Some(0) && container.probes.iter().any(|probe| probe.field != "readinessProbe")
    };
    plan.of(Kind::Regular).any(|container| stays(&container.name) && !probed(container))
}

/// Probes and hooks run no command in a terminated pod.
pub(super) fn command(call: &CallContext<'_>) -> CheckResult {
    match (call.about, call.view) {
        (CallDetail::Command { command, .. }, Some(view)) if command == "probe" && is_terminated(&view.snapshot) => {
            Err(format!("although the pod is {}", view.snapshot.lifecycle.as_str()))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use podwright_model::ids::PodUid;
    use podwright_model::time::Time;
    use podwright_ports::{ContainerState, ContainerStatus, PodRuntimeStatus};

    use super::*;
    use crate::container_runs::ContainerRuns;

    /// A run that an agent created in its life 1.
    fn run(started_at: Option<Time>) -> ContainerRun {
        let status = ContainerStatus {
            id: "1".into(),
            sandbox: "s".into(),
            name: "a".into(),
            restart_count: 0,
            state: if started_at.is_some() { ContainerState::Running } else { ContainerState::Created },
            created_at: Time::from_secs(100),
            started_at,
            finished_at: None,
            exit_code: 0,
            signal: None,
            reason: String::new(),
            message: String::new(),
            spec_hash: 0,
            image: "i".to_owned(),
            image_id: "i".to_owned(),
            applied: None,
        };
        let mut runs = ContainerRuns::default();
        let status = PodRuntimeStatus { sandboxes: Vec::new(), containers: vec![status] };
        runs.learn(&PodUid::new("p0-0"), &status, 1, None);
        runs.of(&PodUid::new("p0-0"))[0].clone()
    }

    // The second agent may decide the stop at an earlier time than that of the start, because the clock was set back.
    #[test]
    fn life_decides_whether_an_earlier_agent_left_a_run() {
        let started = run(Some(Time::from_secs(101)));
        assert!(is_left_without_a_stop(&started, 2));
        assert!(!is_left_without_a_stop(&started, 1), "this agent started it");
        assert!(!is_left_without_a_stop(&run(None), 2), "it has not started");
        let failed = ContainerRun { stop_failed: Some(Time::from_secs(102)), ..started };
        assert!(!is_left_without_a_stop(&failed, 2), "a stop has begun");
    }
}
