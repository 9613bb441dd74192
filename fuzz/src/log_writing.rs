//! Writing container logs: output is cut into records, and reading the records gives the output again.

use podwright_process::testing::log::{Lines, Record, tail, tail_window};

/// The input is used twice: as the end of a log file with any content, and as container output. For the output, the first two
/// bytes define the chunks in which it arrives and how often it is repeated.
pub fn check(bytes: &[u8]) {
    for cut in [false, true] {
        assert!(tail(bytes, cut, 80, 2048).len() <= 2048);
    }
    let [seed, times, text @ ..] = bytes else { return };
    // Inputs are short, and repeating them gives lines that are longer than a record.
    let text = text.repeat(usize::from(*times).max(1));
    let whole = log(&text, std::iter::once(text.len()));
    let mut state = u32::from(*seed) | 0x100;
    let chunks = std::iter::from_fn(|| {
        state = state.wrapping_mul(0x0019_660d).wrapping_add(0x3c6e_f35f);
        let bits = state >> 28;
        Some(((state >> 8) as usize) & ((1 << bits) - 1))
    });
    assert!(log(&text, chunks) == whole, "the log depends on how the output arrives");
    read_back(&text, &whole);
    ends(&text, &whole, usize::from(*seed), text.len() / 2);
    ends(&text, &whole, 80, 2048);
}

/// The log of a text that arrives in chunks of these sizes.
fn log(text: &[u8], sizes: impl Iterator<Item = usize>) -> Vec<u8> {
    let (mut lines, mut records) = (Lines::new("stderr"), Vec::new());
    let (mut rest, mut sizes) = (text, sizes);
    while !rest.is_empty() {
        let size = sizes.next().unwrap_or(rest.len()).min(rest.len());
        let (chunk, after) = rest.split_at(size);
        lines.feed(TIME, chunk, &mut records);
        rest = after;
    }
    lines.finish(TIME, &mut records);
    records
}

const TIME: &str = "2026-01-02T03:04:05.678901234Z";

/// The records of a log make up the output. The last line ends even if the output did not end with a newline.
fn read_back(text: &[u8], log: &[u8]) {
    let mut read = Vec::new();
    let mut ended = true;
    for line in log.split_inclusive(|b| *b == b'\n') {
        assert!(line.len() <= 16 * 1024 + 64, "a record of {} bytes", line.len());
        let record = Record::parse(line).expect("every line is a record");
        assert_eq!(record.stream, "stderr");
        read.extend_from_slice(record.text);
        ended = record.ends;
        if record.ends {
            read.push(b'\n');
        }
    }
    assert!(ended);
    assert!(read.strip_suffix(b"\n").unwrap_or(&read) == text.strip_suffix(b"\n").unwrap_or(text));
}

/// The last `tail_window` bytes of a log are enough to get the end of its output.
fn ends(text: &[u8], log: &[u8], lines: usize, bytes: usize) {
    let end = tail(log, false, lines, bytes);
    let newline: &[u8] = if text.is_empty() || text.ends_with(b"\n") { b"" } else { b"\n" };
    let written = [text, newline].concat();
    assert!(end.len() <= bytes && written.ends_with(&end));
    assert!(end.split_inclusive(|byte| *byte == b'\n').count() <= lines, "more than {lines} lines");
    let start = log.len().saturating_sub(tail_window(bytes));
    assert!(tail(&log[start..], start > 0, lines, bytes) == end, "the window is too small");
}
