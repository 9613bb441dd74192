//! The digest of a record: a few bytes that show whether a replay reached the same state.

use std::fmt;

use super::object::version;
use crate::codec::{Read, Reader, put_number};
use crate::pod_worker::state::{Flags, Record, State, Stop, Waiting};
use crate::pod_worker::step::Effects;
use crate::pod_worker::{Config, Hook, Lifecycle, Target, UpdateKind};
use crate::time::Time;

/// The most waiters of a pod that a digest and a keyframe count. A replay makes a notifier for each, so a larger number would
/// let a small file take much memory.
pub(crate) const MOST_WAITERS: usize = 16;

/// The names of the single bits, in order. They follow the three lowest bits, which are the lifecycle.
const BITS: [&str; 14] = [
    "deleted",
    "evicted",
    "restart requested",
    "working",
    "blocked",
    "failing",
    "grace requested",
    "stop begun",
    "seen in the runtime",
    "started",
    "runtime only",
    "runtime only pending",
    "spec known",
    "due",
];
const WORKING: u32 = 1 << 6;
const BLOCKED: u32 = 1 << 7;
const FAILING: u32 = 1 << 8;
const FORCED: u32 = 1 << 9;
const BEGUN: u32 = 1 << 10;
const SEEN: u32 = 1 << 11;
const STARTED: u32 = 1 << 12;
const RUNTIME_ONLY: u32 = 1 << 13;
const PENDING_RUNTIME: u32 = 1 << 14;
const CONFIG: u32 = 1 << 15;
const DUE: u32 = 1 << 16;
/// After [`BITS`] come the kind of the pending update and the running hook, three bits each.
const PENDING: usize = 3 + BITS.len();
const RUNNING: usize = PENDING + 3;

/// A record's state, in short. The time since which an update is pending is left out: plain updates are counted without
/// their times, and no decision depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Digest {
    bits: u32,
    /// A hash over the times and counts, the objects, and the effects of a step.
    check: u32,
    /// The grace period in seconds; zero if none is decided.
    grace: u32,
}

impl Digest {
    /// The digest of a record and of the effects of the step that led to it.
    pub(crate) fn after(record: &Record, effects: &Effects) -> Self {
        let Effects { wake, cancel, started, end, forget, call, .. } = effects;
        let call = call.as_ref().map_or(0, |call| hook(call.hook()));
        let flags = [*wake, *cancel, *started, *end, *forget];
        let flags = flags.into_iter().fold(call, |all, flag| all << 1 | u32::from(flag));
        Digest::beginning(Check(flags.into()), record)
    }

    /// The digest of a record alone.
    pub(crate) fn of(record: &Record) -> Self {
        Digest::beginning(Check(0), record)
    }

    fn beginning(mut check: Check, record: &Record) -> Self {
        let mut grace = 0;
        let (mut bits, active) = match &record.state {
            State::Waiting(waiting) => {
                check.time(waiting.blocked_since());
                (Lifecycle::Waiting as u32 | bit(BLOCKED, matches!(waiting, Waiting::Blocked { .. })), None)
            }
            State::Sync(started) => (Lifecycle::Sync as u32 | CONFIG, Some(&started.config)),
            State::Terminating(t) => {
                grace = t.grace.seconds();
                let notifiers = t.notifiers.len().min(MOST_WAITERS) as u64;
                check.add(notifiers << 1 | u64::from(t.status_fn.is_some()));
                let (stop, config) = match &t.stop {
                    Stop::Unstarted { observed_runtime } => (bit(SEEN, *observed_runtime), None),
                    Stop::Requested { config } => (CONFIG | STARTED, Some(config)),
                    Stop::Begun { config } => (CONFIG | STARTED | BEGUN, Some(config)),
                    Stop::Runtime { .. } => (RUNTIME_ONLY, None),
                };
                (Lifecycle::Terminating as u32 | flags(t.flags) | bit(FORCED, t.forced) | stop, config)
            }
            State::Terminated(t) => {
                (Lifecycle::Terminated as u32 | flags(t.flags) | bit(CONFIG, t.config.is_some()), t.config.as_ref())
            }
            State::Finished(finished) => (Lifecycle::Finished as u32 | flags(finished.flags), None),
        };
        if let Some(active) = active {
            check.config(active);
        }
        if let Some(pending) = &record.pending {
            bits |= kind(pending.kind) << PENDING | bit(WORKING, bits & BLOCKED == 0);
            bits |= match &pending.target {
                Target::Config(config) => {
                    check.config(config);
                    CONFIG
                }
                Target::Runtime(_) => PENDING_RUNTIME,
            };
            check.time(pending.start_time);
        }
        if let Some(running) = record.running() {
            bits |= hook(running.hook) << RUNNING | WORKING;
            check.time(Some(running.since));
        }
        if let Some(failure) = &record.failure {
            bits |= FAILING;
            check.time(Some(failure.since));
            check.add(failure.count.into());
        }
        if let Some(due) = record.due() {
            bits |= DUE;
            check.time(Some(due));
        }
        check.time(Some(record.last_move()));
        Digest { bits, check: check.folded(), grace }
    }

    /// Writes the bits and the check in eight bytes, and then the grace period if the pod is terminating. The bits and the
    /// check are large numbers, so a fixed length is shorter and faster than the numbers of the codec.
    #[inline]
    pub(crate) fn put(self, bytes: &mut Vec<u8>) {
        bytes.extend_from_slice(&(u64::from(self.bits) | u64::from(self.check) << 32).to_le_bytes());
        if self.has_grace() {
            put_number(bytes, self.grace.into());
        }
    }

    pub(crate) fn read(reader: &mut Reader<'_>) -> Read<Self> {
        let bits = u32::from_le_bytes(reader.array("a state")?);
        let check = u32::from_le_bytes(reader.array("the check of a state")?);
        let digest = Digest { bits, check, grace: 0 };
        Ok(if digest.has_grace() { Digest { grace: reader.take("a grace period")?, ..digest } } else { digest })
    }

    fn has_grace(self) -> bool {
        self.bits & 7 == Lifecycle::Terminating as u32
    }
}

fn bit(bit: u32, is_set: bool) -> u32 {
    if is_set { bit } else { 0 }
}

fn flags(flags: Flags) -> u32 {
    let Flags { deleted, evicted, restart_requested } = flags;
    u32::from(deleted) << 3 | u32::from(evicted) << 4 | u32::from(restart_requested) << 5
}

/// For people: the bits by name, the grace period, and the check over all other facts.
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
        match self.bits >> PENDING & 7 {
            0 => {}
            1 => f.write_str(", create pending")?,
            2 => f.write_str(", update pending")?,
            3 => f.write_str(", sync pending")?,
            _ => f.write_str(", kill pending")?,
        }
        let running = [Hook::Sync, Hook::Terminating, Hook::TerminatingRuntime, Hook::Terminated];
        if let Some(called) = running.into_iter().find(|called| hook(*called) == self.bits >> RUNNING) {
            write!(f, ", {} runs", called.as_str())?;
        }
        if self.grace > 0 {
            write!(f, ", grace {} s", self.grace)?;
        }
        write!(f, ", check {:08x}", self.check)
    }
}

fn kind(kind: UpdateKind) -> u32 {
    match kind {
        UpdateKind::Create => 1,
        UpdateKind::Update => 2,
        UpdateKind::Sync => 3,
        UpdateKind::Kill => 4,
    }
}

fn hook(hook: Hook) -> u32 {
    match hook {
        Hook::Sync => 1,
        Hook::Terminating => 2,
        Hook::TerminatingRuntime => 3,
        Hook::Terminated => 4,
    }
}

/// A hash with one multiplication for each value. The constant is that of splitmix64's first round.
struct Check(u64);

impl Check {
    #[inline]
    fn add(&mut self, value: u64) {
        self.0 = (self.0.rotate_left(23) ^ value).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    }

    #[inline]
    fn time(&mut self, time: Option<Time>) {
        self.add(time.map_or(u64::MAX, Time::as_nanos));
    }

    /// The facts that a step reads of an object, and its version. The mirror is left out: a plain update may have none, and is
    /// counted without it.
    #[inline]
    fn config(&mut self, config: &Config) {
        let pod = &config.pod;
        let flags = [pod.is_static(), pod.is_mirror(), pod.is_deleting()];
        self.add(flags.into_iter().fold(pod.phase() as u64, |all, flag| all << 1 | u64::from(flag)));
        for grace in [pod.deletion_grace(), pod.spec_grace()] {
            self.add(grace.map_or(u64::MAX, |grace| grace as u64));
        }
        for bytes in version(pod).as_bytes().chunks(8) {
            self.add(bytes.iter().fold(bytes.len() as u64, |all, byte| all << 8 | u64::from(*byte)));
        }
    }

    fn folded(self) -> u32 {
        (self.0 ^ self.0 >> 32) as u32
    }
}
