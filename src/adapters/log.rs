//! What containers log, in the CRI format: `TIME STREAM TAG TEXT`, where the tag is `F` for a line's end and `P` before.
//!
//! ```text
//!  N.log                       what run N of a container writes to
//!  N.log.20261121-203000       what was moved away then, because it was full; the newest is as it was written
//!  N.log.20261121-202000.gz    older ones
//! ```
//!
//! `rotation` keeps them small, `reader` reads them as the one log that they are.

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

/// A runtime whose containers write logs that somebody else rotates.
pub trait WritesLogs: Send + Sync + 'static {
    /// The logs of the containers that run.
    fn open_logs(&self) -> RuntimeFuture<'_, Vec<OpenLog>>;

    /// Has a container that runs go on in a new file at its log's path, after the old one was moved away. The file may be
    /// there a moment after this returns.
    fn reopen_log<'a>(&'a self, container: &'a ContainerId) -> RuntimeFuture<'a, ()>;
}

/// A log that is written to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenLog {
    /// By whom.
    pub container: ContainerId,
    /// Where.
    pub path: PathBuf,
}

/// Removes the log of a run, with what rotation made of it; what is gone is fine. Blocks.
#[cfg(any(feature = "cri", feature = "process"))]
pub(super) fn remove_run(path: &Path) -> io::Result<()> {
    let (Some(dir), Some(name)) = (path.parent(), path.file_name().and_then(|name| name.to_str())) else {
        return Ok(());
    };
    // A rotated one carries a suffix behind the name.
    let of_run = |file: &str| file.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'));
    let gone_is_fine = |result: io::Result<()>| match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result,
    };
    let entries = match std::fs::read_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        let entry = entry?;
        if of_run(&entry.file_name().to_string_lossy()) {
            gone_is_fine(std::fs::remove_file(entry.path()))?;
        }
    }
    Ok(())
}

/// Longer lines are cut into pieces of this many bytes (containerd's default `max_container_log_line_size`).
#[cfg(any(feature = "cri", feature = "process"))]
pub(super) const MAX_PIECE: usize = 16 * 1024;

/// How much of a log stands for a termination message (`kubelet/container/runtime.go`, kubelet 1.36).
#[cfg(any(feature = "cri", feature = "process"))]
const MAX_BYTES: usize = 2048;
#[cfg(any(feature = "cri", feature = "process"))]
const MAX_RECORDS: usize = 80;

/// The end of a log, as a container's termination message: nothing if it cannot be read. Blocking.
#[cfg(any(feature = "cri", feature = "process"))]
pub(super) fn end_of_log(path: &Path) -> Vec<u8> {
    let mut raw = Vec::new();
    let read = File::open(path).and_then(|mut file| {
        let start = file.metadata()?.len().saturating_sub(tail_window(MAX_RECORDS, MAX_BYTES) as u64);
        file.seek(SeekFrom::Start(start))?;
        file.read_to_end(&mut raw)?;
        Ok(start > 0)
    });
    read.map_or_else(|_| Vec::new(), |cut| tail(&raw, cut, MAX_RECORDS, MAX_BYTES))
}

/// One record, read back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// When it was written, as it stands there.
    pub time: &'a [u8],
    /// `stdout` or `stderr`.
    pub stream: &'a str,
    /// Whether its line ends with it.
    pub ends: bool,
    /// What was written, without the end of the line.
    pub text: &'a [u8],
}

impl<'a> Record<'a> {
    /// Reads a record, with or without the newline behind it. `None` if it is torn, or none of ours.
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

/// What the last records of a log say: at most so many records, and of their text at most so many bytes.
///
/// `bytes` are the end of the log; `cut` says that they may begin within a record, which then does not count.
/// [`tail_window`] says how many bytes make sure that nothing is missed.
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

/// How many bytes of a log's end hold what [`tail`] is asked for, though they begin within a record.
#[cfg(any(feature = "cri", feature = "process"))]
pub const fn tail_window(max_records: usize, max_bytes: usize) -> usize {
    HEADER + MAX_PIECE + max_records * HEADER + max_bytes
}

/// More than time, stream and tag of a record take, with the newline behind it.
#[cfg(any(feature = "cri", feature = "process"))]
const HEADER: usize = 64;
