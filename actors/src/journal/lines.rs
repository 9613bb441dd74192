//! The lines of a journal, and those that have to be written. Pure.
//!
//! A change appends one line to the file, and the last line of an entry counts. Once the file has more than twice as many lines as
//! entries, plus `OUTDATED_LINES`, all entries are saved again. So the cost of a change does not grow with the number of entries, and the
//! file does not grow with time.

use std::sync::Arc;

use super::Write;

/// How many outdated lines the file may have, besides one for each entry.
pub(crate) const OUTDATED_LINES: usize = 256;

/// The largest number of lines in the file before all entries are saved again.
fn limit(entries: usize) -> usize {
    2 * entries + OUTDATED_LINES
}

/// The lines of the file of a store.
#[derive(Debug, Default)]
pub(crate) struct Lines {
    /// Grows with every change.
    version: u64,
    /// The number of lines in the file.
    in_file: usize,
    unwritten: Unwritten,
}

/// The changes that are not in the file.
#[derive(Debug, Default)]
enum Unwritten {
    /// The content of the file is not known, so all entries have to be saved. That is so before the first write: the last line that an
    /// earlier agent wrote may be incomplete, and nothing may be appended to it.
    #[default]
    All,
    /// These lines have to be appended.
    Lines(Vec<Arc<str>>),
}

impl Lines {
    /// The version of the store.
    pub(crate) fn version(&self) -> u64 {
        self.version
    }

    /// Queues the line of a change, and returns the version of the store with it. A change without a line saves all entries. The store has
    /// this number of entries.
    pub(crate) fn push(&mut self, record: Option<Arc<str>>, entries: usize) -> u64 {
        self.version += 1;
        match (&mut self.unwritten, record) {
            (Unwritten::Lines(lines), Some(record)) if lines.len() < limit(entries) => lines.push(record),
            // If the disk cannot be written for hours, the queue must not fill the memory.
            (unwritten, _) => *unwritten = Unwritten::All,
        }
        self.version
    }

    /// Takes the next write, which is assumed to succeed. `all` makes the records of all entries of the store.
    pub(crate) fn take(&mut self, entries: usize, all: impl FnOnce() -> Vec<Arc<str>>) -> Write {
        match std::mem::replace(&mut self.unwritten, Unwritten::Lines(Vec::new())) {
            Unwritten::Lines(lines) if self.in_file + lines.len() <= limit(entries) => {
                self.in_file += lines.len();
                Write::Append(lines)
            }
            Unwritten::Lines(_) | Unwritten::All => {
                let records = all();
                self.in_file = records.len();
                Write::Save(records)
            }
        }
    }

    /// The content of the file is not known, so the next write saves all entries.
    pub(crate) fn forget_file(&mut self) {
        self.unwritten = Unwritten::All;
    }

    /// The number of lines that wait to be appended.
    #[cfg(test)]
    pub(crate) fn queued(&self) -> usize {
        match &self.unwritten {
            Unwritten::All => 0,
            Unwritten::Lines(lines) => lines.len(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_appended_until_too_many_are_outdated_or_the_file_is_not_known() {
        let all = || vec![Arc::from("all")];
        let is_save = |lines: &mut Lines, entries: usize| matches!(lines.take(entries, all), Write::Save(_));
        let line = || Some(Arc::from("line"));
        let mut lines = Lines::default();
        lines.push(line(), 0);
        assert!(is_save(&mut lines, 1), "the first write");
        // The save has left one line in the file.
        for _ in 0..2 + OUTDATED_LINES - 1 {
            lines.push(line(), 1);
            assert!(!is_save(&mut lines, 1));
        }
        lines.push(line(), 1);
        assert!(is_save(&mut lines, 1), "the file has its largest number of lines");
        lines.push(line(), 1);
        assert!(!is_save(&mut lines, 1));

        lines.push(line(), 1);
        lines.forget_file();
        assert!(is_save(&mut lines, 1), "the file is not known");
        lines.push(None, 1);
        assert!(is_save(&mut lines, 1), "a change has no line");

        let before = lines.version();
        for _ in 0..10 * OUTDATED_LINES {
            lines.push(line(), 1);
            assert!(lines.queued() <= 2 + OUTDATED_LINES, "the queue does not fill the memory");
        }
        assert_eq!(lines.version(), before + 10 * OUTDATED_LINES as u64);
        assert!(is_save(&mut lines, 1), "the queue was too long");
    }
}
