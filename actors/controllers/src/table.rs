//! The last known objects of one kind, and what an event of a watch changes. Pure.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::Hash;
use std::sync::Arc;

use k8s_openapi::Metadata;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::owners::object_key;
use crate::ports::resource_claims::ObjectKey;

/// An event of a watch, as kube's watcher reports it.
#[derive(Clone, Debug)]
pub enum WatchEvent<T> {
    /// The object was added or changed.
    Apply(Arc<T>),
    /// The object was deleted. This is its last state.
    Delete(Arc<T>),
    /// A list begins. Known objects stay known until the list is complete.
    Init,
    /// The list has the object.
    InitApply(Arc<T>),
    /// The list is complete. Known objects that it did not have are gone.
    InitDone,
    /// The watch or the list has the object, and its content cannot be decoded. What is known of the object stays known.
    Undecodable {
        /// The metadata of the object, and nothing else.
        object: Arc<T>,
        /// Whether the object was deleted.
        is_deleted: bool,
    },
}

impl<T> WatchEvent<T> {
    /// The object of the event.
    pub fn object(&self) -> Option<&Arc<T>> {
        match self {
            WatchEvent::Apply(object)
            | WatchEvent::Delete(object)
            | WatchEvent::InitApply(object)
            | WatchEvent::Undecodable { object, .. } => Some(object),
            WatchEvent::Init | WatchEvent::InitDone => None,
        }
    }
}

/// What an event means.
#[derive(Clone, Debug)]
pub(super) enum Change<T> {
    Added(Arc<T>),
    Changed {
        old: Arc<T>,
        new: Arc<T>,
    },
    /// `last` is the last state of the object. It may be newer than what was known.
    Gone {
        known: Arc<T>,
        last: Arc<T>,
    },
}

impl<T> Change<T> {
    fn gone(known: &Arc<T>) -> Self {
        Change::Gone { known: known.clone(), last: known.clone() }
    }

    pub(super) fn old(&self) -> Option<&Arc<T>> {
        match self {
            Change::Added(_) => None,
            Change::Changed { old, .. } | Change::Gone { known: old, .. } => Some(old),
        }
    }

    pub(super) fn current(&self) -> Option<&Arc<T>> {
        match self {
            Change::Added(new) | Change::Changed { new, .. } => Some(new),
            Change::Gone { .. } => None,
        }
    }

    /// The newest state of the object.
    pub(super) fn object(&self) -> &Arc<T> {
        match self {
            Change::Added(object) | Change::Changed { new: object, .. } | Change::Gone { last: object, .. } => object,
        }
    }

    pub(super) fn is_gone(&self) -> bool {
        matches!(self, Change::Gone { .. })
    }
}

/// The last known objects of one kind.
#[derive(Clone, Debug)]
pub(super) struct Table<T> {
    known: HashMap<ObjectKey, Arc<T>>,
    /// The objects of the list that has begun, up to now.
    listed: Option<BTreeSet<ObjectKey>>,
    /// Whether a list was completed.
    is_synced: bool,
}

impl<T> Default for Table<T> {
    fn default() -> Self {
        Table { known: HashMap::new(), listed: None, is_synced: false }
    }
}

impl<T: Metadata<Ty = ObjectMeta>> Table<T> {
    /// The changes that an event means. The objects become known by [`Table::commit`].
    pub(super) fn changes(&mut self, event: WatchEvent<T>) -> Vec<Change<T>> {
        match event {
            WatchEvent::Apply(object) => self.applied(object),
            WatchEvent::Delete(object) => {
                let Some(known) = self.known.get(&object_key(object.metadata())) else { return Vec::new() };
                let is_known = known.metadata().uid == object.metadata().uid;
                let last = if is_known { object } else { known.clone() };
                vec![Change::Gone { known: known.clone(), last }]
            }
            WatchEvent::Init => {
                self.listed = Some(BTreeSet::new());
                Vec::new()
            }
            WatchEvent::InitApply(object) => {
                if let Some(listed) = &mut self.listed {
                    listed.insert(object_key(object.metadata()));
                }
                self.applied(object)
            }
            WatchEvent::InitDone => {
                self.is_synced = true;
                let Some(listed) = self.listed.take() else { return Vec::new() };
                let mut gone: Vec<_> = self.known.iter().filter(|(key, _)| !listed.contains(key)).collect();
                gone.sort_by_key(|(key, _)| *key);
                gone.into_iter().map(|(_, object)| Change::gone(object)).collect()
            }
            WatchEvent::Undecodable { object, is_deleted } => {
                let key = object_key(object.metadata());
                let known = self.known.get(&key);
                let is_gone = |known: &&Arc<T>| is_deleted || known.metadata().uid != object.metadata().uid;
                let gone = known.filter(is_gone).map(Change::gone).into_iter().collect();
                if !is_deleted && let Some(listed) = &mut self.listed {
                    listed.insert(key);
                }
                gone
            }
        }
    }

    /// Whether an object of this UID is known.
    pub(super) fn knows(&self, object: &T) -> bool {
        let known = self.known.get(&object_key(object.metadata()));
        known.is_some_and(|known| known.metadata().uid == object.metadata().uid)
    }

    fn applied(&self, new: Arc<T>) -> Vec<Change<T>> {
        match self.known.get(&object_key(new.metadata())).cloned() {
            None => vec![Change::Added(new)],
            Some(old) if old.metadata().uid == new.metadata().uid => vec![Change::Changed { old, new }],
            Some(old) => vec![Change::gone(&old), Change::Added(new)],
        }
    }

    pub(super) fn commit(&mut self, change: &Change<T>) {
        let key = object_key(change.object().metadata());
        match change.current() {
            Some(new) => self.known.insert(key, new.clone()),
            None => self.known.remove(&key),
        };
    }

    pub(super) fn get(&self, key: &ObjectKey) -> Option<&Arc<T>> {
        self.known.get(key)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Arc<T>> {
        self.known.values()
    }

    pub(super) fn is_synced(&self) -> bool {
        self.is_synced
    }

    /// The events that show the present objects. If a list runs, these are the beginning of that list.
    pub(super) fn list(&self) -> Vec<WatchEvent<T>> {
        let known = |key: &ObjectKey| self.known.get(key).cloned().map(WatchEvent::InitApply);
        let mut events = vec![WatchEvent::Init];
        match &self.listed {
            Some(listed) => events.extend(listed.iter().filter_map(known)),
            None if self.is_synced => {
                events.extend(self.known.values().cloned().map(WatchEvent::InitApply));
                events.push(WatchEvent::InitDone);
            }
            // The first list has not begun.
            None => return Vec::new(),
        }
        events
    }
}

/// Objects by a key that several of them may have.
#[derive(Clone, Debug)]
pub(super) struct Index<K>(HashMap<K, BTreeSet<ObjectKey>>);

impl<K> Default for Index<K> {
    fn default() -> Self {
        Index(HashMap::new())
    }
}

impl<K: Eq + Hash + Ord> Index<K> {
    /// Replaces the keys of an object.
    pub(super) fn update(
        &mut self,
        object: &ObjectKey,
        old: impl IntoIterator<Item = K>,
        new: impl IntoIterator<Item = K>,
    ) {
        let mut change: BTreeMap<K, bool> = old.into_iter().map(|key| (key, false)).collect();
        change.extend(new.into_iter().map(|key| (key, true)));
        for (key, is_new) in change {
            if is_new {
                self.0.entry(key).or_default().insert(object.clone());
            } else if let Some(objects) = self.0.get_mut(&key) {
                objects.remove(object);
                if objects.is_empty() {
                    self.0.remove(&key);
                }
            }
        }
    }

    pub(super) fn get(&self, key: &K) -> impl Iterator<Item = &ObjectKey> {
        self.0.get(key).into_iter().flatten()
    }
}
