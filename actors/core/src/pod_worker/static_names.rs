//! The queue of the static pods of one full name. At most one of them is started at a time; the others wait in order of
//! arrival. Pure.
//!
//! A pod joins the queue when its record is made. It leaves when its stop is requested before its start, when it finishes, or
//! when its record is forgotten. So every pod in the queue may start once it is first.

use std::collections::VecDeque;

use crate::ids::PodUid;

/// The static pods of one full name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct StaticNameQueue {
    started: Option<PodUid>,
    waiting: VecDeque<PodUid>,
}

impl StaticNameQueue {
    /// Adds a pod at the end.
    pub fn join(&mut self, uid: &PodUid) {
        self.waiting.push_back(uid.clone());
    }

    /// Gives the name to a pod if the name is free and the pod is first. Returns whether the pod has the name. It has the name
    /// until it leaves.
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

    /// Whether a pod has the name, or may claim it.
    pub fn is_turn(&self, uid: &PodUid) -> bool {
        self.started.as_ref().or(self.waiting.front()) == Some(uid)
    }

    /// Removes a pod. Returns the pod that may claim the name now, which has to be woken.
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

    /// The pod that has the name.
    pub fn started(&self) -> Option<&PodUid> {
        self.started.as_ref()
    }

    /// The pods that wait for the name, in order.
    pub fn waiting(&self) -> impl Iterator<Item = &PodUid> {
        self.waiting.iter()
    }

    /// Whether no pod has the name or waits for it.
    pub fn is_empty(&self) -> bool {
        self.started.is_none() && self.waiting.is_empty()
    }
}
