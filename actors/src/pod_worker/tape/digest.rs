//! What a record stands for in a few bytes: enough to see that a replay came to the same state.

use std::fmt;

use crate::pod_worker::lifecycle::{Hook, Lifecycle};
use crate::pod_worker::state::{Record, State, Stop};
use crate::pod_worker::update::{Target, UpdateKind};
use crate::recorder::{Put, Read, Reader};
use crate::time::Time;

/// Names of the single bits, in order; the lowest three bits are the lifecycle.
const BITS: [&str; 13] = [
    "deleted",
    "evicted",
    "restart requested",
    "working",
    "blocked",
    "failing",
    "grace forced",
    "terminate hook noticed",
    "runtime seen",
    "started",
    "runtime only",
    "pending of the runtime",
    "spec known",
];

/// A record's state, in short. Since when an update is pending is left out: plain updates are counted without their times,
/// and no decision depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Digest {
    /// Lifecycle, then [`BITS`], then pending kind and hook, three bits each.
    bits: u32,
    /// Zero where none is decided.
    grace: u32,
    /// Over the times and counts.
    check: u32,
}

impl Digest {
    pub(crate) fn of(record: &Record) -> Self {
        let flags = record.flags();
        let (mut forced, mut noticed, mut seen, mut started, mut runtime) = (false, false, false, false, false);
        let (mut notifiers, mut edits, mut blocked_since) = (0, false, None);
        match &record.state {
            State::Waiting(waiting) => blocked_since = waiting.blocked_since,
            State::Terminating(t) => {
                forced = t.forced;
                notifiers = t.notifiers.len();
                edits = t.status_fn.is_some();
                match &t.stop {
                    Stop::Unstarted { observed_runtime } => seen = *observed_runtime,
                    Stop::Started { noticed: called, .. } => (started, noticed) = (true, *called),
                    Stop::Runtime { .. } => runtime = true,
                }
            }
            State::Sync(_) | State::Terminated(_) | State::Finished(_) => {}
        }
        let of_runtime = record.pending.as_ref().is_some_and(|pending| matches!(pending.target, Target::Runtime(_)));
        let bits = [
            flags.deleted,
            flags.evicted,
            flags.restart_requested,
            record.is_working(),
            record.is_blocked(),
            record.failure.is_some(),
            forced,
            noticed,
            seen,
            started,
            runtime,
            of_runtime,
            record.config().is_some(),
        ];
        let mut packed = record.lifecycle() as u32;
        for (place, bit) in bits.into_iter().enumerate() {
            packed |= u32::from(bit) << (3 + place);
        }
        packed |= record.pending.as_ref().map_or(0, |pending| kind(pending.kind)) << (3 + BITS.len());
        packed |= record.running.map_or(0, |running| hook(running.hook)) << (6 + BITS.len());

        let mut check = Check(0);
        check.time(record.due);
        check.time(blocked_since);
        check.time(record.pending.as_ref().and_then(|pending| pending.start_time));
        if let Some(running) = record.running {
            check.time(Some(running.since));
        }
        if let Some(failure) = &record.failure {
            check.time(Some(failure.since));
            check.add(failure.count.into());
        }
        check.add(notifiers.min(usize::from(u16::MAX)) as u64);
        check.add(edits.into());
        check.time(Some(record.last_move()));
        Digest { bits: packed, grace: record.grace().map_or(0, |grace| grace.seconds()), check: check.folded() }
    }

    pub(crate) fn put(self, bytes: &mut Vec<u8>) {
        bytes.number(self.bits.into());
        bytes.number(self.grace.into());
        bytes.raw(&self.check.to_le_bytes());
    }

    pub(crate) fn read(reader: &mut Reader<'_>) -> Read<Self> {
        Ok(Digest {
            bits: reader.small("a state")?,
            grace: reader.small("a grace")?,
            check: u32::from_le_bytes(reader.array("a check of times")?),
        })
    }
}

/// For people, all but the times.
impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lifecycles =
            [Lifecycle::Waiting, Lifecycle::Sync, Lifecycle::Terminating, Lifecycle::Terminated, Lifecycle::Finished];
        let lifecycle = lifecycles.into_iter().find(|lifecycle| *lifecycle as u32 == self.bits & 7);
        f.write_str(lifecycle.map_or("no lifecycle", Lifecycle::as_str))?;
        for (place, name) in BITS.into_iter().enumerate() {
            if self.bits >> (3 + place) & 1 == 1 {
                write!(f, ", {name}")?;
            }
        }
        match self.bits >> (3 + BITS.len()) & 7 {
            0 => {}
            1 => f.write_str(", create pending")?,
            2 => f.write_str(", update pending")?,
            3 => f.write_str(", sync pending")?,
            _ => f.write_str(", kill pending")?,
        }
        let running = [Hook::Sync, Hook::Terminating, Hook::TerminatingRuntime, Hook::Terminated];
        if let Some(called) = running.into_iter().find(|called| hook(*called) == self.bits >> (6 + BITS.len())) {
            write!(f, ", {} runs", called.as_str())?;
        }
        if self.grace > 0 {
            write!(f, ", grace {} s", self.grace)?;
        }
        write!(f, ", times {:08x}", self.check)
    }
}

pub(super) fn kind(kind: UpdateKind) -> u32 {
    match kind {
        UpdateKind::Create => 1,
        UpdateKind::Update => 2,
        UpdateKind::Sync => 3,
        UpdateKind::Kill => 4,
    }
}

pub(super) fn hook(hook: Hook) -> u32 {
    match hook {
        Hook::Sync => 1,
        Hook::Terminating => 2,
        Hook::TerminatingRuntime => 3,
        Hook::Terminated => 4,
    }
}

/// One multiplication for each value (the constant is that of splitmix64's first round).
struct Check(u64);

impl Check {
    fn add(&mut self, value: u64) {
        self.0 = (self.0.rotate_left(23) ^ value).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    }

    fn time(&mut self, time: Option<Time>) {
        self.add(time.map_or(u64::MAX, Time::as_nanos));
    }

    fn folded(self) -> u32 {
        (self.0 ^ self.0 >> 32) as u32
    }
}
