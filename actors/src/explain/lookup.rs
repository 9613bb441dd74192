//! Where the facts come from.

use std::cell::OnceCell;
use std::collections::HashMap;
use std::sync::Arc;

use super::chain::{Cx, chain, node_problems, short};
use super::facts::{NodeState, PodFacts, SeenEvent};
use super::{Explanation, PodLine, Wait, explain, heading, line, state};
use crate::container_manager::ContainerManager;
use crate::container_manager::activity::{Activity, Task};
use crate::container_manager::governor::QueueSnapshot;
use crate::desired::Desired;
use crate::engine::{Engine, PodSnapshot};
use crate::housekeeping::health::PassHealth;
use crate::ids::{FullName, PodUid};
use crate::observer::Observer;
use crate::pod::PodObject;
use crate::ports::{Clock, PodStorage, SourceProblem};
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
    /// What is being worked on in their directories.
    pub storage: Arc<dyn PodStorage>,
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

/// One look at a node: all that it tells is told as of one time, and what holds for all pods is found out once.
pub struct Look<'a> {
    at: &'a Explainer,
    now: Time,
    node: NodeState,
    /// The line for starts, as it was when the first pod was found in it.
    line: OnceCell<QueueSnapshot>,
}

impl Explainer {
    /// Looks.
    pub fn look(&self) -> Look<'_> {
        let (last_pass, passes) = self.passes.look();
        let node = NodeState {
            started: self.started,
            missing_sources: self.desired.missing_sources(),
            last_pass,
            passes,
            runtime: self.observer.outage(),
            unready: self.observer.unready(),
        };
        Look { at: self, now: self.clock.now(), node, line: OnceCell::new() }
    }

    /// Every pod that is wanted or still known, by full name; of one name the wanted one first.
    pub fn pods(&self) -> Vec<PodFacts> {
        self.look().pods()
    }

    /// The pods of one full name, the wanted one first: a pod may wait for the end of another of its name.
    pub fn named(&self, name: &FullName) -> Vec<PodFacts> {
        self.look().named(name)
    }

    /// The name of every pod that is wanted or still known, some more than once.
    pub fn names(&self) -> Vec<FullName> {
        let (pods, held) = self.desired.wanted();
        pods.iter().chain(&held).map(|pod| pod.full_name().clone()).chain(self.engine.full_names()).collect()
    }

    /// What the sources cannot use at present.
    pub fn problems(&self) -> Vec<SourceProblem> {
        self.desired.problems()
    }

    /// Explains the pod of a name that is wanted, or else the last one that is still known; or the one that has this UID.
    /// `events` tells the last events of a UID, the newest last.
    pub fn explain(
        &self,
        name: &FullName,
        uid: Option<&PodUid>,
        events: &dyn Fn(&PodUid) -> Vec<SeenEvent>,
    ) -> Option<Explanation> {
        let look = self.look();
        let mut others = look.named(name);
        let place = others.iter().position(|pod| uid.is_none_or(|uid| pod.uid == *uid))?;
        let pod = others.remove(place);
        Some(look.with(|cx| explain(cx, &pod, &others, &events(&pod.uid), &self.problems())))
    }

    /// One line for each pod, in the order of their names.
    pub fn lines(&self) -> Vec<PodLine> {
        let look = self.look();
        look.pods().iter().map(|pod| look.line(pod)).collect()
    }

    /// What holds up every pod of the node, if anything does.
    pub fn node_problems(&self) -> Vec<Wait> {
        self.look().with(node_problems)
    }
}

impl Look<'_> {
    /// When it was.
    pub fn now(&self) -> Time {
        self.now
    }

    /// What holds for every pod.
    pub fn node(&self) -> &NodeState {
        &self.node
    }

    /// See [`Explainer::pods`].
    pub fn pods(&self) -> Vec<PodFacts> {
        let (wanted, held) = self.at.desired.wanted();
        self.of(wanted, held, self.at.engine.snapshots())
    }

    /// One pod by UID.
    pub fn pod(&self, uid: &PodUid) -> Option<PodFacts> {
        self.facts(uid, self.at.desired.pod(uid), self.at.engine.snapshot(uid))
    }

    /// The line of a pod.
    pub fn line(&self, pod: &PodFacts) -> PodLine {
        self.with(|cx| line(cx, pod))
    }

    /// The nearest wait of a pod, and the same in a few words: what, but not how long still.
    pub fn nearest(&self, pod: &PodFacts) -> (Wait, String) {
        self.with(|cx| {
            let mut chain = chain(cx, pod);
            let words = short(&chain, chain[0].next.unwrap_or(cx.now));
            (chain.swap_remove(0), words)
        })
    }

    /// The nearest wait of a pod, the first line of its explanation, and since when a hook of it fails, if one does.
    pub fn nearest_wait(&self, uid: &PodUid) -> Option<(Wait, String, Option<Time>)> {
        let pod = self.pod(uid)?;
        let failing = pod.snapshot.as_ref().and_then(|snapshot| Some(snapshot.failure.as_ref()?.since));
        self.with(|cx| {
            let mut chain = chain(cx, &pod);
            let heading = heading(&state(&pod, cx.now), &chain, cx.now);
            Some((chain.swap_remove(0), heading, failing))
        })
    }

    fn with<T>(&self, ask: impl FnOnce(&Cx<'_>) -> T) -> T {
        ask(&Cx { now: self.now, node: &self.node, find: &|uid| self.pod(uid) })
    }

    /// See [`Explainer::named`].
    fn named(&self, name: &FullName) -> Vec<PodFacts> {
        let (mut wanted, mut held) = self.at.desired.wanted();
        [&mut wanted, &mut held].into_iter().for_each(|pods| pods.retain(|pod| pod.full_name() == name));
        let mut pods = self.of(wanted, held, self.at.engine.snapshots_named(name));
        pods.retain(|pod| pod.full_name == *name);
        pods
    }

    fn of(&self, wanted: Vec<Arc<PodObject>>, held: Vec<Arc<PodObject>>, known: Vec<PodSnapshot>) -> Vec<PodFacts> {
        let mut snapshots: HashMap<PodUid, PodSnapshot> = known.into_iter().map(|it| (it.uid.clone(), it)).collect();
        let mut pods = Vec::new();
        for object in wanted {
            let snapshot = snapshots.remove(object.uid());
            pods.extend(self.facts(object.uid(), Some(object.clone()), snapshot));
        }
        for object in held.into_iter().filter(|object| !snapshots.contains_key(object.uid())) {
            let facts = self.facts(object.uid(), Some(object.clone()), None);
            pods.extend(facts.map(|facts| PodFacts { held: true, ..facts }));
        }
        pods.extend(snapshots.into_iter().filter_map(|(uid, snapshot)| self.facts(&uid, None, Some(snapshot))));
        pods.sort_by(|a, b| a.order().cmp(&b.order()));
        pods
    }

    fn facts(&self, uid: &PodUid, wanted: Option<Arc<PodObject>>, snapshot: Option<PodSnapshot>) -> Option<PodFacts> {
        let desired = wanted.is_some();
        let object = wanted.or_else(|| self.at.engine.active_pod(uid));
        let full_name = match (&object, &snapshot) {
            (Some(object), _) => object.full_name().clone(),
            (None, Some(snapshot)) => snapshot.full_name.clone()?,
            (None, None) => return None,
        };
        let standing = |activity: &Activity| match activity.task {
            Task::AwaitTurn(_, ticket) => {
                self.line.get_or_init(|| self.at.containers.governor().queue()).position(ticket)
            }
            _ => None,
        };
        let activities = self.at.containers.activities();
        Some(PodFacts {
            status: self.at.statuses.get(uid).or_else(|| Some(Arc::new(object.as_ref()?.status()?.clone()))),
            object,
            snapshot,
            desired,
            activities: activities.of(uid).into_iter().map(|one| (one.clone(), standing(&one))).collect(),
            start_errors: self.at.containers.start_errors().of(uid),
            pulls: self.at.containers.pull_failures(uid),
            volume_path: self.at.storage.under_way(uid),
            stop: self.at.shutdown.turn(uid),
            ..PodFacts::named(uid.clone(), full_name)
        })
    }
}
