//! What is seen of all pods from one second to the next.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use podwright_actors::engine::PodSnapshot;
use podwright_actors::ids::PodUid;
use podwright_actors::pod::Phase;
use podwright_actors::pod_worker::{Cause, Lifecycle, Transition, WaitFor};
use podwright_actors::ports::Clock;
use podwright_actors::time::{Grace, Time};

use super::Verdict;
use crate::simulation::world::{Agent, World};

/// What was seen before, in one life of the agent.
#[derive(Default)]
pub(in crate::simulation) struct Samples {
    records: BTreeMap<(PodUid, Time), Seen>,
}

#[derive(Default)]
struct Seen {
    transitions: Vec<Transition>,
    grace: Option<Grace>,
    restarts: BTreeMap<String, i32>,
}

impl Samples {
    /// Looks at every pod. `doomed` are the pods that somebody wanted gone at some time in this life of the agent.
    pub(in crate::simulation) fn look(&mut self, agent: &Agent, doomed: &BTreeSet<PodUid>) -> Verdict {
        let mut snapshots = agent.engine.snapshots();
        snapshots.sort_by(|a, b| a.uid.cmp(&b.uid));
        for snapshot in &snapshots {
            let seen = self.records.entry((snapshot.uid.clone(), snapshot.synced_at)).or_default();
            let of = |what: String| format!("{}: {what}", snapshot.uid);
            one_way(seen, snapshot).map_err(of)?;
            justified(snapshot, agent, doomed).map_err(of)?;
            answers(snapshot, agent).map_err(of)?;
            restarts(seen, snapshot, agent).map_err(of)?;
        }
        Ok(())
    }
}

/// POD-I2, POD-I5.
fn one_way(seen: &mut Seen, now: &PodSnapshot) -> Verdict {
    if !now.transitions.starts_with(&seen.transitions) {
        return Err(format!("its history changed from {:?} to {:?}", seen.transitions, now.transitions));
    }
    if !now.transitions.is_sorted_by(|a, b| a.at <= b.at && a.to < b.to) {
        return Err(format!("its history goes back: {:?}", now.transitions));
    }
    if let (Some(before), Some(now)) = (seen.grace, now.grace)
        && now > before
    {
        return Err(format!("its grace grew from {before} to {now}"));
    }
    seen.transitions.clone_from(&now.transitions);
    seen.grace = now.grace;
    Ok(())
}

/// A pod that everybody wants is not stopped, unless it was refused and something of it runs (POD-W13).
fn justified(now: &PodSnapshot, agent: &Agent, doomed: &BTreeSet<PodUid>) -> Verdict {
    let is_over = agent.statuses.phase(&now.uid).is_some_and(Phase::is_terminal);
    for transition in &now.transitions {
        match transition.cause {
            Cause::Orphaned | Cause::RuntimeOnly if !agent.desired.is_ready() => {
                return Err(format!("{:?} before every source delivered", transition.cause));
            }
            Cause::Killed if is_over => {}
            Cause::Orphaned | Cause::RuntimeOnly | Cause::Killed | Cause::Evicted | Cause::Deleted
                if !doomed.contains(&now.uid) =>
            {
                return Err(format!("{:?}, and nobody wants it gone", transition.cause));
            }
            _ => {}
        }
    }
    Ok(())
}

/// POD-I10: the queries tell of one and the same state.
fn answers(now: &PodSnapshot, agent: &Agent) -> Verdict {
    let (engine, uid) = (&agent.engine, &now.uid);
    let (terminating, terminated, finished) = (
        now.lifecycle >= Lifecycle::Terminating,
        now.lifecycle >= Lifecycle::Terminated,
        now.lifecycle == Lifecycle::Finished,
    );
    let rows = [
        ("is_pod_known_terminated", engine.is_pod_known_terminated(uid), terminated),
        ("could_have_running_containers", engine.could_have_running_containers(uid), !terminated),
        ("should_pod_be_finished", engine.should_pod_be_finished(uid), finished),
        ("is_pod_termination_requested", engine.is_pod_termination_requested(uid), terminating),
        ("should_pod_runtime_be_removed", engine.should_pod_runtime_be_removed(uid), terminated),
        (
            "should_pod_content_be_removed",
            engine.should_pod_content_be_removed(uid),
            now.evicted || (now.deleted && terminated),
        ),
    ];
    for (query, answer, expected) in rows {
        if answer != expected {
            return Err(format!("{query} says {answer} of a pod that is {}", now.lifecycle.as_str()));
        }
    }
    Ok(())
}

/// Restart counts only go up.
fn restarts(seen: &mut Seen, now: &PodSnapshot, agent: &Agent) -> Verdict {
    let Some(status) = agent.statuses.get(&now.uid) else { return Ok(()) };
    let lists = [&status.init_container_statuses, &status.container_statuses];
    for container in lists.into_iter().flatten().flatten() {
        let before = seen.restarts.insert(container.name.clone(), container.restart_count).unwrap_or(0);
        if container.restart_count < before {
            return Err(format!("restarts of {} went from {before} to {}", container.name, container.restart_count));
        }
    }
    Ok(())
}

/// How long an end may go unnoticed: the longest pause between two relists, and the read that follows.
const NOTICED_WITHIN: Duration = Duration::from_secs(15);

/// An end is noticed in time although its event was lost, as long as the runtime answers and the pod's worker is free.
pub(in crate::simulation) fn noticed(world: &World, agent: &Agent, born: Time) -> Verdict {
    let now = world.clock.now();
    let since = born.max(world.well_since());
    if now.since(since) < NOTICED_WITHIN {
        return Ok(());
    }
    for snapshot in agent.engine.snapshots() {
        let idle = !matches!(snapshot.wait.what, WaitFor::HookCall(_) | WaitFor::Retry { .. } | WaitFor::Worker);
        if snapshot.lifecycle != Lifecycle::Sync
            || !idle
            || now.since(snapshot.transitions.last().map_or(Time::ZERO, |last| last.at)) < NOTICED_WITHIN
        {
            continue;
        }
        // Nobody acts on a pod that its source dropped before the other sources delivered.
        let wanted = agent.desired.pod(&snapshot.uid).is_some();
        let Some(status) = agent.statuses.get(&snapshot.uid).filter(|_| wanted) else { continue };
        let truth = world.truth(&snapshot.uid);
        for container in status.container_statuses.iter().flatten() {
            let shown = container.state.as_ref().is_some_and(|state| state.running.is_some());
            let id = container.container_id.as_deref().and_then(|id| id.split_once("://"));
            let run = truth.containers.iter().find(|run| id.is_some_and(|(_, id)| id == run.id.as_str()));
            let ended = run.and_then(|run| run.finished_at).filter(|_| shown);
            if ended.is_some_and(|at| now.since(at) > NOTICED_WITHIN) {
                return Err(format!("{}: nobody noticed that {} ended", snapshot.uid, container.name));
            }
        }
    }
    Ok(())
}
