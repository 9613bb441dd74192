//! The logs of containers in the CRI format: `TIME STREAM TAG TEXT`. The tag is `F` if the record ends a line and `P` if the
//! line continues in the next record.
//!
//! ```text
//!  N.log                       the file that run N of the container writes to
//!  N.log.20261121-203000       the newest rotated file, moved away at that time because it was full
//!  N.log.20261121-202000.gz    an older rotated file, compressed
//! ```
//!
//! `rotation` limits the size of the logs. `reader` reads all files of a run as one log.

mod dir;
mod file_names;
mod printer;
pub mod reader;
pub mod rotation;

use std::io::{self, Read, Seek, SeekFrom};
use std::path::PathBuf;

use podwright_model::ids::ContainerId;
use podwright_ports::RuntimeFuture;

pub use dir::{LogDir, OpenLogDir};

/// A runtime whose container logs have to be rotated by the agent.
pub trait WritesLogs: Send + Sync + 'static {
    /// The logs of all running containers.
    fn open_logs(&self) -> RuntimeFuture<'_, Vec<OpenLog>>;

    /// Makes a running container write to a new file at its log's path, after the old file was moved away. The new file may
    /// appear shortly after this returns.
    fn reopen_log<'a>(&'a self, container: &'a ContainerId) -> RuntimeFuture<'a, ()>;
}

/// The log of a running container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenLog {
    /// The container that writes the log.
    pub container: ContainerId,
    /// The directory of the container's logs.
    pub dir: LogDir,
    /// The name of the file that the container writes to.
    pub file: String,
}

impl OpenLog {
    /// The path of the file that the container writes to.
    pub fn path(&self) -> PathBuf {
        self.dir.path().join(&self.file)
    }
}

/// Removes the log of a run with its rotated files. Succeeds if there are none. Blocks.
pub fn remove_run(dir: &LogDir, file: &str) -> io::Result<()> {
    // A rotated file has the name of the log with a suffix.
    let belongs_to_run =
        |name: &str| name.strip_prefix(file).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'));
    let opened = match dir.open() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        opened => opened?,
    };
    opened.names()?.iter().filter(|name| belongs_to_run(name)).try_for_each(|name| opened.remove_tree(name))
}

/// The most bytes of text in one record. A longer line takes several records (containerd's default
/// `max_container_log_line_size`).
pub const MAX_PIECE: usize = 16 * 1024;

/// The most bytes of a log that become a termination message (`kubelet/container/runtime.go`, kubelet 1.36).
const TERMINATION_MESSAGE_BYTES: usize = 2048;
/// The most lines of a log that become a termination message (same source).
const TERMINATION_MESSAGE_LINES: usize = 80;

/// The end of a log, for the termination message of its container. Blocks.
///
/// # Errors
/// If the log cannot be read, or is not a regular file.
pub fn end_of_log(dir: &LogDir, file: &str) -> io::Result<Vec<u8>> {
    const WINDOW: u64 = tail_window(TERMINATION_MESSAGE_BYTES) as u64;
    let mut raw = Vec::new();
    let mut file = dir.open()?.file(file)?;
    let start = file.metadata()?.len().saturating_sub(WINDOW);
    file.seek(SeekFrom::Start(start))?;
    // The file may grow while it is read.
    file.take(WINDOW).read_to_end(&mut raw)?;
    Ok(tail(&raw, start > 0, TERMINATION_MESSAGE_LINES, TERMINATION_MESSAGE_BYTES))
}

/// One record of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// The time of the record, as written in the log.
    pub time: &'a [u8],
    /// `stdout` or `stderr`.
    pub stream: &'a str,
    /// Whether the record ends its line.
    pub ends: bool,
    /// The text, without the newline.
    pub text: &'a [u8],
}

impl<'a> Record<'a> {
    /// Parses a record, with or without its newline. `None` if the bytes are not a complete record.
    pub fn parse(line: &'a [u8]) -> Option<Self> {
        let line = line.strip_suffix(b"\n").unwrap_or(line);
        let mut parts = line.splitn(4, |b| *b == b' ');
        let time = parts.next()?;
        let stream = match parts.next()? {
            b"stdout" => "stdout",
            b"stderr" => "stderr",
            _ => return None,
        };
        let ends = match parts.next()? {
            b"F" => true,
            b"P" => false,
            _ => return None,
        };
        Some(Record { time, stream, ends, text: parts.next()? })
    }
}

/// The text of the last lines of a log: at most `max_lines` lines, and at most `max_bytes` bytes. The records of one line count
/// once, because the documentation of `terminationMessagePolicy` counts lines of output. Upstream counts records, so a line of many
/// short records displaces the lines before it (`pkg/util/tail`, kubelet 1.36).
///
/// `bytes` is the end of the log. `cut` means that `bytes` may begin in the middle of a record, which is then ignored.
/// [`tail_window`] returns how many bytes the caller has to read.
pub fn tail(bytes: &[u8], cut: bool, max_lines: usize, max_bytes: usize) -> Vec<u8> {
    let whole = bytes.split_inclusive(|b| *b == b'\n').skip(usize::from(cut));
    let records: Vec<Record<'_>> = whole.filter_map(Record::parse).collect();
    let mut text = Vec::new();
    for record in &records[first_of_last_lines(&records, max_lines)..] {
        text.extend_from_slice(record.text);
        if record.ends {
            text.push(b'\n');
        }
    }
    text.drain(..text.len().saturating_sub(max_bytes));
    text
}

/// The index of the first record of the last `count` lines. Records after the last end of a line are a line of their own.
fn first_of_last_lines(records: &[Record<'_>], count: usize) -> usize {
    let mut lines = 0;
    let mut follows_end = true;
    for (index, record) in records.iter().enumerate().rev() {
        if record.ends || follows_end {
            lines += 1;
        }
        if lines > count {
            return index + 1;
        }
        follows_end = false;
    }
    0
}

/// How many bytes from the end of a log [`tail`] needs for so many bytes of text, even if they begin in the middle of a record. Each
/// record has at least one byte of text or the end of a line.
pub const fn tail_window(max_bytes: usize) -> usize {
    HEADER + MAX_PIECE + max_bytes * (HEADER + 1)
}

/// An upper bound on the bytes of a record besides its text: the time, the stream, the tag and the newline.
const HEADER: usize = 64;

#[cfg(test)]
mod tests {
    use podwright_fixtures::hostile_files::{clear, plants};

    use super::*;

    // A FIFO blocked the thread that read the container's status.
    #[test]
    fn end_of_a_log_that_is_not_a_regular_file_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let (secret, path) = (dir.path().join("secret"), dir.path().join("0.log"));
        std::fs::write(&secret, "T stdout F secret\n").unwrap();
        let logs = LogDir::new(dir.path(), ".");
        for (what, plant) in plants(&secret) {
            plant(&path);
            assert!(end_of_log(&logs, "0.log").is_err(), "{what}");
            remove_run(&logs, "0.log").unwrap();
            assert!(path.symlink_metadata().is_err(), "{what} was not removed");
            clear(&path);
        }
        std::fs::write(&path, "T stdout F text\n").unwrap();
        assert_eq!(end_of_log(&logs, "0.log").unwrap(), b"text\n");
    }

    #[test]
    fn logs_behind_a_link_are_not_removed() {
        let (dir, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        std::fs::write(other.path().join("0.log"), "").unwrap();
        std::os::unix::fs::symlink(other.path(), dir.path().join("c")).unwrap();
        assert!(remove_run(&LogDir::new(dir.path(), "c"), "0.log").is_err());
        assert!(other.path().join("0.log").exists());
    }
}
