//! Lets each call of a leader check that this replica still holds the lease.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use podwright_model::time::Time;
use podwright_ports::{Clock, TokioClock};
use tokio::time::sleep;

/// How often a call that waits for the lease checks it.
const CHECK_PERIOD: Duration = Duration::from_millis(50);

/// Whether this replica holds the lease now. A task publishes the end of the leadership, and another task may start a call before it learns
/// of that, above all after a pause of the process. So each call checks the guard first. Clones share their state.
#[derive(Clone, Debug)]
pub struct LeaseGuard {
    /// `None` for a replica that always leads.
    state: Option<Arc<GuardState>>,
    /// The lease counts as held in this term only. `None` if it counts as held in each term.
    term: Option<u64>,
}

#[derive(Debug)]
struct GuardState {
    clock: TokioClock,
    /// The number of the term, and its renew deadline. `None` while the replica does not lead.
    term: Mutex<Option<(u64, Time)>>,
}

impl LeaseGuard {
    /// The guard of a replica that always leads, because it is the only one.
    pub fn without_election() -> Self {
        LeaseGuard { state: None, term: None }
    }

    /// The guard of a replica that does not lead. The clock is that of the election.
    pub(crate) fn new(clock: TokioClock) -> Self {
        LeaseGuard { state: Some(Arc::new(GuardState { clock, term: Mutex::new(None) })), term: None }
    }

    /// The guard of the calls of one term.
    #[must_use]
    pub fn of_term(&self, term: u64) -> Self {
        LeaseGuard { state: self.state.clone(), term: Some(term) }
    }

    /// Sets the number of the term and its renew deadline. `None` while the replica does not lead.
    pub(crate) fn set(&self, term: Option<(u64, Time)>) {
        if let Some(state) = &self.state {
            *state.term.lock() = term;
        }
    }

    /// Whether this replica holds the lease.
    pub fn is_held(&self) -> bool {
        let Some(state) = &self.state else { return true };
        let term = *state.term.lock();
        term.is_some_and(|(number, deadline)| {
            self.term.is_none_or(|term| term == number) && state.clock.now() < deadline
        })
    }

    /// Waits until this replica holds the lease. The caller drops the future at the end of its term.
    ///
    /// Cancel safe.
    pub async fn until_held(&self) {
        while !self.is_held() {
            sleep(CHECK_PERIOD).await;
        }
    }
}
