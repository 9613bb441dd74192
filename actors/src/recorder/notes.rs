//! The ring of what is told beside the pods' events.

use std::collections::HashMap;
use std::sync::Arc;

use crate::ids::PodUid;
use crate::pod::PodObject;
use crate::time::Time;

use super::note::{Note, PLAN};
use super::planned::{Body, Kept, Missing, Planned};
use super::ring::{Ring, Saved};
use crate::codec::Put;

/// The ring, and which plans it has.
#[derive(Debug)]
pub(super) struct Notes {
    ring: Ring,
    plans: HashMap<PodUid, Planned>,
}

impl Notes {
    pub(super) fn new(size: usize) -> Self {
        Notes { ring: Ring::new(size), plans: HashMap::new() }
    }

    pub(super) fn put(&mut self, at: Time, note: &Note) {
        self.ring.turn();
        self.ring.frame(note.kind(), at, |bytes| note.put(bytes));
    }

    /// Keeps a plan, unless it is the one that was kept last. Where the object has to be written too and is not given, nothing
    /// is kept, and it is asked for: to make it takes too long under a lock.
    pub(super) fn planned(&mut self, at: Time, pod: &Arc<PodObject>, body: &Body, json: Option<&str>) -> Missing {
        let last = self.plans.get(pod.uid());
        let kept = match last.filter(|last| std::ptr::eq(last.object.as_ptr(), Arc::as_ptr(pod))) {
            Some(Planned { kept: None, .. }) => return Missing::Nothing,
            Some(Planned { kept, .. }) => *kept,
            None => None,
        };
        let hash = body.hash;
        if kept.is_some_and(|kept| kept.hash == hash) {
            return Missing::Nothing;
        }
        self.ring.turn();
        let segment = self.ring.segment();
        let known = kept.is_some_and(|kept| kept.segment == segment);
        let json = match (known, json) {
            (true, _) => "",
            (false, Some(json)) => json,
            (false, None) => return Missing::Object,
        };
        let fits = json.len() <= self.ring.most();
        if fits {
            self.ring.frame(PLAN, at, |bytes| {
                bytes.uid(pod.uid());
                bytes.long_text(json);
                bytes.raw(&body.bytes);
            });
        }
        let kept = fits.then_some(Kept { segment, hash });
        self.plans.insert(pod.uid().clone(), Planned { object: Arc::downgrade(pod), kept });
        Missing::Nothing
    }

    pub(super) fn retain(&mut self, keep: impl Fn(&PodUid) -> bool) {
        self.plans.retain(|uid, _| keep(uid));
    }

    pub(super) fn saved(&self) -> Saved {
        self.ring.saved()
    }
}
