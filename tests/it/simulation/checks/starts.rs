//! Sandboxes and containers that are made and started.

use std::time::Duration;

use podwright_actors::pod_worker::{Cause, Lifecycle, WaitFor};
use podwright_actors::time::Time;

use super::{TurnClock, Verdict};
use crate::simulation::runs::Run;
use crate::simulation::scenario::{Kind, Op};
use crate::simulation::world::About;

pub(super) fn start(moment: &TurnClock<'_>) -> Verdict {
    let Some(look) = moment.look else { return Err("the engine does not know the pod".into()) };
    // POD-I1. What was made just before is still started, as long as the terminate hook was not called.
    let lifecycle = look.snapshot.lifecycle;
    let allowed = lifecycle == Lifecycle::Sync
        || (moment.op == Op::Start && lifecycle == Lifecycle::Terminating && !look.stopping);
    if !allowed {
        return Err(format!("although the pod is {}", lifecycle.as_str()));
    }
    match moment.about {
        About::New { name, restart_count, sandbox } => {
            one_of_a_name(moment)?;
            let own: Vec<&Run> = moment.own_runs().filter(|run| run.name == *name).collect();
            if let Some(run) = own.iter().find(|run| run.restart_count >= *restart_count) {
                return Err(format!("attempt {restart_count} was made before, as {}", run.id));
            }
            in_order(moment, name.as_str(), sandbox.as_str())?;
            backoff(moment, &own, name.as_str(), sandbox.as_str())
        }
        About::Run { name, id } => {
            let twin = moment.runs.iter().find(|run| run.name == *name && run.id != *id && run.runs());
            twin.map_or(Ok(()), |twin| Err(format!("while {} runs", twin.id)))
        }
        _ => Ok(()),
    }
}

/// POD-I8: of the static pods of one full name at most one was started and is not finished.
fn one_of_a_name(moment: &TurnClock<'_>) -> Verdict {
    let own = moment.rivals.iter().find(|rival| rival.uid == *moment.uid);
    let Some(own) = own.filter(|own| own.is_static) else { return Ok(()) };
    let rival = moment.rivals.iter().find(|rival| {
        rival.uid != own.uid
            && rival.is_static
            && rival.full_name == own.full_name
            && rival.lifecycle < Lifecycle::Finished
            && rival.transitions.iter().any(|transition| transition.cause == Cause::Started)
    });
    rival
        .map_or(Ok(()), |rival| Err(format!("although {} has its name and is {}", rival.uid, rival.lifecycle.as_str())))
}

/// Init containers end well one after the other, sidecars have started, before what comes after them is made.
fn in_order(moment: &TurnClock<'_>, name: &str, sandbox: &str) -> Verdict {
    let Some(plan) = moment.plan else { return Ok(()) };
    let inits: Vec<_> = plan.containers.iter().filter(|container| container.kind != Kind::Regular).collect();
    let before = match inits.iter().position(|container| container.name == name) {
        Some(place) => &inits[..place],
        None => &inits[..],
    };
    for container in before {
        let runs =
            moment.runs.iter().filter(|run| run.sandbox.as_str() == sandbox && run.name.as_str() == container.name);
        let done = match container.kind {
            Kind::Init => runs.clone().any(|run| run.ended.is_some() && run.exit_code == 0),
            Kind::Sidecar | Kind::Regular => runs.clone().any(|run| run.started.is_some()),
        };
        if !done {
            return Err(format!("before {} was done in the sandbox", container.name));
        }
    }
    Ok(())
}

/// Restarts come after 0, 10, 20, ... 300 s. What the agent could see of this life is counted, so it may wait longer.
fn backoff(moment: &TurnClock<'_>, own: &[&Run], name: &str, sandbox: &str) -> Verdict {
    let Some(plan) = moment.plan else { return Ok(()) };
    // A restart of all containers takes the others' history away.
    let all = plan.containers.iter().any(|c| c.rule.is_some_and(|(_, action)| action == "RestartAllContainers"));
    let Some(image) = own.last().map(|run| &run.image) else { return Ok(()) };
    let wanted = moment.look.and_then(|look| look.active.as_ref()).and_then(|pod| {
        let all = pod.containers().iter().chain(pod.init_containers());
        all.into_iter().find(|container| container.name == name)?.image.clone()
    });
    if all || wanted.as_ref() != Some(image) {
        return Ok(());
    }
    // A new sandbox takes the history of init containers away.
    let init = moment.kind_of(name) != Some(Kind::Regular);
    let mut same: Vec<&&Run> =
        own.iter().rev().take_while(|run| run.image == *image && (!init || run.sandbox.as_str() == sandbox)).collect();
    same.reverse();
    let mut delay = Duration::ZERO;
    let mut last: Option<Time> = None;
    for (place, run) in same.iter().enumerate() {
        // What was made of a container that never ran has no exit until its sandbox ends.
        let known = exit_before(&same[..place], run.created);
        if let (Some(exit), Some(last)) = (known, last) {
            let doubled = if exit.since(last) > LONG { Duration::ZERO } else { delay * 2 };
            delay = doubled.clamp(Duration::from_secs(10), Duration::from_secs(300));
        }
        last = Some(run.created);
    }
    // What ends while a setup is under way is seen by the next one.
    let seen = moment.look.map_or(moment.now, |look| match look.snapshot.wait.what {
        WaitFor::HookCall(_) => look.snapshot.wait.since,
        _ => moment.now,
    });
    let exit = exit_before(&same, seen);
    match (exit, last) {
        (Some(exit), Some(last)) if exit.since(last) <= LONG && moment.now < exit + delay => {
            Err(format!("{:?} after its last exit, within its backoff of {delay:?}", moment.now.since(exit)))
        }
        _ => Ok(()),
    }
}

fn exit_before(runs: &[&&Run], now: Time) -> Option<Time> {
    runs.iter().rev().filter(|run| !run.replaced).find_map(|run| run.ended.filter(|at| *at <= now))
}

/// Runs that are so long may count as recovered: an attempt begins some time before its run.
const LONG: Duration = Duration::from_secs(400);
