//! What is being worked on for each pod, for those who wait for it.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use podwright_actors::ids::PodUid;

/// The places, by pod. Clones share them.
#[derive(Clone, Debug, Default)]
pub(super) struct Progress(Arc<Mutex<HashMap<PodUid, PathBuf>>>);

impl Progress {
    /// Work for a pod begins at a place. There is never more than one for each.
    pub(super) fn begin(&self, uid: &PodUid, place: &Path) -> Step {
        let step = Step { all: self.clone(), uid: uid.clone() };
        step.at(place);
        step
    }

    /// Where work for a pod has come to.
    pub(super) fn of(&self, uid: &PodUid) -> Option<PathBuf> {
        self.0.lock().get(uid).cloned()
    }
}

/// Work for one pod, until this is dropped.
pub(super) struct Step {
    all: Progress,
    uid: PodUid,
}

impl Step {
    /// It has come to another place.
    pub(super) fn at(&self, place: &Path) {
        self.all.0.lock().insert(self.uid.clone(), place.to_owned());
    }
}

impl Drop for Step {
    fn drop(&mut self) {
        self.all.0.lock().remove(&self.uid);
    }
}
