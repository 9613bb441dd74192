//! Checks of sandboxes and containers that are created and started.

use std::time::Duration;

use podwright_core::pod_worker::{Cause, Lifecycle, WaitFor};
use podwright_model::time::Time;

use super::{CallContext, CheckResult};
use crate::container_runs::ContainerRun;
use crate::machine::CallDetail;
use crate::scenario::{Kind, Op};

pub(super) fn start(call: &CallContext<'_>) -> CheckResult {
    let Some(view) = call.view else { return Err("the engine does not know the pod".into()) };
    // Only a pod in sync may start containers (POD-I1). A container created just before may still start until the
    // terminate hook is called.
    let lifecycle = view.snapshot.lifecycle;
    let allowed =
        lifecycle == Lifecycle::Sync || (call.op == Op::Start && lifecycle == Lifecycle::Terminating && !view.stopping);
    if !allowed {
        return Err(format!("although the pod is {}", lifecycle.as_str()));
    }
    match call.about {
        CallDetail::New { name, restart_count, sandbox } => {
            one_static_pod_per_name(call)?;
            let own: Vec<&ContainerRun> = call.own_runs().filter(|run| run.name == *name).collect();
            if let Some(run) = own.iter().find(|run| run.restart_count >= *restart_count) {
                return Err(format!("attempt {restart_count} was created before, as {}", run.id));
            }
            init_order(call, name.as_str(), sandbox.as_str())?;
            backoff(call, &own, name.as_str(), sandbox.as_str())
        }
        CallDetail::Run { name, id } => {
            let twin = call.runs.iter().find(|run| run.name == *name && run.id != *id && run.runs());
            twin.map_or(Ok(()), |twin| Err(format!("while {} runs", twin.id)))
        }
        _ => Ok(()),
    }
}

/// At most one static pod of a full name has started and not finished (POD-I8).
fn one_static_pod_per_name(call: &CallContext<'_>) -> CheckResult {
    let own = call.rivals.iter().find(|rival| rival.uid == *call.uid);
    let Some(own) = own.filter(|own| own.is_static) else { return Ok(()) };
    let rival = call.rivals.iter().find(|rival| {
        rival.uid != own.uid
            && rival.is_static
            && rival.full_name == own.full_name
            && rival.lifecycle < Lifecycle::Finished
            && rival.transitions.iter().any(|transition| transition.cause == Cause::Started)
    });
    rival.map_or(Ok(()), |rival| {
        Err(format!("although {} has its full name and is {}", rival.uid, rival.lifecycle.as_str()))
    })
}

/// A container is created only after the init containers before it succeeded and the sidecars before it started. An init container that
/// was stopped for a resize has not succeeded, whatever its exit code is.
fn init_order(call: &CallContext<'_>, name: &str, sandbox: &str) -> CheckResult {
    let Some(plan) = call.plan else { return Ok(()) };
    let inits: Vec<_> = plan.containers.iter().filter(|container| container.kind != Kind::Regular).collect();
    let before = match inits.iter().position(|container| container.name == name) {
        Some(index) => &inits[..index],
        None => &inits[..],
    };
    for container in before {
        let runs =
            call.runs.iter().filter(|run| run.sandbox.as_str() == sandbox && run.name.as_str() == container.name);
        let done = match container.kind {
            Kind::Init => runs.clone().any(|run| {
                run.ended.is_some() && run.exit_code == 0 && !run.was_stopped_for_resize(plan.grace_period())
            }),
            Kind::Sidecar | Kind::Regular => runs.clone().any(|run| run.started.is_some()),
        };
        if !done {
            return Err(format!("before {} has succeeded or started in the sandbox", container.name));
        }
    }
    Ok(())
}

/// Restarts wait 0, 10, 20, ... 300 s. Only exits that this life of the agent can know are counted, so a restart may
/// come later.
fn backoff(call: &CallContext<'_>, own: &[&ContainerRun], name: &str, sandbox: &str) -> CheckResult {
    let Some(plan) = call.plan else { return Ok(()) };
    // A resize resets the backoff.
    if plan.resize.is_some() {
        return Ok(());
    }
    // A restart of all containers removes the history of the other containers.
    let all = plan.containers.iter().any(|c| c.rule.is_some_and(|(_, action)| action == "RestartAllContainers"));
    let Some(image) = own.last().map(|run| &run.image) else { return Ok(()) };
    let desired_image = call.view.and_then(|view| view.active.as_ref()).and_then(|pod| {
        let all = pod.containers().iter().chain(pod.init_containers());
        all.into_iter().find(|container| container.name == name)?.image.clone()
    });
    if all || desired_image.as_ref() != Some(image) {
        return Ok(());
    }
    // A jump of the clock looks like a long run, after which the backoff begins again.
    let jumped = call.clock.last_jump().unwrap_or(Time::ZERO);
    // A new sandbox removes the history of init containers.
    let init = call.kind_of(name) != Some(Kind::Regular);
    let counts = |run: &ContainerRun| run.created >= jumped && (!init || run.sandbox.as_str() == sandbox);
    let mut same: Vec<&&ContainerRun> = own.iter().rev().take_while(|run| run.image == *image && counts(run)).collect();
    same.reverse();
    let mut delay = Duration::ZERO;
    let mut last: Option<Time> = None;
    for (index, run) in same.iter().enumerate() {
        // A container that was created and never ran has no exit until its sandbox ends.
        let known = exit_before(&same[..index], run.created);
        if let (Some(exit), Some(last)) = (known, last) {
            let doubled = if exit.since(last) > RECOVERED_AFTER { Duration::ZERO } else { delay * 2 };
            delay = doubled.clamp(Duration::from_secs(10), Duration::from_secs(300));
        }
        last = Some(run.created);
    }
    // A running setup does not see exits that happen after it began. The next setup does.
    let observed_at = call.view.map_or(call.now, |view| match view.snapshot.wait.what {
        WaitFor::HookCall(_) => view.snapshot.wait.since,
        _ => call.now,
    });
    let exit = exit_before(&same, observed_at);
    match (exit, last) {
        (Some(exit), Some(last)) if exit.since(last) <= RECOVERED_AFTER && call.now < exit + delay => {
            Err(format!("{:?} after its last exit, within its backoff of {delay:?}", call.now.since(exit)))
        }
        _ => Ok(()),
    }
}

fn exit_before(runs: &[&&ContainerRun], now: Time) -> Option<Time> {
    runs.iter().rev().filter(|run| !run.replaced).find_map(|run| run.ended.filter(|at| *at <= now))
}

/// A longer run may reset the backoff. An attempt begins some time before its run does.
const RECOVERED_AFTER: Duration = Duration::from_secs(400);
