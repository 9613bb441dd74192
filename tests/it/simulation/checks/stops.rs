//! Containers that are stopped, and commands in them.

use std::time::Duration;

use podwright_actors::pod_worker::{Cause, Hook, Lifecycle, WaitFor};
use podwright_actors::ports::SandboxState;

use super::{TurnClock, Verdict, is_over};
use crate::simulation::runs::Run;
use crate::simulation::scenario::{ContainerPlan, Kind, PodPlan};
use crate::simulation::world::{About, Look};

pub(super) fn stop(moment: &TurnClock<'_>) -> Verdict {
    let About::Stop { name, id, grace } = moment.about else { return Ok(()) };
    let (Some(look), Some(run)) = (moment.look, moment.runs.iter().find(|run| run.id == *id)) else { return Ok(()) };
    if is_over(&look.snapshot) || !run.runs() {
        return Ok(());
    }
    match look.snapshot.lifecycle {
        Lifecycle::Waiting => Err("although the pod never started".into()),
        Lifecycle::Sync => has_reason(moment, look, run),
        _ if !look.stopping => Ok(()),
        _ => {
            // POD-I5: what the runtime is told is never more than what was decided.
            let decided = look.snapshot.grace.map_or(Duration::ZERO, |grace| grace.duration());
            if *grace > decided.max(Duration::from_secs(2)) {
                return Err(format!("within {grace:?}, although {decided:?} were decided"));
            }
            ended_by_itself(moment, look, name.as_str())?;
            in_turn(moment, look, name.as_str(), decided)
        }
    }
}

/// Containers are stopped before their sandbox is.
pub(super) fn sandbox(moment: &TurnClock<'_>) -> Verdict {
    let (About::Sandbox(id), Some(look)) = (moment.about, moment.look) else { return Ok(()) };
    let WaitFor::HookCall(_) = look.snapshot.wait.what else { return Ok(()) };
    let begun = look.snapshot.wait.since;
    let mut running = moment.runs.iter().filter(|run| run.sandbox == *id && run.runs());
    match running.find(|run| run.stop_failed.is_none_or(|at| at < begun)) {
        Some(run) => Err(format!("while {} {} runs in it, which was not asked to stop", run.name, run.id)),
        None => Ok(()),
    }
}

/// A pod that ended by itself has no regular container that runs.
fn ended_by_itself(moment: &TurnClock<'_>, look: &Look, name: &str) -> Verdict {
    let completed = look.snapshot.transitions.iter().any(|transition| transition.cause == Cause::Completed);
    let deadline = moment.plan.is_some_and(|plan| plan.deadline.is_some());
    if completed && !deadline && moment.kind_of(name) == Some(Kind::Regular) {
        return Err("which runs, although the pod is said to have ended by itself".into());
    }
    Ok(())
}

/// A sidecar is stopped after the regular containers and the sidecars behind it, or when the grace is used up.
fn in_turn(moment: &TurnClock<'_>, look: &Look, name: &str, decided: Duration) -> Verdict {
    let (Some(plan), WaitFor::HookCall(Hook::Terminating)) = (moment.plan, &look.snapshot.wait.what) else {
        return Ok(());
    };
    let begun = look.snapshot.wait.since;
    // Where nobody asked for a stop, a grace of zero in the spec leaves no time to wait.
    let decided = if plan.grace == Some(0) { Duration::ZERO } else { decided };
    // A grace only gets shorter, and of the ends that it ever had the earliest counts (POD-I5): none is before this one.
    let to_stop = look.snapshot.transitions.iter().find(|transition| transition.to == Lifecycle::Terminating);
    let deadline = to_stop.map_or(begun, |transition| transition.at) + decided;
    if moment.kind_of(name) != Some(Kind::Sidecar) || moment.now + Duration::from_millis(1) >= deadline {
        return Ok(());
    }
    // A stop that a sync began, as of a pod that ended or of all containers to start again, is given no time anew (POD-I5).
    if moment.runs.iter().any(|run| run.runs() && run.replaced) {
        return Ok(());
    }
    let place = plan.containers.iter().position(|container| container.name == name).unwrap();
    for (other_place, other) in plan.containers.iter().enumerate() {
        let first = other.kind == Kind::Regular || (other.kind == Kind::Sidecar && other_place > place);
        let runs = moment.runs.iter().find(|run| run.name.as_str() == other.name && run.runs());
        if let Some(run) = runs.filter(|run| first && run.stop_failed.is_none_or(|at| at < begun)) {
            return Err(format!("before {} {}", other.name, run.id));
        }
    }
    Ok(())
}

/// Nothing that runs well is stopped in a pod that is to run.
fn has_reason(moment: &TurnClock<'_>, look: &Look, run: &Run) -> Verdict {
    let (Some(plan), Some(active)) = (moment.plan, &look.active) else { return Ok(()) };
    let name = run.name.as_str();
    let Some(container) = plan.containers.iter().find(|container| container.name == name) else { return Ok(()) };
    let all = active.containers().iter().chain(active.init_containers());
    let image = all.into_iter().find(|c| c.name == name).and_then(|c| c.image.as_deref());
    let ready: Vec<_> = moment.status.sandboxes.iter().filter(|s| s.state == SandboxState::Ready).collect();
    let fits = ready.len() == 1 && moment.status.sandboxes.first().is_some_and(|s| s.id == run.sandbox);
    let reasons = image != Some(run.image.as_str())
        || container.probes.iter().any(|probe| probe.field != "readinessProbe")
        || container.post_start.is_some()
        || !fits
        || restarts_all(plan)
        || (container.kind != Kind::Regular && !regular_stays(moment, plan));
    if reasons { Ok(()) } else { Err("although it runs as it should".into()) }
}

fn restarts_all(plan: &PodPlan) -> bool {
    plan.containers.iter().any(|c| c.rule.is_some_and(|(_, action)| action == "RestartAllContainers"))
}

/// Whether a regular container runs that nobody asked to stop, and that no probe may have stopped together with the
/// sidecars: without a grace nobody waits for it.
fn regular_stays(moment: &TurnClock<'_>, plan: &PodPlan) -> bool {
    let stays = |name: &str| moment.runs.iter().any(|run| run.name.as_str() == name && run.runs() && !run.replaced);
    let probed = |container: &ContainerPlan| {
        plan.grace == Some(0) && container.probes.iter().any(|probe| probe.field != "readinessProbe")
    };
    plan.of(Kind::Regular).any(|container| stays(&container.name) && !probed(container))
}

/// Probes and hooks reach into no pod that is over.
pub(super) fn command(moment: &TurnClock<'_>) -> Verdict {
    match (moment.about, moment.look) {
        (About::Command { command, .. }, Some(look)) if command == "probe" && is_over(&look.snapshot) => {
            Err(format!("although the pod is {}", look.snapshot.lifecycle.as_str()))
        }
        _ => Ok(()),
    }
}
