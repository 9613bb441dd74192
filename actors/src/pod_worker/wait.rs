//! What a pod waits for, as a value.

use super::lifecycle::Hook;
use super::state::{Record, State};
use crate::ids::PodUid;
use crate::time::Time;

/// One thing that a pod waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wait {
    /// What.
    pub what: WaitFor,
    /// Since when.
    pub since: Time,
    /// How often it was tried in a row.
    pub tries: u32,
    /// When it is tried next, if by time.
    pub next: Option<Time>,
}

/// What a pod worker waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WaitFor {
    /// An update was accepted and the worker has not taken it yet.
    Worker,
    /// A static pod waits until the one that has its full name is finished.
    FullName {
        /// Who has the name.
        held_by: Option<PodUid>,
    },
    /// A hook call is under way.
    HookCall(Hook),
    /// A hook failed and waits out its backoff.
    Retry {
        /// Which.
        hook: Hook,
        /// What it said.
        error: String,
    },
    /// All is well; the next re-check is by time.
    Resync,
    /// It is over; housekeeping drops the record once no source wants the pod.
    Removal,
}

impl WaitFor {
    /// What would end the wait, for people.
    pub const fn released_by(&self) -> &'static str {
        match self {
            WaitFor::Worker => "the worker's next turn",
            WaitFor::FullName { .. } => "the pod that has the name is finished",
            WaitFor::HookCall(_) => "the call returns",
            WaitFor::Retry { .. } => "the next try succeeds, or an update comes",
            WaitFor::Resync => "an update, a change in the runtime, or the next re-check",
            WaitFor::Removal => "its source drops the pod, or creates it again",
        }
    }
}

impl Record {
    /// What it waits for now. Who has the full name is left for the owner of the names to fill in.
    pub fn wait(&self) -> Wait {
        let last_move = self.last_move();
        if let Some(running) = self.running {
            let tries = self.failure.as_ref().map_or(1, |f| f.count.saturating_add(1));
            return Wait { what: WaitFor::HookCall(running.hook), since: running.since, tries, next: None };
        }
        match &self.state {
            State::Waiting(waiting) => {
                if let Some(since) = waiting.blocked_since() {
                    return Wait { what: WaitFor::FullName { held_by: None }, since, tries: 0, next: self.due };
                }
            }
            State::Finished(_) => return Wait { what: WaitFor::Removal, since: last_move, tries: 0, next: None },
            State::Sync(_) | State::Terminating(_) | State::Terminated(_) => {}
        }
        if let Some(pending) = &self.pending {
            return Wait { what: WaitFor::Worker, since: pending.since, tries: 0, next: None };
        }
        match &self.failure {
            Some(failure) => Wait {
                what: WaitFor::Retry { hook: failure.hook, error: failure.error.clone() },
                since: failure.since,
                tries: failure.count,
                next: self.due,
            },
            None => Wait { what: WaitFor::Resync, since: last_move, tries: 0, next: self.due },
        }
    }
}
