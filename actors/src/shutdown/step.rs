//! The steps of one shutdown. Pure.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use super::plan::ShutdownGroup;
use crate::ids::PodUid;
use crate::pod::PodObject;
use crate::time::Time;

/// How long after the end of its group's time a pod still counts as stopped in time. A pod whose grace period is as long as
/// the group's time is killed at the end of that time, and is not late.
pub(crate) const SLACK: Duration = Duration::from_millis(500);

/// Where a shutdown stands. The first of `groups` is the current one; the others follow it.
#[derive(Debug)]
pub(crate) enum State {
    /// The pods of the current group were asked to stop.
    Stopping {
        groups: VecDeque<ShutdownGroup>,
        /// The pods of the group that have not stopped.
        running: BTreeSet<PodUid>,
        /// The end of the group's time.
        ends: Time,
    },
    /// The pods of the current group have stopped, and their volumes are being unmounted.
    CleaningUp { groups: VecDeque<ShutdownGroup>, ends: Time },
    /// The shutdown was cancelled, and the stops of the current group go on, because they cannot be undone. Nothing waits for
    /// cleanup, because pods that have stopped may run again.
    Cancelled { group: ShutdownGroup, running: BTreeSet<PodUid>, ends: Time },
    /// No group is left.
    Ended,
}

/// What happens during a shutdown.
#[derive(Clone, Debug)]
pub(crate) enum Event {
    /// The containers of a pod have stopped.
    Stopped { uid: PodUid, now: Time },
    /// The pods of the current group are cleaned up.
    CleanedUp { now: Time },
    /// The time of [`State::ends`] may have come.
    TimeUp { now: Time },
    /// The machine does not shut down after all.
    Cancelled,
}

/// What the performer has to do.
#[derive(Debug)]
pub(crate) enum Effect {
    /// Stop the pods of the group, each within [`ShutdownGroup::grace`].
    Stop(ShutdownGroup),
    /// Report [`Event::CleanedUp`] once these pods are cleaned up.
    AwaitCleanup(Vec<Arc<PodObject>>),
    /// Report these pods as late.
    Late(Vec<Arc<PodObject>>),
    /// Report this number of pods as left running, because the shutdown was cancelled before their turn.
    Leave(usize),
}

impl State {
    /// The current group and the groups after it.
    pub(crate) fn groups(&self) -> Vec<&ShutdownGroup> {
        match self {
            State::Stopping { groups, .. } | State::CleaningUp { groups, .. } => groups.iter().collect(),
            State::Cancelled { group, .. } => vec![group],
            State::Ended => vec![],
        }
    }

    /// The end of the current group's time; `None` after the end of the shutdown.
    pub(crate) fn ends(&self) -> Option<Time> {
        match self {
            State::Stopping { ends, .. } | State::CleaningUp { ends, .. } | State::Cancelled { ends, .. } => {
                Some(*ends)
            }
            State::Ended => None,
        }
    }
}

/// Begins a shutdown of groups that each have a pod.
pub(crate) fn begin(groups: Vec<ShutdownGroup>, now: Time) -> (State, Vec<Effect>) {
    enter(groups.into(), now)
}

/// One move. Total: no I/O, no clock, no lock, no panic.
pub(crate) fn step(state: State, event: Event) -> (State, Vec<Effect>) {
    match (state, event) {
        (State::Stopping { groups, mut running, ends }, Event::Stopped { uid, now }) => {
            running.remove(&uid);
            if !running.is_empty() {
                return (State::Stopping { groups, running, ends }, vec![]);
            }
            match groups.front() {
                Some(group) => {
                    let cleanup = Effect::AwaitCleanup(group.pods.clone());
                    (State::CleaningUp { groups, ends }, vec![cleanup])
                }
                None => enter(groups, now),
            }
        }
        (State::Stopping { groups, running, ends }, Event::TimeUp { now }) if now >= ends => {
            let late = groups.front().map(|group| late(group, &running));
            let (state, effects) = leave(groups, now);
            (state, late.into_iter().chain(effects).collect())
        }
        (State::CleaningUp { groups, .. }, Event::CleanedUp { now }) => leave(groups, now),
        // Volumes that cannot be unmounted delay the next group at most until the end of this group's time.
        (State::CleaningUp { groups, ends }, Event::TimeUp { now }) if now >= ends => leave(groups, now),
        (State::Stopping { mut groups, running, ends }, Event::Cancelled) => {
            let group = groups.pop_front();
            let left = Effect::Leave(groups.iter().map(|group| group.pods.len()).sum());
            (group.map_or(State::Ended, |group| State::Cancelled { group, running, ends }), vec![left])
        }
        (State::CleaningUp { groups, .. }, Event::Cancelled) => {
            (State::Ended, vec![Effect::Leave(groups.iter().skip(1).map(|group| group.pods.len()).sum())])
        }
        (State::Cancelled { group, mut running, ends }, Event::Stopped { uid, .. }) => {
            running.remove(&uid);
            let state = if running.is_empty() { State::Ended } else { State::Cancelled { group, running, ends } };
            (state, vec![])
        }
        (State::Cancelled { group, running, ends }, Event::TimeUp { now }) if now >= ends => {
            (State::Ended, vec![late(&group, &running)])
        }
        (
            state @ (State::Stopping { .. } | State::CleaningUp { .. } | State::Cancelled { .. } | State::Ended),
            Event::Stopped { .. } | Event::CleanedUp { .. } | Event::TimeUp { .. } | Event::Cancelled,
        ) => (state, vec![]),
    }
}

fn late(group: &ShutdownGroup, running: &BTreeSet<PodUid>) -> Effect {
    Effect::Late(group.pods.iter().filter(|pod| running.contains(pod.uid())).cloned().collect())
}

/// Goes from the current group to the next one.
fn leave(mut groups: VecDeque<ShutdownGroup>, now: Time) -> (State, Vec<Effect>) {
    groups.pop_front();
    enter(groups, now)
}

/// Begins to stop the first group.
fn enter(groups: VecDeque<ShutdownGroup>, now: Time) -> (State, Vec<Effect>) {
    let Some(group) = groups.front().cloned() else { return (State::Ended, vec![]) };
    let running = group.pods.iter().map(|pod| pod.uid().clone()).collect();
    let ends = now + group.time + SLACK;
    (State::Stopping { groups, running, ends }, vec![Effect::Stop(group)])
}
