//! Every run of every container, as the runtime has it and not as the agent sees it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use podwright_model::ids::{ContainerId, ContainerName, PodUid, SandboxId};
use podwright_model::time::Time;
use podwright_ports::{ContainerState, PodRuntimeStatus};
use serde_json::Value;

/// The stop of a container, as an earlier agent decided and recorded it.
#[derive(Clone, Copy, Debug)]
pub(super) struct InheritedStop {
    /// When the container is killed.
    pub(super) killed_at: Time,
    /// How long the stop may take at most.
    pub(super) limit: Duration,
    /// When the running agent started.
    pub(super) read_since: Time,
}

impl InheritedStop {
    /// The most that is left of the stop.
    pub(super) fn most(self, now: Time) -> Duration {
        self.killed_at.since(now).min(self.limit)
    }

    /// The least that is left of the stop. If the clock was set back, the stop may take its limit from the time on at which the agent reads
    /// it, which is not before the agent started.
    pub(super) fn least(self, now: Time) -> Duration {
        self.killed_at.since(now).min(self.limit.saturating_sub(now.since(self.read_since)))
    }
}

/// One run of a container.
#[derive(Clone, Debug)]
pub(super) struct ContainerRun {
    pub(super) id: ContainerId,
    pub(super) name: ContainerName,
    pub(super) sandbox: SandboxId,
    pub(super) image: String,
    pub(super) restart_count: u32,
    pub(super) created: Time,
    pub(super) state: ContainerState,
    pub(super) started: Option<Time>,
    pub(super) ended: Option<Time>,
    pub(super) exit_code: i32,
    /// The life of the agent in which the container was created.
    pub(super) life: u32,
    /// The time at which the engine created the record of the pod that started the container.
    pub(super) record: Option<Time>,
    /// The container was stopped while its pod was in sync. The backoff of its next start does not count this exit.
    pub(super) replaced: bool,
    /// When the agent began to stop the container for a resize. A new agent knows that only from the file.
    pub(super) resize_stop: Option<Time>,
    /// When a stop of the container last failed.
    pub(super) stop_failed: Option<Time>,
    /// The runtime cancelled the start, because the agent that requested it was killed. The next agent knows that.
    pub(super) cancelled: bool,
    pub(super) inherited_stop: Option<InheritedStop>,
    /// The post-start hook has succeeded, if it is a command.
    pub(super) hooked: bool,
    /// An earlier agent recorded that the start had not ended.
    pub(super) was_starting: bool,
    /// An earlier agent recorded that the readiness probe passed.
    pub(super) was_ready: bool,
    /// This agent has probed the container by a command.
    pub(super) probed: bool,
    /// This agent has set the pod up, so the container may get a new grace period.
    pub(super) may_run_on: bool,
}

impl ContainerRun {
    pub(super) fn runs(&self) -> bool {
        self.state == ContainerState::Running
    }

    /// Whether the run certainly ended because the agent stopped it for a resize, with this grace period. Its exit code says nothing about
    /// its work.
    pub(super) fn was_stopped_for_resize(&self, grace: Duration) -> bool {
        let is_during = |stop: Time, end: Time| stop <= end && end < stop + grace;
        self.resize_stop.zip(self.ended).is_some_and(|(stop, end)| is_during(stop, end))
    }
}

/// The runs of all pods. Each pod's oldest run is first.
#[derive(Debug, Default)]
pub(super) struct ContainerRuns(BTreeMap<PodUid, Vec<ContainerRun>>);

impl ContainerRuns {
    /// Records what the runtime has now.
    pub(super) fn learn(&mut self, uid: &PodUid, status: &PodRuntimeStatus, life: u32, record: Option<Time>) {
        if status.containers.is_empty() && !self.0.contains_key(uid) {
            return;
        }
        let known = self.0.entry(uid.clone()).or_default();
        for now in status.containers.iter().rev() {
            let run = match known.iter_mut().rfind(|run| run.id == now.id) {
                Some(run) => run,
                None => {
                    known.push(ContainerRun {
                        id: now.id.clone(),
                        name: now.name.clone(),
                        sandbox: now.sandbox.clone(),
                        image: now.image.clone(),
                        restart_count: now.restart_count,
                        created: now.created_at,
                        state: now.state,
                        started: None,
                        ended: None,
                        exit_code: 0,
                        life,
                        record,
                        replaced: false,
                        resize_stop: None,
                        stop_failed: None,
                        cancelled: false,
                        inherited_stop: None,
                        hooked: false,
                        was_starting: false,
                        was_ready: false,
                        probed: false,
                        may_run_on: false,
                    });
                    known.last_mut().unwrap()
                }
            };
            run.state = now.state;
            run.started = now.started_at;
            run.ended = now.finished_at;
            run.exit_code = now.exit_code;
        }
    }

    /// The agent stops the containers with these names, for a resize if it does so at `resize_stop`, and their pod stays in sync. Only the
    /// newest run of each is marked.
    pub(super) fn replaced(&mut self, uid: &PodUid, names: impl Fn(&str) -> bool, resize_stop: Option<Time>) {
        let mut marked = BTreeSet::new();
        let runs = self.0.get_mut(uid).into_iter().flatten().rev();
        runs.filter(|run| names(run.name.as_str()) && marked.insert(run.name.clone()))
            .for_each(|run| (run.replaced, run.resize_stop) = (true, resize_stop.or(run.resize_stop)));
    }

    pub(super) fn stop_failed(&mut self, uid: &PodUid, id: &ContainerId, now: Time) {
        let runs = self.0.get_mut(uid).into_iter().flatten();
        runs.filter(|run| run.id == *id).for_each(|run| run.stop_failed = Some(now));
    }

    /// A new agent starts now. `facts` is what the earlier agents recorded of each run.
    pub(super) fn inherit(&mut self, facts: &BTreeMap<String, Value>, now: Time) {
        for run in self.0.values_mut().flatten() {
            let facts = facts.get(run.id.as_str());
            run.inherited_stop = facts.and_then(|facts| {
                let stop = facts.get("stop")?;
                let (killed_at, limit) = (stop["killed_at"].as_u64()?, stop["limit"].as_u64()?);
                let (killed_at, limit) = (Time::from_nanos(killed_at), Duration::from_nanos(limit));
                Some(InheritedStop { killed_at, limit, read_since: now })
            });
            let is_known = facts.is_some_and(|facts| facts.get("for_resize").is_some());
            // The stop takes longer if the clock was set back.
            run.resize_stop = run.resize_stop.filter(|at| is_known && *at <= now);
            run.was_starting |= facts.is_some_and(|facts| facts["starting"] == true);
            run.was_ready = facts.is_some_and(|facts| facts["ready"] == true);
            (run.probed, run.may_run_on) = (false, false);
        }
    }

    /// The agent probes a container.
    pub(super) fn probed(&mut self, uid: &PodUid, id: &ContainerId) {
        let runs = self.0.get_mut(uid).into_iter().flatten();
        runs.filter(|run| run.id == *id).for_each(|run| run.probed = true);
    }

    /// A hook of a container has succeeded.
    pub(super) fn hooked(&mut self, uid: &PodUid, id: &ContainerId) {
        let runs = self.0.get_mut(uid).into_iter().flatten();
        runs.filter(|run| run.id == *id).for_each(|run| run.hooked = true);
    }

    /// The agent sets a pod up.
    pub(super) fn set_up(&mut self, uid: &PodUid) {
        self.0.get_mut(uid).into_iter().flatten().for_each(|run| run.may_run_on = true);
    }

    pub(super) fn start_cancelled(&mut self, uid: &PodUid, id: &ContainerId) {
        let runs = self.0.get_mut(uid).into_iter().flatten();
        runs.filter(|run| run.id == *id).for_each(|run| run.cancelled = true);
    }

    pub(super) fn of(&self, uid: &PodUid) -> &[ContainerRun] {
        self.0.get(uid).map_or(&[], Vec::as_slice)
    }
}

#[cfg(test)]
mod tests {
    use podwright_ports::ContainerStatus;
    use serde_json::json;

    use super::*;

    #[test]
    fn a_run_that_ends_during_a_stop_for_a_resize_that_the_agent_knows_was_stopped_for_it() {
        let (uid, at) = (PodUid::new("p0-0"), Time::from_secs);
        let check = |stop: Option<u64>, end: u64, next_agent: Option<(Value, u64)>| {
            let run = ContainerStatus {
                id: "1".into(),
                sandbox: "s".into(),
                name: "a".into(),
                restart_count: 0,
                state: ContainerState::Exited,
                created_at: at(1),
                started_at: Some(at(2)),
                finished_at: Some(at(end)),
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
            runs.learn(&uid, &PodRuntimeStatus { sandboxes: Vec::new(), containers: vec![run] }, 1, None);
            runs.replaced(&uid, |name| name == "a", stop.map(at));
            if let Some((facts, now)) = next_agent {
                runs.inherit(&BTreeMap::from([("1".to_owned(), facts)]), at(now));
            }
            runs.of(&uid)[0].was_stopped_for_resize(Duration::from_secs(30))
        };
        assert!(check(Some(10), 39, None));
        assert!(!check(None, 39, None), "stopped for another reason");
        assert!(!check(Some(10), 9, None), "ended before");
        assert!(!check(Some(10), 40, None), "ended after");
        assert!(check(Some(10), 39, Some((json!({"for_resize": {}}), 40))));
        assert!(!check(Some(10), 39, Some((json!({}), 40))), "the file was lost");
        assert!(!check(Some(10), 39, Some((json!({"for_resize": {}}), 9))), "the clock was set back");
    }
}
