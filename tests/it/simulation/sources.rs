//! The pod sources, and the API server's part: it stores statuses and deletes pods that have ended.

use std::collections::BTreeSet;
use std::sync::Arc;

use k8s_openapi::api::core::v1::PodStatus;
use podwright_actors::ids::PodUid;
use podwright_actors::pod::{Phase, PodObject};
use podwright_actors::ports::{Clock, ResourcePhase, Severity, SourceKind, SourceProblem, SourceSet};
use podwright_actors::status::merge_for_api;
use podwright_actors::time::Time;

use super::checks::{self, CheckResult};
use super::disk::Disk;
use super::machine::{Agent, Machine};
use super::pod_objects::{self, PodRevision};
use super::scenario::{ClaimPlan, PodIndex, PodPlan, Scenario, Source};

impl Source {
    pub(super) const ALL: [Source; 2] = [Source::File, Source::Api];

    pub(super) fn kind(self) -> SourceKind {
        match self {
            Source::File => SourceKind::File,
            Source::Api => SourceKind::Api,
        }
    }
}

pub(super) struct SimSources {
    scenario: Arc<Scenario>,
    pods: Vec<SourcePod>,
    lines: [SourceFeed; 2],
    /// Until then the API server accepts no statuses.
    away_until: Time,
    /// Pods that were removed, deleted or killed at some time in this life of the agent. Only these may be stopped.
    pub(super) may_be_stopped: BTreeSet<PodUid>,
}

#[derive(Default)]
struct SourcePod {
    present: bool,
    incarnation: u32,
    image: u32,
    label: u32,
    deleting: Option<i64>,
    status: Option<PodStatus>,
    /// The node's status that was written last.
    written: Option<Arc<PodStatus>>,
    object: Option<Arc<PodObject>>,
    killed: bool,
    /// The pod was killed or left its source, and may be added again.
    was_stopped: bool,
    /// The source has delivered the pod.
    delivered: bool,
}

/// What one source is going to deliver.
#[derive(Default)]
struct SourceFeed {
    changed: bool,
    mute_until: Time,
    empty_until: Time,
    problems: u32,
}

/// A pod in the version that its source has now.
pub(super) struct DesiredPod {
    pub(super) uid: PodUid,
    pub(super) pod: Arc<PodObject>,
    pub(super) killed: bool,
    /// The pod was stopped before, perhaps because it had left its source, and is desired again.
    pub(super) was_stopped: bool,
}

impl SourcePod {
    fn uid(&self, plan: &PodPlan) -> PodUid {
        uid(plan, self.incarnation)
    }

    fn object(&mut self, plan: &PodPlan, claims: &[ClaimPlan]) -> &Arc<PodObject> {
        let SourcePod { incarnation, image, label, deleting, ref status, .. } = *self;
        let uid = format!("{}-{incarnation}", plan.name);
        let revision = PodRevision { uid: &uid, image, label, deleting, status: status.as_ref() };
        self.object.get_or_insert_with(|| pod_objects::pod_object(plan, claims, &revision))
    }
}

fn uid(plan: &PodPlan, incarnation: u32) -> PodUid {
    PodUid::new(&format!("{}-{incarnation}", plan.name))
}

impl SimSources {
    pub(super) fn new(scenario: Arc<Scenario>) -> Self {
        let pods = scenario.pods.iter().map(|_| SourcePod::default()).collect();
        SimSources {
            scenario,
            pods,
            lines: Default::default(),
            away_until: Time::ZERO,
            may_be_stopped: BTreeSet::new(),
        }
    }

    /// A new agent has started, to which no source has delivered yet.
    pub(super) fn agent_started(&mut self) {
        self.may_be_stopped.clear();
        self.lines.iter_mut().for_each(|line| line.changed = true);
        self.pods.iter_mut().for_each(|pod| pod.written = None);
    }

    /// Ends all faults of sources. From now on each source delivers every change at once.
    pub(super) fn end_faults(&mut self) {
        for line in &mut self.lines {
            *line = SourceFeed { changed: true, ..SourceFeed::default() };
        }
        self.away_until = Time::ZERO;
    }

    pub(super) fn desired_pods(&mut self) -> Vec<DesiredPod> {
        let entries = self.pods.iter_mut().zip(&self.scenario.pods).filter(|(entry, _)| entry.present);
        let desired = entries.map(|(entry, plan)| DesiredPod {
            uid: entry.uid(plan),
            pod: entry.object(plan, &self.scenario.claims).clone(),
            killed: entry.killed,
            was_stopped: entry.was_stopped,
        });
        desired.collect()
    }

    /// Changes a pod that is in its source. A pod that is in no source stays as it is.
    fn change(&mut self, which: PodIndex, change: impl FnOnce(&mut SourcePod)) {
        let Some(entry) = self.pods.get_mut(which).filter(|entry| entry.present) else { return };
        change(entry);
        entry.object = None;
        self.lines[self.scenario.pods[which].source as usize].changed = true;
    }

    pub(super) fn add(&mut self, which: PodIndex) {
        let Some(entry) = self.pods.get_mut(which) else { return };
        entry.present = true;
        self.change(which, |_| {});
    }

    pub(super) fn remove(&mut self, which: PodIndex) {
        self.change(which, |entry| {
            entry.present = false;
            entry.was_stopped = true;
        });
    }

    /// Removes every pod from its source.
    pub(super) fn clear(&mut self) {
        (0..self.pods.len()).for_each(|which| self.remove(which));
    }

    pub(super) fn image(&mut self, which: PodIndex) {
        self.change(which, |entry| entry.image += 1);
    }

    pub(super) fn label(&mut self, which: PodIndex) {
        self.change(which, |entry| entry.label += 1);
    }

    pub(super) fn replace(&mut self, which: PodIndex) {
        self.change(which, |entry| {
            *entry = SourcePod {
                present: true,
                incarnation: entry.incarnation + 1,
                image: entry.image + 1,
                ..SourcePod::default()
            };
        });
    }

    /// Marks a pod for deletion. A later call can only shorten the grace period.
    pub(super) fn delete(&mut self, which: PodIndex, grace: i64) {
        self.change(which, |entry| entry.deleting = Some(entry.deleting.map_or(grace, |before| before.min(grace))));
    }

    /// Returns the pod to be killed by a caller inside the agent.
    pub(super) fn kill(&mut self, which: PodIndex) -> Option<Arc<PodObject>> {
        let entry = self.pods.get_mut(which).filter(|entry| entry.present)?;
        entry.killed = true;
        entry.was_stopped = true;
        let pod = entry.object(&self.scenario.pods[which], &self.scenario.claims).clone();
        self.may_be_stopped.insert(pod.uid().clone());
        Some(pod)
    }

    /// Allows a pod to be stopped by the shutdown of the node. The next agent starts it again if it is still desired.
    pub(super) fn doom(&mut self, uid: &PodUid) {
        self.may_be_stopped.insert(uid.clone());
    }

    pub(super) fn uid(&self, which: PodIndex) -> Option<PodUid> {
        Some(self.pods.get(which)?.uid(self.scenario.pods.get(which)?))
    }

    /// The UIDs of all pods that ever existed.
    pub(super) fn all_uids(&self) -> Vec<PodUid> {
        let pods = self.pods.iter().zip(&self.scenario.pods);
        pods.flat_map(|(entry, plan)| (0..=entry.incarnation).map(|number| uid(plan, number))).collect()
    }

    pub(super) fn mute(&mut self, source: Source, until: Time) {
        self.lines[source as usize].mute_until = until;
    }

    pub(super) fn api_is_away(&mut self, until: Time) {
        self.away_until = self.away_until.max(until);
        let line = &mut self.lines[Source::Api as usize];
        line.mute_until = line.mute_until.max(until);
    }

    pub(super) fn empty(&mut self, source: Source, until: Time) {
        let line = &mut self.lines[source as usize];
        line.empty_until = until;
        line.changed = true;
    }

    pub(super) fn repeat(&mut self, source: Source) {
        self.lines[source as usize].changed = true;
    }

    pub(super) fn problem(&mut self, source: Source) {
        let line = &mut self.lines[source as usize];
        line.problems += 1;
        line.changed = true;
    }

    /// The next time at which a source delivers although no step changes it.
    pub(super) fn next_change(&self, now: Time) -> Option<Time> {
        let ends = self.lines.iter().flat_map(|line| [line.mute_until, line.empty_until]);
        ends.filter(|at| *at > now).min()
    }

    /// The set that a source delivers now, if it has changed.
    pub(super) fn next_set(&mut self, source: Source, now: Time) -> Option<SourceSet> {
        let line = &mut self.lines[source as usize];
        if line.empty_until != Time::ZERO && now >= line.empty_until {
            line.empty_until = Time::ZERO;
            line.changed = true;
        }
        if !line.changed || now < line.mute_until {
            return None;
        }
        line.changed = false;
        let says_nothing = now < line.empty_until;
        let problems = (line.problems > 0).then(|| SourceProblem {
            what: "a manifest".into(),
            message: format!("broken for the {}. time", line.problems),
            pods: Vec::new(),
            severity: Severity::Fault,
        });
        let mut pods = Vec::new();
        for (entry, plan) in self.pods.iter_mut().zip(&self.scenario.pods).filter(|(_, plan)| plan.source == source) {
            let uid = entry.uid(plan);
            if entry.present && !says_nothing {
                if entry.deleting.is_some() {
                    self.may_be_stopped.insert(uid);
                }
                pods.push(entry.object(plan, &self.scenario.claims).clone());
                entry.delivered = true;
            } else {
                entry.was_stopped |= entry.delivered;
                self.may_be_stopped.insert(uid);
            }
            // The earlier pods of this name are no longer desired.
            for earlier in 0..entry.incarnation {
                self.may_be_stopped.insert(self::uid(plan, earlier));
            }
        }
        Some(SourceSet { source: source.kind(), pods, problems: problems.into_iter().collect() })
    }

    /// Writes statuses to the API server, and deletes pods that have ended from it (POD-I6, POD-I7).
    pub(super) fn write_statuses(&mut self, machine: &Machine, agent: &Agent, disk: &Disk) -> CheckResult {
        let now = machine.clock.now();
        if now < self.away_until {
            return Ok(());
        }
        for which in 0..self.pods.len() {
            let plan = &self.scenario.pods[which];
            if plan.source != Source::Api {
                continue;
            }
            let entry = &mut self.pods[which];
            let uid = entry.uid(plan);
            let Some(new) = agent.statuses.get(&uid).filter(|_| entry.present) else { continue };
            let holds_claims = agent.claims.holds(&uid);
            let held_back = agent.engine.could_have_running_containers(&uid) || holds_claims;
            let same = entry.written.as_ref().is_some_and(|written| Arc::ptr_eq(written, &new));
            let behind = entry.status.as_ref().and_then(|status| status.phase.as_ref()) != new.phase.as_ref();
            if !same || behind {
                let before = entry.status.clone().unwrap_or_default();
                let pod = entry.object(plan, &self.scenario.claims).clone();
                let merged = merge_for_api(&pod, &before, PodStatus::clone(&new), held_back, now);
                entry.written = Some(new);
                if entry.status.as_ref() != Some(&merged) {
                    let phase = Phase::parse(merged.phase.as_deref());
                    let ends = phase.is_terminal() && !Phase::parse(before.phase.as_deref()).is_terminal();
                    if ends && machine.runtime_status(&uid).has_running_container() {
                        return Err(format!("{uid}: the API server receives {phase:?} while containers run"));
                    }
                    if ends {
                        checks::claims_are_released(machine, disk, &uid)?;
                    }
                    machine.note(format!("{uid} status {phase:?} {}", merged.reason.as_deref().unwrap_or_default()));
                    self.change(which, |entry| entry.status = Some(merged));
                }
            }
            let entry = &self.pods[which];
            let phase = entry.status.as_ref().map_or(Phase::Pending, |status| Phase::parse(status.phase.as_deref()));
            if entry.deleting.is_some() && phase.is_terminal() && agent.statuses.is_finished(&uid) && !holds_claims {
                if machine.runtime_status(&uid).has_running_container() {
                    return Err(format!("{uid}: is deleted from the API server while containers run"));
                }
                machine.note(format!("{uid} deleted from the API server"));
                self.remove(which);
            }
        }
        Ok(())
    }
}
