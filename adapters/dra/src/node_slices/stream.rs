//! When the stream of node resources of a driver is opened. Pure.

use std::time::Duration;

use podwright_model::time::Time;

/// The first delay after a failure: this, and up to twice this more (upstream's kubelet of 2024).
const FIRST_DELAY: Duration = Duration::from_secs(5);
/// The longest delay.
const LONGEST_DELAY: Duration = Duration::from_secs(180);
/// A stream that fails after this time without a failure begins with the first delay again.
const FORGIVEN_AFTER: Duration = Duration::from_secs(360);

/// Tells a stream from those before it.
pub(super) type StreamId = u64;

/// The stream of a driver.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Stream<I> {
    /// No instance offers node resources.
    Closed,
    /// The stream is open, or waits for the connection of its instance.
    Open { id: StreamId, instance: I, failure: Option<Failure> },
    /// The stream failed.
    Delayed { due: Time, instance: I, failure: Failure },
    /// The driver ended the stream, or does not have the service. Nothing is opened until an instance registers.
    Finished { instance: I },
}

/// The last failure of a stream.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Failure {
    /// The delay after it.
    delay: Duration,
    at: Time,
}

/// Why a stream ended.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum StreamEnd {
    /// The driver ended it, or has no such service.
    Finished,
    /// It broke; `draw` is a random number from 0 to 1.
    Failed { draw: f64 },
}

impl<I: Clone> Stream<I> {
    /// The instance that the stream belongs to.
    pub(super) fn instance(&self) -> Option<&I> {
        match self {
            Stream::Closed => None,
            Stream::Open { instance, .. } | Stream::Delayed { instance, .. } | Stream::Finished { instance } => {
                Some(instance)
            }
        }
    }

    pub(super) fn is_open(&self, stream: StreamId) -> bool {
        matches!(self, Stream::Open { id, .. } if *id == stream)
    }

    /// A message has arrived.
    pub(super) fn received(&mut self) {
        if let Stream::Open { failure, .. } = self {
            *failure = None;
        }
    }

    /// The stream has ended.
    pub(super) fn ended(&mut self, end: StreamEnd, now: Time) {
        let Stream::Open { instance, failure, .. } = self else { return };
        let (instance, last) = (instance.clone(), *failure);
        *self = match end {
            StreamEnd::Finished => Stream::Finished { instance },
            StreamEnd::Failed { draw } => {
                let last = last.filter(|last| now.since(last.at) < FORGIVEN_AFTER);
                let failure = Failure { delay: delay_after(last, draw), at: now };
                Stream::Delayed { due: now + failure.delay, instance, failure }
            }
        };
    }

    pub(super) fn due(&self) -> Option<Time> {
        match self {
            Stream::Delayed { due, .. } => Some(*due),
            Stream::Closed | Stream::Open { .. } | Stream::Finished { .. } => None,
        }
    }
}

fn delay_after(last: Option<Failure>, draw: f64) -> Duration {
    let draw = draw.clamp(0.0, 1.0);
    match last {
        None => FIRST_DELAY.mul_f64(1.0 + 2.0 * draw),
        Some(last) => last.delay.mul_f64(2.0 + 2.0 * draw).min(LONGEST_DELAY),
    }
}
