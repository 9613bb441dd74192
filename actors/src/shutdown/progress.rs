//! The schedule of a shutdown, for `explain`.

use std::collections::HashMap;

use parking_lot::Mutex;

use super::plan::ShutdownGroup;
use super::step::SLACK;
use crate::ids::PodUid;
use crate::time::Time;

/// The schedule of a shutdown that is under way.
#[derive(Debug, Default)]
pub struct ShutdownProgress(Mutex<HashMap<PodUid, StopTurn>>);

/// When a shutdown stops one pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StopTurn {
    /// The start of the shutdown.
    pub since: Time,
    /// The latest time at which the pod is stopped.
    pub begins: Time,
    /// The latest end of the time of its group.
    pub ends: Time,
    /// The number of pods in the groups before it.
    pub before: usize,
}

impl ShutdownProgress {
    /// The turn of a pod; `None` if no shutdown stops it.
    pub fn turn(&self, uid: &PodUid) -> Option<StopTurn> {
        self.0.lock().get(uid).copied()
    }

    /// Replaces the schedule of the groups that are left. The first of them stops now. Pods of earlier groups keep their turn.
    pub(super) fn schedule(&self, since: Time, now: Time, groups: Vec<&ShutdownGroup>) {
        let mut turns = self.0.lock();
        let (mut begins, mut before) = (now, 0);
        for group in groups {
            let ends = begins + group.time;
            let turn = StopTurn { since, begins, ends, before };
            turns.extend(group.pods.iter().map(|pod| (pod.uid().clone(), turn)));
            begins = ends + SLACK;
            before += group.pods.len();
        }
    }

    /// Drops the turns of pods that have not had their turn, because the shutdown was cancelled.
    pub(super) fn cancel(&self, now: Time) {
        self.0.lock().retain(|_, turn| turn.begins <= now);
    }

    pub(super) fn end(&self) {
        self.0.lock().clear();
    }
}
