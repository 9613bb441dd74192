//! What the sources want, behind the one lock that config dispatch and the housekeeping pass exclude each other with.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};

use crate::config::mux::{Changes, SourceConfig};
use crate::ids::{FullName, PodUid};
use crate::pod::PodObject;
use crate::pod_manager::PodManager;
use crate::ports::{SourceKind, SourceProblem, SourceUpdate};

/// The desired pods of all sources. Held briefly, never over an await.
#[derive(Debug)]
pub struct Desired(Mutex<DesiredState>);

/// What is behind the lock.
#[derive(Debug)]
pub struct DesiredState {
    sources: BTreeMap<SourceKind, Source>,
    /// The pods.
    pub pods: PodManager,
}

#[derive(Debug, Default)]
struct Source {
    config: SourceConfig,
    problems: Vec<SourceProblem>,
    /// What it wants by a word that cannot be acted on yet.
    held: Option<Vec<Arc<PodObject>>>,
}

/// A source that has not delivered yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MissingSource {
    /// Which.
    pub kind: SourceKind,
    /// Why, as far as it says.
    pub problems: Vec<SourceProblem>,
    /// It has, and that cannot be acted on yet.
    pub held: bool,
}

impl MissingSource {
    /// Why, in brackets; empty if it does not say.
    pub fn why(&self) -> String {
        if self.held {
            return " (what it wants waits for the container runtime)".to_owned();
        }
        let problems: Vec<String> = self.problems.iter().map(ToString::to_string).collect();
        if problems.is_empty() { String::new() } else { format!(" ({})", problems.join("; ")) }
    }
}

impl Desired {
    /// Nothing delivered yet; ready once each of these sources has.
    pub fn new(expected: impl IntoIterator<Item = SourceKind>) -> Self {
        let sources = expected.into_iter().map(|kind| (kind, Source::default())).collect();
        Desired(Mutex::new(DesiredState { sources, pods: PodManager::default() }))
    }

    /// Keeps everybody else out: dispatch and housekeeping decide under it.
    pub fn lock(&self) -> MutexGuard<'_, DesiredState> {
        self.0.lock()
    }

    /// Whether every source delivered at least once.
    pub fn is_ready(&self) -> bool {
        self.lock().is_ready()
    }

    /// A pod by UID.
    pub fn pod(&self, uid: &PodUid) -> Option<Arc<PodObject>> {
        self.lock().pods.pod(uid).cloned()
    }

    /// A pod by full name.
    pub fn pod_named(&self, name: &FullName) -> Option<Arc<PodObject>> {
        self.lock().pods.pod_named(name).cloned()
    }

    /// All pods.
    pub fn pods(&self) -> Vec<Arc<PodObject>> {
        self.lock().pods.pods().cloned().collect()
    }

    /// What the sources could not use when they delivered last.
    pub fn problems(&self) -> Vec<SourceProblem> {
        self.lock().sources.values().flat_map(|source| source.problems.iter().cloned()).collect()
    }

    /// All pods, and behind them those that sources want by a word that cannot be acted on yet.
    pub fn wanted(&self) -> (Vec<Arc<PodObject>>, Vec<Arc<PodObject>>) {
        let desired = self.lock();
        let held = desired.sources.values().filter_map(|source| source.held.as_ref()).flatten();
        let mut seen = HashSet::new();
        let held = held.filter(|pod| !desired.is_taken_up(pod) && seen.insert(pod.uid().clone())).cloned().collect();
        (desired.pods.pods().cloned().collect(), held)
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
    /// Whether every source delivered at least once.
    pub fn is_ready(&self) -> bool {
        self.sources.values().all(|source| source.config.has_delivered())
    }

    /// Whether a pod that its source wants is among the pods. One of which the judgement was interrupted is not. A mirror
    /// is never judged.
    pub fn is_taken_up(&self, pod: &PodObject) -> bool {
        pod.is_mirror() || self.pods.pod(pod.uid()).is_some()
    }

    /// What the sources want and is not taken up.
    pub fn left_out(&self) -> Vec<Arc<PodObject>> {
        let wanted = self.sources.values().flat_map(|source| source.config.pods());
        wanted.filter(|pod| !self.is_taken_up(pod)).cloned().collect()
    }

    /// Takes note of what a source says while it cannot be acted on.
    pub fn hold(&mut self, news: &SourceUpdate) {
        match news {
            SourceUpdate::Set(set) => self.sources.entry(set.source).or_default().held = Some(set.pods.clone()),
            SourceUpdate::NotYet { .. } => {}
        }
    }

    /// Takes what a source says; answers with who says it, what changed, and the problems that are new.
    pub fn apply(&mut self, news: SourceUpdate) -> (SourceKind, Changes, Vec<SourceProblem>) {
        let (kind, pods, problems) = match news {
            SourceUpdate::Set(set) => (set.source, Some(set.pods), set.problems),
            // Of no meaning once it has delivered.
            SourceUpdate::NotYet { source, .. }
                if self.sources.get(&source).is_some_and(|it| it.config.has_delivered()) =>
            {
                return (source, Changes::default(), Vec::new());
            }
            SourceUpdate::NotYet { source, problems } => (source, None, problems),
        };
        let source = self.sources.entry(kind).or_default();
        let new = problems.iter().filter(|problem| !source.problems.contains(problem)).cloned().collect();
        source.problems = problems;
        source.held = None;
        (kind, pods.map(|pods| source.config.apply(pods)).unwrap_or_default(), new)
    }
}
