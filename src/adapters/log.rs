//! Reading back what a container logged in the CRI format: `TIME STREAM TAG TEXT`, where the tag is `F` for a line's end
//! and `P` before.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

/// Longer lines are cut into pieces of this many bytes (containerd's default `max_container_log_line_size`).
pub(super) const MAX_PIECE: usize = 16 * 1024;

/// How much of a log stands for a termination message (`kubelet/container/runtime.go`, kubelet 1.36).
const MAX_BYTES: usize = 2048;
const MAX_RECORDS: usize = 80;

/// The end of a log, as a container's termination message: nothing if it cannot be read. Blocking.
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
        let mut parts = line.splitn(4, |b| *b == b' ').skip(1);
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
        Some(Record { stream, ends, text: parts.next()? })
    }
}

/// What the last records of a log say: at most so many records, and of their text at most so many bytes.
///
/// `bytes` are the end of the log; `cut` says that they may begin within a record, which then does not count.
/// [`tail_window`] says how many bytes make sure that nothing is missed.
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
pub const fn tail_window(max_records: usize, max_bytes: usize) -> usize {
    HEADER + MAX_PIECE + max_records * HEADER + max_bytes
}

/// More than time, stream and tag of a record take, with the newline behind it.
const HEADER: usize = 64;
