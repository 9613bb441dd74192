//! The end of a pod: a hook notes it, it is written to disk, and then it is reported (POD-W13).

use super::CheckedScenario;
use super::frozen::{Form, Frozen};
use super::scenarios::Also;
use super::world::{Action, Call, ContainersState, EndEntry, Pod, Uid};
use crate::pod_worker::lifecycle::Hook;

impl CheckedScenario {
    /// Whether the running hook has yet to report that the pod has ended for good. It reports that of a desired pod whose end
    /// was not reported before; of a static pod only if it ended by itself or the stop has a status editor.
    pub(super) fn has_final_report(&self, pod: &Pod, call: Call) -> bool {
        let record = pod.record.as_ref();
        let is_asked_for = pod.desired().is_some() && !record.and_then(Frozen::active).is_some_and(Form::is_failed);
        let is_stopped_for_good = !pod.is_running() && !self.machine.statics;
        let has_ended = match call.hook {
            Hook::Sync => pod.containers == ContainersState::Exited && self.may(Also::Exit),
            Hook::Terminating => {
                is_stopped_for_good || record.and_then(Frozen::stopping).is_some_and(|stop| stop.status_fn.is_some())
            }
            Hook::Terminated => is_stopped_for_good,
            Hook::TerminatingRuntime => false,
        };
        self.may(Also::FinalStatusStore) && is_asked_for && has_ended && !pod.reported
    }
}

/// The next step of a final report: it is noted, then it is written, then it is reported.
pub(super) fn end_action(uid: Uid, pod: &Pod) -> Action {
    match pod.entry {
        EndEntry::Nothing => Action::Note(uid),
        EndEntry::Noted => Action::Write(uid),
        EndEntry::Written => Action::Report(uid),
    }
}
