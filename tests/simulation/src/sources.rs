//! The pod sources, with the pods and the mirror pods of the API server. In a simulation of the adapters, the objects of the API server are
//! those of a [`Cluster`], and this module reads them there.

mod feeds;
mod objects;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1::PodStatus;
use podwright_model::ids::PodUid;
use podwright_model::pod::PodObject;
use podwright_model::time::Time;
use podwright_ports::SourceKind;

use super::cluster::Cluster;
use super::pod_objects::{self, PodRevision};
use super::scenario::{ClaimPlan, PodIndex, PodPlan, Resources, Scenario, Source};

impl Source {
    pub(super) const ALL: [Source; 2] = [Source::File, Source::Api];

    pub(super) fn of(pod: &PodObject) -> Source {
        if pod.is_static() { Source::File } else { Source::Api }
    }

    pub(super) fn of_kind(kind: SourceKind) -> Source {
        match kind {
            SourceKind::File | SourceKind::Http => Source::File,
            SourceKind::Api => Source::Api,
        }
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
    /// The API server, if the adapters are simulated.
    cluster: Option<Arc<Cluster>>,
    pods: Vec<SourcePod>,
    lines: [SourceFeed; 2],
    /// The mirror pods, by their static pod.
    mirrors: BTreeMap<PodIndex, Arc<PodObject>>,
    /// The version of the last change in the API server.
    version: u64,
    /// Until then the API server accepts no statuses.
    away_until: Time,
    /// The versions of the pods that an adapter sent last.
    sent: BTreeMap<PodUid, u64>,
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
        let uid = self.uid(plan).to_string();
        let object = self.object.take();
        let object = object.unwrap_or_else(|| pod_objects::pod_object(plan, claims, &self.revision(plan, &uid)));
        self.object.insert(object)
    }

    fn revision<'a>(&'a self, plan: &PodPlan, uid: &'a str) -> PodRevision<'a> {
        let SourcePod { image, label, version, resizes, deleting, ref status, .. } = *self;
        let resources = self.resources.or(plan.resize.map(|resize| resize.first));
        PodRevision { uid, image, label, version, resizes, resources, deleting, status: status.as_ref() }
    }

    /// The next pod of this name.
    fn successor(&mut self) -> SourcePod {
        SourcePod {
            present: true,
            incarnation: self.incarnation + 1,
            image: self.image + 1,
            resizes: self.resizes,
            changes_lost_until: self.changes_lost_until,
            last_delivered: self.last_delivered.take(),
            ..SourcePod::default()
        }
    }
}

fn uid(plan: &PodPlan, incarnation: u32) -> PodUid {
    PodUid::new(&format!("{}-{incarnation}", plan.name))
}

impl SimSources {
    pub(super) fn new(scenario: Arc<Scenario>, cluster: Option<Arc<Cluster>>) -> Self {
        let pods = scenario.pods.iter().map(|_| SourcePod::default()).collect();
        SimSources {
            scenario,
            cluster,
            pods,
            lines: Default::default(),
            mirrors: BTreeMap::new(),
            version: 0,
            away_until: Time::ZERO,
            sent: BTreeMap::new(),
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
        self.sent.clear();
        self.refresh();
    }

    /// The API server of a source, if the adapters are simulated.
    fn cluster_of(&self, source: Source) -> Option<&Arc<Cluster>> {
        self.cluster.as_ref().filter(|_| source == Source::Api)
    }

    pub(super) fn desired_pods(&mut self) -> Vec<DesiredPod> {
        self.refresh();
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
        self.refresh();
        if self.pods.get(which).is_some_and(|entry| entry.present) {
            self.edit(which, change);
        }
    }

    fn edit(&mut self, which: PodIndex, change: impl FnOnce(&mut SourcePod)) {
        let (plan, entry) = (&self.scenario.pods[which], &mut self.pods[which]);
        change(entry);
        self.version += 1;
        entry.version = self.version;
        entry.object = None;
        self.lines[plan.source as usize].changed = true;
        if let Some(cluster) = self.cluster_of(plan.source) {
            let (entry, uid) = (&self.pods[which], self.pods[which].uid(plan).to_string());
            let revision = entry.revision(plan, &uid);
            cluster.write(plan, &self.scenario.claims, entry.present.then_some(&revision));
            self.refresh();
        }
    }

    pub(super) fn add(&mut self, which: PodIndex) {
        self.refresh();
        let Some(plan) = self.scenario.pods.get(which) else { return };
        let uses_each_uid_once = self.cluster_of(plan.source).is_some();
        let entry = &mut self.pods[which];
        if uses_each_uid_once && !entry.present && entry.version > 0 {
            *entry = entry.successor();
        }
        entry.present = true;
        self.edit(which, |_| {});
    }

    pub(super) fn remove(&mut self, which: PodIndex) {
        self.change(which, |entry| {
            entry.present = false;
            entry.was_stopped = true;
        });
    }

    /// Removes every pod from its source. A user of an API server deletes a pod with its grace period, and the agent ends the deletion.
    pub(super) fn clear(&mut self) {
        let scenario = self.scenario.clone();
        for (which, plan) in scenario.pods.iter().enumerate() {
            match self.cluster_of(plan.source).is_some() {
                true => self.delete(which, plan.grace.unwrap_or(30)),
                false => self.remove(which),
            }
        }
    }

    pub(super) fn image(&mut self, which: PodIndex) {
        self.change(which, |entry| entry.image += 1);
    }

    pub(super) fn label(&mut self, which: PodIndex) {
        self.change(which, |entry| entry.label += 1);
    }

    pub(super) fn replace(&mut self, which: PodIndex) {
        self.change(which, |entry| *entry = entry.successor());
    }

    /// A pod without room for its resources is resized all the same: the agent defers the resize.
    pub(super) fn resize(&mut self, which: PodIndex, resources: Resources) {
        self.change(which, |entry| {
            entry.resizes += 1;
            entry.resources = Some(resources);
        });
    }

    /// Marks a pod for deletion. A later call can only shorten the grace period.
    pub(super) fn delete(&mut self, which: PodIndex, grace: i64) {
        self.change(which, |entry| entry.deleting = Some(entry.deleting.map_or(grace, |before| before.min(grace))));
    }

    /// Returns the pod to be killed by a caller inside the agent.
    pub(super) fn kill(&mut self, which: PodIndex) -> Option<Arc<PodObject>> {
        self.refresh();
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
}
