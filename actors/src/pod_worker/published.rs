//! The published state of a record: one byte that queries read without the lock of its cell.

use super::lifecycle::Lifecycle;
use super::state::Record;

/// The facts of a record that queries need, at one time. Zero means no record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Published(u8);

/// The lowest three bits: one more than the lifecycle.
const LIFECYCLE: u8 = 7;
const CONTAINERS_TERMINATING: u8 = 1 << 3;
const CONTENT_REMOVABLE: u8 = 1 << 4;
const RESTART_REQUESTED: u8 = 1 << 5;
const HAS_CONFIG: u8 = 1 << 6;
const STATIC: u8 = 1 << 7;

impl Published {
    /// No record.
    pub(crate) const NONE: Published = Published(0);

    /// The published state of a record.
    pub(crate) fn of(record: &Record) -> Self {
        let mut word = 0;
        if record.has_config() {
            word |= HAS_CONFIG;
        }
        if record.is_static() {
            word |= STATIC;
        }
        Published(word).and_then(record)
    }

    /// The published state of the same record after a step that kept its pod. The facts of the pod are taken from `self`,
    /// because reading the object again would be a cache miss.
    pub(crate) fn and_then(self, record: &Record) -> Self {
        let lifecycle = match record.lifecycle() {
            Lifecycle::Waiting => 1,
            Lifecycle::Sync => 2,
            Lifecycle::Terminating => 3,
            Lifecycle::Terminated => 4,
            Lifecycle::Finished => 5,
        };
        let bit = |bit: u8, is_set: bool| if is_set { bit } else { 0 };
        Published(
            self.0 & (HAS_CONFIG | STATIC)
                | lifecycle
                | bit(CONTAINERS_TERMINATING, record.should_containers_be_terminating())
                | bit(CONTENT_REMOVABLE, record.should_content_be_removed())
                | bit(RESTART_REQUESTED, record.flags().restart_requested),
        )
    }

    /// The byte that is stored.
    pub(crate) const fn to_word(self) -> u8 {
        self.0
    }

    /// The state from a stored byte.
    pub(crate) const fn from_word(word: u8) -> Self {
        Published(word)
    }

    /// The pod's lifecycle; `None` if there is no record.
    pub(crate) fn lifecycle(self) -> Option<Lifecycle> {
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
    pub(crate) fn stage(self) -> u64 {
        u64::from(self.0 & LIFECYCLE)
    }

    fn is(self, bit: u8) -> Option<bool> {
        self.lifecycle().map(|_| self.0 & bit != 0)
    }

    /// See [`Record::should_containers_be_terminating`].
    pub(crate) fn should_containers_be_terminating(self) -> Option<bool> {
        self.is(CONTAINERS_TERMINATING)
    }

    /// See [`Record::should_content_be_removed`].
    pub(crate) fn should_content_be_removed(self) -> Option<bool> {
        self.is(CONTENT_REMOVABLE)
    }

    pub(crate) fn restart_requested(self) -> bool {
        self.0 & RESTART_REQUESTED != 0
    }

    pub(crate) fn has_config(self) -> bool {
        self.0 & HAS_CONFIG != 0
    }

    pub(crate) fn is_static(self) -> bool {
        self.0 & STATIC != 0
    }
}
