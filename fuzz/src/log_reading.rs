//! Reading container logs with any content, from one file or several, compressed or not.

use std::fs;
use std::path::Path;

use podwright::adapters::log::LogDir;
use podwright::adapters::log::reader::{LogRead, ReadOptions, Reader, runs};
use podwright_process::testing::log::Record;
use tempfile::TempDir;

/// The names of a log's current file and of its older file.
const CURRENT: &str = "0.log";
const OLDER: &str = "0.log.20261121-203000";

thread_local! {
    static DIR: TempDir = tempfile::tempdir().unwrap();
}

/// The input is two bytes and a log. The first byte defines how often the log is repeated, to get files larger than a
/// buffer. The second byte is the number of requested lines. If the first byte has its highest bit set, the log is read as a gzip file.
pub fn check(bytes: &[u8]) {
    let [how, tail, text @ ..] = bytes else { return };
    DIR.with(|dir| {
        let dir = dir.path();
        for name in [CURRENT, OLDER, &format!("{OLDER}.gz")] {
            let _none = fs::remove_file(dir.join(name));
        }
        if how & 0x80 != 0 {
            fs::write(dir.join(format!("{OLDER}.gz")), text).unwrap();
            fs::write(dir.join(CURRENT), text).unwrap();
            // The reader may refuse the file.
            let _read = read(dir, ReadOptions::default());
            let _read = read(dir, ReadOptions { tail: Some((*tail).into()), ..ReadOptions::default() });
            return;
        }
        let log = text.repeat(usize::from(*how).max(1));
        tail_is_the_end(dir, &log, (*tail).into());
        rotation_does_not_matter(dir, &log);
    });
}

/// The whole text of a log.
fn read(dir: &Path, ask: ReadOptions) -> std::io::Result<Vec<u8>> {
    let mut reader = Reader::open(&LogDir::new(dir, "."), 0, ask)?;
    let mut all = Vec::new();
    // Nobody writes to the file, so the reader reaches its end.
    while let LogRead::Text(text) = reader.read()? {
        all.extend(text);
    }
    all.extend(reader.finish());
    Ok(all)
}

/// Every request for the last lines returns the end of the log.
fn tail_is_the_end(dir: &Path, log: &[u8], tail: u64) {
    fs::write(dir.join(CURRENT), log).unwrap();
    assert_eq!(runs(&LogDir::new(dir, ".")).unwrap(), [0]);
    let all = read(dir, ReadOptions::default()).unwrap();
    assert!(all.is_empty() || all.ends_with(b"\n"));
    // A line without newline is incomplete: it was cut off or is still being written.
    let whole = log.split_inclusive(|byte| *byte == b'\n').filter(|line| line.ends_with(b"\n"));
    let records = || whole.clone().filter_map(Record::parse);
    let texts: usize = records().map(|record| record.text.len()).sum();
    assert!(all.len() >= texts, "text is lost: {} of {texts}", all.len());
    let count = |text: &[u8]| text.iter().filter(|byte| **byte == b'\n').count() as u64;
    let last = read(dir, ReadOptions { tail: Some(tail), ..ReadOptions::default() }).unwrap();
    assert!(all.ends_with(&last) && count(&last) >= tail.min(count(&all)));
    if records().all(|record| record.ends) {
        assert_eq!(count(&last), tail.min(count(&all)));
    }
    let timed = read(dir, ReadOptions { timestamps: true, ..ReadOptions::default() }).unwrap();
    assert!(timed.len() >= all.len() + all.iter().filter(|byte| **byte == b'\n').count());
    let mut times = records().filter_map(|record| std::str::from_utf8(record.time).ok()?.parse().ok());
    if let Some(since) = times.next_back() {
        let late = read(dir, ReadOptions { since: Some(since), ..ReadOptions::default() }).unwrap();
        assert!(all.ends_with(&late));
    }
}

/// A log in two files reads like the same log in one file.
fn rotation_does_not_matter(dir: &Path, log: &[u8]) {
    let whole = read(dir, ReadOptions::default()).unwrap();
    let Some(cut) = log[log.len() / 2..].iter().position(|byte| *byte == b'\n') else { return };
    let (older, newer) = log.split_at(log.len() / 2 + cut + 1);
    fs::write(dir.join(OLDER), older).unwrap();
    fs::write(dir.join(CURRENT), newer).unwrap();
    assert!(read(dir, ReadOptions::default()).unwrap() == whole, "the rotated log reads differently");
}
