//! The full names whose mirror pods have to be checked.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use foldhash::fast::FixedState;
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::ids::{FullName, PodUid};
use crate::pod::PodObject;
use crate::time::Time;

/// How long a mirror pod that was created counts as existing although the API source has not delivered it. The API
/// server may have deleted the pod before the source received it.
const UNDELIVERED_LIMIT: Duration = Duration::from_secs(10);

/// Collects full names until the writer takes them, and remembers the writes that the API source has not delivered yet.
#[derive(Debug)]
pub(crate) struct MirrorChecks {
    /// Whether a writer takes the names.
    is_on: bool,
    state: Mutex<State>,
    added: Notify,
}

#[derive(Debug, Default)]
struct State {
    names: HashSet<FullName, FixedState>,
    undelivered: HashMap<FullName, UndeliveredWrite, FixedState>,
}

/// The last write of a mirror pod.
#[derive(Clone, Debug)]
enum UndeliveredWrite {
    Created { pod: Arc<PodObject>, at: Time },
    Deleted(PodUid),
}

impl MirrorChecks {
    /// No names. If `is_on` is false, names are not collected, because the node has no API server.
    pub(crate) fn new(is_on: bool) -> Self {
        MirrorChecks { is_on, state: Mutex::default(), added: Notify::new() }
    }

    /// Adds a full name.
    pub(crate) fn add(&self, name: &FullName) {
        if self.is_on {
            self.state.lock().names.insert(name.clone());
            self.added.notify_one();
        }
    }

    /// Adds the full name of a pod that a source added, changed or removed, if it is a static pod or a mirror pod.
    pub(crate) fn changed(&self, pod: &PodObject) {
        if !self.is_on || !(pod.is_static() || pod.is_mirror()) {
            return;
        }
        let mut state = self.state.lock();
        let is_delivered = |undelivered: &UndeliveredWrite| matches!(undelivered, UndeliveredWrite::Created { pod: created, .. } if created.uid() == pod.uid());
        if state.undelivered.get(pod.full_name()).is_some_and(is_delivered) {
            state.undelivered.remove(pod.full_name());
        }
        drop(state);
        self.add(pod.full_name());
    }

    /// Adds the full names of the mirror pods that were created and that the API source has not delivered. Somebody may have deleted
    /// them before the answer to their creation arrived.
    pub(crate) fn add_undelivered(&self) {
        let mut state = self.state.lock();
        let is_created = |undelivered: &UndeliveredWrite| matches!(undelivered, UndeliveredWrite::Created { .. });
        let names: Vec<FullName> = state
            .undelivered
            .iter()
            .filter(|(_, undelivered)| is_created(undelivered))
            .map(|(name, _)| name.clone())
            .collect();
        if !names.is_empty() {
            state.names.extend(names);
            self.added.notify_one();
        }
    }

    /// Takes all names.
    pub(super) fn take(&self) -> impl Iterator<Item = FullName> + use<> {
        std::mem::take(&mut self.state.lock().names).into_iter()
    }

    /// Waits until a name was added since the last call. For one caller. Cancel safe.
    pub(super) async fn added(&self) {
        self.added.notified().await;
    }

    /// Remembers that the API server created a mirror pod.
    pub(super) fn created(&self, pod: Arc<PodObject>, at: Time) {
        let name = pod.full_name().clone();
        self.state.lock().undelivered.insert(name, UndeliveredWrite::Created { pod, at });
    }

    /// Remembers that the API server has no mirror pod with this UID any more.
    pub(super) fn deleted(&self, pod: &PodObject) {
        self.state.lock().undelivered.insert(pod.full_name().clone(), UndeliveredWrite::Deleted(pod.uid().clone()));
    }

    /// The newest known version of a mirror pod, from the one of the API source and from the writes that the source has not
    /// delivered yet.
    pub(super) fn newest(&self, name: &FullName, source: Option<Arc<PodObject>>, now: Time) -> Option<Arc<PodObject>> {
        let mut state = self.state.lock();
        match state.undelivered.get(name) {
            None => source,
            Some(UndeliveredWrite::Created { pod, at }) if now.since(*at) < UNDELIVERED_LIMIT => Some(pod.clone()),
            Some(UndeliveredWrite::Deleted(uid)) if source.as_ref().is_some_and(|pod| pod.uid() == uid) => None,
            Some(UndeliveredWrite::Created { .. } | UndeliveredWrite::Deleted(_)) => {
                state.undelivered.remove(name);
                source
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::pod;

    fn mirror(uid: &str) -> Arc<PodObject> {
        pod("web").uid(uid).mirror().build()
    }

    fn uid(pod: Option<Arc<PodObject>>) -> Option<String> {
        pod.map(|pod| pod.uid().to_string())
    }

    #[test]
    fn writes_count_until_the_source_has_delivered_them() {
        let checks = MirrorChecks::new(true);
        let (old, new) = (mirror("old"), mirror("new"));
        let newest = |source: Option<&Arc<PodObject>>, second| {
            uid(checks.newest(old.full_name(), source.cloned(), Time::from_secs(second)))
        };
        checks.deleted(&old);
        assert_eq!(newest(Some(&old), 1), None, "the source does not know that it is gone");
        checks.created(new.clone(), Time::from_secs(1));
        assert_eq!(newest(Some(&old), 2).as_deref(), Some("new"));
        assert_eq!(newest(None, 2).as_deref(), Some("new"));
        checks.changed(&old);
        assert_eq!(newest(None, 2).as_deref(), Some("new"), "the source delivers the deletion first");
        checks.changed(&new);
        assert_eq!(newest(Some(&new), 2).as_deref(), Some("new"));
        checks.changed(&new);
        assert_eq!(newest(None, 2), None, "somebody deleted it");
    }

    #[test]
    fn a_mirror_pod_that_the_source_never_delivers_is_forgotten() {
        let checks = MirrorChecks::new(true);
        let new = mirror("new");
        checks.created(new.clone(), Time::from_secs(1));
        assert_eq!(uid(checks.newest(new.full_name(), None, Time::from_secs(10))).as_deref(), Some("new"));
        assert_eq!(uid(checks.newest(new.full_name(), None, Time::from_secs(11))), None);
    }
}
