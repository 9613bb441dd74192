//! Ends: what a hook says last of a pod. It is noted, written down, and then told (W13).

use super::Lives;
use super::frozen::{Form, Frozen};
use super::scenarios::Also;
use super::world::{Action, Call, Entry, Pod, Real, Uid};
use crate::pod_worker::lifecycle::Hook;

impl Lives {
    /// Whether the hook under way has yet to say that the pod is over for good. It says so of one that is wanted, and
    /// that is not said to be over already; of a static pod only if it ended by itself or the stop says so.
    pub(super) fn has_last_word(&self, pod: &Pod, call: Call) -> bool {
        let record = pod.record.as_ref();
        let is_asked_for = pod.desired().is_some() && !record.and_then(Frozen::active).is_some_and(Form::is_failed);
        let is_stopped_for_good = !pod.is_running() && !self.machine.statics;
        let is_over = match call.hook {
            Hook::Sync => pod.real == Real::Exited && self.may(Also::Exit),
            Hook::Terminating => {
                is_stopped_for_good || record.and_then(Frozen::stopping).is_some_and(|stop| stop.status_fn.is_some())
            }
            Hook::Terminated => is_stopped_for_good,
            Hook::TerminatingRuntime => false,
        };
        self.may(Also::FinalStatusStore) && is_asked_for && is_over && !pod.told
    }
}

/// What comes of a last word next: it is noted, then it is on disk, then it is told.
pub(super) fn end_action(uid: Uid, pod: &Pod) -> Action {
    match pod.entry {
        Entry::Nothing => Action::Note(uid),
        Entry::Noted => Action::Write(uid),
        Entry::Written => Action::Tell(uid),
    }
}
