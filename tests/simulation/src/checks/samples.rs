//! Checks of all pods, once per second.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use podwright_core::pod_worker::{Cause, Lifecycle, Transition, WaitFor};
use podwright_engine::PodSnapshot;
use podwright_model::ids::PodUid;
use podwright_model::pod::Phase;
use podwright_model::time::{Grace, Time};
use podwright_ports::Clock;

use super::CheckResult;
use crate::machine::{Agent, Machine};

/// What earlier samples found in one life of the agent.
#[derive(Default)]
pub(crate) struct Samples {
    records: BTreeMap<(PodUid, Time), RecordHistory>,
}

#[derive(Default)]
struct RecordHistory {
    transitions: Vec<Transition>,
    grace: Option<Grace>,
    restarts: BTreeMap<String, i32>,
}

impl Samples {
    /// Checks every pod. `may_be_stopped` are the pods that were removed, deleted or killed in this life of the agent. `is_delivered` says
    /// whether a pod is static and its source has delivered.
    pub(crate) fn check(
        &mut self,
        agent: &Agent,
        may_be_stopped: &BTreeSet<PodUid>,
        is_delivered: impl Fn(&PodUid) -> bool,
    ) -> CheckResult {
        let mut snapshots = agent.engine.snapshots();
        snapshots.sort_by(|a, b| a.uid.cmp(&b.uid));
        for snapshot in &snapshots {
            let history = self.records.entry((snapshot.uid.clone(), snapshot.synced_at)).or_default();
            let of = |what: String| format!("{}: {what}", snapshot.uid);
            let checked = history.transitions.len();
            moves_forward(history, snapshot).map_err(of)?;
            stop_is_justified(snapshot, checked, agent, may_be_stopped, is_delivered(&snapshot.uid)).map_err(of)?;
            queries_agree(snapshot, agent).map_err(of)?;
            restarts_only_increase(history, snapshot, agent).map_err(of)?;
        }
        Ok(())
    }
}

/// A record only moves forward (POD-I2), and its grace period never grows (POD-I5).
fn moves_forward(history: &mut RecordHistory, now: &PodSnapshot) -> CheckResult {
    if !now.transitions.starts_with(&history.transitions) {
        return Err(format!("its history changed from {:?} to {:?}", history.transitions, now.transitions));
    }
    if !now.transitions.is_sorted_by(|a, b| a.at <= b.at && a.to < b.to) {
        return Err(format!("its history goes back: {:?}", now.transitions));
    }
    if let (Some(before), Some(now)) = (history.grace, now.grace)
        && now > before
    {
        return Err(format!("its grace period grew from {before} to {now}"));
    }
    history.transitions.clone_from(&now.transitions);
    history.grace = now.grace;
    Ok(())
}

/// A pod that is desired all the time is not stopped, except for a rejected pod that runs (POD-W13). Each transition is checked
/// once: a pod that was stopped because it was rejected may be admitted later, and then its status is no longer terminal.
fn stop_is_justified(
    now: &PodSnapshot,
    checked: usize,
    agent: &Agent,
    may_be_stopped: &BTreeSet<PodUid>,
    is_delivered: bool,
) -> CheckResult {
    let has_ended = agent.statuses.phase(&now.uid).is_some_and(Phase::is_terminal);
    for transition in now.transitions.iter().skip(checked) {
        match transition.cause {
            Cause::Orphaned if !agent.desired.is_ready() => {
                return Err("no longer desired before every source delivered".to_owned());
            }
            // The runtime reports which pods are static.
            Cause::RuntimeOnly if !is_delivered && !agent.desired.is_ready() => {
                return Err("known to the runtime only before its source delivered".to_owned());
            }
            Cause::Killed if has_ended => {}
            // A critical pod may preempt it.
            Cause::Evicted if agent.desired.pod(&now.uid).is_some_and(|pod| !pod.is_critical()) => {}
            Cause::Orphaned | Cause::RuntimeOnly | Cause::Killed | Cause::Evicted | Cause::Deleted
                if !may_be_stopped.contains(&now.uid) =>
            {
                return Err(format!("{:?}, although the pod is desired and was not killed", transition.cause));
            }
            _ => {}
        }
    }
    Ok(())
}

/// All queries describe one state (POD-I10).
fn queries_agree(now: &PodSnapshot, agent: &Agent) -> CheckResult {
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
            return Err(format!("{query} returns {answer} for a pod that is {}", now.lifecycle.as_str()));
        }
    }
    Ok(())
}

/// Restart counts never decrease.
fn restarts_only_increase(history: &mut RecordHistory, now: &PodSnapshot, agent: &Agent) -> CheckResult {
    let Some(status) = agent.statuses.get(&now.uid) else { return Ok(()) };
    let lists = [&status.init_container_statuses, &status.container_statuses];
    for container in lists.into_iter().flatten().flatten() {
        let before = history.restarts.insert(container.name.clone(), container.restart_count).unwrap_or(0);
        if container.restart_count < before {
            return Err(format!("restarts of {} went from {before} to {}", container.name, container.restart_count));
        }
    }
    Ok(())
}

/// How long the exit of a container may stay unnoticed: the longest pause between two relists, and the read after it.
const NOTICED_WITHIN: Duration = Duration::from_secs(15);

/// The agent notices the exit of a container in time even if its event was lost, provided that the runtime answers and
/// the pod's worker is idle. `agent_started` is a time without the jumps of the clock.
pub(crate) fn exits_are_noticed(machine: &Machine, agent: &Agent, agent_started: Time) -> CheckResult {
    let now = machine.clock.now();
    let since = agent_started.max(machine.faultless_since());
    if machine.clock.steady().since(since) < NOTICED_WITHIN {
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
        // The agent does not act on a pod that its source dropped before the other sources delivered.
        let desired = agent.desired.pod(&snapshot.uid).is_some();
        let Some(status) = agent.statuses.get(&snapshot.uid).filter(|_| desired) else { continue };
        let truth = machine.runtime_status(&snapshot.uid);
        for container in status.container_statuses.iter().flatten() {
            let reported = container.state.as_ref().is_some_and(|state| state.running.is_some());
            let id = container.container_id.as_deref().and_then(|id| id.split_once("://"));
            let run = truth.containers.iter().find(|run| id.is_some_and(|(_, id)| id == run.id.as_str()));
            let ended = run.and_then(|run| run.finished_at).filter(|_| reported);
            if ended.is_some_and(|at| now.since(at) > NOTICED_WITHIN) {
                return Err(format!("{}: the agent did not notice that {} exited", snapshot.uid, container.name));
            }
        }
    }
    Ok(())
}
