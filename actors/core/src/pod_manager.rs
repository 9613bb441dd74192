//! The desired pods of all sources, by UID and by full name, with mirror pods kept separately. Pure.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use foldhash::fast::FixedState;

use crate::ids::{FullName, PodUid};
use crate::pod::PodObject;

/// The desired pods. A mirror pod is not a pod of its own here: it is the API server's copy of the static pod with the same
/// full name.
#[derive(Debug, Default)]
pub struct PodManager {
    pods: Map<PodUid, Arc<PodObject>>,
    by_name: Map<FullName, PodUid>,
    /// The static pods by full name. A pod of the API server may have the same full name.
    statics_by_name: Map<FullName, PodUid>,
    mirrors: Map<FullName, Arc<PodObject>>,
    /// Kept up to date with each change, so that housekeeping does not search all pods every two seconds.
    index: PodIndex,
}

/// The pods with rare properties, and the number of static pods and of ephemeral containers.
#[derive(Debug, Default)]
struct PodIndex {
    statics: usize,
    ephemeral_containers: usize,
    with_deadline: HashSet<PodUid, FixedState>,
    ending: HashSet<PodUid, FixedState>,
}

impl PodIndex {
    fn add(&mut self, pod: &PodObject) {
        self.statics += usize::from(pod.is_static());
        self.ephemeral_containers += pod.ephemeral_containers().len();
        if pod.spec().active_deadline_seconds.is_some() {
            self.with_deadline.insert(pod.uid().clone());
        }
        if is_ending(pod) {
            self.ending.insert(pod.uid().clone());
        }
    }

    fn remove(&mut self, pod: &PodObject) {
        self.statics -= usize::from(pod.is_static());
        self.ephemeral_containers -= pod.ephemeral_containers().len();
        self.with_deadline.remove(pod.uid());
        self.ending.remove(pod.uid());
    }
}

/// Whether a pod has ended and only its deletion is left.
fn is_ending(pod: &PodObject) -> bool {
    pod.is_deleting() && pod.phase().is_terminal()
}

/// A map whose order depends only on its insertions and removals, so that a test with a fixed seed repeats.
type Map<K, V> = HashMap<K, V, FixedState>;

impl PodManager {
    /// Adds a pod or a mirror, or replaces the one with its UID or, for mirrors, its full name.
    pub fn put(&mut self, pod: Arc<PodObject>) {
        let name = pod.full_name().clone();
        if pod.is_mirror() {
            self.mirrors.insert(name, pod);
            return;
        }
        let uid = pod.uid().clone();
        let old = self.pods.insert(uid.clone(), pod.clone());
        if let Some(old) = old {
            self.index.remove(&old);
            if *old.full_name() != name {
                self.drop_name(old.full_name(), &uid);
            }
        }
        self.index.add(&pod);
        let names = if pod.is_static() { &mut self.statics_by_name } else { &mut self.by_name };
        names.insert(name, uid);
    }

    /// Removes a pod or a mirror. If another pod has taken over the full name, the full name stays with that pod.
    pub fn remove(&mut self, pod: &PodObject) {
        if pod.is_mirror() {
            if self.mirrors.get(pod.full_name()).is_some_and(|mirror| mirror.uid() == pod.uid()) {
                self.mirrors.remove(pod.full_name());
            }
            return;
        }
        if let Some(old) = self.pods.remove(pod.uid()) {
            self.index.remove(&old);
            self.drop_name(old.full_name(), pod.uid());
        }
    }

    fn drop_name(&mut self, name: &FullName, uid: &PodUid) {
        for names in [&mut self.by_name, &mut self.statics_by_name] {
            if names.get(name) == Some(uid) {
                names.remove(name);
            }
        }
    }

    /// A pod by UID; `None` for the UID of a mirror pod, which has to be [translated](PodManager::translate) first.
    pub fn pod(&self, uid: &PodUid) -> Option<&Arc<PodObject>> {
        self.pods.get(uid)
    }

    /// A pod by full name. If a pod of the API server and a static pod have the same full name, the pod of the API server.
    pub fn pod_named(&self, name: &FullName) -> Option<&Arc<PodObject>> {
        self.by_name.get(name).and_then(|uid| self.pods.get(uid)).or_else(|| self.static_named(name))
    }

    /// A static pod by full name.
    pub fn static_named(&self, name: &FullName) -> Option<&Arc<PodObject>> {
        self.pods.get(self.statics_by_name.get(name)?)
    }

    /// The mirror pod of this version of a static pod. A mirror pod of another version is not its mirror pod.
    pub fn mirror_of(&self, pod: &PodObject) -> Option<&Arc<PodObject>> {
        let mirror = self.mirrors.get(pod.full_name()).filter(|_| pod.is_static());
        mirror.filter(|mirror| mirror.is_mirror_of(pod))
    }

    /// The mirror pod of a full name.
    pub fn mirror_named(&self, name: &FullName) -> Option<&Arc<PodObject>> {
        self.mirrors.get(name)
    }

    /// The static pod of a mirror pod.
    pub fn pod_of(&self, mirror: &PodObject) -> Option<&Arc<PodObject>> {
        self.static_named(mirror.full_name())
    }

    /// The UID under which the engine knows a pod. The UID of a mirror pod gives the UID of its static pod.
    pub fn translate(&self, uid: &PodUid) -> Option<&PodUid> {
        if let Some((known, _)) = self.pods.get_key_value(uid) {
            return Some(known);
        }
        let mirror = self.mirrors.values().find(|mirror| mirror.uid() == uid)?;
        self.pod_of(mirror).map(|pod| pod.uid())
    }

    /// All pods except mirror pods, in no order.
    pub fn pods(&self) -> impl Iterator<Item = &Arc<PodObject>> {
        self.pods.values()
    }

    /// All mirror pods, in no order.
    pub fn mirrors(&self) -> impl Iterator<Item = &Arc<PodObject>> {
        self.mirrors.values()
    }

    /// The pods that have an active deadline.
    pub fn with_deadline(&self) -> impl Iterator<Item = &Arc<PodObject>> {
        self.index.with_deadline.iter().filter_map(|uid| self.pods.get(uid))
    }

    /// The pods that are in a terminal phase and marked for deletion.
    pub fn ending(&self) -> impl Iterator<Item = &Arc<PodObject>> {
        self.index.ending.iter().filter_map(|uid| self.pods.get(uid))
    }

    /// The number of static pods.
    pub fn statics(&self) -> usize {
        self.index.statics
    }

    /// The number of ephemeral containers in all pods.
    pub fn ephemeral_containers(&self) -> usize {
        self.index.ephemeral_containers
    }

    /// The number of pods, without mirror pods.
    pub fn len(&self) -> usize {
        self.pods.len()
    }

    /// Whether there are no pods. Mirror pods do not count.
    pub fn is_empty(&self) -> bool {
        self.pods.is_empty()
    }

    /// The full names of the mirror pods without a static pod, of the mirror pods of another version of their static pod, and of the
    /// static pods without a mirror pod.
    pub fn unmatched_mirrors(&self) -> impl Iterator<Item = &FullName> {
        let left =
            self.mirrors.values().filter(|mirror| self.pod_of(mirror).is_none_or(|pod| !mirror.is_mirror_of(pod)));
        let missing = self.statics_by_name.keys().filter(|name| !self.mirrors.contains_key(*name));
        left.map(|mirror| mirror.full_name()).chain(missing)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::MIRROR_ANNOTATION;
    use crate::testing::pod;

    fn mirror_of(hash: &str) -> Arc<PodObject> {
        pod("web").uid("m").mirror().annotation(MIRROR_ANNOTATION, hash).build()
    }

    #[test]
    fn a_full_name_stays_with_the_pod_that_took_it_over() {
        let mut manager = PodManager::default();
        let (old, new) = (pod("web").uid("1").static_pod().build(), pod("web").uid("2").static_pod().build());
        manager.put(old.clone());
        manager.put(new.clone());
        manager.remove(&old);
        assert_eq!(manager.pod_named(new.full_name()).map(|p| p.uid()), Some(new.uid()));
        manager.remove(&new);
        assert!(manager.pod_named(new.full_name()).is_none());
    }

    #[test]
    fn static_pod_keeps_its_full_name_beside_a_pod_of_the_api_server() {
        let mut manager = PodManager::default();
        let (fixed, other) = (pod("web").uid("1").static_pod().build(), pod("web").uid("2").build());
        let mirror = mirror_of("1");
        manager.put(fixed.clone());
        manager.put(other.clone());
        assert_eq!(manager.pod_named(fixed.full_name()).map(|pod| pod.uid()), Some(other.uid()));
        manager.put(mirror.clone());
        for is_removed in [false, true] {
            assert_eq!(manager.pod_of(&mirror).map(|pod| pod.uid()), Some(fixed.uid()), "removed: {is_removed}");
            assert_eq!(manager.unmatched_mirrors().count(), 0, "removed: {is_removed}");
            manager.remove(&other);
        }
        assert_eq!(manager.pod_named(fixed.full_name()).map(|pod| pod.uid()), Some(fixed.uid()));
    }

    #[test]
    fn static_deadline_and_ending_pods_follow_each_change() {
        let mut manager = PodManager::default();
        let uids = |pods: Vec<&Arc<PodObject>>| pods.iter().map(|pod| pod.uid().to_string()).collect::<Vec<_>>();
        manager.put(pod("web").uid("1").static_pod().build());
        manager.put(pod("job").uid("2").spec(|spec| spec.active_deadline_seconds = Some(5)).build());
        assert_eq!((manager.statics(), uids(manager.with_deadline().collect())), (1, vec!["2".to_owned()]));
        assert_eq!(manager.ending().count(), 0);
        let ended = pod("job").uid("2").phase("Failed").deleting(30).build();
        manager.put(ended.clone());
        assert_eq!((manager.with_deadline().count(), uids(manager.ending().collect())), (0, vec!["2".to_owned()]));
        manager.remove(&ended);
        assert_eq!((manager.ending().count(), manager.statics()), (0, 1));
    }

    #[test]
    fn a_mirror_pod_is_translated_to_its_static_pod_and_not_counted() {
        let mut manager = PodManager::default();
        let web = pod("web").uid("1").static_pod().build();
        let mirror = mirror_of("1");
        manager.put(mirror.clone());
        assert_eq!(manager.unmatched_mirrors().count(), 1);
        manager.put(web.clone());
        assert_eq!(manager.translate(mirror.uid()), Some(web.uid()));
        assert_eq!(manager.mirror_of(&web).map(|m| m.uid()), Some(mirror.uid()));
        assert_eq!((manager.len(), manager.unmatched_mirrors().count()), (1, 0));
        manager.put(mirror_of("of another version"));
        assert_eq!(manager.unmatched_mirrors().collect::<Vec<_>>(), [web.full_name()]);
        manager.remove(&mirror);
        assert_eq!(manager.unmatched_mirrors().collect::<Vec<_>>(), [web.full_name()]);
    }
}
