//! The ring of notes and plans.

use std::collections::HashMap;
use std::sync::Arc;

use crate::ids::PodUid;
use crate::pod::PodObject;
use crate::time::Time;

use super::FrameKind;
use super::note::Note;
use super::planned::{EncodedPlan, LastPlan, PlanResult, WrittenPlan};
use super::ring::{Ring, Saved};
use crate::codec::{Uid, put};

/// The ring, and the last plan of each pod.
#[derive(Debug)]
pub(super) struct Notes {
    ring: Ring,
    plans: HashMap<PodUid, LastPlan>,
}

impl Notes {
    pub(super) fn new(size: usize) -> Self {
        Notes { ring: Ring::new(size), plans: HashMap::new() }
    }

    pub(super) fn put(&mut self, at: Time, note: &Note) {
        self.ring.rotate();
        self.ring.frame(FrameKind::Note, at, |bytes| put(bytes, note));
    }

    /// Keeps a plan, unless it is the same as the last one of the pod. If the frame needs the object and `json` is not given,
    /// nothing is kept and [`PlanResult::NeedsObject`] is returned: encoding the object under the lock would take too long.
    pub(super) fn put_plan(
        &mut self,
        at: Time,
        pod: &Arc<PodObject>,
        plan: &EncodedPlan,
        json: Option<&str>,
    ) -> PlanResult {
        let last = self.plans.get(pod.uid()).filter(|last| std::ptr::eq(last.object.as_ptr(), Arc::as_ptr(pod)));
        let written = match last {
            Some(LastPlan { written: None, .. }) => return PlanResult::Done,
            Some(LastPlan { written, .. }) => *written,
            None => None,
        };
        let hash = plan.hash;
        if written.is_some_and(|written| written.hash == hash) {
            return PlanResult::Done;
        }
        self.ring.rotate();
        let segment = self.ring.segment();
        let has_object = written.is_some_and(|written| written.segment == segment);
        let json = match (has_object, json) {
            (true, _) => None,
            (false, Some(json)) => Some(json),
            (false, None) => return PlanResult::NeedsObject,
        };
        let fits = json.is_none_or(|json| json.len() <= self.ring.largest_object());
        if fits {
            self.ring.frame(FrameKind::Plan, at, |bytes| {
                put(bytes, &(Uid::from(pod.uid()), json));
                bytes.extend_from_slice(&plan.bytes);
            });
        }
        let written = fits.then_some(WrittenPlan { segment, hash });
        self.plans.insert(pod.uid().clone(), LastPlan { object: Arc::downgrade(pod), written });
        PlanResult::Done
    }

    pub(super) fn retain(&mut self, keep: impl Fn(&PodUid) -> bool) {
        self.plans.retain(|uid, _| keep(uid));
    }

    pub(super) fn saved(&self) -> Saved {
        self.ring.saved()
    }
}
