//! Turns records into lines: joins the records of a line and prints only the requested lines. Pure.
//!
//! The memory is bounded for any input. A record that is longer than any runtime writes is printed in parts. Records that
//! arrive while a line of the other stream is unfinished are held back up to a limit.

use jiff::Timestamp;

use super::Record;
use super::reader::LogStream;

/// How many bytes of a record are kept until its end is read: four times the longest record of a runtime.
const MAX_RECORD: usize = 64 << 10;
/// How many bytes of one stream are held back until a line of the other stream ends.
const MAX_HELD: usize = 64 << 10;

/// Which lines to print, and how.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct PrintOptions {
    /// Print only lines that began at this time or later.
    pub(super) since: Option<Timestamp>,
    /// Print the time of each line before its text.
    pub(super) timestamps: bool,
    /// Skip this many lines at the beginning.
    pub(super) skip: u64,
    /// Print only the lines of this stream.
    pub(super) stream: Option<LogStream>,
}

/// Prints the lines of a log.
#[derive(Debug, Default)]
pub(super) struct Printer {
    options: PrintOptions,
    /// The beginning of a record whose end has not been read yet.
    record: Vec<u8>,
    /// How to handle the bytes up to the end of the current record.
    rest: RestOfRecord,
    /// The line whose end has not been read yet.
    line: Option<OpenLine>,
    /// Records of the other stream that arrived since that line began.
    held: Vec<u8>,
}

#[derive(Clone, Copy, Debug, Default)]
enum RestOfRecord {
    /// Append the bytes to `record`.
    #[default]
    Keep,
    /// Print the bytes: they are the text of a record that is too long to keep.
    Print { stream: &'static str, ends: bool },
    /// Drop the bytes: they are not a record.
    Drop,
}

#[derive(Clone, Copy, Debug)]
struct OpenLine {
    stream: &'static str,
    printed: bool,
}

impl Printer {
    pub(super) fn new(options: PrintOptions) -> Self {
        Printer { options, ..Printer::default() }
    }

    /// Takes the next bytes of the log and appends the text to print to `out`.
    pub(super) fn feed(&mut self, bytes: &[u8], out: &mut Vec<u8>) {
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            let (text, whole) = match part.strip_suffix(b"\n") {
                Some(text) => (text, true),
                None => (part, false),
            };
            match self.rest {
                RestOfRecord::Keep => self.feed_record(text, whole, out),
                RestOfRecord::Print { stream, ends } => self.print_piece(b"", stream, whole && ends, text, out),
                RestOfRecord::Drop => {}
            }
            if whole {
                self.rest = RestOfRecord::Keep;
            }
        }
    }

    /// Ends the log: a line without an end is ended.
    pub(super) fn finish(&mut self, out: &mut Vec<u8>) {
        while self.line.is_some() {
            self.end_line(out);
        }
    }

    fn feed_record(&mut self, text: &[u8], whole: bool, out: &mut Vec<u8>) {
        // Nearly every record is read in one part.
        if whole && self.record.is_empty() {
            self.print_record(text, out);
            return;
        }
        let room = (MAX_RECORD - self.record.len()).min(text.len());
        self.record.extend_from_slice(&text[..room]);
        if !whole && self.record.len() < MAX_RECORD {
            return;
        }
        let record = std::mem::take(&mut self.record);
        if whole && room == text.len() {
            self.print_record(&record, out);
            return;
        }
        let Some(Record { time, stream, ends, text: begun }) = Record::parse(&record) else {
            self.rest = RestOfRecord::Drop;
            return;
        };
        let stream = stream_name(stream);
        self.print_piece(time, stream, false, begun, out);
        self.print_piece(b"", stream, whole && ends, &text[room..], out);
        self.rest = RestOfRecord::Print { stream, ends };
    }

    /// Prints a complete record. Bytes that are not a record are dropped.
    fn print_record(&mut self, record: &[u8], out: &mut Vec<u8>) {
        if let Some(Record { time, stream, ends, text }) = Record::parse(record) {
            self.print_piece(time, stream_name(stream), ends, text, out);
        }
    }

    fn print_piece(&mut self, time: &[u8], stream: &'static str, ends: bool, text: &[u8], out: &mut Vec<u8>) {
        let line = match self.line {
            Some(line) if line.stream != stream => {
                self.hold(time, stream, ends, text, out);
                return;
            }
            Some(line) => line,
            None => self.begin_line(time, stream, out),
        };
        if line.printed {
            out.extend_from_slice(text);
        }
        if ends {
            self.end_line(out);
        }
    }

    fn begin_line(&mut self, time: &[u8], stream: &'static str, out: &mut Vec<u8>) -> OpenLine {
        let printed = self.options.skip == 0 && self.is_requested(stream) && self.is_late_enough(time);
        if printed && self.options.timestamps {
            out.extend_from_slice(time);
            out.push(b' ');
        }
        let line = OpenLine { stream, printed };
        self.line = Some(line);
        line
    }

    fn is_requested(&self, stream: &str) -> bool {
        self.options.stream.is_none_or(|requested| (requested == LogStream::Stderr) == (stream == "stderr"))
    }

    fn is_late_enough(&mut self, time: &[u8]) -> bool {
        let Some(since) = self.options.since else { return true };
        let time = std::str::from_utf8(time).ok().and_then(|time| time.parse::<Timestamp>().ok());
        let late = time.is_some_and(|time| time >= since);
        if late {
            // The following lines are later, so their times need not be parsed.
            self.options.since = None;
        }
        late
    }

    fn end_line(&mut self, out: &mut Vec<u8>) {
        if self.line.take().is_some_and(|line| line.printed) {
            out.push(b'\n');
        }
        self.options.skip = self.options.skip.saturating_sub(1);
        let held = std::mem::take(&mut self.held);
        for record in held.split(|byte| *byte == b'\n') {
            self.print_record(record, out);
        }
    }

    fn hold(&mut self, time: &[u8], stream: &'static str, ends: bool, text: &[u8], out: &mut Vec<u8>) {
        if self.held.len() + text.len() > MAX_HELD {
            self.end_line(out);
            self.print_piece(time, stream, ends, text, out);
            return;
        }
        let tag = if ends { b"F" } else { b"P" };
        for part in [time, b" ", stream.as_bytes(), b" ", tag, b" ", text, b"\n"] {
            self.held.extend_from_slice(part);
        }
    }
}

fn stream_name(stream: &str) -> &'static str {
    if stream == "stderr" { "stderr" } else { "stdout" }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The text that is printed for a log. It must not depend on the size of the chunks.
    fn printed(options: PrintOptions, log: &[u8]) -> String {
        let whole = in_chunks(options, log, log.len().max(1));
        for size in [1, 7, 4096] {
            assert_eq!(in_chunks(options, log, size), whole, "in chunks of {size}");
        }
        String::from_utf8(whole).unwrap()
    }

    fn in_chunks(options: PrintOptions, log: &[u8], size: usize) -> Vec<u8> {
        let (mut printer, mut out) = (Printer::new(options), Vec::new());
        log.chunks(size).for_each(|chunk| printer.feed(chunk, &mut out));
        printer.finish(&mut out);
        out
    }

    fn log(records: &[&str]) -> Vec<u8> {
        let number = |(i, record): (usize, &&str)| format!("2026-01-01T00:00:0{i}.5Z {record}\n");
        records.iter().enumerate().map(number).collect::<String>().into_bytes()
    }

    #[test]
    fn printer_joins_pieces_and_drops_other_bytes() {
        let all = PrintOptions::default();
        let rows: [(&[&str], &str); 7] = [
            (&["stdout F a", "stderr F b", "stdout F "], "a\nb\n\n"),
            (&["stdout P a", "stdout P b", "stdout F c"], "abc\n"),
            // Records of the other stream wait for the end of the line.
            (&["stdout P a", "stderr F x", "stderr P y", "stdout F b", "stderr F z"], "ab\nx\nyz\n"),
            (&["stdout P a", "stderr P x", "stdout F b"], "ab\nx\n"),
            (&["stdout P a"], "a\n"),
            (&["stdin F a", "stdout X b", "nothing", "stdout F c"], "c\n"),
            (&["stdout F a b  c"], "a b  c\n"),
        ];
        for (records, text) in rows {
            assert_eq!(printed(all, &log(records)), text, "{records:?}");
        }
        assert_eq!(printed(all, b"T stdout F a\nT stdou"), "a\n", "torn");
    }

    #[test]
    fn printer_selects_lines_by_time_and_number() {
        let log = log(&["stdout F a", "stdout P b", "stdout F c", "stderr F d"]);
        let at = |text: &str| Some(text.parse().unwrap());
        for (options, text) in [
            (PrintOptions { since: at("2026-01-01T00:00:01Z"), ..PrintOptions::default() }, "bc\nd\n"),
            // The time of a line is the time of its first record.
            (PrintOptions { since: at("2026-01-01T00:00:02Z"), ..PrintOptions::default() }, "d\n"),
            (PrintOptions { since: at("2027-01-01T00:00:00Z"), ..PrintOptions::default() }, ""),
            (PrintOptions { skip: 1, ..PrintOptions::default() }, "bc\nd\n"),
            (PrintOptions { skip: 2, ..PrintOptions::default() }, "d\n"),
            (PrintOptions { skip: 9, ..PrintOptions::default() }, ""),
            (
                PrintOptions { skip: 1, timestamps: true, ..PrintOptions::default() },
                "2026-01-01T00:00:01.5Z bc\n2026-01-01T00:00:03.5Z d\n",
            ),
        ] {
            assert_eq!(printed(options, &log), text, "{options:?}");
        }
        let local = b"2026-01-01T02:00:00+02:00 stdout F a\n";
        assert_eq!(
            printed(PrintOptions { since: at("2026-01-01T00:00:00Z"), ..PrintOptions::default() }, local),
            "a\n"
        );
    }

    #[test]
    fn printer_prints_the_lines_of_one_stream() {
        let log = log(&["stdout F a", "stderr P b", "stdout F c", "stderr F d"]);
        for (stream, text) in [(LogStream::Stdout, "a\nc\n"), (LogStream::Stderr, "bd\n")] {
            let options = PrintOptions { stream: Some(stream), ..PrintOptions::default() };
            assert_eq!(printed(options, &log), text, "{stream:?}");
        }
    }

    #[test]
    fn printer_bounds_the_memory_for_an_endless_record() {
        let long = "x".repeat(5 * MAX_RECORD + 17);
        let log = format!("T stdout F {long}\nT stdout P {long}\nT stderr F b\nT stdout F c\n");
        assert_eq!(printed(PrintOptions::default(), log.as_bytes()), format!("{long}\n{long}c\nb\n"));
        let (mut printer, mut out) = (Printer::new(PrintOptions::default()), Vec::new());
        for junk in [&b"T stdout P "[..], b""] {
            for _ in 0..100 {
                printer.feed(junk, &mut out);
                printer.feed(&[b'y'; 10_000], &mut out);
                assert!(printer.record.capacity() <= 2 * MAX_RECORD);
                out.clear();
            }
        }
    }

    #[test]
    fn printer_holds_back_the_other_stream_up_to_a_limit() {
        let other = format!("T stderr F {}\n", "z".repeat(1000)).repeat(200);
        let log = format!("T stdout P a\n{other}T stdout F b\n");
        let text = printed(PrintOptions::default(), log.as_bytes());
        assert!(text.starts_with("a\nz") && text.ends_with("z\nb\n"));
        assert_eq!(text.lines().count(), 202);
    }
}
