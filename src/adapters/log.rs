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

#[cfg(feature = "agent")]
mod file_names;
#[cfg(feature = "agent")]
mod printer;
#[cfg(feature = "agent")]
pub mod reader;
#[cfg(feature = "agent")]
pub mod rotation;

#[cfg(any(feature = "cri", feature = "process"))]
use std::fs::File;
#[cfg(any(feature = "cri", feature = "process"))]
use std::io::{self, Read, Seek, SeekFrom};
#[cfg(any(feature = "cri", feature = "process"))]
use std::path::Path;
use std::path::PathBuf;

use podwright_actors::ids::ContainerId;
use podwright_actors::ports::RuntimeFuture;

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
    /// The file that the container writes to.
    pub path: PathBuf,
}

/// Removes the log of a run with its rotated files. Succeeds if there are none. Blocks.
#[cfg(any(feature = "cri", feature = "process"))]
pub(super) fn remove_run(path: &Path) -> io::Result<()> {
    let (Some(dir), Some(name)) = (path.parent(), path.file_name().and_then(|name| name.to_str())) else {
        return Ok(());
    };
    // A rotated file has the name of the log with a suffix.
    let belongs_to_run =
        |file: &str| file.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'));
    let ignore_missing = |result: io::Result<()>| match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result,
    };
    let entries = match std::fs::read_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        let entry = entry?;
        if belongs_to_run(&entry.file_name().to_string_lossy()) {
            ignore_missing(std::fs::remove_file(entry.path()))?;
        }
    }
    Ok(())
}

/// The most bytes of text in one record. A longer line takes several records (containerd's default
/// `max_container_log_line_size`).
#[cfg(any(feature = "cri", feature = "process"))]
pub(super) const MAX_PIECE: usize = 16 * 1024;

/// The most bytes of a log that become a termination message (`kubelet/container/runtime.go`, kubelet 1.36).
#[cfg(any(feature = "cri", feature = "process"))]
const TERMINATION_MESSAGE_BYTES: usize = 2048;
/// The most records of a log that become a termination message (same source).
#[cfg(any(feature = "cri", feature = "process"))]
const TERMINATION_MESSAGE_RECORDS: usize = 80;

/// The end of a log, for the termination message of its container. Empty if the log cannot be read. Blocks.
#[cfg(any(feature = "cri", feature = "process"))]
pub(super) fn end_of_log(path: &Path) -> Vec<u8> {
    let mut raw = Vec::new();
    let read = File::open(path).and_then(|mut file| {
        let start = file
            .metadata()?
            .len()
            .saturating_sub(tail_window(TERMINATION_MESSAGE_RECORDS, TERMINATION_MESSAGE_BYTES) as u64);
        file.seek(SeekFrom::Start(start))?;
        file.read_to_end(&mut raw)?;
        Ok(start > 0)
    });
    read.map_or_else(|_| Vec::new(), |cut| tail(&raw, cut, TERMINATION_MESSAGE_RECORDS, TERMINATION_MESSAGE_BYTES))
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

/// The text of the last records of a log: at most `max_records` records, and at most `max_bytes` bytes.
///
/// `bytes` is the end of the log. `cut` means that `bytes` may begin in the middle of a record, which is then ignored.
/// [`tail_window`] returns how many bytes the caller has to read.
#[cfg(any(feature = "cri", feature = "process"))]
pub fn tail(bytes: &[u8], cut: bool, max_records: usize, max_bytes: usize) -> Vec<u8> {
    let whole = bytes.split_inclusive(|b| *b == b'\n').skip(usize::from(cut));
    let records: Vec<Record<'_>> = whole.filter_map(Record::parse).collect();
    let mut text = Vec::new();
    for record in &records[records.len().saturating_sub(max_records)..] {
        text.extend_from_slice(record.text);
        if record.ends {
            text.push(b'\n');
        }
    }
    text.drain(..text.len().saturating_sub(max_bytes));
    text
}

/// How many bytes from the end of a log [`tail`] needs for these limits, even if they begin in the middle of a record.
#[cfg(any(feature = "cri", feature = "process"))]
pub const fn tail_window(max_records: usize, max_bytes: usize) -> usize {
    HEADER + MAX_PIECE + max_records * HEADER + max_bytes
}

/// An upper bound on the bytes of a record besides its text: the time, the stream, the tag and the newline.
#[cfg(any(feature = "cri", feature = "process"))]
const HEADER: usize = 64;
