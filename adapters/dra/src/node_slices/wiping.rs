//! When slices are deleted because no instance of their driver is connected. Pure.

use std::time::Duration;

use podwright_model::time::Time;

/// The delay after the first failure. It doubles with each further failure (upstream `wipeResourceSlices`, kubelet 1.36).
const FIRST_DELAY: Duration = Duration::from_secs(1);
/// The longest delay. Upstream gives up after nine tries, which leaves the slices of a removed driver for ever.
const LONGEST_DELAY: Duration = Duration::from_secs(300);
/// The share by which a delay is longer at most.
const JITTER: f64 = 0.2;

/// A deletion that has not succeeded yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PendingDeletion {
    /// When the next try begins. `None` while a try runs.
    pub(super) due: Option<Time>,
    /// The number of tries that failed.
    pub(super) failures: u32,
}

/// The deletion of the slices of one driver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Wipe {
    /// Nothing has to be deleted.
    #[default]
    Idle,
    /// Begins at a time.
    Scheduled { due: Time, failures: u32 },
    /// A call runs.
    Running { failures: u32 },
    /// A call runs although the driver is back, because the API server may already perform it. `again` is when the next call begins, if the
    /// driver is gone again.
    Stopping { again: Option<Time> },
}

impl Wipe {
    /// Schedules the deletion. If it is scheduled already, the earlier time stays.
    pub(super) fn schedule(&mut self, at: Time) {
        *self = match *self {
            Wipe::Idle => Wipe::Scheduled { due: at, failures: 0 },
            Wipe::Scheduled { due, failures } => Wipe::Scheduled { due: due.min(at), failures },
            Wipe::Running { failures } => Wipe::Running { failures },
            Wipe::Stopping { again } => Wipe::Stopping { again: Some(again.map_or(at, |again| again.min(at))) },
        };
    }

    /// Nothing has to be deleted any more. Returns whether a call has to be stopped.
    pub(super) fn cancel(&mut self) -> bool {
        let (next, stops) = match *self {
            Wipe::Idle | Wipe::Scheduled { .. } => (Wipe::Idle, false),
            Wipe::Running { .. } => (Wipe::Stopping { again: None }, true),
            Wipe::Stopping { .. } => (Wipe::Stopping { again: None }, false),
        };
        *self = next;
        stops
    }

    /// Whether a call runs.
    pub(super) fn is_running(self) -> bool {
        matches!(self, Wipe::Running { .. } | Wipe::Stopping { .. })
    }

    /// Whether the call has to be started now.
    pub(super) fn start(&mut self, now: Time) -> bool {
        match *self {
            Wipe::Scheduled { due, failures } if due <= now => {
                *self = Wipe::Running { failures };
                true
            }
            Wipe::Idle | Wipe::Scheduled { .. } | Wipe::Running { .. } | Wipe::Stopping { .. } => false,
        }
    }

    /// The call has ended; `draw` is a random number from 0 to 1 if it failed. Returns whether the slices may be deleted.
    pub(super) fn ended(&mut self, result: Result<(), f64>, now: Time) -> bool {
        let (next, may_be_deleted) = match (*self, result) {
            (Wipe::Idle | Wipe::Scheduled { .. }, _) => return false,
            (Wipe::Running { .. } | Wipe::Stopping { again: None }, Ok(()))
            | (Wipe::Stopping { again: None }, Err(_)) => (Wipe::Idle, true),
            (Wipe::Running { failures }, Err(draw)) => {
                (Wipe::Scheduled { due: now + delay_after(failures, draw), failures: failures + 1 }, false)
            }
            (Wipe::Stopping { again: Some(due) }, _) => (Wipe::Scheduled { due, failures: 0 }, true),
        };
        *self = next;
        may_be_deleted
    }

    pub(super) fn due(&self) -> Option<Time> {
        self.pending().and_then(|pending| pending.due)
    }

    pub(super) fn pending(&self) -> Option<PendingDeletion> {
        match *self {
            Wipe::Idle => None,
            Wipe::Scheduled { due, failures } => Some(PendingDeletion { due: Some(due), failures }),
            Wipe::Running { failures } => Some(PendingDeletion { due: None, failures }),
            Wipe::Stopping { .. } => Some(PendingDeletion { due: None, failures: 0 }),
        }
    }
}

/// The deletion of the slices that an earlier agent left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StartupWipe {
    /// Begins at a time.
    Scheduled {
        due: Time,
        failures: u32,
    },
    /// All slices of the node are being deleted, because no driver is connected.
    Deleting {
        failures: u32,
    },
    /// All slices of the node are being deleted although a driver is connected, because the API server may already perform the call. After
    /// its end, the drivers are listed.
    Stopping {
        failures: u32,
    },
    /// The drivers that have slices are being listed. Those that are not connected are wiped one by one.
    Listing {
        failures: u32,
    },
    Done,
}

impl StartupWipe {
    /// The deletion of all slices has ended.
    pub(super) fn deleted(&mut self, result: Result<(), f64>, now: Time) {
        match (*self, result) {
            (StartupWipe::Stopping { failures }, _) => *self = StartupWipe::Scheduled { due: now, failures },
            (_, Ok(())) => *self = StartupWipe::Done,
            (_, Err(draw)) => self.failed(draw, now),
        }
    }

    /// The call has failed.
    pub(super) fn failed(&mut self, draw: f64, now: Time) {
        if let StartupWipe::Deleting { failures } | StartupWipe::Listing { failures } = *self {
            *self = StartupWipe::Scheduled { due: now + delay_after(failures, draw), failures: failures + 1 };
        }
    }

    /// Ends the delay after a failed call, because its cause may be gone: the API server now has the node.
    pub(super) fn retry_at_once(&mut self, now: Time) {
        if let StartupWipe::Scheduled { due, failures } = *self
            && failures > 0
        {
            *self = StartupWipe::Scheduled { due: due.min(now), failures };
        }
    }

    pub(super) fn due(&self) -> Option<Time> {
        self.pending().and_then(|pending| pending.due)
    }

    pub(super) fn pending(&self) -> Option<PendingDeletion> {
        match *self {
            StartupWipe::Done => None,
            StartupWipe::Scheduled { due, failures } => Some(PendingDeletion { due: Some(due), failures }),
            StartupWipe::Deleting { failures }
            | StartupWipe::Stopping { failures }
            | StartupWipe::Listing { failures } => Some(PendingDeletion { due: None, failures }),
        }
    }
}

/// The delay before the next try, if this many failures came before the last one.
fn delay_after(failures: u32, draw: f64) -> Duration {
    let delay = FIRST_DELAY.saturating_mul(1 << failures.min(20));
    delay.min(LONGEST_DELAY).mul_f64(1.0 + JITTER * draw.clamp(0.0, 1.0)).min(LONGEST_DELAY)
}
