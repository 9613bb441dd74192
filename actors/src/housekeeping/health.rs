//! How the passes go.

use std::time::Duration;

use parking_lot::Mutex;

use crate::explain::facts::Failing;
use crate::ports::RuntimeError;
use crate::time::Time;

/// How often a pass runs (upstream `housekeepingPeriod`).
pub const PERIOD: Duration = Duration::from_secs(2);

/// When the last pass ended, and why passes end early.
#[derive(Debug, Default)]
pub struct PassHealth(Mutex<(Option<Time>, Option<Failing>)>);

impl PassHealth {
    /// When the last pass ended, whatever its result, and why passes end early, if they do.
    pub fn look(&self) -> (Option<Time>, Option<Failing>) {
        self.0.lock().clone()
    }

    /// Whether there is something to tell of: passes that go well as the one before are many and the same.
    pub(super) fn passed(&self, now: Time, result: &Result<(), PassError>) -> bool {
        let (last, failing) = &mut *self.0.lock();
        *last = Some(now);
        let tells = failing.is_some() || result.is_err();
        match result {
            Ok(()) => *failing = None,
            Err(PassError::List(error)) => {
                Failing::note(failing, format!("cannot list the runtime's pods: {error}"), now);
            }
        }
        tells
    }
}

/// A pass ended early; nothing that needs the runtime's word was touched.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PassError {
    /// The runtime did not list its pods.
    #[error("cannot list the runtime's pods")]
    List(#[source] RuntimeError),
}
