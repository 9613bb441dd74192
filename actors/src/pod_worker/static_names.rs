//! Which static pod of a full name may start: at most one runs at a time, the others wait in order of arrival.
//!
//! A pod joins when its record is made and leaves when its stop is requested before its start, when it finishes, or when
//! its record goes. So whoever waits here may start once it is first: nothing stale is left in the queue.

use std::collections::VecDeque;

use crate::ids::PodUid;

/// The pods of one full name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct StaticNameQueue {
    started: Option<PodUid>,
    waiting: VecDeque<PodUid>,
}

impl StaticNameQueue {
    /// Puts a pod at the end.
    pub fn join(&mut self, uid: &PodUid) {
        self.waiting.push_back(uid.clone());
    }

    /// Asks whether a pod may start; if so, the name is its own until it leaves.
    pub fn claim(&mut self, uid: &PodUid) -> bool {
        match &self.started {
            Some(started) => started == uid,
            None if self.waiting.front() == Some(uid) => {
                self.started = self.waiting.pop_front();
                true
            }
            None => false,
        }
    }

    /// Whether a pod may start, or did.
    pub fn is_turn(&self, uid: &PodUid) -> bool {
        self.started.as_ref().or(self.waiting.front()) == Some(uid)
    }

    /// Takes a pod out; answers with who should be woken, if the name is free for it now.
    #[must_use]
    pub fn leave(&mut self, uid: &PodUid) -> Option<PodUid> {
        if self.started.as_ref() == Some(uid) {
            self.started = None;
        }
        self.waiting.retain(|waiting| waiting != uid);
        match self.started {
            Some(_) => None,
            None => self.waiting.front().cloned(),
        }
    }

    /// Who has the name.
    pub fn started(&self) -> Option<&PodUid> {
        self.started.as_ref()
    }

    /// Who waits for it, first in line first.
    pub fn waiting(&self) -> impl Iterator<Item = &PodUid> {
        self.waiting.iter()
    }

    /// Whether nobody has it or wants it.
    pub fn is_empty(&self) -> bool {
        self.started.is_none() && self.waiting.is_empty()
    }
}
