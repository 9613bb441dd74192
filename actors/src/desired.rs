//! The pods that the sources desire, behind the one lock that the dispatcher and the housekeeping pass share.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};

use crate::admission::{AdmissionQueue, WaitingPod};
use crate::config::mux::{Changes, SourceConfig};
use crate::ids::{FullName, PodUid};
use crate::pod::PodObject;
use crate::pod_manager::PodManager;
use crate::ports::{Severity, SourceKind, SourceProblem, SourceUpdate};

/// The desired pods of all sources. The lock is held briefly, never over an await.
#[derive(Debug)]
pub struct DesiredPods(Mutex<DesiredState>);

/// The state behind the lock of [`DesiredPods`].
#[derive(Debug)]
pub struct DesiredState {
    sources: BTreeMap<SourceKind, Source>,
    /// The desired pods that were admitted or rejected.
    pub pods: PodManager,
    /// The pods that admission judges again when something is freed.
    pub(crate) queue: AdmissionQueue,
}

#[derive(Debug, Default)]
struct Source {
    config: SourceConfig,
    problems: Vec<SourceProblem>,
    /// The pods of an update that waits until the runtime is healthy.
    held: Option<Vec<Arc<PodObject>>>,
}

/// A source that has not delivered yet.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MissingSource {
    /// The kind of the source.
    pub kind: SourceKind,
    /// The reasons that the source gave, if it gave any.
    pub problems: Vec<SourceProblem>,
    /// Whether the source has delivered an update that waits until the container runtime is healthy.
    pub held: bool,
}

impl MissingSource {
    /// The reasons in brackets, with a space before them. Empty if the source gave none.
    pub fn reason(&self) -> String {
        if self.held {
            return " (its pods wait for the container runtime)".to_owned();
        }
        let problems: Vec<String> = self.problems.iter().map(ToString::to_string).collect();
        if problems.is_empty() { String::new() } else { format!(" ({})", problems.join("; ")) }
    }
}

impl DesiredPods {
    /// No pods. The desired pods are [ready](DesiredPods::is_ready) once each of the `expected` sources has delivered.
    pub(crate) fn new(expected: impl IntoIterator<Item = SourceKind>) -> Self {
        let sources = expected.into_iter().map(|kind| (kind, Source::default())).collect();
        DesiredPods(Mutex::new(DesiredState { sources, pods: PodManager::default(), queue: AdmissionQueue::default() }))
    }

    /// Locks the desired pods. The dispatcher and the housekeeping pass decide under this lock, so they exclude each other.
    /// Public for tests that lose an update on purpose.
    pub fn lock(&self) -> MutexGuard<'_, DesiredState> {
        self.0.lock()
    }

    /// Whether every source has delivered at least once.
    pub fn is_ready(&self) -> bool {
        self.lock().is_ready()
    }

    /// A desired pod by UID.
    pub fn pod(&self, uid: &PodUid) -> Option<Arc<PodObject>> {
        self.lock().pods.pod(uid).cloned()
    }

    /// A desired pod by full name.
    pub fn pod_named(&self, name: &FullName) -> Option<Arc<PodObject>> {
        self.lock().pods.pod_named(name).cloned()
    }

    /// All desired pods, in no order.
    pub fn pods(&self) -> Vec<Arc<PodObject>> {
        self.lock().pods.pods().cloned().collect()
    }

    /// The problems that the sources reported with their last updates.
    pub fn problems(&self) -> Vec<SourceProblem> {
        self.lock().sources.values().flat_map(|source| source.problems.iter().cloned()).collect()
    }

    /// The pod with this UID, if it waits for admission.
    pub(crate) fn waiting_pod(&self, uid: &PodUid) -> Option<WaitingPod> {
        self.lock().queue.waiting().iter().find(|waiting| waiting.pod.uid() == uid).cloned()
    }

    /// All desired pods, also those that wait for admission, and those of updates that wait until the runtime is healthy.
    pub(crate) fn pods_and_held(&self) -> (Vec<Arc<PodObject>>, Vec<Arc<PodObject>>) {
        let desired = self.lock();
        let held = desired.sources.values().filter_map(|source| source.held.as_ref()).flatten();
        let mut uids = HashSet::new();
        let is_new = |pod: &&Arc<PodObject>| !desired.is_admitted_or_rejected(pod) && uids.insert(pod.uid().clone());
        let held = held.filter(is_new).cloned().collect();
        let waiting = desired.queue.waiting().iter().map(|waiting| &waiting.pod);
        (desired.pods.pods().chain(waiting).cloned().collect(), held)
    }

    /// The sources that have not delivered yet.
    pub fn missing_sources(&self) -> Vec<MissingSource> {
        let desired = self.lock();
        let missing = desired.sources.iter().filter(|(_, source)| !source.config.has_delivered());
        missing
            .map(|(kind, source)| MissingSource {
                kind: *kind,
                problems: source.problems.clone(),
                held: source.held.is_some(),
            })
            .collect()
    }
}

impl DesiredState {
    /// Whether every source has delivered at least once.
    pub(crate) fn is_ready(&self) -> bool {
        self.sources.values().all(|source| source.config.has_delivered())
    }

    /// Whether every source of static pods has delivered at least once.
    pub(crate) fn is_ready_for_static_pods(&self) -> bool {
        self.sources.iter().all(|(kind, source)| *kind == SourceKind::Api || source.config.has_delivered())
    }

    /// Whether every source that may desire a pod has delivered at least once. The API server sends no static pods, so they do not
    /// wait for it (KF6), and only the API server sends other pods.
    pub(crate) fn is_ready_for(&self, pod: &PodObject) -> bool {
        if pod.is_static() { self.is_ready_for_static_pods() } else { self.has_delivered(SourceKind::Api) }
    }

    /// Whether a source has delivered at least once.
    pub(crate) fn has_delivered(&self, kind: SourceKind) -> bool {
        self.sources.get(&kind).is_some_and(|source| source.config.has_delivered())
    }

    /// The static pod of a full name, also one that waits for admission.
    pub(crate) fn static_pod(&self, name: &FullName) -> Option<&Arc<PodObject>> {
        let is_it = |pod: &&Arc<PodObject>| pod.is_static() && pod.full_name() == name;
        let of_sources = || self.sources.values().flat_map(|source| source.config.pods()).find(is_it);
        self.pods.static_named(name).or_else(of_sources)
    }

    /// Whether admission decided on a pod of a source. If an admission handler panicked, there is no decision. Mirror pods
    /// need none.
    pub(crate) fn is_admitted_or_rejected(&self, pod: &PodObject) -> bool {
        pod.is_mirror() || self.pods.pod(pod.uid()).is_some()
    }

    /// The pods of the sources that admission has not decided on.
    pub(crate) fn unadmitted(&self) -> Vec<Arc<PodObject>> {
        let pods = self.sources.values().flat_map(|source| source.config.pods());
        pods.filter(|pod| !self.is_admitted_or_rejected(pod)).cloned().collect()
    }

    /// The warnings that a source reported with its last update, each with the pods of the source that it is about.
    pub(crate) fn warnings(&self, kind: SourceKind) -> Vec<(&SourceProblem, Vec<&Arc<PodObject>>)> {
        let Some(source) = self.sources.get(&kind) else { return vec![] };
        let pods_of = |warning: &SourceProblem| {
            source.config.pods().filter(|pod| warning.pods.contains(pod.full_name())).collect()
        };
        let warnings = source.problems.iter().filter(|problem| problem.severity == Severity::Warning);
        warnings.map(|warning| (warning, pods_of(warning))).collect()
    }

    /// Records an update that waits until the runtime is healthy, so that its pods can be explained until then.
    pub(crate) fn hold(&mut self, update: &SourceUpdate) {
        match update {
            SourceUpdate::Set(set) => self.sources.entry(set.source).or_default().held = Some(set.pods.clone()),
            SourceUpdate::NotYet { .. } => {}
        }
    }

    /// Applies an update to its source. Returns the source, the changes of its pods, and the problems that are new.
    pub(crate) fn apply(&mut self, update: SourceUpdate) -> (SourceKind, Changes, Vec<SourceProblem>) {
        let (kind, pods, problems) = match update {
            SourceUpdate::Set(set) => (set.source, Some(set.pods), set.problems),
            // A source that has delivered cannot go back to "not yet".
            SourceUpdate::NotYet { source, .. }
                if self.sources.get(&source).is_some_and(|it| it.config.has_delivered()) =>
            {
                return (source, Changes::default(), Vec::new());
            }
            SourceUpdate::NotYet { source, problems } => (source, None, problems),
        };
        let source = self.sources.entry(kind).or_default();
        let new_problems = problems.iter().filter(|it| !source.problems.contains(it)).cloned().collect();
        source.problems = problems;
        source.held = None;
        (kind, pods.map(|pods| source.config.apply(pods)).unwrap_or_default(), new_problems)
    }
}

#[cfg(test)]
mod tests;
