//! Gathers the facts for explanations from all parts of the node.

use std::cell::OnceCell;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{sleep, timeout};

use super::chain::{ExplainContext, chain, node_problems, short};
use super::facts::{CountedEvent, NodeState, PodFacts};
use super::{Explanation, PodLine, Wait, explain, heading, line, state};
use crate::admission;
use crate::container_manager::ContainerManager;
use crate::container_manager::activity::{Activity, Task};
use crate::container_manager::governor::QueueSnapshot;
use crate::desired::DesiredPods;
use crate::engine::{Engine, PodSnapshot};
use crate::eviction::EvictionState;
use crate::final_statuses::FinalStatusStore;
use crate::health::PassHealth;
use crate::ids::{FullName, PodUid};
use crate::observer::Observer;
use crate::pod::PodObject;
use crate::ports::{Clock, Observed, PodStorage, ResourcePhase, ResourceWait, RuntimeView, SourceKind, SourceProblem};
use crate::shutdown::ShutdownProgress;
use crate::status_writer::StatusWriter;
use crate::statuses::Statuses;
use crate::time::Time;

/// How long after the start of the node its adopted pods are awaited. A runtime that does not answer must not hide the pods.
const ADOPTION: Duration = Duration::from_secs(5);
/// How often the adopted pods are checked.
const ADOPTION_CHECK: Duration = Duration::from_millis(20);

/// Explains the states and waits of pods. Reads all parts of the node and changes nothing.
pub struct Explainer {
    pub(crate) engine: Engine,
    pub(crate) desired: Arc<DesiredPods>,
    pub(crate) statuses: Arc<Statuses>,
    pub(crate) final_statuses: Arc<FinalStatusStore>,
    pub(crate) containers: Arc<ContainerManager>,
    pub(crate) storage: Arc<dyn PodStorage>,
    pub(crate) observer: Arc<Observer>,
    pub(crate) passes: Arc<PassHealth>,
    pub(crate) shutdown: Arc<ShutdownProgress>,
    pub(crate) evictions: Arc<EvictionState>,
    /// Absent without an API server.
    pub(crate) status_writer: Option<Arc<StatusWriter>>,
    /// Absent if pods may need no resources.
    pub(crate) resources: Option<Arc<dyn ResourcePhase>>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) started: Time,
    /// Set once [`adopted`](Explainer::adopted) has ended.
    pub(crate) adopted: tokio::sync::OnceCell<()>,
}

/// The state of a node at one time. Facts that hold for all pods are gathered once for all queries.
pub struct Inspection<'a> {
    explainer: &'a Explainer,
    at: Time,
    node: NodeState,
    /// The queue of the start governor, read when the first waiting start is found.
    start_queue: OnceCell<QueueSnapshot>,
    /// The pods that may use host ports, read when the first pod is found that was rejected for its ports.
    unfinished_pods: OnceCell<Vec<Arc<PodObject>>>,
}

impl Explainer {
    /// The state of the node now.
    pub fn inspect(&self) -> Inspection<'_> {
        let node = NodeState {
            started: self.started,
            missing_sources: self.desired.missing_sources(),
            last_pass: self.passes.last_end(),
            passes: self.passes.failure(),
            leftovers: self.passes.leftovers(),
            ended_pods: self.ended_pods(),
            runtime: self.observer.outage(),
            unready: self.observer.unready(),
            pressures: self.evictions.pressures(),
        };
        Inspection {
            explainer: self,
            at: self.clock.now(),
            node,
            start_queue: OnceCell::new(),
            unfinished_pods: OnceCell::new(),
        }
    }

    fn ended_pods(&self) -> Vec<(PodUid, ResourceWait, Option<Time>)> {
        let Some(resources) = &self.resources else { return Vec::new() };
        let waits = |(uid, next): (PodUid, _)| {
            let waits = resources.waits(&uid);
            waits.into_iter().map(move |wait| (uid.clone(), wait, next))
        };
        resources.ended_pods().into_iter().flat_map(waits).collect()
    }

    /// Waits until the statuses of the pods that ran before this node are known. Without its status, a ready pod looks like one that has
    /// not started. Waits no longer than 5 seconds after the start of the node. Cancel safe.
    pub async fn adopted(&self) {
        // One of the callers checks the pods, and the others wait for it.
        self.adopted.get_or_init(|| self.adoption()).await;
    }

    /// Ends once the adopted pods are known, or the 5 seconds are over.
    async fn adoption(&self) {
        // A clock that was set back does not lengthen the wait.
        let left = (self.started + ADOPTION).since(self.clock.now()).min(ADOPTION);
        let adopted = async {
            while !self.has_adopted() {
                sleep(ADOPTION_CHECK).await;
            }
        };
        let _late = timeout(left, adopted).await;
    }

    fn has_adopted(&self) -> bool {
        // The pods of the API server come with their statuses.
        if self.desired.missing_sources().iter().any(|source| source.kind != SourceKind::Api) {
            return false;
        }
        let (pods, held) = self.desired.pods_and_held();
        pods.iter().chain(&held).all(|pod| {
            // The status in a manifest's pod is a default, which no agent has computed.
            let has_status = self.statuses.get(pod.uid()).is_some() || (!pod.is_static() && pod.status().is_some());
            has_status || self.observer.observed(pod.uid()) == Observed::Stopped
        })
    }

    /// Every pod that is desired or has a record, sorted by full name. Among pods of one name the desired one comes first.
    pub fn pods(&self) -> Vec<PodFacts> {
        self.inspect().pods()
    }

    /// The pods of one full name, the desired one first. There may be several, because a static pod waits until the earlier pod
    /// of its full name has terminated.
    pub fn named(&self, name: &FullName) -> Vec<PodFacts> {
        self.inspect().named(name)
    }

    /// The full name of every pod that is desired or has a record. The list may contain duplicates.
    pub fn names(&self) -> Vec<FullName> {
        let (pods, held) = self.desired.pods_and_held();
        pods.iter().chain(&held).map(|pod| pod.full_name().clone()).chain(self.engine.full_names()).collect()
    }

    /// The problems that the sources reported with their last updates.
    pub fn problems(&self) -> Vec<SourceProblem> {
        self.desired.problems()
    }

    /// Explains the desired pod of a full name, or the last one that still has a record; with `uid`, the pod with that UID.
    /// `events` returns the last events of a UID, the newest last.
    pub fn explain(
        &self,
        name: &FullName,
        uid: Option<&PodUid>,
        events: &dyn Fn(&PodUid) -> Vec<CountedEvent>,
    ) -> Option<Explanation> {
        let node = self.inspect();
        let mut others = node.named(name);
        let index = others.iter().position(|pod| uid.is_none_or(|uid| pod.uid == *uid))?;
        let pod = others.remove(index);
        Some(node.with(|context| explain(context, &pod, &others, &events(&pod.uid), &self.problems())))
    }

    /// One line for each pod, sorted by full name.
    pub fn lines(&self) -> Vec<PodLine> {
        let node = self.inspect();
        node.pods().iter().map(|pod| node.line(pod)).collect()
    }

    /// The waits that affect every pod of the node.
    pub fn node_problems(&self) -> Vec<Wait> {
        self.inspect().with(node_problems)
    }
}

impl Inspection<'_> {
    /// The time of the inspection.
    pub fn at(&self) -> Time {
        self.at
    }

    /// The facts that hold for every pod.
    pub fn node(&self) -> &NodeState {
        &self.node
    }

    /// See [`Explainer::pods`].
    pub fn pods(&self) -> Vec<PodFacts> {
        let (desired, held) = self.explainer.desired.pods_and_held();
        self.of(desired, held, self.explainer.engine.snapshots())
    }

    /// The facts of one pod.
    pub fn pod(&self, uid: &PodUid) -> Option<PodFacts> {
        let desired = &self.explainer.desired;
        let object = desired.pod(uid).or_else(|| Some(desired.waiting_pod(uid)?.pod));
        self.facts(uid, object, self.explainer.engine.snapshot(uid))
    }

    /// The line of a pod.
    pub fn line(&self, pod: &PodFacts) -> PodLine {
        self.with(|context| line(context, pod))
    }

    /// The nearest wait of a pod, and a short form of it without times.
    pub fn nearest(&self, pod: &PodFacts) -> (Wait, String) {
        self.with(|context| {
            let mut chain = chain(context, pod);
            let words = short(&chain, chain[0].next.unwrap_or(context.now));
            (chain.swap_remove(0), words)
        })
    }

    /// The nearest wait of a pod, the first line of its explanation, and the time of the first failure if its hook keeps failing.
    pub fn nearest_wait(&self, uid: &PodUid) -> Option<(Wait, String, Option<Time>)> {
        let pod = self.pod(uid)?;
        let failing = pod.snapshot.as_ref().and_then(|snapshot| Some(snapshot.failure.as_ref()?.since));
        self.with(|context| {
            let mut chain = chain(context, &pod);
            let heading = heading(&state(&pod, context.now), &chain, context.now);
            Some((chain.swap_remove(0), heading, failing))
        })
    }

    fn with<T>(&self, query: impl FnOnce(&ExplainContext<'_>) -> T) -> T {
        query(&ExplainContext { now: self.at, node: &self.node, find: &|uid| self.pod(uid) })
    }

    /// See [`Explainer::named`].
    fn named(&self, name: &FullName) -> Vec<PodFacts> {
        let (mut desired, mut held) = self.explainer.desired.pods_and_held();
        [&mut desired, &mut held].into_iter().for_each(|pods| pods.retain(|pod| pod.full_name() == name));
        let mut pods = self.of(desired, held, self.explainer.engine.snapshots_named(name));
        pods.retain(|pod| pod.full_name == *name);
        pods
    }

    /// The facts of these pods, sorted by full name. `held` are the pods of updates that wait until the runtime is healthy.
    fn of(&self, desired: Vec<Arc<PodObject>>, held: Vec<Arc<PodObject>>, known: Vec<PodSnapshot>) -> Vec<PodFacts> {
        let mut snapshots: HashMap<PodUid, PodSnapshot> = known.into_iter().map(|it| (it.uid.clone(), it)).collect();
        let mut pods = Vec::new();
        for object in desired {
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

    fn used_ports(&self, pod: &PodObject) -> Vec<(String, FullName)> {
        let others = self.unfinished_pods.get_or_init(|| self.explainer.engine.unfinished_pods());
        admission::users_of_host_ports(pod, others.iter().map(|other| &**other))
    }

    fn facts(&self, uid: &PodUid, desired: Option<Arc<PodObject>>, snapshot: Option<PodSnapshot>) -> Option<PodFacts> {
        let is_desired = desired.is_some();
        let object = desired.or_else(|| self.explainer.engine.active_pod(uid));
        let full_name = match (&object, &snapshot) {
            (Some(object), _) => object.full_name().clone(),
            (None, Some(snapshot)) => snapshot.full_name.clone()?,
            (None, None) => return None,
        };
        let queue_position = |activity: &Activity| match activity.task {
            Task::AwaitTurn(_, ticket) => {
                self.start_queue.get_or_init(|| self.explainer.containers.governor().queue()).position(ticket)
            }
            _ => None,
        };
        let activities = self.explainer.containers.activities();
        let admission = if snapshot.is_none() { self.explainer.desired.waiting_pod(uid) } else { None };
        let status = self.explainer.statuses.get(uid).or_else(|| Some(Arc::new(object.as_ref()?.status()?.clone())));
        let lacks_ports = snapshot.is_none()
            && status.as_ref().and_then(|status| status.reason.as_deref()).is_some_and(admission::lacks_ports);
        let rejected = object.as_ref().filter(|_| lacks_ports);
        Some(PodFacts {
            admission,
            used_ports: rejected.map(|pod| self.used_ports(pod)).unwrap_or_default(),
            status,
            object,
            snapshot,
            desired: is_desired,
            starts_anew: self.explainer.final_statuses.starts_anew(uid),
            activities: activities.of(uid).into_iter().map(|one| (one.clone(), queue_position(&one))).collect(),
            start_errors: self.explainer.containers.start_errors().of(uid),
            pulls: self.explainer.containers.pull_failures(uid),
            volume_path: self.explainer.storage.under_way(uid),
            measured: self.explainer.evictions.pod(uid),
            stop: self.explainer.shutdown.turn(uid),
            failed_write: self.explainer.status_writer.as_ref().and_then(|writer| writer.failure(uid)),
            resources: self.explainer.resources.as_ref().map(|resources| resources.waits(uid)).unwrap_or_default(),
            ..PodFacts::named(uid.clone(), full_name)
        })
    }
}
