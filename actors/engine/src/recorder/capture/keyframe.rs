//! A whole record as bytes, and back.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::Decoded;
use super::digest::MOST_WAITERS;
use super::object::{ConfigData, HeldConfigs, RunningPodData, TargetData};
use super::rounds::RoundCounts;
use crate::codec::{Delta, Text, Uid};
use crate::ids::PodUid;
use crate::pod_worker::state::{
    Finished, Flags, Pending, Record, RunningHook, Started, State, Stop, Terminated, Terminating, Waiting, Work,
};
use crate::pod_worker::{Cause, Failure, History, Hook, Notifier, StatusEditor, UpdateKind};
use crate::ports::FailureCause;
use crate::time::{Grace, Time};

/// A [`Record`] in a recording, and the plain events that were counted since its last frame.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Keyframe<'a> {
    pub(crate) counts: RoundCounts,
    /// Whether a plain event, counted or not, changed the record since its last frame.
    pub(crate) has_rounds: bool,
    #[serde(borrow)]
    uid: Uid<'a>,
    state: StateData<'a>,
    pending: Option<PendingData<'a>>,
    running: Option<RunningData>,
    due: Option<Delta>,
    failure: Option<FailureData<'a>>,
    /// An array and not a list, so that writing it makes no allocation.
    transitions: [Option<(Delta, Cause)>; History::MOST],
}

// A recording has the index of the variant: another order of variants is another format.
#[derive(Debug, Serialize, Deserialize)]
enum StateData<'a> {
    Waiting(WaitingData),
    #[serde(borrow)]
    Sync(ConfigData<'a>),
    Terminating {
        #[serde(borrow)]
        stop: StopData<'a>,
        flags: Flags,
        grace: u32,
        forced: bool,
        waiters: u32,
        has_status_fn: bool,
    },
    Terminated {
        #[serde(borrow)]
        config: Option<ConfigData<'a>>,
        flags: Flags,
    },
    Finished {
        #[serde(borrow)]
        full_name: Text<'a>,
        is_static: bool,
        flags: Flags,
    },
}

// A recording has the index of the variant: another order of variants is another format.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
enum WaitingData {
    New,
    Blocked { since: Delta },
    Retrying { blocked_since: Delta },
}

// A recording has the index of the variant: another order of variants is another format.
#[derive(Debug, Serialize, Deserialize)]
enum StopData<'a> {
    Unstarted {
        observed_runtime: bool,
    },
    #[serde(borrow)]
    Requested(ConfigData<'a>),
    Begun(ConfigData<'a>),
    Runtime(RunningPodData<'a>),
}

#[derive(Debug, Serialize, Deserialize)]
struct PendingData<'a> {
    kind: UpdateKind,
    #[serde(borrow)]
    target: TargetData<'a>,
    start_time: Option<Delta>,
    since: Delta,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct RunningData {
    hook: Hook,
    since: Delta,
    kind: UpdateKind,
    start_time: Option<Delta>,
}

#[derive(Debug, Serialize, Deserialize)]
struct FailureData<'a> {
    hook: Hook,
    #[serde(borrow)]
    error: Text<'a>,
    count: u32,
    since: Delta,
}

impl<'a> Keyframe<'a> {
    pub(crate) fn new(counts: RoundCounts, has_rounds: bool, uid: &'a PodUid, record: &'a Record, now: Time) -> Self {
        let delta = |time: Time| Delta::new(now, time);
        let mut all = record.history.iter();
        Keyframe {
            counts,
            has_rounds,
            uid: uid.into(),
            state: StateData::new(&record.state, now),
            pending: record.pending.as_ref().map(|pending| PendingData {
                kind: pending.kind,
                target: TargetData::new(&pending.target, HeldConfigs::active(record.active())),
                start_time: pending.start_time.map(delta),
                since: delta(pending.since),
            }),
            running: record.running().map(|running| RunningData {
                hook: running.hook,
                since: delta(running.since),
                kind: running.kind,
                start_time: running.start_time.map(delta),
            }),
            due: record.due().map(delta),
            failure: record.failure.as_ref().map(|failure| FailureData {
                hook: failure.hook,
                error: Text::new(&failure.error),
                count: failure.count,
                since: delta(failure.since),
            }),
            transitions: std::array::from_fn(|_| all.next().map(|transition| (delta(transition.at), transition.cause))),
        }
    }

    pub(crate) fn decode(self, now: Time) -> Decoded<(PodUid, Record)> {
        let after = |delta: Delta| delta.after(now);
        let mut history: Option<History> = None;
        for (at, cause) in self.transitions.into_iter().flatten() {
            match &mut history {
                Some(history) => history.push(after(at), cause),
                None => history = Some(History::begin(after(at), cause)),
            }
        }
        let mut record = Record {
            state: self.state.decode(now)?,
            pending: None,
            work: match (self.running, self.due) {
                (Some(running), None) => Work::Calling(RunningHook {
                    hook: running.hook,
                    since: after(running.since),
                    kind: running.kind,
                    start_time: running.start_time.map(after),
                }),
                (None, due) => Work::Resting { due: due.map(after) },
                (Some(_), Some(_)) => return Err("a hook call or a due time"),
            },
            failure: self.failure.map(|failure| {
                Box::new(Failure {
                    hook: failure.hook,
                    error: failure.error.as_str().to_owned(),
                    cause: FailureCause::Unknown,
                    count: failure.count,
                    since: after(failure.since),
                })
            }),
            history: history.ok_or("a record with a first transition")?,
        };
        if let Some(pending) = self.pending {
            record.pending = Some(Pending {
                kind: pending.kind,
                target: pending.target.decode(HeldConfigs::active(record.active()))?,
                start_time: pending.start_time.map(after),
                since: after(pending.since),
            });
        }
        Ok((self.uid.into(), record))
    }
}

impl<'a> StateData<'a> {
    fn new(state: &'a State, now: Time) -> Self {
        let config = |config| ConfigData::new(config, HeldConfigs::default());
        match state {
            State::Waiting(waiting) => StateData::Waiting(match *waiting {
                Waiting::New => WaitingData::New,
                Waiting::Blocked { since } => WaitingData::Blocked { since: Delta::new(now, since) },
                Waiting::Retrying { blocked_since } => {
                    WaitingData::Retrying { blocked_since: Delta::new(now, blocked_since) }
                }
            }),
            State::Sync(started) => StateData::Sync(config(&started.config)),
            State::Terminating(t) => StateData::Terminating {
                stop: match &t.stop {
                    Stop::Unstarted { observed_runtime } => StopData::Unstarted { observed_runtime: *observed_runtime },
                    Stop::Requested { config: requested } => StopData::Requested(config(requested)),
                    Stop::Begun { config: begun } => StopData::Begun(config(begun)),
                    Stop::Runtime { running } => StopData::Runtime(RunningPodData::new(running)),
                },
                flags: t.flags,
                grace: t.grace.seconds(),
                forced: t.forced,
                waiters: t.notifiers.len().min(MOST_WAITERS) as u32,
                has_status_fn: t.status_fn.is_some(),
            },
            State::Terminated(t) => StateData::Terminated { config: t.config.as_ref().map(config), flags: t.flags },
            State::Finished(finished) => StateData::Finished {
                full_name: Text::new(finished.full_name.as_str()),
                is_static: finished.is_static,
                flags: finished.flags,
            },
        }
    }

    fn decode(self, now: Time) -> Decoded<State> {
        let config = |config: ConfigData<'_>| config.decode(HeldConfigs::default());
        Ok(match self {
            StateData::Waiting(waiting) => State::Waiting(match waiting {
                WaitingData::New => Waiting::New,
                WaitingData::Blocked { since } => Waiting::Blocked { since: since.after(now) },
                WaitingData::Retrying { blocked_since } => {
                    Waiting::Retrying { blocked_since: blocked_since.after(now) }
                }
            }),
            StateData::Sync(started) => State::Sync(Started { config: config(started)? }),
            StateData::Terminating { stop, flags, grace, forced, waiters, has_status_fn } => {
                if waiters > MOST_WAITERS as u32 {
                    return Err("at most 16 waiters");
                }
                State::Terminating(Box::new(Terminating {
                    stop: match stop {
                        StopData::Unstarted { observed_runtime } => Stop::Unstarted { observed_runtime },
                        StopData::Requested(requested) => Stop::Requested { config: config(requested)? },
                        StopData::Begun(begun) => Stop::Begun { config: config(begun)? },
                        StopData::Runtime(running) => Stop::Runtime { running: Arc::new(running.decode()?) },
                    },
                    flags,
                    grace: Grace::from_seconds(grace.into()),
                    forced,
                    notifiers: (0..waiters).map(|_| Notifier::new().0).collect(),
                    status_fn: has_status_fn.then(StatusEditor::without_edits),
                }))
            }
            StateData::Terminated { config: spec, flags } => {
                State::Terminated(Box::new(Terminated { config: spec.map(config).transpose()?, flags }))
            }
            StateData::Finished { full_name, is_static, flags } => State::Finished(Finished {
                full_name: full_name.to_full_name().ok_or("a full name")?,
                is_static,
                flags,
            }),
        })
    }
}
