//! The wait of a pod: what its worker waits for, since when, and until when at the latest. Pure.

use super::lifecycle::Hook;
use super::state::{Record, State};
use crate::ids::PodUid;
use crate::time::Time;

/// The wait of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wait {
    /// The event that ends the wait.
    pub what: WaitFor,
    /// When the wait began.
    pub since: Time,
    /// The number of calls in a row, the running one included; zero if no hook was called.
    pub tries: u32,
    /// When the worker acts at the latest; `None` if it waits for an event only.
    pub next: Option<Time>,
}

/// What a pod worker waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WaitFor {
    /// The worker has not taken the pending update.
    Worker,
    /// A static pod waits until the pod that has its full name is finished.
    FullName {
        /// The pod that has the name.
        held_by: Option<PodUid>,
    },
    /// A hook call is running.
    HookCall(Hook),
    /// A hook failed and is called again after its backoff.
    Retry {
        /// The hook.
        hook: Hook,
        /// Its error.
        error: String,
    },
    /// The pod is healthy; the next sync is by time.
    Resync,
    /// The pod has finished; housekeeping forgets the record once the pod is no longer desired.
    Removal,
}

impl WaitFor {
    /// The event that ends the wait, as a phrase for people.
    pub const fn released_by(&self) -> &'static str {
        match self {
            WaitFor::Worker => "the worker's next turn",
            WaitFor::FullName { .. } => "the pod that has the name is finished",
            WaitFor::HookCall(_) => "the call returns",
            WaitFor::Retry { .. } => "the next try succeeds, or an update arrives",
            WaitFor::Resync => "an update, a change in the runtime, or the next re-check",
            WaitFor::Removal => "its source drops the pod, or creates it again",
        }
    }
}

impl Record {
    /// What the pod waits for now. The engine fills in the pod that has the full name, because it owns the names.
    pub fn wait(&self) -> Wait {
        let last_move = self.last_move();
        if let Some(running) = self.running() {
            let tries = self.failure.as_ref().map_or(1, |f| f.count.saturating_add(1));
            return Wait { what: WaitFor::HookCall(running.hook), since: running.since, tries, next: None };
        }
        match &self.state {
            State::Waiting(waiting) => {
                if let Some(since) = waiting.blocked_since() {
                    return Wait { what: WaitFor::FullName { held_by: None }, since, tries: 0, next: self.due() };
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
                next: self.due(),
            },
            None => Wait { what: WaitFor::Resync, since: last_move, tries: 0, next: self.due() },
        }
    }
}
