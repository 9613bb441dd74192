//! Writes the container's log in the CRI format: `TIME STREAM TAG TEXT`. The tag is `F` if the record ends a line and `P` if
//! the line continues in the next record.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use podwright_host::log::MAX_PIECE;
pub use podwright_host::log::{Record, tail, tail_window};

use super::super::files::Layout;
use super::note;

/// The open log file.
pub struct Log {
    path: PathBuf,
    file: File,
    /// Whether the last write failed.
    failing: bool,
    /// Whether the last write ended within a record.
    torn: bool,
}

impl Log {
    /// Opens the file for appending. A link, FIFO or device at its path is replaced by a new file.
    pub fn open(path: &Path) -> io::Result<Self> {
        let (dir, name) = Layout::split_log(path);
        // The mode that the kubelet's log files have: log collectors that run as another user read the files through their
        // group.
        let file = dir.open()?.append(&name, 0o640)?;
        Ok(Log { path: path.to_owned(), file, failing: false, torn: false })
    }

    /// Opens the log's path again, after the old file was moved away.
    pub fn reopen(&mut self) -> io::Result<()> {
        *self = Log::open(&self.path)?;
        Ok(())
    }

    /// Writes whole records. If the write fails, for example because the disk is full, the output is lost: waiting would
    /// block the container, whose pipe would fill up. The next write does not continue a record of which only a part was written.
    pub fn write(&mut self, records: &[u8]) {
        let result = if self.torn { self.append(b"\n") } else { Ok(()) }.and_then(|()| self.append(records));
        match &result {
            Err(error) if !self.failing => {
                note(&format!("cannot write to the log, output is lost: {}: {error}", self.path.display()));
            }
            _ => {}
        }
        self.failing = result.is_err();
    }

    fn append(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            match self.file.write(bytes) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => {
                    self.torn = bytes[written - 1] != b'\n';
                    bytes = &bytes[written..];
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// Splits one stream into records.
pub struct Lines {
    stream: &'static str,
    /// The beginning of a line whose end has not been read yet. It is shorter than [`MAX_PIECE`].
    pending: Vec<u8>,
    /// Whether the last record does not end a line.
    in_line: bool,
}

impl Lines {
    /// A splitter for `stdout` or `stderr`.
    pub fn new(stream: &'static str) -> Self {
        Lines { stream, pending: Vec::new(), in_line: false }
    }

    /// Whether a part of a line was read and is in no record yet.
    pub fn has_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Appends the record of an unfinished line to `records`, so that readers of the log get it before its end.
    pub fn flush(&mut self, time: &str, records: &mut Vec<u8>) {
        if self.has_pending() {
            self.record(time, b"P", b"", records);
        }
    }

    /// Takes bytes of the stream and appends the records that they complete to `records`.
    pub fn feed(&mut self, time: &str, mut bytes: &[u8], records: &mut Vec<u8>) {
        while !bytes.is_empty() {
            let room = MAX_PIECE - self.pending.len();
            match bytes.iter().take(room + 1).position(|b| *b == b'\n') {
                Some(end) => {
                    self.record(time, b"F", &bytes[..end], records);
                    bytes = &bytes[end + 1..];
                }
                None if bytes.len() > room => {
                    self.record(time, b"P", &bytes[..room], records);
                    bytes = &bytes[room..];
                }
                None => {
                    self.pending.extend_from_slice(bytes);
                    return;
                }
            }
        }
    }

    /// Ends the stream: appends the record of an unfinished line to `records`.
    pub fn finish(&mut self, time: &str, records: &mut Vec<u8>) {
        if self.has_pending() || self.in_line {
            self.record(time, b"F", b"", records);
        }
    }

    fn record(&mut self, time: &str, tag: &[u8], text: &[u8], records: &mut Vec<u8>) {
        for part in [time.as_bytes(), b" ", self.stream.as_bytes(), b" ", tag, b" ", &self.pending, text, b"\n"] {
            records.extend_from_slice(part);
        }
        self.pending = Vec::new();
        self.in_line = tag == b"P";
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn records(chunks: &[&[u8]]) -> Vec<(String, Vec<u8>)> {
        let mut lines = Lines::new("stdout");
        let mut out = Vec::new();
        for chunk in chunks {
            lines.feed("T", chunk, &mut out);
        }
        lines.finish("T", &mut out);
        let split = out.split_inclusive(|b| *b == b'\n');
        split
            .map(|record| {
                let record = Record::parse(record).unwrap();
                (if record.ends { "F" } else { "P" }.to_owned(), record.text.to_vec())
            })
            .collect()
    }

    #[test]
    fn lines_are_split_at_newlines_in_any_chunking() {
        let full = |text: &str| ("F".to_owned(), text.as_bytes().to_vec());
        assert_eq!(records(&[b"a\nb c\n\n"]), [full("a"), full("b c"), full("")]);
        assert_eq!(records(&[b"hel", b"lo\nwor", b"ld"]), [full("hello"), full("world")]);
        assert_eq!(records(&[]), []);
    }

    #[test]
    fn long_lines_are_split_into_pieces_that_add_up() {
        for len in [MAX_PIECE - 1, MAX_PIECE, MAX_PIECE + 1, 2 * MAX_PIECE, 5 * MAX_PIECE + 7] {
            for chunk in [1000, MAX_PIECE, usize::MAX] {
                for end in [&b""[..], b"\n"] {
                    let text: Vec<u8> = (0..len).map(|i| b'a' + u8::try_from(i % 26).unwrap()).collect();
                    let input = [&text, end].concat();
                    let records = records(&input.chunks(chunk.min(input.len())).collect::<Vec<_>>());
                    let (last, before) = records.split_last().unwrap();
                    assert_eq!(last.0, "F", "{len} {chunk}");
                    assert!(before.iter().all(|(tag, piece)| tag == "P" && piece.len() == MAX_PIECE));
                    assert!(last.1.len() <= MAX_PIECE);
                    assert_eq!(records.iter().flat_map(|(_, piece)| piece.clone()).collect::<Vec<_>>(), text);
                }
            }
        }
    }

    #[test]
    fn unfinished_line_is_flushed_once_and_ends_later() {
        let (mut lines, mut out) = (Lines::new("stdout"), Vec::new());
        lines.flush("1", &mut out);
        lines.feed("2", b"$ ", &mut out);
        assert!(lines.has_pending());
        lines.flush("3", &mut out);
        lines.flush("4", &mut out);
        lines.feed("5", b"ls\n$ ", &mut out);
        lines.flush("6", &mut out);
        lines.finish("7", &mut out);
        lines.finish("8", &mut out);
        let text = String::from_utf8(out).unwrap();
        assert_eq!(text, "3 stdout P $ \n5 stdout F ls\n6 stdout P $ \n7 stdout F \n");
    }

    /// The log of a text.
    fn log(text: &[u8]) -> Vec<u8> {
        let (mut lines, mut out) = (Lines::new("stderr"), Vec::new());
        lines.feed("T", text, &mut out);
        lines.finish("T", &mut out);
        out
    }

    #[test]
    fn log_tail_keeps_the_last_lines_and_bytes() {
        let text = |n: usize, text: &str| (0..n).map(|i| format!("{text}{i}\n")).collect::<String>();
        let short = tail(&log(text(100, "").as_bytes()), false, 80, 2048);
        assert_eq!(short.split(|b| *b == b'\n').count(), 81);
        assert!(short.starts_with(b"20\n") && short.ends_with(b"99\n"));
        let long = tail(&log(text(100, &"x".repeat(100)).as_bytes()), false, 80, 2048);
        assert_eq!(long.len(), 2048);
        assert!(long.ends_with(b"x99\n"));
        assert_eq!(tail(b"", false, 80, 2048), b"");
        assert_eq!(tail(b"T stdout F a\nT stdou", false, 80, 2048), b"a\n", "the shim was killed while it wrote");
    }

    #[test]
    fn log_tail_joins_the_pieces_of_a_long_line() {
        let text = "x".repeat(20 * MAX_PIECE + 100);
        let log = log(text.as_bytes());
        let window = &log[log.len().saturating_sub(tail_window(2048))..];
        assert_eq!(tail(window, true, 80, 2048), format!("{}\n", "x".repeat(2047)).as_bytes());
    }

    #[test]
    fn log_tail_counts_the_pieces_of_a_line_once() {
        let dots = |end: &str| "T stdout P .\n".repeat(100) + end;
        let log = format!("T stdout F first\nT stdout F second\n{}T stderr F third\n", dots("T stdout F !\n"));
        let line = format!("{}!\n", ".".repeat(100));
        for (lines, text) in [
            (4, format!("first\nsecond\n{line}third\n")),
            (3, format!("second\n{line}third\n")),
            (2, format!("{line}third\n")),
            (1, "third\n".to_owned()),
            (0, String::new()),
        ] {
            assert_eq!(tail(log.as_bytes(), false, lines, 2048), text.as_bytes(), "{lines} lines");
        }
        // A line whose end was not written yet.
        let open = format!("T stdout F first\n{}", dots(""));
        assert_eq!(tail(open.as_bytes(), false, 1, 2048), ".".repeat(100).as_bytes());
        assert_eq!(tail(open.as_bytes(), false, 2, 2048), format!("first\n{}", ".".repeat(100)).as_bytes());
        // The shortest records.
        let short = "2026-01-02T03:04:05.678901234Z stdout P .\n".repeat(10_000);
        let window = &short[short.len() - tail_window(2048)..];
        assert_eq!(tail(window.as_bytes(), true, 80, 2048), ".".repeat(2048).as_bytes());
    }
}
