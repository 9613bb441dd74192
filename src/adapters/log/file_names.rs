//! The files of one run's log, by their names.

use jiff::civil::DateTime;

/// How the time stands in a name (upstream `timestampFormat`, kubelet 1.36). UTC.
const FORMAT: &str = "%Y%m%d-%H%M%S";
/// Behind the name of what is compressed.
const COMPRESSED: &str = ".gz";
/// Behind the name of what is not finished yet (upstream `tmpSuffix`).
const TEMPORARY: &str = ".tmp";

/// The file that a run writes to.
pub(super) fn current(run: u32) -> String {
    format!("{run}.log")
}

/// What a file in the directory of a log is to that log.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum LogFile {
    /// It is written to.
    Current,
    /// It was moved away then.
    Rotated(RotatedFile),
    /// Left of what did not come to its end.
    Temporary,
}

/// A file that was moved away.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct RotatedFile {
    /// When.
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

/// What `file` is to the log that is written to `current`; `None` if nothing.
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
    // Times are read more freely than they are written.
    (rotated.name(current) == file).then_some(LogFile::Rotated(rotated))
}

/// The name under which a file is compressed that will be called `name`.
pub(super) fn temporary(name: &str) -> String {
    format!("{name}{TEMPORARY}")
}

/// What was moved away, oldest first. Of a file that is there both ways the compressed one counts, which is whole.
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
    fn a_file_is_known_by_its_name() {
        let at = jiff::civil::date(2026, 11, 21).at(20, 30, 5, 0);
        let rotated = |compressed| Some(LogFile::Rotated(RotatedFile { at, compressed }));
        for (file, is) in [
            ("3.log", Some(LogFile::Current)),
            ("3.log.20261121-203005", rotated(false)),
            ("3.log.20261121-203005.gz", rotated(true)),
            ("3.log.20261121-203005.gz.tmp", Some(LogFile::Temporary)),
            ("3.log.tmp", Some(LogFile::Temporary)),
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
    fn what_was_moved_away_comes_in_the_order_of_time_and_once() {
        let files = ["0.log.20261121-203005", "0.log", "0.log.20261120-203005.gz", "0.log.20261121-203005.gz", "1.log"];
        let names: Vec<String> = rotated("0.log", files).iter().map(|rotated| rotated.name("0.log")).collect();
        assert_eq!(names, ["0.log.20261120-203005.gz", "0.log.20261121-203005.gz"]);
    }
}
