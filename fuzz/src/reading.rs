//! Container logs as they are printed: of any bytes, in one file or in several, packed or not.

use std::fs;
use std::path::Path;

use podwright::adapters::log::reader::{LogRead, ReadOptions, Reader, runs};
use podwright::adapters::process::log::Record;
use tempfile::TempDir;

/// What a log is called, and what its older part is.
const CURRENT: &str = "0.log";
const OLDER: &str = "0.log.20261121-203000";

thread_local! {
    static DIR: TempDir = tempfile::tempdir().unwrap();
}

/// A byte that says how often the log is repeated, since files larger than a buffer are of interest, one that says how many
/// lines are wanted, and the log. With the first bit of the first byte set the log is taken for a packed one.
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
            // It may be refused.
            let _read = read(dir, ReadOptions::default());
            let _read = read(dir, ReadOptions { tail: Some((*tail).into()), ..ReadOptions::default() });
            return;
        }
        let log = text.repeat(usize::from(*how).max(1));
        one(dir, &log, (*tail).into());
        parts(dir, &log);
    });
}

/// All of a log, or why it cannot be read.
fn read(dir: &Path, ask: ReadOptions) -> std::io::Result<Vec<u8>> {
    let mut reader = Reader::open(dir.to_owned(), 0, ask)?;
    let mut all = Vec::new();
    // A file that is not written to any more, and that no other took the place of, has one end.
    while let LogRead::Text(text) = reader.read()? {
        all.extend(text);
    }
    all.extend(reader.finish());
    Ok(all)
}

/// Whatever is asked for is the end of what there is.
fn one(dir: &Path, log: &[u8], tail: u64) {
    fs::write(dir.join(CURRENT), log).unwrap();
    assert_eq!(runs(dir).unwrap(), [0]);
    let all = read(dir, ReadOptions::default()).unwrap();
    assert!(all.is_empty() || all.ends_with(b"\n"));
    // One without its newline is torn, or may go on.
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

/// It makes no difference where it was cut in two.
fn parts(dir: &Path, log: &[u8]) {
    let whole = read(dir, ReadOptions::default()).unwrap();
    let Some(cut) = log[log.len() / 2..].iter().position(|byte| *byte == b'\n') else { return };
    let (older, newer) = log.split_at(log.len() / 2 + cut + 1);
    fs::write(dir.join(OLDER), older).unwrap();
    fs::write(dir.join(CURRENT), newer).unwrap();
    assert!(read(dir, ReadOptions::default()).unwrap() == whole, "it matters that the log was rotated");
}
