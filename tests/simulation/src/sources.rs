//! The pod sources, with the pods and the mirror pods of the API server.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Pod, PodStatus};
use podwright_actors::ids::{FullName, PodUid};
use podwright_actors::pod::{MIRROR_ANNOTATION, PodObject, SOURCE_ANNOTATION};
use podwright_actors::ports::{ApiError, Severity, SourceKind, SourceProblem, SourceSet};
use podwright_actors::time::Time;
use serde_json::json;

use super::checks::CheckResult;
use super::machine::Agent;
use super::pod_objects::{self, PodRevision};
use super::scenario::{ClaimPlan, PodIndex, PodPlan, Resources, Scenario, Source};

impl Source {
    pub(super) const ALL: [Source; 2] = [Source::File, Source::Api];

    pub(super) fn of(pod: &PodObject) -> Source {
        if pod.is_static() { Source::File } else { Source::Api }
    }

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
    /// The mirror pods, by their static pod.
    mirrors: BTreeMap<PodIndex, Arc<PodObject>>,
    /// The version of the last change in the API server.
    version: u64,
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
    version: u64,
    resizes: u32,
    /// The resources since the last resize.
    resources: Option<Resources>,
    deleting: Option<i64>,
    /// Until then the watch loses the changes of the pod.
    changes_lost_until: Time,
    /// The version of the pod that the source delivered last, if it delivered the pod in its last set.
    last_delivered: Option<Arc<PodObject>>,
    status: Option<PodStatus>,
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
        let SourcePod { incarnation, image, label, version, resizes, deleting, ref status, .. } = *self;
        let uid = format!("{}-{incarnation}", plan.name);
        let resources = self.resources.or(plan.resize.map(|resize| resize.first));
        let status = status.as_ref();
        let revision = PodRevision { uid: &uid, image, label, version, resizes, resources, deleting, status };
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
            mirrors: BTreeMap::new(),
            version: 0,
            away_until: Time::ZERO,
            may_be_stopped: BTreeSet::new(),
        }
    }

    /// A new agent has started, to which no source has delivered yet.
    pub(super) fn agent_started(&mut self) {
        self.may_be_stopped.clear();
        self.lines.iter_mut().for_each(|line| line.changed = true);
        for pod in &mut self.pods {
            // A new agent lists the pods.
            pod.changes_lost_until = Time::ZERO;
        }
    }

    /// Ends all faults of sources. From now on each source delivers every change at once.
    pub(super) fn end_faults(&mut self) {
        for line in &mut self.lines {
            *line = SourceFeed { changed: true, ..SourceFeed::default() };
        }
        self.away_until = Time::ZERO;
        self.pods.iter_mut().for_each(|pod| pod.changes_lost_until = Time::ZERO);
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
        self.version += 1;
        entry.version = self.version;
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
                resizes: entry.resizes,
                changes_lost_until: entry.changes_lost_until,
                last_delivered: entry.last_delivered.take(),
                ..SourcePod::default()
            };
        });
    }

    /// A pod without room for its resources is resized all the same: the agent defers the resize.
    pub(super) fn resize(&mut self, which: PodIndex, resources: Resources) {
        self.change(which, |entry| {
            entry.resizes += 1;
            entry.resources = Some(resources);
        });
    }

    /// The watch loses the changes of a pod.
    pub(super) fn lose_changes(&mut self, which: PodIndex, until: Time) {
        if let Some(entry) = self.pods.get_mut(which) {
            entry.changes_lost_until = until;
        }
    }

    /// Delivers each pod anew, and with what its watch has lost.
    pub(super) fn relist(&mut self, source: Source) {
        for (entry, _) in self.pods.iter_mut().zip(&self.scenario.pods).filter(|(_, plan)| plan.source == source) {
            entry.object = None;
            entry.changes_lost_until = Time::ZERO;
        }
        self.lines[source as usize].changed = true;
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
        ends.chain(self.pods.iter().map(|pod| pod.changes_lost_until)).filter(|at| *at > now).min()
    }

    /// The set that a source delivers now, if it has changed.
    pub(super) fn next_set(&mut self, source: Source, now: Time) -> Option<SourceSet> {
        let line = &mut self.lines[source as usize];
        if line.empty_until != Time::ZERO && now >= line.empty_until {
            line.empty_until = Time::ZERO;
            line.changed = true;
        }
        for (entry, _) in self.pods.iter_mut().zip(&self.scenario.pods).filter(|(_, plan)| plan.source == source) {
            if entry.changes_lost_until != Time::ZERO && now >= entry.changes_lost_until {
                entry.changes_lost_until = Time::ZERO;
                line.changed = true;
            }
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
            let newest = entry.present.then(|| entry.object(plan, &self.scenario.claims).clone());
            let delivered = if now < entry.changes_lost_until { entry.last_delivered.take() } else { newest };
            let delivered = delivered.filter(|_| !says_nothing);
            if let Some(pod) = &delivered {
                if pod.is_deleting() {
                    self.may_be_stopped.insert(pod.uid().clone());
                }
                pods.push(pod.clone());
                entry.delivered = true;
            }
            // The other pods of this name are not desired, as far as the agent knows.
            for uid in (0..=entry.incarnation).map(|number| self::uid(plan, number)) {
                if delivered.as_ref().is_none_or(|pod| *pod.uid() != uid) {
                    entry.was_stopped |= entry.delivered && uid == entry.uid(plan);
                    self.may_be_stopped.insert(uid);
                }
            }
            entry.last_delivered = delivered;
        }
        if source == Source::Api && !says_nothing {
            pods.extend(self.mirrors.values().cloned());
        }
        Some(SourceSet { source: source.kind(), pods, problems: problems.into_iter().collect() })
    }

    pub(super) fn is_away(&self, now: Time) -> bool {
        now < self.away_until
    }

    /// The pod or the mirror pod with this name in the API server.
    pub(super) fn api_object(&mut self, name: &FullName) -> Option<Arc<PodObject>> {
        let which = self.scenario.pods.iter().position(|plan| plan.name == name.name())?;
        if self.scenario.pods[which].source == Source::File {
            return self.mirrors.get(&which).cloned();
        }
        let entry = self.pods.get_mut(which).filter(|entry| entry.present)?;
        Some(entry.object(&self.scenario.pods[which], &self.scenario.claims).clone())
    }

    fn which(&self, pod: &PodObject) -> PodIndex {
        let found = self.scenario.pods.iter().position(|plan| plan.name == pod.full_name().name());
        found.expect("a pod of the API server is one of the scenario")
    }

    /// Stores a status, and returns the pod as the server has it now.
    pub(super) fn set_status(&mut self, pod: &PodObject, status: PodStatus) -> Arc<PodObject> {
        let which = self.which(pod);
        if pod.is_mirror() {
            let mut changed = pod.pod().clone();
            changed.status = Some(status);
            return self.store_mirror(which, changed);
        }
        self.change(which, |entry| entry.status = Some(status));
        self.api_object(pod.full_name()).expect("a pod that is changed exists")
    }

    /// The agent deletes a pod.
    pub(super) fn delete_object(&mut self, pod: &PodObject) {
        let which = self.which(pod);
        if pod.is_mirror() {
            self.mirrors.remove(&which);
            self.lines[Source::Api as usize].changed = true;
        } else {
            self.remove(which);
        }
    }

    pub(super) fn create_mirror(&mut self, name: &str, pod: &Pod) -> Result<Arc<PodObject>, ApiError> {
        let which = self.scenario.pods.iter().position(|plan| plan.name == name).expect("a static pod of the scenario");
        if self.mirrors.contains_key(&which) {
            return Err(ApiError::conflict("it exists"));
        }
        let mut pod = pod.clone();
        pod.metadata.uid = Some(format!("mirror-{}", self.version + 1));
        pod.metadata.annotations.get_or_insert_default().insert(SOURCE_ANNOTATION.to_owned(), "api".to_owned());
        Ok(self.store_mirror(which, pod))
    }

    fn store_mirror(&mut self, which: PodIndex, mut pod: Pod) -> Arc<PodObject> {
        self.version += 1;
        pod.metadata.resource_version = Some(self.version.to_string());
        let object = PodObject::new(pod).unwrap();
        self.mirrors.insert(which, object.clone());
        self.lines[Source::Api as usize].changed = true;
        object
    }

    /// A user deletes a mirror pod, with a grace period. Somebody has to delete it without one.
    pub(super) fn delete_mirror(&mut self, which: PodIndex) {
        let Some(mirror) = self.mirrors.get(&which) else { return };
        let mut pod = serde_json::to_value(mirror.pod()).unwrap();
        pod["metadata"]["deletionTimestamp"] = json!("2027-01-01T00:00:00Z");
        pod["metadata"]["deletionGracePeriodSeconds"] = json!(30);
        self.store_mirror(which, serde_json::from_value(pod).unwrap());
    }

    /// Each static pod that is in its source has a mirror pod with its status, and no other pod has one.
    pub(super) fn mirrors_agree(&self, agent: &Agent) -> CheckResult {
        for (which, (entry, plan)) in self.pods.iter().zip(&self.scenario.pods).enumerate() {
            let uid = entry.uid(plan);
            let mirror = self.mirrors.get(&which);
            match mirror {
                None if !entry.present || plan.source == Source::Api => {}
                None => return Err(format!("{uid}: has no mirror pod")),
                Some(mirror) if !entry.present => return Err(format!("{uid}: has the mirror pod {}", mirror.uid())),
                Some(mirror) => {
                    let is_of = mirror.annotation(MIRROR_ANNOTATION) == Some(&uid.to_string());
                    let phase = agent.statuses.phase(&uid);
                    if !is_of || mirror.is_deleting() || phase.is_some_and(|phase| phase != mirror.phase()) {
                        return Err(format!("{uid}: is {phase:?}, and its mirror pod is {:?}", mirror.pod()));
                    }
                }
            }
        }
        Ok(())
    }
}
