//! Computes the changes between two full sets of pods of one source.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use crate::ids::{FullName, PodUid};
use crate::pod::{MIRROR_ANNOTATION, PodObject, SEEN_ANNOTATION, SOURCE_ANNOTATION};
use crate::texts::pods;

/// The pods of the last set of one source.
#[derive(Debug, Default)]
pub struct SourceConfig {
    pods: BTreeMap<PodUid, SourcePod>,
    refused: BTreeSet<(FullName, PodUid)>,
    delivered: bool,
}

/// A pod of the last set.
#[derive(Debug)]
struct SourcePod {
    /// The object as the source sent it. The same `Arc` again means no change.
    sent: Arc<PodObject>,
    /// The object as it was passed on: with the first-seen time of the first object.
    passed_on: Arc<PodObject>,
}

/// A kind of change, with the pods that have it.
#[derive(Clone, Debug)]
pub enum Change {
    /// The pods are no longer desired; their last objects.
    Remove(Vec<Arc<PodObject>>),
    /// The pods are new. Empty only for an empty first set of a source, to report that the source has sent its set.
    Add(Vec<Arc<PodObject>>),
    /// The pods changed in a relevant field.
    Update(Vec<Arc<PodObject>>),
    /// The pods changed, and are marked for deletion.
    Delete(Vec<Arc<PodObject>>),
    /// Only the pods' statuses changed.
    Reconcile(Vec<Arc<PodObject>>),
}

/// The result of a set.
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct Changes {
    /// The changes in the order of their handling: remove, add, update, delete, reconcile.
    pub changes: Vec<Change>,
    /// The rejected pods. Each is reported once while its conflict lasts.
    pub refused: Vec<Refused>,
}

/// A pod that conflicts with an earlier one of its set. It gets a `FailedValidation` event.
#[derive(Clone, Debug)]
pub struct Refused {
    /// The rejected pod.
    pub pod: Arc<PodObject>,
    /// Why, and the remedy.
    pub message: String,
}

impl SourceConfig {
    /// A source that has not sent a set.
    pub fn new() -> Self {
        SourceConfig::default()
    }

    /// Whether the source sent at least one set; an empty set counts.
    pub fn has_delivered(&self) -> bool {
        self.delivered
    }

    /// The pods as they were last passed on.
    pub fn pods(&self) -> impl Iterator<Item = &Arc<PodObject>> {
        self.pods.values().map(|known| &known.passed_on)
    }

    /// Applies a full set and returns the changes since the last one. Pods are identified by UID. Of two pods with the
    /// same full name or UID the later one is rejected. A pod's first-seen time never changes.
    pub fn apply(&mut self, set: Vec<Arc<PodObject>>) -> Changes {
        let is_first_set = !std::mem::replace(&mut self.delivered, true);
        let (unique, refused) = self.unique(set);
        let (mut removed, mut added, mut updated, mut deleted, mut reconciled) =
            (vec![], vec![], vec![], vec![], vec![]);

        let mut before = std::mem::take(&mut self.pods);
        for pod in unique {
            let uid = pod.uid().clone();
            let known = match before.remove(&uid) {
                None => {
                    added.push(pod.clone());
                    SourcePod { sent: pod.clone(), passed_on: pod }
                }
                // A renamed pod with a fixed UID is another pod: the old one must end before the new one may start.
                Some(known) if known.passed_on.full_name() != pod.full_name() => {
                    removed.push(known.passed_on);
                    added.push(pod.clone());
                    SourcePod { sent: pod.clone(), passed_on: pod }
                }
                Some(known) => {
                    let (known, difference) = known.follow(pod);
                    match difference {
                        Difference::None => {}
                        Difference::Status => reconciled.push(known.passed_on.clone()),
                        Difference::Meaning if known.passed_on.is_deleting() => deleted.push(known.passed_on.clone()),
                        Difference::Meaning => updated.push(known.passed_on.clone()),
                    }
                    known
                }
            };
            self.pods.insert(uid, known);
        }
        removed.extend(before.into_values().map(|known| known.passed_on));

        let is_empty_first_set = is_first_set && added.is_empty();
        let mut changes = Vec::new();
        let mut push = |change: fn(Vec<Arc<PodObject>>) -> Change, pods: Vec<Arc<PodObject>>| {
            if !pods.is_empty() {
                changes.push(change(pods));
            }
        };
        push(Change::Remove, removed);
        push(Change::Add, added);
        push(Change::Update, updated);
        push(Change::Delete, deleted);
        push(Change::Reconcile, reconciled);
        if is_empty_first_set {
            // A first set without additions is empty, because every pod of a first set is new.
            changes.push(Change::Add(vec![]));
        }
        Changes { changes, refused }
    }

    /// Separates the pods of a set from those that conflict with an earlier one. Returns only the new conflicts.
    fn unique(&mut self, set: Vec<Arc<PodObject>>) -> (Vec<Arc<PodObject>>, Vec<Refused>) {
        let state = foldhash::fast::RandomState::default();
        let mut names: HashMap<FullName, PodUid, _> = HashMap::with_capacity_and_hasher(set.len(), state.clone());
        let mut uids: HashMap<PodUid, FullName, _> = HashMap::with_capacity_and_hasher(set.len(), state);
        let mut unique = Vec::with_capacity(set.len());
        let mut refused = Vec::new();
        let before = std::mem::take(&mut self.refused);
        for pod in set {
            let (name, uid) = (pod.full_name(), pod.uid());
            let message = match (names.get(name), uids.get(uid)) {
                (Some(_), _) => pods::duplicate_name(&pod, pod.annotation(SOURCE_ANNOTATION).unwrap_or("api")),
                (None, Some(other)) => format!(
                    "pod {name} is ignored because pod {other} has the same metadata.uid {uid}: remove metadata.uid or \
                     make it unique"
                ),
                (None, None) => {
                    names.insert(name.clone(), uid.clone());
                    uids.insert(uid.clone(), name.clone());
                    unique.push(pod);
                    continue;
                }
            };
            let key = (name.clone(), uid.clone());
            if !before.contains(&key) && !self.refused.contains(&key) {
                refused.push(Refused { pod, message });
            }
            self.refused.insert(key);
        }
        (unique, refused)
    }
}

/// The difference between two objects of a pod.
enum Difference {
    None,
    /// Only the status differs.
    Status,
    /// See [`differs_in_meaning`].
    Meaning,
}

impl SourcePod {
    /// Replaces the pod's object by the one of the next set.
    fn follow(self, sent: Arc<PodObject>) -> (SourcePod, Difference) {
        if Arc::ptr_eq(&self.sent, &sent) {
            return (self, Difference::None);
        }
        let difference = if differs_in_meaning(&self.passed_on, &sent) {
            Difference::Meaning
        } else if self.passed_on.status() != sent.status() {
            Difference::Status
        } else {
            return (SourcePod { sent, passed_on: self.passed_on }, Difference::None);
        };
        // `sent` stays unchanged, so that the same object is recognized in the next set.
        let passed_on = match self.passed_on.annotation(SEEN_ANNOTATION) {
            Some(first_seen) => sent.clone().with_first_seen(first_seen),
            None => sent.clone(),
        };
        (SourcePod { sent, passed_on }, difference)
    }
}

/// Whether two pods differ in spec, labels, deletion, or annotations other than the node's own (the kubelet's
/// `podsDifferSemantically`, 1.36). The hash annotation counts, because it shows an outdated mirror pod. The generation counts, because a
/// spec that was changed and changed back has a new one, and the status has to report it.
fn differs_in_meaning(old: &PodObject, new: &PodObject) -> bool {
    let (a, b) = (old.metadata(), new.metadata());
    a.generation != b.generation
        || a.deletion_timestamp != b.deletion_timestamp
        || a.deletion_grace_period_seconds != b.deletion_grace_period_seconds
        || !entries(a.labels.as_ref()).eq(entries(b.labels.as_ref()))
        || !source_annotations(old).eq(source_annotations(new))
        || old.spec() != new.spec()
}

fn entries(map: Option<&BTreeMap<String, String>>) -> impl Iterator<Item = (&String, &String)> {
    map.into_iter().flatten()
}

fn source_annotations(pod: &PodObject) -> impl Iterator<Item = (&String, &String)> {
    entries(pod.metadata().annotations.as_ref())
        .filter(|(key, _)| ![SOURCE_ANNOTATION, SEEN_ANNOTATION, MIRROR_ANNOTATION].contains(&key.as_str()))
}

#[cfg(test)]
mod tests;
