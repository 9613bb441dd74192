//! A whole record as bytes, and back.

use std::sync::Arc;

use super::digest::MOST_WAITERS;
use super::event::edits_nothing;
use super::object::{Held, put_config, put_running, put_target, read_config, read_running, read_target};
use crate::codec::{Put, Read, Reader, coded};
use crate::ids::PodUid;
use crate::pod_worker::lifecycle::{Cause, Failure, History, Hook};
use crate::pod_worker::state::{
    Finished, Flags, Pending, Record, RunningHook, Started, State, Stop, Terminated, Terminating, Waiting,
};
use crate::pod_worker::update::{Config, Notifier};
use crate::ports::Blame;
use crate::time::{Grace, Time};

coded!(Hook: Sync, Terminating, TerminatingRuntime, Terminated);
coded!(
    Cause: FirstUpdate,
    SeenEnded,
    Started,
    Deleted,
    TerminalPhase,
    Killed,
    Evicted,
    RuntimeOnly,
    Orphaned,
    Completed,
    ContainersStopped,
    CleanedUp,
    NeverStarted,
);

pub(crate) fn put(bytes: &mut Vec<u8>, uid: &PodUid, record: &Record, now: Time) {
    bytes.uid(uid);
    match &record.state {
        State::Waiting(waiting) => {
            bytes.byte(0);
            bytes.some_time(now, waiting.blocked_since());
            bytes.flag(matches!(waiting, Waiting::Blocked { .. }));
        }
        State::Sync(started) => {
            bytes.byte(1);
            put_config(bytes, &started.config, Held::default());
        }
        State::Terminating(t) => {
            bytes.byte(2);
            put_stop(bytes, &t.stop);
            put_flags(bytes, t.flags);
            bytes.number(t.grace.seconds().into());
            bytes.flag(t.forced);
            bytes.number(t.notifiers.len().min(MOST_WAITERS) as u64);
            bytes.flag(t.status_fn.is_some());
        }
        State::Terminated(t) => {
            bytes.byte(3);
            bytes.flag(t.config.is_some());
            if let Some(config) = &t.config {
                put_config(bytes, config, Held::default());
            }
            put_flags(bytes, t.flags);
        }
        State::Finished(finished) => {
            bytes.byte(4);
            bytes.full_name(&finished.full_name);
            bytes.flag(finished.is_static);
            put_flags(bytes, finished.flags);
        }
    }
    bytes.flag(record.pending.is_some());
    if let Some(pending) = &record.pending {
        bytes.coded(pending.kind);
        put_target(bytes, &pending.target, Held::active(record.active()));
        bytes.some_time(now, pending.start_time);
        bytes.time(now, pending.since);
    }
    bytes.flag(record.running.is_some());
    if let Some(running) = &record.running {
        bytes.coded(running.hook);
        bytes.time(now, running.since);
        bytes.coded(running.kind);
        bytes.some_time(now, running.start_time);
    }
    bytes.some_time(now, record.due);
    bytes.flag(record.failure.is_some());
    if let Some(failure) = &record.failure {
        bytes.coded(failure.hook);
        bytes.text(&failure.error);
        bytes.number(failure.count.into());
        bytes.time(now, failure.since);
    }
    bytes.number(record.history.iter().count() as u64);
    for transition in record.history.iter() {
        bytes.time(now, transition.at);
        bytes.coded(transition.cause);
    }
}

/// Reads what [`put`] wrote.
pub(crate) fn read(reader: &mut Reader<'_>, now: Time) -> Read<(PodUid, Record)> {
    let uid = reader.uid("a UID")?;
    let state = match reader.byte("a state")? {
        0 => {
            let blocked_since = reader.some_time(now, "since when a pod waits")?;
            State::Waiting(match (blocked_since, reader.flag("whether a pod was told to wait")?) {
                (None, false) => Waiting::New,
                (Some(since), true) => Waiting::Blocked { since },
                (Some(blocked_since), false) => Waiting::Retrying { blocked_since },
                (None, true) => return reader.missing("since when a pod waits"),
            })
        }
        1 => State::Sync(Started { config: read_config(reader, Held::default())? }),
        2 => {
            let stop = read_stop(reader)?;
            let flags = read_flags(reader)?;
            let grace = Grace::from_seconds(reader.small("a grace")?.into());
            let forced = reader.flag("whether a grace was asked for")?;
            let notifiers = reader.number("how many wait")?;
            if notifiers > MOST_WAITERS as u64 {
                return reader.missing("a believable number of waiters");
            }
            let status_fn = reader.flag("whether the status is edited")?.then(edits_nothing);
            let notifiers = (0..notifiers).map(|_| Notifier::new().0).collect();
            State::Terminating(Box::new(Terminating { stop, flags, grace, forced, notifiers, status_fn }))
        }
        3 => {
            let config = read_some_config(reader)?;
            State::Terminated(Box::new(Terminated { config, flags: read_flags(reader)? }))
        }
        4 => State::Finished(Finished {
            full_name: reader.full_name("a name")?,
            is_static: reader.flag("whether a pod is static")?,
            flags: read_flags(reader)?,
        }),
        _ => return reader.missing("a state of this version"),
    };
    let mut record = Record {
        state,
        pending: None,
        running: None,
        due: None,
        failure: None,
        history: History::begin(now, Cause::FirstUpdate),
    };
    if reader.flag("whether an update is pending")? {
        let kind = reader.coded("the kind of an update")?;
        let target = read_target(reader, Held::active(record.active()))?;
        let start_time = reader.some_time(now, "a start time")?;
        record.pending =
            Some(Pending { kind, target, start_time, since: reader.time(now, "since when it is pending")? });
    }
    if reader.flag("whether a hook runs")? {
        record.running = Some(RunningHook {
            hook: reader.coded("a hook")?,
            since: reader.time(now, "since when a hook runs")?,
            kind: reader.coded("the kind of an update")?,
            start_time: reader.some_time(now, "a start time")?,
        });
    }
    record.due = reader.some_time(now, "a due time")?;
    if reader.flag("whether a hook fails")? {
        record.failure = Some(Box::new(Failure {
            hook: reader.coded("a hook")?,
            error: reader.text("an error")?.to_owned(),
            blame: Blame::Nothing,
            count: reader.small("how often it failed")?,
            since: reader.time(now, "since when it fails")?,
        }));
    }
    record.history = read_history(reader, now)?;
    Ok((uid, record))
}

fn read_history(reader: &mut Reader<'_>, now: Time) -> Read<History> {
    let mut history: Option<History> = None;
    for _ in 0..reader.number("how many moves")?.min(5) {
        let at = reader.time(now, "when a move was")?;
        let cause = reader.coded("the cause of a move")?;
        match &mut history {
            Some(history) => history.push(at, cause),
            None => history = Some(History::begin(at, cause)),
        }
    }
    history.map_or_else(|| reader.missing("a first move"), Ok)
}

fn put_stop(bytes: &mut Vec<u8>, stop: &Stop) {
    match stop {
        Stop::Unstarted { observed_runtime } => {
            bytes.byte(0);
            bytes.flag(*observed_runtime);
        }
        Stop::Requested { config } | Stop::Begun { config } => {
            bytes.byte(1);
            put_config(bytes, config, Held::default());
            bytes.flag(matches!(stop, Stop::Begun { .. }));
        }
        Stop::Runtime { running } => {
            bytes.byte(2);
            put_running(bytes, running);
        }
    }
}

fn read_stop(reader: &mut Reader<'_>) -> Read<Stop> {
    Ok(match reader.byte("how far a stop is")? {
        0 => Stop::Unstarted { observed_runtime: reader.flag("whether the runtime knew the pod")? },
        1 => {
            let config = read_config(reader, Held::default())?;
            match reader.flag("whether a terminate hook was called")? {
                false => Stop::Requested { config },
                true => Stop::Begun { config },
            }
        }
        2 => Stop::Runtime { running: Arc::new(read_running(reader)?) },
        _ => return reader.missing("how far a stop is"),
    })
}

fn read_some_config(reader: &mut Reader<'_>) -> Read<Option<Config>> {
    match reader.flag("whether a spec is known")? {
        true => read_config(reader, Held::default()).map(Some),
        false => Ok(None),
    }
}

fn put_flags(bytes: &mut Vec<u8>, flags: Flags) {
    let Flags { deleted, evicted, restart_requested } = flags;
    bytes.byte(u8::from(deleted) | u8::from(evicted) << 1 | u8::from(restart_requested) << 2);
}

fn read_flags(reader: &mut Reader<'_>) -> Read<Flags> {
    let flags = reader.byte("a pod's flags")?;
    Ok(Flags { deleted: flags & 1 != 0, evicted: flags & 2 != 0, restart_requested: flags & 4 != 0 })
}
