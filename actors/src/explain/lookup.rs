//! Where the facts come from.

use std::collections::HashMap;
use std::sync::Arc;

use super::chain::{Cx, chain, short, troubles};
use super::facts::{NodeState, PodFacts, SeenEvent};
use super::{Explanation, PodLine, Wait, explain, heading, line, state};
use crate::containers::activity::{Activity, Task};
use crate::containers::perform::ContainerManager;
use crate::desired::Desired;
use crate::engine::{Engine, PodSnapshot};
use crate::housekeeping::PassHealth;
use crate::ids::{FullName, PodUid};
use crate::observer::Observer;
use crate::pod::PodObject;
use crate::ports::{Clock, SourceProblem};
use crate::shutdown::ShutdownProgress;
use crate::statuses::Statuses;
use crate::time::Time;

/// Looks at all parts of a node; changes nothing.
pub struct Explainer {
    /// The records.
    pub engine: Engine,
    /// What the sources want.
    pub desired: Arc<Desired>,
    /// The statuses.
    pub statuses: Arc<Statuses>,
    /// What is being done for each pod.
    pub containers: Arc<ContainerManager>,
    /// Whether the runtime answers.
    pub observer: Arc<Observer>,
    /// Whether passes run.
    pub passes: Arc<PassHealth>,
    /// Which pods the shutdown of the node stops when.
    pub shutdown: Arc<ShutdownProgress>,
    /// Tells the time.
    pub clock: Arc<dyn Clock>,
    /// When the node started.
    pub started: Time,
}

impl Explainer {
    /// Every pod that is wanted or still known, by full name; of one name the wanted one first.
    pub fn pods(&self) -> Vec<PodFacts> {
        self.some(|_| true)
    }

    /// One pod by UID.
    pub fn pod(&self, uid: &PodUid) -> Option<PodFacts> {
        self.facts(uid, self.desired.pod(uid), self.engine.snapshot(uid))
    }

    /// The pods of one full name, the wanted one first: a pod may wait for the end of another of its name.
    pub fn named(&self, name: &FullName) -> Vec<PodFacts> {
        self.some(|other| other == name)
    }

    /// The name of every pod that is wanted or still known, some more than once.
    pub fn names(&self) -> Vec<FullName> {
        let wanted = self.desired.pods().into_iter().map(|pod| pod.full_name().clone());
        wanted.chain(self.engine.snapshots().into_iter().filter_map(|snapshot| snapshot.full_name)).collect()
    }

    /// What the sources cannot use at present.
    pub fn problems(&self) -> Vec<SourceProblem> {
        self.desired.problems()
    }

    /// Explains the pod of a name that is wanted, or else the last one that is still known. `events` tells the last events
    /// of a UID, the newest last.
    pub fn explain(&self, name: &FullName, events: &dyn Fn(&PodUid) -> Vec<SeenEvent>) -> Option<Explanation> {
        let found = self.named(name);
        let (pod, others) = found.split_first()?;
        Some(self.with(|cx| explain(cx, pod, others, &events(&pod.uid), &self.problems())))
    }

    /// One line for each pod, in the order of their names.
    pub fn lines(&self) -> Vec<PodLine> {
        let pods = self.pods();
        self.with(|cx| pods.iter().map(|pod| line(cx, pod)).collect())
    }

    /// What holds up every pod of the node, if anything does.
    pub fn troubles(&self) -> Vec<Wait> {
        self.with(troubles)
    }

    /// The line of one pod that was looked at before.
    pub fn line(&self, pod: &PodFacts) -> PodLine {
        self.with(|cx| line(cx, pod))
    }

    /// The nearest wait of a pod that was looked at before, and the same in a few words: what, but not how long still.
    pub fn nearest(&self, pod: &PodFacts) -> (Wait, String) {
        self.with(|cx| {
            let mut chain = chain(cx, pod);
            let words = short(&chain, chain[0].next.unwrap_or(cx.now));
            (chain.swap_remove(0), words)
        })
    }

    /// The nearest wait of a pod, and the first line of its explanation.
    pub fn nearest_wait(&self, uid: &PodUid) -> Option<(Wait, String)> {
        let pod = self.pod(uid)?;
        self.with(|cx| {
            let mut chain = chain(cx, &pod);
            let heading = heading(&state(&pod, cx.now), &chain, cx.now);
            Some((chain.swap_remove(0), heading))
        })
    }

    fn with<T>(&self, ask: impl FnOnce(&Cx<'_>) -> T) -> T {
        let (last_pass, passes) = self.passes.look();
        let node = NodeState {
            started: self.started,
            missing_sources: self.desired.missing_sources().into_iter().collect(),
            last_pass,
            passes,
            runtime: self.observer.outage(),
        };
        ask(&Cx { now: self.clock.now(), node: &node, find: &|uid| self.pod(uid) })
    }

    fn some(&self, wanted: impl Fn(&FullName) -> bool) -> Vec<PodFacts> {
        let snapshots = self.engine.snapshots().into_iter();
        let snapshots = snapshots.filter(|snapshot| snapshot.full_name.as_ref().is_none_or(&wanted));
        let mut snapshots: HashMap<PodUid, PodSnapshot> = snapshots.map(|it| (it.uid.clone(), it)).collect();
        let mut pods = Vec::new();
        for object in self.desired.pods().into_iter().filter(|pod| wanted(pod.full_name())) {
            let snapshot = snapshots.remove(object.uid());
            pods.extend(self.facts(object.uid(), Some(object.clone()), snapshot));
        }
        pods.extend(snapshots.into_iter().filter_map(|(uid, snapshot)| self.facts(&uid, None, Some(snapshot))));
        pods.retain(|pod| wanted(&pod.full_name));
        pods.sort_by(|a, b| a.order().cmp(&b.order()));
        pods
    }

    fn facts(&self, uid: &PodUid, wanted: Option<Arc<PodObject>>, snapshot: Option<PodSnapshot>) -> Option<PodFacts> {
        let desired = wanted.is_some();
        let object = wanted.or_else(|| self.engine.active_pod(uid));
        let full_name = match (&object, &snapshot) {
            (Some(object), _) => object.full_name().clone(),
            (None, Some(snapshot)) => snapshot.full_name.clone()?,
            (None, None) => return None,
        };
        let standing = |activity: &Activity| match activity.task {
            Task::AwaitTurn(_, ticket) => Some(self.containers.governor().standing(ticket)),
            _ => None,
        };
        let activities = self.containers.activities();
        Some(PodFacts {
            status: self.statuses.get(uid).or_else(|| Some(Arc::new(object.as_ref()?.status()?.clone()))),
            object,
            snapshot,
            desired,
            activities: activities.of(uid).into_iter().map(|one| (one.clone(), standing(&one))).collect(),
            start_errors: self.containers.start_errors().of(uid),
            pulls: self.containers.pull_failures(uid),
            volume: activities.volume_of(uid),
            stop: self.shutdown.turn(uid),
            ..PodFacts::named(uid.clone(), full_name)
        })
    }
}
