//! The published state of a record: one byte that queries read without the lock of its cell. Pure.

use super::lifecycle::Lifecycle;
use super::state::{Flags, Record, State, Stop};

/// The facts of a record that queries need, at one time. Zero means no record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Published(u8);

/// The lowest three bits: one more than the lifecycle.
const LIFECYCLE: u8 = 7;
const CONTAINERS_TERMINATING: u8 = 1 << 3;
const CONTENT_REMOVABLE: u8 = 1 << 4;
const RESTART_REQUESTED: u8 = 1 << 5;
const HAS_CONFIG: u8 = 1 << 6;
const STATIC: u8 = 1 << 7;

impl Published {
    /// No record.
    pub const NONE: Published = Published(0);

    /// The published state of a record.
    #[inline]
    pub fn of(record: &Record) -> Self {
        let config = match &record.state {
            State::Waiting(_) => None,
            State::Sync(started) => Some(&started.config),
            State::Terminating(t) => match &t.stop {
                // The worker stops the pod without a spec, also if a source has sent one since.
                Stop::Runtime { .. } => return Published(0).with_state_of(record),
                stop => stop.config(),
            },
            State::Terminated(t) => t.config.as_ref(),
            State::Finished(finished) => {
                return Published(HAS_CONFIG | bit(STATIC, finished.is_static)).with_state_of(record);
            }
        };
        let facts = match config.or_else(|| record.pending_config()) {
            Some(config) => HAS_CONFIG | bit(STATIC, config.pod.is_static()),
            None => 0,
        };
        Published(facts).with_state_of(record)
    }

    /// The published state of the same record after a step that kept its pod. The facts of the pod are taken from `self`,
    /// because reading the object again would be a cache miss.
    #[inline]
    pub fn with_state_of(self, record: &Record) -> Self {
        let flags = |flags: Flags, is_terminated: bool| {
            bit(CONTENT_REMOVABLE, flags.evicted || (flags.deleted && is_terminated))
                | bit(RESTART_REQUESTED, flags.restart_requested)
        };
        let state = match &record.state {
            State::Waiting(_) => 1,
            State::Sync(_) => 2,
            State::Terminating(t) => 3 | bit(CONTAINERS_TERMINATING, t.stop.has_begun()) | flags(t.flags, false),
            State::Terminated(t) => 4 | CONTAINERS_TERMINATING | flags(t.flags, true),
            State::Finished(finished) => 5 | CONTAINERS_TERMINATING | flags(finished.flags, true),
        };
        Published(self.0 & (HAS_CONFIG | STATIC) | state)
    }

    /// The byte that is stored.
    #[inline]
    pub const fn to_word(self) -> u8 {
        self.0
    }

    /// The state from a stored byte.
    #[inline]
    pub const fn from_word(word: u8) -> Self {
        Published(word)
    }

    /// The pod's lifecycle; `None` if there is no record.
    #[inline]
    pub fn lifecycle(self) -> Option<Lifecycle> {
        match self.0 & LIFECYCLE {
            1 => Some(Lifecycle::Waiting),
            2 => Some(Lifecycle::Sync),
            3 => Some(Lifecycle::Terminating),
            4 => Some(Lifecycle::Terminated),
            5 => Some(Lifecycle::Finished),
            _ => None,
        }
    }

    /// The lifecycle as a number below eight; zero if there is no record.
    #[inline]
    pub fn stage(self) -> u64 {
        u64::from(self.0 & LIFECYCLE)
    }

    #[inline]
    fn is(self, bit: u8) -> Option<bool> {
        self.lifecycle().map(|_| self.0 & bit != 0)
    }

    /// Whether the worker has begun to stop the pod, so that setup must not start more containers. Upstream answers no for a
    /// pod that ended before its start; this answers yes, because nothing of such a pod may be started either (POD-W32).
    #[inline]
    pub fn should_containers_be_terminating(self) -> Option<bool> {
        self.is(CONTAINERS_TERMINATING)
    }

    /// Whether the pod's directories and volumes may be removed.
    #[inline]
    pub fn should_content_be_removed(self) -> Option<bool> {
        self.is(CONTENT_REMOVABLE)
    }

    /// Whether the pod was created again before its record ended.
    #[inline]
    pub fn restart_requested(self) -> bool {
        self.0 & RESTART_REQUESTED != 0
    }

    /// Whether the record has a spec of the pod.
    #[inline]
    pub fn has_config(self) -> bool {
        self.0 & HAS_CONFIG != 0
    }

    /// Whether the pod is static.
    #[inline]
    pub fn is_static(self) -> bool {
        self.0 & STATIC != 0
    }
}

#[inline]
fn bit(bit: u8, is_set: bool) -> u8 {
    if is_set { bit } else { 0 }
}
