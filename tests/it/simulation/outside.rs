//! What the sources want, and the API server's part: statuses are written to it, and it deletes what has ended.

use std::collections::BTreeSet;
use std::sync::Arc;

use k8s_openapi::api::core::v1::PodStatus;
use podwright_actors::ids::PodUid;
use podwright_actors::pod::{Phase, PodObject};
use podwright_actors::ports::{Clock, SourceKind, SourceProblem, SourceSet};
use podwright_actors::status::merge_for_api;
use podwright_actors::time::Time;

use super::checks::Verdict;
use super::objects::{self, Standing};
use super::scenario::{PodPlan, Scenario, Source, Which};
use super::world::{Agent, World};

impl Source {
    pub(super) const ALL: [Source; 2] = [Source::File, Source::Api];

    pub(super) fn kind(self) -> SourceKind {
        match self {
            Source::File => SourceKind::File,
            Source::Api => SourceKind::Api,
        }
    }
}

pub(super) struct Outside {
    scenario: Arc<Scenario>,
    pods: Vec<Entry>,
    lines: [Line; 2],
    /// Pods that somebody wanted gone at some time in this life of the agent.
    pub(super) doomed: BTreeSet<PodUid>,
}

#[derive(Default)]
struct Entry {
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
    /// It was stopped, or left its source, and may come back.
    was_stopped: bool,
    /// Its source told of it.
    told: bool,
}

/// How a source speaks.
#[derive(Default)]
struct Line {
    news: bool,
    mute_until: Time,
    empty_until: Time,
    problems: u32,
}

/// A pod as its source wants it now.
pub(super) struct Wanted {
    pub(super) uid: PodUid,
    pub(super) pod: Arc<PodObject>,
    pub(super) killed: bool,
    /// It was stopped before, maybe because it had left its source, and is to run again.
    pub(super) was_stopped: bool,
}

impl Entry {
    fn uid(&self, plan: &PodPlan) -> PodUid {
        uid(plan, self.incarnation)
    }

    fn object(&mut self, plan: &PodPlan) -> &Arc<PodObject> {
        let Entry { incarnation, image, label, deleting, ref status, .. } = *self;
        let uid = format!("{}-{incarnation}", plan.name);
        let standing = Standing { uid: &uid, image, label, deleting, status: status.as_ref() };
        self.object.get_or_insert_with(|| objects::object(plan, &standing))
    }
}

fn uid(plan: &PodPlan, incarnation: u32) -> PodUid {
    PodUid::new(&format!("{}-{incarnation}", plan.name))
}

impl Outside {
    pub(super) fn new(scenario: Arc<Scenario>) -> Self {
        let pods = scenario.pods.iter().map(|_| Entry::default()).collect();
        Outside { scenario, pods, lines: Default::default(), doomed: BTreeSet::new() }
    }

    /// A new agent is there, that was told nothing.
    pub(super) fn agent_is_new(&mut self) {
        self.doomed.clear();
        self.lines.iter_mut().for_each(|line| line.news = true);
        self.pods.iter_mut().for_each(|pod| pod.written = None);
    }

    /// From here on sources say what they want, as soon as they want it.
    pub(super) fn heal(&mut self) {
        for line in &mut self.lines {
            *line = Line { news: true, ..Line::default() };
        }
    }

    pub(super) fn present(&mut self) -> Vec<Wanted> {
        let entries = self.pods.iter_mut().zip(&self.scenario.pods).filter(|(entry, _)| entry.present);
        let wanted = entries.map(|(entry, plan)| Wanted {
            uid: entry.uid(plan),
            pod: entry.object(plan).clone(),
            killed: entry.killed,
            was_stopped: entry.was_stopped,
        });
        wanted.collect()
    }

    /// Changes a pod that is there; one that is not there is left alone.
    fn change(&mut self, which: Which, change: impl FnOnce(&mut Entry)) {
        let Some(entry) = self.pods.get_mut(which).filter(|entry| entry.present) else { return };
        change(entry);
        entry.object = None;
        self.lines[self.scenario.pods[which].source as usize].news = true;
    }

    pub(super) fn add(&mut self, which: Which) {
        let Some(entry) = self.pods.get_mut(which) else { return };
        entry.present = true;
        self.change(which, |_| {});
    }

    pub(super) fn remove(&mut self, which: Which) {
        self.change(which, |entry| {
            entry.present = false;
            entry.was_stopped = true;
        });
    }

    /// Everything leaves its source.
    pub(super) fn clear(&mut self) {
        (0..self.pods.len()).for_each(|which| self.remove(which));
    }

    pub(super) fn image(&mut self, which: Which) {
        self.change(which, |entry| entry.image += 1);
    }

    pub(super) fn label(&mut self, which: Which) {
        self.change(which, |entry| entry.label += 1);
    }

    pub(super) fn replace(&mut self, which: Which) {
        self.change(which, |entry| {
            *entry =
                Entry { present: true, incarnation: entry.incarnation + 1, image: entry.image + 1, ..Entry::default() };
        });
    }

    /// The grace of a deletion never grows.
    pub(super) fn delete(&mut self, which: Which, grace: i64) {
        self.change(which, |entry| entry.deleting = Some(entry.deleting.map_or(grace, |before| before.min(grace))));
    }

    /// Somebody in the agent stops the pod.
    pub(super) fn kill(&mut self, which: Which) -> Option<Arc<PodObject>> {
        let entry = self.pods.get_mut(which).filter(|entry| entry.present)?;
        entry.killed = true;
        entry.was_stopped = true;
        let pod = entry.object(&self.scenario.pods[which]).clone();
        self.doomed.insert(pod.uid().clone());
        Some(pod)
    }

    /// The same for every pod of a node that goes down; the next agent starts what is still wanted.
    pub(super) fn doom(&mut self, uid: &PodUid) {
        self.doomed.insert(uid.clone());
    }

    pub(super) fn uid(&self, which: Which) -> Option<PodUid> {
        Some(self.pods.get(which)?.uid(self.scenario.pods.get(which)?))
    }

    /// The UIDs of all pods that there ever were.
    pub(super) fn ever(&self) -> Vec<PodUid> {
        let pods = self.pods.iter().zip(&self.scenario.pods);
        pods.flat_map(|(entry, plan)| (0..=entry.incarnation).map(|number| uid(plan, number))).collect()
    }

    pub(super) fn mute(&mut self, source: Source, until: Time) {
        self.lines[source as usize].mute_until = until;
    }

    pub(super) fn empty(&mut self, source: Source, until: Time) {
        let line = &mut self.lines[source as usize];
        line.empty_until = until;
        line.news = true;
    }

    pub(super) fn repeat(&mut self, source: Source) {
        self.lines[source as usize].news = true;
    }

    pub(super) fn problem(&mut self, source: Source) {
        let line = &mut self.lines[source as usize];
        line.problems += 1;
        line.news = true;
    }

    /// When a source will have something to say although nothing happens.
    pub(super) fn next(&self, now: Time) -> Option<Time> {
        let ends = self.lines.iter().flat_map(|line| [line.mute_until, line.empty_until]);
        ends.filter(|at| *at > now).min()
    }

    /// What a source says now, if it says anything.
    pub(super) fn speak(&mut self, source: Source, now: Time) -> Option<SourceSet> {
        let line = &mut self.lines[source as usize];
        if line.empty_until != Time::ZERO && now >= line.empty_until {
            line.empty_until = Time::ZERO;
            line.news = true;
        }
        if !line.news || now < line.mute_until {
            return None;
        }
        line.news = false;
        let says_nothing = now < line.empty_until;
        let problems = (line.problems > 0).then(|| SourceProblem {
            what: "a place".into(),
            message: format!("broken for the {}. time", line.problems),
            pods: Vec::new(),
        });
        let mut pods = Vec::new();
        for (entry, plan) in self.pods.iter_mut().zip(&self.scenario.pods).filter(|(_, plan)| plan.source == source) {
            let uid = entry.uid(plan);
            if entry.present && !says_nothing {
                if entry.deleting.is_some() {
                    self.doomed.insert(uid);
                }
                pods.push(entry.object(plan).clone());
                entry.told = true;
            } else {
                entry.was_stopped |= entry.told;
                self.doomed.insert(uid);
            }
            // Whatever had the name before is wanted no more.
            for earlier in 0..entry.incarnation {
                self.doomed.insert(self::uid(plan, earlier));
            }
        }
        Some(SourceSet { source: source.kind(), pods, problems: problems.into_iter().collect() })
    }

    /// Writes statuses to the API server, and lets it delete what has ended (POD-I6, POD-I7).
    pub(super) fn write(&mut self, world: &World, agent: &Agent) -> Verdict {
        let now = world.clock.now();
        for which in 0..self.pods.len() {
            let plan = &self.scenario.pods[which];
            if plan.source != Source::Api {
                continue;
            }
            let entry = &mut self.pods[which];
            let uid = entry.uid(plan);
            let Some(new) = agent.statuses.get(&uid).filter(|_| entry.present) else { continue };
            let held_back = agent.engine.could_have_running_containers(&uid);
            let same = entry.written.as_ref().is_some_and(|written| Arc::ptr_eq(written, &new));
            let behind = entry.status.as_ref().and_then(|status| status.phase.as_ref()) != new.phase.as_ref();
            if !same || behind {
                let before = entry.status.clone().unwrap_or_default();
                let pod = entry.object(plan).clone();
                let merged = merge_for_api(&pod, &before, PodStatus::clone(&new), held_back, now);
                entry.written = Some(new);
                if entry.status.as_ref() != Some(&merged) {
                    let phase = Phase::parse(merged.phase.as_deref());
                    let ends = phase.is_terminal() && !Phase::parse(before.phase.as_deref()).is_terminal();
                    if ends && world.truth(&uid).has_running_container() {
                        return Err(format!("{uid}: the API server is told {phase:?} while containers run"));
                    }
                    world.note(format!("{uid} status {phase:?} {}", merged.reason.as_deref().unwrap_or_default()));
                    self.change(which, |entry| entry.status = Some(merged));
                }
            }
            let entry = &self.pods[which];
            let phase = entry.status.as_ref().map_or(Phase::Pending, |status| Phase::parse(status.phase.as_deref()));
            if entry.deleting.is_some() && phase.is_terminal() && agent.statuses.is_finished(&uid) {
                if world.truth(&uid).has_running_container() {
                    return Err(format!("{uid}: is deleted from the API server while containers run"));
                }
                world.note(format!("{uid} deleted from the API server"));
                self.remove(which);
            }
        }
        Ok(())
    }
}
