//! The steps of shutdowns of the machine. Pure.

/// Where the agent stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// The machine runs, and the agent holds the lock.
    Waiting,
    /// The machine shuts down, and the pods are being stopped.
    Stopping,
    /// The shutdown was cancelled, and some pods are still being stopped.
    Cancelled,
    /// After that another shutdown began, and its stop of pods has to wait for the one before.
    BeginsAgain,
    /// The pods have stopped, and the lock is released.
    Stopped,
}

/// What happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// The machine begins to shut down.
    Begins,
    /// The machine does not shut down after all.
    Cancelled,
    /// The pods have stopped, or their time is over.
    PodsStopped,
}

/// What the agent has to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    /// Stop the pods, and report [`Event::PodsStopped`] after that.
    StopPods,
    /// Let pods run again.
    Resume,
    /// Take a lock in place of the one before.
    TakeLock,
    /// Let the machine shut down.
    ReleaseLock,
}

/// One move. Total: no I/O, no clock, no lock, no panic.
pub(super) fn step(state: State, event: Event) -> (State, Vec<Effect>) {
    use State::*;
    match (state, event) {
        (Waiting, Event::Begins) => (Stopping, vec![Effect::StopPods]),
        (Stopping, Event::PodsStopped) => (Stopped, vec![Effect::ReleaseLock]),
        (Stopping, Event::Cancelled) => (Cancelled, vec![Effect::Resume, Effect::TakeLock]),
        (Stopped, Event::Cancelled) => (Waiting, vec![Effect::Resume, Effect::TakeLock]),
        (Cancelled, Event::Begins) => (BeginsAgain, vec![]),
        (Cancelled, Event::PodsStopped) => (Waiting, vec![]),
        (BeginsAgain, Event::Cancelled) => (Cancelled, vec![]),
        (BeginsAgain, Event::PodsStopped) => (Stopping, vec![Effect::StopPods]),
        (Waiting | Stopped, Event::PodsStopped)
        | (Waiting | Cancelled, Event::Cancelled)
        | (Stopping | BeginsAgain | Stopped, Event::Begins) => (state, vec![]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The effects of events, and the last state.
    fn run(events: &[Event]) -> (State, Vec<Effect>) {
        events.iter().fold((State::Waiting, vec![]), |(state, mut effects), event| {
            let (state, more) = step(state, *event);
            effects.extend(more);
            (state, effects)
        })
    }

    #[test]
    fn the_lock_is_released_only_after_the_pods_have_stopped() {
        use Event::{Begins, PodsStopped};
        assert_eq!(run(&[Begins, Begins]), (State::Stopping, vec![Effect::StopPods]));
        assert_eq!(run(&[Begins, PodsStopped]), (State::Stopped, vec![Effect::StopPods, Effect::ReleaseLock]));
    }

    #[test]
    fn a_cancelled_shutdown_takes_the_lock_again_and_a_later_one_stops_pods_again() {
        use Event::{Begins, Cancelled, PodsStopped};
        let resumed = vec![Effect::StopPods, Effect::Resume, Effect::TakeLock];
        assert_eq!(run(&[Begins, Cancelled, Cancelled, PodsStopped]), (State::Waiting, resumed.clone()));
        let again = [resumed, vec![Effect::StopPods]].concat();
        assert_eq!(run(&[Begins, Cancelled, Begins, PodsStopped]), (State::Stopping, again.clone()));
        assert_eq!(run(&[Begins, Cancelled, PodsStopped, Begins]), (State::Stopping, again));
        let stopped = vec![Effect::StopPods, Effect::ReleaseLock, Effect::Resume, Effect::TakeLock];
        assert_eq!(run(&[Begins, PodsStopped, Cancelled]), (State::Waiting, stopped));
        assert_eq!(run(&[Cancelled]), (State::Waiting, vec![]));
    }
}
