//! When a manifest file that has changed may be read. Pure.
//!
//! A file is read when it is whole: its writer has closed it, it was moved to its path, or it has not changed for a while. Half a
//! manifest may be a valid pod.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

/// How long a file must stay unchanged after it was closed, moved or removed. Editors write a file in several such steps, and the event
/// of the next step may be late.
pub(super) const STEPS: Duration = Duration::from_millis(100);
/// How long a file must stay unchanged if its writer is unknown. A new file waits as long although it is closed, because it may be a
/// temporary file that is about to be renamed.
pub(super) const QUIET: Duration = Duration::from_secs(1);
/// How long a file must stay unchanged that its writer has not closed.
const OPEN: Duration = Duration::from_secs(10);
/// How long a changed file may stay incomplete before this is reported. The first set waits equally long for all files, so that it includes
/// a file that its writer neither closes nor changes.
pub(super) const LATE: Duration = Duration::from_secs(20);

/// The last event of a file that says whether the file is whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FileEvent {
    pub(super) kind: FileEventKind,
    pub(super) at: Instant,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FileEventKind {
    /// The file was written to or truncated, and not closed since.
    Written,
    /// A writer closed the file.
    Closed,
    /// The file was moved to its path.
    MovedIn,
}

/// The state of a file. Every change of the content changes it, unless two changes within one tick of the system's clock leave the same
/// size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stamp {
    file: (u64, u64),
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Stamp {
    pub(super) fn of(meta: &Metadata) -> Self {
        Stamp {
            file: (meta.dev(), meta.ino()),
            size: meta.size(),
            modified: (meta.mtime(), meta.mtime_nsec()),
            changed: (meta.ctime(), meta.ctime_nsec()),
        }
    }
}

/// A path that has a manifest, or had one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Settling {
    /// `None` while the path has no file.
    stamp: Option<Stamp>,
    /// The event that belongs to the last change.
    event: Option<FileEventKind>,
    /// Since when the file is unchanged.
    since: Instant,
    /// Since when the file has a change that was not read. A failed reading counts too.
    unread_since: Instant,
    /// The last time at which a settled file was read, with or without success.
    read: Option<Instant>,
}

impl Settling {
    /// A path whose file is unchanged since then.
    pub(super) fn new(stamp: Option<Stamp>, since: Instant) -> Self {
        Settling { stamp, event: None, since, unread_since: since, read: None }
    }

    /// Takes the state of the file, and the last event of its path.
    pub(super) fn observe(&mut self, stamp: Option<Stamp>, event: Option<FileEvent>, now: Instant) {
        let was_current = self.is_current();
        if stamp != self.stamp {
            self.stamp = stamp;
            self.since = now;
        }
        // An event from before the last reading belongs to the change that was read.
        let event = event.filter(|event| self.read.is_none_or(|read| event.at > read));
        self.event = event.map(|event| event.kind);
        self.since = event.map_or(self.since, |event| event.at.max(self.since));
        if was_current && !self.is_current() {
            self.unread_since = now;
        }
    }

    /// Whether the file has not changed since it was read.
    pub(super) fn is_current(&self) -> bool {
        self.read.is_some_and(|read| read >= self.since)
    }

    /// Whether the file has changed, and was not whole for a long time since then.
    pub(super) fn is_late(&self, now: Instant) -> bool {
        !self.is_current() && now.duration_since(self.unread_since) >= LATE
    }

    /// When the file may be read, if nothing changes until then. A time in the past for a file that may be read now.
    pub(super) fn settles_at(&self) -> Instant {
        let is_new = self.read.is_none();
        let delay = match (self.stamp, self.event) {
            _ if self.is_current() => Duration::ZERO,
            (Some(_), Some(FileEventKind::Written)) => OPEN,
            (Some(_), Some(FileEventKind::Closed)) if is_new => QUIET,
            (Some(_), None) => QUIET,
            (Some(_), Some(FileEventKind::Closed | FileEventKind::MovedIn)) | (None, _) => STEPS,
        };
        self.since + delay
    }

    /// The settled file was read, with or without success. `at` is a time before the reading.
    pub(super) fn was_read(&mut self, at: Instant) {
        self.read = Some(at);
        self.unread_since = at;
    }
}

#[cfg(test)]
mod tests {
    use FileEventKind::{Closed, MovedIn, Written};

    use super::*;

    fn stamp(size: u64) -> Option<Stamp> {
        Some(Stamp { file: (1, 2), size, modified: (3, 4), changed: (3, 4) })
    }

    struct Clock(Instant);

    impl Clock {
        fn at(&self, millis: u64) -> Instant {
            self.0 + Duration::from_millis(millis)
        }

        fn event(&self, kind: FileEventKind, millis: u64) -> Option<FileEvent> {
            Some(FileEvent { kind, at: self.at(millis) })
        }

        fn settles(&self, file: &Settling) -> u128 {
            file.settles_at().duration_since(self.0).as_millis()
        }

        /// A file that was read at 10 s.
        fn known(&self) -> Settling {
            let mut file = Settling::new(stamp(1), self.at(0));
            file.was_read(self.at(10_000));
            file
        }
    }

    #[test]
    fn changed_file_is_read_when_it_is_whole() {
        let clock = Clock(Instant::now());
        for (what, new_stamp, event, expected) in [
            ("unchanged", stamp(1), None, 0),
            ("an event before the reading", stamp(1), clock.event(Written, 9_000), 0),
            ("removed", None, None, 20_100),
            ("closed", stamp(2), clock.event(Closed, 19_990), 20_100),
            ("closed during the scan", stamp(2), clock.event(Closed, 20_005), 20_105),
            ("moved in", stamp(2), clock.event(MovedIn, 19_990), 20_100),
            ("changed without an event", stamp(2), None, 21_000),
            ("changed long after its event", stamp(2), clock.event(Closed, 9_000), 21_000),
            ("being written", stamp(2), clock.event(Written, 20_000), 30_000),
            ("being written with an equal stamp", stamp(1), clock.event(Written, 20_000), 30_000),
        ] {
            let mut file = clock.known();
            file.observe(new_stamp, event, clock.at(20_000));
            assert_eq!(clock.settles(&file), expected, "{what}");
        }
    }

    #[test]
    fn new_file_waits_until_it_is_no_temporary_file() {
        let clock = Clock(Instant::now());
        for (what, event, expected) in [
            ("closed", clock.event(Closed, 0), 1_000),
            ("moved in", clock.event(MovedIn, 0), 100),
            ("being written", clock.event(Written, 0), 10_000),
            ("unknown", None, 1_000),
        ] {
            let mut file = Settling::new(stamp(1), clock.at(0));
            file.observe(stamp(1), event, clock.at(0));
            assert_eq!(clock.settles(&file), expected, "{what}");
        }
    }

    #[test]
    fn file_of_a_slow_writer_is_read_once() {
        let clock = Clock(Instant::now());
        let mut file = clock.known();
        for (size, at) in [(2, 20_000), (3, 24_000), (4, 25_000)] {
            file.observe(stamp(size), clock.event(Written, at), clock.at(at + 50));
            assert_eq!(clock.settles(&file), u128::from(at) + 10_050);
        }
        assert_eq!([40_049, 40_050].map(|at| file.is_late(clock.at(at))), [false, true]);
        file.observe(stamp(4), clock.event(Closed, 26_000), clock.at(26_000));
        assert_eq!(clock.settles(&file), 26_100);
        file.was_read(clock.at(26_100));
        file.observe(stamp(4), clock.event(Closed, 26_000), clock.at(60_000));
        assert!(file.is_current() && file.settles_at() <= clock.at(26_100) && !file.is_late(clock.at(60_000)));
    }
}
