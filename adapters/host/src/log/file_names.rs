//! The names of the files of a run's log. Pure.

use jiff::civil::DateTime;

/// The format of the time in a name, in UTC (upstream `timestampFormat`, kubelet 1.36).
const FORMAT: &str = "%Y%m%d-%H%M%S";
/// The suffix of a compressed file.
const COMPRESSED: &str = ".gz";
/// The suffix of an unfinished file (upstream `tmpSuffix`).
const TEMPORARY: &str = ".tmp";

/// The name of the file that a run writes to.
pub(super) fn current(run: u32) -> String {
    format!("{run}.log")
}

/// A file of a log.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum LogFile {
    /// The file that the container writes to.
    Current,
    /// A file that was moved away.
    Rotated(RotatedFile),
    /// The remains of an interrupted compression.
    Temporary,
}

/// A log file that was moved away.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct RotatedFile {
    /// The time at which it was moved away, in UTC.
    pub(super) at: DateTime,
    /// Whether it is compressed.
    pub(super) compressed: bool,
}

impl RotatedFile {
    /// The name of the file.
    pub(super) fn name(&self, current: &str) -> String {
        let compressed = if self.compressed { COMPRESSED } else { "" };
        format!("{current}.{}{compressed}", self.at.strftime(FORMAT))
    }
}

/// Which file of the log `current` has the name `file`; `None` if it is not a file of that log.
pub(super) fn log_file(current: &str, file: &str) -> Option<LogFile> {
    let rest = file.strip_prefix(current)?;
    if rest.is_empty() {
        return Some(LogFile::Current);
    }
    if rest.starts_with('.') && rest.ends_with(TEMPORARY) {
        return Some(LogFile::Temporary);
    }
    let rest = rest.strip_prefix('.')?;
    let (stamp, compressed) = match rest.strip_suffix(COMPRESSED) {
        Some(stamp) => (stamp, true),
        None => (rest, false),
    };
    let at = DateTime::strptime(FORMAT, stamp).ok()?;
    let rotated = RotatedFile { at, compressed };
    // Parsing accepts more spellings of a time than formatting produces.
    (rotated.name(current) == file).then_some(LogFile::Rotated(rotated))
}

/// The name of the file `name` while it is unfinished. `random` makes the name unpredictable, so that no other program can use
/// it before the agent creates the file.
pub(super) fn temporary(name: &str, random: u128) -> String {
    format!("{name}.{random:032x}{TEMPORARY}")
}

/// The rotated files of the log `current`, oldest first. If a file exists compressed and uncompressed, only the compressed
/// one is returned: it got its name when it was complete.
pub(super) fn rotated<'a>(current: &str, files: impl IntoIterator<Item = &'a str>) -> Vec<RotatedFile> {
    let pieces = files.into_iter().filter_map(|file| log_file(current, file));
    let mut rotated: Vec<RotatedFile> =
        pieces.filter_map(|piece| if let LogFile::Rotated(rotated) = piece { Some(rotated) } else { None }).collect();
    rotated.sort_by_key(|rotated| (rotated.at, !rotated.compressed));
    rotated.dedup_by_key(|rotated| rotated.at);
    rotated
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_file_is_recognized_by_its_name() {
        let at = jiff::civil::date(2026, 11, 21).at(20, 30, 5, 0);
        let rotated = |compressed| Some(LogFile::Rotated(RotatedFile { at, compressed }));
        for (file, is) in [
            ("3.log", Some(LogFile::Current)),
            ("3.log.20261121-203005", rotated(false)),
            ("3.log.20261121-203005.gz", rotated(true)),
            ("3.log.20261121-203005.gz.tmp", Some(LogFile::Temporary)),
            ("3.log.tmp", Some(LogFile::Temporary)),
            (&temporary("3.log.20261121-203005.gz", 7), Some(LogFile::Temporary)),
            ("3.log.20261121-203", None),
            ("3.log.20261321-203005", None),
            ("3.log.gz", None),
            ("3.logs", None),
            ("13.log", None),
            ("4.log.20261121-203005", None),
        ] {
            assert_eq!(log_file("3.log", file), is, "{file}");
        }
    }

    #[test]
    fn rotated_log_files_are_sorted_by_time_without_duplicates() {
        let files = ["0.log.20261121-203005", "0.log", "0.log.20261120-203005.gz", "0.log.20261121-203005.gz", "1.log"];
        let names: Vec<String> = rotated("0.log", files).iter().map(|rotated| rotated.name("0.log")).collect();
        assert_eq!(names, ["0.log.20261120-203005.gz", "0.log.20261121-203005.gz"]);
    }
}
