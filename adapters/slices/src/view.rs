//! The slices in the API server, as far as the driver knows.
//!
//! A watch lags behind writes. So the driver's own writes override what the watch has reported, until the watch reports them or
//! they are too old.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::resource::v1::ResourceSlice;
use kube::runtime::watcher::Event;
use podwright_model::resource_version::ResourceVersion;
use tokio::time::Instant;

/// The slices of one driver, by name.
#[derive(Default)]
pub(super) struct View {
    /// The only pool in the view, if the driver publishes a single pool.
    only: Option<String>,
    watched: BTreeMap<String, Arc<ResourceSlice>>,
    /// The objects of a list that is not complete.
    listing: BTreeMap<String, Arc<ResourceSlice>>,
    own: BTreeMap<String, OwnWrite>,
    is_listed: bool,
}

struct OwnWrite {
    slice: Arc<ResourceSlice>,
    is_deletion: bool,
    until: Instant,
}

impl View {
    pub(super) fn new(only: Option<String>) -> Self {
        View { only, ..View::default() }
    }

    /// Whether the watch has reported all slices once.
    pub(super) fn is_listed(&self) -> bool {
        self.is_listed
    }

    /// Applies an event of the watch. Returns the pools whose slices have changed.
    pub(super) fn apply(&mut self, event: Event<ResourceSlice>) -> Vec<String> {
        let (slice, is_deletion) = match event {
            Event::Init => {
                self.listing.clear();
                return Vec::new();
            }
            Event::InitApply(slice) => {
                if let Some((name, slice)) = self.accept(slice) {
                    self.listing.insert(name, slice);
                }
                return Vec::new();
            }
            Event::InitDone => return self.replace(),
            Event::Apply(slice) => (slice, false),
            Event::Delete(slice) => (slice, true),
        };
        let Some((name, slice)) = self.accept(slice) else { return Vec::new() };
        self.confirm(&name, &slice);
        let mut pools = vec![slice.spec.pool.name.clone()];
        let old = if is_deletion { self.watched.remove(&name) } else { self.watched.insert(name, slice) };
        pools.extend(old.map(|old| old.spec.pool.name.clone()).filter(|old| *old != pools[0]));
        pools
    }

    fn accept(&self, slice: ResourceSlice) -> Option<(String, Arc<ResourceSlice>)> {
        let is_seen = self.only.as_ref().is_none_or(|only| *only == slice.spec.pool.name);
        let name = slice.metadata.name.clone().filter(|_| is_seen)?;
        Some((name, Arc::new(slice)))
    }

    /// Replaces all slices by those of a complete list.
    fn replace(&mut self) -> Vec<String> {
        self.is_listed = true;
        let new = std::mem::take(&mut self.listing);
        for (name, slice) in &new {
            self.confirm(name, slice);
        }
        let old = std::mem::replace(&mut self.watched, new);
        let version = |slice: &Arc<ResourceSlice>| slice.metadata.resource_version.clone();
        let changed = |one: &BTreeMap<String, Arc<ResourceSlice>>, other: &BTreeMap<String, Arc<ResourceSlice>>| {
            let changed = one.iter().filter(|(name, slice)| other.get(*name).map(version) != Some(version(slice)));
            changed.map(|(_, slice)| slice.spec.pool.name.clone()).collect::<Vec<_>>()
        };
        [changed(&old, &self.watched), changed(&self.watched, &old)].concat()
    }

    /// Forgets an own write that the watch has reported or passed.
    fn confirm(&mut self, name: &str, reported: &ResourceSlice) {
        let is_confirmed = |own: &OwnWrite| match own.is_deletion {
            // The version that was deleted may still be reported.
            true => is_newer(reported, &own.slice),
            false => !is_newer(&own.slice, reported),
        };
        if self.own.get(name).is_some_and(is_confirmed) {
            self.own.remove(name);
        }
    }

    /// Remembers the answer to a create or an update.
    pub(super) fn written(&mut self, slice: ResourceSlice, until: Instant) {
        self.remember(Arc::new(slice), false, until);
    }

    /// Remembers a deletion.
    pub(super) fn deleted(&mut self, slice: Arc<ResourceSlice>, until: Instant) {
        self.remember(slice, true, until);
    }

    fn remember(&mut self, slice: Arc<ResourceSlice>, is_deletion: bool, until: Instant) {
        if let Some(name) = slice.metadata.name.clone() {
            self.own.insert(name, OwnWrite { slice, is_deletion, until });
        }
    }

    /// When the first own write to a slice of a pool stops overriding what the watch reports. `None` if the watch has reported all.
    pub(super) fn own_until(&self, pool: &str) -> Option<Instant> {
        self.own.values().filter(|own| own.slice.spec.pool.name == pool).map(|own| own.until).min()
    }

    /// Forgets the own writes that no longer override what the watch reports.
    pub(super) fn expire(&mut self, now: Instant) {
        self.own.retain(|_, own| own.until > now);
    }

    /// The slices of a pool, in the order of their names.
    pub(super) fn pool(&self, pool: &str) -> Vec<Arc<ResourceSlice>> {
        let mut slices = self.watched.clone();
        for (name, own) in &self.own {
            let reported = self.watched.get(name);
            if reported.is_some_and(|reported| is_newer(reported, &own.slice)) {
                continue;
            }
            if own.is_deletion {
                slices.remove(name);
            } else {
                slices.insert(name.clone(), own.slice.clone());
            }
        }
        slices.into_values().filter(|slice| slice.spec.pool.name == pool).collect()
    }
}

/// Whether a version of an object is newer than another one. An unknown version is neither newer nor older.
fn is_newer(one: &ResourceSlice, other: &ResourceSlice) -> bool {
    let version = |slice: &ResourceSlice| ResourceVersion::of(&slice.metadata);
    version(one).zip(version(other)).is_some_and(|(one, other)| one > other)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::json;

    use super::*;

    fn slice(name: &str, pool: &str, version: u64) -> ResourceSlice {
        serde_json::from_value(json!({"metadata": {"name": name, "resourceVersion": version.to_string()},
            "spec": {"driver": "d", "pool": {"name": pool, "generation": 1, "resourceSliceCount": 1}}}))
        .unwrap()
    }

    fn versions(view: &mut View, pool: &str, now: Instant) -> Vec<String> {
        view.expire(now);
        let slices = view.pool(pool);
        slices.iter().map(|slice| slice.metadata.resource_version.clone().unwrap()).collect()
    }

    #[test]
    fn own_writes_are_seen_until_the_watch_reports_them() {
        let (mut view, now) = (View::default(), Instant::now());
        let (soon, late) = (now + Duration::from_secs(60), now + Duration::from_secs(61));
        view.apply(Event::Init);
        view.apply(Event::InitDone);
        view.written(slice("a", "p", 5), soon);
        assert_eq!(versions(&mut view, "p", now), ["5"]);
        // The watch reports an older version.
        view.apply(Event::Apply(slice("a", "p", 4)));
        assert_eq!(versions(&mut view, "p", now), ["5"]);
        view.apply(Event::Apply(slice("a", "p", 5)));
        view.apply(Event::Delete(slice("a", "p", 6)));
        assert!(versions(&mut view, "p", now).is_empty(), "somebody else deleted it");

        view.written(slice("b", "p", 7), soon);
        assert_eq!(versions(&mut view, "p", now), ["7"]);
        assert_eq!(view.own_until("p"), Some(soon));
        assert!(versions(&mut view, "p", late).is_empty(), "the watch never reported it");
        assert_eq!(view.own_until("p"), None);
    }

    #[test]
    fn own_deletion_hides_the_slice() {
        let (mut view, now) = (View::default(), Instant::now());
        view.apply(Event::Apply(slice("a", "p", 5)));
        view.deleted(Arc::new(slice("a", "p", 5)), now + Duration::from_secs(60));
        view.apply(Event::Apply(slice("a", "p", 5)));
        assert!(versions(&mut view, "p", now).is_empty());
        view.apply(Event::Apply(slice("a", "p", 6)));
        assert_eq!(versions(&mut view, "p", now), ["6"], "the deletion did not happen to this version");
    }

    #[test]
    fn list_reports_the_pools_that_differ() {
        let mut view = View::default();
        for event in [Event::Init, Event::InitApply(slice("a", "p", 1)), Event::InitApply(slice("b", "q", 2))] {
            assert!(view.apply(event).is_empty());
        }
        assert!(!view.is_listed());
        assert_eq!(view.apply(Event::InitDone), ["p", "q"]);
        for event in [Event::Init, Event::InitApply(slice("b", "q", 2)), Event::InitApply(slice("c", "r", 3))] {
            view.apply(event);
        }
        assert_eq!(view.apply(Event::InitDone), ["p", "r"]);
    }

    /// DRA-S12
    #[test]
    fn other_pools_are_not_seen_in_the_mode_for_a_single_pool() {
        let mut view = View::new(Some("p".to_owned()));
        assert!(view.apply(Event::Apply(slice("b", "q", 1))).is_empty());
        assert_eq!(view.apply(Event::Apply(slice("a", "p", 2))), ["p"]);
        assert!(view.pool("q").is_empty());
    }
}
